"""What the data source asks of Redis: the catalogue, the bounds of streams, pages of entries.

Raw redis-py connections (RESP2, hiredis): no command objects and no decoding, which is most of the cost of
a read. In a Redis Cluster there is one to each node that is asked.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

import redis
from redis.crc import key_slot
from redis.exceptions import AskError, AuthenticationError, MovedError, RedisError, ResponseError
from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import TimeoutError as LinkTimeout

from korvet.offsets.packing import MAX_OFFSET, AddressError, entry_id, offset_of, position_of
from korvet.spark.records.batches import batch_records
from korvet.spark.records.entries import CREATE_TIME, LOG_APPEND_TIME, Origin
from korvet.spark.records.replies import END_OF_PAGE, WHOLE_PAGES, Entry, PageParser, Reply, read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence

DEFAULT_URL = "redis://127.0.0.1:6379"
DEFAULT_KEYSPACE = "korvet"
OFFSETS_TOPIC = "__consumer_offsets"

CONNECT_TIMEOUT_S = 10
REPLY_TIMEOUT_S = 60
# The first page is small, since its entries may be large; then pages grow to what fits the target.
FIRST_PAGE_ENTRIES = 64
MAX_PAGE_ENTRIES = 2000
PAGE_TARGET_BYTES = 4 << 20
# Korvet's meta hash has its numbers as big-endian doubles in the field `log`; the third is the log start. In
# the field `gap` is the position of the first entry that compaction left.
_LOG_NUMBERS = struct.Struct(">14d")
_LOG_START = 2
# What is before a URL's nodes, and these: host:port,host:port.
_NODES = re.compile(r"(?P<before>[^/?#]*//(?:[^/?#]*@)?)(?P<nodes>[^/?#]*)")
# A key that is sent after more often than this is chased in circles.
MOST_REDIRECTIONS = 5

# As many as a broker takes for a topic.
_MOST_PARTITIONS = 1_000_000
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)

log = logging.getLogger(__name__)

Node = tuple[str, int]
Arguments = tuple[str | bytes | int, ...]


class SourceError(ValueError):
    """Something the user asked of the korvet source can't be done; the message says what and what to do."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, or where each process that connects finds it: a file, an environment variable.

    Its value is in no repr and no message. Raises SourceError where there is more than one of the three.
    """

    name: str = "redis.password"
    value: str | None = field(default=None, repr=False)
    file: str | None = None
    variable: str | None = None

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.value, self.file, self.variable)) > 1:
            raise SourceError(f"give one of {self.name}, {self.name}File and {self.name}Env")

    def reveal(self) -> str | None:
        """The secret; None where there is none. Raises SourceError for one that can't be read here."""
        if self.file is not None:
            try:
                return Path(self.file).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise SourceError(f"{self.name}File {self.file} can't be read: {reason}") from None
        if self.variable is not None:
            found = os.environ.get(self.variable)
            if found is None:
                raise SourceError(
                    f"{self.name}Env names {self.variable}, which this process (a driver's or an executor's) "
                    "does not have"
                )
            return found
        return self.value


@dataclass(frozen=True, slots=True)
class Tls:
    """How rediss:// checks the server and shows who it is: PEM files, read by each process that connects."""

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: Secret = field(default_factory=lambda: Secret("redis.ssl.keyPassword"))
    check_hostname: bool = True

    def arguments(self) -> dict[str, Any]:
        """For redis-py. Raises SourceError for a file or a secret that is not there."""
        named = {
            "redis.ssl.ca": self.ca_file,
            "redis.ssl.cert": self.certificate_file,
            "redis.ssl.key": self.key_file,
        }
        for option, file in named.items():
            if file is not None and not os.access(file, os.R_OK):
                raise SourceError(f"{option}: there is no readable file {file}")
        return {
            "ssl_cert_reqs": "required",
            "ssl_ca_certs": self.ca_file,
            "ssl_certfile": self.certificate_file,
            "ssl_keyfile": self.key_file,
            "ssl_password": self.key_password.reveal(),
            "ssl_check_hostname": self.check_hostname,
        }


