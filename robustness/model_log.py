"""A tiny correct broker that writes the history of its clients: two topics, one of which may lose entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from korvet.offsets.packing import entry_id
from robustness.history import (
    UNKNOWN,
    Assign,
    Commit,
    Fault,
    NativeSend,
    OffsetForEpoch,
    Place,
    Poll,
    ReadAll,
    ReadCommit,
    ReadNativeGroup,
    Record,
    Run,
    Send,
    Topic,
    Truncated,
    Txn,
)

if TYPE_CHECKING:
    from robustness.dice import Dice
    from robustness.history import Event, Isolation

KEPT, LOSSY = "kept", "lossy"
GROUP = "group"
PARTITIONS = ((KEPT, 0), (KEPT, 1), (LOSSY, 0))
LOST_AT_MOST = 4


class Position(NamedTuple):
    """The next offset to read, and the epoch of the record before it."""

    offset: int
    epoch: int


ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
NOTHING = Position(UNKNOWN, UNKNOWN)


@dataclass
class Entry:
    """A record of a log."""

    offset: int
    value: str
    epoch: int
    txn: str | None


@dataclass
class Log:
    """A partition. A marker takes an offset, too."""

    entries: list[Entry] = field(default_factory=list)
    end: int = 0
    epoch: int = 1
    ends: dict[int, int] = field(default_factory=dict)
    """The end of the log after each failover, by the epoch before it."""

    def append(self, value: str, txn: str | None, gap: int) -> Entry:
        """Append a record, after `gap` offsets that stay free."""
        entry = Entry(self.end + gap, value, self.epoch, txn)
        self.entries.append(entry)
        self.end = entry.offset + 1
        return entry

    def end_of(self, epoch: int) -> int:
        """Returns the offset from which on the log may differ from that of an epoch."""
        return min((end for before, end in self.ends.items() if before >= epoch), default=self.end)


@dataclass
class Consumer:
    """A member of the group, which reads all partitions that it has been assigned."""

    name: str
    isolation: Isolation
    positions: dict[tuple[str, int], Position] = field(default_factory=dict)


class Model:
    """Takes random steps; `history` then ends with the final reads."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.events: list[Event] = []
        self.logs = {partition: Log() for partition in PARTITIONS}
        self.open: dict[str, str | None] = {"txn-a": None, "txn-b": None}
        self.committed_txns: set[str] = set()
        self.ended: set[str] = set()
        self.commits: dict[tuple[str, int], Position] = {}
        self.consumers = [Consumer("c-0", "read_committed"), Consumer("c-1", "read_committed")]
        self.serial = 0
        topics = (Topic(name=KEPT, partitions=2), Topic(name=LOSSY, offsets="dense", kept_acks=()))
        self.add(Run, "runner", "info", topics=topics, groups=(GROUP,))
        self.rebalance()

    def add(self, event: type[Event], process: str, type_: str, /, **fields: Any) -> None:
        """Append an event."""
        self.events.append(event(at=len(self.events) * 1000, process=process, type=type_, **fields))  # type: ignore[arg-type]

    def step(self) -> None:
        """Do one random thing."""
        steps = (self.send, self.send, self.send_transactional, self.end_transaction, self.poll, self.poll)
        self.dice.one_of((*steps, self.commit, self.read_commit, self.rebalance, self.fail_over))()

    def fresh(self) -> str:
        """Returns a new value."""
        self.serial += 1
        return f"v{self.serial}"

    def send(self) -> None:
        """A plain, idempotent or native producer sends a record, which may get lost on the way."""
        topic, partition = self.dice.one_of(PARTITIONS)
        process = self.dice.one_of(("plain", "idempotent", "native"))
        value, outcome = self.fresh(), self.dice.one_of(("ok", "ok", "ok", "info", "fail"))
        is_written = outcome == "ok" or (outcome == "info" and self.dice.chance(0.5))
        gap = self.dice.below(3)
        if process == "native" and topic == KEPT:
            fields = {"topic": topic, "partition": partition, "value": value}
            self.add(NativeSend, process, "invoke", **fields)
            entry = self.logs[topic, partition].append(value, None, gap) if is_written else None
            known = entry_id(entry.offset) if entry and outcome == "ok" else None
            self.add(NativeSend, process, outcome, entry_id=known, **fields)
            return
        acks = -1 if process == "idempotent" else 1
        self._send(process, (topic, partition), value, outcome, is_written, gap, None, acks)

    def _send(
        self,
        process: str,
        partition: tuple[str, int],
        value: str,
        outcome: str,
        is_written: bool,
        gap: int,
        txn: str | None,
        acks: int,
    ) -> None:
        fields = {"topic": partition[0], "partition": partition[1], "value": value, "acks": acks, "txn": txn}
        fields["idempotent"] = acks == -1
        self.add(Send, process, "invoke", **fields)
        entry = self.logs[partition].append(value, txn, gap) if is_written else None
        known = {"offset": entry.offset, "epoch": entry.epoch} if entry and outcome == "ok" else {}
        self.add(Send, process, outcome, **fields, **known)

    def send_transactional(self) -> None:
        """A transaction begins if none is open, and gets a record."""
        process = self.dice.one_of(tuple(self.open))
        txn = self.open[process]
        if txn is None:
            txn = self.open[process] = f"{process}/{self.fresh()}"
            self.add(Txn, process, "ok", txn=txn, transactional_id=process, action="begin")
        partition = self.dice.one_of(((KEPT, 0), (KEPT, 1)))
        self._send(process, partition, self.fresh(), "ok", True, 0, txn, -1)

    def end_transaction(self) -> None:
        """An open transaction is committed or aborted; the client may not hear the result."""
        process = self.dice.one_of(tuple(self.open))
        txn = self.open[process]
        if txn is None:
            return
        action, is_heard = self.dice.one_of(("commit", "commit", "abort")), self.dice.chance(0.8)
        fields = {"txn": txn, "transactional_id": process, "action": action}
        self.add(Txn, process, "invoke", **fields)
        if action == "commit" and (is_heard or self.dice.chance(0.5)):
            self.committed_txns.add(txn)
        self.ended.add(txn)
        for log in self.logs.values():
            log.end += any(entry.txn == txn for entry in log.entries)
        self.open[process] = None
        self.add(Txn, process, "ok" if is_heard else "info", **fields)

    def visible(self, partition: tuple[str, int], isolation: Isolation) -> list[Entry]:
        """Returns what a consumer may read now."""
        found = []
        for entry in self.logs[partition].entries:
            if isolation == "read_committed" and entry.txn is not None:
                if entry.txn not in self.ended:
                    break
                if entry.txn not in self.committed_txns:
                    continue
            found.append(entry)
        return found

    def poll(self) -> None:
        """A consumer reads some records of each of its partitions."""
        consumer = self.dice.one_of(self.consumers)
        records: list[Record] = []
        for partition, position in consumer.positions.items():
            ahead = [e for e in self.visible(partition, consumer.isolation) if e.offset >= position.offset]
            ahead = ahead[: self.dice.between(0, 4)]
            records += [Record(*partition, e.offset, e.value, e.epoch) for e in ahead]
            if ahead:
                consumer.positions[partition] = Position(ahead[-1].offset + 1, ahead[-1].epoch)
        self.add(
            Poll,
            consumer.name,
            "ok",
            records=tuple(records),
            isolation=consumer.isolation,
            group=GROUP,
            validates=True,
        )

    def rebalance(self) -> None:
        """The partitions go to other members, which begin at the committed offsets."""
        owner = self.dice.below(3)
        for index, consumer in enumerate(self.consumers):
            mine = [p for number, p in enumerate(PARTITIONS) if owner == 2 or (number + owner) % 2 == index]
            if owner == 2 and index == 1:
                mine = []
            consumer.positions = {p: self.commits.get(p, Position(0, 0)) for p in mine}
            places = tuple(Place(*p, *position) for p, position in consumer.positions.items())
            self.add(Assign, consumer.name, "info", places=places, why="rebalance", group=GROUP)
            for partition in mine:
                self._validate(consumer, partition)

    def commit(self) -> None:
        """A member commits its positions, perhaps without an answer."""
        consumer = self.dice.one_of(self.consumers)
        if not consumer.positions:
            return
        places = tuple(Place(*partition, *position) for partition, position in consumer.positions.items())
        self.add(Commit, consumer.name, "invoke", group=GROUP, offsets=places)
        is_heard = self.dice.chance(0.8)
        if is_heard or self.dice.chance(0.5):
            self.commits.update(consumer.positions)
        self.add(Commit, consumer.name, "ok" if is_heard else "info", group=GROUP, offsets=places)

    def read_commit(self) -> None:
        """Somebody fetches the committed offsets."""
        self.add(ReadCommit, "admin", "invoke", group=GROUP)
        places = tuple(Place(*partition, *self.commits.get(partition, ())) for partition in PARTITIONS)
        self.add(ReadCommit, "admin", "ok", group=GROUP, offsets=places)

    def fail_over(self) -> None:
        """The newest entries of the lossy topic disappear; its epoch rises, and consumers are told."""
        partition = (LOSSY, 0)
        log = self.logs[partition]
        self.add(Fault, "runner", "info", kind="failover_lossy", target="primary", phase="begin")
        lost = self.dice.below(LOST_AT_MOST)
        log.entries = log.entries[: max(len(log.entries) - lost, 0)]
        log.end = log.entries[-1].offset + 1 if log.entries else 0
        before, log.epoch = log.epoch, log.epoch + 1
        log.ends[before] = log.end
        for consumer in self.consumers:
            if partition in consumer.positions:
                fields = {"topic": LOSSY, "partition": 0, "epoch": before}
                self.add(OffsetForEpoch, consumer.name, "invoke", **fields)
                self.add(
                    OffsetForEpoch, consumer.name, "ok", **fields, answered=before, end=log.end_of(before)
                )
                self._validate(consumer, partition)

    def _validate(self, consumer: Consumer, partition: tuple[str, int]) -> None:
        """Reset a position that the log has lost."""
        log, position = self.logs[partition], consumer.positions[partition]
        end = log.end_of(position.epoch)
        if position.offset > end:
            consumer.positions[partition] = Position(end, log.epoch)
            self.add(Truncated, consumer.name, "info", topic=partition[0], partition=partition[1], offset=end)

    def history(self) -> list[Event]:
        """Returns the events, with the final reads."""
        for process, txn in self.open.items():
            if txn is not None:
                fields = {"txn": txn, "transactional_id": process, "action": "abort"}
                self.ended.add(txn)
                self.add(Txn, process, "invoke", **fields)
                self.add(Txn, process, "ok", **fields)
        for topic, number in PARTITIONS:
            for isolation in ISOLATIONS:
                log = tuple((e.offset, e.value) for e in self.visible((topic, number), isolation))
                half = len(log) // 2
                self._final(topic, number, log[:half], False, isolation=isolation)
                self._final(topic, number, log[half:], True, isolation=isolation)
            native = tuple((e.offset, e.value) for e in self.logs[topic, number].entries)
            self._final(topic, number, native, True, reader="native")
        self.read_commit()
        for topic, number in PARTITIONS:
            at = self.commits.get((topic, number), NOTHING).offset
            where: dict[str, Any] = {"group": GROUP, "topic": topic, "partition": number}
            self.add(ReadNativeGroup, "admin", "ok", **where, offset=at)
        return self.events

    def _final(
        self, topic: str, number: int, records: tuple[tuple[int, str], ...], complete: bool, **reader: str
    ) -> None:
        where: dict[str, Any] = {"topic": topic, "partition": number}
        self.add(ReadAll, "final", "ok", **where, records=records, complete=complete, **reader)
