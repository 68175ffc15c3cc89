"""Requests of brokers to each other through Redis: each broker takes its mail from a list there.

So brokers need no addresses, credentials and connections among themselves. Mail from one broker to another
arrives in the order in which it was sent, at most once. If no answer arrives, the asking broker gets an error
and may ask again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from korvet.causes import Causes
from korvet.cluster.lease import NO_VERSION
from korvet.cluster.versions import ANNOUNCING_PROTOCOL
from korvet.records.kernel import pack_command
from korvet.redis.calls import fault_of
from korvet.redis.clock import steady_s
from korvet.redis.errors import LinkLost, StorageError
from korvet.redis.futures import awaited
from korvet.supervisor import once

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.cluster.membership import Membership
    from korvet.redis.commands import Commands

log = logging.getLogger(__name__)
causes = Causes(log)

Answer: TypeAlias = "Callable[[bytes], None]"
Handler: TypeAlias = "Callable[[bytes, Answer], None]"
"""(body, answer): handles mail in the order of its arrival; calls answer(body) once, at once or later."""

ANSWER_TIMEOUT_S: Final = 5.0
# The list of a broker that no longer takes its mail expires after this time.
_EXPIRY_MS: Final = 30_000
_TAKEN_AT_ONCE: Final = 100
# Interval of checks for mail while answers are due or mail arrived in the last _BUSY_FOR_S.
_BUSY_S: Final = 0.002
# Interval of checks for mail at other times.
_QUIET_S: Final = 0.025
_BUSY_FOR_S: Final = 0.2
_ALONE_S: Final = 0.25
# How long a broker takes mail after the last other broker has left: that broker may have sent some.
_AFTER_PEERS_S: Final = 5.0
# The kind of mail after which a broker renews its lease, and so learns of a new assignment.
_RENEW: Final = "renew"


class Mail(msgspec.Struct, frozen=True, array_like=True):
    """A request; with an empty `kind` the answer to one."""

    sender: tuple[int, int]
    """Node id, and the version of the assignment in which the broker joined: after a restart a broker has a
    new mailbox.
    """
    number: int
    kind: str
    body: bytes


class _Awaited(NamedTuple):
    """A request whose answer is due."""

    receiver: tuple[int, int]
    done: Callable[[bytes | StorageError], None]
    timer: asyncio.TimerHandle


class Mailbox:
    """Sends and takes the mail of this broker while `run` runs. Use from one event loop only."""

    def __init__(self, commands: Commands, member: Membership) -> None:
        self._commands = commands
        self._member = member
        self._leadership = member.leadership
        self._handlers: dict[str, Handler] = {}
        self._numbers = itertools.count(1)
        self._awaited: dict[int, _Awaited] = {}
        self._busy_until_s = 0.0
        self._joined = NO_VERSION
        self._peers_until_s = -math.inf
        """Until when other brokers may send mail, although none is live."""
        self._renewals: set[asyncio.Task[None]] = set()
        self.handle(_RENEW, self._renew_asked)

    def handle(self, kind: str, handler: Handler) -> None:
        """Handle requests of this kind with `handler`."""
        self._handlers[kind] = handler

    def ask(self, node_id: int, kind: str, body: bytes, done: Callable[[bytes | StorageError], None]) -> None:
        """Ask a broker. `done` is called later, once, with the answer, or with LinkLost: at once if it is not
        live, else after ANSWER_TIMEOUT_S. Redis command RPUSH.
        """
        loop, receiver, number = asyncio.get_running_loop(), self._receiver(node_id), next(self._numbers)
        timer = loop.call_later(ANSWER_TIMEOUT_S, self._unanswered, node_id, number)
        self._awaited[number] = _Awaited(receiver, done, timer)
        if receiver[1] == NO_VERSION:
            loop.call_soon(self._complete, number, LinkLost(f"node {node_id} is not live"))
        else:
            self._post(receiver, number, kind, body)

    async def announce(self, *, leaving: bool = False) -> bool:
        """Let all other brokers renew their leases now, because the assignment has changed. Returns when they
        know the newest one, or don't answer: whether all others could be asked. Those of earlier releases
        can't; they renew their leases several times a second. `leaving`: see Departed.
        """
        body = b"%d" % self._leadership.node_id if leaving else b""
        others = [
            each for each in self._leadership.assignment.brokers if each.node_id != self._leadership.node_id
        ]
        asked = [each.node_id for each in others if each.protocols.highest >= ANNOUNCING_PROTOCOL]
        questions = (awaited(partial(self.ask, node_id, _RENEW, body)) for node_id in asked)
        await asyncio.gather(*questions, return_exceptions=True)
        return len(asked) == len(others)

    def follow_assignment(self) -> None:
        """Complete the requests to brokers that have left: they answer no more."""
        if not self._leadership.alone:
            self._peers_until_s = math.inf
        elif self._peers_until_s == math.inf:
            self._peers_until_s = steady_s() + _AFTER_PEERS_S
        for number, waiting in list(self._awaited.items()):
            if self._receiver(waiting.receiver[0]) != waiting.receiver:
                self._complete(number, LinkLost(f"node {waiting.receiver[0]} has left"))

    async def complete_changes(self) -> None:
        """See ChangeListener: `follow_assignment` has completed them."""

    async def run(self) -> None:
        """Take the mail until cancelled. Redis command LPOP."""
        loop = asyncio.get_running_loop()
        while True:
            if self._leadership.alone and steady_s() > self._peers_until_s:
                await asyncio.sleep(_ALONE_S)
                continue
            try:
                taken = await self._commands.call("LPOP", self._key(*self._address), _TAKEN_AT_ONCE)
            except StorageError as error:
                log.debug("mail cannot be read: %s", error)
                taken = None
            for each in taken or ():
                self._take(each)
            if taken or self._awaited:
                self._busy_until_s = loop.time() + _BUSY_FOR_S
            if taken is None or len(taken) < _TAKEN_AT_ONCE:
                await asyncio.sleep(_BUSY_S if loop.time() < self._busy_until_s else _QUIET_S)

    @property
    def _address(self) -> tuple[int, int]:
        """The address of this broker's mailbox. After it has left, mail still comes to its last one."""
        node_id, joined = self._receiver(self._leadership.node_id)
        if joined != NO_VERSION:
            self._joined = joined
        return node_id, self._joined

    def _receiver(self, node_id: int) -> tuple[int, int]:
        """The address of a live broker's mailbox; NO_VERSION is its second part if the broker is not live."""
        broker = self._leadership.assignment.broker(node_id)
        return node_id, NO_VERSION if broker is None else broker.joined

    def _key(self, node_id: int, joined: int) -> bytes:
        return self._commands.keyspace.mail(node_id, joined)

    def _take(self, data: bytes) -> None:
        try:
            mail = msgspec.msgpack.decode(data, type=Mail)
        except msgspec.DecodeError as error:
            log.warning("mail that cannot be read: %s", error)
            return
        if not mail.kind:
            self._complete(mail.number, mail.body)
        elif (handler := self._handlers.get(mail.kind)) is not None:
            try:
                handler(mail.body, partial(self._answer, mail))
            except Exception:
                # Its sender asks again, or asks another broker.
                log.exception("mail of kind %s could not be handled", mail.kind)

    def _answer(self, mail: Mail, body: bytes) -> None:
        # The sender may have left, and still waits for the answer.
        self._post(mail.sender, mail.number, "", body)

    def _renew_asked(self, body: bytes, answer: Answer) -> None:
        """`body`: the node id of a broker that leaves, or empty."""
        if body:
            self._leadership.departed.announced(int(body), steady_s())
        task = once("a renewal", self._renew(answer))
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)

    async def _renew(self, answer: Answer) -> None:
        try:
            await self._member.refresh()
        except StorageError as error:
            log.info("the lease cannot be renewed at once: %s", error)
            self._member.refresh_soon()
        answer(b"")

    def _post(self, receiver: tuple[int, int], number: int, kind: str, body: bytes) -> None:
        key = self._key(*receiver)
        data = msgspec.msgpack.encode(Mail(self._address, number, kind, body))
        link = self._commands.links(key).write_functions
        link.send(pack_command("RPUSH", key, data), partial(self._sent, key, number if kind else None))
        link.send(pack_command("PEXPIRE", key, _EXPIRY_MS), lambda _: None)

    def _sent(self, mailbox: bytes, number: int | None, reply: memoryview | StorageError) -> None:
        error = reply if isinstance(reply, StorageError) else fault_of(reply)
        if error is None:
            causes.ended(mailbox)
        elif number is None:
            causes.warn(error, "mail could not be sent: %s", error, work=mailbox)
        else:
            self._complete(number, LinkLost(f"the request was not sent: {error}"))

    def _unanswered(self, node_id: int, number: int) -> None:
        self._complete(number, LinkLost(f"node {node_id} did not answer"))

    def _complete(self, number: int, outcome: bytes | StorageError) -> None:
        waiting = self._awaited.pop(number, None)
        if waiting is not None:
            waiting.timer.cancel()
            try:
                waiting.done(outcome)
            except Exception:
                # Other mail must still be handled.
                log.exception("an answer could not be handled")