def split_url(url: str) -> list[SplitResult]:
    """The parts of a Redis URL, once for each node that it names.

    Python's urlsplit takes no IPv6 address behind a comma. Raises ValueError.
    """
    found = _NODES.match(url)
    if found is None:
        return [urlsplit(url)]
    before, nodes, rest = found["before"], found["nodes"], url[found.end() :]
    return [urlsplit(before + node + rest) for node in nodes.split(",")]


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis server, or nodes of a cluster, and the keyspace in it.

    The password is apart from the URL. Hosts of several nodes are separated by commas.
    """

    url: str = DEFAULT_URL
    keyspace: str = DEFAULT_KEYSPACE
    user: str | None = None
    password: Secret = field(default_factory=Secret)
    tls: Tls | None = None

    def __post_init__(self) -> None:
        try:
            parts = split_url(self.url)[0]
            password, user = parts.password, parts.username
            query = set(parse_qs(parts.query, keep_blank_values=True))
        except ValueError:
            raise SourceError("the redis URL can't be parsed") from None
        if password is not None or "password" in query:
            raise SourceError(
                "leave the password out of the redis URL (plans and logs show it): use redis.password"
            )
        if parts.scheme not in {"redis", "rediss", "unix"}:
            raise SourceError("the redis URL starts with redis://, rediss:// or unix://")
        if query - {"db"}:
            raise SourceError("the redis URL has nothing but db behind its question mark")
        if user and self.user:
            raise SourceError("the user is in the redis URL or in redis.user, not in both")
        if self.tls is not None and parts.scheme != "rediss":
            raise SourceError("the options redis.ssl.* need a redis URL that starts with rediss://")
        if not self.keyspace or any(brace in self.keyspace for brace in "{}"):
            raise SourceError(f"{self.keyspace!r} is no keyspace name: it is not empty and holds no braces")

    def arguments(self) -> dict[str, Any]:
        """What redis-py needs beside the URL. Raises SourceError for a file or a secret that is not there."""
        found: dict[str, Any] = {}
        password = self.password.reveal()
        if password is not None:
            found["password"] = password
        if self.user is not None:
            found["username"] = self.user
        if self.tls is not None:
            found.update(self.tls.arguments())
        return found

    def server_urls(self) -> list[str]:
        """A URL for each node named."""
        nodes = split_url(self.url)
        return [self.url] if len(nodes) == 1 else [urlunsplit(parts) for parts in nodes]

    def stream(self, topic: str, partition: int) -> str:
        """The key of a partition's stream."""
        return f"{self.keyspace}:{topic}:{partition}"

    @property
    def topics_key(self) -> str:
        """The key of the catalogue, a hash of topic name to JSON."""
        return f"{{{self.keyspace}}}:topics"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the catalogue describes it."""

    name: str
    partitions: int
    dense: bool
    timestamp_type: int
    internal: bool
    native_field: bytes | None
    compacted: bool = False
    topic_id: str = ""
    """Tells a topic from an earlier one of its name; empty where the catalogue has none."""
    append_times: bool = False
    """Whether the times in entry IDs are the records' timestamps."""

    def origin(self, partition: int) -> Origin:
        """What all records of one partition share."""
        bias = 1 if self.dense else 0
        return Origin(
            self.name, partition, bias, self.timestamp_type, self.native_field, append_times=self.append_times
        )


Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far one partition reaches at one moment (XINFO STREAM).

    The log starts at 0 until something is gone, then at the first record there is. It ends behind the last
    record there ever was. `first_offset` is that of the first record, log_end where there is none. `added`
    counts the entries that there ever were, `entries` those that are left, `batch` records of the last one.
    """

    stream: str
    origin: Origin
    log_start: int = 0
    log_end: int = 0
    first_offset: int = 0
    entries: int = 0
    added: int = 0
    batch: int = 1

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.origin.topic, self.origin.partition

    @property
    def index(self) -> str:
        """The key of the sparse index."""
        return f"{{{self.stream}}}:index"

    @property
    def records(self) -> int:
        """About how many records there are: if all entries were like the last one."""
        return self.entries * self.batch


@dataclass(frozen=True, slots=True)
class StreamRange:
    """A part of one partition: the offsets start_offset .. end_offset - 1, about `records` of them.

    `first_id` is the entry with which it began when it was planned: where that is gone, something is lost.
    Outcomes of transactions are looked for below `log_end`.
    """

    stream: str
    origin: Origin
    start_offset: int
    end_offset: int
    records: int
    log_end: int
    first_id: bytes | None = None


class Connection:
    """One raw connection, or in a cluster one for each node, which a command's key tells.

    Raises SourceError when Redis can't be reached, RedisError when it refuses a command.
    """

    def __init__(self, address: Address) -> None:
        self._options: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": REPLY_TIMEOUT_S,
            **({"parser_class": PageParser} if WHOLE_PAGES else {}),
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
        if not WHOLE_PAGES:
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

    def page(self) -> Reply:
        """The reply of the oldest command not yet answered. Raises ResponseError for an error reply."""

        def read(raw: Any) -> Any:
            return raw.read_response(disable_decoding=True) if raw in self._mute else read_page(raw)

        found: Reply | list[Entry] = self._take(read)
        return found if isinstance(found, Reply) else Reply.of(found)

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


def check_keyspace(connection: Connection, address: Address) -> None:
    """Raises SourceError where Redis holds nothing of the keyspace: no korvet has worked on it."""
    keys = (address.topics_key, f"{{{address.keyspace}}}:cluster")
    if not connection.call("EXISTS", *keys):
        raise SourceError(
            f"there is no keyspace {address.keyspace!r} in Redis at {address.url}: name the one that "
            "`korvet serve` works on, by --keyspace, or another Redis"
        )


def load_topics(
    connection: Connection, address: Address, named: Collection[str] = ()
) -> dict[str, TopicInfo]:
    """All topics of the keyspace (HGETALL of the catalogue), by name.

    A topic that cannot be read is left out with a warning, as brokers do. Raises SourceError if it is one of
    those `named`.
    """
    flat = connection.call("HGETALL", address.topics_key)
    topics = {}
    for field_name, text in zip(flat[::2], flat[1::2], strict=True):
        try:
            topic = _topic_info(field_name.decode(), text)
        except _UNREADABLE as error:
            shown = field_name.decode(errors="backslashreplace")
            problem = (
                f"{address.topics_key}: topic {shown!r} can't be read: {str(error) or type(error).__name__}"
            )
            if shown in named:
                raise SourceError(f"{problem} (`korvet doctor` names such topics)") from error
            _warn_once(f"{problem}; it is left out")
            continue
        if topic is not None:
            topics[topic.name] = topic
    return topics


@lru_cache(maxsize=1000)
def _warn_once(text: str) -> None:
    """A stream reads the catalogue for every micro-batch."""
    log.warning("%s", text)


def _topic_info(name: str, text: bytes) -> TopicInfo | None:
    """The topic; None for one that is being deleted. Raises one of _UNREADABLE."""
    document = json.loads(text)
    if document.get("name", name) != name:
        raise ValueError(f"it holds a topic of another name, {document['name']!r}")
    if document.get("deleting"):
        return None
    partitions = int(document["partitions"])
    if not 1 <= partitions <= _MOST_PARTITIONS:
        raise ValueError(f"{partitions} partitions: it has to be from 1 to {_MOST_PARTITIONS}")
    configs: Mapping[str, str] = document.get("configs") or {}
    policy = configs.get("cleanup.policy", "")
    assignment = document.get("offset_assignment") or configs.get("offset.assignment") or "clock"
    if assignment not in {"clock", "dense"}:
        raise ValueError(f"{assignment!r} is no offset assignment")
    native_format = configs.get("native.format", "json")
    timestamp_type = configs.get("message.timestamp.type", "CreateTime")
    dense, appended = assignment == "dense" or name == OFFSETS_TOPIC, timestamp_type == "LogAppendTime"
    return TopicInfo(
        name=name,
        partitions=partitions,
        dense=dense,
        timestamp_type=LOG_APPEND_TIME if appended else CREATE_TIME,
        internal=bool(document.get("internal", name == OFFSETS_TOPIC)),
        native_field=native_format.removeprefix("field:").encode() if native_format != "json" else None,
        compacted="compact" in policy or name == OFFSETS_TOPIC,
        topic_id=str(document.get("topic_id", "")),
        append_times=appended and not dense and document.get("storage_layout", "record") == "record",
    )


def select_topics(topics: Mapping[str, TopicInfo], names: Sequence[str], address: Address) -> list[TopicInfo]:
    """The named topics. Raises SourceError that names those which do not exist."""
    missing = [name for name in names if name not in topics]
    if missing:
        known = ", ".join(sorted(topics)) or "none"
        raise SourceError(
            f"no topic {', '.join(missing)} in keyspace {address.keyspace!r} of {address.url}; "
            f"topics there: {known}"
        )
    return [topics[name] for name in names]


def extents(
    connection: Connection,
    address: Address,
    topics: Sequence[TopicInfo],
    wanted: Collection[Place] | None = None,
) -> list[Extent]:
    """How far the partitions of these topics reach, in order; of those `wanted` where some are named."""
    places = [
        (topic, partition)
        for topic in topics
        for partition in range(topic.partitions)
        if wanted is None or (topic.name, partition) in wanted
    ]
    commands: list[Arguments] = []
    for topic, partition in places:
        stream = address.stream(topic.name, partition)
        commands += [("XINFO", "STREAM", stream), ("HMGET", f"{{{stream}}}:meta", "log", "gap")]
    replies = connection.replies(commands)
    found = []
    for (topic, partition), reply, meta in zip(places, replies[::2], replies[1::2], strict=True):
        extent = Extent(address.stream(topic.name, partition), topic.origin(partition))
        if isinstance(reply, ResponseError):
            if "no such key" not in str(reply):
                raise reply
        else:
            extent = _extent(extent, dict(zip(reply[::2], reply[1::2], strict=True)), meta)
        found.append(extent)
    return found


def _extent(empty: Extent, info: Mapping[bytes, Any], meta: Any) -> Extent:
    bias = empty.origin.bias
    entries, added = info[b"length"], info[b"entries-added"]
    end = _end_offset(info[b"last-generated-id"], bias)
    first, last = info[b"first-entry"], info[b"last-entry"]
    first_offset = start_offset(first, bias) if first else end
    log, gap = meta if isinstance(meta, list) else (None, None)
    start = 0
    if log is not None and len(log) == _LOG_NUMBERS.size:
        start = min(end, int(_LOG_NUMBERS.unpack(log)[_LOG_START]))
    # What compaction took before the entry `gap` moves no log start.
    if (start or added > entries) and first_offset + bias > int(gap or -1):
        start = max(start, first_offset)
    batch = batch_records(last[1], end - 1) or 1 if last else 1
    return replace(
        empty,
        log_start=start,
        log_end=end,
        first_offset=first_offset,
        entries=entries,
        added=added,
        batch=batch,
    )


def start_offset(entry: Entry, bias: int) -> int:
    """The offset of an entry's first record; of one that has none, where the next one could be."""
    end = _end_offset(entry[0], bias)
    try:
        last = offset_of(entry[0], bias)
    except AddressError:
        return end
    return end - (batch_records(entry[1], last) or 1)


