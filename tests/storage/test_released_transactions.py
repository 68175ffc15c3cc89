"""Transactions of topics that wait for replicas: consumers of committed records see no outcome that a
failover can take back.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

import pytest

from korvet.log.committed import Committed, cached_committed, read_committed
from korvet.log.values import ProducerSequence
from korvet.records.control import ControlMarker
from korvet.redis.errors import HistoryChanged, NotEnoughReplicasAfterAppend, StorageError
from tests.storage.proxy import proxied_store
from tests.storage.test_release import (
    ONE_REPLICA,
    SOON_S,
    append_own,
    batch,
    opened,
    released,
    sees,
    stopped,
)
from tests.storage.test_transactions import append_to, outcome_of, received
from tests.storage.transaction_log import shown
from tests.support.polling import until_async
from tests.support.ports import free_port
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.partition_log import PartitionLog
    from korvet.log.values import Appended, Marked
    from tests.support.redis_server import Server

    NewServer = Callable[..., Server]

AT_ONCE = ("--repl-diskless-sync-delay", "0")
PRODUCER_ID = 7


async def in_transaction(log: PartitionLog, *values: bytes) -> Appended:
    stamp = ProducerSequence(PRODUCER_ID, 0, 0, True)
    appended: Appended = await outcome_of(partial(append_to, log, received(values, stamp), stamp))
    return appended


async def mark(log: PartitionLog, *, committed: bool) -> Marked:
    marked: Marked = await outcome_of(partial(log.mark, ControlMarker(PRODUCER_ID, 0, committed, 1)))
    return marked


async def consumed(log: PartitionLog) -> list[bytes | None]:
    """The values that a consumer of committed records reads."""
    read: Committed = await outcome_of(partial(read_committed, log, 0, 1 << 20))
    cached = cached_committed(log, 0, 1 << 20, None, zstd=True)
    assert cached is None or cached.last_stable_offset == read.last_stable_offset
    found = shown(forms.split(b"".join(read.batches)), read.aborted)
    return [value for _, value in found.values()]


async def last_stable_offsets(log: PartitionLog) -> set[int]:
    """The last stable offset by all ways that lead to it."""
    proven = await log.readable_end(is_committed=True), await log.read_last_stable_offset()
    return {log.ends.last_stable_offset, *proven}


async def ends_at(log: PartitionLog, end: int) -> bool:
    with contextlib.suppress(StorageError):
        return (await log.bounds()).log_end == end
    return False


@pytest.mark.parametrize("committed", [True, False])
async def test_a_transaction_is_open_until_the_replica_has_its_marker(
    pair: tuple[Server, Server], prefix: str, committed: bool
) -> None:
    async with opened(pair[0], prefix) as log:
        await append_own(log, batch(b"plain"))
        first = await in_transaction(log, b"1", b"2")
        await released(log, first.base_offset + 2)
        woken = asyncio.Event()
        log.listen(woken.set)
        with stopped(pair[1]):
            marked = await mark(log, committed=committed)
            assert log.ends.high_watermark == first.base_offset + 2
            assert await last_stable_offsets(log) == {first.previous_end}
            assert await consumed(log) == [b"plain"]
            again = await mark(log, committed=committed)
            assert (again.offset, again.end) == (-1, marked.end)
            with pytest.raises(NotEnoughReplicasAfterAppend, match="in time"):
                await released(log, again.end, 50)
            await append_own(log, batch(b"more"))
            assert await last_stable_offsets(log) == {first.previous_end}
            woken.clear()
        await asyncio.wait_for(woken.wait(), SOON_S)
        await until_async(lambda: sees(log, log.ends.log_end), SOON_S, "everything is released")
        assert await last_stable_offsets(log) == {log.ends.log_end}
        assert await consumed(log) == [b"plain", *([b"1", b"2"] if committed else []), b"more"]
        log.unlisten(woken.set)


async def test_an_outcome_that_a_failover_takes_back_was_never_seen(
    new_server: NewServer, prefix: str
) -> None:
    """The marker is on the old primary only; the server that takes over has the transaction open."""
    port, new_port = free_port(), free_port()
    old, new, third = new_server("--port", str(port), *AT_ONCE), new_server(*AT_ONCE), new_server(*AT_ONCE)
    new.client.config_set("port", new_port)
    new.follow(port)
    async with proxied_store(old.socket, prefix, level=ONE_REPLICA) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        await append_own(log, batch(b"plain"))
        first = await in_transaction(log, b"1")
        end = first.base_offset + 1
        await released(log, end)
        new.client.replicaof("NO", "ONE")
        lost = await mark(log, committed=True)
        assert await consumed(log) == [b"plain"]
        waiting = asyncio.ensure_future(released(log, lost.end))
        await asyncio.sleep(0)
        old.process.kill()
        old.process.wait()
        third.follow(new_port)
        proxy.socket = new.socket
        await proxy.cut()
        with pytest.raises((HistoryChanged, NotEnoughReplicasAfterAppend)):
            await waiting
        await until_async(partial(ends_at, log, end), SOON_S, "the log ends where the new server's does")
        assert await last_stable_offsets(log) == {first.previous_end}
        assert await consumed(log) == [b"plain"]
        kept = await mark(log, committed=False)
        assert kept.first_offset == first.previous_end
        await released(log, kept.end)
        assert await last_stable_offsets(log) == {kept.end}
        assert await consumed(log) == [b"plain"]
