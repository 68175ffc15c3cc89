"""Requests of brokers to each other through Redis: each broker takes its mail from a list there.

So brokers need no addresses, credentials and connections among themselves. Mail from one broker to another
arrives in the order in which it was sent, at most once. If no answer arrives, the asking broker gets an error
and may ask again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from korvet.records.kernel import pack_command
from korvet.storage.errors import LinkLost, StorageError
from korvet.storage.link.calls import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.storage.brokers.membership import Membership
    from korvet.storage.link.commands import Commands

log = logging.getLogger(__name__)

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


class Mail(msgspec.Struct, frozen=True, array_like=True):
    """A request; with an empty `kind` the answer to one."""

    sender: tuple[int, int]
    """Node id, and the version of the assignment in which the broker joined: after a restart a broker has a
    new mailbox.
    """
    number: int
    kind: str
    body: bytes


class Mailbox:
    """Sends and takes the mail of this broker while `run` runs. Use from one event loop only."""

    def __init__(self, commands: Commands, member: Membership) -> None:
        self._commands = commands
        self._member = member
        self._handlers: dict[str, Handler] = {}
        self._numbers = itertools.count(1)
        self._awaited: dict[int, tuple[Callable[[bytes | StorageError], None], asyncio.TimerHandle]] = {}
        self._busy_until_s = 0.0

    def handle(self, kind: str, handler: Handler) -> None:
        """Handle requests of this kind with `handler`."""
        self._handlers[kind] = handler

    def ask(self, node_id: int, kind: str, body: bytes, done: Callable[[bytes | StorageError], None]) -> None:
        """Ask a live broker. `done` is called later, once, with the answer, or with LinkLost after
        ANSWER_TIMEOUT_S. Redis command RPUSH.
        """
        number = next(self._numbers)
        timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_S, self._unanswered, node_id, number)
        self._awaited[number] = (done, timer)
        self._send(node_id, number, kind, body)

    async def run(self) -> None:
        """Take the mail until cancelled. Redis command LPOP."""
        loop = asyncio.get_running_loop()
        while True:
            if self._member.alone:
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
        """The address of this broker's mailbox."""
        broker = self._member.assignment.broker(self._member.node_id)
        return self._member.node_id, -1 if broker is None else broker.joined

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
        node_id, joined = mail.sender
        broker = self._member.assignment.broker(node_id)
        if broker is not None and broker.joined == joined:
            self._send(node_id, mail.number, "", body)

    def _send(self, node_id: int, number: int, kind: str, body: bytes) -> None:
        broker = self._member.assignment.broker(node_id)
        if broker is None:
            # The mail counts as lost on the way.
            return
        key = self._key(node_id, broker.joined)
        data = msgspec.msgpack.encode(Mail(self._address, number, kind, body))
        link = self._commands.links(key).write_functions
        link.send(pack_command("RPUSH", key, data), partial(self._sent, number if kind else None))
        link.send(pack_command("PEXPIRE", key, _EXPIRY_MS), lambda _: None)

    def _sent(self, number: int | None, reply: memoryview | StorageError) -> None:
        error = reply if isinstance(reply, StorageError) else fault_of(reply)
        if error is None:
            return
        log.info("mail could not be sent: %s", error)
        if number is not None:
            self._complete(number, LinkLost(f"the request was not sent: {error}"))

    def _unanswered(self, node_id: int, number: int) -> None:
        self._complete(number, LinkLost(f"node {node_id} did not answer"))

    def _complete(self, number: int, outcome: bytes | StorageError) -> None:
        done, timer = self._awaited.pop(number, (None, None))
        if done is not None and timer is not None:
            timer.cancel()
            try:
                done(outcome)
            except Exception:
                # Other mail must still be handled.
                log.exception("an answer could not be handled")
