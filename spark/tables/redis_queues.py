"""The queues of share groups in Redis: pending entries of the Redis groups of the same names.

A Redis consumer `kafka:MEMBER` is a member; those named `korvet:...` stand for nobody
(docs/decisions/share-groups.md); all others are Redis workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from korvet.offsets.packing import offset_after
from korvet.spark.source.topics import load_topics
from korvet.spark.tables.queues import Mark, Queue, Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from korvet.spark.source.address import Address
    from korvet.spark.source.connection import Arguments, SourceConnection
    from korvet.spark.tables.queues import Place

_MEMBER, _NOBODY = b"kafka:", b"korvet:"
_RELEASED: Final = b"korvet:released"
_DEAD: Final = (b"korvet:rejected", b"korvet:exhausted")
# Pending entries that are looked at, the oldest first: a few ms of Redis's time.
_LISTED: Final = 10_000


def redis_queues(connection: SourceConnection, address: Address, places: Sequence[Place]) -> list[Queue]:
    """Return the queues of those partitions that exist (XINFO GROUPS, XINFO CONSUMERS, XPENDING).

    Nothing is known of a queue without a Redis group, or of which Redis refuses to tell.
    """
    topics = load_topics(connection, address)
    known = [place for place in places if place.topic in topics]
    commands: list[Arguments] = []
    for place in known:
        stream = address.stream(place.topic, place.partition)
        commands += [
            ("XINFO", "GROUPS", stream),
            ("XINFO", "CONSUMERS", stream, place.group),
            ("XPENDING", stream, place.group),
            ("XPENDING", stream, place.group, "-", "+", _LISTED),
        ]
    replies = connection.replies(commands)
    found = []
    for at, place in enumerate(known):
        answers = replies[4 * at : 4 * at + 4]
        if any(isinstance(answer, ResponseError) for answer in answers):
            found.append(Queue(*place))
            continue
        groups, consumers, summary, oldest = answers
        bias = topics[place.topic].origin(place.partition).bias
        infos = {info[b"name"]: info for info in map(_fields, groups)}
        delivered = infos[place.group.encode()][b"last-delivered-id"]
        found.append(_queue(place, offset_after(delivered, bias), bias, consumers, summary, oldest))
    return found


def _queue(
    place: Place, following: int, bias: int, consumers: Any, summary: Any, oldest: Sequence[Any]
) -> Queue:
    """following: the first offset that was never delivered."""
    pending = {name: int(count) for name, count in summary[3] or ()}
    held = {name: count for name, count in pending.items() if not name.startswith(_NOBODY)}
    left = {*held, _RELEASED}
    first, deliveries = following, 0
    for entry_id, name, _, times in reversed(oldest):
        if name in left:
            first, deliveries = offset_after(entry_id, bias) - 1, max(deliveries, times)
    is_whole = len(oldest) < _LISTED
    if not is_whole and first == following:
        first = offset_after(oldest[-1][0], bias) - 1
    workers = [
        Worker(
            name.removeprefix(_MEMBER).decode(errors="replace"),
            name.startswith(_MEMBER),
            held.get(name, 0),
            info[b"idle"],
        )
        for info in map(_fields, consumers)
        if not (name := info[b"name"]).startswith(_NOBODY)
    ]
    released = pending.get(_RELEASED, 0)
    return Queue(
        *place,
        start_offset=offset_after(oldest[0][0], bias) - 1 if oldest else following,
        first_offset=first,
        held=sum(held.values()) + released,
        in_flight=sum(held.values()),
        waiting_again=released,
        deliveries=deliveries if is_whole else None,
        dead=sum(pending.get(name, 0) for name in _DEAD),
        workers=sorted(workers),
        marks=[Mark(following, 1, 0)],
    )


def _fields(reply: Sequence[Any]) -> Mapping[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))
