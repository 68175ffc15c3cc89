"""Records are released to readers, and to producers with acks=all, once the replicas that their topic asks
for have them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from korvet.cluster.claims import claim
from korvet.cluster.shared_writes import SharedWrites
from korvet.records.kernel import encode_append_records
from korvet.redis.barrier import Level
from korvet.redis.errors import (
    HighWatermarkUnknown,
    HistoryChanged,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotReplicated,
    OffsetOutOfRange,
)
from korvet.redis.futures import awaited
from tests.storage.batches import received
from tests.storage.proxy import proxied_store
from tests.support.logs import admit, append_own, read_log
from tests.support.polling import until_async
from tests.support.ports import free_port
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from korvet.log.partition_log import PartitionLog
    from korvet.log.values import Appended
    from tests.support.redis_server import Server

    NewServer = Callable[..., Server]

ONE_REPLICA = Level(1)
SOON_S = 20
LONG_MS = 20_000
# A time after that of all records and appends.
NOW_MS = 1 << 45


@contextlib.asynccontextmanager
async def opened(
    server: Server, prefix: str, level: Level = ONE_REPLICA, configs: dict[str, str] | None = None
) -> AsyncIterator[PartitionLog]:
    async with open_store(server.url, prefix, level=level) as store:
        yield store.logs.get(await store.catalogue.create("t", 1, configs or {}), 0)


@contextlib.contextmanager
def stopped(server: Server) -> Any:
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def batch(*values: bytes) -> Any:
    return encode_append_records([(b"", value, 5) for value in values])


async def produce(log: PartitionLog, value: bytes) -> Appended:
    """Append as a producer's batch, which the tail cache keeps."""
    return await awaited(lambda done: log.append(received([(b"", value, 5)]), None, admit, done))


async def released(log: PartitionLog, end: int, timeout_ms: int = LONG_MS) -> None:
    await awaited(partial(log.await_released, end, timeout_ms))


async def sees(log: PartitionLog, end: int) -> bool:
    return log.ends.high_watermark == end


async def test_a_record_is_released_when_the_replica_has_it(pair: tuple[Server, Server], prefix: str) -> None:
    async with opened(pair[0], prefix) as log:
        end = (await append_own(log, batch(b"1", b"2"))).base_offset + 2
        await released(log, end)
        assert log.ends.high_watermark == log.ends.log_end == end
        assert log.missing_replicas is None
        assert (await read_log(log, 0, 1 << 20)).record_count == 2


@pytest.mark.parametrize("append", ["own", "produced"])
async def test_nobody_sees_a_record_that_the_replica_lacks(
    pair: tuple[Server, Server], prefix: str, append: str
) -> None:
    async with opened(pair[0], prefix) as log:
        first = await produce(log, b"1")
        seen = first.base_offset + 1
        await released(log, seen)
        woken = asyncio.Event()
        log.listen(woken.set)
        with stopped(pair[1]):
            if append == "own":
                end = (await append_own(log, batch(b"2"))).base_offset + 1
            else:
                end = (await produce(log, b"2")).base_offset + 1
            with pytest.raises(NotEnoughReplicasAfterAppend, match="in time"):
                await released(log, end, 50)
            assert log.ends.log_end == end
            assert log.ends.high_watermark == log.ends.last_stable_offset == seen
            assert await log.readable_end(is_committed=False) == seen
            assert await log.readable_end(is_committed=True) == seen
            assert await log.read_last_stable_offset() == seen, "compaction ends there"
            assert log.cached(seen, 1 << 20, None, zstd=True) in ([], None)
            everything = await read_log(log, 0, 1 << 20)
            assert (everything.record_count, everything.ends.high_watermark) == (1, seen)
            assert (await read_log(log, seen, 1 << 20)).record_count == 0
            woken.clear()
            waiting = asyncio.ensure_future(released(log, end))
        await waiting
        await asyncio.wait_for(woken.wait(), SOON_S)
        assert log.ends.high_watermark == end
        assert (await read_log(log, seen, 1 << 20)).record_count == 1
        log.unlisten(woken.set)


