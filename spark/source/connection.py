"""Raw redis-py connections (RESP2, hiredis), in a Redis Cluster one to each node that is asked.

No command objects and no decoding: these are most of the cost of a read. redis-py's RedisCluster needs three
times as long for a command, and the dicts that it makes of entries lose fields of the same name.
"""

from __future__ import annotations

import time
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
from korvet.spark.source.restraint import restraint_of
from korvet.spark.source.sentinel import find_primary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from korvet.spark.source.address import Address

CONNECT_TIMEOUT_S = 10
REPLY_TIMEOUT_S = 60
# Redirections (MOVED, ASK) that one command follows; more of them are a circle.
MOST_REDIRECTIONS = 5
# Where the (first) key of a command is, if not directly after the name.
_KEY_AT: dict[object, int] = {"XINFO": 2, "MEMORY": 2, "EVAL_RO": 3}
Node = tuple[str, int]
Arguments = tuple[str | bytes | int, ...]


class SourceConnection:
    """One raw connection; in a cluster one to each node, selected by the command's key.

    Raises SourceError if Redis can't be reached or the address's max_cpu can't be kept, RedisError if Redis
    refuses a command.
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
        # Connections that redis-py parses, because the user may not ECHO or hiredis is missing.
        self._parsed_by_redis_py: set[Any] = set()
        self._first = self._reach()
        self._nodes: dict[Node, Any] = {}
        # The command for a page without a reply yet, and its connection.
        self._asked: tuple[Any, Arguments] | None = None
        # (first slot, last slot, node); empty without a cluster.
        self._map: list[tuple[int, int, Node]] = []
        self._map_is_old = True
        if address.max_cpu is not None:
            # A refusal is found by the driver, before there are tasks.
            self._busy_seconds(self._first)

    def _reach(self) -> Any:
        """A connection to the first server that answers, or to the primary that sentinels know."""
        reason: Exception | None = None
        sentinels = self._address.sentinels()
        if sentinels is None:
            urls = self._address.server_urls()
        else:
            urls = [self._address.primary_url(*find_primary(sentinels))]
        for url in urls:
            self._url = url
            try:
                found = self._open(None)
                if sentinels is not None:
                    _require_primary(found)
                return found
            except AuthenticationError as error:
                raise SourceError(
                    f"Redis at {self._address.url} refuses the user or the password: {error}"
                ) from None
            except (RedisError, OSError, ValueError) as error:
                reason = error
        raise SourceError(f"no usable Redis at {self._address.url}: {reason}") from None

    def _open(self, node: Node | None) -> Any:
        """A new connection to the node; if `node` is None, to the server in the URL."""
        pool: Any = redis.ConnectionPool.from_url(self._url, **self._options)
        if node is not None:
            if pool.connection_kwargs.pop("path", None) is not None:
                pool.connection_class = redis.Connection
            pool.connection_kwargs.update(host=node[0], port=node[1])
        raw = pool.make_connection()
        raw.connect()
        try:
            raw.send_command("ECHO", END_OF_PAGE)
            _unparsed(raw)
        except ResponseError:
            self._parsed_by_redis_py.add(raw)
        if not HAS_HIREDIS:
            self._parsed_by_redis_py.add(raw)
        return raw

    def _read_map(self) -> None:
        self._map_is_old = False
        self._first.send_command("CLUSTER", "SLOTS")
        try:
            found = _unparsed(self._first)
        except ResponseError:
            # Redis is not a cluster.
            return
        asked = urlsplit(self._url).hostname or "localhost"
        self._map = [
            (first, last, (primary[0].decode() if primary[0] else asked, primary[1]))
            for first, last, primary, *_ in found
        ]

    def _raw_for(self, key: str | bytes | int) -> Any:
        if self._map_is_old:
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
        """Close the sockets. A second call does nothing."""
        for raw in (self._first, *self._nodes.values()):
            raw.disconnect()

    def send_for_page(self, *arguments: str | bytes | int) -> None:
        """Send a command that returns entries. `page` must return them before any other command is sent.

        Waits before that while Redis is busier than the address's max_cpu allows.
        """
        assert self._asked is None
        raw = self._raw_for(_key_of(arguments))
        self._wait_for(raw)
        end = [] if raw in self._parsed_by_redis_py else [("ECHO", END_OF_PAGE)]
        raw.send_packed_command(raw.pack_commands([arguments, *end]))
        self._asked = raw, arguments

    def _wait_for(self, raw: Any) -> None:
        bound = self._address.max_cpu
        if bound is None:
            return
        restraint = restraint_of(getattr(raw, "path", None) or f"{raw.host}:{raw.port}", bound)
        while pause_s := restraint.pause_s(time.monotonic(), lambda: self._busy_seconds(raw)):
            time.sleep(pause_s)

    def _busy_seconds(self, raw: Any) -> float:
        """The CPU time of a server's main thread so far, of the whole server if it does not report that.

        Command INFO. Raises SourceError if the user may not ask.
        """
        raw.send_command("INFO", "cpu")
        try:
            return cpu_seconds(self._reply(raw, ("INFO", "cpu"), _unparsed))
        except ResponseError as error:
            raise SourceError(
                f"maxRedisCpu needs INFO, which Redis at {self._address.url} refuses: {error}"
            ) from None

    def page(self) -> Page:
        """Return the page of the last `send_for_page`. Raises ResponseError for an error reply."""
        assert self._asked is not None
        (raw, arguments), self._asked = self._asked, None
        read = _unparsed if raw in self._parsed_by_redis_py else read_page
        found: Page | list[Entry] = self._reply(raw, arguments, read)
        return found if isinstance(found, Page) else Page.of(found)

    def drop_page(self) -> None:
        """Read the page of a `send_for_page` that nobody needs any more, if there is one."""
        if self._asked is not None:
            self.page()

    def _reply(self, raw: Any, arguments: Arguments, read: Callable[[Any], Any]) -> Any:
        """The reply to a command that was sent on a connection. Raises ResponseError for an error reply."""
        try:
            return read(raw)
        except AskError as error:
            return self._reply_elsewhere(arguments, error)
        except (LinkError, LinkTimeout) as error:
            raise SourceError(
                f"the connection to Redis at {self._address.url} failed during {arguments[0]!r} of "
                f"{_key_of(arguments)!r}: {error}"
            ) from None

    def _reply_elsewhere(self, arguments: Arguments, error: AskError) -> Any:
        """Send the command on a new connection to the key's new node: moved (MOVED) or moving (ASK)."""
        self._map_is_old = True
        for _ in range(MOST_REDIRECTIONS):
            raw = self._open((error.host, error.port))
            try:
                if not isinstance(error, MovedError):
                    raw.send_command("ASKING")
                    raw.read_response()
                raw.send_command(*arguments)
                return _unparsed(raw)
            except AskError as again:
                error = again
            finally:
                raw.disconnect()
        raise error

    def call(self, *arguments: str | bytes | int) -> Any:
        """Send one command and return its reply, without decoding bytes. Raises ResponseError."""
        return self.pipeline([arguments])[0]

    def pipeline(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send the commands together and return their replies. Raises the first error after all replies."""
        replies = self.replies(commands)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return replies

    def paced(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send commands about one key, which take Redis some time, and return their replies.

        Waits before them as send_for_page does. Raises as `pipeline` does.
        """
        self._wait_for(self._raw_for(_key_of(commands[0])))
        return self.pipeline(commands)

    def replies(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send the commands together and return their replies, error replies included."""
        by_raw: dict[Any, list[Arguments]] = {}
        raws = [self._raw_for(_key_of(command)) for command in commands]
        for raw, command in zip(raws, commands, strict=True):
            by_raw.setdefault(raw, []).append(command)
        for raw, some in by_raw.items():
            raw.send_packed_command(raw.pack_commands(some))
        replies: list[Any] = []
        for raw, command in zip(raws, commands, strict=True):
            try:
                replies.append(self._reply(raw, command, _unparsed))
            except ResponseError as error:
                replies.append(error)
        return replies


def _unparsed(raw: Any) -> Any:
    """The next reply, without decoding bytes."""
    return raw.read_response(disable_decoding=True)


def _require_primary(raw: Any) -> None:
    """Raise RedisError if the server is a replica: a failover is in progress. Command HELLO."""
    raw.send_command("HELLO")
    words = _unparsed(raw)
    if dict(zip(words[::2], words[1::2], strict=True))[b"role"] != b"master":
        raw.disconnect()
        raise RedisError("it is a replica, although the sentinels name it the primary")


def cpu_seconds(info: bytes) -> float:
    """Return the CPU time of the main thread in a reply to INFO cpu; of all threads if it has no such field.

    Raises SourceError without either.
    """
    fields = dict(line.split(":", 1) for line in info.decode().split("\r\n") if ":" in line)
    for thread in ("_main_thread", ""):
        parts = [fields.get(f"used_cpu_{kind}{thread}") for kind in ("user", "sys")]
        if None not in parts:
            return sum(float(part) for part in parts if part is not None)
    raise SourceError("maxRedisCpu needs used_cpu_user and used_cpu_sys, which INFO cpu doesn't show")


def _key_of(arguments: Arguments) -> str | bytes | int:
    return arguments[_KEY_AT.get(arguments[0], 1)]


@contextmanager
def connected(address: Address) -> Iterator[SourceConnection]:
    """Return a connection that is closed at the end of the block."""
    connection = SourceConnection(address)
    try:
        yield connection
    finally:
        connection.close()
