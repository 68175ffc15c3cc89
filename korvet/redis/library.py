"""The Redis Function libraries in the servers: loaded, tidied up, and calls of their functions in order even
when Redis has lost them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from korvet.records.kernel import pack_command
from korvet.redis.calls import Caller, answer
from korvet.redis.errors import LinkLost, Loading, RedisFault, StorageError, StorageFault
from korvet.redis.functions import (
    PUBLIC_LIBRARY,
    is_versioned,
    library_name,
    library_source,
    public_source,
)

if TYPE_CHECKING:
    from korvet.redis.calls import OnReply, Payload
    from korvet.redis.link import RedisLink

_MISSING: Final = "Function not found"
# The name of a command is in so many of its first bytes.
_HEAD_BYTES: Final = 32

log = logging.getLogger(__name__)


async def loaded_libraries(link: RedisLink) -> dict[str, bytes]:
    """The libraries that Redis has under names of ours, and their code (FUNCTION LIST). Raises
    StorageError.
    """
    listed = await link.call("FUNCTION", "LIST", "LIBRARYNAME", f"{PUBLIC_LIBRARY}*", "WITHCODE")
    rows = (dict(zip(entry[::2], entry[1::2], strict=True)) for entry in listed)
    found = {row[b"library_name"].decode(): row[b"library_code"] for row in rows}
    return {name: code for name, code in found.items() if name == PUBLIC_LIBRARY or is_versioned(name)}


async def ensure_library(link: RedisLink) -> None:
    """Load the library for brokers if Redis has none or other code under its name, and the one for
    applications if Redis has none (FUNCTION LOAD). Raises StorageError.
    """
    loaded = await loaded_libraries(link)
    if loaded.get(library_name()) != library_source().encode():
        await link.call("FUNCTION", "LOAD", "REPLACE", library_source())
    if PUBLIC_LIBRARY not in loaded:
        with contextlib.suppress(StorageFault):
            # Another broker may have loaded one since.
            await link.call("FUNCTION", "LOAD", public_source())


async def tidy_libraries(link: RedisLink, used: frozenset[str]) -> None:
    """Delete the libraries of releases that no live broker uses (FUNCTION DELETE). `used`: the names of the
    others. If only this release's is used, the library for applications becomes the one of this release.
    Raises StorageError.
    """
    loaded = await loaded_libraries(link)
    unused = [name for name in loaded if is_versioned(name) and name not in used]
    for name in unused:
        log.info("Redis at %s: deleting the Function library %s, which no broker uses", link.address, name)
        await link.call("FUNCTION", "DELETE", name)
    if used == {library_name()} and loaded.get(PUBLIC_LIBRARY) != public_source().encode():
        await link.call("FUNCTION", "LOAD", "REPLACE", public_source())


def is_library_missing(reply: object) -> bool:
    """Whether a reply is the error of a Redis that has lost the library."""
    return isinstance(reply, RedisFault) and _MISSING in reply.message


class FunctionCaller(Caller):
    """Calls functions over one link, in order; loads the library again when Redis has lost it (FUNCTION
    FLUSH, failover).

    A call that finds no function has done nothing. It is repeated once, with those after it that found none
    either, in their order, and later calls wait until then.

    Another connection may load the library between two calls. A call of a function that writes is not
    repeated after a later one, and ends with Loading.
    """

    __slots__ = ("_held", "_link", "_outstanding", "_recovering", "_repeat", "_writes")

    def __init__(self, link: RedisLink, *, writes: bool) -> None:
        """`writes`: whether the functions write, and the order of all calls matters."""
        self._link = link
        self._writes = writes
        self._outstanding = 0
        self._recovering = False
        self._repeat: deque[tuple[Payload, OnReply]] = deque()
        self._held: deque[tuple[Payload, OnReply]] = deque()

    def send(self, payload: Payload, on_reply: OnReply) -> None:
        """Send a packed FCALL or FCALL_RO; see RedisLink.send."""
        if self._recovering:
            self._held.append((payload, on_reply))
            return
        self._outstanding += 1
        self._link.send(payload, self._first_attempt(payload, on_reply))

    def _first_attempt(self, payload: Payload, on_reply: OnReply) -> OnReply:
        def arrived(reply: memoryview | StorageError) -> None:
            self._outstanding -= 1
            lost = is_library_missing(reply)
            if lost:
                self._recovering = True
                self._repeat.append((payload, on_reply))
            try:
                if not lost:
                    if self._repeat and self._writes and _calls_function(payload):
                        self._give_up_overtaken()
                    on_reply(reply)
            finally:
                if self._recovering and self._outstanding == 0:
                    self._reload()

        return arrived

    def _give_up_overtaken(self) -> None:
        """A later call than those to repeat may have taken effect."""
        overtaken, self._repeat = self._repeat, deque()
        for _, on_reply in overtaken:
            answer(on_reply, Loading("Redis had lost the Function library, and has it again"))

    def _reload(self) -> None:
        log.warning("Redis has lost the Function library %r: loading it again", library_name())
        waiting = [*self._repeat, *self._held]
        self._repeat.clear()
        self._held.clear()
        self._recovering = False
        self._link.send(pack_command("FUNCTION", "LOAD", "REPLACE", library_source()), _report_load)
        # Redis refuses this if it still has the library for applications.
        self._link.send(pack_command("FUNCTION", "LOAD", public_source()), lambda _: None)
        for payload, on_reply in waiting:
            self._link.send(payload, on_reply)


def _calls_function(payload: Payload) -> bool:
    head = payload if isinstance(payload, bytes) else payload[0]
    return b"\r\nFCALL\r\n" in bytes(head[:_HEAD_BYTES])


def _report_load(reply: memoryview | StorageError) -> None:
    if isinstance(reply, LinkLost):
        return
    if isinstance(reply, StorageError):
        log.error("the Function library %r cannot be loaded: %s", library_name(), reply)
