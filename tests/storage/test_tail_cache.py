"""Batches from the tail cache of a log, compared with those of Redis at the same offsets."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

import cramjam
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from korvet.log.values import Appended, ProducerSequence
from korvet.records import kernel
from korvet.records.compression import decompress
from korvet.redis.errors import LinkLost, StorageError
from tests.api.batches import LZ4, SNAPPY, ZSTD, batch, gzipped, now_ms
from tests.storage.batches import Record, decode
from tests.storage.conftest import Bench
from tests.storage.proxy import proxied_store, until
from tests.support.logs import admit, read_log
from tests.support.received import ReceivedBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.log.partition_log import PartitionLog
    from tests.support.redis_server import Server

ALL = 1 << 40
HEADER_BYTES = 61
_serial = itertools.count()


async def append(log: PartitionLog, data: bytes, stamp: ProducerSequence | None = None) -> Appended:
    """Append a producer's batch as Produce does."""
    header = kernel.parse_batch(data, 0)
    plain = decompress(header.codec, memoryview(data)[HEADER_BYTES:], 1 << 24) if header.codec else None
    finished: asyncio.Future[Appended | StorageError] = asyncio.get_running_loop().create_future()
    log.append(ReceivedBatch(data, header, plain), stamp, admit, finished.set_result)
    outcome = await finished
    if isinstance(outcome, StorageError):
        raise outcome
    return outcome


def values(*texts: bytes, **options: Any) -> bytes:
    return batch([(None, text) for text in texts], **options)


def from_cache(log: PartitionLog, offset: int) -> list[Record] | None:
    """The cached records from that offset on; None if the offset is not cached."""
    found = log.state.tail.read(offset, ALL, None)
    return None if found is None else [each for each in decode(b"".join(found)) if each.offset >= offset]


async def from_redis(log: PartitionLog, offset: int) -> list[Record]:
    found: list[Record] = []
    while offset < log.ends.log_end:
        fetched = await read_log(log, offset, 1 << 20)
        found += decode(fetched.data)
        offset = fetched.next_offset
    return found


def compressed(name: str, pairs: Sequence[tuple[bytes | None, bytes | None]]) -> bytes:
    if name == "gzip":
        return gzipped(pairs)
    codec, compress = {
        "snappy": (SNAPPY, cramjam.snappy.compress_raw),
        "lz4": (LZ4, cramjam.lz4.compress),
        "zstd": (ZSTD, cramjam.zstd.compress),
    }[name]
    return batch(pairs, attributes=codec, compress=lambda payload: bytes(compress(payload)))


@pytest.mark.parametrize("assignment", ["clock", "dense"])
def test_the_cache_gives_what_redis_gives(bench: Bench, assignment: str) -> None:
    log = bench.log(offset_assignment=assignment)
    source = random.Random(3)
    now = now_ms()

    async def work() -> None:
        first = -1
        for _ in range(40):
            texts = [source.randbytes(source.randint(0, 200)) for _ in range(source.randint(1, 30))]
            stamp_ms = source.choice([now, now - 10_000, 0, -1, now + 3000])
            base = (await append(log, values(*texts, timestamp_ms=stamp_ms))).base_offset
            first = base if first < 0 else first
        stored = await from_redis(log, 0)
        assert stored == from_cache(log, 0) == from_cache(log, first)
        for record in source.sample(stored, 20):
            assert from_cache(log, record.offset) == await from_redis(log, record.offset)

    bench.run(work())


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_stay_compressed(bench: Bench, codec: str) -> None:
    log = bench.log()
    sent = compressed(codec, [(b"k%d" % index, b"v" * 100) for index in range(50)])
    bench.run(append(log, sent))
    (given,) = log.state.tail.read(0, ALL, None) or ()
    assert given[16:] == sent[16:]
    if codec == "gzip":
        assert decode(given) == bench.run(from_redis(log, 0))


def test_append_time_is_not_the_producers(bench: Bench) -> None:
    log = bench.log(configs={"message.timestamp.type": "LogAppendTime"})
    bench.run(append(log, values(b"a", timestamp_ms=5)))
    assert log.state.tail.held_bytes == 0
    dense = bench.store.logs.get(
        bench.topic("dense", offset_assignment="dense", configs={"message.timestamp.type": "LogAppendTime"}),
        0,
    )
    bench.run(append(dense, values(b"a", timestamp_ms=5)))
    assert dense.state.tail.held_bytes == 0


