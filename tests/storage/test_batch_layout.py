"""storage.layout=batch: a stream entry for each record batch, with results as exact as with an entry for each
record.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.log.values import Appended, ProducerSequence
from korvet.offsets.packing import entry_id, offset_of
from korvet.records.batch import BatchError
from korvet.records.compression import compress, decompress
from korvet.records.conversion import without_zstd
from korvet.records.kernel import parse_batch
from korvet.redis.errors import DamagedBatch, OutOfOrderSequence
from korvet.redis.keys import Keyspace
from korvet.redis_groups.projection import GroupCommit, Projection
from korvet.store import Store
from tests.api.batches import GZIP, LZ4, SNAPPY, ZSTD, batch, now_ms
from tests.storage.batches import Record, decode
from tests.storage.proxy import proxied_store, until
from tests.support.logs import admit, read_log
from tests.support.received import ReceivedBatch
from tests.support.redis_server import calls_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.log.partition_log import PartitionLog
    from korvet.redis.errors import StorageError
    from tests.storage.conftest import Bench
    from tests.support.redis_server import Server

pytestmark = pytest.mark.each_server

Pair = tuple[bytes | None, bytes | None]
HEADER_BYTES = 61
ALL = 1 << 24
TIMESTAMP_TYPE = "message.timestamp.type"
assignments = pytest.mark.parametrize("assignment", ["clock", "dense"])


def batched(bench: Bench, name: str = "t", **options: Any) -> PartitionLog:
    return bench.log(name, storage_layout="batch", **options)


async def append(log: PartitionLog, data: bytes, stamp: ProducerSequence | None = None) -> Appended:
    """Append a producer's batch as a Produce request does."""
    header = parse_batch(data, 0)
    plain = decompress(header.codec, data[HEADER_BYTES:], ALL) if header.codec else None
    done: asyncio.Future[Appended | StorageError] = asyncio.get_running_loop().create_future()
    log.append(ReceivedBatch(data, header, plain), stamp, admit, done.set_result)
    outcome = await done
    if not isinstance(outcome, Appended):
        raise outcome
    return outcome


def pairs(*values: bytes) -> list[Pair]:
    return [(b"k", value) for value in values]