def _end_offset(last_id: bytes, bias: int) -> int:
    """One above the last entry's offset; of one that has none, where the next entry could be."""
    if last_id == b"0-0":
        return 0
    try:
        return min(offset_of(last_id, bias) + 1, MAX_OFFSET)
    except AddressError:
        pass
    try:
        return position_of(last_id, bias)
    except AddressError:
        return MAX_OFFSET


class DataLoss(SourceError):
    """Records that should have been read are gone from Redis."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. To read what is left, set failOnDataLoss=false")


def pages(connection: Connection, part: StreamRange) -> Generator[Reply]:
    """The entries of a range, page by page (XRANGE), a batch that begins in it and ends behind it included.
    The next page is asked for before the caller works on this one.

    The pages hold about PAGE_TARGET_BYTES, judged by the page before. Close the generator before
    the connection is used for anything else. Where the range says which entry it begins with, each page
    is asked for from the last entry of the one before: while that is there, nothing behind it was trimmed.
    Raises DataLoss once something was.
    """
    if part.end_offset <= part.start_offset:
        return
    end = b"(" + entry_id(part.end_offset, part.origin.bias).encode()
    asked = FIRST_PAGE_ENTRIES
    begins_with, guarded, repeats = part.first_id, part.first_id is not None, False

    def ask(start: str | bytes) -> None:
        connection.send_for_page("XRANGE", part.stream, start, end, "COUNT", asked)

    def ask_behind(last_id: bytes) -> None:
        ask(last_id if guarded else b"(" + last_id)

    ask(entry_id(part.start_offset, part.origin.bias))
    more = True
    try:
        while more:
            page = connection.page()
            more, supposed = False, b""
            complete = page.first_id == begins_with
            if guarded and not complete:
                _check_start(connection, part, begins_with or b"")
            if len(page) == asked:
                asked = _next_count(page, asked) + guarded
                # Before anybody looks into this one, since that takes a while.
                supposed = page.probable_last_id()
                ask_behind(supposed)
                more = True
            empty = not len(page)
            if repeats and complete:
                page.drop_first()
            repeats = guarded
            if len(page):
                yield page
            if more and page.last_id != supposed:
                connection.page()
                ask_behind(page.last_id)
            begins_with = None if empty else page.last_id
    finally:
        if more:
            connection.page()
    behind: list[Entry] = connection.call(
        "XRANGE", part.stream, entry_id(part.end_offset, part.origin.bias), "+", "COUNT", 1
    )
    if behind and _begins_before(behind[0], part):
        yield Reply.of(behind)


def _check_start(connection: Connection, part: StreamRange, missing: bytes) -> None:
    """Raises DataLoss unless an entry before the missing one is left: then that one alone was deleted."""
    first: list[Entry] = connection.call("XRANGE", part.stream, "-", "(" + missing.decode(), "COUNT", 1)
    if not first:
        raise DataLoss(
            f"{part.origin.topic}-{part.origin.partition} was trimmed or deleted while it was read: entry "
            f"{missing.decode()} of stream {part.stream} is gone with all before it"
        )


def _begins_before(entry: Entry, part: StreamRange) -> bool:
    """Whether an entry that ends behind a range is a batch that begins in it."""
    try:
        last_offset = offset_of(entry[0], part.origin.bias)
    except AddressError:
        return False
    records = batch_records(entry[1], last_offset)
    return records is not None and last_offset - records + 1 < part.end_offset


def _next_count(page: Reply, count: int) -> int:
    return max(1, min(MAX_PAGE_ENTRIES, 4 * count, PAGE_TARGET_BYTES // (page.mean_bytes + 1)))
