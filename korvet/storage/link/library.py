"""The Redis Function library `korvet`: its source, and calls of its functions in order even when Redis has
lost the library.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from importlib import resources
from typing import TYPE_CHECKING, Final

from korvet.records.kernel import pack_command
from korvet.storage.errors import LinkLost, RedisFault, StorageError
from korvet.storage.link.calls import Caller

if TYPE_CHECKING:
    from korvet.storage.link.calls import OnReply, Payload
    from korvet.storage.link.redis_link import RedisLink

LIBRARY_NAME: Final = "korvet"
# Files of lua/ that all functions use, each built on those before it.
_SHARED: Final = ("_entries", "_meta", "_index", "_producers", "_appending", "_groups", "_cluster")
# Files of lua/ that register functions, with the parts that only they use. Each row is its own scope: Lua
# allows 200 local names in one scope, including those of the shared files.
_SCOPES: Final = (
    ("append",),
    ("guard",),
    ("mark",),
    ("native_append",),
    ("reindex",),
    ("lookup",),
    ("ordinals",),
    ("retention",),
    ("watermark",),
    ("_shadow", "_shadow_groups", "_shadow_entries", "compact"),
    ("_group_view", "projection"),
    ("moved_groups",),
    ("lease",),
    ("registry",),
    ("security",),
)
_MISSING: Final = "Function not found"

log = logging.getLogger(__name__)


@functools.cache
def library_source() -> str:
    """The library's code: the shared files of lua/, then a scope for each subject."""
    shared = map(_file, _SHARED)
    scopes = (f"do\n{''.join(map(_file, names))}end\n" for names in _SCOPES)
    return "".join([f"#!lua name={LIBRARY_NAME}\n", *shared, *scopes])


def _file(name: str) -> str:
    """The text of one file, with its name on a line of its own."""
    text = resources.files("korvet.storage").joinpath("lua", f"{name}.lua").read_text("utf-8")
    return f"-- {name}.lua\n{text}"


async def loaded_source(link: RedisLink) -> bytes | None:
    """The code of the library that Redis has under our name; None if it has none (FUNCTION LIST). Raises
    StorageError.
    """
    listed = await link.call("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY_NAME, "WITHCODE")
    for entry in listed:
        code: bytes | None = dict(zip(entry[::2], entry[1::2], strict=True)).get(b"library_code")
        return code
    return None


async def ensure_library(link: RedisLink) -> None:
    """Load the library if Redis has none or another version of it (FUNCTION LOAD). Raises StorageError."""
    if await loaded_source(link) != library_source().encode():
        await link.call("FUNCTION", "LOAD", "REPLACE", library_source())


def is_library_missing(reply: object) -> bool:
    """Whether a reply is the error of a Redis that has lost the library."""
    return isinstance(reply, RedisFault) and _MISSING in reply.message


class FunctionCaller(Caller):
    """Calls functions over one link, in order; loads the library again when Redis has lost it (FUNCTION
    FLUSH, failover).

    A call that finds no function has done nothing, and neither have the calls that were already sent after
    it. They are repeated once, in their order, and later calls wait until then.
    """

    __slots__ = ("_held", "_link", "_outstanding", "_recovering", "_repeat")

    def __init__(self, link: RedisLink) -> None:
        self._link = link
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
        self._link.send(pack_command("FUNCTION", "LOAD", "REPLACE", library_source()), _report_load)
        for payload, on_reply in waiting:
            self._link.send(payload, on_reply)


def _report_load(reply: memoryview | StorageError) -> None:
    if isinstance(reply, LinkLost):
        return
    if isinstance(reply, StorageError):
        log.error("the Function library %r cannot be loaded: %s", LIBRARY_NAME, reply)
