"""storage.layout: set, described, fixed; and how clients see batches that are entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from korvet.offsets.packing import entry_id
from korvet.records.compression import compress
from tests.api.asking import connect, versions
from tests.api.batches import GZIP, LZ4, SNAPPY, ZSTD, batch, now_ms, read, record
from tests.api.test_alter_configs import DELETE, SET, increment, refusal, replace, resource
from tests.api.test_fetch import fetch, keys
from tests.api.test_produce import LAST_BY_NAME, everything, produce, producer_id, put, stamped
from tests.support.admin import create_topic
from tests.support.confluent import consumer, take
from tests.support.framings import framings
from tests.support.polling import until

if TYPE_CHECKING:
    from tests.support.servers import KorvetServer

KEY = "storage.layout"
BATCH = {KEY: "batch"}
INVALID_CONFIG, CORRUPT, TOO_LARGE, INVALID_RECORD = 40, 2, 10, 87
TOPIC = 2


def described(ask, name, key=KEY):
    """Returns a topic config's value and source (1 topic, 4 broker, 5 default)."""
    asked = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": [key]}
    (result,) = ask("DescribeConfigs", 4, resources=[asked], include_synonyms=True).results
    (config,) = result.configs
    return config.value, config.config_source


def creation(ask, name, configs):
    wanted = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    (result,) = ask("CreateTopics", 7, topics=[wanted], timeout=10_000).topics
    return result.error_code, result.error_message


@pytest.mark.parametrize(("own", "other"), [("batch", "record"), ("record", "batch"), (None, "batch")])
def test_the_layout_is_fixed(ask, korvet, new_topic, own, other):
    name = new_topic(1, {} if own is None else {KEY: own})
    assert described(ask, name) == (own or "record", 5 if own is None else 1)
    for way in (increment, replace):
        error, message = refusal(ask, name, (KEY, SET, other), way=way)
        assert error == INVALID_CONFIG
        assert f"fixed at its creation as {own or 'record'} and can't be changed" in message
        assert way(ask, resource(name, (KEY, SET, own or "record"))) == [(0, None)]
    if own == "batch":
        assert refusal(ask, name, (KEY, DELETE, None))[0] == INVALID_CONFIG
        assert increment(ask, resource(name, ("cleanup.policy", SET, "compact"))) == [(0, None)]
    assert replace(ask, resource(name, ("retention.ms", "5"))) == [(0, None)]
    assert described(ask, name)[0] == (own or "record")
    assert put(ask, name, batch()).error_code == 0


def test_unknown_layouts_are_refused(ask, korvet, fresh):
    error, message = creation(ask, fresh("topic"), {KEY: "columns"})
    assert error == INVALID_CONFIG
    assert "record, batch" in message


def test_the_brokers_choice_is_for_new_topics(own_korvet):
    server = own_korvet("--set", "log.storage.layout=batch")
    create_topic(server.bootstrap, "plain", 1)
    create_topic(server.bootstrap, "own", 1, {KEY: "record"})
    create_topic(server.bootstrap, "compacted", 1, {"cleanup.policy": "compact"})
    seen = {"plain": ("batch", 4), "own": ("record", 1), "compacted": ("batch", 4)}
    check_layouts(server, seen)
    server.stop()
    # Another setting doesn't change existing topics.
    server.options.clear()
    server.restart()
    create_topic(server.bootstrap, "later", 1)
    check_layouts(server, {**seen, "later": ("record", 5)})


def check_layouts(server: KorvetServer, expected: dict[str, tuple[str, int]]) -> None:
    with connect(server) as client:
        for name, (layout, source) in expected.items():
            assert described(client, name) == (layout, source)
            assert put(client, name, batch([(b"a", b"1"), (b"b", b"2")])).error_code == 0
            fields = [dict(entry) for _, entry in server.redis.xrange(f"korvet:{name}:0")]
            assert all(set(entry) == {b"batch"} for entry in fields) == (layout == "batch")


