"""A store on a Redis Cluster: topics on all nodes, moves of slots, and failovers of primaries."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.log.compaction.compactor import CompactionRules, Compactor, Pace
from korvet.log.values import Appended, ProducerSequence
from korvet.records.control import ControlMarker
from korvet.records.kernel import parse_batch
from korvet.redis import slot_links
from korvet.redis.cluster import Cluster
from korvet.redis.errors import OffsetOutOfRange, SlotUnavailable
from korvet.redis.futures import awaited
from korvet.redis.keys import Keyspace
from korvet.redis_groups.projection import GroupCommit, Projection
from korvet.spark.source.address import Address
from korvet.spark.source.connection import connected
from korvet.spark.source.extents import extents
from korvet.spark.source.ordinals import Ordinals, ordinals
from korvet.spark.source.topics import load_topics
from korvet.store import Store
from tests.api.batches import batch
from tests.storage.batches import decode, produce
from tests.storage.live_brokers import RECORD
from tests.support.logs import admit, append_own, read_log
from tests.support.polling import until_async
from tests.support.received import ReceivedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from korvet.log.partition_log import PartitionLog
    from korvet.redis.errors import StorageError
    from tests.support.cluster import RedisCluster

ALL = 1 << 24


class Bench:
    """A store on the cluster, driven from synchronous tests."""

    def __init__(self, cluster: RedisCluster, prefix: str) -> None:
        self.cluster = cluster
        self.prefix = prefix
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.store = self.run(Store.open(cluster.url, Keyspace(prefix), watch_interval_ms=10))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def logs(self, name: str, partitions: int, **options: Any) -> list[PartitionLog]:
        topic = self.run(self.store.catalogue.create(name, partitions, **options))
        return [self.store.logs.get(topic, number) for number in range(partitions)]

    def close(self) -> None:
        self.run(self.store.close())
        self.runner.close()


@pytest.fixture
def bench(redis_cluster: RedisCluster, prefix: str) -> Iterator[Bench]:
    made = Bench(redis_cluster, f"cluster{prefix}")
    yield made
    made.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a change of the cluster."""
    await until_async(condition, 60, "the cluster does it")


async def produced(log: PartitionLog, *values: bytes) -> Appended:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    data = batch([(b"key", value) for value in values])
    log.append(ReceivedBatch(data, parse_batch(data, 0), None), None, admit, done.set_result)
    outcome = await done
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def values_of(log: PartitionLog) -> list[bytes | None]:
    found: list[bytes | None] = []
    bounds = await log.bounds()
    offset = bounds.log_start
    while offset < bounds.log_end:
        fetched = await read_log(log, offset, ALL)
        found += [row.value for row in decode(fetched.data)]
        offset = fetched.next_offset
    return found


def test_partitions_lie_on_all_nodes(bench: Bench) -> None:
    logs = bench.logs("t", 24)

    async def work() -> None:
        for number in range(5):
            await asyncio.gather(*(produced(log, b"%d" % number, b"+", b"-") for log in logs))

    bench.run(work())
    assert {bench.cluster.owner(log.stream) for log in logs} == set(bench.cluster.nodes)
    assert len({log.links.server for log in logs}) == len(bench.cluster.nodes)
    for log in logs:
        values = bench.run(values_of(log))
        assert values == [value for number in range(5) for value in (b"%d" % number, b"+", b"-")]
        assert bench.run(log.queries.count(0, log.ends.log_end)) == 15
        assert bench.cluster.call(log.stream, "XLEN", log.stream) == 15


@pytest.mark.parametrize("layout", ["record", "batch"])
def test_everything_about_a_topic(bench: Bench, layout: str) -> None:
    logs = bench.logs("t", 8, offset_assignment="dense", storage_layout=layout)

    async def work() -> None:
        for log in logs:
            for number in range(300):
                await produced(log, b"%d" % number, b"x" * 100)
            found = await log.queries.offset_for_timestamp(0)
            assert found is not None
            assert found[0] == 0
            assert await log.trimming.trim(None, 20_000, 0) > 0
            bounds = await log.bounds()
            assert 0 < bounds.log_start < bounds.log_end == 600
            assert len(await values_of(log)) == 600 - bounds.log_start
            assert await log.acquire_epoch() == 1
        await bench.store.catalogue.add_partitions("t", 9)
        await bench.store.catalogue.delete("t")

    bench.run(work())
    for log in logs:
        assert bench.cluster.owner(log.stream).client.keys(f"*{log.stream.decode()}*") == []


