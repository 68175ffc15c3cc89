"""The Function library `korvet`: its source, and calling its functions in order even when Redis has
lost it.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from importlib import resources
from typing import TYPE_CHECKING, Final

from korvet.records.kernel import pack
from korvet.storage.errors import LinkLost, RedisFault, StorageError
from korvet.storage.link.calls import Caller

if TYPE_CHECKING:
    from korvet.storage.link.calls import OnReply, Payload
    from korvet.storage.link.redis_link import RedisLink

LIBRARY_NAME: Final = "korvet"
_SHARED: Final = "_common.lua"
_MISSING: Final = "Function not found"

log = logging.getLogger(__name__)


@functools.cache
def library_source() -> str:
    """The library's code: what all files share first, then each file of lua/ in a scope of its own."""
    folder = resources.files("korvet.storage").joinpath("lua")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".lua"))
    scoped = [
        f"do -- {name}\n{folder.joinpath(name).read_text('utf-8')}\nend" for name in names if name != _SHARED
    ]
    shared = folder.joinpath(_SHARED).read_text("utf-8")
    return "\n".join([f"#!lua name={LIBRARY_NAME}", shared, *scoped]) + "\n"


async def loaded_source(link: RedisLink) -> bytes | None:
    """The code of the library that Redis has under our name; None where it has none (FUNCTION LIST)."""
    listed = await link.call("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY_NAME, "WITHCODE")
    for entry in listed:
        code: bytes | None = dict(zip(entry[::2], entry[1::2], strict=True)).get(b"library_code")
        return code
    return None


async def ensure_library(link: RedisLink) -> None:
    """Load the library where Redis has none or another version of it (FUNCTION LOAD)."""
    if await loaded_source(link) != library_source().encode():
        await link.call("FUNCTION", "LOAD", "REPLACE", library_source())


def is_library_missing(reply: object) -> bool:
    """Whether an error reply says that Redis has lost the library."""
    return isinstance(reply, RedisFault) and _MISSING in reply.message


class FunctionCaller(Caller):
    """Calls functions over one link, in order; reloads the library when Redis has lost it (FUNCTION FLUSH,
    failover).

    The first call that finds no function has done nothing, and neither have those that were already under way
    behind it: they are repeated once, in their order, and later calls wait until then.
    """

    __slots__ = ("_held", "_link", "_outstanding", "_recovering", "_repeat")

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._outstanding = 0
        self._recovering = False
        self._repeat: deque[tuple[Payload, OnReply]] = deque()
        self._held: deque[tuple[Payload, OnReply]] = deque()

    def send(self, payload: Payload, on_reply: OnReply) -> None:
        """As RedisLink.send, for a packed FCALL or FCALL_RO."""
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
                    on_reply(reply)
            finally:
                if self._recovering and self._outstanding == 0:
                    self._reload()

        return arrived

    def _reload(self) -> None:
        log.warning("Redis has lost the Function library %r: loading it again", LIBRARY_NAME)
        waiting = [*self._repeat, *self._held]
        self._repeat.clear()
        self._held.clear()
        self._recovering = False
        self._link.send(pack("FUNCTION", "LOAD", "REPLACE", library_source()), _report_load)
        for payload, on_reply in waiting:
            self._link.send(payload, on_reply)


def _report_load(reply: memoryview | StorageError) -> None:
    if isinstance(reply, LinkLost):
        return
    if isinstance(reply, StorageError):
        log.error("the Function library %r cannot be loaded: %s", LIBRARY_NAME, reply)