@versions("Produce")
def test_every_version_of_produce(ask, korvet, new_topic, topic_ids, version):
    name = new_topic(1, BATCH)
    topic = topic_ids(name) if version > LAST_BY_NAME else name
    pairs = [(b"k", b"v"), (None, b""), (b"", None), (None, None)]
    for codec in (0, GZIP, SNAPPY, LZ4, *([ZSTD] if version >= 7 else [])):
        data = batch(pairs, attributes=codec, compress=lambda plain, c=codec: compress(c, plain))
        (result,) = produce(ask, version, [(topic, 0, data)])
        assert result.error_code == 0
        (found_id, fields), *_ = korvet.redis.xrevrange(f"korvet:{name}:0", count=1)
        assert found_id.decode() == entry_id(result.base_offset + 3)
        assert fields[b"batch"][16:] == data[16:]
    found = everything(ask, name)
    assert [(key, value) for _, key, value in found] == pairs * (len(found) // 4)


@versions("Fetch")
def test_every_version_of_fetch(ask, korvet, new_topic, topic_ids, version):
    """Fetches start inside batches of all codecs. A native entry ended the cached range, so Redis is read."""
    name = new_topic(1, BATCH)
    topic = topic_ids(name) if version >= 13 else name
    sent = []
    for number, codec in enumerate((0, GZIP, ZSTD, LZ4)):
        rows = [(b"%d-%d" % (number, index), b"v") for index in range(10)]
        data = batch(rows, attributes=codec, compress=lambda plain, c=codec: compress(c, plain))
        sent.append((put(ask, name, data).base_offset, rows))
    korvet.redis.xadd(f"korvet:{name}:0", {"celsius": "21"})
    sent.append((put(ask, name, batch([(b"last", b"v")])).base_offset, [(b"last", b"v")]))
    for base, rows in sent:
        for inside in {0, len(rows) // 2, len(rows) - 1}:
            (part,) = fetch(ask, version, (topic, 0, base + inside))
            assert part.error_code == 0
            records = read(part.records)
            assert records[0] == (base, *rows[0]), "the whole batch"
            assert records[-1][1:] == (b"last", b"v")
            codecs = batch_codecs(part.records)
            assert (ZSTD in codecs) == (version >= 10 and base <= sent[2][0])
    (part,) = fetch(ask, version, (topic, 0, sent[-1][0] - 1))
    assert read(part.records)[0][2] in (b'{"celsius":"21"}', b"v")


def batch_codecs(data: bytes) -> set[int]:
    found, at = set(), 0
    while at < len(data):
        found.add(data[at + 22] & 7)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def test_limits_and_damage(ask, korvet, new_topic):
    name = new_topic(1, {**BATCH, "max.message.bytes": "1000", "max.decompressed.message.bytes": "3000"})
    big = [(None, b"v" * 5000)]
    for data, error in [
        (batch([(None, b"v" * 2000)]), TOO_LARGE),
        (batch(big, attributes=ZSTD, compress=lambda plain: compress(ZSTD, plain)), TOO_LARGE),
        (batch(crc=7), CORRUPT),
        (batch(attributes=GZIP, compress=lambda _: b"no gzip"), INVALID_RECORD),
        (batch(count=2), INVALID_RECORD),
        (batch(compress=lambda plain: plain + b"\x00"), INVALID_RECORD),
        (batch(compress=lambda plain: plain[:-1] + b"\x02"), INVALID_RECORD),
        (batch() + batch(), INVALID_RECORD),
    ]:
        assert put(ask, name, data).error_code == error
    assert korvet.redis.exists(f"korvet:{name}:0") == 0
    assert put(ask, name, batch()).error_code == 0


def test_sequences(ask, korvet, new_topic):
    name = new_topic(1, BATCH)
    pid = producer_id(ask)
    first = put(ask, name, stamped(pid, 0, count=3))
    second = put(ask, name, stamped(pid, 3))
    assert put(ask, name, stamped(pid, 0, count=3)).base_offset == first.base_offset
    assert put(ask, name, stamped(pid, 3)).base_offset == second.base_offset
    assert put(ask, name, stamped(pid, 9)).error_code == 45
    assert len(everything(ask, name)) == 4


def test_times(ask, korvet, new_topic):
    start_ms = now_ms() - 100_000
    names = [new_topic(1, {**configs, "offset.assignment": "dense"}) for configs in ({}, BATCH)]
    for name in names:
        for number in range(5):
            rows = [(b"%d" % index, b"v") for index in range(4)]
            assert put(ask, name, batch(rows, timestamp_ms=start_ms + 10 * number)).error_code == 0

    def asked(name, timestamp_ms):
        wanted = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp_ms}
        answer = ask("ListOffsets", 7, replica_id=-1, topics=[{"name": name, "partitions": [wanted]}])
        (part,) = answer.topics[0].partitions
        return part.error_code, part.offset, part.timestamp

    for timestamp_ms in (-1, -2, -3, 0, *range(start_ms - 1, start_ms + 45, 3)):
        assert asked(names[1], timestamp_ms) == asked(names[0], timestamp_ms), timestamp_ms


def test_append_times(ask, korvet, new_topic):
    name = new_topic(1, {**BATCH, "message.timestamp.type": "LogAppendTime"})
    for _ in range(3):
        result = put(ask, name, batch([(b"a", b"1"), (b"b", b"2")], timestamp_ms=5))
        (part,) = fetch(ask, 11, (name, 0, result.base_offset))
        assert keys(part) == [b"a", b"b"]
        assert int.from_bytes(part.records[35:43], "big") == int(result.log_append_time.timestamp() * 1000)
        assert part.records[22] & 8


def test_batches_that_would_be_refused_today_are_served(ask, korvet, new_topic):
    """Former releases stored them: not every client can read their framing."""
    name = new_topic(1, {**BATCH, "offset.assignment": "dense"})
    pair = (b"k", bytes(100_000))
    refused = {"two members", "version 2", "linked blocks", "skippable frame first", "two frames"}
    stored = []
    for framing in framings(record(0, *pair)):
        if framing.codec == ZSTD or framing.name not in refused:
            continue
        data = batch([pair], attributes=framing.codec, compress=lambda _, section=framing.section: section)
        assert put(ask, name, data).error_code == INVALID_RECORD
        offset = len(stored)
        stored.append(offset.to_bytes(8, "big") + data[8:])
        korvet.redis.xadd(f"korvet:{name}:0", {"batch": stored[-1]}, id=entry_id(offset, 1))
    assert len(stored) == len(refused)
    until(lambda: fetch(ask, 11, (name, 0, 0))[0].records == b"".join(stored), 10, "the batches")


def test_a_damaged_batch_is_corrupt_until_a_consumer_seeks_past_it(ask, korvet, new_topic):
    name = new_topic(2, BATCH)
    first = put(ask, name, batch([(b"k", b"v")] * 3)).base_offset
    stream = f"korvet:{name}:0"
    ((_, fields),) = korvet.redis.xrange(stream)
    damaged_at = first + (1 << 20)
    wrong = damaged_at.to_bytes(8, "big") + fields[b"batch"][8:-1] + b"?"
    korvet.redis.xadd(stream, {"batch": wrong}, id=entry_id(damaged_at + 2))
    behind = put(ask, name, batch([(b"k", b"behind")])).base_offset
    put(ask, name, batch([(b"k", b"other")]), partition=1)
    (part,) = fetch(ask, 11, (name, 0, first))
    assert (part.error_code, [value for _, _, value in read(part.records)]) == (0, [b"v"] * 3)
    for offset in (first + 3, damaged_at, damaged_at + 2):
        for isolation in (0, 1):
            parts = fetch(ask, 11, (name, 0, offset), (name, 1, 0), isolation_level=isolation)
            assert [each.error_code for each in parts] == [CORRUPT, 0]
            assert not parts[0].records
            assert [value for _, _, value in read(parts[1].records)] == [b"other"]
    client = consumer(korvet.bootstrap, name, auto_offset_reset="earliest")
    try:
        client.assign([TopicPartition(name, 0, first)])
        assert len(take(client, 3)) == 3
        message = until(lambda: client.poll(0.1), 20, "the error")
        assert message.error() is not None
        client.seek(TopicPartition(name, 0, damaged_at + 3))
        found = until(
            lambda: (message := client.poll(0.1)) and not message.error() and message, 20, "a record"
        )
        assert (found.offset(), found.value()) == (behind, b"behind")
    finally:
        client.close()