def test_native_entries_are_noticed_on_every_node(bench: Bench) -> None:
    logs = bench.logs("t", 30)

    async def work() -> None:
        woken = [asyncio.Event() for _ in logs]
        for log, event in zip(logs, woken, strict=True):
            log.listen(event.set)
        for log, event in zip(logs, woken, strict=True):
            bench.cluster.call(log.stream, "XADD", log.stream, "*", "a", "b")
            await asyncio.wait_for(event.wait(), 10)

    bench.run(work())


def test_commits_are_projected(bench: Bench) -> None:
    logs = bench.logs("t", 9)

    async def work() -> None:
        projection = Projection(bench.store.commands)
        for log in logs:
            appended = await produced(log, b"a", b"b", b"c")
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            commit = GroupCommit("g", 7, appended.base_offset + 2, appended.base_offset + 2)
            projection.project("t", log.partition, [commit], bias=0, done=done.set_result)
            assert await done == []
            assert await projection.projected("t", log.partition) == {"g": 7}
            bench.cluster.call(
                log.stream, "XREADGROUP", "GROUP", "g", "c", "COUNT", 5, "STREAMS", log.stream, ">"
            )
            assert bench.cluster.call(log.stream, "XPENDING", log.stream, "g")["pending"] == 1

    bench.run(work())


def test_a_lost_library_is_loaded_on_that_node(bench: Bench) -> None:
    logs = bench.logs("t", 12)

    async def work() -> None:
        for round_number in range(4):
            await asyncio.gather(*(produced(log, b"%d" % round_number, b"+") for log in logs))
            bench.cluster.nodes[round_number % 3].client.function_flush()

    bench.run(work())
    for log in logs:
        assert bench.run(values_of(log)) == [v for number in range(4) for v in (b"%d" % number, b"+")]


class Producer:
    """Appends numbered batches to a log without pause, and keeps the outcome of each."""

    def __init__(self, log: PartitionLog, in_flight: int = 8) -> None:
        self.log = log
        self.sent = 0
        self.outcomes: dict[int, Appended | StorageError] = {}
        self._slots = asyncio.Semaphore(in_flight)
        self._closing = False

    async def run(self) -> None:
        while not self._closing:
            await self._slots.acquire()
            self._send(self.sent)
            self.sent += 1
            await asyncio.sleep(0)

    def _send(self, number: int) -> None:
        def done(outcome: Appended | StorageError) -> None:
            self.outcomes[number] = outcome
            self._slots.release()

        rows = [(b"key", value, 5) for value in self.values(number)]
        produce(self.log, rows, done, (1, 0, number * 3))

    def values(self, number: int) -> list[bytes]:
        return [b"%d-%d" % (number, part) for part in range(3)]

    async def gets_on(self, batches: int = 200) -> None:
        goal = self.sent + batches
        await until(lambda: self.sent >= goal)

    async def finish(self) -> None:
        self._closing = True
        await until(lambda: len(self.outcomes) == self.sent)

    def failures(self) -> list[StorageError]:
        return [outcome for outcome in self.outcomes.values() if isinstance(outcome, Exception)]

    def appended(self) -> list[bytes]:
        return [value for number in range(self.sent) for value in self.values(number)]


async def loaded(
    bench: Bench, logs: list[PartitionLog], work: Callable[[list[Producer]], Any]
) -> list[Producer]:
    """Run producers on all logs while `work` changes the cluster."""
    producers = [Producer(log) for log in logs]
    running = [asyncio.create_task(producer.run()) for producer in producers]
    await asyncio.gather(*(producer.gets_on() for producer in producers))
    await work(producers)
    await asyncio.gather(*(producer.gets_on() for producer in producers))
    await asyncio.gather(*(producer.finish() for producer in producers))
    await asyncio.gather(*running)
    return producers


