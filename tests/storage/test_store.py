"""Opening a store, its topic catalogue, the lease, and noticing native writers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest

from korvet.cluster.lease import Holder
from korvet.config.address import Address
from korvet.config.live import LiveConfig
from korvet.config.settings import Config
from korvet.records.kernel import encode_append_records, parse_batch
from korvet.redis.errors import (
    CatalogueConflict,
    OffsetOutOfRange,
    StoreError,
    TopicExists,
    TopicGone,
)
from korvet.redis.keys import Keyspace
from korvet.store import Store
from korvet.topics.directory import TopicDirectory
from tests.storage.batches import decode
from tests.storage.proxy import proxied_store, until
from tests.support.logs import append_own, read_log
from tests.support.ports import free_port
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.cluster.topic import Topic
    from tests.storage.conftest import Bench
    from tests.support.redis_server import Server


HERE = Address("localhost", 9092)


def open_and_close(server: Server, prefix: str, **options: Any) -> str:
    async def work() -> str:
        store = await Store.open(server.url, Keyspace(prefix), **options)
        await store.close()
        return store.commands.cluster_id

    return asyncio.run(work())


def test_cluster_id_stays(server: Server, prefix: str) -> None:
    first = open_and_close(server, prefix)
    assert len(first) == 22
    assert open_and_close(server, prefix) == first
    assert open_and_close(server, prefix + "x") != first


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", "1", "has format 1; this korvet works with format"),
        ("format", "99", "has format 99; this korvet works with format"),
        ("sequence_bits", "12", "made with 12 sequence bits"),
    ],
)
def test_another_format_is_refused(server: Server, prefix: str, field: str, value: str, message: str) -> None:
    open_and_close(server, prefix)
    server.client.hset(f"{{{prefix}}}:cluster", field, value)
    with pytest.raises(StoreError, match=message):
        open_and_close(server, prefix)


def test_a_refused_keyspace_keeps_the_library_of_its_brokers(server: Server, prefix: str) -> None:
    """Brokers of another format need their own functions: ours would damage their logs."""
    open_and_close(server, prefix)
    server.client.hset(f"{{{prefix}}}:cluster", "format", "2")
    theirs = "#!lua name=korvet\nredis.register_function('korvet_append', function() return 0 end)\n"
    server.client.function_load(theirs, replace=True)
    try:
        with pytest.raises(StoreError, match="has format 2"):
            open_and_close(server, prefix)
        assert theirs.encode() in server.client.function_list("korvet", withcode=True)[0]
    finally:
        open_and_close(server, prefix + "x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--maxmemory-policy", "allkeys-lru"), "may evict our keys"),
        (("--cluster-enabled", "yes"), "no node of the cluster has slots"),
        (("--replicaof", "127.0.0.1", "1"), "is a replica"),
    ],
)
@pytest.mark.each_server
def test_unfit_servers_are_refused(
    new_server: Callable[..., Server], options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        open_and_close(new_server(*options), "k")


@pytest.mark.each_server
def test_volatile_eviction_is_accepted(new_server: Callable[..., Server]) -> None:
    assert open_and_close(new_server("--maxmemory-policy", "volatile-lru"), "k")


async def test_one_of_many_creators_wins(server: Server, prefix: str) -> None:
    stores = [await Store.open(server.url, Keyspace(prefix)) for _ in range(5)]
    made = await asyncio.gather(*(store.catalogue.create("t", 3) for store in stores), return_exceptions=True)
    assert [type(one) for one in made if isinstance(one, BaseException)] == [TopicExists] * 4
    ids = {(await store.catalogue.load())["t"].topic_id for store in stores}
    assert len(ids) == 1
    for store in stores:
        await store.close()


async def test_topics_change_by_compare_and_set(server: Server, prefix: str) -> None:
    one = await Store.open(server.url, Keyspace(prefix))
    await one.catalogue.create("t", 1, {"retention.ms": "5"}, offset_assignment="dense")
    other = await Store.open(server.url, Keyspace(prefix))
    grown = await one.catalogue.add_partitions("t", 3)
    assert (grown.partitions, grown.configs, grown.bias) == (3, {"retention.ms": "5"}, 1)
    with pytest.raises(CatalogueConflict):
        await other.catalogue.set_configs("t", {})
    await other.catalogue.load()
    assert (await other.catalogue.set_configs("t", {"a": "b"})).partitions == 3
    with pytest.raises(ValueError, match="has 3"):
        await other.catalogue.add_partitions("t", 3)
    with pytest.raises(TopicGone):
        await other.catalogue.add_partitions("none", 3)
    await one.close()
    await other.close()


async def test_an_unfinished_deletion_is_finished_later(server: Server, prefix: str) -> None:
    store = await Store.open(server.url, Keyspace(prefix))
    topic = await store.catalogue.create("t", 3)
    for partition in range(3):
        log = store.logs.get(topic, partition)
        await append_own(log, encode_append_records([(b"k", b"v", 0)]))
    await store.catalogue.mark_deleting("t")
    await store.close()

    store = await Store.open(server.url, Keyspace(prefix))
    assert store.catalogue.get("t") is None
    with pytest.raises(TopicExists):
        await store.catalogue.create("t", 1)
    forgotten: list[Topic] = []

    async def forget(topic: Topic) -> None:
        forgotten.append(topic)
        assert server.client.exists(f"{prefix}:t:0"), "offsets go before the log"

    for pending in store.catalogue.pending_deletes():
        await store.catalogue.finish_delete(pending, forget)
    assert [one.name for one in forgotten] == ["t"]
    assert server.client.keys(f"*{prefix}*") == [f"{{{prefix}}}:cluster".encode()]
    assert (await store.catalogue.create("t", 1)).topic_id != topic.topic_id
    await store.close()


@pytest.mark.parametrize("change", ["partitions", "configs", "deletion"])
async def test_a_change_is_repeated_if_another_broker_has_changed_the_topic(
    server: Server, prefix: str, change: str
) -> None:
    groups = SimpleNamespace(forget_topic=AsyncMock())
    async with open_store(server.url, prefix) as one, open_store(server.url, prefix) as other:
        await one.catalogue.create("t", 1)
        await other.catalogue.load()
        await one.catalogue.set_configs("t", {"retention.ms": "5"})
        directory = TopicDirectory(other.catalogue, other.logs, LiveConfig(Config()), cast("Any", groups))
        if change == "partitions":
            await directory.add_partitions("t", 2)
        elif change == "configs":
            await directory.alter_configs("t", lambda configs, _: {**configs, "retention.bytes": "7"})
        else:
            await directory.delete("t", asyncio.get_running_loop().time() + 60)
        found = (await one.catalogue.load()).get("t")
        expected = {
            "partitions": (2, {"retention.ms": "5"}),
            "configs": (1, {"retention.ms": "5", "retention.bytes": "7"}),
            "deletion": None,
        }
        assert (None if found is None else (found.partitions, found.configs)) == expected[change]


async def test_all_logs_of_topics_that_were_created_again_are_closed(server: Server, prefix: str) -> None:
    """Also a log whose successor is opened by a client's request before its turn has come."""
    one, other = [await Store.open(server.url, Keyspace(prefix)) for _ in range(2)]
    names = "tu"
    logs = [one.logs.get(await one.catalogue.create(name, 1), 0) for name in names]
    await other.catalogue.load()
    for name in names:
        await other.catalogue.delete(name)
        await other.catalogue.create(name, 1)
    logs[0].listen(lambda: logs.append(one.logs.get(one.catalogue.topics["u"], 0)))
    await one.catalogue.load()
    assert len(logs) == 3
    assert all(log.closed for log in logs[:2])
    assert not one.logs.get(one.catalogue.topics["u"], 0).closed
    await other.close()
    await one.close()


