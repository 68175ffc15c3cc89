"""Appends by the server module: the same streams as by XADDs."""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from korvet.log.values import Appended, ProducerSequence
from korvet.records.compression import compress
from korvet.records.kernel import parse_batch
from tests.storage.batches import produce
from tests.storage.conftest import Bench
from tests.storage.proxy import until
from tests.support.logs import admit
from tests.support.module import require_module
from tests.support.received import ReceivedBatch
from tests.support.redis_server import calls_of, server_programs
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.partition_log import PartitionLog
    from korvet.redis.errors import StorageError
    from korvet.redis.server_module import Verdict
    from tests.support.redis_server import Server

# The fewest records that are appended by the module.
FEWEST = 4
HEADERS = ((b"name", b"value"), (b"", b""), (b"\xff", None))


def values(prefix: bytes, count: int = FEWEST) -> list[bytes]:
    return [b"%b%d" % (prefix, number) for number in range(count)]


def values_of(log: PartitionLog, client: Any) -> list[bytes]:
    return [fields[b"value"] for _, fields in client.xrange(log.stream)]


def adds(client: Any) -> int:
    """The number of batches that the module has appended or refused so far."""
    return calls_of(client, "korvet.put")


async def usable(log: PartitionLog) -> None:
    """Wait until the broker knows that it may use the module."""
    module = log.links.server.module
    await until(lambda: module.used)


async def appended(log: PartitionLog, batches: list[list[bytes]], *, followed: bool = False) -> list[int]:
    """Append batches of these values at once; returns their base offsets."""
    outcomes: dict[int, Appended | StorageError] = {}
    for number, batch in enumerate(batches):
        records: list[tuple[bytes | None, bytes | None, int]] = [(b"key", value, 5) for value in batch]
        produce(log, records, partial(outcomes.__setitem__, number), followed=followed)
    await until(lambda: len(outcomes) == len(batches))
    return [base_offset_of(outcomes[number]) for number in range(len(batches))]


def base_offset_of(outcome: Appended | StorageError) -> int:
    assert isinstance(outcome, Appended), outcome
    return outcome.base_offset


async def append(log: PartitionLog, batch: ReceivedBatch) -> None:
    header = batch.header
    producer = None
    if header.producer_id >= 0:
        producer = ProducerSequence(
            header.producer_id, header.producer_epoch, header.base_sequence, header.transactional
        )
    outcomes: list[Appended | StorageError] = []
    log.append(batch, producer, admit, outcomes.append)
    await until(lambda: bool(outcomes))
    base_offset_of(outcomes[0])


@pytest.fixture
def log(bench: Bench, server: Server) -> PartitionLog:
    """A log on a server whose module may be used."""
    require_module(server.program)
    made = bench.log()
    bench.run(usable(made))
    bench.run(appended(made, [[b"first"]]))
    return made


def whole(records: list[forms.Record], codec: int = 0, **parts: Any) -> ReceivedBatch:
    section = forms.records_bytes(records)
    attributes = parts.pop("attributes", 0) | codec
    data = forms.batch_bytes(
        compress(codec, section) if codec else section,
        len(records),
        base_ms=records[0].timestamp_ms,
        max_ms=max(record.timestamp_ms for record in records),
        attributes=attributes,
        **parts,
    )
    return ReceivedBatch(data, parse_batch(data, 0), section if codec else None)


def batches_of_all_kinds() -> list[ReceivedBatch]:
    now_ms = forms.BASE_MS
    kinds = [
        [forms.Record(b"k%d" % number, b"v" * 100, now_ms + number) for number in range(600)],
        [forms.Record(None, None, now_ms) for _ in range(5)],
        [forms.Record(b"", b"", -number) for number in range(1, 6)],
        [forms.Record(b"k", None, 1 << 60, HEADERS) for _ in range(4)],
        [forms.Record(None, bytes(range(256)) * 300, now_ms, HEADERS[:number]) for number in range(4)],
    ]
    found = [whole(records, codec) for records in kinds for codec in (0, 3)]
    found += [
        whole(records, codec, attributes=16, producer=(7, 0, FEWEST * number))
        for number, (records, codec) in enumerate([(kinds[1][:4], 0), (kinds[3], 4), (kinds[4], 0)])
    ]
    return found


DENSE = {"offset_assignment": "dense"}
APPEND_TIME = {"configs": {"message.timestamp.type": "LogAppendTime"}}


@pytest.mark.parametrize("options", [{}, DENSE, APPEND_TIME], ids=["clock", "dense", "append time"])
def test_streams_and_counts_are_those_of_xadds(
    bench: Bench, log: PartitionLog, options: dict[str, Any]
) -> None:
    """The streams are equal on dense topics. On others the clock gives the records of each other IDs."""
    xadded, added = bench.log("xadded", **options), bench.log("added", **options)
    module = log.links.server.module
    verdict, before = module.verdict, adds(bench.client)

    async def load(into: PartitionLog, verdict: Verdict | None) -> None:
        module.verdict = verdict
        await append(into, whole([forms.Record(b"k", b"first", forms.BASE_MS)]))
        for batch in batches_of_all_kinds():
            await append(into, batch)

    bench.run(load(xadded, None))
    assert adds(bench.client) == before
    bench.run(load(added, verdict))
    assert adds(bench.client) == before + len(batches_of_all_kinds())
    if options == DENSE:
        assert bench.client.dump(xadded.stream) == bench.client.dump(added.stream)
        assert xadded.state.average_bytes == added.state.average_bytes
    counted = [bench.run(each.queries.count(0, each.ends.log_end)) for each in (xadded, added)]
    assert counted[0] == counted[1]
    ends = [bench.run(each.bounds()) for each in (xadded, added)]
    assert (ends[0].entries, ends[0].payload_bytes) == (ends[1].entries, ends[1].payload_bytes)
    assert xadded.state.largest_bytes == added.state.largest_bytes
    with_times = options != APPEND_TIME
    assert fields_of(xadded, bench.client, with_times) == fields_of(added, bench.client, with_times)


