"""The server module of one server: whether KORVET.ADD may be used there now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from korvet.storage.errors import LinkLost, StorageError, StoreError
from korvet.storage.link.module_verdict import (
    Answer,
    Use,
    Verdict,
    decide,
    is_forbidden,
    problem_of,
    refusal,
    replicas_of,
)
from korvet.storage.link.redis_link import RedisLink
from korvet.supervisor import end, keep

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from korvet.storage.link.address import RedisAddress
    from korvet.storage.link.slots import NodeAddress

# Interval of looks if nothing asks for one. A replica of a replica that attaches is noticed only by these.
_PERIOD_S: Final = 5.0
# Shortest time between two looks: replicas that attach again and again cost the server little.
_SPACING_S: Final = 0.5
# Limits the wait for one replica's answers; a replica that is slower counts as unreachable.
_REPLICA_TIMEOUT_S: Final = 5.0
# Limits the connections that one look opens, with replicas of replicas.
_MOST_REPLICAS: Final = 100
# KORVET.ADD on a key that does not exist: adds nothing, and shows whether the user may run the command.
_PROBE: Final = ("KORVET.ADD", "{korvet}:module", "1-0", 0, 0, b"")

log = logging.getLogger(__name__)


class ServerModule:
    """Knows whether one server's module may be used, and looks again after every change.

    The module counts the replicas that begin to synchronise. KORVET.ADD names the count that the broker has
    checked, and the server refuses any other: so no replica that a broker has not checked gets KORVET.ADD.
    """

    __slots__ = ("_doubts", "_link", "_task", "_wanted", "replicas", "verdict")

    def __init__(self, link: RedisLink) -> None:
        """`link` is the server's link for writes; its owner reports when it comes up and goes down."""
        self.replicas: int | None = None
        """The version of the set of replicas with which KORVET.ADD may be called now; None if it must not be
        called.
        """
        self._link = link
        # Counts the events after which the result of an earlier look is void.
        self._doubts = 0
        self.verdict: Verdict | None = None
        """The newest verdict; None before the first one."""
        self._wanted = asyncio.Event()
        if link.connected:
            self._wanted.set()
        self._task = keep("server module of Redis", self._run)

    def refused(self) -> None:
        """KORVET.ADD was refused: look again, and don't use the module until then."""
        self.lost()
        self._wanted.set()

    def came_up(self) -> None:
        """The link leads to a server again, perhaps to another one."""
        self.refused()

    def lost(self) -> None:
        """The link is down."""
        self._doubts += 1
        self.replicas = None

    async def close(self) -> None:
        """Stop looking."""
        self.lost()
        await end(self._task)

    async def _run(self) -> NoReturn:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_S):
                    await self._wanted.wait()
            self._wanted.clear()
            if self._link.connected:
                await self._look()
                await asyncio.sleep(_SPACING_S)

    async def _look(self) -> None:
        doubts = self._doubts
        try:
            verdict = await look(self._link, probe=self.replicas is None)
        except LinkLost:
            return
        if doubts != self._doubts:
            return
        self.replicas = verdict.replicas
        before, self.verdict = self.verdict, verdict
        if before is None or (before.use, before.reason) != (verdict.use, verdict.reason):
            self._report(verdict)

    def _report(self, verdict: Verdict) -> None:
        where = self._link.address
        if verdict.use is Use.USED:
            log.info("Redis at %s: appends use the server module", where)
        elif verdict.use is Use.NOT_LOADED:
            log.info("Redis at %s: appends work without the server module, which is not loaded", where)
        elif verdict.use is Use.COPIED:
            log.info("Redis at %s: appends don't use the server module while %s", where, verdict.reason)
        else:
            log.warning("Redis at %s: appends don't use the server module: %s", where, verdict.reason)


async def look(link: RedisLink, *, probe: bool) -> Verdict:
    """Ask a server and all replicas below it whether the module may be used; `probe`: also whether the user
    may call KORVET.ADD, which counts as one error in the server's statistics. Raises LinkLost.
    """
    # In this order: a replica that attaches later changes the version that was read before.
    primary = await _answer_of(link)
    if isinstance(primary.versions, LinkLost):
        raise primary.versions
    verdict = decide(primary, {})
    if verdict.use is not Use.USED:
        return verdict
    replicas: dict[NodeAddress, Answer] = {}
    while unasked := _below(primary, replicas) - replicas.keys():
        if len(replicas) + len(unasked) > _MOST_REPLICAS:
            return Verdict(Use.REPLICA, f"there are more than {_MOST_REPLICAS} replicas")
        answers = await asyncio.gather(*(_ask_replica(link.address, replica) for replica in unasked))
        replicas.update(zip(unasked, answers, strict=True))
    verdict = decide(primary, replicas)
    if probe and verdict.use is Use.USED:
        error = await _reply_or_error(link.call(*_PROBE))
        if isinstance(error, LinkLost):
            raise error
        if isinstance(error, StorageError) and is_forbidden(error):
            return refusal(error)
    return verdict


def _below(primary: Answer, replicas: dict[NodeAddress, Answer]) -> frozenset[NodeAddress]:
    """The replicas of a primary and of those replicas that have answered."""
    found = [answer for answer in (primary, *replicas.values()) if problem_of(answer) is None]
    return frozenset().union(*map(replicas_of, found))


async def _ask_replica(primary: RedisAddress, replica: NodeAddress) -> Answer:
    host, port = replica
    if not port:
        # A tool that follows the server: what takes a snapshot only is not asked.
        return _without_answer("it accepts no connections, so it cannot be asked for its module")
    address = msgspec.structs.replace(primary, host=host, port=port, socket_path=None)
    try:
        async with asyncio.timeout(_REPLICA_TIMEOUT_S):
            link = await RedisLink.connect(address, "korvet-module")
            try:
                return await _answer_of(link)
            finally:
                await link.close()
    except StorageError as error:
        return _without_answer(str(error))
    except TimeoutError:
        return _without_answer(f"it does not answer within {_REPLICA_TIMEOUT_S:.0f} s")


def _without_answer(reason: str) -> Answer:
    return Answer(StoreError(reason), StoreError(reason))


async def _answer_of(link: RedisLink) -> Answer:
    versions, replication = link.call("KORVET.REPLICAS"), link.call("INFO", "replication")
    # Together: if this task is cancelled, neither reply is left without somebody who takes its error.
    return Answer(*await asyncio.gather(_reply_or_error(versions), _reply_or_error(replication)))


async def _reply_or_error(reply: Awaitable[Any]) -> Any:
    try:
        return await reply
    except StorageError as error:
        return error