def test_producer_ids_are_never_given_twice(server: Server, prefix: str) -> None:
    async def work() -> list[int]:
        store = await Store.open(server.url, Keyspace(prefix))
        ids = await asyncio.gather(*(store.producer_ids.allocate() for _ in range(1500)))
        await store.close()
        return list(ids)

    given = asyncio.run(work()) + asyncio.run(work())
    assert len(set(given)) == 3000


async def test_producer_ids_are_not_given_twice_by_a_failover(new_server: Callable[..., Server]) -> None:
    """The replica that takes over has not received them."""
    port = free_port()
    primary = new_server("--port", str(port), "--repl-diskless-sync-delay", "0")
    replica = new_server("--replicaof", "127.0.0.1", str(port))
    async with proxied_store(primary.socket, "failover") as (proxy, store):
        written = primary.client.info("replication")["master_repl_offset"]
        await until(lambda: replica.client.info("replication").get("slave_repl_offset", 0) >= written)
        replica.client.replicaof("NO", "ONE")
        given = [await store.producer_ids.allocate() for _ in range(2500)]
        proxy.socket = replica.socket
        server = store.commands.links(store.commands.keyspace.cluster).server
        before = server.history.id
        await proxy.cut()
        await until(lambda: server.connected and server.history.id != before)
        given += [await store.producer_ids.allocate() for _ in range(2500)]
        assert len(set(given)) == 5000