def test_a_slot_moves_under_load(bench: Bench) -> None:
    logs = bench.logs("t", 3)
    key = logs[0].stream

    async def move(producers: list[Producer]) -> None:
        for _ in range(3):
            target = bench.cluster.other_than_owner(key)
            await asyncio.to_thread(bench.cluster.move, key, target)
            await producers[0].gets_on(100)

    for producer in bench.run(loaded(bench, logs, move)):
        assert producer.failures() == []
        assert bench.run(values_of(producer.log)) == producer.appended()


def test_a_redirection_of_a_primary_begins_no_history(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.logs("t", 1)[0]
    moved: list[object] = []
    bench.store.router.on_moved = moved.append

    async def old_map(cluster: Cluster) -> None:
        """The map comes from a node that has not heard of the move."""

    async def work() -> None:
        await produced(log, b"first")
        monkeypatch.setattr(Cluster, "refresh", old_map)
        await asyncio.to_thread(bench.cluster.move, log.stream, bench.cluster.other_than_owner(log.stream))
        await produced(log, b"last")
        assert await values_of(log) == [b"first", b"last"]
        assert moved == []

    bench.run(work())


def redirections(cluster: RedisCluster, kind: str) -> int:
    """The number of MOVED, ASK and TRYAGAIN replies of all nodes so far."""
    found = 0
    for node in cluster.running:
        found += node.client.info("errorstats").get(f"errorstat_{kind}", {}).get("count", 0)
    return found


@pytest.mark.parametrize("assignment", ["clock", "dense"])
@pytest.mark.parametrize("layout", ["record", "batch"])
def test_a_migrating_slot_serves(bench: Bench, assignment: str, layout: str) -> None:
    options: dict[str, Any] = {"offset_assignment": assignment, "configs": {"storage.layout": layout}}
    logs = bench.logs("t", 2, **options)
    key = logs[0].stream
    of_the_log = {each.decode() for each in logs[0].keys[:3]}
    for number in range(3):
        # Several logs may share a slot.
        bench.cluster.call(key, "SET", f"{{{key.decode()}}}:{number}", "of somebody else")
    before = {kind: redirections(bench.cluster, kind) for kind in ("MOVED", "ASK", "TRYAGAIN")}

    async def move(producers: list[Producer]) -> None:
        for _ in range(2):
            source, target = bench.cluster.owner(key), bench.cluster.other_than_owner(key)
            steps = bench.cluster.migrating(key, target)
            while await asyncio.to_thread(next, steps, None) is not None:
                # The log serves if all its keys are on one node, and not during the move.
                if not all(of_the_log & bench.cluster.keys_beside(key, node) for node in (source, target)):
                    await producers[0].gets_on(50)

    for producer in bench.run(loaded(bench, logs, move)):
        assert producer.failures() == []
        assert bench.run(values_of(producer.log)) == producer.appended()
    assert all(redirections(bench.cluster, kind) > count for kind, count in before.items())


def test_spark_counts_until_a_slot_migrates(bench: Bench) -> None:
    """While the keys of its script are on two nodes, it reads the records."""
    (log,) = bench.logs("t", 1)
    bench.run(produced(log, b"a", b"b", b"c"))
    address = Address(bench.cluster.url, bench.prefix)
    with connected(address) as connection:
        (seen,) = extents(connection, address, [load_topics(connection, address)["t"]])
        steps = bench.cluster.migrating(log.stream, bench.cluster.other_than_owner(log.stream))
        counted = [ordinals(connection, seen, [seen.first_offset, seen.log_end]) for _ in steps]
    assert counted[0] == counted[-1] == Ordinals(seen.log_end, {seen.first_offset: 0, seen.log_end: 3})
    assert None in counted


@pytest.fixture
def own_bench(own_cluster: RedisCluster, prefix: str) -> Iterator[Bench]:
    made = Bench(own_cluster, prefix)
    yield made
    made.close()


def on_node(bench: Bench, logs: list[PartitionLog], node: Any) -> list[PartitionLog]:
    return [log for log in logs if bench.cluster.owner(log.stream) is node]


def batches_of(producer: Producer, values: list[bytes | None]) -> list[int]:
    """The numbers of the batches in a log; each batch is complete, in order and there once."""
    numbers = [int((values[at] or b"").partition(b"-")[0]) for at in range(0, len(values), 3)]
    assert values == [value for number in numbers for value in producer.values(number)]
    assert numbers == sorted(set(numbers))
    return numbers


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_a_replica_takes_over_under_load(own_bench: Bench, end: signal.Signals) -> None:
    bench, primary = own_bench, own_bench.cluster.nodes[0]
    logs = bench.logs("t", 12)
    chosen = [*on_node(bench, logs, primary)[:2], *on_node(bench, logs, bench.cluster.nodes[1])[:1]]
    moved: list[PartitionLog] = []
    follow = bench.store.logs.follow_servers

    def noted(has_moved: Callable[[bytes], bool]) -> None:
        moved.extend(log for log in logs if has_moved(log.stream))
        follow(has_moved)

    bench.store.router.on_moved = noted

    async def kill(producers: list[Producer]) -> None:
        primary.process.send_signal(end)
        goals = [len(producer.outcomes) + 200 for producer in producers]
        for producer, goal in zip(producers, goals, strict=True):
            await until(lambda producer=producer, goal=goal: len(producer.outcomes) >= goal)

    producers = bench.run(loaded(bench, chosen, kill))
    for producer in producers:
        values = bench.run(values_of(producer.log))
        present = batches_of(producer, values)
        acknowledged = [
            n for n, outcome in sorted(producer.outcomes.items()) if isinstance(outcome, Appended)
        ]
        lost = [number for number in acknowledged if number not in present]
        if lost:
            # The last batches before the failover, which the replica had not received yet.
            at = acknowledged.index(lost[0])
            assert acknowledged[at : at + len(lost)] == lost
        if producer.log is chosen[2]:
            assert (lost, producer.failures()) == ([], [])
    assert set(chosen[:2]) <= set(moved)
    assert chosen[2] not in moved


def test_entries_that_a_new_primary_lacks_are_forgotten(own_bench: Bench) -> None:
    bench, cluster = own_bench, own_bench.cluster
    primary, replica = cluster.nodes[0], cluster.nodes[3]
    log = next(
        log for log in bench.logs("t", 12, offset_assignment="dense") if cluster.owner(log.stream) is primary
    )

    async def work() -> None:
        for number in range(5):
            await produced(log, b"%d" % number)
        written = int(primary.info("replication", "master_repl_offset"))
        await until(lambda: int(replica.info("replication", "slave_repl_offset")) >= written)
        replica.process.send_signal(signal.SIGSTOP)
        try:
            # More than the sockets buffer, so that the last batches never reach the replica.
            for _ in range(60):
                lost = await produced(log, b"x" * 1_000_000)
            assert log.cached(lost.base_offset, ALL, None, zstd=True)
        finally:
            primary.kill()
            replica.process.send_signal(signal.SIGCONT)
        await until(lambda: log.links.server.address.port == replica.port)
        assert log.cached(lost.base_offset, ALL, None, zstd=True) is None
        with pytest.raises(OffsetOutOfRange):
            await read_log(log, lost.base_offset + 1, ALL)
        end = (await log.bounds()).log_end
        assert log.ends.log_end == end <= lost.base_offset
        assert (await produced(log, b"after")).base_offset == end
        values = await values_of(log)
        assert len(values) == end + 1
        assert (values[:5], values[-1]) == ([b"%d" % number for number in range(5)], b"after")

    bench.run(work())


def test_a_slot_that_stays_half_moved_is_a_retriable_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_links, "SERVED_TIMEOUT_S", 0.1)
    log = bench.logs("t", 1)[0]
    steps = bench.cluster.migrating(log.stream, bench.cluster.other_than_owner(log.stream))

    async def work() -> None:
        await produced(log, b"first")
        for _ in range(2):
            next(steps)
        outcomes = await asyncio.gather(*(produced(log, b"%d" % n) for n in range(4)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SlotUnavailable] * 4
        assert error_code_of(outcomes[0]) == ErrorCode.not_leader_or_follower
        for _ in steps:
            pass
        await produced(log, b"last")
        assert await values_of(log) == [b"first", b"last"]

    bench.run(work())


def test_a_commit_holds_up_nobody_while_its_slot_moves(bench: Bench) -> None:
    log = bench.logs("t", 1)[0]
    marker = ControlMarker(7, 0, committed=True, coordinator_epoch=0)

    async def work() -> None:
        await append_own(log, RECORD, ProducerSequence(7, 0, 0, transactional=True))
        next(steps := bench.cluster.migrating(log.stream, bench.cluster.other_than_owner(log.stream)))
        await asyncio.gather(awaited(partial(log.mark, marker)), produced(log, b"a"), produced(log, b"b"))
        list(steps)

    bench.run(work())


async def test_credentials_are_used_on_every_node(redis_cluster: RedisCluster, prefix: str) -> None:
    for node in redis_cluster.nodes:
        node.client.execute_command("ACL", "SETUSER", "ada", "on", ">p@ss", "~*", "&*", "+@all")
    url = redis_cluster.url.replace("redis://", "redis://ada:p%40ss@")
    store = await Store.open(url, Keyspace(f"users{prefix}"))
    topic = await store.catalogue.create("t", 12)
    await asyncio.gather(*(produced(store.logs.get(topic, number), b"v") for number in range(12)))
    users = [
        client["user"]
        for node in redis_cluster.nodes
        for client in node.client.client_list()
        if client["name"].startswith("korvet-")
    ]
    assert users == ["ada"] * 2 * len(redis_cluster.nodes)
    await store.close()


async def compacted(bench: Bench, log: PartitionLog) -> int:
    rules = CompactionRules(86_400_000, 0, None, 0.0)
    return await Compactor(bench.store.commands, log, Pace(1e12), 1 << 27).compact(rules, 1_800_000_000_000)


def test_compaction_stays_in_its_slot(bench: Bench) -> None:
    logs = bench.logs("t", 6, configs={"cleanup.policy": "compact"})
    for log in logs:
        for number in range(5):
            bench.run(produced(log, *(b"%d" % each for each in range(100 * number, 100 * number + 100))))
        bench.cluster.call(log.stream, "XGROUP", "CREATE", log.stream, "g", "0")
        bench.cluster.call(
            log.stream, "XREADGROUP", "GROUP", "g", "c", "COUNT", 50, "STREAMS", log.stream, ">"
        )
        assert bench.run(compacted(bench, log)) == 499
        assert bench.run(values_of(log)) == [b"499"]
        assert bench.cluster.call(log.stream, "XPENDING", log.stream, "g")["pending"] == 50
        left = set(bench.cluster.owner(log.stream).client.keys(f"*{log.stream.decode()}*"))
        assert left == set(log.keys[:3])  # only topics of coordinators have the newest entry per key
    assert {bench.cluster.owner(log.stream) for log in logs} == set(bench.cluster.nodes)


def test_compaction_while_the_slot_moves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_links, "SERVED_TIMEOUT_S", 0.1)
    (log,) = bench.logs("t", 1, configs={"cleanup.policy": "compact"})
    bench.run(produced(log, *(b"%d" % number for number in range(300))))
    removed = halves = 0
    for _ in bench.cluster.migrating(log.stream, bench.cluster.other_than_owner(log.stream)):
        try:
            removed += bench.run(compacted(bench, log))
        except SlotUnavailable:
            # Some keys are on the old node, some on the new one.
            halves += 1
    bench.run(produced(log, b"newest"))
    removed += bench.run(compacted(bench, log))
    assert removed == 300
    assert halves
    assert bench.run(values_of(log)) == [b"newest"]
    assert set(bench.cluster.owner(log.stream).client.keys(f"*{log.stream.decode()}*")) == set(log.keys[:3])