async def test_a_native_entry_is_released_too(pair: tuple[Server, Server], prefix: str) -> None:
    async with opened(pair[0], prefix) as log:
        await released(log, (await append_own(log, batch(b"1"))).base_offset + 1)
        pair[0].client.xadd(log.stream, {"a": "b"})
        end = (await log.bounds()).log_end
        await until_async(lambda: sees(log, end), SOON_S, "the entry is released")


async def test_missing_replicas_are_known_before_the_append(new_server: NewServer, prefix: str) -> None:
    alone = new_server()
    async with opened(alone, prefix) as log:
        await until_async(
            lambda: isinstance(log.missing_replicas, NotEnoughReplicas),
            SOON_S,
            "the server is known to have no replica",
        )
        assert "0 replica(s) in sync of 1" in str(log.missing_replicas)
        end = (await append_own(log, batch(b"1"))).base_offset + 1
        with pytest.raises(NotEnoughReplicasAfterAppend, match=r"min\.insync\.replicas"):
            await released(log, end)
        with pytest.raises(HighWatermarkUnknown):
            await log.readable_end(is_committed=False)
        assert log.ends.high_watermark == log.ends.log_start


async def test_a_replica_that_comes_releases_what_waits(new_server: NewServer, prefix: str) -> None:
    port = free_port()
    alone, other = new_server("--port", str(port), "--repl-diskless-sync-delay", "0"), new_server()
    async with opened(alone, prefix) as log:
        end = (await append_own(log, batch(b"1"))).base_offset + 1
        assert log.ends.high_watermark < end
        other.client.replicaof("127.0.0.1", port)
        await until_async(lambda: sees(log, end), SOON_S, "the record is released")
        await until_async(lambda: log.missing_replicas is None, SOON_S, "the replica is known")


async def test_topics_have_their_own_level(new_server: NewServer, prefix: str) -> None:
    alone = new_server()
    async with open_store(alone.url, prefix, level=ONE_REPLICA) as store:
        topic = await store.catalogue.create("t", 1, {"min.insync.replicas": "1"})
        log = store.logs.get(topic, 0)
        end = (await append_own(log, batch(b"1"))).base_offset + 1
        assert log.ends.high_watermark == end
        assert not log.waits_for_replicas
        await store.catalogue.set_configs("t", {"min.insync.replicas": "2"})
        assert log.waits_for_replicas
        assert log.ends.high_watermark == end, "what readers saw stays visible"
        later = (await append_own(log, batch(b"2"))).base_offset + 1
        assert log.ends.high_watermark == end
        waiting = asyncio.ensure_future(released(log, later))
        await asyncio.sleep(0)
        await store.catalogue.set_configs("t", {"min.insync.replicas": "1"})
        await waiting
        assert log.ends.high_watermark == later


async def test_all_logs_of_a_topic_get_its_new_level(new_server: NewServer, prefix: str) -> None:
    """Also if the answer to a producer that waits lets its next request open another one."""
    alone = new_server()
    async with open_store(alone.url, prefix, level=ONE_REPLICA) as store:
        await store.catalogue.create("t", 3)

        def get(partition: int) -> PartitionLog:
            return store.logs.get(store.catalogue.topics["t"], partition)

        logs = [get(0), get(2)]
        end = (await append_own(logs[0], batch(b"1"))).base_offset + 1
        logs[0].await_released(end, LONG_MS, lambda _: logs.append(get(1)))
        await store.catalogue.set_configs("t", {"min.insync.replicas": "1"})
        assert [log.waits_for_replicas for log in logs] == [False] * 3


async def test_another_level_makes_no_high_watermark_known(new_server: NewServer, prefix: str) -> None:
    """Else readers would take the log start for the end."""
    alone = new_server()
    async with open_store(alone.url, prefix, level=ONE_REPLICA) as store:
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        end = (await append_own(log, batch(b"1"))).base_offset + 1
        for copies in ("3", "2"):
            await store.catalogue.set_configs("t", {"min.insync.replicas": copies})
            with pytest.raises(HighWatermarkUnknown):
                await log.readable_end(is_committed=False)
        await store.catalogue.set_configs("t", {"min.insync.replicas": "1"})
        assert await log.readable_end(is_committed=False) == end


