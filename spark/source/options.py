"""Every option of the source and the sink, declared once: name, values, default, meaning, flag, variable.

Parsers of options, the flags of the commands and docs/reference/spark-options.md come from these tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from korvet.spark.source.address import DEFAULT_KEYSPACE, DEFAULT_URL, Secret
from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

T = TypeVar("T")
MAX_INT64: Final = (1 << 63) - 1
_DURATION: Final = re.compile(r"(\d{1,12})\s*(ms|s|m|min|h|d)?")
_UNITS_MS: Final = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Flag:
    """The flag of an option in the commands, and the environment variable."""

    name: str
    help: str
    metavar: str | None = None
    variable: str | None = None


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """An option. Spark passes names in any case.

    parse: makes the value of name and text; raises SourceError. shown: the default in the documentation.
    secret: the option is one of three, with File and Env after the name.
    """

    name: str
    about: str
    parse: Callable[[str, str], T]
    default: T
    shown: str = ""
    secret: bool = False
    flag: Flag | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The name, or the three names of a secret."""
        return (self.name, f"{self.name}File", f"{self.name}Env") if self.secret else (self.name,)


class Given:
    """The options of one read or write."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.texts = {name.lower(): text for name, text in options.items()}
        """By names in lower case."""

    def __contains__(self, option: Option[Any]) -> bool:
        return option.name.lower() in self.texts

    def __getitem__(self, option: Option[T]) -> T:
        """The value, or the default. Raises SourceError."""
        if option.secret:
            return Secret(option.name, *(self.texts.get(name.lower()) for name in option.names))  # type: ignore[return-value]
        text = self.texts.get(option.name.lower())
        return option.default if text is None else option.parse(option.name, text)

    def named(self, options: Collection[Option[Any]]) -> list[str]:
        """The names of those options that are given."""
        return [name for name in names_of(options) if name.lower() in self.texts]


def names_of(options: Collection[Option[Any]]) -> tuple[str, ...]:
    """Return all names of options."""
    return tuple(name for option in options for name in option.names)


def integer(text: str) -> int | None:
    """Return the decimal number in a text; None if it is none."""
    return int(text) if re.fullmatch(r"\s*-?[0-9]{1,19}\s*", text) else None


def as_text(name: str, text: str) -> str:
    """Return the text as it is."""
    return text


def boolean(name: str, text: str) -> bool:
    """Return a text that is true or false. Raises SourceError."""
    text = text.strip().lower()
    if text not in {"true", "false"}:
        raise SourceError(f"{name} must be true or false, not {text!r}")
    return text == "true"


def count(name: str, text: str) -> int:
    """Return a text that is a number above 0. Raises SourceError."""
    number = integer(text)
    if number is None or not 1 <= number <= MAX_INT64:
        raise SourceError(f"{name} must be a number above 0, not {text!r}")
    return number


def fraction(name: str, text: str) -> float:
    """Return a text that is a decimal number. Raises SourceError."""
    try:
        return float(text)
    except ValueError:
        raise SourceError(f"{name} must be a number like 0.5, not {text!r}") from None


def time_ms(name: str, text: str) -> int:
    """Return a text that is a time, in ms. Raises SourceError."""
    number = integer(text)
    if number is None or number < 0:
        raise SourceError(f"{name} must be a time in ms since 1970, not {text!r}")
    return number


def duration_ms(name: str, text: str) -> int:
    """Return a text that is a duration, in ms. Raises SourceError."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise SourceError(f"{name} must be a duration like 500ms, 30s or 15m, not {text!r}")
    return int(match[1]) * _UNITS_MS[match[2]]


