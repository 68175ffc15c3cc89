"""Two brokers with admin endpoints on a Valkey of their own, and a Prometheus that scrapes both."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from korvet.cli.client import ClientError, Cluster
from tests.support.polling import patient, until
from tests.support.ports import free_port
from tests.support.prometheus import Prometheus, program
from tests.support.redis_server import Server, server_programs
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

BROKERS = (1, 2)
FORMED_S = 30
COMMAND_S = 60


class ObservedCluster:
    """Brokers 1 and 2. `prometheus` evaluates `rules`, too."""

    def __init__(self, folder: Path, rules: Iterable[Path] = ()) -> None:
        program("prometheus")
        self.store = Server(server_programs()[0], folder)
        self.admin = {number: f"127.0.0.1:{free_port()}" for number in BROKERS}
        self.brokers = {number: self._broker(number) for number in BROKERS}
        self._prometheus: Prometheus | None = None
        try:
            for broker in self.brokers.values():
                broker.spawn()
            for broker in self.brokers.values():
                broker.wait_ready()
            until(self._formed, FORMED_S, "both brokers know each other")
            self._prometheus = Prometheus(folder / "prometheus", list(self.admin.values()), rules)
        except BaseException:
            self.discard()
            raise

    def _broker(self, number: int) -> KorvetServer:
        settings = {"admin.listen": self.admin[number]}
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return KorvetServer("--node-id", str(number), *options, redis_url=self.store.url)

    def _formed(self) -> bool:
        return all(self.live(number) == set(BROKERS) for number in BROKERS)

    def live(self, number: int) -> set[int]:
        """Returns the node IDs that a broker names."""
        try:
            with Cluster(self.brokers[number].bootstrap, timeout_s=5) as cluster:
                return {int(broker.node_id) for broker in cluster.metadata([]).brokers}
        except ClientError:
            return set()

    @property
    def prometheus(self) -> Prometheus:
        assert self._prometheus is not None
        return self._prometheus

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values() if broker.process.running)

    def described(self, group: str) -> dict[str, Any]:
        """Returns what `korvet groups describe` says about a group."""
        command = [sys.executable, "-m", "korvet", "groups", "describe", group, "--json"]
        command += ["-b", self.bootstrap.partition(",")[0], "--redis", self.store.url]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=patient(COMMAND_S), check=False
        )
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def discard(self) -> None:
        if self._prometheus is not None:
            self._prometheus.stop()
        for broker in self.brokers.values():
            broker.discard()
        self.store.stop()
