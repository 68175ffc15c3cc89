"""What the data source asks of Redis: the catalogue, the bounds of streams, pages of entries.

Raw redis-py connections (RESP2, hiredis): no command objects and no decoding, which is most of the cost of
a read. In a Redis Cluster there is one to each node that is asked.
"""

from __future__ import annotations

import json
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, RedisError, ResponseError

from korvet.offsets.packing import MAX_OFFSET, AddressError, entry_id, offset_of, position_of
from korvet.spark.batches import batch_records
from korvet.spark.entries import CREATE_TIME, LOG_APPEND_TIME, Entry, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEFAULT_URL = "redis://127.0.0.1:6379"
DEFAULT_KEYSPACE = "korvet"
OFFSETS_TOPIC = "__consumer_offsets"

CONNECT_TIMEOUT_S = 10
REPLY_TIMEOUT_S = 60
# The first page is small, since its entries may be large; then pages grow to what fits the target.
FIRST_PAGE_ENTRIES = 64
MAX_PAGE_ENTRIES = 1000
PAGE_TARGET_BYTES = 4 << 20
PAGE_SAMPLE_ENTRIES = 16
# A key that is sent after more often than this is chased in circles.
MOST_REDIRECTIONS = 5

Node = tuple[str, int]
Arguments = tuple[str | bytes | int, ...]