def _choice(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        text = text.strip().lower()
        if text not in choices:
            raise SourceError(f"{name} must be one of {', '.join(choices)}, not {text!r}")
        return text

    return parse


def _unset(
    name: str, about: str, parse: Callable[[str, str], T], shown: str = "", flag: Flag | None = None
) -> Option[T | None]:
    return Option(name, about, parse, None, shown, flag=flag)


def _optional(name: str, about: str, flag: Flag | None = None) -> Option[str | None]:
    return _unset(name, about, as_text, flag=flag)


def _secret(name: str, about: str) -> Option[Secret]:
    return Option(name, about, Secret, Secret(name), secret=True)


def _switch(name: str, about: str, *, default: bool) -> Option[bool]:
    return Option(name, about, boolean, default, f"`{str(default).lower()}`")


# How to connect to Redis.
REDIS = Option(
    "redis",
    "URL: `redis://`, `rediss://` (TLS), `unix://`, several nodes of a cluster "
    "(`redis://one:6379,two:6379`), or [sentinels](../guides/sentinel.md) "
    "(`redis+sentinel://one,two/NAME`); never with a password",
    as_text,
    DEFAULT_URL,
    f"`{DEFAULT_URL}`",
    flag=Flag(
        "--redis",
        "The Redis that holds the data.  [default: the embedded server's, in --data-dir]",
        "URL",
        "KORVET_REDIS",
    ),
)
REDIS_USER = _optional(
    "redis.user",
    "the user, if the URL names none",
    Flag("--redis-user", "Redis user, if the URL names none.", "NAME", "KORVET_REDIS_USER"),
)
REDIS_PASSWORD = _secret(
    "redis.password",
    "the password, or the file or environment variable that contains it on the driver and every executor",
)
SENTINEL_PASSWORD = _secret("redis.sentinel.password", "the same for the password of the sentinels")
SSL_CA = _optional(
    "redis.ssl.ca",
    "for `rediss://`: PEM file of the trusted authorities, else the system's",
    Flag(
        "--redis-ca",
        "For rediss://: PEM file of the trusted authorities.  [default: the system's]",
        "FILE",
        "KORVET_REDIS_CA",
    ),
)
SSL_CERT = _optional(
    "redis.ssl.cert",
    "PEM file of the client's certificate",
    Flag("--redis-cert", "PEM file of the client's certificate.", "FILE", "KORVET_REDIS_CERT"),
)
SSL_KEY = _optional(
    "redis.ssl.key",
    "PEM file of its key",
    Flag("--redis-key", "PEM file of its key.", "FILE", "KORVET_REDIS_KEY"),
)
SSL_KEY_PASSWORD = _secret("redis.ssl.keyPassword", "the password of that key")
SSL_CHECK_HOSTNAME = _switch(
    "redis.ssl.checkHostname", "whether the server's certificate must name its host", default=True
)
TLS = (SSL_CA, SSL_CERT, SSL_KEY, SSL_KEY_PASSWORD, SSL_CHECK_HOSTNAME)
KEYSPACE = Option(
    "keyspace",
    "prefix of the keys",
    as_text,
    DEFAULT_KEYSPACE,
    f"`{DEFAULT_KEYSPACE}`",
    flag=Flag("--keyspace", "Prefix of the keys.", variable="KORVET_KEYSPACE"),
)
CONNECTION = (REDIS, REDIS_USER, REDIS_PASSWORD, SENTINEL_PASSWORD, *TLS, KEYSPACE)

# What to read, and from where to where. korvet.spark.source.settings parses the texts.
TOPIC = _optional("topic", "the name of a topic; one of these five is required")
TOPICS = (
    TOPIC,
    _optional("topics", "several names, separated by commas"),
    _optional("subscribe", "the same"),
    _optional(
        "subscribePattern",
        "a Python regular expression that must match the whole name; internal topics are left out",
    ),
    _optional("assign", 'partitions: `{"orders": [0, 1]}`'),
)
_JSON_OF_TIMES = (
    "JSON as of `startingOffsets`, with times in ms: {} the first record with that timestamp or a later one"
)
_ONE_TIME = "one such time for all partitions. Precedence: this, then times by partition, then offsets."
STARTING_STRATEGY = Option(
    "startingOffsetsByTimestampStrategy",
    "if no record is that new: `error`, or `latest` to start at the end",
    _choice("error", "latest"),
    "error",
    "`error`",
)
STARTING = (
    Option(
        "startingOffsets",
        '`earliest`, for streams also `latest`, or JSON `{"orders": {"0": 1234}}`; -2 is the beginning, -1 '
        "the end. Partitions that the JSON omits start at the beginning.",
        as_text,
        "earliest",
        "`earliest`, for streams too",
    ),
    _optional("startingOffsetsByTimestamp", _JSON_OF_TIMES.format("from")),
    _optional("startingTimestamp", _ONE_TIME),
    STARTING_STRATEGY,
)
ENDING = (
    Option(
        "endingOffsets",
        "`latest`, or such JSON; the offset itself is not read",
        as_text,
        "latest",
        "`latest`",
    ),
    _optional("endingOffsetsByTimestamp", _JSON_OF_TIMES.format("up to")),
    _optional("endingTimestamp", _ONE_TIME),
)

FAIL_ON_DATA_LOSS = _switch("failOnDataLoss", "`false`: if records are gone, read the rest", default=True)
ISOLATION_LEVEL = Option(
    "isolationLevel",
    "`read_committed`, or `read_uncommitted` to see records of open and aborted transactions",
    _choice("read_committed", "read_uncommitted"),
    "read_committed",
    "`read_committed`",
)
OPEN_TRANSACTIONS = Option(
    "openTransactions",
    "where `read_committed` stops: `wait` before the first open transaction, or `pass`: at the end, without "
    "the records of open transactions. `only`: a batch of nothing but these. "
    "[Transactions](../guides/spark-read.md#transactions)",
    _choice("wait", "pass", "only"),
    "wait",
    "`wait`",
)
INCLUDE_HEADERS = _switch("includeHeaders", "`false` leaves out the column `headers`", default=True)
MIN_PARTITIONS = Option("minPartitions", "the approximate least number of tasks", count, 1, "1")
# A task of more records is slow to repeat; with far fewer, most of the time is task start-up.
PARTITION_RECORDS = Option(
    "maxRecordsPerPartition",
    "the approximate largest number of records for one task",
    count,
    1_000_000,
    "1000000; in batches less, for [32 tasks](../guides/spark-read.md#tasks)",
)
MAX_REDIS_CPU = _unset(
    "maxRedisCpu",
    "read only as fast as keeps Redis's main thread below this part of its time, for example `0.5` "
    "([below](../guides/spark-read.md#load-of-redis))",
    fraction,
    "no limit",
    flag=Flag(
        "--max-redis-cpu",
        "Read only as fast as keeps Redis's main thread, with all its clients, below this part of its time, "
        "for example 0.5.",
        "PART",
    ),
)
TRIGGER_RECORDS = _unset(
    "maxRecordsPerTrigger",
    "streams, Spark 4.2: the largest number of records in a batch, distributed in proportion to what each "
    "partition has",
    count,
    "no limit",
)
LEAST_TRIGGER_RECORDS = _unset(
    "minRecordsPerTrigger",
    "streams, Spark 4.2: wait for about this number of records, at most `maxTriggerDelay`",
    count,
    "no wait",
)
TRIGGER_DELAY = Option(
    "maxTriggerDelay",
    "streams, Spark 4.2: the longest wait for these: `500ms`, `30s`, `15m`",
    duration_ms,
    15 * 60_000,
    "`15m`",
)
STREAM = (TRIGGER_RECORDS, LEAST_TRIGGER_RECORDS, TRIGGER_DELAY)
PUSHDOWN = _switch(
    "pushdown",
    "`true`: filters limit what is read (Spark 4.1 or newer); also set "
    "`spark.sql.python.filterPushdown.enabled=true`",
    default=False,
)
NEWEST_COMMITS = _unset(
    "newestCommits",
    "batches of `__consumer_offsets`: each task returns only the records on groups, and so many of the "
    "newest commits that it has read of each group, topic and partition",
    count,
    "all records",
)
NEWEST_UNTIL = _unset(
    "newestCommitsUntil",
    "the same: records with a later timestamp don't count (ms)",
    time_ms,
    "no limit",
)
NEWEST = (NEWEST_COMMITS, NEWEST_UNTIL)
BATCH = (*ENDING, *NEWEST)
SOURCE = (
    *CONNECTION,
    *TOPICS,
    *STARTING,
    *ENDING,
    FAIL_ON_DATA_LOSS,
    ISOLATION_LEVEL,
    OPEN_TRANSACTIONS,
    INCLUDE_HEADERS,
    MIN_PARTITIONS,
    PARTITION_RECORDS,
    MAX_REDIS_CPU,
    *STREAM,
    PUSHDOWN,
    *NEWEST,
)

# The sink.
BOOTSTRAP = Option(
    "kafka.bootstrap.servers",
    "the brokers to ask first: `host:9092,other:9092`",
    as_text,
    "127.0.0.1:9092",
    "`127.0.0.1:9092`",
)
SINK_TOPIC = _optional("topic", "the topic of all rows")
JOB_ID = _unset(
    "jobId",
    "batches: names the job. A job with the same ID and the same rows writes only what is missing.",
    as_text,
    "a new one",
)
SORT_ROWS = _switch(
    "sortRows", "`true`: tasks sort their rows ([why](../guides/spark-write.md#each-row-once))", default=False
)
JOB_RATE = _unset("maxRecordsPerSecond", "a limit for the job. Each task gets its part.", count, "no limit")
CONCURRENT_TASKS = _unset(
    "concurrentTasks",
    "the number of tasks that run at once; needed with `maxRecordsPerSecond`",
    count,
)
PROGRESS_TOPIC = Option(
    "progressTopic",
    "the topic of the groups' commits",
    as_text,
    "korvet-sink-progress",
    "`korvet-sink-progress`",
)
# As delivery.timeout.ms of Kafka's producers.
DELIVERY_TIMEOUT = Option(
    "deliveryTimeout",
    "how long brokers may take for a transaction; at most their `transaction.max.timeout.ms`",
    duration_ms,
    120_000,
    "`2m`",
)
KAFKA_SECRETS = tuple(
    _secret(f"kafka.{name}", "a secret of librdkafka; Spark's plans and logs don't show it")
    for name in (
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "ssl.key.password",
        "ssl.keystore.password",
    )
)
# Beside them, the sink has properties `kafka.*`.
SINK_ONLY = (JOB_ID, SORT_ROWS, JOB_RATE, CONCURRENT_TASKS, PROGRESS_TOPIC, DELIVERY_TIMEOUT)
SINK = (SINK_TOPIC, *SINK_ONLY)
DOCUMENTED_SINK = (BOOTSTRAP, *SINK, *KAFKA_SECRETS)

# Options that users of other sources or of former releases may give, and what to use in their place.
_INSTEAD: Final = {
    "kafka.bootstrap.servers": "redis",
    "path": "topic",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger (offsets are sparse)",
    "minOffsetsPerTrigger": "minRecordsPerTrigger (offsets are sparse)",
    "kafka.isolation.level": "isolationLevel",
    "minReplicas": "the topic's config min.insync.replicas (the sink writes with acks=all)",
    "progressRetention": "the brokers' setting offsets.retention.minutes",
}


def check_known(
    given: Collection[str], offered: tuple[str, ...], ignored: tuple[str, ...], user: str
) -> None:
    """Raises SourceError for a name that is neither offered nor ignored; `user` names who offers them.

    The given names are in lower case.
    """
    known = {name.lower(): name for name in offered}
    elsewhere = {name.lower(): name for name in _INSTEAD}
    unknown = sorted(set(given) - set(known) - {name.lower() for name in ignored})
    for name in unknown:
        if name in elsewhere:
            there = elsewhere[name]
            raise SourceError(f"the korvet {user} has no option {there}; use {_INSTEAD[there]}")
        if name.startswith("kafka."):
            raise SourceError(f"the korvet {user} has no option {name}: it uses Redis, not Kafka")
    if unknown:
        near = [known[one] for name in unknown for one in get_close_matches(name, known, 1)]
        meant = f" ({', '.join(near)}?)" if near else ""
        raise SourceError(
            f"unknown option {', '.join(unknown)}{meant}; the korvet {user} has {', '.join(offered)}"
        )