def test_a_changed_timestamp_type_empties_the_cache(bench: Bench) -> None:
    log = bench.log()
    bench.run(append(log, values(b"a", timestamp_ms=5)))
    assert from_cache(log, 0)
    bench.run(bench.store.catalogue.set_configs("t", {"message.timestamp.type": "LogAppendTime"}))
    assert from_cache(log, 0) is None
    bench.run(append(log, values(b"b", timestamp_ms=5)))
    assert log.state.tail.held_bytes == 0


def test_what_others_write_is_not_passed_over(bench: Bench) -> None:
    log = bench.log()

    async def work() -> None:
        ended = (await append(log, values(b"a", b"b"))).base_offset + 2
        bench.client.xadd(log.stream, {"value": "native", "ts": "0"})
        await append(log, values(b"c"))
        assert from_cache(log, ended) is None, "a reader here has the native entry before it"
        stored = await from_redis(log, 0)
        assert [record.value for record in stored] == [b"a", b"b", b"native", b"c"]
        assert from_cache(log, stored[2].offset) is None
        assert from_cache(log, stored[2].offset + 1) == stored[3:]

    bench.run(work())


def test_a_repeated_batch_is_not_kept_twice(bench: Bench) -> None:
    log = bench.log()

    async def work() -> None:
        sent = values(b"a", producer=(7, 0, 0))
        stamp = ProducerSequence(7, 0, 0)
        first = await append(log, sent, stamp)
        held_bytes = log.state.tail.held_bytes
        again = await append(log, sent, stamp)
        assert again.duplicate
        assert log.state.tail.held_bytes == held_bytes
        assert log.state.tail.end == first.base_offset + 1
        await append(log, values(b"b"))
        assert [record.value for record in from_cache(log, 0) or ()] == [b"a", b"b"]

    bench.run(work())


@pytest.mark.parametrize("assignment", ["clock", "dense"])
@pytest.mark.parametrize("how", ["trim", "delete", "drop", "flush"])
def test_what_native_clients_take_away_is_cut_when_seen(bench: Bench, how: str, assignment: str) -> None:
    log = bench.log(offset_assignment=assignment)
    client = bench.client

    async def work() -> None:
        for index in range(10):
            await append(log, values(b"%d" % index, b"%d" % index))
        ids = [entry_id for entry_id, _ in client.xrange(log.stream)]
        if how == "trim":
            client.xtrim(log.stream, maxlen=7, approximate=False)
        elif how == "delete":
            client.xdel(log.stream, ids[1], ids[12])
        else:
            client.delete(log.stream, *([log.meta] if how == "flush" else []))
        bounds = await log.bounds()
        if how in ("trim", "delete"):
            stored = await from_redis(log, log.state.tail.start)
            assert from_cache(log, log.state.tail.start) == stored
            assert len(stored) == 7
        else:
            assert log.state.tail.held_bytes == 0
        assert from_cache(log, 0) is None
        assert bounds.log_end <= log.ends.log_end

    bench.run(work())


@pytest.mark.parametrize("assignment", ["clock", "dense"])
def test_a_dropped_stream_is_noticed_by_the_next_append(bench: Bench, assignment: str) -> None:
    log = bench.log(offset_assignment=assignment)

    async def work() -> None:
        old = (await append(log, values(b"a", b"b"))).base_offset
        bench.client.delete(log.stream)
        await append(log, values(b"c"))
        assert from_cache(log, old) is None
        assert [record.value for record in from_cache(log, log.ends.log_start) or ()] == [b"c"]

    bench.run(work())


def test_trims_of_ours_cut_the_cache(bench: Bench) -> None:
    log = bench.log()

    async def work() -> None:
        for index in range(1000):
            await append(log, values(b"%d" % index, timestamp_ms=1000 + index))
        assert await log.trimming.trim(100, None, 1400)
        assert log.ends.log_start > 0
        assert from_cache(log, log.ends.log_start - 1) is None
        assert from_cache(log, log.ends.log_start) == await from_redis(log, log.ends.log_start)

    bench.run(work())


