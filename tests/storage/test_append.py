"""Appends: idempotence, epochs, refusals, all or nothing."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest

from korvet.cluster.claims import claim
from korvet.log.values import Appended, ProducerSequence
from korvet.offsets.packing import MAX_MS, entry_id
from korvet.records.kernel import encode_append_records
from korvet.redis.errors import (
    FencedEpoch,
    InvalidProducerEpoch,
    OffsetsExhausted,
    OutOfMemory,
    OutOfOrderSequence,
    SequenceGap,
    StorageError,
    TopicGone,
    WrongType,
)
from korvet.redis.futures import awaited
from tests.storage.batches import decode, received
from tests.storage.conftest import Bench
from tests.storage.proxy import proxied_store, until
from tests.support.logs import admit, append_own, read_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.cluster.topic import Topic
    from korvet.log.partition_log import PartitionLog
    from korvet.records.batch import AppendArguments
    from tests.support.redis_server import Server

MAX_SEQUENCE_NUMBER = 2**31 - 1


def batch(*values: bytes, timestamp_ms: int = 5) -> Any:
    return encode_append_records([(None, value, timestamp_ms) for value in values])


def append(
    bench: Bench,
    log: PartitionLog,
    count: int = 1,
    stamp: tuple[int, int, int] | None = None,
    epoch: int | None = None,
) -> Appended:
    producer = ProducerSequence(*stamp) if stamp else None
    return bench.run(append_own(log, batch(*[b"v"] * count), producer, epoch=epoch))


@pytest.mark.each_server
def test_duplicates_of_the_last_five_batches_get_their_first_offset(bench: Bench) -> None:
    log = bench.log()
    first = [append(bench, log, 3, (7, 0, 3 * number)) for number in range(6)]
    for number in range(1, 6):
        again = append(bench, log, 3, (7, 0, 3 * number))
        assert again.duplicate
        assert again.base_offset == first[number].base_offset
    with pytest.raises(OutOfOrderSequence):
        append(bench, log, 3, (7, 0, 0))
    assert bench.client.xlen(log.stream) == 18


@pytest.mark.parametrize("sequence", [0, 1, 17, MAX_SEQUENCE_NUMBER])
def test_an_unknown_producer_may_begin_anywhere(bench: Bench, sequence: int) -> None:
    assert not append(bench, bench.log(), 1, (1, 3, sequence)).duplicate


@pytest.mark.parametrize("claims", [0, 2], ids=["one leader", "another leader follows"])
def test_a_gap_after_a_cut_displaces_no_batch_that_may_come_again(bench: Bench, claims: int) -> None:
    """The producer had five batches in flight, of which the failover lost the fourth."""
    log = bench.log(offset_assignment="dense")
    first = [append(bench, log, stamp=(7, 0, number)) for number in range(5)]
    for leader_epoch in range(claims):
        bench.run(claim(bench.store.commands, log.topic, 0, leader_epoch))
    bench.client.hset(log.state.meta, "leaders", f"1:{log.ends.log_end}")
    for number in (6, 5):
        with pytest.raises(SequenceGap):
            append(bench, log, stamp=(7, 0, number))
    first += [append(bench, log, stamp=(7, 0, number)) for number in (5, 6)]
    again = [append(bench, log, stamp=(7, 0, number)) for number in range(2, 7)]
    assert [each.base_offset for each in again] == [each.base_offset for each in first[2:]]
    assert log.ends.log_end == 7


def test_a_gap_after_a_change_of_leader_is_kept_for_the_batches_before_it(bench: Bench) -> None:
    """These may be on their way to the former leader, for a minute at most."""
    log = bench.log(offset_assignment="dense")
    for leader_epoch in (0, 1):
        append(bench, log, stamp=(1, leader_epoch, 0))
        bench.run(claim(bench.store.commands, log.topic, 0, leader_epoch))
    for producer, epoch, known in ((1, 1, 1), (1, 2, 0), (2, 0, 0)):
        with pytest.raises(SequenceGap):
            append(bench, log, stamp=(producer, epoch, known + 1))
        for sequence in (known, known + 1):
            append(bench, log, stamp=(producer, epoch, sequence))
        with pytest.raises(SequenceGap):
            append(bench, log, stamp=(producer, epoch, known + 3))
    append(bench, log, 7, (2, 0, 2))
    for overlapping in (3, 8):
        with pytest.raises(OutOfOrderSequence):
            append(bench, log, stamp=(2, 0, overlapping))
    # An unknown producer may be one whose state has expired.
    bench.client.hincrby(log.state.meta, "taken_over", -10_000)
    append(bench, log, stamp=(3, 0, 1))
    with pytest.raises(SequenceGap):
        append(bench, log, stamp=(1, 2, 3))
    bench.client.hincrby(log.state.meta, "taken_over", -50_000)
    with pytest.raises(OutOfOrderSequence):
        append(bench, log, stamp=(1, 2, 3))


def test_later_claims_of_a_leader_are_no_change_of_leader(bench: Bench) -> None:
    log = bench.log()
    for new_writer in (False, True, True):
        bench.run(claim(bench.store.commands, log.topic, 0, 3, new_writer=new_writer))
    append(bench, log, stamp=(1, 0, 0))
    with pytest.raises(OutOfOrderSequence):
        append(bench, log, stamp=(1, 0, 2))


def test_a_gap_after_a_cut_is_no_overlap(bench: Bench) -> None:
    """A batch that begins within the newest one would be appended in part a second time."""
    log = bench.log(offset_assignment="dense")
    append(bench, log, 3, (7, 0, 0))
    bench.client.hset(log.state.meta, "leaders", f"1:{log.ends.log_end}")
    for sequence, error in ((5, SequenceGap), (2, OutOfOrderSequence), (0, OutOfOrderSequence)):
        with pytest.raises(error):
            append(bench, log, stamp=(7, 0, sequence))
    append(bench, log, stamp=(7, 0, 5))


@pytest.mark.parametrize("sequence", [0, 1, 3, 9])
def test_gaps_and_overlaps_of_sequences_are_refused(bench: Bench, sequence: int) -> None:
    log = bench.log()
    append(bench, log, 2, (1, 0, 0))
    with pytest.raises(OutOfOrderSequence):
        append(bench, log, 1, (1, 0, sequence))
    assert bench.client.xlen(log.stream) == 2
    append(bench, log, 1, (1, 0, 2))


def test_sequences_wrap_inside_and_between_batches(bench: Bench) -> None:
    log = bench.log()
    append(bench, log, 1, (1, 0, MAX_SEQUENCE_NUMBER - 2))
    across = append(bench, log, 4, (1, 0, MAX_SEQUENCE_NUMBER - 1))
    assert append(bench, log, 4, (1, 0, MAX_SEQUENCE_NUMBER - 1)).base_offset == across.base_offset
    append(bench, log, 1, (1, 0, 2))
    append(bench, log, 1, (2, 0, MAX_SEQUENCE_NUMBER))
    append(bench, log, 1, (2, 0, 0))


def test_producer_epochs(bench: Bench) -> None:
    log = bench.log()
    append(bench, log, 1, (1, 4, 0))
    with pytest.raises(InvalidProducerEpoch):
        append(bench, log, 1, (1, 3, 1))
    with pytest.raises(OutOfOrderSequence):
        append(bench, log, 1, (1, 5, 1))
    append(bench, log, 1, (1, 5, 0))
    with pytest.raises(InvalidProducerEpoch):
        append(bench, log, 1, (1, 4, 1))


def test_idle_producers_are_forgotten(bench: Bench) -> None:
    log = bench.log()
    for producer in range(700):
        append(bench, log, 1, (producer, 0, 0))
    assert bench.run(log.trimming.expire_producers(0)) == 0
    now = append(bench, log, 1, (1, 0, 1))
    assert bench.run(log.trimming.expire_producers(now.append_ms + 1)) == 700
    append(bench, log, 1, (1, 0, 77))


def test_an_older_epoch_of_the_writer_is_fenced(bench: Bench) -> None:
    log = bench.log()
    assert bench.run(log.acquire_epoch()) == 1
    append(bench, log, epoch=1)
    assert bench.run(log.acquire_epoch()) == 2
    with pytest.raises(FencedEpoch):
        append(bench, log, epoch=1)
    append(bench, log, epoch=2)
    append(bench, log)
    assert bench.run(log.bounds()).epoch == 2
    append(bench, log, epoch=7)
    with pytest.raises(FencedEpoch):
        append(bench, log, epoch=6)
    assert bench.run(log.bounds()).epoch == 7
    assert bench.client.xlen(log.stream) == 4


def test_runs_carry_into_the_next_millisecond(bench: Bench) -> None:
    log = bench.log()
    appended = append(bench, log, 3000)
    ids = [entry for entry, _ in bench.client.xrange(log.stream)]
    assert ids == [entry_id(appended.base_offset + i).encode() for i in range(3000)]
    assert appended.lead_ms >= 1


def set_log_end(bench: Bench, log: PartitionLog, end: int) -> None:
    """Set the log end in the meta hash: the first of its numbers."""
    numbers = bench.client.hget(log.meta, "log")
    bench.client.hset(log.meta, "log", struct.pack(">d", end) + numbers[8:])


def test_a_burst_beyond_the_cap_waits_and_clock_jumps_do_not(bench: Bench) -> None:
    bench.store.resources.lead_cap_ms = 5
    log = bench.log()
    appended = append(bench, log, 10)
    # The log end after a burst that is faster than any server in a test.
    end_ms = appended.append_ms + 400
    set_log_end(bench, log, end_ms << 10)
    late = append(bench, log)
    assert late.base_offset >= end_ms << 10
    assert end_ms - 5 <= late.append_ms < end_ms + 5_000
    assert bench.client.xlen(log.stream) == 11
    other = bench.log("future")
    ahead_ms = int(time.time() * 1000) + 3_600_000
    bench.client.xadd(other.stream, {"a": "b"}, id=f"{ahead_ms}-7")
    for _ in range(3):
        assert append(bench, other, 10_000).base_offset > ahead_ms << 10


def test_ids_beyond_all_offsets_are_refused_and_read_over(bench: Bench) -> None:
    log = bench.log()
    first = append(bench, log)
    bench.client.xadd(log.stream, {"a": "b"}, id=f"{2**64 - 1}-5")
    with pytest.raises(OffsetsExhausted):
        append(bench, log)
    fetched = bench.run(read_log(log, first.base_offset, 1000))
    assert fetched.record_count == 1
    assert bench.run(read_log(log, fetched.next_offset, 1000)).next_offset == bench.run(log.bounds()).log_end
    assert bench.run(log.queries.count(0, 2**53)) == 2
    assert bench.run(log.queries.offset_of_max_timestamp()) == (first.base_offset, 5)


def test_timestamps_come_back_exactly(bench: Bench) -> None:
    """The timestamps are within the bounds that Produce sets for create times."""
    stamps = [
        0,
        -1,
        1,
        2**31,
        2**52 - 1,
        2**52,
        -(2**52) + 1,
        -(2**52),
        2**52 + 1,
        2**53 + 1,
        -(2**53) - 1,
        10**15,
        -(10**15),
        1_795_896_955_643_000_001,
        -1_795_896_955_643_999_999,
        5 * 10**18 + 1,
        2**63 - 1,
        2**63 - 2,
        -(2**63) + MAX_MS,
    ]
    for assignment in ("clock", "dense"):
        log = bench.log(f"t-{assignment}", offset_assignment=assignment)
        arguments = encode_append_records([(b"k", b"v", stamp) for stamp in stamps])
        appended = bench.run(append_own(log, arguments))
        fetched = bench.run(read_log(log, appended.base_offset, 1 << 20))
        assert [record.timestamp_ms for record in decode(fetched.data)] == stamps


def test_append_time_on_dense_topics_is_stamped(bench: Bench) -> None:
    log = bench.log(offset_assignment="dense", configs={"message.timestamp.type": "LogAppendTime"})
    assert log.state.with_timestamps
    appended = append(bench, log, 2)
    records = decode(bench.run(read_log(log, 0, 1000)).data)
    assert [record.timestamp_ms for record in records] == [appended.append_ms] * 2


def test_newest_entry_per_key_of_an_internal_topic(bench: Bench) -> None:
    log = bench.log(configs={"cleanup.policy": "compact"}, internal=True)
    keyed: Sequence[tuple[bytes | None, bytes | None, int]] = [
        (b"a", b"1", 0),
        (b"b", b"1", 0),
        (b"a", b"2", 0),
        (b"b", None, 0),
        (None, b"x", 0),
        (b"value", b"", 0),
    ]
    base = bench.run(append_own(log, encode_append_records(keyed))).base_offset
    latest = bench.store.commands.keyspace.latest("t", 0)
    expected = {b"a": entry_id(base + 2).encode(), b"value": entry_id(base + 5).encode()}
    assert bench.client.hgetall(latest) == expected


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.each_server
def test_a_key_of_another_type_refuses_the_append_whole(bench: Bench, place: int) -> None:
    log = bench.log(configs={"cleanup.policy": "compact"}, internal=True)
    append(bench, log, 2)
    keys = bench.store.commands.keyspace.partition_keys("t", 0)
    bench.client.delete(keys[place])
    bench.client.set(keys[place], "mine")
    before = bench.client.xlen(log.stream) if place else 0
    with pytest.raises(WrongType):
        append(bench, log, 2)
    assert bench.client.get(keys[place]) == b"mine"
    assert (bench.client.xlen(log.stream) if place else 0) == before


def test_offsets_go_on_after_the_stream_is_deleted(bench: Bench) -> None:
    for assignment in ("clock", "dense"):
        log = bench.log(f"t-{assignment}", offset_assignment=assignment)
        first = append(bench, log, 5000)
        bench.client.delete(log.stream)
        bounds = bench.run(log.bounds())
        assert bounds.log_start == bounds.log_end == first.base_offset + 5000
        again = append(bench, log, 2)
        assert again.base_offset >= bounds.log_end
        assert again.log_start == bounds.log_end
        assert bench.run(log.queries.count(0, log.ends.log_end)) == 2


@pytest.mark.each_server
def test_out_of_memory_refuses_the_append_whole(new_server: Callable[..., Server]) -> None:
    bench = Bench(new_server(), "oom")
    log = bench.log()
    append(bench, log, 10)
    used = bench.client.info("memory")["used_memory"]
    bench.client.config_set("maxmemory", used + 200_000)
    written = 10
    arguments = batch(*[b"x" * 1000] * 20)
    full = False
    while not full:
        try:
            bench.run(append_own(log, arguments))
        except OutOfMemory:
            full = True
        else:
            written += 20
    assert bench.client.xlen(log.stream) == written
    assert bench.run(log.queries.count(0, log.ends.log_end)) == written
    assert bench.run(log.trimming.trim(None, 0, 0)) == written
    append(bench, log, 10)
    bench.close()


@pytest.mark.each_server
def test_order_is_kept_when_the_library_is_lost(bench: Bench) -> None:
    log = bench.log()
    outcomes: list[Appended | StorageError] = []

    async def load() -> None:
        finished = asyncio.get_running_loop().create_future()

        def done(outcome: Appended | StorageError) -> None:
            outcomes.append(outcome)
            if len(outcomes) == 300:
                finished.set_result(None)

        for number in range(300):
            log.append_own(batch(b"%d" % number), ProducerSequence(1, 0, number), done)
            if number % 60 == 30:
                bench.store.commands.links(log.stream).server.write.call("FUNCTION", "FLUSH")
            if number % 20 == 0:
                await asyncio.sleep(0)
        await finished

    bench.run(load())
    assert all(isinstance(outcome, Appended) for outcome in outcomes)
    values = [fields[b"value"] for _, fields in bench.client.xrange(log.stream)]
    assert values == [b"%d" % number for number in range(300)]


async def test_a_cut_link_leaves_no_duplicate_of_an_idempotent_batch(server: Server, prefix: str) -> None:
    async with proxied_store(server.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        await append_own(log, batch(b"0"), ProducerSequence(1, 0, 0))
        proxy.hold_replies()
        lost = asyncio.ensure_future(append_own(log, batch(b"1"), ProducerSequence(1, 0, 1)))
        await until(lambda: server.client.xlen(log.stream) == 2)
        await proxy.cut()
        first = await lost
        assert not first.duplicate
        again = await append_own(log, batch(b"1"), ProducerSequence(1, 0, 1))
        assert again.duplicate
        assert again.base_offset == first.base_offset
        assert server.client.xlen(log.stream) == 2


@pytest.mark.parametrize("layout", ["record", "batch"])
def test_a_batch_that_is_not_admitted_leaves_no_trace(bench: Bench, layout: str) -> None:
    """Whether it would be sent at once, or wait for one in flight."""
    log = bench.log(storage_layout=layout)
    seen: list[tuple[int, int, int]] = []
    outcomes: list[Any] = []

    def refuse(summary: AppendArguments) -> None:
        seen.append((summary.min_timestamp_ms, summary.max_timestamp_ms, summary.keyless_count))
        raise PermissionError

    def attempt() -> None:
        refused = received([(b"k", b"no", 7), (None, b"no", 9)])
        with pytest.raises(PermissionError):
            log.append(refused, None, refuse, outcomes.append)

    def begin(value: bytes) -> asyncio.Future[Appended]:
        return awaited(lambda done: log.append(received([(b"k", value, 5)]), None, admit, done))

    async def work() -> None:
        attempt()
        first = begin(b"1")
        attempt()
        await first
        attempt()
        await begin(b"2")
        fetched = await read_log(log, 0, 1 << 20)
        assert [record.value for record in decode(fetched.data)] == [b"1", b"2"]

    bench.run(work())
    assert seen == [(7, 9, 1)] * 3
    assert outcomes == []


def test_a_deleted_topic_takes_nothing_more(bench: Bench) -> None:
    topic: Topic = bench.topic("t")
    log = bench.store.logs.get(topic, 0)
    append(bench, log)
    bench.run(bench.store.catalogue.delete("t"))
    with pytest.raises(TopicGone):
        append(bench, log)
    with pytest.raises(TopicGone):
        bench.run(read_log(log, 0, 1))
    assert not bench.client.keys(f"*{bench.prefix}:t:*")


@pytest.mark.parametrize("first", ["a", "key"])
def test_native_function_follows_our_ids(bench: Bench, first: str) -> None:
    log = bench.log(offset_assignment="dense")
    keys = bench.store.commands.keyspace.partition_keys("t", 0)[:3]
    assert bench.client.fcall("korvet_xadd", 3, *keys, first, "b") == b"0-1"
    assert append(bench, log).base_offset == 1
    assert bench.client.fcall("korvet_xadd", 3, *keys, first, "b") == b"0-3"
    assert bench.run(log.queries.count(0, 3)) == 3


def test_a_claim_notes_that_a_topic_is_dense(bench: Bench) -> None:
    """A failover may lose what CreateTopics noted in the partition, and not the topic."""
    log = bench.log(offset_assignment="dense")
    bench.client.delete(log.state.meta)
    bench.run(claim(bench.store.commands, log.topic, 0, 0))
    keys = bench.store.commands.keyspace.partition_keys("t", 0)[:3]
    assert bench.client.fcall("korvet_xadd", 3, *keys, "key", "b") == b"0-1"


def test_native_entries_of_a_dense_topic_are_as_old_as_their_append(bench: Bench) -> None:
    log = bench.log(offset_assignment="dense")
    keys = bench.store.commands.keyspace.partition_keys("t", 0)[:3]
    # Records of producers are as old as their timestamps.
    bench.run(append_own(log, encode_append_records([(b"k", b"v", 5)] * 256)))
    for _ in range(1000):
        bench.client.fcall("korvet_xadd", 3, *keys, "temperature", "21")
    for number in range(600):
        bench.client.xadd(log.stream, {"temperature": "21"}, id=f"2-{number}")
    now_ms = int(time.time() * 1000)
    assert bench.run(log.trimming.trim(60_000, None, now_ms)) == 256
    assert bench.run(log.trimming.trim(60_000, None, now_ms)) == 0
    assert bench.run(log.trimming.trim(60_000, None, now_ms + 120_000)) == 1600
    # Nobody but Redis applications has appended.
    other = bench.log("other", offset_assignment="dense")
    bench.client.xadd(other.stream, {"temperature": "21"}, id="0-1")
    assert bench.run(other.trimming.trim(60_000, None, now_ms)) == 0
    assert bench.run(other.trimming.trim(60_000, None, now_ms + 120_000)) == 1