async def test_a_second_broker_of_the_same_node_id_learns_the_holder(server: Server, prefix: str) -> None:
    first = await Store.open(server.url, Keyspace(prefix), node_id=1, endpoint=HERE, lease_ms=400)
    with pytest.raises(StoreError, match=r"node id 1 of keyspace .* live broker, process \d+ on "):
        await Store.open(server.url, Keyspace(prefix), node_id=1, endpoint=HERE, lease_ms=400)
    await first.close()
    second = await Store.open(server.url, Keyspace(prefix), node_id=1, endpoint=HERE, lease_ms=400)
    await second.close()
    assert not server.client.exists(f"{{{prefix}}}:brokers")


def entry(lease_ms: int, process: str) -> str:
    """The entries in the registry of a broker that has just taken its lease."""
    expiry_ms = int(time.time() * 1000) + lease_ms
    return f'{expiry_ms} {uuid.uuid4().hex} 1 -1 -1 {{"host":"h","port":1,"process":{process}}}'


def test_the_lease_of_a_dead_process_is_taken_at_once(server: Server, prefix: str) -> None:
    script = (
        "import msgspec; from korvet.cluster.lease import Holder; "
        "print(msgspec.json.encode(Holder.this_process()).decode())"
    )
    dead = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert msgspec.json.decode(dead, type=Holder).is_dead()
    assert not Holder.this_process().is_dead()
    server.client.hset(f"{{{prefix}}}:brokers", "1", entry(3_600_000, dead.strip()))
    open_and_close(server, prefix, node_id=1, endpoint=HERE)


def test_the_lease_of_an_unreachable_host_lapses(server: Server, prefix: str) -> None:
    elsewhere = msgspec.json.encode(Holder("elsewhere", 1, "1", "x")).decode()
    assert not msgspec.json.decode(elsewhere, type=Holder).is_dead()
    server.client.hset(f"{{{prefix}}}:brokers", "1", entry(700, elsewhere))
    open_and_close(server, prefix, node_id=1, endpoint=HERE)


def test_what_another_release_left_in_the_registry_is_removed(server: Server, prefix: str) -> None:
    server.client.hset(f"{{{prefix}}}:brokers", "1", "99999999999999 token {}")
    server.client.hset(f"{{{prefix}}}:brokers", "2", "99999999999999 token {}")
    open_and_close(server, prefix, node_id=1, endpoint=HERE)
    assert not server.client.exists(f"{{{prefix}}}:brokers")


