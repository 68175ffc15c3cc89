"""Raw redis-py connections (RESP2, hiredis), in a Redis Cluster one to each node that is asked.

No command objects and no decoding: these are most of the cost of a read.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
from redis.crc import key_slot
from redis.exceptions import AskError, AuthenticationError, MovedError, RedisError, ResponseError
from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import TimeoutError as LinkTimeout

from korvet.spark.records.page import HAS_HIREDIS, Entry, Page
from korvet.spark.source.errors import SourceError
from korvet.spark.source.page_parser import END_OF_PAGE, PageParser, read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from korvet.spark.source.address import Address

CONNECT_TIMEOUT_S = 10
REPLY_TIMEOUT_S = 60
# A key that is sent after more often than this is chased in circles.
MOST_REDIRECTIONS = 5
Node = tuple[str, int]
Arguments = tuple[str | bytes | int, ...]


class Connection:
    """One raw connection, or in a cluster one for each node, which a command's key tells.

    Raises SourceError when Redis can't be reached, RedisError when it refuses a command.
    """

    def __init__(self, address: Address) -> None:
        self._options: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": REPLY_TIMEOUT_S,
            **({"parser_class": PageParser} if HAS_HIREDIS else {}),
            **address.arguments(),
        }
        self._address = address
        # Connections whose pages can't be told from what is behind them: the user may not ECHO.
        self._mute: set[Any] = set()
        self._first = self._reach()
        self._nodes: dict[Node, Any] = {}
        # The connections on which replies are to come, in order, and to what.
        self._asked: deque[tuple[Any, Arguments]] = deque()
        # (first slot, last slot, node); empty where there is no cluster.
        self._map: list[tuple[int, int, Node]] = []
        self._map_is_old = True

    def _reach(self) -> Any:
        """A connection to the first server that answers."""
        reason: Exception | None = None
        for url in self._address.server_urls():
            self._url = url
            try:
                return self._open(None)
            except AuthenticationError as error:
                raise SourceError(
                    f"Redis at {self._address.url} refuses the user or the password: {error}"
                ) from None
            except (RedisError, OSError, ValueError) as error:
                reason = error
        raise SourceError(f"no usable Redis at {self._address.url}: {reason}") from None

    def _open(self, node: Node | None) -> Any:
        """A new connection; to the server of the URL where no node is named."""
        pool: Any = redis.ConnectionPool.from_url(self._url, **self._options)
        if node is not None:
            if pool.connection_kwargs.pop("path", None) is not None:
                pool.connection_class = redis.Connection
            pool.connection_kwargs.update(host=node[0], port=node[1])
        raw = pool.make_connection()
        raw.connect()
        try:
            raw.send_command("ECHO", END_OF_PAGE)
            raw.read_response(disable_decoding=True)
        except ResponseError:
            self._mute.add(raw)
        if not HAS_HIREDIS:
            self._mute.add(raw)
        return raw

    def _read_map(self) -> None:
        self._map_is_old = False
        self._first.send_command("CLUSTER", "SLOTS")
        try:
            found = self._first.read_response(disable_decoding=True)
        except ResponseError:
            # No cluster.
            return
        asked = urlsplit(self._url).hostname or "localhost"
        self._map = [
            (first, last, (primary[0].decode() if primary[0] else asked, primary[1]))
            for first, last, primary, *_ in found
        ]

    def _raw_for(self, key: str | bytes | int) -> Any:
        if self._map_is_old and not self._asked:
            self._read_map()
        if not self._map:
            return self._first
        slot = key_slot(key if isinstance(key, bytes) else str(key).encode())
        node = next((node for first, last, node in self._map if first <= slot <= last), None)
        if node is None:
            raise SourceError(f"no node of the cluster at {self._address.url} holds slot {slot}")
        if node not in self._nodes:
            self._nodes[node] = self._open(node)
        return self._nodes[node]

    def close(self) -> None:
        """Close the sockets; calling it again does nothing."""
        for raw in (self._first, *self._nodes.values()):
            raw.disconnect()

    def send(self, *arguments: str | bytes | int) -> None:
        """Send one command; its reply is the next one that `reply` gives."""
        raw = self._raw_for(_key_of(arguments))
        raw.send_command(*arguments)
        self._asked.append((raw, arguments))

    def reply(self) -> Any:
        """The reply of the oldest command not yet answered, bytes undecoded.

        Raises ResponseError for an error reply.
        """
        return self._take(lambda raw: raw.read_response(disable_decoding=True))

    def send_for_page(self, *arguments: str | bytes | int) -> None:
        """Send a command that is answered by entries; its reply is the next one that `page` gives."""
        raw = self._raw_for(_key_of(arguments))
        behind = [] if raw in self._mute else [("ECHO", END_OF_PAGE)]
        raw.send_packed_command(raw.pack_commands([arguments, *behind]))
        self._asked.append((raw, arguments))

    def page(self) -> Page:
        """The reply of the oldest command not yet answered. Raises ResponseError for an error reply."""

        def read(raw: Any) -> Any:
            return raw.read_response(disable_decoding=True) if raw in self._mute else read_page(raw)

        found: Page | list[Entry] = self._take(read)
        return found if isinstance(found, Page) else Page.of(found)

    def _take(self, read: Callable[[Any], Any]) -> Any:
        raw, arguments = self._asked.popleft()
        try:
            return read(raw)
        except AskError as error:
            return self._reply_elsewhere(arguments, error)
        except (LinkError, LinkTimeout) as error:
            raise SourceError(
                f"the connection to Redis at {self._address.url} broke while {arguments[0]!r} of "
                f"{_key_of(arguments)!r} was under way: {error}"
            ) from None

    def _reply_elsewhere(self, arguments: Arguments, error: AskError) -> Any:
        """Ask the node that a key has moved to (MOVED), or is moving to (ASK), on a connection of its own."""
        self._map_is_old = True
        for _ in range(MOST_REDIRECTIONS):
            raw = self._open((error.host, error.port))
            try:
                if not isinstance(error, MovedError):
                    raw.send_command("ASKING")
                    raw.read_response()
                raw.send_command(*arguments)
                return raw.read_response(disable_decoding=True)
            except AskError as again:
                error = again
            finally:
                raw.disconnect()
        raise error

    def call(self, *arguments: str | bytes | int) -> Any:
        """One command and its reply."""
        self.send(*arguments)
        return self.reply()

    def pipeline(self, commands: Sequence[Arguments]) -> list[Any]:
        """Many commands in one go; an error reply is raised after all replies are read."""
        replies = self.replies(commands)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return replies

    def replies(self, commands: Sequence[Arguments]) -> list[Any]:
        """Many commands in one go; an error reply is among what comes back."""
        by_raw: dict[Any, list[Arguments]] = {}
        raws = [self._raw_for(_key_of(command)) for command in commands]
        for raw, command in zip(raws, commands, strict=True):
            by_raw.setdefault(raw, []).append(command)
        for raw, some in by_raw.items():
            raw.send_packed_command(raw.pack_commands(some))
        self._asked.extend(zip(raws, commands, strict=True))
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(self.reply())
            except ResponseError as error:
                replies.append(error)
        return replies


def _key_of(arguments: Arguments) -> str | bytes | int:
    return arguments[2 if arguments[0] == "XINFO" else 1]


@contextmanager
def connected(address: Address) -> Iterator[Connection]:
    """A connection that is closed at the end of the block."""
    connection = Connection(address)
    try:
        yield connection
    finally:
        connection.close()
