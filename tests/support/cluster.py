"""A real cluster of servers on the loopback address, with moves of its slots."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import redis

from korvet.embedded.allocator import server_environment
from korvet.embedded.binary import identify
from korvet.redis.slots import SLOTS, slot_of
from tests.support.module import module_options
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.redis_server import await_answer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_FORMED_S: Final = 30
# Silence after which the other nodes take a node for dead.
_NODE_TIMEOUT_MS: Final = 500
# The same once the cluster is formed: without replicas nothing follows from it, and tests may keep the
# machine busy.
_FAILOVER_TIMEOUT_MS: Final = 1000
_PATIENT_TIMEOUT_MS: Final = 30_000


def program_with_tls() -> str | None:
    """A server of this machine that was built with TLS, unlike the wheel's."""
    found = (shutil.which(name) for name in ("valkey-server", "redis-server"))
    return next((path for path in found if path and b"SSL_CTX_new" in Path(path).read_bytes()), None)


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates for nodes that accept TLS only: the authority's, and one with its key."""

    authority: Path
    certificate: Path

    def options(self, port: int, *, cluster: bool = True) -> list[str]:
        """The server's options; clients need no certificate. `cluster`: for a node of a cluster."""
        words = [word for line in self.lines(port) for word in f"--{line}".split()]
        return ["--port", "0", *words, *(("--tls-cluster", "yes") if cluster else ())]

    def lines(self, port: int) -> list[str]:
        """The lines of a configuration file, besides `port 0`."""
        return [
            f"tls-port {port}",
            "tls-replication yes",
            f"tls-cert-file {self.certificate}",
            f"tls-key-file {self.certificate}",
            f"tls-ca-cert-file {self.authority}",
            "tls-auth-clients no",
        ]


