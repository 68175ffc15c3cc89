"""Share sessions (KIP-932): a member names its partitions once and then only changes. No I/O.

A session belongs to a member of a group, and to the connection that used it last. ShareFetch opens it (epoch
0), ShareFetch and ShareAcknowledge continue it with the next epoch, and either closes it (epoch -1).

| event | no session | open |
|---|---|---|
| open | open, unless there are too many: SHARE_SESSION_LIMIT_REACHED | open anew |
| advance, the next epoch | SHARE_SESSION_NOT_FOUND | open |
| advance, another epoch | SHARE_SESSION_NOT_FOUND | open: INVALID_SHARE_SESSION_EPOCH |
| close | SHARE_SESSION_NOT_FOUND | closed |
| lose, of its connection | | closed |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from korvet.api.fetching.sessions import next_epoch

if TYPE_CHECKING:
    from collections.abc import Iterable

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1

SharedKey: TypeAlias = tuple[UUID | None, int]
"""ID of the topic, and partition."""


class ShareSessionError(Exception):
    """A request that continues no session. The client opens a new one."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class ShareSession:
    """What one member fetches."""

    __slots__ = ("connection", "epoch", "group", "is_open", "member", "partitions")

    def __init__(self, group: str, member: str, connection: object) -> None:
        self.group = group
        self.member = member
        self.connection = connection
        """The connection that used it last."""
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The epoch of the next request."""
        self.is_open = True
        self.partitions: dict[SharedKey, None] = {}
        """In the order in which they are looked at: those that returned records move to the end."""

    def update(self, named: Iterable[SharedKey], forgotten: Iterable[SharedKey]) -> None:
        """Apply what a request says of the partitions. Those with nothing but acknowledgements are named,
        too.
        """
        self.partitions.update(dict.fromkeys(named))
        for key in forgotten:
            self.partitions.pop(key, None)

    def move_to_end(self, key: SharedKey) -> None:
        """Look at this partition after the others."""
        if key in self.partitions:
            del self.partitions[key]
            self.partitions[key] = None


class ShareSessions:
    """The sessions of a broker, up to `slots` of them."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._sessions: dict[tuple[str, str], ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, group: str, member: str, connection: object) -> tuple[ShareSession, ShareSession | None]:
        """Open a session, in place of the member's last one. Returns both. Raises ShareSessionError."""
        key = group, member
        former = self._sessions.get(key)
        if former is None and len(self._sessions) >= self._slots:
            raise ShareSessionError(ErrorCode.share_session_limit_reached)
        if former is not None:
            former.is_open = False
        session = self._sessions[key] = ShareSession(group, member, connection)
        return session, former

    def advance(self, group: str, member: str, epoch: int, connection: object) -> ShareSession:
        """The session that a request continues. Raises ShareSessionError."""
        session = self.find(group, member)
        if session.epoch != epoch:
            raise ShareSessionError(ErrorCode.invalid_share_session_epoch)
        session.epoch = next_epoch(epoch)
        session.connection = connection
        return session

    def close(self, group: str, member: str) -> ShareSession:
        """Close a session. Raises ShareSessionError."""
        session = self.find(group, member)
        del self._sessions[group, member]
        session.is_open = False
        return session

    def lose(self, connection: object) -> list[ShareSession]:
        """Close the sessions of a connection that is gone."""
        lost = [session for session in self._sessions.values() if session.connection is connection]
        return [self.close(session.group, session.member) for session in lost]

    def find(self, group: str, member: str) -> ShareSession:
        """The session of a member. Raises ShareSessionError."""
        session = self._sessions.get((group, member))
        if session is None:
            raise ShareSessionError(ErrorCode.share_session_not_found)
        return session
