"""Fetches at the tail: served without Redis, with the same records as from Redis."""

from __future__ import annotations

import random
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import cramjam
import pytest
from aiokafka.record import MemoryRecords

from tests.api.asking import connect, versions
from tests.api.batches import ZSTD, batch, now_ms
from tests.api.test_fetch import BY_NAME, fetch, fetch_fields, keys
from tests.api.test_produce import everything, produce, put, topic_data
from tests.api.test_topics import create, wanted
from tests.support.polling import until
from tests.support.wire import decode_response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import KorvetServer

PRODUCE = 0
OUT_OF_RANGE = 1
# Reading records, or the end of a log, needs one of these commands.
READING = ("XRANGE", "XREVRANGE", "XINFO", "XLEN", "FCALL_RO")


@contextmanager
def reads(korvet: KorvetServer, topic: str) -> Iterator[list[str]]:
    """Yields a list of the commands that read the topic inside the block, complete after the block.

    Commands in functions don't count, because appends read the end of the stream. Polling moved Redis groups
    doesn't count either.
    """
    found: list[str] = []
    marker = f"end of {uuid.uuid4()}"
    with korvet.redis.monitor() as monitor:
        yield found
        korvet.redis.echo(marker)
        for seen in monitor.listen():
            if marker in seen["command"]:
                return
            name = seen["command"].partition(" ")[0].upper()
            is_reading = name in READING and not seen["command"].startswith("FCALL_RO korvet_moved")
            if is_reading and seen["client_type"] != "lua" and topic in seen["command"]:
                found.append(seen["command"])


def test_reads_are_seen(ask, korvet, topic):
    put(ask, topic, batch([(b"0", b"v")]))
    with reads(korvet, topic) as found:
        korvet.redis.xrange(f"korvet:{topic}:0")
    assert len(found) == 1


@versions("Fetch")
def test_no_redis_command(ask, korvet, topic, topic_ids, version):
    named = topic_ids(topic) if version >= 13 else topic
    offsets = [put(ask, topic, batch([(b"%d" % index, b"v" * 1000)])).base_offset for index in range(20)]
    with reads(korvet, topic) as found:
        for index, offset in enumerate(offsets):
            (part,) = fetch(ask, version, (named, 0, offset))
            assert keys(part) == [b"%d" % each for each in range(index, 20)]
            assert (part.error_code, part.high_watermark) == (0, offsets[-1] + 1)
            if version >= 5:
                assert part.log_start_offset == 0
    assert found == []


def test_a_consumer_may_lag_by_many_megabytes(ask, korvet, topic):
    for index in range(24):
        put(ask, topic, batch([(b"%d" % index, b"v" * 500_000)]))
    seen: list[bytes] = []
    with reads(korvet, topic) as found:
        offset = 0
        while len(seen) < 24:
            (part,) = fetch(ask, BY_NAME, (topic, 0, offset, {"partition_max_bytes": 2_000_000}))
            assert len(part.records) <= 2_000_000
            offset = _take(part, offset, seen)
    assert seen == [b"%d" % index for index in range(24)]
    assert found == []


def test_large_requests_one_behind_the_other(ask, topic):
    """The broker keeps a request's memory, and must not reuse it for the next request."""
    # Each request is slightly larger than the previous one: the next one begins in the same buffer.
    values = [b"%02d" % index * (150_000 + 750 * index) for index in range(40)]
    for value in values:
        parts = [topic_data(topic, [(0, batch([(None, value)]))])]
        ask.send("Produce", BY_NAME, acks=-1, timeout=10_000, topic_data=parts, transactional_id=None)
    for _ in values:
        answer = decode_response(PRODUCE, BY_NAME, ask.raw.receive()).message
        assert answer.responses[0].partition_responses[0].error_code == 0
    assert [value for _, _, value in everything(ask, topic)] == values


def test_waiting_consumers_are_all_served(ask, another, korvet, topic):
    put(ask, topic, batch([(b"0", b"v")]))
    end = everything(ask, topic)[-1][0] + 1
    waiting = [another() for _ in range(100)]
    for _ in range(3):
        fields = fetch_fields([(topic, 0, end, {})], wait_ms=20_000)
        for client in waiting:
            client.send("Fetch", BY_NAME, **fields)
        with reads(korvet, topic) as found:
            sent = put(ask, topic, batch([(b"k%d" % index, b"v") for index in range(30)]))
            for client in waiting:
                (part,) = client.receive("Fetch", BY_NAME).responses[0].partitions
                assert keys(part) == [b"k%d" % index for index in range(30)]
        assert found == []
        end = sent.base_offset + 30


