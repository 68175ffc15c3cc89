"""Kafka's verifiable producer and consumer, as processes with default settings. What they print
becomes events.

Their values are known before they are sent: all numbers behind a prefix.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

from robustness.history import Assign, Commit, Place, Poll, Record, Send, Truncated
from robustness.load.worker import Worker
from tests.support.java import JavaTools
from tests.support.processes import Child, bound_to_us

if TYPE_CHECKING:
    from pathlib import Path

    from robustness.clients import Recorder
    from robustness.plan import GroupPlan, ProducerPlan

TICK_S: Final = 0.1
# Values that count as sent before they are acknowledged.
AHEAD: Final = 5_000
STOP_TIMEOUT_S: Final = 60.0
# Kafka's defaults, which the tool changes: it does not send again.
DEFAULTS: Final = "retries=2147483647\nenable.idempotence=true\n"
LOGGING: Final = """\
Configuration:
  Appenders:
    Console:
      name: STDERR
      target: SYSTEM_ERR
      PatternLayout:
        pattern: "[%d] %p %m (%c)%n"
  Loggers:
    Root:
      level: INFO
      AppenderRef:
        - ref: STDERR
"""
# The consumer reports only in its log that it leaves a position which is not in the log.
LEFT: Final = re.compile(
    r"(Truncation detected|Fetch position .* is out of range) "
    r"for partition (?P<topic>\S+)-(?P<partition>\d+)\b"
)


class Lines:
    """The lines of a text that arrives in pieces."""

    def __init__(self) -> None:
        self._rest = ""

    def take(self, text: str) -> list[str]:
        """Returns the lines that the next piece completes."""
        *lines, self._rest = (self._rest + text).split("\n")
        return lines


class Tool(Worker):
    """A tool whose output is read while it runs."""

    def __init__(self, name: str, subject: str, tool: str, folder: Path, *arguments: str) -> None:
        super().__init__(name, subject)
        folder.mkdir(exist_ok=True)
        config = folder / "log4j2.yaml"
        config.write_text(LOGGING)
        quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        self._environ = {**os.environ, "JAVA_TOOL_OPTIONS": f"{quick} -Dlog4j2.configurationFile={config}"}
        self._command = [*bound_to_us(), *JavaTools.resolve().command(tool, arguments)]
        self._log = folder / f"{name.replace('/', '-')}.log"

    def work(self) -> None:
        child = Child(self._command, self._log, self._environ)
        lines = Lines()
        try:
            with self._log.open() as output:
                while not self.closing.wait(TICK_S):
                    assert child.running, f"{self.name} ended: {child.output()[-2_000:]}"
                    self._take(lines.take(output.read()))
                child.terminate(STOP_TIMEOUT_S)
                self._take(lines.take(output.read()))
        finally:
            child.kill()

    def _take(self, lines: list[str]) -> None:
        for line in lines:
            if line.startswith("{"):
                fact = json.loads(line)
                self.take(fact["name"], fact)
            else:
                self.take_log(line)

    def take(self, name: str, fact: dict[str, Any]) -> None:
        """Record what the tool has reported."""

    def take_log(self, line: str) -> None:
        """Record what the tool has logged."""


class JavaProducer(Tool):
    """An idempotent producer, by Kafka's defaults, to a topic with one partition."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, plan: ProducerPlan, folder: Path, prefix: int
    ) -> None:
        (topic,) = plan.topics
        folder.mkdir(exist_ok=True)
        config = folder / "producer.properties"
        config.write_text(DEFAULTS)
        super().__init__(
            plan.name,
            plan.name,
            "verifiable-producer",
            folder,
            *("--command-config", str(config)),
            *("--bootstrap-server", bootstrap, "--topic", topic, "--value-prefix", str(prefix)),
            *("--throughput", str(plan.rate_per_s), "--acks", "-1"),
        )
        self._record, self._prefix, self._topic = recorder, prefix, topic
        self._invoked = 0
        self._answered: set[int] = set()
        self._sent = 0

    def work(self) -> None:
        self._invoke(AHEAD)
        super().work()
        for number in range(self._invoked):
            if number not in self._answered:
                self._complete(number, "info" if number < self._sent else "fail", error="no answer")

    def _fields(self, number: int) -> dict[str, Any]:
        return {
            "topic": self._topic,
            "partition": 0,
            "value": f"{self._prefix}.{number}",
            "idempotent": True,
        }

    def _invoke(self, end: int) -> None:
        for number in range(self._invoked, end):
            self._record.add(Send, self.name, "invoke", **self._fields(number))
        self._invoked = max(self._invoked, end)

    def _complete(self, number: int, type_: str, **fields: Any) -> None:
        self._answered.add(number)
        self._record.add(Send, self.name, type_, **self._fields(number), **fields)

    def take(self, name: str, fact: dict[str, Any]) -> None:
        if name == "tool_data":
            self._sent = int(fact["sent"])
        elif name in ("producer_send_success", "producer_send_error"):
            number = int(fact["value"].rpartition(".")[2])
            self._invoke(number + AHEAD)
            if name == "producer_send_success":
                self._complete(number, "ok", offset=fact["offset"])
                self.progress += 1
            else:
                self._complete(number, "info", error=fact["exception"])


class JavaMember(Tool):
    """A member of a group that commits after each poll."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, plan: GroupPlan, number: int, folder: Path
    ) -> None:
        (topic,) = plan.topics
        super().__init__(
            f"{plan.name}/{number}",
            plan.name,
            "verifiable-consumer",
            folder,
            *("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", plan.name),
            *("--group-protocol", plan.protocol.upper(), "--verbose"),
        )
        self._record, self._group = recorder, plan.name
        self._assigned: set[tuple[str, int]] = set()
        self._polled: list[Record] = []
        self._positions: dict[tuple[str, int], int] = {}

    def take(self, name: str, fact: dict[str, Any]) -> None:
        match name:
            case "record_data":
                self._polled.append(Record(fact["topic"], fact["partition"], fact["offset"], fact["value"]))
            case "records_consumed":
                fields = {"group": self._group, "validates": True}
                self._record.add(Poll, self.name, "ok", records=tuple(self._polled), **fields)
                self._positions |= {(each.topic, each.partition): each.offset + 1 for each in self._polled}
                self.progress += len(self._polled)
                self._polled = []
            case "offsets_committed":
                places = tuple(sorted(Place(*_partition(each), each["offset"]) for each in fact["offsets"]))
                fields = {"group": self._group, "offsets": places}
                self._record.add(Commit, self.name, "invoke", **fields)
                self._record.add(Commit, self.name, "ok" if fact["success"] else "info", **fields)
            case "partitions_assigned":
                self._assigned |= set(map(_partition, fact["partitions"]))
                self._note_assignment("rebalance")
            case "partitions_revoked":
                self._assigned -= set(map(_partition, fact["partitions"]))
                self._note_assignment("rebalance")
            case _:
                pass

    def _note_assignment(self, why: str) -> None:
        places = tuple(Place(*partition) for partition in sorted(self._assigned))
        self._record.add(Assign, self.name, "info", places=places, why=why, group=self._group)

    def take_log(self, line: str) -> None:
        found = LEFT.search(line)
        if found is not None:
            partition = (found["topic"], int(found["partition"]))
            position = self._positions.pop(partition, 0)
            where = {"topic": partition[0], "partition": partition[1], "offset": position}
            self._record.add(Truncated, self.name, "info", **where)
            self._note_assignment("seek")


def _partition(fact: dict[str, Any]) -> tuple[str, int]:
    return fact["topic"], fact["partition"]
