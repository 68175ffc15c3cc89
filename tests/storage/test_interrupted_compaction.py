"""Compactions that are interrupted, overtaken or slowed down, on a real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from korvet.cluster.assignment import writer_epochs
from korvet.log.compaction.compactor import Compactor, Pace
from korvet.log.partition_log import PartitionLog
from korvet.offsets.packing import entry_id
from korvet.redis.errors import FencedEpoch, StorageFault
from tests.api.batches import batch
from tests.storage.compacting import (
    COMPACT,
    NOW_MS,
    RULES,
    Row,
    append,
    compact,
    compacted_log,
    compactor,
    contents,
    newest,
    shadows,
)
from tests.storage.proxy import proxied_store
from tests.storage.test_batch_layout import append as append_batch
from tests.support.polling import until_async
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.storage.conftest import Bench
    from tests.support.redis_server import Server


class Steps(Pace):
    """Acts at one step of a compaction: the steps are after each read and after each copied slice."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        super().__init__(1e12)
        self.at = at
        self.act = act
        self.taken = 0

    async def spend(self, size_bytes: int) -> None:
        self.taken += 1
        if self.taken == self.at:
            self.act()
        await super().spend(size_bytes)


class Interrupted(Exception):
    """The broker crashed."""


def interrupt() -> None:
    raise Interrupted


def stepwise(bench: Bench, log: PartitionLog, steps: Steps) -> int:
    return bench.run(Compactor(bench.store.commands, log, steps, 1 << 27).compact(RULES, NOW_MS))


def test_entries_deleted_during_a_compaction_do_not_come_back(bench: Bench) -> None:
    counting = Steps(-1, interrupt)
    rows: list[Row] = [(b"%d" % (number % 600), b"", 0) for number in range(1500)]
    log = compacted_log(bench, name="first")
    append(bench, log, rows)
    assert stepwise(bench, log, counting) == 900
    changed = 0
    for at in range(1, counting.taken + 1):
        log = compacted_log(bench, name=f"t{at}")
        offsets = append(bench, log, rows)
        ids = [entry_id(offsets[1499]), entry_id(offsets[1000])]

        def delete(log: PartitionLog = log, ids: Sequence[str] = ids) -> None:
            assert bench.client.xdel(log.stream, *ids) == 2

        try:
            stepwise(bench, log, Steps(at, delete))
        except StorageFault:
            changed += 1
        assert shadows(bench) == []
        assert {offsets[1499], offsets[1000]}.isdisjoint(contents(bench, log))
        assert bench.run(log.queries.count(0, log.ends.log_end)) == bench.client.xlen(log.stream)
    assert 0 < changed < counting.taken


def test_records_are_deleted_on_request_without_waiting(bench: Bench) -> None:
    log = compacted_log(bench, "dense")
    append(bench, log, [(b"%d" % (number % 600), b"", 0) for number in range(1500)])

    class Deleting(Pace):
        async def spend(self, size_bytes: int) -> None:
            if shadows(bench) and log.ends.log_start == 0:
                assert log.compacting
                assert await log.trimming.delete_before(1200) == 1200

    with pytest.raises(StorageFault, match="deleted while it was compacted"):
        bench.run(Compactor(bench.store.commands, log, Deleting(1e12), 1 << 27).compact(RULES, NOW_MS))
    assert not log.compacting
    assert shadows(bench) == []
    append(bench, log, [(b"1400", b"", 0)] * 2)
    assert compact(bench, log) == 1
    assert list(contents(bench, log)) == [*range(1200, 1500), 1501]
    assert bench.run(log.bounds()).log_start == 1200


def test_an_interruption_at_any_step_leaves_the_log_as_it_was(bench: Bench) -> None:
    rows: list[Row] = [(b"%d" % (number % 600), b"%d" % number, 0) for number in range(1500)]
    log = compacted_log(bench)
    offsets = append(bench, log, rows)
    everything = contents(bench, log)
    steps = 1
    while True:
        try:
            removed = stepwise(bench, log, Steps(steps, interrupt))
            break
        except Interrupted:
            assert contents(bench, log) == everything
            left = shadows(bench)
        if steps % 2:
            bench.run(compactor(bench, log).drop_leftovers())
            assert shadows(bench) == []
        steps += 1
    assert left
    assert removed == 900
    assert steps > 8
    assert contents(bench, log) == newest(rows, offsets)
    assert shadows(bench) == []