def test_a_waiting_consumer_gets_native_entries_in_their_place(ask, another, korvet, topic):
    source = random.Random(11)
    client = another()
    expected, seen, offset = [], [], 0
    for number in range(150):
        text = b"%d" % number
        expected.append(text)
        if source.random() < 0.3:
            korvet.redis.xadd(f"korvet:{topic}:0", {"key": text, "value": "v", "ts": "0"})
        else:
            put(ask, topic, batch([(text, b"v")]))
        if source.random() < 0.5:
            (part,) = fetch(client, BY_NAME, (topic, 0, offset), wait_ms=500)
            offset = _take(part, offset, seen)
    until(lambda: _follow(client, topic, seen) == len(expected), 20, "all records")
    assert seen == expected


def _take(part, offset, seen):
    batches = MemoryRecords(part.records)
    while batches.has_next():
        for record in batches.next_batch():
            if record.offset >= offset:
                seen.append(record.key)
                offset = record.offset + 1
    return offset


def _follow(client, topic, seen):
    """Read everything again from the start, from Redis and from the cache."""
    seen.clear()
    offset = 0
    while True:
        (part,) = fetch(client, BY_NAME, (topic, 0, offset))
        if not part.records:
            return len(seen)
        offset = _take(part, offset, seen)


def test_limits_hold_at_whole_batches(ask, topic):
    sent = [batch([(b"%d" % index, b"v" * 1000)] * 5) for index in range(6)]
    offsets = [put(ask, topic, each).base_offset for each in sent]
    size = len(sent[0])
    for limit, expected in [(1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (100 * size, 6)]:
        (part,) = fetch(ask, BY_NAME, (topic, 0, 0, {"partition_max_bytes": limit}))
        assert len(part.records) == expected * size
        (part,) = fetch(ask, BY_NAME, (topic, 0, 0), max_bytes=limit)
        assert len(part.records) == expected * size
    (part,) = fetch(ask, BY_NAME, (topic, 0, offsets[2] + 3, {"partition_max_bytes": 1}))
    assert keys(part) == [b"2"] * 5, "the batch that holds the offset, whole"


def test_a_response_is_shared_by_what_is_cached_and_what_is_stored(ask, korvet, new_topic):
    """Partitions 0 and 2 are in the cache, 1 and 3 only in Redis."""
    name = new_topic(4)
    large = batch([(None, b"v" * 10_000)])
    for partition in (0, 2):
        put(ask, name, large, partition=partition)
    for partition in (1, 3):
        korvet.redis.xadd(f"korvet:{name}:{partition}", {"value": b"v" * 10_000})
    parts = [(name, partition, 0) for partition in range(4)]
    until(lambda: all(each.records for each in fetch(ask, BY_NAME, *parts)), 10, "all four")
    assert all(len(each.records) > 10_000 for each in fetch(ask, BY_NAME, *parts))
    sizes = [len(each.records) for each in fetch(ask, BY_NAME, *parts, max_bytes=25_000)]
    assert sum(size > 0 for size in sizes) >= 2
    assert sum(sizes) <= 25_000 + len(large)
    for first in range(4):
        turned = parts[first:] + parts[:first]
        assert fetch(ask, BY_NAME, *turned, max_bytes=1)[0].records
        sizes = [len(each.records) for each in fetch(ask, BY_NAME, *turned, max_bytes=12_000)]
        assert sizes[0] > 10_000


def test_old_fetches_are_not_given_zstd(ask, topic):
    pairs = [(b"k%d" % index, b"v" * 50) for index in range(20)]
    zstd = batch(pairs, attributes=ZSTD, compress=lambda data: bytes(cramjam.zstd.compress(data)))
    base = put(ask, topic, zstd).base_offset
    for version, codec in [(9, 0), (10, ZSTD)]:
        (part,) = fetch(ask, version, (topic, 0, base))
        assert part.records[22] & 7 == codec
        assert keys(part) == [key for key, _ in pairs]


def test_times_are_the_same_from_both(ask, korvet, new_topic):
    """Create times are as sent; LogAppendTime topics have the append time; after a native entry, Redis is
    read.
    """
    for configs in ({}, {"message.timestamp.type": "LogAppendTime"}):
        name = new_topic(1, configs)
        for shift in (0, -5000, 1000):
            produce(
                ask, BY_NAME, [(name, 0, batch([(b"a", b"1"), (None, None)], timestamp_ms=now_ms() + shift))]
            )
        first = _with_times(ask, name)
        korvet.redis.xadd(f"korvet:{name}:0", {"value": "x"})
        put(ask, name, batch())
        assert len(first) == 6
        assert _with_times(ask, name)[:6] == first


def _with_times(ask, name):
    (part,) = fetch(ask, BY_NAME, (name, 0, 0))
    found = []
    batches = MemoryRecords(part.records)
    while batches.has_next():
        each = batches.next_batch()
        found += [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value) for r in each]
    return found