class ClusterNode:
    """One server of a cluster, without persistence. It has no server module if `plain`, else as
    tests/support/module.py decides.
    """

    def __init__(self, program: str, folder: Path, tls: Tls | None = None, *, plain: bool = False) -> None:
        folder.mkdir()
        self.port, self.bus_port = free_port(), free_port()
        self._command = [
            program,
            *(("--port", str(self.port)) if tls is None else tls.options(self.port)),
            *("--cluster-port", str(self.bus_port), "--bind", "127.0.0.1"),
            *("--cluster-enabled", "yes", "--cluster-node-timeout", str(_NODE_TIMEOUT_MS)),
            *("--cluster-allow-replica-migration", "no", "--repl-diskless-sync-delay", "0"),
            *("--save", "", "--dir", str(folder), "--logfile", "log"),
            *([] if plain else module_options(program)),
        ]
        self._environ = server_environment(identify(Path(program)), os.environ)
        self.url = f"{'redis' if tls is None else 'rediss'}://127.0.0.1:{self.port}"
        trusted = {} if tls is None else {"ssl_ca_certs": str(tls.authority)}
        self.client: Any = redis.Redis.from_url(self.url, **trusted)
        self.start()
        self.node_id: str = self.client.execute_command("CLUSTER MYID").decode()

    def start(self) -> None:
        """Start the node, or restart it: it knows its cluster, and has no data."""
        self.process = subprocess.Popen(self._command, env=self._environ)
        await_answer(self.process, self.client)

    def info(self, section: str, field: str) -> str:
        return str(self.client.info(section).get(field))

    def state(self) -> dict[str, str]:
        """CLUSTER INFO."""
        return dict(self.client.execute_command("CLUSTER INFO"))

    def replicates(self) -> bool:
        """Whether the node is a replica with all data of its primary."""
        return self.info("replication", "master_link_status") == "up"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class RedisCluster:
    """Primaries that share the slots evenly, and one replica each for the first primaries."""

    def __init__(
        self,
        program: str,
        folder: Path,
        primaries: int = 3,
        replicas: int = 0,
        tls: Tls | None = None,
        plain: Collection[int] = (),
    ) -> None:
        """`plain`: numbers of the nodes that have no server module, in the order in which they start."""
        self._program = program
        self._plain = plain
        self._folder = folder
        self._tls = tls
        self.nodes: list[ClusterNode] = []
        try:
            self._form(primaries, replicas)
        except BaseException:
            self.stop()
            raise

    def _form(self, primaries: int, replicas: int) -> None:
        for number in range(primaries + replicas):
            node = self._start()
            node.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(self.nodes[:primaries]):
            first, behind = number * SLOTS // primaries, (number + 1) * SLOTS // primaries
            node.client.execute_command("CLUSTER ADDSLOTSRANGE", first, behind - 1)
        self._meet(self.nodes)
        for primary, replica in zip(self.nodes, self.nodes[primaries:], strict=False):
            until(
                lambda primary=primary, replica=replica: self._replicates(replica, primary),
                _FORMED_S,
                "a replica follows its primary",
            )
        until(self.formed, _FORMED_S, "the cluster is formed")
        timeout_ms = _FAILOVER_TIMEOUT_MS if replicas else _PATIENT_TIMEOUT_MS
        for node in self.nodes:
            node.client.config_set("cluster-node-timeout", timeout_ms)

    def _start(self) -> ClusterNode:
        number = len(self.nodes)
        folder = self._folder / str(number)
        self.nodes.append(ClusterNode(self._program, folder, self._tls, plain=number in self._plain))
        return self.nodes[-1]

    def _meet(self, nodes: list[ClusterNode]) -> None:
        for node in nodes:
            if node is not self.nodes[0]:
                node.client.execute_command(
                    "CLUSTER MEET", "127.0.0.1", self.nodes[0].port, self.nodes[0].bus_port
                )

    @staticmethod
    def _replicates(replica: ClusterNode, primary: ClusterNode) -> bool:
        try:
            replica.client.execute_command("CLUSTER REPLICATE", primary.node_id)
        except redis.ResponseError:
            # The node has not learnt of the change yet.
            return False
        return replica.replicates()

    def add_primary(self) -> ClusterNode:
        """Another node, without slots."""
        node = self._start()
        self._meet([node])
        until(self.formed, _FORMED_S, "the new node is known")
        return node

    @property
    def running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.process.poll() is None]

    @property
    def url(self) -> str:
        """Names all nodes."""
        scheme, _, _ = self.nodes[0].url.partition("//")
        return f"{scheme}//" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def formed(self) -> bool:
        """Whether all running nodes know all others and serve."""
        states = [node.state() for node in self.running]
        return all(
            state["cluster_state"] == "ok" and int(state["cluster_known_nodes"]) == len(self.nodes)
            for state in states
        )

    def owner(self, key: bytes) -> ClusterNode:
        """The node that serves a key, by the view of most nodes."""
        slot = slot_of(key)
        for first, last, primary, *_ in self.running[0].client.execute_command("CLUSTER SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == primary[1])
        raise AssertionError(f"slot {slot} is nobody's")

    def other_than_owner(self, key: bytes) -> ClusterNode:
        """A node that does not serve a key."""
        owner = self.owner(key)
        return next(node for node in self.running if node is not owner)

    def call(self, key: bytes, *command: Any) -> Any:
        """A command on the node that serves a key."""
        return self.owner(key).client.execute_command(*command)

    def keys_beside(self, key: bytes, node: ClusterNode) -> set[str]:
        """The keys that a node has in the slot of a key, up to 100."""
        return set(node.client.execute_command("CLUSTER GETKEYSINSLOT", slot_of(key), 100))

    def migrating(self, key: bytes, target: ClusterNode) -> Iterator[str]:
        """Move a key's slot to another node, as operators do; yields each key before it moves.

        The key's own data comes first: other keys may be in the same slot.
        """
        source, slot = self.owner(key), slot_of(key)
        name = key.decode()
        target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.node_id)
        source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target.node_id)
        while keys := self.keys_beside(key, source):
            for moved in sorted(keys, key=lambda other: name not in other):
                yield moved
                source.client.execute_command("MIGRATE", "127.0.0.1", target.port, moved, 0, 5000)
        yield ""
        for node in (target, source):
            node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", target.node_id)
        for node in self.running:
            if node not in {target, source} and node.info("replication", "role") == "master":
                node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", target.node_id)

    def move(self, key: bytes, target: ClusterNode) -> None:
        """Move a key's slot to another node, without a stop."""
        for _ in self.migrating(key, target):
            pass

    def stop(self) -> None:
        for node in self.nodes:
            node.client.close()
            node.kill()
