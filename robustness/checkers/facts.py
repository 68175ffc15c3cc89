"""The index of a history that all checkers read: sends, transactions, reads and final reads.

The index of an event in the history is its time: later events have larger ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from typing import TYPE_CHECKING

from korvet.offsets.packing import AddressError, offset_of
from robustness.history import (
    UNKNOWN,
    Admin,
    Assign,
    Isolation,
    Kind,
    NativeSend,
    Poll,
    ReadAll,
    ReadCommit,
    Run,
    Send,
    Topic,
    Truncated,
    Txn,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from robustness.history import Event, Place

Partition = tuple[str, int]
Log = tuple[tuple[int, str], ...]


class Outcome(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Sent:
    """A record that a client sent. Its completion fills in the last fields."""

    value: str
    partition: Partition
    process: str
    acks: int
    invoked: int
    key: str | None = None
    is_idempotent: bool = False
    is_ordered: bool = False
    is_native: bool = False
    txn: str | None = None
    copy_of: str | None = None
    outcome: Kind = "info"
    done: int | None = None
    offset: int = UNKNOWN
    epoch: int = UNKNOWN

    @property
    def events(self) -> tuple[int, ...]:
        """The events of the call."""
        return (self.invoked,) if self.done is None else (self.invoked, self.done)


@dataclass(slots=True)
class Transaction:
    """A transaction, as far as its client knows."""

    name: str
    values: list[str] = field(default_factory=list)
    group: str | None = None
    offsets: tuple[Place, ...] = ()
    commit_invoked: int | None = None
    commit_done: int | None = None
    commit: Kind | None = None
    events: list[int] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """A transaction whose commit was never asked for can only be aborted."""
        if self.commit == "ok":
            return Outcome.COMMITTED
        if self.commit_invoked is None or self.commit == "fail":
            return Outcome.ABORTED
        return Outcome.UNKNOWN


@dataclass(frozen=True, slots=True)
class Read:
    """A record that a Kafka consumer has received."""

    index: int
    process: str
    partition: Partition
    offset: int
    value: str
    epoch: int
    poll: Poll


class Facts:
    """A history and its index."""

    def __init__(self, history: Iterable[Event]) -> None:
        self.history: Sequence[Event] = tuple(history)
        self.run = next((e for e in self.history if isinstance(e, Run)), _NO_RUN)
        self._topics = {topic.name: topic for topic in self.run.topics}
        self.sends: dict[str, Sent] = {}
        self.txns: dict[str, Transaction] = {}
        self.streams: dict[str, list[tuple[int, Poll | Assign | Truncated]]] = defaultdict(list)
        """Polls, assignments and truncations of each process."""
        self.unfinished: dict[tuple[Partition, str, Isolation], int] = {}
        """Final reads that have not completed, with their last event."""
        self._finals: dict[tuple[Partition, str, Isolation], Log] = {}
        self._deleted: dict[Partition, float] = defaultdict(float)
        self._deleted_topics: set[str] = set()
        self._build()

    def _build(self) -> None:
        chunks: dict[tuple[Partition, str, Isolation], list[tuple[int, str]]] = defaultdict(list)
        for index, event in enumerate(self.history):
            match event:
                case Send():
                    self._send(index, event)
                case NativeSend():
                    self._native_send(index, event)
                case Txn():
                    self._txn(index, event)
                case Poll(type="ok") | Assign() | Truncated():
                    self.streams[event.process].append((index, event))
                case ReadAll():
                    self._read_all(index, event, chunks)
                case Admin():
                    self._admin(event)
                case _:
                    pass

    def _send(self, index: int, event: Send) -> None:
        sent = self.sends.get(event.value)
        if sent is None:
            partition = (event.topic, event.partition)
            sent = Sent(event.value, partition, event.process, event.acks, index)
            sent.key, sent.is_idempotent, sent.txn = event.key, event.idempotent, event.txn
            sent.is_ordered = event.ordered or event.idempotent or event.txn is not None
            sent.copy_of = event.copy_of
            self.sends[event.value] = sent
            if event.txn is not None:
                self._transaction(event.txn).values.append(event.value)
        if event.type != "invoke":
            sent.outcome, sent.done, sent.offset, sent.epoch = event.type, index, event.offset, event.epoch

    def _native_send(self, index: int, event: NativeSend) -> None:
        partition = (event.topic, event.partition)
        sent = self.sends.setdefault(event.value, Sent(event.value, partition, event.process, 1, index))
        sent.is_native = True
        if event.type != "invoke":
            sent.outcome, sent.done = event.type, index
            sent.offset = self.offset_of(event.topic, event.entry_id)
            if event.entry_id is not None and sent.offset == UNKNOWN:
                # An entry that no offset names is not a record.
                del self.sends[event.value]

    def _transaction(self, name: str) -> Transaction:
        return self.txns.setdefault(name, Transaction(name))

    def _txn(self, index: int, event: Txn) -> None:
        txn = self._transaction(event.txn)
        txn.events.append(index)
        if event.action == "commit":
            if event.type == "invoke":
                txn.commit_invoked, txn.group, txn.offsets = index, event.group, event.offsets
            else:
                txn.commit, txn.commit_done = event.type, index

    def _read_all(
        self,
        index: int,
        event: ReadAll,
        chunks: dict[tuple[Partition, str, Isolation], list[tuple[int, str]]],
    ) -> None:
        partition = (event.topic, event.partition)
        key = (partition, event.reader, event.isolation)
        if event.type == "invoke":
            chunks[key].clear()
        chunks[key] += event.records
        if event.complete:
            self._finals[key] = tuple(chunks[key])
            self.unfinished.pop(key, None)
        else:
            self.unfinished[key] = index

    def _admin(self, event: Admin) -> None:
        if event.topic is None:
            return
        if event.action == "delete_topic":
            self._deleted_topics.add(event.topic)
        elif event.action == "delete_records" and event.type != "fail":
            partition = (event.topic, event.partition)
            until = math.inf if event.offset == UNKNOWN else event.offset
            self._deleted[partition] = max(self._deleted[partition], until)

    def topic(self, name: str) -> Topic:
        """Returns what the run says about a topic; all defaults if it says nothing."""
        return self._topics.get(name) or Topic(name=name)

    def offset_of(self, topic: str, entry_id: str | None) -> int:
        """Returns the offset of a Redis entry, or UNKNOWN if its ID stands for none."""
        if entry_id is None:
            return UNKNOWN
        try:
            return offset_of(entry_id, int(self.topic(topic).offsets == "dense"))
        except AddressError:
            return UNKNOWN

    def outcome(self, txn: str | None) -> Outcome:
        """Returns how a transaction ended. A record outside of transactions is committed."""
        return Outcome.COMMITTED if txn is None else self.txns[txn].outcome

    def is_visible(self, value: str) -> bool:
        """Whether a reader of committed records must see a value that is in the log."""
        sent = self.sends.get(value)
        return sent is None or self.outcome(sent.txn) is Outcome.COMMITTED

    def final(
        self, partition: Partition, isolation: Isolation = "read_uncommitted", reader: str = "kafka"
    ) -> Log | None:
        """Returns the records of a completed final read."""
        return self._finals.get((partition, reader, isolation))

    def log(self, partition: Partition) -> Log | None:
        """Returns the records of the completed final read that shows most of a partition."""
        everything = self.final(partition)
        return self.final(partition, "read_committed") if everything is None else everything

    @cached_property
    def partitions(self) -> list[Partition]:
        """All partitions with a completed final read."""
        return sorted({partition for partition, _, _ in self._finals})

    @cached_property
    def _survivors(self) -> dict[Partition, dict[str, int]]:
        found: dict[Partition, dict[str, int]] = {}
        for partition in self.partitions:
            log = self.log(partition)
            if log is not None:
                found[partition] = {value: offset for offset, value in log}
        return found

    @cached_property
    def committed_at_the_end(self) -> dict[Partition, dict[str, int]]:
        """value -> offset of what a reader of committed records sees at the end."""
        logs = {partition: self.final(partition, "read_committed") or () for partition in self.partitions}
        return {partition: {value: offset for offset, value in log} for partition, log in logs.items()}

    def survivors(self, partition: Partition) -> dict[str, int] | None:
        """Returns value -> offset of the records at the end; None without a completed final read."""
        return self._survivors.get(partition)

    @property
    def reads(self) -> Iterator[Read]:
        """All records that consumers received, by process, in the order in which they were received."""
        for process, stream in self.streams.items():
            for index, event in stream:
                if isinstance(event, Poll):
                    for topic, partition, offset, value, epoch in event.records:
                        yield Read(index, process, (topic, partition), offset, value, epoch, event)

    @cached_property
    def polled(self) -> dict[str, Read]:
        """The first read of each value."""
        found: dict[str, Read] = {}
        for read in self.reads:
            known = found.get(read.value)
            if known is None or read.index < known.index:
                found[read.value] = read
        return found

    @cached_property
    def last_commits(self) -> dict[tuple[str, Partition], tuple[int, int]]:
        """group and partition -> the last committed offset that anybody has fetched, and the event."""
        found = {}
        for index, event in enumerate(self.history):
            if isinstance(event, ReadCommit) and event.type == "ok":
                for place in event.offsets:
                    found[event.group, (place.topic, place.partition)] = (place.offset, index)
        return found

    @cached_property
    def highest(self) -> dict[Partition, int]:
        """The highest offset of each partition that anybody has read."""
        found: dict[Partition, int] = {}
        for read in self.reads:
            found[read.partition] = max(found.get(read.partition, UNKNOWN), read.offset)
        for partition, survivors in self._survivors.items():
            found[partition] = max(found.get(partition, UNKNOWN), *survivors.values(), UNKNOWN)
        return found

    @cached_property
    def _newest_of_key(self) -> dict[tuple[Partition, str | None], int]:
        """The highest offset at the end of each key of compacted topics."""
        found: dict[tuple[Partition, str | None], int] = {}
        for partition, survivors in self._survivors.items():
            for value, offset in survivors.items():
                sent = self.sends.get(value)
                if sent is not None and self.topic(partition[0]).compacted:
                    known = found.get((partition, sent.key), UNKNOWN)
                    found[partition, sent.key] = max(known, offset)
        return found

    def is_deleted(self, topic: str) -> bool:
        """Whether an administrator may have deleted a topic."""
        return topic in self._deleted_topics

    def readable(self, partition: Partition, isolation: Isolation) -> Iterator[tuple[int, str]]:
        """Yields the records at the end that a reader must see."""
        for value, offset in (self.survivors(partition) or {}).items():
            if isolation == "read_uncommitted" or self.is_visible(value):
                yield offset, value

    def may_be_deleted(self, partition: Partition, offset: int) -> bool:
        """Whether an administrator may have deleted a record at an offset. A failover may undo a deletion."""
        return self.is_deleted(partition[0]) or offset < self._deleted.get(partition, -math.inf)

    def may_be_removed(self, partition: Partition, offset: int, sent: Sent | None) -> bool:
        """Whether an administrator or compaction may have removed a record at an offset."""
        if self.may_be_deleted(partition, offset):
            return True
        if sent is None or not self.topic(partition[0]).compacted:
            return False
        newest = self._newest_of_key.get((partition, sent.key), UNKNOWN)
        return newest > offset or self.outcome(sent.txn) is not Outcome.COMMITTED

    def is_kept(self, sent: Sent) -> bool:
        """Whether the acknowledged record must survive."""
        return sent.acks in self.topic(sent.partition[0]).kept_acks

    def is_stable(self, topic: str) -> bool:
        """Whether consumers see only records that survive: the high watermark is what replicas have."""
        return -1 in self.topic(topic).kept_acks


_NO_RUN = Run(at=0, process="", type="info")


@cache
def short(value: str, longest: int = 60) -> str:
    """Returns a value for a message."""
    return value if len(value) <= longest else f"{value[: longest - 3]}..."
