"""Reads that are begun before consumers ask: the same records as without them, and never stale ones."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from korvet.log import readahead
from korvet.offsets.packing import offset_of
from korvet.records.kernel import encode_append_records
from korvet.redis.errors import FencedEpoch, LinkLost, OffsetOutOfRange, StorageError, TopicGone
from tests.storage.batches import decode, read_everything
from tests.storage.proxy import proxied_store, until
from tests.support.logs import append_own, read_log
from tests.support.polling import patient
from tests.support.redis_server import calls_of

if TYPE_CHECKING:
    from korvet.log.partition_log import PartitionLog
    from korvet.log.values import Fetched
    from tests.storage.conftest import Bench
    from tests.support.redis_server import Server

RECORDS = 600
CHUNK_BYTES = 2_000


async def fill(log: PartitionLog, first: int = 0) -> list[int]:
    """Append records as the broker's own, which the tail cache does not keep. Returns their offsets."""
    rows: list[tuple[bytes | None, bytes | None, int]] = [
        (None, b"%05d" % (first + number) + bytes(95), 5) for number in range(RECORDS)
    ]
    appended = await append_own(log, encode_append_records(rows))
    return [appended.base_offset + number for number in range(RECORDS)]


@pytest.fixture
def log(bench: Bench) -> PartitionLog:
    return bench.log()


@pytest.fixture
def offsets(bench: Bench, log: PartitionLog) -> list[int]:
    return bench.run(fill(log))


def reads(client: Any) -> int:
    """The number of XRANGE commands so far. No function calls XRANGE in these tests."""
    return calls_of(client, "xrange")


async def chunk(log: PartitionLog, offset: int) -> Fetched:
    return await read_log(log, offset, CHUNK_BYTES)


async def two_chunks(log: PartitionLog, offset: int) -> int:
    """Read two chunks as a consumer that reads through the log. Returns its next offset."""
    first = await chunk(log, offset)
    return (await chunk(log, first.next_offset)).next_offset


def held(bench: Bench) -> int:
    return bench.store.resources.readaheads.held_bytes


def test_everything_is_read_once(bench: Bench, log: PartitionLog, offsets: list[int]) -> None:
    before = reads(bench.client)
    assert bench.run(read_everything(log, CHUNK_BYTES)) == offsets
    ahead = reads(bench.client) - before
    bench.store.resources.readaheads.limit_bytes = 0
    before = reads(bench.client)
    assert bench.run(read_everything(log, CHUNK_BYTES)) == offsets
    alone = reads(bench.client) - before
    # The number of entries per chunk is learnt while reading, so the walks differ a little.
    assert alone > 20
    assert abs(ahead - alone) <= 3
    assert held(bench) == 0


def test_the_next_chunk_is_there_before_it_is_asked_for(
    bench: Bench, log: PartitionLog, offsets: list[int]
) -> None:
    async def work() -> None:
        at = await two_chunks(log, offsets[0])
        before = reads(bench.client)
        # Long enough for the reply to be there: the reply to another command comes after it.
        await log.links.read.call("PING")
        assert 0 < held(bench) <= 2 * CHUNK_BYTES
        fetched: list[Fetched | StorageError] = []
        log.read(at, CHUNK_BYTES, fetched.append)
        (found,) = fetched
        assert not isinstance(found, StorageError)
        assert decode(found.data)[0].offset == at
        await log.links.read.call("PING")
        assert reads(bench.client) == before + 1

    bench.run(work())