def fields_of(log: PartitionLog, client: Any, with_times: bool) -> list[tuple[dict[bytes, bytes], int]]:
    """The fields of all entries; `with_times`: and their timestamps (ms) in place of `ts`."""
    found = []
    for entry, fields in client.xrange(log.stream):
        timestamp_ms = int(entry.partition(b"-")[0]) + int(fields.pop(b"ts")) if with_times else 0
        found.append((fields, timestamp_ms))
    return found


def test_small_batches_share_a_call_with_large_ones(bench: Bench, log: PartitionLog) -> None:
    before, called = adds(bench.client), calls_of(bench.client, "fcall")
    batches = [values(b"%d-" % number, 1 + number % 6) for number in range(30)]
    offsets = bench.run(appended(log, batches, followed=True))
    assert adds(bench.client) == before + sum(len(batch) >= FEWEST for batch in batches)
    assert calls_of(bench.client, "fcall") == called + 1
    assert [after - base for base, after in itertools.pairwise(offsets)] == [
        len(batch) for batch in batches[:-1]
    ]
    assert values_of(log, bench.client) == [b"first", *(value for batch in batches for value in batch)]


def test_batches_after_a_refused_one_keep_their_order(bench: Bench, log: PartitionLog) -> None:
    """The first of three batches has an ID that is taken."""
    other = bench.log("dense", offset_assignment="dense")
    bench.run(appended(other, [[b"first"]]))
    bench.client.execute_command("XSETID", other.stream, "0-2")
    before = adds(bench.client)

    async def load() -> None:
        outcomes: list[Appended | StorageError] = []
        for number, batch in enumerate((b"a", b"b", b"c")):
            records: list[tuple[bytes | None, bytes | None, int]] = [(None, v, 5) for v in values(batch)]
            produce(other, records, outcomes.append, (7, 0, FEWEST * number), followed=True)
        await until(lambda: len(outcomes) == 3)
        bases = [base_offset_of(outcome) for outcome in outcomes]
        assert bases == sorted(bases)
        await usable(log)
        await appended(other, [values(b"d")])

    bench.run(load())
    assert adds(bench.client) >= before + 4
    written = [b"first", *values(b"a"), *values(b"b"), *values(b"c"), *values(b"d")]
    assert values_of(other, bench.client) == written
    assert bench.run(other.queries.count(0, other.ends.log_end)) == len(written)


def test_a_module_that_was_unloaded(new_server: Callable[..., Server]) -> None:
    """Small batches that are in flight after those for the module keep their places."""
    require_module(server_programs()[0])
    server = new_server("--enable-module-command", "yes")
    bench = Bench(server, "unloaded")
    log = bench.log()
    bench.run(usable(log))
    bench.run(appended(log, [[b"first"], values(b"a")]))
    assert adds(server.client) > 0
    server.client.execute_command("MODULE", "UNLOAD", "korvet")
    batches = [values(b"%d-" % number, FEWEST if number % 3 == 0 else 1) for number in range(30)]

    async def load() -> list[int]:
        outcomes: list[Appended | StorageError] = []
        # What is sent now is in flight together.
        server.client.execute_command("CLIENT", "PAUSE", 300, "WRITE")
        for batch in batches:
            produce(log, [(b"key", value, 5) for value in batch], outcomes.append)
            await asyncio.sleep(0)
        assert not outcomes
        await until(lambda: len(outcomes) == len(batches))
        return [base_offset_of(outcome) for outcome in outcomes]

    bases = bench.run(load())
    assert bases == sorted(bases)
    bench.run(appended(log, [values(b"b")]))
    assert not log.links.server.module.used
    written = [b"first", *values(b"a"), *(value for batch in batches for value in batch), *values(b"b")]
    assert values_of(log, bench.client) == written
    assert bench.run(log.queries.count(0, log.ends.log_end)) == len(written)
    bench.close()


def test_an_entry_in_the_way_refuses_the_batch(bench: Bench, log: PartitionLog) -> None:
    """The module refuses the ID at first. The broker goes on to use the module."""
    other = bench.log("dense", offset_assignment="dense")
    bench.run(appended(other, [[b"first"]]))
    bench.client.execute_command("XSETID", other.stream, "0-2")
    bench.run(appended(other, [values(b"a"), values(b"b")]))
    assert values_of(other, bench.client) == [b"first", *values(b"a"), *values(b"b")]
    bench.run(usable(log))
    before = adds(bench.client)
    bench.run(appended(log, [values(b"c")]))
    assert adds(bench.client) == before + 1


def test_records_are_sent_uncopied(bench: Bench, log: PartitionLog) -> None:
    """Batches of large requests are views into their frames."""
    frame = whole([forms.Record(b"k", b"v" * 20_000, int(time.time() * 1000)) for _ in range(20)])
    view = memoryview(b"before" + bytes(frame.data))[6:]
    before = adds(bench.client)
    bench.run(append(log, ReceivedBatch(view, frame.header, None)))
    assert adds(bench.client) == before + 1
    assert values_of(log, bench.client) == [b"first", *[b"v" * 20_000] * 20]
