"""Made-up histories for the tests of checkers: one topic `t` with one partition, unless a test says more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from robustness.checkers import check
from robustness.history import (
    UNKNOWN,
    Admin,
    Assign,
    CatchUp,
    Commit,
    NativeRead,
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
    Settle,
    Take,
    Topic,
    Truncated,
    Txn,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from robustness.history import Event

LOSSY: tuple[int, ...] = ()


class Story:
    """Collects events; every method appends those that its name says, and returns the story."""

    def __init__(self, kept_acks: Sequence[int] = (1, -1), *, compacted: bool = False, **run: Any) -> None:
        self.events: list[Event] = []
        topic = Topic(name="t", kept_acks=tuple(kept_acks), compacted=compacted)
        self.add(Run, "runner", "info", **{"topics": (topic,), **run})

    def add(self, event: type[Event], process: str, type_: str, /, **fields: Any) -> Self:
        """Append an event."""
        self.events.append(event(at=len(self.events), process=process, type=type_, **fields))  # type: ignore[arg-type]
        return self

    def send(self, value: str, process: str = "p", **fields: Any) -> Self:
        """A send begins."""
        return self.add(Send, process, "invoke", **{"topic": "t", "partition": 0, "value": value, **fields})

    def acked(self, value: str, offset: int = UNKNOWN, process: str = "p", **fields: Any) -> Self:
        """A send is acknowledged."""
        where = {"topic": "t", "partition": 0, "value": value, "offset": offset}
        return self.add(Send, process, "ok", **{**where, **fields})

    def sent(self, value: str, offset: int, process: str = "p", **fields: Any) -> Self:
        """A send and its acknowledgement."""
        return self.send(value, process, **fields).acked(value, offset, process, **fields)

    def failed(self, value: str, type_: str = "fail", **fields: Any) -> Self:
        """A send, and its failure or (`info`) unknown result."""
        self.send(value, **fields)
        return self.add(Send, "p", type_, **{"topic": "t", "partition": 0, "value": value, **fields})

    def polled(self, process: str, *records: tuple[int, str], epoch: int = UNKNOWN, **fields: Any) -> Self:
        """A consumer receives records."""
        polled = tuple(Record("t", 0, offset, value, epoch) for offset, value in records)
        return self.add(Poll, process, "ok", records=polled, **fields)

    def asks(self, process: str, group: str = "q") -> Self:
        """A member of a share group asks for records."""
        return self.add(Take, process, "invoke", group=group)

    def gets(self, process: str, *records: tuple[int, str], group: str = "q") -> Self:
        """A member of a share group has got what it asked for."""
        got = tuple(Record("t", 0, offset, value) for offset, value in records)
        return self.add(Take, process, "ok", group=group, records=got)

    def takes(self, process: str, *records: tuple[int, str]) -> Self:
        """A member of a share group asks for records, and gets them."""
        return self.asks(process).gets(process, *records)

    def settles(
        self, process: str, offset: int, value: str, outcome: str = "accept", type_: str = "ok"
    ) -> Self:
        """A member of a share group says what it did with a record, and is answered."""
        fields = {"group": "q", "record": Record("t", 0, offset, value), "outcome": outcome}
        return self.add(Settle, process, "invoke", **fields).add(Settle, process, type_, **fields)

    def assigned(self, process: str, **fields: Any) -> Self:
        """A consumer gets an assignment."""
        return self.add(Assign, process, "info", places=(Place("t", 0),), **fields)

    def truncated(self, process: str, offset: int) -> Self:
        """A consumer is told of a truncation."""
        return self.add(Truncated, process, "info", topic="t", partition=0, offset=offset)

    def txn(self, name: str, action: str, type_: str = "ok", **fields: Any) -> Self:
        """A step of a transaction, from its invocation to its completion."""
        where = {"txn": name, "transactional_id": "i", "action": action}
        self.add(Txn, "p", "invoke", **where, **fields)
        return self.add(Txn, "p", type_, **where)

    def in_txn(self, name: str, *records: tuple[int, str], end: str = "commit", type_: str = "ok") -> Self:
        """A transaction with acknowledged records."""
        self.txn(name, "begin")
        for offset, value in records:
            self.sent(value, offset, txn=name)
        return self.txn(name, end, type_)

    def commit(self, offset: int, process: str = "m", type_: str = "ok") -> Self:
        """A member of group `g` commits."""
        return self.committing(offset, process).committed(offset, process, type_)

    def committing(self, offset: int, process: str = "m") -> Self:
        """A commit begins."""
        return self.add(Commit, process, "invoke", group="g", offsets=(Place("t", 0, offset),))

    def committed(self, offset: int, process: str = "m", type_: str = "ok") -> Self:
        """A commit ends."""
        return self.add(Commit, process, type_, group="g", offsets=(Place("t", 0, offset),))

    def fetched(self, offset: int, process: str = "a") -> Self:
        """The committed offset of group `g` is fetched."""
        self.add(ReadCommit, process, "invoke", group="g")
        return self.add(ReadCommit, process, "ok", group="g", offsets=(Place("t", 0, offset),))

    def caught_up(self, type_: str = "ok", group: str = "g") -> Self:
        """The members of a group read to the end, or do not (`info`)."""
        return self.add(CatchUp, "runner", "invoke", group=group).add(CatchUp, "runner", type_, group=group)

    def redis_group(self, offset: int, pending: Sequence[int] = ()) -> Self:
        """The Redis group `g` is read."""
        where = {"group": "g", "topic": "t", "partition": 0, "offset": offset}
        return self.add(ReadNativeGroup, "a", "ok", **where, pending=tuple(pending))

    def native_sent(self, value: str, entry_id: str) -> Self:
        """A Redis client appends an entry."""
        where = {"topic": "t", "partition": 0, "value": value}
        return self.add(NativeSend, "n", "invoke", **where).add(
            NativeSend, "n", "ok", **where, entry_id=entry_id
        )

    def native_polled(self, *entries: tuple[str, str], **fields: Any) -> Self:
        """A Redis client reads entries."""
        return self.add(NativeRead, "n", "ok", topic="t", partition=0, entries=entries, **fields)

    def admin(self, action: str, type_: str = "ok", **fields: Any) -> Self:
        """A request of an administrator."""
        return self.add(Admin, "a", type_, **{"action": action, "topic": "t", "partition": 0, **fields})

    def epoch_end(self, epoch: int, answered: int, end: int) -> Self:
        """A client asks where a leader epoch ends."""
        where = {"topic": "t", "partition": 0, "epoch": epoch}
        self.add(OffsetForEpoch, "c", "invoke", **where)
        return self.add(OffsetForEpoch, "c", "ok", **where, answered=answered, end=end)

    def read_all(self, *records: tuple[int, str], complete: bool = True, **fields: Any) -> Self:
        """A final read by one reader."""
        where = {"topic": "t", "partition": 0, "records": records, "complete": complete}
        return self.add(ReadAll, "final", "ok", **{**where, **fields})

    def end(self, *records: tuple[int, str], hidden: Sequence[tuple[int, str]] = ()) -> Self:
        """The final reads. `hidden` records are not visible to readers of committed records."""
        self.read_all(*sorted((*records, *hidden)))
        return self.read_all(*records, isolation="read_committed")

    def violations(self) -> set[str]:
        """Returns the kinds that the checkers find, without notes."""
        return {found.kind for found in check(self.events) if not found.is_note}

    def notes(self) -> set[str]:
        """Returns the kinds that the checkers only report."""
        return {found.kind for found in check(self.events) if found.is_note}