@pytest.mark.parametrize("assignment", ["clock", "dense"])
@pytest.mark.each_server
async def test_native_entries_wake_listeners(
    server: Server, prefix: str, assignment: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = await Store.open(server.url, Keyspace(prefix), watch_interval_ms=5)
    topic = await store.catalogue.create("t", 1, offset_assignment=assignment)  # type: ignore[arg-type]
    log = store.logs.get(topic, 0)
    await log.bounds()
    woken = asyncio.Event()
    log.listen(woken.set)
    position = log.ends.log_end
    for number in range(3):
        woken.clear()
        server.client.xadd(log.stream, {"n": number})
        await asyncio.wait_for(woken.wait(), 10)
        fetched = await read_log(log, position, 1000)
        assert [record.value for record in decode(fetched.data)] == [b'{"n":"%d"}' % number]
        position = fetched.next_offset
    # Entries that no offset addresses wake no listener twice, and hide no later entries.
    ms = (log.ends.log_end >> 10) + 5
    for sequence in range(1024, 1100):
        server.client.xadd(log.stream, {"n": 0}, id=f"{ms}-{sequence}")
    woken.clear()
    server.client.xadd(log.stream, {"n": 9}, id=f"{ms + 1}-0")
    while log.ends.log_end < (ms + 1) << 10:
        woken.clear()
        await asyncio.wait_for(woken.wait(), 10)
    fetched = await read_log(log, position, 1000)
    assert [record.value for record in decode(fetched.data)] == [b'{"n":"9"}']
    assert caplog.text.count("entries that Kafka clients cannot see") == 1
    log.unlisten(woken.set)
    await store.close()


@pytest.mark.parametrize("interval_ms", [1, 3_600_000])
async def test_a_log_end_is_known_for_as_long_as_natives_may_stay_unnoticed(
    server: Server, prefix: str, interval_ms: int
) -> None:
    store = await Store.open(server.url, Keyspace(prefix), watch_interval_ms=interval_ms)
    log = store.logs.get(await store.catalogue.create("t", 1), 0)

    def known(offset: int) -> list[bytes] | None:
        return log.cached(offset, 1000, None, zstd=True)

    assert known(0) is None
    await read_log(log, 0, 1000)
    first = known(0)
    end = (await append_own(log, encode_append_records([(None, b"v", 0)]))).base_offset + 1
    second = known(end)
    if interval_ms > 1000:
        assert first == second == []
    deadline = asyncio.get_running_loop().time() + 10
    while interval_ms == 1 and known(end) is not None:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)
    log.state.lost_track()
    assert known(end) is None
    await log.bounds()
    log.close(TopicGone("t"))
    assert known(end) is None
    await store.close()


def test_a_deleted_tail_reads_as_a_control_batch_to_the_log_end(bench: Bench) -> None:
    log = bench.log()
    base = bench.run(append_own(log, encode_append_records([(None, b"v", 0)] * 10))).base_offset
    ids = [entry for entry, _ in bench.client.xrange(log.stream)]
    bench.client.xdel(log.stream, *ids[4:])
    first = bench.run(read_log(log, base, 100_000))
    assert first.next_offset == base + 4
    gap = bench.run(read_log(log, first.next_offset, 100_000))
    assert (gap.record_count, gap.last_offset, gap.next_offset) == (0, base + 9, base + 10)
    header = parse_batch(gap.data, 0)
    assert (header.control, header.base_offset, header.producer_id) == (True, base + 9, -1)
    for offset in (-1, base + 11):
        with pytest.raises(OffsetOutOfRange):
            bench.run(read_log(log, offset, 1))


def test_reading_below_a_native_trim_is_out_of_range(bench: Bench) -> None:
    log = bench.log()
    base = bench.run(append_own(log, encode_append_records([(None, b"v", 0)] * 10))).base_offset
    bench.client.xtrim(log.stream, maxlen=3, approximate=False)
    with pytest.raises(OffsetOutOfRange) as caught:
        bench.run(read_log(log, base, 1000))
    assert (caught.value.log_start, caught.value.log_end) == (base + 7, base + 10)


def test_large_records_behind_small_ones_are_read_in_small_pieces(bench: Bench) -> None:
    log = bench.log()
    small = encode_append_records([(None, b"v", 0)] * 3000)
    base = bench.run(append_own(log, small)).base_offset
    for _ in range(40):
        bench.run(append_own(log, encode_append_records([(None, b"x" * 1_000_000, 0)])))
    log.state.average_bytes = 1.0
    offset, records = base, 0
    while offset < log.ends.log_end:
        fetched = bench.run(read_log(log, offset, 1_000_000))
        assert len(fetched.data) < 2_500_000
        offset, records = fetched.next_offset, records + fetched.record_count
    assert records == 3040


@pytest.mark.parametrize("prefix", ["", "a{b", "a b", "x" * 101])
def test_bad_prefixes_are_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="keyspace prefix"):
        Keyspace(prefix)


@pytest.mark.parametrize("topic", ["", "a{b}", "a:b", "a b", "x" * 250, "ü"])
def test_bad_topic_names_are_refused(topic: str) -> None:
    with pytest.raises(ValueError, match="topic name"):
        Keyspace().stream(topic, 0)


def test_keys_of_a_partition_share_a_slot() -> None:
    assert Keyspace().partition_keys("orders", 0) == (
        b"korvet:orders:0",
        b"{korvet:orders:0}:index",
        b"{korvet:orders:0}:meta",
        b"{korvet:orders:0}:latest",
    )
