"""Finds out whether appends may use a server's module: asks once on each connection for writes, and after a
refusal.

Replicas need no module: they get korvet_unpack in place of the module's command.
"""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.records.kernel import pack_command
from korvet.redis.errors import AccessRefused, LinkLost, StorageError, StorageFault, domain_error

if TYPE_CHECKING:
    from korvet.redis.link import RedisLink

# Without arguments it changes nothing. A command with another meaning has another name.
_COMMAND: Final = "KORVET.PUT"

log = logging.getLogger(__name__)


class Use(enum.Enum):
    """Whether the module is used, or why not."""

    USED = enum.auto()
    NOT_LOADED = enum.auto()
    FORBIDDEN = enum.auto()
    UNKNOWN = enum.auto()
    """The server cannot be asked."""


class Verdict(msgspec.Struct, frozen=True):
    """Whether a server's module may be used."""

    use: Use
    reason: str = ""
    """Why the module is not used; empty if it is used."""


def verdict_on(reply: object) -> Verdict:
    """The verdict on a server that gave this reply, or this error, to the command."""
    match reply:
        case AccessRefused():
            return Verdict(Use.FORBIDDEN, f"{reply} (ACL rule: +korvet.put)")
        case LinkLost():
            return Verdict(Use.UNKNOWN, str(reply))
        case StorageFault():
            return Verdict(Use.NOT_LOADED, "the server module is not loaded")
    # Also a server that knows the command, and accepts no writes now.
    return Verdict(Use.USED)


async def look(link: RedisLink) -> Verdict:
    """Ask a server whether the module may be used."""
    try:
        return verdict_on(await link.call(_COMMAND))
    except StorageError as error:
        return verdict_on(error)


class ServerModule:
    """The module of one server."""

    __slots__ = ("_link", "verdict")

    def __init__(self, link: RedisLink) -> None:
        """`link` is the server's link for writes; its owner reports when it comes up and goes down."""
        self._link = link
        self.verdict: Verdict | None = None
        """None until the server has answered."""
        if link.connected:
            self.ask()

    @property
    def used(self) -> bool:
        """Whether appends may use the module now."""
        return self.verdict is not None and self.verdict.use is Use.USED

    def ask(self) -> None:
        """Ask the server, unless it is a replica. The module is not used until it has answered."""
        before, self.verdict = self.verdict, None
        if self._link.replication.is_replica:
            return

        def answered(reply: memoryview | StorageError) -> None:
            verdict = verdict_on(domain_error(reply) if isinstance(reply, StorageError) else reply)
            if verdict.use is not Use.UNKNOWN:
                self.verdict = verdict
                if verdict != before:
                    self._report(verdict)

        self._link.send(pack_command(_COMMAND), answered)

    def refused(self) -> None:
        """An append by the module was refused: ask, unless that was done after an earlier refusal."""
        if self.used:
            self.ask()

    def lost(self) -> None:
        """The link is down."""
        self.verdict = None

    def _report(self, verdict: Verdict) -> None:
        where = self._link.address
        if verdict.use is Use.USED:
            log.info("Redis at %s: appends use the server module", where)
        elif verdict.use is Use.NOT_LOADED:
            log.info("Redis at %s: appends work without the server module, which is not loaded", where)
        else:
            log.warning("Redis at %s: appends don't use the server module: %s", where, verdict.reason)
