"""What a broker refuses now, why, since when and for which server: the one state that the log, /readyz,
/status, the metrics, `korvet doctor` and `korvet top` read. No I/O, and no clock: times are passed in.

A cause begins with a refusal and ends with an acceptance:

| state | refused | accepted |
|---|---|---|
| absent | refusing; logged | absent |
| refusing | refusing, newest reason | settling; absent and logged if the cause needs no settling |
| settling | refusing | absent and logged once it has settled for SETTLE_S |

Redis answers appends, commits, renewals of the lease, and the probes of WriteProbe: their errors are refusals
(`refuse_for`), and a probe that succeeds is an acceptance of all causes that Redis answers (`accept_writes`).
A server near its limit of memory refuses and accepts in turn; settling makes one cause of that. What parts of
the broker find by themselves (disk, replicas, keyspace, lease, memory that is nearly full) needs no settling.
"""

from __future__ import annotations

import enum
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.logs import fields
from korvet.redis.errors import (
    AllowanceSpent,
    KeyspaceLost,
    NoRoom,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotPersisted,
    NotPrimary,
    OutOfMemory,
    TooFewReplicas,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from korvet.redis.errors import StorageError

log = logging.getLogger(__name__)

NEARLY_FULL_PART: Final = 0.9
"""The part of maxmemory from which on the memory is nearly full."""
# How much less must be used before it is not any more, so that it does not change with each record.
_NEARLY_FULL_STEP: Final = 0.02
# How long a server must accept writes before it counts as one that does.
SETTLE_S: Final = 3.0


class Cause(enum.StrEnum):
    """Why something is refused; NEARLY_FULL warns only. The values are those of the metrics' label."""

    MEMORY = "memory"
    """Redis is at maxmemory (OOM)."""
    ALLOWANCE = "allowance"
    """Redis is at maxmemory, and what groups may write beyond it is used up."""
    DISK = "disk"
    """The embedded server's disk has only its reserve left."""
    PERSISTENCE = "persistence"
    """Redis cannot write to its disk (MISCONF)."""
    MIN_REPLICAS = "min_replicas"
    """Redis has fewer replicas than its own min-replicas-to-write (NOREPLICAS)."""
    ACKS_ALL = "acks_all"
    """Redis has fewer replicas than topics ask for (min.insync.replicas), or cannot wait for them."""
    KEYSPACE = "keyspace"
    """Redis does not hold the keyspace any more."""
    LEASE = "lease"
    """The broker's lease has expired."""
    DEMOTED = "demoted"
    """The server is a replica (READONLY): another one has taken over."""
    NEARLY_FULL = "nearly_full"
    """Redis uses most of maxmemory."""


EFFECTS: Final = {
    Cause.MEMORY: "clients' records and new topics are refused",
    Cause.ALLOWANCE: "commits and changes of groups are refused, too",
    Cause.DISK: "clients' records are refused",
    Cause.PERSISTENCE: "all writes are refused",
    Cause.MIN_REPLICAS: "all writes are refused",
    Cause.ACKS_ALL: "records with acks=all are refused, and consumers do not see what replicas lack",
    Cause.KEYSPACE: "nothing is served or written",
    Cause.LEASE: "nothing is served",
    Cause.DEMOTED: "all writes are refused",
    Cause.NEARLY_FULL: "clients' records will be refused soon",
}
"""What each cause means for clients."""
REFUSING: Final = tuple(cause for cause in Cause if cause is not Cause.NEARLY_FULL)
"""The causes that refuse something."""
_BY_ERROR: Final[dict[type[StorageError], Cause]] = {
    OutOfMemory: Cause.MEMORY,
    AllowanceSpent: Cause.ALLOWANCE,
    NoRoom: Cause.DISK,
    NotPersisted: Cause.PERSISTENCE,
    TooFewReplicas: Cause.MIN_REPLICAS,
    NotEnoughReplicas: Cause.ACKS_ALL,
    NotEnoughReplicasAfterAppend: Cause.ACKS_ALL,
    KeyspaceLost: Cause.KEYSPACE,
    NotPrimary: Cause.DEMOTED,
}
# The causes that a server's answer to a write proves, and ends.
_ANSWERED: Final = frozenset(
    (Cause.MEMORY, Cause.ALLOWANCE, Cause.PERSISTENCE, Cause.MIN_REPLICAS, Cause.DEMOTED)
)
# The causes for which groups, too, are refused before anything is written.
_OF_GROUPS: Final = frozenset((Cause.ALLOWANCE, Cause.PERSISTENCE, Cause.MIN_REPLICAS))


class Refusal(msgspec.Struct):
    """A cause that lasts, and the server that it is about ("" if it is about the broker)."""

    cause: Cause
    place: str
    reason: str
    since_s: float
    """When it began, by `steady_s`."""
    batches: int = 0
    """Batches of clients that were refused for it."""
    partial: bool = False
    """Whether it concerns only some topics by their own configs, or refuses nothing yet."""
    settling_since_s: float | None = None

    def __str__(self) -> str:
        where = f"Redis at {self.place}: " if self.place else ""
        return f"{EFFECTS[self.cause]}: {where}{self.reason}"


class Refusals:
    """The causes that last now, each logged when it begins and when it ends. Use from one event loop only."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Cause, str], Refusal] = {}
        self.batches: Counter[Cause] = Counter()
        """Batches of clients that were refused since the start, by cause."""
        self.no_room: NoRoom | None = None
        """Why clients' records are refused before they are sent to Redis: the disk is short; else None."""

    def __iter__(self) -> Iterator[Refusal]:
        return iter(self._rows.values())

    def has(self, cause: Cause, place: str | None = None) -> bool:
        """Whether a cause lasts, for one server or for any."""
        if not self._rows:
            return False
        return any(row.cause is cause and place in (None, row.place) for row in self)

    def refuse(
        self, cause: Cause, reason: str, now_s: float, place: str = "", *, partial: bool = False
    ) -> None:
        """Something was refused for this cause."""
        row = self._rows.get((cause, place))
        if row is None:
            row = self._rows[cause, place] = Refusal(cause, place, reason, now_s, partial=partial)
            level = logging.CRITICAL if cause is Cause.KEYSPACE else logging.WARNING
            log.log(level, "%s", row, extra=fields(cause=cause.value, server=place))
        row.reason, row.partial, row.settling_since_s = reason, partial, None

    def short_disk(self, refusal: NoRoom | None, now_s: float) -> None:
        """The embedded server's disk has only its reserve left; None: it has room again."""
        self.no_room = refusal
        if refusal is None:
            self.accept(Cause.DISK, now_s)
        else:
            self.refuse(Cause.DISK, str(refusal), now_s)

    def used_memory(self, used: int, limit: int, now_s: float, place: str) -> None:
        """A server uses so many bytes of maxmemory (0: it has none)."""
        if limit and used >= NEARLY_FULL_PART * limit:
            reason = f"{100 * used / limit:.0f} % of maxmemory are used, {used} of {limit} bytes"
            self.refuse(Cause.NEARLY_FULL, reason, now_s, place, partial=True)
        elif used < (NEARLY_FULL_PART - _NEARLY_FULL_STEP) * limit or not limit:
            self.accept(Cause.NEARLY_FULL, now_s, place)

    def refuse_for(self, error: StorageError, now_s: float, place: str) -> None:
        """A server answered a write with this error, which may say that it accepts none."""
        cause, reason = _BY_ERROR.get(type(error)), str(error)
        if cause is Cause.MIN_REPLICAS and self.no_room is not None:
            # The embedded server has no replicas: korvet lets it ask for one while its disk is full.
            cause, reason = Cause.PERSISTENCE, "less than half of disk.reserve.bytes is left"
        if cause in _ANSWERED:
            self.refuse(cause, reason, now_s, place)

    def accept(self, cause: Cause, now_s: float, place: str = "") -> None:
        """What this cause refuses is accepted."""
        row = self._rows.get((cause, place))
        if row is None:
            return
        if cause in _ANSWERED:
            if row.settling_since_s is None:
                row.settling_since_s = now_s
            if now_s - row.settling_since_s < SETTLE_S:
                return
        del self._rows[cause, place]
        lasted_s = now_s - row.since_s
        log.warning(
            "over after %.0f s: %s; %d batches of clients were refused",
            lasted_s,
            row,
            row.batches,
            extra=fields(cause=cause.value, server=place, seconds=round(lasted_s, 3), batches=row.batches),
        )

    def accept_writes(self, now_s: float, place: str) -> None:
        """A server accepted a write that it refuses for any of the causes that it answers."""
        if self._rows:
            for cause in _ANSWERED:
                self.accept(cause, now_s, place)

    def keep_only(self, places: Collection[str], now_s: float) -> None:
        """End the causes of servers that hold no keys any more."""
        for cause, place in [key for key in self._rows if key[1] and key[1] not in places]:
            self._rows[cause, place].settling_since_s = -SETTLE_S
            self.accept(cause, now_s, place)

    def count(self, error: StorageError, place: str) -> None:
        """A batch of a client was refused with this error."""
        cause = _BY_ERROR.get(type(error))
        if cause is not None:
            self.batches[cause] += 1
            row = self._rows.get((cause, place)) or self._rows.get((cause, ""))
            if row is not None:
                row.batches += 1

    def of_groups(self, place: str) -> bool:
        """Whether a server accepts no commits and changes of groups now. They are tried again as soon as the
        server has accepted a probe.
        """
        return any(
            row.cause in _OF_GROUPS and row.place == place and row.settling_since_s is None for row in self
        )

    def __bool__(self) -> bool:
        return bool(self._rows)

    def of_writes(self, *, partial: bool) -> str:
        """The causes in one line, without those that have checks of readiness of their own; empty without
        any. `partial`: those that concern some topics only or refuse nothing yet, else the others.
        """
        own = (Cause.KEYSPACE, Cause.LEASE)
        return "; ".join(str(row) for row in self if row.partial is partial and row.cause not in own)

    def of_keyspace(self) -> str:
        """Why the keyspace counts as lost; empty if it does not."""
        return next((row.reason for row in self if row.cause is Cause.KEYSPACE), "")
