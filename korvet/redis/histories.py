"""Which history of the data the links of a server are in, and what its change may lose. No I/O.

A Redis server names the history of its data by an id (master_replid). A replica has the id of its primary; a
replica that becomes a primary gets a new id, and reports up to which offset it has the former history
(second_repl_offset). A server that was restarted has a new id too.

The link for writes tells the history. All other links follow it: they are used only if they lead to the same
history while that link is up. A link that meets another history raises a doubt: the server is asked, on the
link for writes, what its history is now, and if that is no other one, all links are opened again, because
their address may lead elsewhere by now. Links that are to end do so when the server has reported how far its
history went.

| event | down | up | doubted | leaving |
|---|---|---|---|---|
| come_up, in the same history | up: FOLLOW | | | |
| come_up, has all writes of the former one | up: FOLLOW | | | |
| come_up, may lack some | up: LOSE | | | |
| go_down | | down | down | down |
| leave | LEAVE | leaving: ASK | leaving | |
| doubt, a history not met lately | | doubted: ASK | | |
| doubt, one met lately | | | | |
| report, none | | | | down: LEAVE |
| report, none as an answer to ASK | | | down: LEAVE | down: LEAVE |
| report, as before, or of a replica | | | | down: LEAVE |
| report, the same as an answer to ASK | | | down: LEAVE | down: LEAVE |
| report, a new id of the same data | | FOLLOW | up: FOLLOW | down: LEAVE |
| report, another history | | down: LEAVE | down: LEAVE | down: LEAVE |

While the link is up, `come_up` has the effects that it has while it is down.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Final

from korvet.redis.replication import parse_replication

if TYPE_CHECKING:
    from korvet.redis.replication import Replication

# How often a link must meet another history before that raises a doubt again. Links try once a second: if an
# address leads to several servers in turn, the link for writes may stay where it is.
_MEETINGS_PER_DOUBT: Final = 10


class State(enum.Enum):
    """Whether the link for writes is in the history."""

    DOWN = enum.auto()
    """It is not; the history is the last one that it was in."""
    UP = enum.auto()
    """It is in use."""
    DOUBTED = enum.auto()
    """It is in use, and the server is asked for its history, because another link has met another one."""
    LEAVING = enum.auto()
    """It is in use until the server has reported how far its history went."""


class Effect(enum.Enum):
    """What follows from an event."""

    ASK = enum.auto()
    """The server is asked for a report, on the link for writes."""
    LEAVE = enum.auto()
    """All links end, before anything else is received on the link for writes."""
    FOLLOW = enum.auto()
    """The other links follow: they end if they are in another history, or connect at once."""
    LOSE = enum.auto()
    """As FOLLOW. The data may lack writes of the former history."""


class History:
    """The history that the broker has seen last at a server."""

    __slots__ = ("_former_ids", "_met", "end", "known", "reason", "state")

    def __init__(self) -> None:
        self.known = parse_replication(b"")
        """The report with which the history's id was found; empty if the server has never reported one."""
        self.state = State.DOWN
        self.end: int | None = None
        """The replication offset of the newest write that the broker can have seen; None while the link for
        writes is in use, and if it is unknown.
        """
        self.reason = ""
        """Why links end, after LEAVE."""
        self._former_ids: frozenset[str] = frozenset()
        # How often links have met other histories since the history began.
        self._met: Counter[str] = Counter()

    @property
    def id(self) -> str:
        """The id that the history has now; empty if the server does not report it."""
        return self.known.history

    @property
    def continues_another(self) -> bool:
        """Whether the history continues that of another server."""
        return self.known.former_end >= 0

    def has_id(self, history: str) -> bool:
        """Whether this is or was the history's id."""
        return history == self.id or history in self._former_ids

    def admits(self, found: Replication) -> bool:
        """Whether a link other than that for writes may use a server that reports this."""
        return self.state is not State.DOWN and found.history == self.id

    def lacks_nothing_of(self, former: History, then: Replication) -> bool:
        """Whether the data certainly have all writes of the former history, whose server reports `then`."""
        return not may_lack(former.id, end_of(former.id, then), self.known)

    # Events

    def come_up(self, found: Replication) -> Effect:
        """The link for writes leads to a server that reports this."""
        former, end, self.end = self.id, self.end, None
        self.state = State.UP
        if found.history == former:
            return Effect.FOLLOW
        self.known, self._former_ids, self._met = found, frozenset(), Counter()
        return Effect.LOSE if former and may_lack(former, end, found) else Effect.FOLLOW

    def go_down(self) -> None:
        """The link for writes has ended, or ends now."""
        self.state = State.DOWN

    def leave(self, reason: str) -> Effect | None:
        """All links are to end: another server is to be used."""
        self.reason = reason
        before = self.state
        if before is State.DOWN:
            return Effect.LEAVE
        self.state = State.LEAVING
        return Effect.ASK if before is State.UP else None

    def doubt(self, met: Replication) -> Effect | None:
        """A link that is not admitted has met a server that reports this."""
        if self.state is not State.UP:
            return None
        self._met[met.history] += 1
        if self._met[met.history] % _MEETINGS_PER_DOUBT != 1:
            return None
        self.state, self.reason = State.DOUBTED, "its address leads to another server now"
        return Effect.ASK

    def report(self, found: Replication | None, *, asked: bool = False) -> Effect | None:
        """The server reports this on the link for writes; None if it does not answer, or refuses. `asked`:
        after ASK. An earlier report may not have what another link has met since.
        """
        if self.state is State.DOWN:
            return None
        if self.state is State.LEAVING:
            return self._leave(found)
        if found is None or found.is_replica or found.history == self.id:
            return self._leave(found) if self.state is State.DOUBTED and asked else None
        if found.former_end >= 0:
            self.reason = "the server was a replica for a moment"
            return self._leave(None)
        # The first replica has attached, or a backup, or the last replica was away for long.
        self.state = State.UP
        return self.rename(found)

    def rename(self, found: Replication) -> Effect:
        """The data that the links lead to have another id from now on."""
        self._former_ids |= {self.id}
        self.known, self._met = found, Counter()
        return Effect.FOLLOW

    def _leave(self, found: Replication | None) -> Effect:
        self.state = State.DOWN
        self.end = None if found is None else end_of(self.id, found)
        return Effect.LEAVE


def end_of(history: str, former: Replication) -> int | None:
    """The replication offset of the newest write that the primary of a history had executed when it reported
    `former`, perhaps as a replica by then; None if it does not report that offset.
    """
    if former.history == history:
        return former.offset
    if former.former_history == history and former.former_end > 0:
        return former.former_end - 1
    return None


def may_lack(history: str, end: int | None, now: Replication) -> bool:
    """Whether the server that reports `now` may lack writes of `history`, the newest of which has the
    replication offset `end` (None if that is unknown).
    """
    if now.history == history:
        return False
    return now.former_history != history or end is None or now.former_end <= end
