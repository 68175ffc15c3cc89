"""Native entries are noticed among thousands of logs with listeners, and asking Redis for them is cheap."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from korvet.log.native_watcher import WatchedBatch, WatchedLog
from korvet.redis.errors import RedisFault
from tests.storage.proxy import until

if TYPE_CHECKING:
    import pytest

    from tests.storage.conftest import Bench

MANY = 1300


def test_native_entries_are_noticed_among_many_logs(bench: Bench) -> None:
    """Entries are noticed in the first, the last and other streams, beside keys of another type."""

    async def work() -> None:
        topic = await bench.store.catalogue.create("wide", MANY)
        logs = [bench.store.logs.get(topic, partition) for partition in range(MANY)]
        woken = [asyncio.Event() for _ in logs]
        bench.client.set(logs[3].stream, "no stream")
        bench.client.set(logs[MANY - 2].stream, "no stream")
        for log, event in zip(logs, woken, strict=True):
            log.listen(event.set)
        for partition in (0, 4, MANY // 2, MANY - 1):
            bench.client.xadd(logs[partition].stream, {"a": "b"})
            await asyncio.wait_for(woken[partition].wait(), 10)
            woken[partition].clear()
        # After the first entry the next ones are noticed, too.
        bench.client.xadd(logs[4].stream, {"a": "b"})
        await asyncio.wait_for(woken[4].wait(), 10)
        assert [index for index, event in enumerate(woken) if event.is_set()] == [4]
        for log, event in zip(logs, woken, strict=True):
            log.unlisten(event.set)

    bench.run(work())


def test_a_log_whose_ends_cannot_be_read_hides_no_other(bench: Bench) -> None:
    """Not even logs that are looked at after it."""

    async def work() -> None:
        topic = await bench.store.catalogue.create("wide", 600)
        logs = [bench.store.logs.get(topic, partition) for partition in range(600)]
        woken = asyncio.Event()
        for log in logs:
            log.listen(woken.set)
        watcher = bench.store.resources.watcher
        await until(lambda: watcher.is_current)
        woken.clear()
        bench.client.set(logs[0].meta, "no hash")
        bench.client.xadd(logs[0].stream, {"a": "b"})
        await until(lambda: not watcher.is_current)
        bench.client.xadd(logs[-1].stream, {"a": "b"})
        await asyncio.wait_for(woken.wait(), 10)
        assert not watcher.is_current
        for log in logs:
            log.unlisten(woken.set)

    bench.run(work())


def test_a_server_that_refuses_the_question_hides_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server does that is loading its data."""

    async def work() -> None:
        topic = await bench.store.catalogue.create("wide", 600)
        logs = [bench.store.logs.get(topic, partition) for partition in range(600)]
        watcher = bench.store.resources.watcher
        ask, refused = watcher._ask, []

        async def asked(batch: WatchedBatch) -> list[Any]:
            if logs[0].stream in batch.commands():
                refused.append(batch)
                raise RedisFault("LOADING Redis is loading the dataset in memory", "LOADING")
            return await ask(batch)

        monkeypatch.setattr(watcher, "_ask", asked)
        woken = asyncio.Event()
        for log in logs:
            log.listen(woken.set)
        await until(lambda: len(refused) > 1)
        woken.clear()
        bench.client.xadd(logs[-1].stream, {"a": "b"})
        await asyncio.wait_for(woken.wait(), 10)
        assert not watcher.is_current
        for log in logs:
            log.unlisten(woken.set)

    bench.run(work())


def test_what_is_asked_again_is_packed_once(bench: Bench) -> None:
    topic = bench.topic("t")
    log = bench.store.logs.get(topic, 0)
    watched = WatchedLog(log.state, log.bounds)
    other = bench.store.logs.get(bench.topic("u"), 0)
    group = WatchedBatch([watched, WatchedLog(other.state, other.bounds)])
    first = group.commands()
    stream = log.stream
    assert first.startswith(b"*8\r\n$5\r\nXREAD\r\n$5\r\nCOUNT\r\n$1\r\n1\r\n$7\r\nSTREAMS\r\n")
    assert stream in first
    assert first.count(b"0-0") == 2
    assert group.commands() is first
    log.state.grow_to(5 << 10 | 7)
    again = group.commands()
    assert again.endswith(b"$3\r\n5-6\r\n$3\r\n0-0\r\n")
    assert again.startswith(first[:-18])
    assert group.commands() is again


def test_an_entry_beyond_what_offsets_can_name_is_not_asked_for_again(bench: Bench) -> None:
    log = bench.log()
    watched = WatchedLog(log.state, log.bounds)
    watched.seen = b"9-2000"
    log.state.grow_to(9 << 10)
    group = WatchedBatch([watched])
    assert group.commands().endswith(b"$6\r\n9-2000\r\n")
    log.state.grow_to(11 << 10)
    assert group.commands().endswith(b"$7\r\n10-1023\r\n")


def test_ends_are_known_while_every_log_answers(bench: Bench) -> None:
    async def work() -> None:
        watcher = bench.store.resources.watcher
        topic = await bench.store.catalogue.create("known", 2)
        logs = [bench.store.logs.get(topic, partition) for partition in range(2)]
        woken = asyncio.Event()
        assert not watcher.is_current
        for log in logs:
            log.listen(woken.set)
        await until(lambda: watcher.is_current)
        # Of another type: nothing is known of this log any more.
        bench.client.set(logs[1].stream, "no stream")
        await until(lambda: not watcher.is_current)
        bench.client.delete(logs[1].stream)
        await until(lambda: watcher.is_current)
        for log in logs:
            log.unlisten(woken.set)
        await until(lambda: not watcher.is_current)

    bench.run(work())


def test_listeners_learn_that_the_ends_are_in_doubt(bench: Bench) -> None:
    log = bench.log()
    woken: list[int] = []
    log.state.note_ends(0, 5)
    log.state.listeners.add(lambda: woken.append(log.ends.log_end))
    log.moved()
    assert woken == [5]
    # The server that holds the log now lacks the last writes.
    log.state.note_ends(0, 3)
    assert woken == [5, 3]