def test_a_deleted_topic_leaves_nothing(bench: Bench) -> None:
    log = bench.log()
    bench.run(append(log, values(b"a")))
    assert bench.store.resources.tails.held_bytes > 0
    bench.run(bench.store.catalogue.delete("t"))
    assert bench.store.resources.tails.held_bytes == 0
    assert from_cache(log, 0) is None


def test_reading_the_cache_for_long_looks_at_the_log_start(bench: Bench) -> None:
    """Records trimmed by a native client from a log without appends are noticed after some time."""
    log = bench.log()

    async def work() -> None:
        await append(log, values(b"a"))
        await append(log, values(b"b"))
        bench.client.xtrim(log.stream, maxlen=1, approximate=False)
        deadline = asyncio.get_running_loop().time() + 10
        while log.cached(0, ALL, None, zstd=True) is not None:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        assert [record.value for record in from_cache(log, log.ends.log_start) or ()] == [b"b"]

    bench.run(work())


async def test_a_lost_link_ends_what_is_known(server: Server, prefix: str) -> None:
    async with proxied_store(server.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        await append(log, values(b"a"))
        assert from_cache(log, 0)
        proxy.hold_replies()
        lost = asyncio.ensure_future(append(log, values(b"b")))
        await until(lambda: server.client.xlen(log.stream) == 2)
        await proxy.cut()
        await asyncio.wait([lost])
        assert lost.exception() is None or isinstance(lost.exception(), LinkLost)
        for link in (log.links.server.write, log.links.server.read):
            await link.wait_connected(10_000)
        await append(log, values(b"c"))
        stored = await from_redis(log, 0)
        assert [record.value for record in stored] == [b"a", b"b", b"c"]
        assert from_cache(log, 0) is None
        known = from_cache(log, log.state.tail.start)
        assert known
        assert known == stored[-len(known) :]


class CachedLogMachine(RuleBasedStateMachine):
    """Appends and native commands in any order: a reader of the cache misses no entry."""

    server: Server

    @initialize(dense=st.booleans())
    def begin(self, dense: bool) -> None:
        self.bench = Bench(self.server, f"tails{next(_serial)}")
        self.log = self.bench.log("t", offset_assignment="dense" if dense else "clock")
        self.position = 0
        self.seen: list[bytes | None] = []
        self.expected: list[bytes] = []

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        texts = [b"%d" % (len(self.expected) + index) for index in range(count)]
        self.bench.run(append(self.log, values(*texts)))
        self.expected += texts

    @rule()
    def append_together(self) -> None:
        async def work() -> None:
            await asyncio.gather(*(append(self.log, values(text)) for text in texts))

        texts = [b"%d" % (len(self.expected) + index) for index in range(4)]
        self.bench.run(work())
        self.expected += texts

    @rule()
    def native_add(self) -> None:
        text = b"%d" % len(self.expected)
        self.bench.client.xadd(self.log.stream, {"value": text, "ts": "0"})
        self.expected.append(text)

    @rule()
    def flush_functions(self) -> None:
        self.bench.client.execute_command("FUNCTION", "FLUSH")

    @rule()
    def follow(self) -> None:
        """Read on as a Fetch does: from the cache if it has the offset, else from Redis."""
        self.bench.run(self.read_on())

    async def read_on(self) -> None:
        while self.position < self.log.ends.log_end:
            found = self.log.cached(self.position, 100, None, zstd=True)
            if found is None:
                fetched = await read_log(self.log, self.position, 100)
                data, after = fetched.data, fetched.next_offset
            else:
                data = b"".join(found)
                after = decode(data)[-1].offset + 1
            self.seen += [record.value for record in decode(data) if record.offset >= self.position]
            self.position = after

    @invariant()
    def in_order(self) -> None:
        if hasattr(self, "seen"):
            assert self.seen == self.expected[: len(self.seen)]


def test_a_reader_of_the_cache_misses_nothing(server: Server) -> None:
    class Machine(CachedLogMachine):
        pass

    Machine.server = server
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
