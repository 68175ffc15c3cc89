"""What `korvet doctor` finds in the pending entries of Redis groups, those of share groups among them."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from korvet.outlook.findings import OK, WARNING, Finding
from korvet.redis_groups.share import EXHAUSTED, NOBODY_PREFIX, REJECTED

if TYPE_CHECKING:
    import redis

# Longer than workers usually need for an entry; the alert KorvetPendingEntries has the same limit.
_LONG_MS = 1_800_000
_DEAD = (REJECTED.encode(), EXHAUSTED.encode())


def check_pending(streams: "Mapping[bytes, redis.Redis]") -> Iterator[Finding]:
    """Check for entries that consumers have had for long, and records that wait to become dead letters."""
    count = 0
    found: list[Finding] = []
    for stream, client in sorted(streams.items(), key=lambda item: item[0]):
        # A topic or a group may be deleted meanwhile.
        with contextlib.suppress(ResponseError):
            groups: Any = client.xinfo_groups(stream)
            for group in groups:
                if group["pending"]:
                    count += group["pending"]
                    found += _of_group(client, stream, group["name"])
    yield from found
    if not found:
        yield Finding("pending entries", OK, f"{count}, none for {_LONG_MS // 60_000} min")


def _of_group(client: "redis.Redis", stream: bytes, group: bytes) -> Iterator[Finding]:
    pending: Any = client.xpending(stream, group)
    by_consumer: dict[bytes, int] = {row["name"]: row["pending"] for row in pending["consumers"]}
    subject, name = stream.decode(errors="replace"), group.decode(errors="replace")
    if dead := sum(by_consumer.get(consumer, 0) for consumer in _DEAD):
        text = f"{dead} records of group {name} wait to become dead letters; the log of a broker says why"
        yield Finding(subject, WARNING, text)
    for consumer, entries in by_consumer.items():
        if consumer.startswith(NOBODY_PREFIX.encode()):
            continue
        rows: Any = client.xpending_range(stream, group, "-", "+", 1, consumer)
        for oldest in rows:
            if oldest["time_since_delivered"] > _LONG_MS:
                since = f"{oldest['message_id'].decode()}, for {oldest['time_since_delivered'] // 60_000} min"
                text = (
                    f"{consumer.decode(errors='replace')} of group {name} has {entries} entries, the first, "
                    f"{since}; if it is gone, let others take them over (XAUTOCLAIM)"
                )
                yield Finding(subject, WARNING, text)
