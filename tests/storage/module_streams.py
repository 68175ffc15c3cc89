"""Appending a record batch to a stream by the server module, and by the XADDs of the broker's kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis

from korvet.offsets.packing import entry_id
from korvet.records import kernel
from korvet.records.kernel import pack_arguments, pack_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.redis_server import Server


def replicas_version(server: Server) -> int:
    """The version of the server's replica set."""
    _, version = server.client.execute_command("KORVET.REPLICAS")
    return int(version)


def add_command(server: Server, key: str, position: int, batch: bytes, *, timestamps: bool = True) -> bytes:
    """The KORVET.ADD of a batch, encoded, with the present version of the replica set."""
    version = replicas_version(server)
    return pack_command("KORVET.ADD", key, entry_id(position), int(timestamps), version, batch)


def add(server: Server, key: str, position: int, batch: bytes, *, timestamps: bool = True) -> Any:
    """Append a batch by KORVET.ADD. Returns the reply, which may be an error."""
    return send(server, add_command(server, key, position, batch, timestamps=timestamps), 1)[0]


def send(server: Server, resp: bytes, replies: int) -> list[Any]:
    """Send encoded commands, and return their replies; errors are among these."""
    connection = server.client.connection_pool.get_connection()
    try:
        connection.send_packed_command([resp])
        return [_reply(connection) for _ in range(replies)]
    finally:
        server.client.connection_pool.release(connection)


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def xadds(key: str, position: int, batch: bytes, *, timestamps: bool = True) -> tuple[bytes, int]:
    """The XADDs of a batch, and how many there are. Raises BatchError."""
    header = kernel.parse_batch(batch, 0)
    start = pack_arguments("XADD", key, "NOMKSTREAM")
    commands = kernel.encode_commands(batch, 0, header, None, timestamps, position, start)
    count = 4 + commands.first_argc
    head = b"*%d\r\n%b%b" % (count, start, pack_arguments(entry_id(position)))
    return head + b"".join(commands.pieces), commands.record_count


def add_plainly(server: Server, key: str, position: int, batch: bytes, *, timestamps: bool = True) -> None:
    """Append a batch by XADDs. Raises BatchError."""
    resp, count = xadds(key, position, batch, timestamps=timestamps)
    replies = send(server, resp, count)
    assert all(isinstance(reply, bytes) for reply in replies), replies[:3]


def dumps(server: Server, keys: Iterable[str]) -> list[bytes]:
    """The dumps of streams."""
    return [server.client.dump(key) for key in keys]