class SourceError(ValueError):
    """Something the user asked of the korvet source can't be done; the message says what and what to do."""


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis server, or nodes of a cluster, and the keyspace in it.

    The password is apart from the URL and never in a repr. Hosts of several nodes are separated by commas.
    """

    url: str = DEFAULT_URL
    password: str | None = field(default=None, repr=False)
    keyspace: str = DEFAULT_KEYSPACE

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            password = parts.password
        except ValueError as error:
            raise SourceError("the redis URL can't be parsed") from error
        if password is not None:
            raise SourceError(
                "leave the password out of the redis URL (plans and logs show it): use redis.password"
            )
        if parts.scheme not in {"redis", "rediss", "unix"}:
            raise SourceError("the redis URL starts with redis://, rediss:// or unix://")
        if not self.keyspace or any(brace in self.keyspace for brace in "{}"):
            raise SourceError(f"{self.keyspace!r} is no keyspace name: it is not empty and holds no braces")

    def server_urls(self) -> list[str]:
        """A URL for each node named."""
        parts = urlsplit(self.url)
        if "," not in parts.netloc:
            return [self.url]
        user, at, places = parts.netloc.rpartition("@")
        return [urlunsplit(parts._replace(netloc=user + at + place)) for place in places.split(",")]

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

    def origin(self, partition: int) -> Origin:
        """What all records of one partition share."""
        return Origin(self.name, partition, 1 if self.dense else 0, self.timestamp_type, self.native_field)


@dataclass(frozen=True, slots=True)
class StreamRange:
    """A part of one partition: the offsets start_offset .. end_offset - 1.

    `records` is about how many the stream holds; of batches, if all were like the last one.
    """

    stream: str
    origin: Origin
    start_offset: int
    end_offset: int
    records: int


class Connection:
    """One raw connection, or in a cluster one for each node. The first argument of a command is its key.

    Raises SourceError when Redis can't be reached, RedisError when it refuses a command.
    """

    def __init__(self, address: Address) -> None:
        self._options: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": REPLY_TIMEOUT_S,
        }
        if address.password is not None:
            self._options["password"] = address.password
        self._address = address
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
            except RedisError as error:
                reason = error
        raise SourceError(f"no usable Redis at {self._address.url}: {reason}") from reason

    def _open(self, node: Node | None) -> Any:
        """A new connection; to the server of the URL where no node is named."""
        pool: Any = redis.ConnectionPool.from_url(self._url, **self._options)
        if node is not None:
            if pool.connection_kwargs.pop("path", None) is not None:
                pool.connection_class = redis.Connection
            pool.connection_kwargs.update(host=node[0], port=node[1])
        raw = pool.make_connection()
        raw.connect()
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
        raw = self._raw_for(arguments[1])
        raw.send_command(*arguments)
        self._asked.append((raw, arguments))

    def reply(self) -> Any:
        """The reply of the oldest command not yet answered, bytes undecoded.

        Raises ResponseError for an error reply.
        """
        raw, arguments = self._asked.popleft()
        try:
            return raw.read_response(disable_decoding=True)
        except AskError as error:
            return self._reply_elsewhere(arguments, error)

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
        by_raw: dict[Any, list[Arguments]] = {}
        raws = [self._raw_for(command[1]) for command in commands]
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
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return replies


@contextmanager
def connected(address: Address) -> Iterator[Connection]:
    """A connection that is closed at the end of the block."""
    connection = Connection(address)
    try:
        yield connection
    finally:
        connection.close()


def load_topics(connection: Connection, address: Address) -> dict[str, TopicInfo]:
    """All topics of the keyspace (HGETALL of the catalogue), by name.

    Raises SourceError for an unreadable entry.
    """
    flat = connection.call("HGETALL", address.topics_key)
    topics = {}
    for name, text in zip(flat[::2], flat[1::2], strict=True):
        topic = _topic_info(name.decode(), text)
        if topic is not None:
            topics[topic.name] = topic
    return topics


def _topic_info(name: str, text: bytes) -> TopicInfo | None:
    """The topic; None for one that is being deleted."""
    try:
        document = json.loads(text)
        if document.get("deleting"):
            return None
        configs: Mapping[str, str] = document.get("configs") or {}
        assignment = document.get("offset_assignment") or configs.get("offset.assignment") or "clock"
        native_format = configs.get("native.format", "json")
        timestamp_type = configs.get("message.timestamp.type", "CreateTime")
        return TopicInfo(
            name=name,
            partitions=int(document["partitions"]),
            dense=assignment == "dense" or name == OFFSETS_TOPIC,
            timestamp_type=LOG_APPEND_TIME if timestamp_type == "LogAppendTime" else CREATE_TIME,
            internal=bool(document.get("internal", name == OFFSETS_TOPIC)),
            native_field=native_format.removeprefix("field:").encode() if native_format != "json" else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"the catalogue entry of topic {name!r} can't be read: {error!r}") from error


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


def bounds(connection: Connection, address: Address, topics: Sequence[TopicInfo]) -> list[StreamRange]:
    """Every non-empty partition of the topics, from offset 0 to behind the last entry of this moment."""
    places = [(topic, partition) for topic in topics for partition in range(topic.partitions)]
    commands: list[Arguments] = []
    for topic, partition in places:
        stream = address.stream(topic.name, partition)
        commands += [("XLEN", stream), ("XREVRANGE", stream, "+", "-", "COUNT", 1)]
    replies = connection.pipeline(commands)
    ranges = []
    for (topic, partition), entries, tail in zip(places, replies[::2], replies[1::2], strict=True):
        if tail:
            origin = topic.origin(partition)
            last_id, fields = tail[0]
            end = _end_offset(last_id, origin.bias)
            records = entries * (batch_records(fields, end - 1) or 1)
            ranges.append(StreamRange(address.stream(topic.name, partition), origin, 0, end, records))
    return ranges


def _end_offset(last_id: bytes, bias: int) -> int:
    """One above the last entry's offset;
    above an entry that has no offset it is where the next one could be.
    """
    try:
        return min(offset_of(last_id, bias) + 1, MAX_OFFSET)
    except AddressError:
        pass
    try:
        return position_of(last_id, bias)
    except AddressError:
        return MAX_OFFSET


def log_ends(
    connection: Connection, address: Address, topics: Sequence[TopicInfo]
) -> dict[tuple[str, int], int]:
    """Offset behind the last entry of every partition; 0 for one without entries."""
    ends = {(topic.name, partition): 0 for topic in topics for partition in range(topic.partitions)}
    for part in bounds(connection, address, topics):
        ends[(part.origin.topic, part.origin.partition)] = part.end_offset
    return ends


def pages(connection: Connection, part: StreamRange) -> Iterator[list[Entry]]:
    """The entries of a range, page by page (XRANGE), a batch that begins in it and ends behind it included.
    The next page is asked for before the caller works on this one.

    The pages hold about PAGE_TARGET_BYTES, judged by a sample of the page before. Abandoned half-way, the
    connection still has a reply coming: close it.
    """
    if part.end_offset <= part.start_offset:
        return
    end = b"(" + entry_id(part.end_offset, part.origin.bias).encode()
    count = FIRST_PAGE_ENTRIES
    connection.send("XRANGE", part.stream, entry_id(part.start_offset, part.origin.bias), end, "COUNT", count)
    while True:
        page: list[Entry] = connection.reply()
        more = len(page) == count
        if more:
            count = _next_count(page, count)
            connection.send("XRANGE", part.stream, b"(" + page[-1][0], end, "COUNT", count)
        if page:
            yield page
        if not more:
            break
    behind: list[Entry] = connection.call(
        "XRANGE", part.stream, entry_id(part.end_offset, part.origin.bias), "+", "COUNT", 1
    )
    if behind and _begins_before(behind[0], part):
        yield behind


def _begins_before(entry: Entry, part: StreamRange) -> bool:
    """Whether an entry that ends behind a range is a batch that begins in it."""
    try:
        last_offset = offset_of(entry[0], part.origin.bias)
    except AddressError:
        return False
    records = batch_records(entry[1], last_offset)
    return records is not None and last_offset - records + 1 < part.end_offset


def _next_count(page: Sequence[Entry], count: int) -> int:
    sample = page[:: max(1, len(page) // PAGE_SAMPLE_ENTRIES)]
    mean = sum(sum(map(len, entry[1])) for entry in sample) // len(sample) + 1
    return max(1, min(MAX_PAGE_ENTRIES, 4 * count, PAGE_TARGET_BYTES // mean))
