"""Everything that a run's faults act on: data servers, brokers, and the network between them and clients."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import TYPE_CHECKING, Final

from robustness.plan import DELIVERIES, LOCK_MS
from robustness.site.topologies import TOPOLOGIES
from tests.support.clock import Clock
from tests.support.network import Network
from tests.support.polling import POLL_INTERVAL_S, until
from tests.support.ports import accepts
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from robustness.plan import Plan
    from robustness.site.topologies import Topology
    from tests.support.network import Gate

# Short times, so that brokers and members are replaced within a run.
BROKER_OPTIONS: Final = (
    "offsets.topic.num.partitions=3",
    "transaction.state.log.num.partitions=3",
    "broker.session.timeout.ms=2000",
    "redis.socket.timeout.ms=3000",
    "group.consumer.min.session.timeout.ms=6000",
    "group.consumer.session.timeout.ms=6000",
    "group.consumer.min.heartbeat.interval.ms=500",
    "group.consumer.heartbeat.interval.ms=500",
)
SHARE_OPTIONS: Final = (
    "group.share.min.session.timeout.ms=6000",
    "group.share.session.timeout.ms=6000",
    "group.share.min.heartbeat.interval.ms=500",
    "group.share.heartbeat.interval.ms=500",
    f"group.share.min.record.lock.duration.ms={LOCK_MS}",
    f"group.share.record.lock.duration.ms={LOCK_MS}",
    f"group.share.delivery.count.limit={DELIVERIES}",
)
BROKER_START_TIMEOUT_S: Final = 30.0
BROKER_STOP_TIMEOUT_S: Final = 8.0


class Broker:
    """A broker process, which clients reach through a gate."""

    def __init__(self, number: int, site: Site, settings: Sequence[str]) -> None:
        self.name = f"broker-{number}"
        self.clock = Clock(site.folder, self.name)
        # Topics set their own; this is for the records of groups and transactions.
        copies = f"min.insync.replicas={site.topology.copies}"
        options = [part for option in (*site.options, copies, *settings) for part in ("--set", option)]
        self.gate: Gate = site.network.open(lambda _: (self.name, self._server.port))
        self._server = KorvetServer(
            *("--node-id", str(number), *options),
            advertise=self.gate.address,
            redis_url=site.topology.redis_url(),
            environ=self.clock.environ,
            program=site.program,
        )
        self._server.log = site.folder / f"{self.name}.log"
        self._is_started = False
        self.is_wanted = False
        """Whether the process should run."""

    @property
    def pid(self) -> int | None:
        """The process ID while the broker runs."""
        return self._server.process.pid if self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._is_started and self._server.process.running

    @property
    def is_serving(self) -> bool:
        """Whether the broker accepts clients."""
        return self.is_running and accepts(self._server.host, self._server.port)

    @property
    def has_ended(self) -> bool:
        """Whether the process ended by itself."""
        return self.is_wanted and not self.is_running

    def use(self, environ: Mapping[str, str]) -> None:
        """Set environment variables for the next start."""
        self._server.environ |= environ

    def spawn(self) -> None:
        """Start the process if it does not run. It accepts clients when it is ready."""
        self.is_wanted = True
        if not self.is_running:
            self._server.spawn()
            self._is_started = True

    def kill(self) -> None:
        """SIGKILL."""
        self.is_wanted = False
        self._server.process.kill()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if the broker does not end soon: it may be stopped, or its servers gone."""
        self.is_wanted = False
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + BROKER_STOP_TIMEOUT_S
        while self.is_running and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        self._server.process.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.is_running:
            os.kill(self._server.process.pid, number)

    def last_words(self) -> str:
        """Wait until the process has ended by itself. Returns the end of its log."""
        until(lambda: not self.is_running, BROKER_START_TIMEOUT_S, f"{self.name} has ended")
        return self._server.tail()

    def discard(self) -> None:
        """End the process and delete its folder. Its log stays."""
        if self._is_started:
            self._server.process.kill()
        shutil.rmtree(self._server.data_dir, ignore_errors=True)


class Site:
    """The servers and brokers of a plan."""

    def __init__(self, plan: Plan, folder: Path, program: Sequence[str]) -> None:
        self.folder = folder
        self.program = program
        self.network = Network(self._names)
        self.topology: Topology = TOPOLOGIES[plan.topology](folder, self.network, plan.replica_lag_ms)
        self.brokers: dict[str, Broker] = {}
        # An earlier release without share groups refuses their options.
        self.options = (*BROKER_OPTIONS, *(SHARE_OPTIONS if plan.sharers else ()))
        self._count = plan.brokers

    def _names(self) -> dict[int, str]:
        """The names of all processes by process ID."""
        processes = [*self.topology.processes(), *list(self.brokers.values())]
        return {process.pid: process.name for process in processes if process.pid is not None}

    def start(self) -> None:
        """Start all servers and brokers, and wait until they serve."""
        self.topology.start()
        self.topology.late(self.topology.lag_ms)
        for number in range(1, self._count + 1):
            self.add_broker(number)
        self.wait_for_brokers()

    def add_broker(
        self, number: int, environ: Mapping[str, str] | None = None, settings: Sequence[str] = ()
    ) -> Broker:
        """Start one more broker, with these environment variables and further settings."""
        broker = Broker(number, self, settings)
        broker.use(environ or {})
        self.brokers[broker.name] = broker
        broker.spawn()
        return broker

    def wait_for_brokers(self) -> None:
        """Wait until all brokers that should run accept clients. Those that end start again."""
        for broker in [broker for broker in self.brokers.values() if broker.is_wanted]:
            until(lambda broker=broker: self._serves(broker), BROKER_START_TIMEOUT_S, f"{broker.name} serves")  # type: ignore[misc]

    @staticmethod
    def _serves(broker: Broker) -> bool:
        broker.spawn()
        return broker.is_serving

    def revive(self) -> Iterator[str]:
        """Start brokers again that ended by themselves, as a supervisor does. Yields their names."""
        for broker in list(self.brokers.values()):
            if broker.has_ended:
                yield broker.name
                broker.spawn()

    @property
    def bootstrap(self) -> str:
        """The addresses of the first brokers."""
        return ",".join(broker.gate.address for broker in list(self.brokers.values())[: self._count])

    def stop(self) -> None:
        """End everything."""
        for broker in self.brokers.values():
            broker.signal(signal.SIGCONT)
            broker.discard()
        self.topology.stop()
        self.network.close()
