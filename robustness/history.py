"""The history of a run: what every client asked and was answered, one JSON object per line.

Most operations have two events of one process: `invoke`, and then `ok` (it happened), `fail` (it did not and
never will) or `info` (unknown). `at` is in nanoseconds since the start of the run, on one clock for all
processes. Every value that is sent is unique in its history, so it identifies its send. Events without a
client's call (`run`, `assign`, `truncated`, `fault`) are `info`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import msgspec

from korvet.offsets.packing import AddressError, offset_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Kind = Literal["invoke", "ok", "fail", "info"]
Isolation = Literal["read_uncommitted", "read_committed"]
Outcome = Literal["accept", "release", "reject"]

HISTORY = "history.jsonl"
"""The name of a run's file."""
# `Send.offset`, `epoch` and similar fields before they are known.
UNKNOWN = -1


class HistoryError(ValueError):
    """A line of a history can't be decoded."""


def addressed(entries: Iterable[tuple[str, str]], bias: int = 0) -> Iterator[tuple[int, str]]:
    """Yield offset and value of entries, given as ID and value. Leaves out entries that no offset names.

    Redis clients create such entries when they append more than 1,024 in a millisecond.
    """
    for entry_id, value in entries:
        try:
            offset = offset_of(entry_id, bias)
        except AddressError:
            continue
        yield offset, value


class Place(NamedTuple):
    """An offset of a partition: a position, or a committed offset."""

    topic: str
    partition: int
    offset: int = UNKNOWN
    epoch: int = UNKNOWN


class Record(NamedTuple):
    """A record that a client received. `epoch` is its batch's leader epoch, if the client shows it."""

    topic: str
    partition: int
    offset: int
    value: str
    epoch: int = UNKNOWN


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op"):
    """The fields of every event. `process` is one client, with its own position and identity."""

    at: int
    process: str
    type: Kind
    error: str | None = None
    """Kafka's name of the error, or the client's text."""