@pytest.mark.parametrize("how", ["xdel", "xtrim", "del"])
def test_what_is_deleted_natively_is_given_no_more(ask, korvet, topic, how):
    offsets = [put(ask, topic, batch([(b"%d" % index, b"v")])).base_offset for index in range(6)]
    stream = f"korvet:{topic}:0"
    ids = [entry_id for entry_id, _ in korvet.redis.xrange(stream)]
    if how == "xdel":
        korvet.redis.xdel(stream, ids[3])
    elif how == "xtrim":
        korvet.redis.xtrim(stream, maxlen=2, approximate=False)
    else:
        korvet.redis.delete(stream)

    def gone() -> bool:
        (part,) = fetch(ask, BY_NAME, (topic, 0, offsets[3]))
        return part.error_code == OUT_OF_RANGE or keys(part)[:1] != [b"3"]

    until(gone, 10, "the entry is gone")
    base = put(ask, topic, batch([(b"new", b"v")])).base_offset
    (part,) = fetch(ask, BY_NAME, (topic, 0, base))
    assert keys(part) == [b"new"]


def test_a_topic_made_anew_shows_nothing_of_the_old_one(ask, new_topic):
    name = new_topic()
    put(ask, name, batch([(b"old", b"v")]))
    states = [{"name": name, "topic_id": None}]
    (deleted,) = ask("DeleteTopics", 6, topics=states, timeout=10_000).responses
    assert deleted.error_code == 0
    (made,) = create(ask, wanted(name))
    assert made.error_code == 0
    (part,) = fetch(ask, BY_NAME, (name, 0, 0))
    assert (part.error_code, part.records) == (0, b"")
    put(ask, name, batch([(b"new", b"v")]))
    (part,) = fetch(ask, BY_NAME, (name, 0, 0))
    assert keys(part) == [b"new"]


def test_reads_go_on_without_memory_for_it(own_korvet):
    """With tail.cache.bytes = 0 everything comes from Redis."""
    server = own_korvet("--set", "tail.cache.bytes=0")
    with connect(server) as client:
        create(client, wanted("uncached"))
        for index in range(20):
            put(client, "uncached", batch([(b"%d" % index, b"v")]))
        with reads(server, "uncached") as found:
            (part,) = fetch(client, BY_NAME, ("uncached", 0, 0))
        assert keys(part) == [b"%d" % index for index in range(20)]
        assert len(found) == 1


def test_what_was_appended_last_is_in_memory_whatever_its_partition(own_korvet):
    """The cache has room for about 20 of 60 records of 10 KB in three partitions."""
    server = own_korvet("--set", "tail.cache.bytes=205000")
    with connect(server) as client:
        create(client, wanted("turns", 3))
        sent = [batch([(b"%d" % index, b"v" * 10_000)]) for index in range(60)]
        offsets = [
            put(client, "turns", records, partition=index % 3).base_offset
            for index, records in enumerate(sent)
        ]
        with reads(server, "turns") as found:
            for index in (42, 43, 44):
                (part,) = fetch(client, BY_NAME, ("turns", index % 3, offsets[index]))
                assert keys(part) == [b"%d" % each for each in range(index, 60, 3)]
        assert found == []
        for partition in range(3):
            found = [key for _, key, _ in everything(client, "turns", partition)]
            assert found == [b"%d" % index for index in range(partition, 60, 3)]
