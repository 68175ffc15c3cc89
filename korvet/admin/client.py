"""Reads pages of another process: through its unix socket (`admin.socket`, or that of `korvet ready`), or a
connection that is handed over to it.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.admin.handover import Handover

if TYPE_CHECKING:
    from pathlib import Path

# Limits a page: 100,000 series have a tenth of that.
_MOST_BYTES: Final = 256 << 20


class PageReply(NamedTuple):
    """A page that another process has answered."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


async def fetch(place: Path | str | Handover, page: str, accept: str, timeout_s: float) -> PageReply:
    """Read a page. `place`: the address of a socket, or what connects.

    Raises OSError, also if it takes too long, and ValueError if the answer is malformed.
    """
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_unix_connection(sock=_connected(place))
        try:
            request = f"GET {page} HTTP/1.1\r\nHost: korvet\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
            writer.write(request.encode())
            return await _answer(reader)
        finally:
            writer.close()


def _connected(place: Path | str | Handover) -> socket.socket:
    """A connection, which needs no wait. Event loops do not connect to abstract sockets."""
    if isinstance(place, Handover):
        return place.connect()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(str(place))
    except OSError:
        connection.close()
        raise
    return connection


async def _answer(reader: asyncio.StreamReader) -> PageReply:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(fields["content-length"])
        if not 0 <= size <= _MOST_BYTES:
            raise ValueError(f"the page has {size} bytes")
        return PageReply(int(first.split(" ")[1]), await reader.readexactly(size))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, LookupError) as error:
        raise ValueError(f"the answer is malformed: {error!r}") from error