class Topic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic of a run, and which acknowledged records must survive all faults of that run."""

    name: str
    partitions: int = 1
    offsets: Literal["clock", "dense"] = "clock"
    kept_acks: tuple[int, ...] = (1, -1)
    """Values of acks whose acknowledged records may not be lost."""
    compacted: bool = False


class Run(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run"):
    """The first event: what the checkers must know about the run."""

    seed: int = 0
    topology: str = ""
    topics: tuple[Topic, ...] = ()
    kept_commits: bool = True
    """Whether acknowledged commits and ends of transactions must survive all faults."""
    kept_locks: bool = True
    """Whether locks and acknowledgements of share groups must survive all faults."""
    lock_ms: int = 0
    """How long members of share groups have records."""
    deliveries: int = 0
    """How often members of share groups get a record at most."""
    share_groups: tuple[str, ...] = ()
    """Share groups that take all records from the beginning."""
    groups: tuple[str, ...] = ()
    """Groups that read all records from the beginning and commit only what their members have polled."""
    plan: str = ""
    """The printed plan."""


class Send(Event, frozen=True, kw_only=True, omit_defaults=True, tag="send"):
    """A record to a partition. The invocation and the completion name the same value.

    The invocations of one process are in the order of its calls. `fail` only if the record can't have been
    written, for example because the client refused it or its transaction was aborted before it was sent.
    """

    topic: str
    partition: int
    value: str
    key: str | None = None
    acks: int = -1
    idempotent: bool = False
    ordered: bool = False
    """Whether the client sends each record once, in the order of its calls."""
    txn: str | None = None
    """The `Txn.txn` to which the record belongs."""
    copy_of: str | None = None
    """The value of which the record is a copy. A group copies each value once."""
    offset: int = UNKNOWN
    epoch: int = UNKNOWN


class Poll(Event, frozen=True, kw_only=True, omit_defaults=True, tag="poll"):
    """Records in the order in which the client returned them. Polls without records may be left out."""

    isolation: Isolation = "read_uncommitted"
    records: tuple[Record, ...] = ()
    positions: tuple[Place, ...] = ()
    """The positions after the poll, if known."""
    group: str | None = None
    txn: str | None = None
    """The transaction whose results depend on these records (consume, transform, produce)."""
    validates: bool = False
    """Whether the client asks OffsetForLeaderEpoch after a change of leader."""


class Assign(Event, frozen=True, kw_only=True, omit_defaults=True, tag="assign"):
    """From here on the process may start anywhere in `places`, which are all of its partitions."""

    places: tuple[Place, ...] = ()
    why: Literal["assign", "rebalance", "seek"] = "assign"
    group: str | None = None


class Truncated(Event, frozen=True, kw_only=True, omit_defaults=True, tag="truncated"):
    """The client was told that the log ends, or has other records, from `offset` on."""

    topic: str
    partition: int
    offset: int


class Commit(Event, frozen=True, kw_only=True, omit_defaults=True, tag="commit"):
    """Offsets that a member commits, outside of transactions. The completion repeats the offsets."""

    group: str
    offsets: tuple[Place, ...]


class ReadCommit(Event, frozen=True, kw_only=True, omit_defaults=True, tag="read_commit"):
    """Committed offsets as OffsetFetch with require_stable reports them; `UNKNOWN` if there is none."""

    group: str
    offsets: tuple[Place, ...] = ()


class ReadNativeGroup(Event, frozen=True, kw_only=True, omit_defaults=True, tag="read_native_group"):
    """The Redis group of a name, after all commits have been answered and nobody consumes.

    `offset` follows the last delivered entry that has no pending entry before it; `pending` has the offsets
    of pending entries.
    """

    group: str
    topic: str
    partition: int
    offset: int = UNKNOWN
    pending: tuple[int, ...] = ()


class Take(Event, frozen=True, kw_only=True, omit_defaults=True, tag="take"):
    """Records that a member of a share group asks for. `ok`: it has a lock on each of them."""

    group: str
    records: tuple[Record, ...] = ()
    native: bool = False
    """Whether a Redis client takes them: it may take any record that nobody has a lock on."""


class Settle(Event, frozen=True, kw_only=True, omit_defaults=True, tag="settle"):
    """What a member of a share group says of a record that it has taken."""

    group: str
    record: Record
    outcome: Outcome


class Txn(Event, frozen=True, kw_only=True, omit_defaults=True, tag="txn"):
    """A step of a transaction. `txn` is unique in the history, unlike `transactional_id`.

    `commit` that fails means aborted; `commit` or `abort` without `ok` and `fail` may have either outcome.
    """

    txn: str
    transactional_id: str
    action: Literal["begin", "commit", "abort"]
    group: str | None = None
    offsets: tuple[Place, ...] = ()
    """Offsets committed with the transaction; named by the invocation of `commit` or `abort`."""


class OffsetForEpoch(Event, frozen=True, kw_only=True, omit_defaults=True, tag="offset_for_epoch"):
    """OffsetForLeaderEpoch: `epoch` is asked for; `answered` and `end` are the response."""

    topic: str
    partition: int
    epoch: int
    answered: int = UNKNOWN
    end: int = UNKNOWN


class NativeSend(Event, frozen=True, kw_only=True, omit_defaults=True, tag="native_send"):
    """An entry that a Redis client appends. Redis acknowledges it as Kafka does with acks=1."""

    topic: str
    partition: int
    value: str
    entry_id: str | None = None


class NativeRead(Event, frozen=True, kw_only=True, omit_defaults=True, tag="native_read"):
    """Entries that a Redis client reads, in order: (entry ID, value)."""

    topic: str
    partition: int
    entries: tuple[tuple[str, str], ...] = ()
    group: str | None = None


class ReadAll(Event, frozen=True, kw_only=True, omit_defaults=True, tag="read_all"):
    """The records of a partition at the end of the run, after all faults have ended: (offset, value).

    A reader may write several events, whose records follow each other; the last one has `complete`.
    """

    topic: str
    partition: int
    isolation: Isolation = "read_uncommitted"
    reader: Literal["kafka", "native"] = "kafka"
    records: tuple[tuple[int, str], ...] = ()
    complete: bool = False


class CatchUp(Event, frozen=True, kw_only=True, omit_defaults=True, tag="catch_up"):
    """The members of a group read to the end of the log, after all faults have ended. `info`: not in time."""

    group: str


class Admin(Event, frozen=True, kw_only=True, omit_defaults=True, tag="admin"):
    """A request of an administrator. Checkers know `delete_records` (new start in `offset`)."""

    action: str
    topic: str | None = None
    partition: int = UNKNOWN
    offset: int = UNKNOWN
    detail: str = ""


class Stuck(Event, frozen=True, kw_only=True, omit_defaults=True, tag="stuck"):
    """No client of a subject makes progress, although all faults have ended for a long time."""

    subject: str
    waited_s: float


class Fault(Event, frozen=True, kw_only=True, omit_defaults=True, tag="fault"):
    """The begin or the end of a fault."""

    kind: str
    target: str
    phase: Literal["begin", "end"]
    detail: str = ""


AnyEvent = (
    Run
    | Send
    | Poll
    | Assign
    | Truncated
    | Commit
    | ReadCommit
    | ReadNativeGroup
    | Take
    | Settle
    | Txn
    | OffsetForEpoch
    | NativeSend
    | NativeRead
    | ReadAll
    | CatchUp
    | Admin
    | Fault
    | Stuck
)
_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    """Returns the event's line, with its newline."""
    return _ENCODER.encode(event) + b"\n"


def decode(line: bytes) -> AnyEvent:
    """Returns the event of a line. Raises HistoryError."""
    try:
        return _DECODER.decode(line)
    except msgspec.MsgspecError as error:
        raise HistoryError(f"{error}: {line[:200]!r}") from error


class Writer:
    """Appends events to a file, each by one write, so that several processes may share the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: Event) -> None:
        """Append one event. It is in the file even if the process is killed next."""
        os.write(self._file, encode(event))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path) -> Iterator[AnyEvent]:
    """Yields the events of one file, in its order. Raises HistoryError with the line's number."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield decode(line)
            except HistoryError as error:
                raise HistoryError(f"{path.name}:{number}: {error}") from error


def write(path: Path, events: Iterable[Event]) -> None:
    """Write a whole history."""
    with path.open("wb") as file:
        file.writelines(map(encode, events))


def load(*paths: Path) -> list[AnyEvent]:
    """Returns the events of all files of one run, in the order of their time. Raises HistoryError."""
    events = [event for path in paths for event in read(path)]
    return sorted(events, key=lambda event: event.at)
