"""Members of share groups, by librdkafka: they take records, accept, release or reject them, or are slow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from korvet.cli.client import ClientError, Cluster
from korvet.cli.share_requests import offsets
from robustness.clients import record_of
from robustness.dice import Dice
from robustness.history import CatchUp, Settle, Take
from robustness.load.worker import LIBRDKAFKA, REQUEST_TIMEOUT_S, Worker
from robustness.plan import LOCK_MS, OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Message

    from robustness.clients import Recorder
    from robustness.history import Outcome, Record
    from robustness.plan import SharePlan

POLL_S: Final = 0.1
MS_PER_S: Final = 1_000
# How often a member keeps records for longer than its locks last.
SLOW: Final = 0.05
LONGER_THAN_A_LOCK_S: Final = 1.3 * LOCK_MS / MS_PER_S
POLL_RECORDS: Final = (1, 10, 500)
TYPES: Final[dict[Outcome, AcknowledgeType]] = {
    "accept": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
    "reject": AcknowledgeType.REJECT,
}


def begin_with_first_records(bootstrap: str, plan: SharePlan) -> None:
    """Let a share group begin with the first records. Raises KafkaException."""
    change = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, plan.name, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": bootstrap, **LIBRDKAFKA})
    admin.incremental_alter_configs([resource])[resource].result(REQUEST_TIMEOUT_S)


class ShareMember:
    """A member from its start to its end: one process of the history."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, process: str, plan: SharePlan, dice: Dice, most: int
    ) -> None:
        """most: records that it takes at once."""
        self._record = recorder
        self._process = process
        self._plan = plan
        self._dice = dice
        self._asks = False
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": plan.name,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": most,
            "fetch.wait.max.ms": 100,
            **LIBRDKAFKA,
        }
        self._client = ShareConsumer(config)
        self._client.subscribe(list(plan.topics))

    def take(self) -> list[tuple[Message, Record]]:
        """Take what arrives within a moment."""
        if not self._asks:
            # The client goes on asking until it gets records, also between polls.
            self._asks = True
            self._record.add(Take, self._process, "invoke", group=self._plan.name)
        messages = [message for message in self._client.poll(POLL_S) if message.error() is None]
        found = [(message, record_of(message)) for message in messages]
        if found:
            self._asks = False
            records = tuple(record for _, record in found)
            self._record.add(Take, self._process, "ok", group=self._plan.name, records=records)
        return found

    def settle(self, taken: list[tuple[Message, Record]], *, accepts_all: bool = False) -> int:
        """Say what to do with records. Returns how many of the answers are known."""
        said: list[tuple[Record, Outcome]] = []
        for message, record in taken:
            outcome: Outcome = "accept" if accepts_all else self._dice.one_of(OUTCOMES) or "release"
            said.append((record, outcome))
            self._note(record, outcome, "invoke")
            self._client.acknowledge(message, TYPES[outcome])
        unknown = "no answer"
        try:
            answers = self._client.commit_sync(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            answers, unknown = {}, str(error)
        errors = {(each.topic, each.partition): error for each, error in answers.items()}
        known = 0
        for record, outcome in said:
            error = errors.get((record.topic, record.partition), unknown)
            known += error is None
            self._note(
                record, outcome, "ok" if error is None else "info", None if error is None else str(error)
            )
        return known

    def _note(self, record: Record, outcome: Outcome, type_: str, error: str | None = None) -> None:
        fields = {"group": self._plan.name, "record": record, "outcome": outcome, "error": error}
        self._record.add(Settle, self._process, type_, **fields)

    def leave(self) -> None:
        """Leave the group. A member that is discarded without it ends without a word."""
        self._client.close()


class SharerWorker(Worker):
    """One member after the other; every second one ends without a word."""

    def __init__(self, recorder: Recorder, bootstrap: str, plan: SharePlan, number: int, seed: int) -> None:
        super().__init__(f"{plan.name}/{number}", plan.name)
        self._recorder, self._bootstrap, self._plan = recorder, bootstrap, plan
        self._dice = Dice(seed, self.name)
        # Members leave at different times.
        self._first_life_s = number * plan.restart_interval_ms / plan.members / MS_PER_S

    def work(self) -> None:
        life_s, number = self._first_life_s, 0
        while not self.closing.is_set():
            number += 1
            process = f"{self.name}.{number}"
            most = self._dice.one_of(POLL_RECORDS)
            member = ShareMember(self._recorder, self._bootstrap, process, self._plan, self._dice, most)
            self._use(member, life_s)
            if number % 2 or self.closing.is_set():
                member.leave()
            del member
            life_s = self._plan.restart_interval_ms / MS_PER_S

    def _use(self, member: ShareMember, life_s: float) -> None:
        """Let a member work for some time after it has got records, or until the end."""
        end = float("inf")
        while not self.closing.is_set() and time.monotonic() < end:
            taken = member.take()
            if not taken:
                continue
            if life_s and end == float("inf"):
                end = time.monotonic() + life_s
            if self._dice.chance(SLOW):
                self.closing.wait(LONGER_THAN_A_LOCK_S)
            self.progress += member.settle(taken)


def catch_up(
    recorder: Recorder, bootstrap: str, plan: SharePlan, partitions: Mapping[str, int], timeout_s: float
) -> None:
    """Let a new member of a group, its only one, accept all that is left, and record whether it can."""
    group = plan.name
    recorder.add(CatchUp, "runner", "invoke", group=group)
    member = ShareMember(recorder, bootstrap, f"{group}/last", plan, Dice(0, group), max(POLL_RECORDS))
    wanted = {(topic, number) for topic in plan.topics for number in range(partitions[topic])}
    deadline = time.monotonic() + timeout_s
    left: dict[tuple[str, int], int] | str = "nothing is known"
    while left and time.monotonic() < deadline:
        taken = member.take()
        if taken:
            member.settle(taken, accepts_all=True)
        else:
            left = _left(bootstrap, group, wanted)
    if left:
        recorder.add(CatchUp, "runner", "info", group=group, error=f"left after {timeout_s:g} s: {left}")
    else:
        recorder.add(CatchUp, "runner", "ok", group=group)
    member.leave()


def _left(bootstrap: str, group: str, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], int] | str:
    """How many records of each partition are left, -1 if that is not known; or why nobody tells."""
    try:
        with Cluster(bootstrap) as cluster:
            found = offsets(cluster, group)
    except ClientError as error:
        return str(error)
    lags = {place: int(found[place].lag) if place in found else -1 for place in wanted}
    return {place: lag for place, lag in lags.items() if lag}
