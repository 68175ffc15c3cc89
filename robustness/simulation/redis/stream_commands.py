"""Commands on streams, except those on consumer groups."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from robustness.simulation.redis.registry import command
from robustness.simulation.redis.streams import HIGHEST, LOWEST, Id, Stream, after, before, parse, text_of
from robustness.simulation.redis.values import OK, SYNTAX_ERROR, Fault, Status, integer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from robustness.simulation.redis.values import Database

Args = list[bytes]
_ENDS: Final = {b"-": LOWEST, b"+": HIGHEST}
INVALID_ID: Final = "ERR Invalid stream ID specified as stream command argument"


def id_of(text: bytes, sequence: int = 0) -> Id:
    """The ID of an argument; `sequence` if the argument has none. Raises Fault."""
    try:
        found = parse(text, sequence)
    except ValueError:
        raise Fault(INVALID_ID) from None
    if max(found) > HIGHEST[0]:
        raise Fault(INVALID_ID)
    return found


def bounds(first: bytes, last: bytes) -> tuple[Id, Id]:
    """The first and the last ID of a range (XRANGE)."""
    return _bound(first, 0, after), _bound(last, HIGHEST[1], before)


def _bound(text: bytes, sequence: int, beside: Callable[[Id], Id]) -> Id:
    if text in _ENDS:
        return _ENDS[text]
    return beside(id_of(text[1:], sequence)) if text.startswith(b"(") else id_of(text, sequence)


def entry_of(stream: Stream, entry: Id) -> list[Any]:
    """An entry as a reply."""
    return [text_of(entry), stream.fields[entry]]


@command("XLEN", least=1)
def length(db: Database, args: Args) -> int:
    found = db.get(args[0], Stream)
    return len(found) if found else 0


@command("XADD", least=4, writes=True)
def add(db: Database, args: Args) -> bytes | None:
    at = 1
    creates = args[at].upper() != b"NOMKSTREAM"
    at += not creates
    fields = args[at + 1 :]
    if not fields or len(fields) % 2:
        raise Fault("ERR wrong number of arguments for 'xadd' command")
    stream = db.get(args[0], Stream)
    if stream is None and not creates:
        return None
    entry = _new_id(Stream() if stream is None else stream, args[at], db.now_ms)
    db.obtain(args[0], Stream).append(entry, fields)
    return text_of(entry)


def _new_id(stream: Stream, text: bytes, now_ms: int) -> Id:
    last = stream.last_id
    if text == b"*":
        return (now_ms, 0) if now_ms > last[0] else after(last)
    if text.endswith(b"-*"):
        (ms, _) = id_of(text[:-2])
        entry = (ms, last[1] + 1 if ms == last[0] else 0)
    else:
        entry = id_of(text)
    if entry == LOWEST:
        raise Fault("ERR The ID specified in XADD must be greater than 0-0")
    if entry <= last:
        raise Fault("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    return entry


@command("XRANGE", least=3)
def range_(db: Database, args: Args) -> list[Any]:
    return _range(db, args[0], args[1], args[2], args[3:], backwards=False)


@command("XREVRANGE", least=3)
def reverse_range(db: Database, args: Args) -> list[Any]:
    return _range(db, args[0], args[2], args[1], args[3:], backwards=True)


def _range(
    db: Database, key: bytes, first: bytes, last: bytes, options: Args, *, backwards: bool
) -> list[Any]:
    count = -1
    if options:
        if len(options) != 2 or options[0].upper() != b"COUNT":
            raise Fault(SYNTAX_ERROR)
        count = max(integer_of(options[1]), 0)
    low, high = bounds(first, last)
    stream = db.get(key, Stream)
    if stream is None or low > high:
        return []
    if not backwards:
        return [entry_of(stream, entry) for entry in stream.between(low, high, count)]
    found = stream.between(low, high)[::-1]
    return [entry_of(stream, entry) for entry in (found if count < 0 else found[:count])]


@command("XREAD", least=3)
def read(db: Database, args: Args) -> list[Any] | None:
    """Reads without BLOCK."""
    count, at = -1, 0
    if args[0].upper() == b"COUNT":
        count, at = integer_of(args[1]), 2
    if args[at].upper() != b"STREAMS" or (len(args) - at) % 2 == 0:
        raise Fault(SYNTAX_ERROR)
    names = args[at + 1 : at + 1 + (len(args) - at) // 2]
    replies = []
    for key, text in zip(names, args[at + 1 + len(names) :], strict=True):
        stream = db.get(key, Stream)
        if stream is None:
            continue
        low = after(stream.last_id if text == b"$" else id_of(text))
        found = [entry_of(stream, entry) for entry in stream.between(low, HIGHEST, count)]
        if found:
            replies.append([key, found])
    return replies or None


@command("XDEL", least=2, writes=True)
def delete(db: Database, args: Args) -> int:
    stream = db.get(args[0], Stream)
    entries = [id_of(text) for text in args[1:]]
    return 0 if stream is None else sum([stream.delete(entry) for entry in entries])


@command("XTRIM", least=3, writes=True)
def trim(db: Database, args: Args) -> int:
    """Trims exactly; with ~ too."""
    kind, rest = args[1].upper(), args[2:]
    if rest[0] in (b"=", b"~"):
        rest = rest[1:]
    stream = db.get(args[0], Stream)
    if kind == b"MAXLEN":
        most = integer_of(rest[0])
        return 0 if stream is None else stream.trim(max(len(stream) - most, 0))
    if kind != b"MINID":
        raise Fault(SYNTAX_ERROR)
    lowest = id_of(rest[0])
    return 0 if stream is None else stream.trim(bisect_left(stream.ids, lowest))


@command("XSETID", least=2, writes=True)
def set_id(db: Database, args: Args) -> Status:
    entry = id_of(args[1])
    options = {args[at].upper(): args[at + 1] for at in range(2, len(args) - 1, 2)}
    deleted = id_of(options[b"MAXDELETEDID"]) if b"MAXDELETEDID" in options else None
    added = integer_of(options[b"ENTRIESADDED"]) if b"ENTRIESADDED" in options else None
    if added is not None and added < 0:
        raise Fault("ERR entries_added must be positive")
    if deleted is not None and entry < deleted:
        raise Fault("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
    stream = db.get(args[0], Stream)
    if stream is None:
        raise Fault("ERR no such key")
    if entry < stream.deleted_id:
        raise Fault("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")
    if stream.ids and entry < stream.ids[-1]:
        raise Fault("ERR The ID specified in XSETID is smaller than the target stream top item")
    if stream.ids and added is not None and added < len(stream):
        raise Fault("ERR The entries_added specified in XSETID is smaller than the target stream length")
    stream.last_id = entry
    if added is not None:
        stream.added = added
    if deleted is not None and deleted != LOWEST:
        stream.deleted_id = deleted
    return OK


def stream_information(stream: Stream) -> list[Any]:
    """The reply to XINFO STREAM."""
    first = entry_of(stream, stream.ids[0]) if stream.ids else None
    last = entry_of(stream, stream.ids[-1]) if stream.ids else None
    pairs: list[tuple[bytes, Any]] = [
        (b"length", len(stream)),
        (b"radix-tree-keys", 1),
        (b"radix-tree-nodes", 2),
        (b"last-generated-id", text_of(stream.last_id)),
        (b"max-deleted-entry-id", text_of(stream.deleted_id)),
        (b"entries-added", stream.added),
        (b"recorded-first-entry-id", text_of(stream.first_id)),
        (b"groups", len(stream.groups)),
        (b"first-entry", first),
        (b"last-entry", last),
    ]
    return [part for pair in pairs for part in pair]
