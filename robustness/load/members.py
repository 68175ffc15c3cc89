"""Members of groups, by librdkafka: they read, commit, and some of them copy what they read."""

from __future__ import annotations

import logging
import re
import syslog
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, Consumer, KafkaException, TopicPartition

from robustness.clients import record_of
from robustness.dice import Dice
from robustness.history import Assign, Commit, Place, Poll, Truncated
from robustness.load.producers import Abandoned, Consumed, Session
from robustness.load.worker import LIBRDKAFKA, REQUEST_TIMEOUT_S, Worker, as_partitions
from robustness.plan import ProducerPlan

if TYPE_CHECKING:
    from pathlib import Path

    from robustness.clients import Recorder
    from robustness.history import Record
    from robustness.plan import GroupPlan

POLL_S: Final = 0.1
POLL_RECORDS: Final = 500
HEARTBEAT_MS: Final = 500
MS_PER_S: Final = 1_000
# librdkafka reports only by this warning that it leaves a position which is not in the log.
RESET: Final = re.compile(r"(?P<topic>\S+) \[(?P<partition>\d+)\]: offset reset \(at ")
# It reports only by this debug message that it goes back because the log was truncated.
TRUNCATION: Final = re.compile(
    r"Seek (?P<topic>\S+) \[(?P<partition>\d+)\] to offset (?P<offset>\d+) .*in state validate-epoch-wait"
)


class Member:
    """A member from its start to its end: one process of the history."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, process: str, plan: GroupPlan, strategy: str
    ) -> None:
        self._record = recorder
        self._process = process
        self._plan = plan
        self._positions: dict[tuple[str, int], int] = {}
        self._assigned: set[tuple[str, int]] = set()
        # Partitions with records that the client has fetched and would not return, and where to go on.
        self._skipped: dict[tuple[str, int], int] = {}
        self._polled: list[Record] = []
        self.is_torn = False
        """Whether partitions were revoked after the last poll had returned records: others may read these
        records, or the member itself reads them again, and the group takes no offsets for them.
        """
        self._txn: str | None = None
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": plan.name,
            "group.protocol": plan.protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": plan.isolation,
            "fetch.wait.max.ms": 100,
            **LIBRDKAFKA,
            "log_level": syslog.LOG_DEBUG,
            "debug": "topic,fetch",
        }
        if plan.protocol == "classic":
            config |= {
                "session.timeout.ms": plan.session_timeout_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": strategy,
            }
        self._log = _logger(process, self, recorder.log_file(process))
        self.client = Consumer(config, logger=self._log)
        self.client.subscribe(
            list(plan.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        mine = {(each.topic, each.partition) for each in partitions}
        for partition in mine:
            self._positions.pop(partition, None)
        self._assigned |= mine
        self._note_assignment("rebalance")

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.is_torn |= bool(self._polled)
        for each in partitions:
            self._positions.pop((each.topic, each.partition), None)
            self._skipped.pop((each.topic, each.partition), None)
            self._assigned.discard((each.topic, each.partition))
        self._note_assignment("rebalance")

    @property
    def has_partitions(self) -> bool:
        """Whether the member has an assignment."""
        return bool(self._assigned)

    def _note_assignment(self, why: str) -> None:
        self._note_polled()
        places = tuple(Place(*partition) for partition in sorted(self._assigned))
        self._record.add(Assign, self._process, "info", places=places, why=why, group=self._plan.name)

    def poll(self, txn: str | None = None) -> tuple[Record, ...]:
        """Read what arrives within a moment."""
        self._txn, self.is_torn = txn, False
        records: list[Record] = []
        deadline = time.monotonic() + POLL_S
        while len(records) < POLL_RECORDS:
            message = self.client.poll(max(deadline - time.monotonic(), 0.0))
            skips = message is not None and (message.topic(), message.partition()) in self._skipped
            self._go_back()
            if message is None:
                break
            if message.error() is None and not skips:
                record = record_of(message)
                records.append(record)
                self._polled.append(record)
                self._positions[record.topic, record.partition] = record.offset + 1
        self._note_polled()
        return tuple(records)

    def _go_back(self) -> None:
        """Read on after the last record that was read."""
        asked = [TopicPartition(*each) for each, offset in self._skipped.items() if offset == OFFSET_STORED]
        # The client refuses to seek to OFFSET_STORED.
        for each in self.client.committed(asked, REQUEST_TIMEOUT_S) if asked else ():
            offset = each.offset if each.offset >= 0 else OFFSET_BEGINNING
            self._skipped[each.topic, each.partition] = offset
        for (topic, partition), offset in self._skipped.items():
            self.client.seek(TopicPartition(topic, partition, offset))
        self._skipped.clear()

    def read_again(self) -> None:
        """Go back to the committed positions."""
        self._positions.clear()
        self._skipped = dict.fromkeys(self._assigned, OFFSET_STORED)
        self._note_assignment("seek")

    def _note_polled(self) -> None:
        """Record what was read since the last time."""
        records, self._polled = tuple(self._polled), []
        if records:
            fields = {
                "isolation": self._plan.isolation,
                "group": self._plan.name,
                "validates": True,
                "txn": self._txn,
            }
            self._record.add(Poll, self._process, "ok", records=records, **fields)

    def on_truncation(self, topic: str, partition: int, offset: int) -> None:
        """The client goes on at the end of the log, which was truncated before the records that it has
        fetched. It would skip those before that end that nobody has read.
        """
        position = self._positions.get((topic, partition), OFFSET_STORED)
        if position < offset:
            self._skipped[topic, partition] = position
            return
        self._note_polled()
        where = {"topic": topic, "partition": partition, "offset": offset}
        self._record.add(Truncated, self._process, "info", **where)

    def on_reset(self, topic: str, partition: int) -> None:
        """The client goes back to the beginning of a partition, because its position is not in the log."""
        position = self._positions.pop((topic, partition), None)
        if position is not None:
            self._note_polled()
            where = {"topic": topic, "partition": partition, "offset": position}
            self._record.add(Truncated, self._process, "info", **where)
            self._note_assignment("seek")

    def places(self) -> tuple[Place, ...]:
        """Returns the positions after the records that were read."""
        return tuple(Place(*partition, offset) for partition, offset in sorted(self._positions.items()))

    def commit(self) -> None:
        """Commit the positions."""
        places = self.places()
        if not places:
            return
        fields = {"group": self._plan.name, "offsets": places}
        self._record.add(Commit, self._process, "invoke", **fields)
        try:
            answered = self.client.commit(offsets=as_partitions(places), asynchronous=False)
        except KafkaException as error:
            self._record.add(Commit, self._process, "info", **fields, error=str(error))
            return
        failed = next((each.error for each in answered or () if each.error is not None), None)
        if failed is None:
            self._record.add(Commit, self._process, "ok", **fields)
        else:
            self._record.add(Commit, self._process, "info", **fields, error=str(failed))

    def close(self) -> None:
        """Leave the group."""
        self.client.close()
        for handler in self._log.handlers:
            handler.close()


class _Moves(logging.Handler):
    """Reports messages about positions that the client leaves, on the thread that polls."""

    def __init__(self, member: Member) -> None:
        super().__init__()
        self._member = member

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if found := RESET.search(text):
            self._member.on_reset(found["topic"], int(found["partition"]))
        elif found := TRUNCATION.search(text):
            self._member.on_truncation(found["topic"], int(found["partition"]), int(found["offset"]))


def _logger(name: str, member: Member, path: Path) -> logging.Logger:
    logger = logging.Logger(name)
    logger.addHandler(_Moves(member))
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
    logger.addHandler(file)
    return logger


class CopyWorker(Worker):
    """Copies what a member reads, each poll in a transaction with the member's offsets."""

    def __init__(self, recorder: Recorder, bootstrap: str, plan: GroupPlan, number: int) -> None:
        super().__init__(f"{plan.name}/{number}", plan.name)
        assert plan.copies_to is not None
        self._recorder, self._bootstrap, self._plan = recorder, bootstrap, plan
        self._copies_to = plan.copies_to
        self._producer = ProducerPlan(
            name=f"copier-{plan.name}-{number}",
            client="confluent",
            kind="transactional",
            topics=(plan.copies_to,),
            acks=-1,
            rate_per_s=0,
            linger_ms=0,
            transaction_timeout_ms=plan.transaction_timeout_ms,
        )

    def work(self) -> None:
        number = 0
        while not self.closing.is_set():
            number += 1
            process = f"{self.name}.{number}"
            producer = f"{self._producer.name}.{number}"
            session = Session(self, self._recorder, self._bootstrap, producer, self._producer)
            member = Member(self._recorder, self._bootstrap, process, self._plan, "range")
            try:
                session.initialize()
                # After a record failed, the successor begins at the committed offsets.
                while not self.closing.is_set() and not session.failed:
                    self._copy(session, member)
            except (Abandoned, KafkaException) as error:
                session.abandon(error)
            finally:
                session.close()
                member.close()

    def _copy(self, session: Session, member: Member) -> None:
        def fill(txn: str) -> None:
            for record in member.poll(txn):
                session.send(self._copies_to, 0, "copy", record.value)
                self.progress += 1

        def consumed() -> Consumed | None:
            if member.is_torn:
                return None
            return Consumed(self._plan.name, member.places(), member.client.consumer_group_metadata())

        if not session.transaction(fill, "commit", consumed):
            member.read_again()