@pytest.mark.parametrize("appendonly", ["yes", "no"])
async def test_records_are_released_when_they_are_on_disk(
    new_server: NewServer, prefix: str, appendonly: str
) -> None:
    alone = new_server("--appendonly", appendonly, "--appendfsync", "everysec")
    async with opened(alone, prefix, Level(0, fsync=True)) as log:
        end = (await append_own(log, batch(b"1"))).base_offset + 1
        if appendonly == "yes":
            await released(log, end)
            assert log.ends.high_watermark == end
            return
        with pytest.raises(NotEnoughReplicasAfterAppend, match="appendonly is disabled"):
            await released(log, end)
        assert isinstance(log.missing_replicas, NotEnoughReplicas)


async def test_replicas_of_another_server_release_nothing(new_server: NewServer, prefix: str) -> None:
    """The record is on the old primary only, and a server that lacks the record has taken over."""
    port = free_port()
    at_once = ("--repl-diskless-sync-delay", "0")
    old, new, third = new_server("--port", str(port), *at_once), new_server(*at_once), new_server(*at_once)
    new_port = free_port()
    new.client.config_set("port", new_port)
    new.follow(port)
    async with proxied_store(old.socket, prefix, level=ONE_REPLICA) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        kept = (await append_own(log, batch(b"kept"))).base_offset + 1
        await released(log, kept)
        with stopped(new):
            lost = (await append_own(log, batch(b"lost"))).base_offset + 1
            waiting = asyncio.ensure_future(released(log, lost))
            await asyncio.sleep(0)
            old.process.kill()
            old.process.wait()
        new.client.replicaof("NO", "ONE")
        third.follow(new_port)
        proxy.socket = new.socket
        await proxy.cut()
        with pytest.raises((HistoryChanged, NotEnoughReplicasAfterAppend)):
            await waiting
        await until_async(lambda: sees(log, kept), SOON_S, "the log ends where the new server's does")

        async def appended() -> bool:
            with contextlib.suppress(Exception):
                later = (await append_own(log, batch(b"later"))).base_offset + 1
                await released(log, later)
                return True
            return False

        await until_async(appended, SOON_S, "the new server's replica releases records")


async def test_the_next_leader_knows_what_readers_have_seen(pair: tuple[Server, Server], prefix: str) -> None:
    async with opened(pair[0], prefix) as log:
        seen = (await append_own(log, batch(b"1"))).base_offset + 1
        await released(log, seen)
    with stopped(pair[1]):
        async with open_store(pair[0].url, prefix, level=ONE_REPLICA) as store:
            await store.catalogue.load()
            topic = store.catalogue.get("t")
            assert topic is not None
            log = store.logs.get(topic, 0)
            later = (await append_own(log, batch(b"2"))).base_offset + 1
            await until_async(lambda: sees(log, seen), SOON_S, "the noted watermark is known")
            assert log.ends.log_end == later
            # Readers of the last leader may have seen all that was there.
            with pytest.raises(HighWatermarkUnknown):
                await log.readable_end(is_committed=False)
            assert await log.readable_end(is_committed=False, after=seen - 1) == seen
            fetched = await read_log(log, 0, 1 << 20)
            assert (fetched.record_count, fetched.ends.high_watermark) == (1, seen)
            assert await log.read_watermark() == seen


async def test_records_are_released_while_memory_is_full(pair: tuple[Server, Server], prefix: str) -> None:
    async with opened(pair[0], prefix, Level()) as log:
        end = (await append_own(log, batch(b"1"))).base_offset + 1
    pair[0].client.config_set("maxmemory", 1)
    async with open_store(pair[0].url, prefix, level=ONE_REPLICA) as store:
        log = store.logs.get(store.catalogue.topics["t"], 0)
        assert (await read_log(log, 0, 1 << 20)).record_count == 1
        assert log.ends.high_watermark == end


