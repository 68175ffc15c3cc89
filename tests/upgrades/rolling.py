"""Three brokers of which one after the other is replaced by another release, while clients of all kinds work.

The clients, histories and checkers are those of the robustness runs.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from robustness import plan as plans
from robustness.clients import Recorder
from robustness.history import Fault, Run, Writer
from robustness.load.administrator import create_topics
from robustness.load.final import FinalReader
from robustness.plan import GroupPlan, NativePlan, Plan, ProducerPlan, TopicPlan
from robustness.run import see_progress, workers_of
from robustness.site.site import Site
from tests.support.polling import until
from tests.support.servers import BROKER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from robustness.load.worker import Worker
    from robustness.site.site import Broker
    from tests.upgrades.releases import Release

BROKERS: Final = 3
PARTITIONS: Final = 6
NATIVE_PARTITIONS: Final = 2
# No lease, session or transaction ends because the machine is busy.
TIMEOUT_MS: Final = 120_000
SETTINGS: Final = (
    "broker.session.timeout.ms=20000",
    f"group.consumer.session.timeout.ms={TIMEOUT_MS}",
    f"group.consumer.max.session.timeout.ms={TIMEOUT_MS}",
)
# Before the first change: groups get their members, producers their ids.
WARM_UP_TIMEOUT_S: Final = 30.0
STALL_STEP_S: Final = 0.01


def make_plan() -> Plan:
    """Producers and groups of all kinds, without faults."""
    orders, sums, natives = "orders", "sums", "natives"
    producer = partial(ProducerPlan, acks=-1, transaction_timeout_ms=TIMEOUT_MS)
    group = partial(
        GroupPlan,
        restart_interval_ms=0,
        session_timeout_ms=TIMEOUT_MS,
        transaction_timeout_ms=TIMEOUT_MS,
    )
    return Plan(
        seed=1,
        duration_ms=0,
        topology="alone",
        brokers=BROKERS,
        replica_lag_ms=0,
        topics=(
            TopicPlan(orders, PARTITIONS, "clock", 1),
            TopicPlan(sums, PARTITIONS, "dense", 1, "batch"),
            TopicPlan(natives, NATIVE_PARTITIONS, "clock", 1),
            TopicPlan("copies", 1, "clock", 1),
        ),
        producers=(
            producer("idempotent", "confluent", "idempotent", (orders,), rate_per_s=120, linger_ms=0),
            producer("batches", "confluent", "idempotent", (sums,), rate_per_s=120, linger_ms=5),
            producer(
                "transactional",
                "confluent",
                "transactional",
                (sums,),
                rate_per_s=60,
                linger_ms=0,
                abort_percent=20,
            ),
            producer("mixed", "aiokafka", "idempotent", (orders, natives), rate_per_s=40, linger_ms=0),
        ),
        groups=(
            group("classic", "confluent", "classic", 2, (orders, natives), "read_uncommitted", 200),
            group("consumer", "confluent", "consumer", 2, (sums,), "read_committed", 200),
            group("asyncio", "aiokafka", "classic", 2, (orders,), "read_committed", 200),
            group("copier", "confluent", "consumer", 1, (natives,), "read_committed", 0, copies_to="copies"),
        ),
        natives=(NativePlan("native", natives, 20, None),),
        admins=(),
        faults=(),
    )


class Stalls:
    """Measures how long this process did not get a processor."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def _measure(self) -> None:
        due = time.monotonic() + STALL_STEP_S
        while not self._closing.wait(STALL_STEP_S):
            now = time.monotonic()
            self.longest_ms = max(self.longest_ms, (now - due) * 1_000)
            due = now + STALL_STEP_S

    def close(self) -> None:
        """Measure no more."""
        self._closing.set()
        self._thread.join()


class Rolling:
    """The brokers under load. Use as a context; `finish` ends the load and reads everything."""

    def __init__(self, folder: Path, first: Release) -> None:
        self._plan = make_plan()
        self.history = folder / "history.jsonl"
        self._site = Site(self._plan, folder, BROKER)
        self._writer = Writer(self.history)
        self._record = Recorder(self._writer)
        self._workers: list[Worker] = []
        self.stalls = Stalls()
        self.longest_start_ms = 0.0
        """How long a broker took at most from its start until it served."""
        self._site.topology.start()
        for number in range(1, BROKERS + 1):
            self._site.add_broker(number, first.environ, SETTINGS)
        self._site.wait_for_brokers()

    def __enter__(self) -> Rolling:
        return self

    def __exit__(self, *_: object) -> None:
        self.stalls.close()
        self._writer.close()
        self._site.stop()

    @property
    def redis_url(self) -> str:
        """The server of the brokers."""
        return self._site.topology.redis_url()

    @property
    def brokers(self) -> Sequence[Broker]:
        """All brokers."""
        return list(self._site.brokers.values())

    def start(self) -> None:
        """Start the clients, and wait until each has made progress."""
        self._record.add(Run, "runner", "info", **plans.first_event(self._plan))
        create_topics(self._site.bootstrap, self._plan.topics)
        self._workers = list(workers_of(self._plan, self._site, self._record))
        for worker in self._workers:
            worker.start()
        until(
            lambda: all(worker.progress for worker in self._workers if worker.subject),
            WARM_UP_TIMEOUT_S,
            "all clients work",
        )

    def work(self, duration_s: float) -> None:
        """Let the clients work."""
        end_s = time.monotonic() + duration_s
        until(lambda: time.monotonic() > end_s, 2 * duration_s + 1, "the time is over")

    def replace(self, release: Release, settle_s: float) -> None:
        """Replace one broker after the other. `settle_s`: the time between two of them."""
        for broker in self.brokers:
            self._note(broker.name, "begin", "leaves")
            broker.stop()
            self._note(broker.name, "end", "has left")
            self.work(settle_s)
            broker.use(release.environ)
            self._note(broker.name, "begin", f"comes as {release.name} release")
            begin_s = time.monotonic()
            broker.spawn()
            self._site.wait_for_brokers()
            self.longest_start_ms = max(self.longest_start_ms, (time.monotonic() - begin_s) * 1_000)
            self._note(broker.name, "end", "serves")
            self.work(settle_s)

    def finish(self) -> None:
        """See that all clients still make progress, end them, and read all topics and groups."""
        see_progress(self._workers, self._record)
        for worker in self._workers:
            worker.closing.set()
        for worker in self._workers:
            worker.close()
        final = FinalReader(self._record, self._site.bootstrap, self._site.topology)
        final.read(self._plan.topics, [group.name for group in self._plan.groups])

    def _note(self, name: str, phase: str, detail: str) -> None:
        self._record.add(Fault, "runner", "info", kind="replace", target=name, phase=phase, detail=detail)
