"""Commands and replies: what sends packed commands, and how a raw reply becomes a value or an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis

from korvet.logs import current_traceback
from korvet.records.batch import BytesLike
from korvet.records.kernel import pack_command
from korvet.redis.errors import RedisFault, StorageError, domain_error
from korvet.redis.futures import resolve

log = logging.getLogger(__name__)

Payload = bytes | Sequence[BytesLike]
"""One or several packed commands, in one piece or in several."""
OnReply = Callable[[memoryview | StorageError], None]
"""Called with the raw reply, or all replies to a group of commands (the view is valid during the call only);
with a RedisFault if the first one that fails is an error reply; or with LinkLost."""

_DASH: Final = ord("-")


class Caller:
    """Sends packed commands and hands their replies over, in the order of the calls."""

    __slots__ = ()

    def send(self, payload: Payload, on_reply: OnReply) -> None:
        """Send one packed command; `on_reply` is called once, never before this method returns."""
        raise NotImplementedError

    def call(self, *args: bytes | str | int) -> asyncio.Future[Any]:
        """Send one command; the future gives the parsed reply (bytes, int, list, None).

        The future raises the domain error of an error reply, and LinkLost if the connection is gone.
        """
        return ask(self.send, pack_command(*args))

    def call_packed(self, payload: Payload) -> asyncio.Future[Any]:
        """As `call`, for a packed command."""
        return ask(self.send, payload)


def ask(send: Callable[[Payload, OnReply], None], payload: Payload) -> asyncio.Future[Any]:
    """The parsed reply to a packed command that `send` sends; see Caller.call."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def arrived(reply: memoryview | StorageError) -> None:
        resolve(future, domain_error(reply) if isinstance(reply, StorageError) else parse_reply(reply))

    send(payload, arrived)
    return future


def answer(on_reply: Callable[[Any], None], reply: Any) -> None:
    """Call `on_reply(reply)`; log its exception, so that one caller's mistake does not cost other callers
    their replies.
    """
    try:
        on_reply(reply)
    except Exception:  # noqa: BLE001 - logged
        # As text: a kept log record must not keep the request alive, which ends when nothing refers to it.
        log.error("a reply of Redis could not be handled", extra=current_traceback())


def parse_reply(reply: memoryview) -> Any:
    """A raw reply as bytes, int, list or None."""
    reader = hiredis.Reader()
    reader.feed(bytes(reply))
    return reader.gets()


def parse_replies(replies: memoryview, count: int) -> list[Any]:
    """As parse_reply, for several replies; an error reply becomes a RedisFault in its place."""
    reader = hiredis.Reader(replyError=_fault)
    reader.feed(bytes(replies))
    return [reader.gets() for _ in range(count)]


def fault_of(reply: memoryview) -> RedisFault | None:
    """The fault if a raw reply is an error reply, else None."""
    return _fault(bytes(reply[1:-2]).decode("utf-8", "replace")) if reply[0] == _DASH else None


def _fault(message: str) -> RedisFault:
    return RedisFault(message, message.partition(" ")[0])
