"""Apache Kafka as the reference: one KRaft node, from the jars of the tests' Java tools."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.rig import programs
from benchmarks.rig.records import Shape, produce_requests, write_requests
from benchmarks.rig.servers import Cluster
from korvet.cluster.ids import random_uuid
from korvet.offsets.wire import uuid_text
from tests.support.java import SOURCES, JavaTools
from tests.support.polling import until
from tests.support.ports import accepts, free_port
from tests.support.processes import Child, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.rig.programs import Outcome

START_TIMEOUT_S = 60
# Rounds of sixteen requests in one warm-up step, which takes a second or two.
WARM_UP = ((Shape(100, 64 << 10), 80), (Shape(100, 16 << 10), 250), (Shape(100, 0), 1_000))
# Kafka is warm after this number of consecutive steps that take hardly less CPU time than the cheapest step
# before, or after the largest number of steps.
STEADY_SHARE = 0.9
STEADY_STEPS = 2
MOST_STEPS = 12
# Options of Kafka's start scripts.
JVM_OPTIONS = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    f"-Dlog4j2.configurationFile={SOURCES / 'log4j2.yaml'}",
)
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class KafkaMissing(Exception):
    """Kafka can't run here. The message names what is missing."""


class Kafka:
    """A broker and its controller in one process, with its own folder."""

    def __init__(self, most_steps: int = MOST_STEPS) -> None:
        """Start Kafka and warm it up, in at most `steps` steps of each kind.

        Raises KafkaMissing if Java, Maven or the jars are missing.
        """
        try:
            self.tools = JavaTools.resolve()
        except pytest.skip.Exception as reason:
            raise KafkaMissing(str(reason)) from reason
        self._folder = Path(tempfile.mkdtemp(prefix="korvet-bench-kafka-"))
        port = free_port()
        properties = self._folder / "server.properties"
        properties.write_text(
            PROPERTIES.format(port=port, controller=free_port(), folder=self._folder), encoding="utf-8"
        )
        cluster_id = uuid_text(random_uuid().bytes)
        storage = self.command("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties))
        done = run(storage, START_TIMEOUT_S)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).decode()[-500:]
            raise KafkaMissing(f"its storage cannot be formatted: {said}")
        command = self.command("kafka.Kafka", str(properties))
        self._child = Child(command, self._folder / "kafka.log")
        self.cluster = Cluster(f"127.0.0.1:{port}", {"kafka": self._child.pid})
        try:
            until(lambda: self._ready(port), START_TIMEOUT_S, "Kafka accepts connections")
            self._warm_up(most_steps)
        except BaseException:
            self.close()
            raise

    def command(self, program: str, *arguments: str) -> list[str]:
        """Returns the command that runs a class of Kafka's jars with a full-size JVM."""
        return [self.tools.java, *JVM_OPTIONS, "-cp", self.tools.class_path, program, *arguments]

    def _ready(self, port: int) -> bool:
        if not self._child.running:
            raise KafkaMissing(f"it ended with {self._child.exit_code}: {self._child.output()[-500:]}")
        return accepts("127.0.0.1", port)

    def _warm_up(self, most_steps: int) -> None:
        """Let the JVM compile the code that the measurements use, for produce and fetch."""
        topic = self.cluster.new_topic()
        address = self.cluster.bootstrap
        records = 0
        for shape, rounds in WARM_UP:
            requests = write_requests("warm-up", produce_requests(topic, 1, shape, 16))
            produce = functools.partial(programs.run, "requests", address, requests, "--rounds", rounds)
            records += self._until_steady(produce, most_steps)
            requests.unlink()
        options = ("--records", records, "--seconds", 60)
        fetch = functools.partial(programs.run, "fetch", address, topic, *options)
        self._until_steady(fetch, most_steps)
        self.cluster.drop_topic(topic)

    def _until_steady(self, step: Callable[[], Outcome], most_steps: int) -> int:
        """Repeat a step until its CPU time stops falling. Returns the records of all steps."""
        records = steady = 0
        least_s = float("inf")
        for _ in range(most_steps):
            with self.cluster.meter() as meter:
                records += step().records
            used_s = sum(meter.used.values())
            steady = steady + 1 if used_s > STEADY_SHARE * least_s else 0
            if steady == STEADY_STEPS:
                break
            least_s = min(least_s, used_s)
        return records

    def close(self) -> None:
        self._child.terminate(60)
        shutil.rmtree(self._folder, ignore_errors=True)
