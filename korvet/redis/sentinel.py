"""A primary that sentinels know by name: its address, and links that follow it to another server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from korvet.causes import Causes
from korvet.redis.address import SentinelAddress, parse_target
from korvet.redis.errors import LinkLost, StorageError, StoreError
from korvet.redis.link import RedisLink
from korvet.redis.primary_views import PrimaryViews, View, newest_of, parse_view
from korvet.redis.server import OneServer
from korvet.supervisor import end, keep, once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.redis.address import RedisAddress
    from korvet.redis.slots import NodeAddress

log = logging.getLogger(__name__)
causes = Causes(log)

# Interval of questions to a sentinel if no message asks for one, and while the primary does not answer.
_PERIOD_S: Final = 1.0
_URGENT_PERIOD_S: Final = 0.1
# Shortest time between two questions: a failover sends many messages.
_SPACING_S: Final = 0.01
# Limits the wait for a sentinel's answer.
_TIMEOUT_S: Final = 1.0
# The same when the primary is looked up for the first time: names are resolved and connections opened.
_FIRST_TIMEOUT_S: Final = 5.0
# How long to wait for the other sentinels after the first one has answered: it may know an old primary.
_OTHERS_TIMEOUT_S: Final = 0.3
# Messages after which the primary may be another one: a failover begins, a replica is promoted, the sentinel
# has learnt of a failover.
_CHANNELS: Final = ("+try-failover", "+promoted-slave", "+switch-master")


async def servers_of(url: str) -> tuple[RedisAddress, ...]:
    """The servers that a Redis URL names; if it names sentinels, the primary that they know now. Raises
    StoreError.
    """
    target = parse_target(url)
    return (await find_primary(target),) if isinstance(target, SentinelAddress) else target


async def find_primary(target: SentinelAddress) -> RedisAddress:
    """The address of the primary, from those sentinels that answer in time. Raises StoreError if none of them
    knows it.
    """
    asked = [once("question to a sentinel", _ask_once(each, target.name)) for each in target.sentinels]
    views: list[View] = []
    errors: list[str] = []
    try:
        async with asyncio.timeout(_FIRST_TIMEOUT_S) as patience:
            for done in asyncio.as_completed(asked):
                view = await done
                if isinstance(view, StoreError):
                    errors.append(str(view))
                else:
                    views.append(view)
                    soon = asyncio.get_running_loop().time() + _OTHERS_TIMEOUT_S
                    patience.reschedule(min(soon, patience.when() or soon))
    except TimeoutError:
        silent = [each for each, task in zip(target.sentinels, asked, strict=True) if not task.done()]
        errors += [f"{each.named} does not answer" for each in silent]
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    if not views:
        raise StoreError("; ".join(errors))
    for reason in errors:
        log.warning("%s", reason)
    return target.server.at(*newest_of(views).primary)


async def _ask_once(sentinel: RedisAddress, name: str) -> View | StoreError:
    """The view of a sentinel, or why there is none."""
    try:
        link = await RedisLink.connect(sentinel, "korvet-sentinel")
        try:
            return await _ask(link, name)
        finally:
            await link.close()
    except StoreError as error:
        return error
    except StorageError as error:
        return StoreError(f"{sentinel.named} refuses the question for a primary: {error}")


async def _ask(link: RedisLink, name: str) -> View:
    """What a sentinel knows about a primary. Raises StoreError if it knows none of that name, StorageError if
    it refuses the question.
    """
    questions = (
        link.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name),
        link.call("SENTINEL", "MASTER", name),
        link.call("SENTINEL", "REPLICAS", name),
    )
    replies: Sequence[Any] = await asyncio.gather(*questions, return_exceptions=True)
    if replies[0] is None:
        raise StoreError(f"{link.address.named} knows no primary of the name {name!r}")
    current, described, replicas = replies
    for reply in (current, described):
        if isinstance(reply, BaseException):
            raise reply
    try:
        return parse_view(current, described, None if isinstance(replicas, StorageError) else replicas)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{link.address.named} describes the primary irregularly: {error!r}") from error


class SentinelState(NamedTuple):
    """What one sentinel answers; see `inspect`."""

    address: RedisAddress
    primary: NodeAddress | None
    """The primary that it names; None if it does not answer or does not know the name."""
    problem: str
    """Why the sentinel is of no use in a failover; empty if it is."""
    replicas: int = 0
    """How many replicas the sentinel knows, those that it does not reach too."""


async def inspect(target: SentinelAddress) -> list[SentinelState]:
    """Ask each sentinel for the primary, and whether a majority could authorize a failover (SENTINEL
    CKQUORUM).
    """
    return await asyncio.gather(*(_inspect(each, target.name) for each in target.sentinels))


async def _inspect(sentinel: RedisAddress, name: str) -> SentinelState:
    primary, replicas = None, 0
    try:
        async with asyncio.timeout(_FIRST_TIMEOUT_S):
            link = await RedisLink.connect(sentinel, "korvet-sentinel")
            try:
                view = await _ask(link, name)
                primary, replicas = view.primary, view.replicas
                await link.call("SENTINEL", "CKQUORUM", name)
            finally:
                await link.close()
    except StorageError as error:
        return SentinelState(sentinel, primary, str(error), replicas)
    except TimeoutError:
        return SentinelState(sentinel, primary, f"{sentinel.named} does not answer", replicas)
    return SentinelState(sentinel, primary, "", replicas)


class NamedPrimary(OneServer):
    """A Router for one server: the primary that sentinels know by a name."""

    def __init__(self, write: RedisLink, read: RedisLink, target: SentinelAddress) -> None:
        super().__init__(write, read)
        self._target = target
        self._views = PrimaryViews((write.address.host, write.address.port))
        self._sentinels = [
            _Sentinel(each, target.name, self._answered, self._follow, self._is_urgent)
            for each in target.sentinels
        ]

    @property
    def named_replicas(self) -> int:
        """See Router."""
        return self._views.replicas

    async def close(self) -> None:
        """See Router."""
        await asyncio.gather(*(each.close() for each in self._sentinels))
        await super().close()

    def refresh_soon(self) -> None:
        """See Owner."""
        for sentinel in self._sentinels:
            sentinel.ask_soon()

    def _is_urgent(self) -> bool:
        return self._server.silent or not self._server.connected

    def _answered(self, sentinel: _Sentinel, view: View) -> None:
        self._views.note(sentinel, view, asyncio.get_running_loop().time())
        self._follow()

    def _follow(self) -> None:
        found = self._views.primary(asyncio.get_running_loop().time())
        if found is None:
            self._server.hold(f"the sentinels fail {self._target.name!r} over")
            return
        address = self._target.server.at(*found)
        if address != self._server.address:
            log.warning(
                "%s is the primary %r now, and no longer %s",
                address.named,
                self._target.name,
                self._server.address,
            )
        self._server.move(address, "it is no longer the primary")


class _Sentinel:
    """One sentinel: asked regularly, and after each message that it publishes about a failover.

    A connection that is subscribed to channels accepts no other commands, so there are two.
    """

    def __init__(
        self,
        address: RedisAddress,
        name: str,
        answered: Callable[[_Sentinel, View], None],
        unanswered: Callable[[], None],
        is_urgent: Callable[[], bool],
    ) -> None:
        self._name = name
        self._answered = answered
        self._unanswered = unanswered
        self._is_urgent = is_urgent
        self._wanted = asyncio.Event()
        self._link = RedisLink.begin(address, "korvet-sentinel")
        self._link.on_up = self._wanted.set
        self._messages = RedisLink.begin(address, "korvet-messages", on_push=self._wanted.set)
        self._messages.on_up = self._subscribe
        self._task = keep("questions to a sentinel", self._run)

    def ask_soon(self) -> None:
        """Ask at once."""
        self._wanted.set()

    async def close(self) -> None:
        """Stop asking."""
        await end(self._task)
        await asyncio.gather(self._link.close(), self._messages.close())

    def _subscribe(self) -> None:
        for channel in _CHANNELS:
            self._messages.call("SUBSCRIBE", channel).add_done_callback(self._subscribed)

    def _subscribed(self, reply: asyncio.Future[Any]) -> None:
        error = None if reply.cancelled() else reply.exception()
        if error is not None and not isinstance(error, LinkLost):
            log.warning("%s refuses messages about failovers: %s", self._link.address.named, error)

    async def _run(self) -> NoReturn:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_URGENT_PERIOD_S if self._is_urgent() else _PERIOD_S):
                    await self._wanted.wait()
            self._wanted.clear()
            if self._link.connected:
                await self._look()
            else:
                self._unanswered()
            await asyncio.sleep(_SPACING_S)

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                view = await _ask(self._link, self._name)
        except (StorageError, TimeoutError) as error:
            why = str(error) or f"no answer within {_TIMEOUT_S:g} s"
            named = self._link.address.named
            causes.warn(error, "%s does not return the primary: %s", named, why, work=named)
            self._unanswered()
        else:
            causes.ended(self._link.address.named)
            self._answered(self, view)