def test_another_leader_ends_a_compaction(bench: Bench) -> None:
    log = PartitionLog(bench.store.resources, bench.topic("t", configs=COMPACT), 0, epoch=5)
    rows: list[Row] = [(b"k", b"%d" % number, 0) for number in range(1500)]
    offsets = append(bench, log, rows)
    # A new term of the coordinator, within the same leader epoch.
    bench.run(log.acquire_epoch())

    def lead() -> None:
        bench.client.hset(log.meta, "epoch", writer_epochs(6).start)

    for at in (1, 8):
        with pytest.raises(FencedEpoch):
            stepwise(bench, log, Steps(at, lead))
        bench.client.hset(log.meta, "epoch", writer_epochs(5).start + 1)
        assert len(contents(bench, log)) == 1500
    assert stepwise(bench, log, Steps(-1, lead)) == 1499
    assert list(contents(bench, log)) == offsets[1499:]


def test_a_later_compaction_takes_over(bench: Bench) -> None:
    log = compacted_log(bench)
    append(bench, log, [(b"k", b"%d" % number, 0) for number in range(1500)])

    class Other(Pace):
        async def spend(self, size_bytes: int) -> None:
            if shadows(bench) and not later:
                later.append(
                    await Compactor(bench.store.commands, twin, Pace(1e12), 1 << 27).compact(RULES, NOW_MS)
                )

    later: list[int] = []
    # As in another process.
    twin = PartitionLog(bench.store.resources, log.topic, 0)
    with pytest.raises(StorageFault, match="STALE"):
        bench.run(Compactor(bench.store.commands, log, Other(1e12), 1 << 27).compact(RULES, NOW_MS))
    assert later == [1499]
    assert len(contents(bench, log)) == 1


@pytest.mark.parametrize("layout", ["record", "batch"])
async def test_an_append_is_acknowledged_although_its_records_are_gone(
    server: Server, prefix: str, layout: str
) -> None:
    """Its reply is lost, and a compaction removes its records before the broker asks what became of it."""
    options: Any = {"offset_assignment": "dense", "storage_layout": layout, "configs": COMPACT}
    async with (
        proxied_store(server.socket, prefix) as (proxy, store),
        open_store(server.url, prefix) as other,
    ):
        log = store.logs.get(await store.catalogue.create("t", 1, **options), 0)
        twin = PartitionLog(other.resources, log.topic, 0)
        await append_batch(log, batch([(b"k", b"1"), (b"k", b"2")]))
        entries = server.client.xlen(log.stream)
        proxy.hold_replies()
        waiting = asyncio.create_task(append_batch(log, batch([(b"k", b"3")])))
        await until_async(lambda: server.client.xlen(log.stream) > entries, 20, "Redis has it")
        server.client.xadd(log.stream, {"key": b"k", "value": b"4"}, id=entry_id(4))
        removed = await Compactor(other.commands, twin, Pace(1e12), 1 << 27).compact(RULES, NOW_MS)
        assert removed == 3
        await proxy.cut()
        appended = await waiting
        assert (appended.base_offset, appended.duplicate) == (2, False)
        assert server.client.xlen(log.stream) == 1
        assert (await append_batch(log, batch([(b"k", b"5")]))).base_offset == 4


def test_compaction_is_slowed_down(bench: Bench) -> None:
    log = compacted_log(bench)
    append(bench, log, [(b"k", b"v" * 1000, 0)] * 100)

    async def timed() -> float:
        began_s = asyncio.get_running_loop().time()
        await Compactor(bench.store.commands, log, Pace(1_000_000), 1 << 27).compact(RULES, NOW_MS)
        return asyncio.get_running_loop().time() - began_s

    # 0.1 MB to read, and 0.1 MB to copy.
    assert bench.run(timed()) >= 0.2
