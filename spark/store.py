"""What the data source asks of Redis: the catalogue, the bounds of streams, pages of entries.

A raw redis-py connection (RESP2, hiredis): no command objects and no decoding, which is most of the cost of
a read.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
from redis.exceptions import RedisError, ResponseError

from korvet.offsets.packing import MAX_OFFSET, AddressError, entry_id, offset_of, position_of
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


class SourceError(ValueError):
    """Something the user asked of the korvet source can't be done; the message says what and what to do."""


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis server and the keyspace in it. The password is apart from the URL and never in a repr."""

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
    """A part of one partition:
    the offsets start_offset .. end_offset - 1; `entries` is how many the stream holds.
    """

    stream: str
    origin: Origin
    start_offset: int
    end_offset: int
    entries: int


class Connection:
    """One raw connection.

    Raises SourceError when Redis can't be reached, RedisError when it refuses a command.
    """

    def __init__(self, address: Address) -> None:
        options: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": REPLY_TIMEOUT_S,
        }
        if address.password is not None:
            options["password"] = address.password
        pool: Any = redis.ConnectionPool.from_url(address.url, **options)
        self._raw = pool.make_connection()
        try:
            self._raw.connect()
        except RedisError as error:
            raise SourceError(f"no usable Redis at {address.url}: {error}") from error

    def close(self) -> None:
        """Close the socket; calling it again does nothing."""
        self._raw.disconnect()

    def send(self, *arguments: str | bytes | int) -> None:
        """Send one command; its reply is the next one that `reply` gives."""
        self._raw.send_command(*arguments)

    def reply(self) -> Any:
        """The reply of the oldest command not yet answered, bytes undecoded.

        Raises ResponseError for an error reply.
        """
        return self._raw.read_response(disable_decoding=True)

    def call(self, *arguments: str | bytes | int) -> Any:
        """One command and its reply."""
        self.send(*arguments)
        return self.reply()

    def pipeline(self, commands: Sequence[tuple[str | bytes | int, ...]]) -> list[Any]:
        """Many commands in one go; an error reply is raised after all replies are read."""
        if not commands:
            return []
        self._raw.send_packed_command(self._raw.pack_commands(commands))
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
    commands: list[tuple[str | bytes | int, ...]] = []
    for topic, partition in places:
        stream = address.stream(topic.name, partition)
        commands += [("XLEN", stream), ("XREVRANGE", stream, "+", "-", "COUNT", 1)]
    replies = connection.pipeline(commands)
    ranges = []
    for (topic, partition), entries, tail in zip(places, replies[::2], replies[1::2], strict=True):
        if tail:
            origin = topic.origin(partition)
            end = _end_offset(tail[0][0], origin.bias)
            ranges.append(StreamRange(address.stream(topic.name, partition), origin, 0, end, entries))
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
    """The entries of a range, page by page (XRANGE). The next page is asked for before the caller works on
    this one.

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
            return


def _next_count(page: Sequence[Entry], count: int) -> int:
    sample = page[:: max(1, len(page) // PAGE_SAMPLE_ENTRIES)]
    mean = sum(sum(map(len, entry[1])) for entry in sample) // len(sample) + 1
    return max(1, min(MAX_PAGE_ENTRIES, 4 * count, PAGE_TARGET_BYTES // mean))