async def read(log: PartitionLog, offset: int) -> bytes:
    """One read from Redis, without the tail cache."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    log.read(offset, ALL, done.set_result)
    fetched = await done
    data: bytes = fetched.data
    return data


async def all_records(log: PartitionLog) -> list[Record]:
    found: list[Record] = []
    bounds = await log.bounds()
    offset = bounds.log_start
    while offset < bounds.log_end:
        fetched = await read_log(log, offset, ALL)
        found += decode(fetched.data)
        offset = fetched.next_offset
    return found


def placed(data: bytes, base_offset: int) -> bytes:
    """The stored form of a batch: base offset and leader epoch set, all other bytes unchanged."""
    return struct.pack(">q", base_offset) + data[8:12] + struct.pack(">i", 0) + data[16:]


@assignments
@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_an_entry_holds_the_batch_as_it_was_sent(bench: Bench, assignment: str, codec: int) -> None:
    log = batched(bench, offset_assignment=assignment)
    rows = pairs(*(b"%d" % number for number in range(300)))
    data = batch(rows, attributes=codec, compress=lambda plain: compress(codec, plain))
    # The first batch goes by script, the others by the guard.
    appended = [bench.run(append(log, data)) for _ in range(3)]
    entries = bench.client.xrange(log.stream)
    for one, (found_id, fields) in zip(appended, entries, strict=True):
        assert offset_of(found_id, log.bias) == one.base_offset + 299
        assert fields == {b"batch": placed(data, one.base_offset)}
    if log.bias:
        assert [one.base_offset for one in appended] == [0, 300, 600]
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 900
    assert bench.run(log.bounds()).entries == 3
    for number in (0, 1, 149, 299):
        offset = appended[1].base_offset + number
        assert bench.run(log.queries.count(offset, log.ends.log_end)) == 600 - number
        assert bench.run(log.queries.count(0, offset)) == 300 + number
        # The whole batch, as from Kafka; the tail cache returns the same.
        assert bench.run(read(log, offset)).startswith(placed(data, appended[1].base_offset))
        assert log.cached(offset, 1, None, zstd=True) == [placed(data, appended[1].base_offset)]


def test_one_call_per_batch(bench: Bench) -> None:
    log = batched(bench)
    bench.run(append(log, batch(pairs(b"first"))))
    commands = ("fcall", "xadd", "renamenx")
    before = [calls_of(bench.client, command) for command in commands]
    for _ in range(10):
        bench.run(append(log, batch(pairs(*[b"v"] * 100))))
    after = [calls_of(bench.client, command) for command in commands]
    assert [now - then for now, then in zip(after, before, strict=True)] == [10, 10, 0]


@assignments
def test_append_times(bench: Bench, assignment: str) -> None:
    log = batched(bench, offset_assignment=assignment, configs={TIMESTAMP_TYPE: "LogAppendTime"})
    for _ in range(3):
        before_ms = now_ms()
        appended = bench.run(append(log, batch(pairs(b"a", b"b"), timestamp_ms=7)))
        assert abs(appended.append_ms - before_ms) < 5_000
        stored = bench.run(read(log, appended.base_offset))
        header = parse_batch(stored, 0)
        assert (header.log_append_time, header.max_timestamp_ms) == (1, appended.append_ms)
        assert [each.timestamp_ms for each in decode(stored)] == [appended.append_ms] * 2
        assert log.cached(appended.base_offset, ALL, None, zstd=True) == [stored]
        assert bench.run(log.queries.offset_for_timestamp(appended.append_ms)) is not None
    last = (appended.base_offset, appended.append_ms)
    assert bench.run(log.queries.offset_for_timestamp(appended.append_ms + 1)) is None
    newest = bench.run(log.queries.offset_of_max_timestamp())
    assert newest is not None
    assert newest[1] == last[1]


@pytest.mark.parametrize(
    ("attributes", "largest_ms"), [(8, 5), (0, 4), (0, 99), (64, 5)], ids=["type", "less", "more", "flag"]
)
def test_a_header_that_contradicts_its_records_is_put_right(
    bench: Bench, attributes: int, largest_ms: int
) -> None:
    log = batched(bench)
    data = batch(pairs(b"a", b"b"), timestamp_ms=5, attributes=attributes)
    if largest_ms != 5:
        data = with_crc(data[:35] + struct.pack(">q", largest_ms) + data[43:])
    right = batch(pairs(b"a", b"b"), timestamp_ms=5)
    for _ in range(2):
        appended = bench.run(append(log, data))
        assert bench.run(read(log, appended.base_offset)) == placed(right, appended.base_offset)
    assert bench.run(log.queries.offset_for_timestamp(6)) is None


def with_crc(data: bytes) -> bytes:
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


def test_rubbish_is_not_stored(bench: Bench) -> None:
    log = batched(bench)
    sound = batch(pairs(b"a", b"b"))
    damaged = [
        with_crc(sound[:HEADER_BYTES] + b"\x7f" + sound[HEADER_BYTES + 1 :]),
        with_crc(sound[:-1] + b"\x07"),
        batch(pairs(b"a", b"b"), compress=lambda plain: plain + b"x"),
        batch(
            pairs(b"a", b"b"), attributes=LZ4, compress=lambda plain: bytes(cramjam.lz4.compress(plain[:-1]))
        ),
    ]
    for data in damaged:
        with pytest.raises(BatchError):
            bench.run(append(log, data))
    assert bench.client.exists(log.stream) == 0


@assignments
def test_a_damaged_batch_is_no_record(
    bench: Bench, assignment: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = batched(bench, offset_assignment=assignment)
    data = batch(pairs(*[b"v"] * 10))
    sound = bench.run(append(log, data))
    # The batch has the right offset and a wrong last byte.
    at = bench.run(log.bounds()).log_end + 10
    wrong = placed(data, at)[:-1] + b"?"
    bench.client.xadd(log.stream, {"batch": wrong}, id=entry_id(at + 9, log.bias))
    # A copy of another entry.
    copied_at = at + 20
    copy = placed(data, sound.base_offset)
    bench.client.xadd(log.stream, {"batch": copy}, id=entry_id(copied_at, log.bias))
    behind = bench.run(append(log, data)).base_offset
    log.state.tail.clear()
    fetched = bench.run(read_log(log, sound.base_offset, ALL))
    assert (fetched.record_count, fetched.next_offset) == (10, sound.base_offset + 10)
    for offset in (fetched.next_offset, at, at + 9, at + 10, copied_at):
        for _ in range(2):
            with pytest.raises(DamagedBatch):
                bench.run(read_log(log, offset, ALL))
    assert [each.value for each in decode(bench.run(read(log, copied_at + 1)))] == [b"v"] * 10
    told = [record.message for record in caplog.records if "damaged" in record.message]
    assert [entry_id(place, log.bias) in text for place, text in zip((at + 9, copied_at), told, strict=True)]
    found = bench.run(log.queries.offset_for_timestamp(0))
    assert found is not None
    assert found[0] == sound.base_offset
    bench.client.xdel(log.stream, entry_id(sound.base_offset + 9, log.bias))
    found = bench.run(log.queries.offset_for_timestamp(0))
    assert found is not None
    assert found[0] == behind


@assignments
def test_a_commit_inside_a_batch_leaves_its_entry_to_native_readers(bench: Bench, assignment: str) -> None:
    log = batched(bench, offset_assignment=assignment)
    sent = [bench.run(append(log, batch(pairs(*[b"v"] * 10)))) for _ in range(4)]
    ids = [one for one, _ in bench.client.xrange(log.stream)]
    projection = Projection(bench.store.commands)

    def commit(offset: int, position: int) -> None:
        async def run() -> None:
            outcomes: list[Any] = []
            one = GroupCommit("g", position, offset, offset)
            projection.project("t", 0, [one], bias=log.bias, done=outcomes.append)
            await until(lambda: bool(outcomes))
            assert outcomes == [[]]

        bench.run(run())

    def group() -> tuple[int, int]:
        (found,) = bench.client.xinfo_groups(log.stream)
        return found["pending"], found["lag"]

    commit(sent[1].base_offset + 3, 1)
    assert group() == (0, 3)
    reply = bench.client.xreadgroup("g", "c", {log.stream: ">"}, count=2)
    assert [one for one, _ in reply[0][1]] == ids[1:3]
    commit(sent[1].base_offset + 9, 2)
    assert group() == (2, 1)
    commit(sent[2].base_offset, 3)
    assert group() == (1, 1)
    commit(sent[2].base_offset + 5, 4)
    assert bench.client.xpending_range(log.stream, "g", "-", "+", 10)[0]["message_id"] == ids[2]
    commit(sent[3].base_offset + 10, 5)
    assert group() == (0, 0)
    # After a rewind into a batch native readers get that batch again.
    commit(sent[0].base_offset + 1, 6)
    assert group() == (0, 4)
    reply = bench.client.xreadgroup("g", "c", {log.stream: ">"})
    assert [one for one, _ in reply[0][1]] == ids


def test_more_records_than_the_clock_has_offsets_for(bench: Bench) -> None:
    log = batched(bench)
    data = batch([(None, b"")] * 20_000)

    async def some() -> list[Appended]:
        return await asyncio.gather(*(append(log, data) for _ in range(10)))

    sent = bench.run(some())
    # More records per ms than the clock has offsets for, even if the machine is busy.
    while sent[-1].lead_ms <= 1_500 and len(sent) < 1_000:
        sent += bench.run(some())
    assert sent[-1].lead_ms > 1_500
    assert [one.base_offset + 20_000 for one in sent[50:-1]] == [one.base_offset for one in sent[51:]]
    keys = bench.store.commands.keyspace.partition_keys("t", 0)
    added = bench.client.fcall("korvet_xadd", 3, *keys[:3], "value", "native")
    assert offset_of(added) == sent[-1].base_offset + 20_000
    assert bench.run(log.queries.count(sent[0].base_offset, offset_of(added) + 1)) == 20_000 * len(sent) + 1


def test_readers_without_zstd(bench: Bench) -> None:
    log = batched(bench)
    rows = [(b"%d" % number, b"v" * 50) for number in range(100)]
    packed = [
        batch(rows, attributes=codec, compress=lambda plain, c=codec: compress(c, plain), timestamp_ms=5)
        for codec in (ZSTD, LZ4, ZSTD)
    ]
    sent = [bench.run(append(log, data)) for data in packed]
    data = without_zstd(bench.run(read(log, sent[0].base_offset)), ALL)
    plain = placed(batch(rows, timestamp_ms=5), sent[0].base_offset)
    assert data.startswith(plain + placed(packed[1], sent[1].base_offset))
    assert decode(data) == decode(bench.run(read(log, sent[0].base_offset)))
    assert log.cached(sent[0].base_offset, ALL, None, zstd=False) is None


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("taken", [True, False], ids=["taken", "lost"])
async def test_a_cut_link(server: Server, prefix: str, taken: bool, kind: str) -> None:
    """Batches without an idempotent producer, cut off from replies or from Redis: each is there once."""
    async with proxied_store(server.socket, prefix) as (proxy, store):
        topic = await store.catalogue.create("t", 1, {TIMESTAMP_TYPE: kind}, storage_layout="batch")
        log = store.logs.get(topic, 0)
        await append(log, batch(pairs(b"first")))
        (proxy.hold_replies if taken else proxy.hold_requests)()
        sent = [batch(pairs(*[b"%d" % number] * (number + 1)), timestamp_ms=5) for number in range(10)]
        waiting = asyncio.gather(*(append(log, data) for data in sent))
        if taken:
            await until(lambda: server.client.xlen(log.stream) == 11)
        else:
            await until(lambda: proxy.held_bytes > 0)
        await proxy.cut()
        found = await waiting
        assert server.client.xlen(log.stream) == 11
        await log.links.server.read.wait_connected(10_000)
        records = [record for record in await all_records(log) if record.value != b"first"]
        expected = [
            (one.base_offset + index, b"%d" % number, one.append_ms if kind == "LogAppendTime" else 5)
            for number, one in enumerate(found)
            for index in range(number + 1)
        ]
        assert [(each.offset, each.value, each.timestamp_ms) for each in records] == expected
        await append(log, sent[3])
        assert await log.queries.count(0, log.ends.log_end) == 1 + 55 + 4


def test_duplicates_and_sequences(bench: Bench) -> None:
    log = batched(bench)
    data = batch(pairs(b"a", b"b", b"c"))
    first = bench.run(append(log, data, ProducerSequence(7, 0, 0)))
    second = bench.run(append(log, data, ProducerSequence(7, 0, 3)))
    again = [bench.run(append(log, data, ProducerSequence(7, 0, sequence))) for sequence in (0, 3)]
    assert [(one.base_offset, one.duplicate) for one in again] == [
        (first.base_offset, True),
        (second.base_offset, True),
    ]
    with pytest.raises(OutOfOrderSequence):
        bench.run(append(log, data, ProducerSequence(7, 0, 9)))
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 6


def test_a_new_broker_asks_for_no_more_than_it_can_give(server: Server, bench: Bench) -> None:
    """The broker does not know the sizes of the entries yet, and must not ask for thousands of large ones."""
    log = batched(bench)
    data = batch([(None, b"v" * 100_000)])
    for _ in range(100):
        bench.run(append(log, data))

    async def another() -> int:
        store = await Store.open(server.url, Keyspace(bench.prefix))
        fresh = store.logs.get(store.catalogue.get("t"), 0)  # type: ignore[arg-type]
        before = server.client.info("stats")["total_net_output_bytes"]
        fetched = await read_log(fresh, 0, 1 << 20)
        after = server.client.info("stats")["total_net_output_bytes"]
        assert len(fetched.data) > 900_000
        await store.close()
        return int(after - before)

    assert asyncio.run(another()) < 3_000_000


rows = st.lists(
    st.tuples(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=30)), min_size=1, max_size=30
)
steps = st.lists(
    st.tuples(rows, st.sampled_from([0, GZIP, SNAPPY, LZ4, ZSTD]), st.integers(0, 50)), min_size=1, max_size=6
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=steps, data=st.data())
def test_both_layouts_give_the_same(bench: Bench, steps: Sequence[Any], data: st.DataObject) -> None:
    """The same batches, at once or one after the other, give the same records, counts and times."""
    number = len(bench.store.catalogue.topics)
    logs = [
        bench.log(f"{layout}{number}", offset_assignment="dense", storage_layout=layout)
        for layout in ("record", "batch")
    ]
    at_once = data.draw(st.booleans())
    for log in logs:
        sent = [
            batch(
                part,
                attributes=codec,
                compress=lambda plain, c=codec: compress(c, plain),
                timestamp_ms=time_ms,
            )
            for part, codec, time_ms in steps
        ]
        if at_once:
            bench.run(gathered([append(log, one) for one in sent]))
        else:
            for one in sent:
                bench.run(append(log, one))
    record, by_batch = logs
    expected = bench.run(all_records(record))
    assert bench.run(all_records(by_batch)) == expected
    end = len(expected)
    assert record.ends.log_end == by_batch.ends.log_end == end
    low = data.draw(st.integers(0, end))
    high = data.draw(st.integers(low, end))
    assert (
        bench.run(by_batch.queries.count(low, high))
        == bench.run(record.queries.count(low, high))
        == high - low
    )
    for time_ms in {0, 51, *(each.timestamp_ms for each in expected)}:
        assert bench.run(by_batch.queries.offset_for_timestamp(time_ms)) == bench.run(
            record.queries.offset_for_timestamp(time_ms)
        )
    assert bench.run(by_batch.queries.offset_of_max_timestamp()) == bench.run(
        record.queries.offset_of_max_timestamp()
    )
    found = decode(bench.run(read(by_batch, low))) if low < end else []
    assert [each for each in found if each.offset >= low] == expected[low : low + len(found)][: end - low]


async def gathered(appends: Sequence[Any]) -> None:
    await asyncio.gather(*appends)
