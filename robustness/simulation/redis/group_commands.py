"""Commands on the consumer groups of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from robustness.simulation.redis.registry import command
from robustness.simulation.redis.stream_commands import bounds, entry_of, id_of, stream_information
from robustness.simulation.redis.streams import HIGHEST, UNKNOWN, Group, Id, Pending, Stream, after, text_of
from robustness.simulation.redis.values import OK, SYNTAX_ERROR, Fault, integer_of

if TYPE_CHECKING:
    from robustness.simulation.redis.values import Database

Args = list[bytes]


@command("XGROUP", least=2, writes=True)
def group(db: Database, args: Args) -> Any:
    kind, key = args[0].upper(), args[1]
    stream = db.get(key, Stream)
    makes = any(each.upper() == b"MKSTREAM" for each in args[4:])
    if stream is None:
        if kind != b"CREATE" or not makes:
            raise Fault(
                "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to "
                "use the MKSTREAM option to create an empty stream automatically."
            )
        stream = Stream()
    name = args[2]
    if kind == b"CREATE":
        created = Group(*_position(stream, args[3:]))
        if name in stream.groups:
            raise Fault("BUSYGROUP Consumer Group name already exists")
        stream.groups[name] = created
        db.put(key, stream)
        return OK
    if kind == b"DESTROY":
        return int(stream.groups.pop(name, None) is not None)
    found = stream.groups.get(name)
    if found is None:
        raise Fault(f"NOGROUP No such consumer group '{name.decode()}' for key name '{key.decode()}'")
    if kind == b"SETID":
        found.last_id, found.read = _position(stream, args[3:])
        return OK
    if kind == b"CREATECONSUMER":
        if args[3] in found.consumers:
            return 0
        found.consumers[args[3]] = [db.now_ms, -1]
        return 1
    if kind == b"DELCONSUMER":
        mine = [entry for entry, pending in found.pending.items() if pending.consumer == args[3]]
        for entry in mine:
            del found.pending[entry]
        found.consumers.pop(args[3], None)
        return len(mine)
    raise Fault(SYNTAX_ERROR)


def _position(stream: Stream, args: Args) -> tuple[Id, int]:
    """The last delivered ID and the entries read of XGROUP CREATE and SETID."""
    entry = stream.last_id if args[0] == b"$" else id_of(args[0])
    read = UNKNOWN
    for at, option in enumerate(args):
        if option.upper() == b"ENTRIESREAD":
            read = integer_of(args[at + 1])
    if read < UNKNOWN:
        raise Fault("ERR value for ENTRIESREAD must be positive or -1")
    return entry, read


@command("XINFO", least=2)
def information(db: Database, args: Args) -> list[Any]:
    kind = args[0].upper()
    stream = db.get(args[1], Stream)
    if stream is None:
        raise Fault("ERR no such key")
    if kind == b"STREAM":
        return stream_information(stream)
    if kind == b"GROUPS":
        # In the order of their names, as Redis keeps them.
        return [_group_information(stream, name) for name in sorted(stream.groups)]
    found = stream.groups.get(args[2])
    if found is None:
        raise Fault(f"NOGROUP No such consumer group '{args[2].decode()}' for key name '{args[1].decode()}'")
    return [_consumer_information(db, found, name) for name in sorted(found.consumers)]


def _group_information(stream: Stream, name: bytes) -> list[Any]:
    found = stream.groups[name]
    read = None if found.read == UNKNOWN else found.read
    parts: list[Any] = [b"name", name, b"consumers", len(found.consumers), b"pending", len(found.pending)]
    parts += [b"last-delivered-id", text_of(found.last_id), b"entries-read", read]
    return [*parts, b"lag", stream.lag(found)]


def _consumer_information(db: Database, found: Group, name: bytes) -> list[Any]:
    seen_ms, active_ms = found.consumers[name]
    count = sum(pending.consumer == name for pending in found.pending.values())
    inactive = -1 if active_ms < 0 else db.now_ms - active_ms
    return [
        *(b"name", name, b"pending", count),
        *(b"idle", db.now_ms - seen_ms, b"inactive", inactive),
    ]


@command("XREADGROUP", least=6, writes=True)
def read_group(db: Database, args: Args) -> list[Any] | None:
    """Reads new entries (">") without BLOCK."""
    name, consumer, at = args[1], args[2], 3
    count, acknowledges = -1, False
    while (option := args[at].upper()) != b"STREAMS":
        if option == b"COUNT":
            count, at = integer_of(args[at + 1]), at + 2
        elif option == b"NOACK":
            acknowledges, at = True, at + 1
        else:
            raise Fault(SYNTAX_ERROR)
    names = args[at + 1 : at + 1 + (len(args) - at) // 2]
    replies = []
    for key, text in zip(names, args[at + 1 + len(names) :], strict=True):
        stream = db.get(key, Stream)
        found = stream.groups.get(name) if stream is not None else None
        if stream is None or found is None:
            raise Fault(
                f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}' in XREADGROUP "
                "with GROUP option"
            )
        if text != b">":
            raise Fault(SYNTAX_ERROR)
        entries = stream.between(after(found.last_id), HIGHEST, count)
        _deliver(db, stream, found, consumer, entries, acknowledges=acknowledges)
        if entries:
            replies.append([key, [entry_of(stream, entry) for entry in entries]])
    return replies or None


def _deliver(
    db: Database, stream: Stream, found: Group, consumer: bytes, entries: list[Id], *, acknowledges: bool
) -> None:
    times = found.consumers.setdefault(consumer, [db.now_ms, -1])
    times[0] = db.now_ms
    if entries:
        times[1] = db.now_ms
    for entry in entries:
        stream.advance(found, entry)
        if not acknowledges:
            found.pending[entry] = Pending(consumer, db.now_ms, 1)


@command("XACK", least=3, writes=True)
def acknowledge(db: Database, args: Args) -> int:
    stream = db.get(args[0], Stream)
    found = stream.groups.get(args[1]) if stream is not None else None
    entries = [id_of(text) for text in args[2:]]
    if found is None:
        return 0
    return sum(found.pending.pop(entry, None) is not None for entry in entries)


@command("XPENDING", least=2)
def pending_entries(db: Database, args: Args) -> list[Any]:
    stream = db.get(args[0], Stream)
    found = stream.groups.get(args[1]) if stream is not None else None
    if found is None:
        raise Fault(f"NOGROUP No such key '{args[0].decode()}' or consumer group '{args[1].decode()}'")
    entries = sorted(found.pending)
    if len(args) > 2:
        least_ms = 0
        if args[2].upper() == b"IDLE":
            least_ms, args = integer_of(args[3]), [*args[:2], *args[4:]]
        low, high = bounds(args[2], args[3])
        chosen = [
            entry
            for entry in entries
            if low <= entry <= high and db.now_ms - found.pending[entry].delivered_ms >= least_ms
        ]
        if len(args) > 5:
            chosen = [entry for entry in chosen if found.pending[entry].consumer == args[5]]
        return [
            [text_of(entry), one.consumer, db.now_ms - one.delivered_ms, one.deliveries]
            for entry in chosen[: max(integer_of(args[4]), 0)]
            for one in [found.pending[entry]]
        ]
    if not entries:
        return [0, None, None, None]
    counts: dict[bytes, int] = {}
    for pending in found.pending.values():
        counts[pending.consumer] = counts.get(pending.consumer, 0) + 1
    by_consumer = [[name, b"%d" % counts[name]] for name in sorted(counts)]
    return [len(entries), text_of(entries[0]), text_of(entries[-1]), by_consumer]


@command("XCLAIM", least=5, writes=True)
def claim(db: Database, args: Args) -> list[Any]:
    """Claims pending entries, and makes pending entries with FORCE."""
    stream = db.get(args[0], Stream)
    found = stream.groups.get(args[1]) if stream is not None else None
    if stream is None or found is None:
        raise Fault(f"NOGROUP No such key '{args[0].decode()}' or consumer group '{args[1].decode()}'")
    consumer, least_ms, entries, at = args[2], integer_of(args[3]), [], 4
    while at < len(args) and args[at][:1].isdigit():
        entries.append(id_of(args[at]))
        at += 1
    options = _claim_options(args[at:])
    delivered_ms = int(options.get(b"TIME", db.now_ms - int(options.get(b"IDLE", 0))))
    replies: list[Any] = []
    for entry in entries:
        known = found.pending.get(entry)
        if entry not in stream.fields:
            found.pending.pop(entry, None)
            continue
        if known is None:
            if b"FORCE" not in options:
                continue
            known = Pending(consumer, delivered_ms, 0)
        elif db.now_ms - known.delivered_ms < least_ms:
            continue
        just_id = b"JUSTID" in options
        deliveries = int(options.get(b"RETRYCOUNT", known.deliveries + (not just_id)))
        found.pending[entry] = Pending(consumer, delivered_ms, deliveries)
        found.consumers.setdefault(consumer, [db.now_ms, -1])[1] = db.now_ms
        replies.append(text_of(entry) if just_id else entry_of(stream, entry))
    found.consumers.setdefault(consumer, [db.now_ms, -1])[0] = db.now_ms
    if b"LASTID" in options:
        found.last_id = max(found.last_id, id_of(bytes(options[b"LASTID"])))
    return replies


def _claim_options(args: Args) -> dict[bytes, Any]:
    options: dict[bytes, Any] = {}
    at = 0
    while at < len(args):
        name = args[at].upper()
        if name in (b"FORCE", b"JUSTID"):
            options[name], at = True, at + 1
        elif name in (b"IDLE", b"TIME", b"RETRYCOUNT", b"LASTID") and at + 1 < len(args):
            options[name], at = args[at + 1], at + 2
        else:
            raise Fault(f"ERR Unrecognized XCLAIM option '{args[at].decode()}'")
    return options