@pytest.mark.parametrize("note", ["own", "beyond the log end", "of an earlier leader", "of another topic"])
async def test_a_noted_watermark_is_one_of_this_log(
    pair: tuple[Server, Server], prefix: str, note: str
) -> None:
    """Its broker may send it when the log has lost the records, or belongs to a new topic of that name."""
    async with opened(pair[0], prefix) as log:
        state, watermarks = log.state, log._resources.watermarks
        await claim(log._resources.commands, log.topic, 0, 3)
        state.epoch = 3
        seen = (await append_own(log, batch(b"1"))).base_offset + 1
        await released(log, seen)
        end = (await append_own(log, batch(b"2"))).base_offset + 1
        await released(log, end)
        pair[0].client.hset(state.meta, "watermark", seen)
        if note == "beyond the log end":
            state.known.take(0, end + 100)
            state.known.release(end + 100, 0)
        elif note == "of an earlier leader":
            state.epoch = 2
        elif note == "of another topic":
            pair[0].client.hset(state.meta, "topic", "another")
        watermarks.end(state)
        noted = await state.links.write_functions.call("HGET", state.meta, "watermark")
        assert int(noted) == (seen if note.startswith("of") else end)


async def test_a_note_does_not_bring_a_deleted_topic_back(pair: tuple[Server, Server], prefix: str) -> None:
    async with open_store(pair[0].url, prefix, level=ONE_REPLICA) as store:
        log = store.logs.get(await store.catalogue.create("t", 1, {}), 0)
        await released(log, (await append_own(log, batch(b"1"))).base_offset + 1)
        await store.catalogue.delete("t")
    assert not [key for key in pair[0].client.keys(f"*{prefix}:t:0*") if b"barrier" not in key]


async def test_shared_changes_wait_for_replicas(pair: tuple[Server, Server], prefix: str) -> None:
    async with opened(pair[0], prefix) as log:
        writes = SharedWrites(log._resources.commands, lambda: ONE_REPLICA)
        before = writes.before()
        await writes.replicated(before)
        with stopped(pair[1]), pytest.raises(NotReplicated, match="5 s"):
            await writes.replicated(before)


async def test_shared_changes_may_be_lost_if_another_server_has_taken_over(
    new_server: NewServer, prefix: str
) -> None:
    """Its replica confirms only what it holds itself."""
    at_once = ("--repl-diskless-sync-delay", "0")
    port = free_port()
    old, new = new_server(*at_once), new_server("--port", str(port), *at_once)
    new_server(*at_once).follow(port)
    async with proxied_store(old.socket, prefix, level=ONE_REPLICA) as (proxy, store):
        writes = SharedWrites(store.commands, lambda: ONE_REPLICA)
        before = writes.before()
        await store.commands.call("SET", "change", "made")
        server, proxy.socket = store.commands.links(b"").server, new.socket
        former = server.history.id
        await proxy.cut()
        await until_async(
            lambda: server.connected and server.history.id != former, SOON_S, "it is the new server"
        )
        with pytest.raises(NotReplicated, match="taken over"):
            await writes.replicated(before)
        await writes.replicated(writes.before())


async def test_records_that_the_replica_lacks_are_not_deleted(
    pair: tuple[Server, Server], prefix: str
) -> None:
    async with opened(pair[0], prefix) as log:
        seen = (await append_own(log, batch(b"1", b"2"))).base_offset + 2
        await released(log, seen)
        with stopped(pair[1]):
            end = (await append_own(log, batch(b"3"))).base_offset + 1
            with pytest.raises(OffsetOutOfRange):
                await log.delete_before(end, LONG_MS)
            with pytest.raises(NotReplicated, match=r"0\.1 s"):
                await log.delete_before(None, 100)
            assert pair[0].client.xlen(log.stream) == 1
            assert log.ends.high_watermark == log.ends.log_start == seen
        await released(log, end)
        assert await log.delete_before(end, LONG_MS) == end
        assert not pair[1].client.xlen(log.stream)


async def test_retention_keeps_what_nobody_could_read(pair: tuple[Server, Server], prefix: str) -> None:
    async with opened(pair[0], prefix) as log:
        seen = (await append_own(log, batch(b"1"))).base_offset + 1
        await released(log, seen)
        with stopped(pair[1]):
            end = (await append_own(log, batch(b"2"))).base_offset + 1
            await log.trimming.trim(0, None, NOW_MS)
            await log.trimming.trim(None, 0, NOW_MS)
            assert (await log.bounds()).log_end == end
            assert pair[0].client.xrevrange(log.stream, count=1)
        await released(log, end)
        await log.trimming.trim(0, None, NOW_MS)
        assert (await log.bounds()).log_start == end