def test_redis_reads_on_while_a_reply_is_converted(
    bench: Bench, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of applications are converted one by one, which leaves time to look at Redis."""
    # A chunk that gets too old on a busy machine would be read twice.
    monkeypatch.setattr(readahead, "FRESH_S", 60.0)
    for number in range(RECORDS):
        bench.client.xadd(log.stream, {"number": b"%05d" % number + bytes(60)})
    plain = log.state.native

    def begun_in_the_middle(more_than: int) -> int:
        """Walk through the log. Returns how many reads Redis had begun when the middle was converted; waits
        there for `more_than` reads.
        """
        before, found, made = reads(bench.client), 0, 0

        def native(fields: list[bytes]) -> bytes:
            nonlocal found, made
            made += 1
            deadline = time.monotonic() + patient(5)
            while made == RECORDS // 2 and found <= more_than and time.monotonic() < deadline:
                found = reads(bench.client) - before
            return plain(fields)

        log.state.native = native
        assert len(bench.run(read_everything(log, CHUNK_BYTES))) == RECORDS
        assert made >= RECORDS
        return found

    limit, bench.store.resources.readaheads.limit_bytes = bench.store.resources.readaheads.limit_bytes, 0
    begun_in_the_middle(0)  # the size of the entries is learnt
    alone = begun_in_the_middle(0)
    bench.store.resources.readaheads.limit_bytes = limit
    assert begun_in_the_middle(alone) > alone


def test_values_that_look_like_the_end_of_a_reply(bench: Bench, log: PartitionLog) -> None:
    """A reply sometimes ends with such a value, and the predicted end is wrong."""
    ids = [
        bench.client.xadd(log.stream, {"value": b"*2\r\n$4\r\n%04d-1\r\n*1\r\n$1\r\na" % number})
        if number % 7 == 0
        else bench.client.xadd(log.stream, {"value": b"%05d" % number + bytes(40)})
        for number in range(RECORDS)
    ]
    walked = bench.run(read_everything(log, CHUNK_BYTES))
    assert walked == [offset_of(entry.decode()) for entry in ids]
    assert held(bench) == 0


def test_large_records_are_not_read_twice(bench: Bench, log: PartitionLog) -> None:
    """Often the last requested record exceeds the size that the consumer asked for."""
    sizes = random.Random(4)
    rows: list[tuple[bytes | None, bytes | None, int]] = [
        (None, bytes(sizes.randrange(1800)), 5) for _ in range(RECORDS)
    ]
    bench.run(append_own(log, encode_append_records(rows)))

    def walk() -> tuple[int, int]:
        before = reads(bench.client)
        count = len(bench.run(read_everything(log, 3 * CHUNK_BYTES)))
        return count, reads(bench.client) - before

    count, ahead = walk()
    bench.store.resources.readaheads.limit_bytes = 0
    again, alone = walk()
    assert count == again == RECORDS
    assert ahead <= 1.1 * alone


def test_a_single_read_begins_nothing(bench: Bench, log: PartitionLog, offsets: list[int]) -> None:
    async def work() -> None:
        for offset in (offsets[0], offsets[100], offsets[0]):
            before = reads(bench.client)
            await chunk(log, offset)
            await log.links.read.call("PING")
            assert reads(bench.client) == before + 1

    bench.run(work())
    assert held(bench) == 0


def test_what_is_older_than_a_second_is_read_again(
    bench: Bench, log: PartitionLog, offsets: list[int]
) -> None:
    async def work() -> None:
        at = await two_chunks(log, offsets[0])
        await until(lambda: held(bench) > 0)
        (entry, _), *_ = bench.client.xrange(log.stream, min=f"{at >> 10}-{at & 1023}", count=1)
        bench.client.xdel(log.stream, entry)
        await until(lambda: held(bench) == 0)
        fetched = await chunk(log, at)
        assert decode(fetched.data)[0].offset == at + 1

    bench.run(work())


def test_what_was_trimmed_is_out_of_range(bench: Bench, log: PartitionLog, offsets: list[int]) -> None:
    async def work() -> None:
        at = await two_chunks(log, offsets[0])
        await log.trimming.trim(None, 0, 0)
        with pytest.raises(OffsetOutOfRange):
            await chunk(log, at)

    bench.run(work())


def test_the_ends_are_those_of_now(bench: Bench, log: PartitionLog, offsets: list[int]) -> None:
    async def work() -> None:
        at = await two_chunks(log, offsets[0])
        await log.links.read.call("PING")
        added = await fill(log, RECORDS)
        assert (await chunk(log, at)).ends.high_watermark == added[-1] + 1

    bench.run(work())


def test_memory_is_bounded(bench: Bench) -> None:
    bench.store.resources.readaheads.limit_bytes = 3 * CHUNK_BYTES

    async def work() -> None:
        topic = await bench.store.catalogue.create("many", 8)
        logs = [bench.store.logs.get(topic, partition) for partition in range(8)]
        for log in logs:
            await fill(log)
        walks = await asyncio.gather(*(read_everything(log, CHUNK_BYTES) for log in logs))
        assert [len(walk) for walk in walks] == [RECORDS] * 8
        positions = [await two_chunks(log, walk[0]) for log, walk in zip(logs, walks, strict=True)]
        assert len(positions) == 8
        assert CHUNK_BYTES <= held(bench) <= bench.store.resources.readaheads.limit_bytes + CHUNK_BYTES

    bench.run(work())


def test_a_deleted_topic(bench: Bench, log: PartitionLog, offsets: list[int]) -> None:
    """A consumer waits for a read that was begun ahead."""

    async def work() -> list[Fetched | StorageError]:
        at = await two_chunks(log, offsets[0])
        outcomes: list[Fetched | StorageError] = []
        log.read(at, CHUNK_BYTES, outcomes.append)
        bench.store.logs.close_topic("t")
        await until(lambda: len(outcomes) == 1)
        return outcomes

    (outcome,) = bench.run(work())
    assert isinstance(outcome, TopicGone)
    assert held(bench) == 0


def test_another_broker_takes_over(bench: Bench, log: PartitionLog, offsets: list[int]) -> None:
    """A consumer that waits for a read begun ahead gets the same error as every other reader."""
    refusal = FencedEpoch("another broker leads t-0")

    async def work() -> list[Fetched | StorageError]:
        at = await two_chunks(log, offsets[0])
        outcomes: list[Fetched | StorageError] = []
        log.read(at, CHUNK_BYTES, outcomes.append)
        log.close(refusal)
        await until(lambda: len(outcomes) == 1)
        log.read(at, CHUNK_BYTES, outcomes.append)
        await until(lambda: len(outcomes) == 2)
        return outcomes

    assert bench.run(work()) == [refusal, refusal]
    assert held(bench) == 0


async def test_a_lost_connection(server: Server, prefix: str) -> None:
    """A waiting consumer gets an error. A read without a consumer is forgotten, and done when one asks."""
    async with proxied_store(server.socket, prefix) as (proxy, store):
        topic = await store.catalogue.create("t", 2)
        waited, unwaited = store.logs.get(topic, 0), store.logs.get(topic, 1)
        positions = []
        for log in (waited, unwaited):
            offsets = await fill(log)
            first = await chunk(log, offsets[0])
            positions.append(first.next_offset)
        outcomes: list[Fetched | StorageError] = []
        for log, at in zip((waited, unwaited), positions, strict=True):
            second = await chunk(log, at)
            if log is waited:
                proxy.hold_replies()
                log.read(second.next_offset, CHUNK_BYTES, outcomes.append)
                await proxy.cut()
                await until(lambda: len(outcomes) == 1)
                await log.links.server.read.wait_connected(5_000)
            else:
                await proxy.cut()
                await until(lambda: store.resources.readaheads.held_bytes == 0)
                await log.links.server.read.wait_connected(5_000)
                assert decode((await chunk(log, second.next_offset)).data)[0].offset == second.next_offset
        assert isinstance(outcomes[0], LinkLost)