class MemberWorker(Worker):
    """Reads and commits at intervals, and leaves and joins at others."""

    def __init__(self, recorder: Recorder, bootstrap: str, plan: GroupPlan, number: int, seed: int) -> None:
        super().__init__(f"{plan.name}/{number}", plan.name)
        self._recorder, self._bootstrap, self._plan = recorder, bootstrap, plan
        # All members of a group must offer the same strategies.
        self._strategy = Dice(seed, plan.name).one_of(("range", "roundrobin", "cooperative-sticky"))
        # Members leave at different times.
        self._first_life_s = number * plan.restart_interval_ms / plan.members / MS_PER_S

    def work(self) -> None:
        life_s, number = self._first_life_s, 0
        while not self.closing.is_set():
            number += 1
            member = Member(
                self._recorder, self._bootstrap, f"{self.name}.{number}", self._plan, self._strategy
            )
            try:
                self._use(member, life_s)
            finally:
                member.close()
            life_s = self._plan.restart_interval_ms / MS_PER_S

    def _use(self, member: Member, life_s: float) -> None:
        """Let a member work for some time after it has got partitions, or until the end."""
        interval_s = self._plan.commit_interval_ms / MS_PER_S
        due = time.monotonic() + interval_s
        end = float("inf")
        while not self.closing.is_set() and time.monotonic() < end:
            if life_s and member.has_partitions and end == float("inf"):
                end = time.monotonic() + life_s
            self.progress += len(member.poll())
            if time.monotonic() >= due:
                member.commit()
                due = time.monotonic() + interval_s
        member.commit()
