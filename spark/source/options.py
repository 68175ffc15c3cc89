"""Every option of the source and the sink, declared once: name, kind, default, meaning, flag and variable.

Parsers of options, the flags of the commands and docs/reference/spark-options.md come from these tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from korvet.spark.source.address import DEFAULT_KEYSPACE, DEFAULT_URL, Secret
from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

MAX_INT64: Final = (1 << 63) - 1
_DURATION: Final = re.compile(r"(\d{1,12})\s*(ms|s|m|min|h|d)?")
_UNITS_MS: Final = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SECRET: Final = "secret"


@dataclass(frozen=True, slots=True)
class Option:
    """An option. Spark passes names in any case.

    kind: one of the names in _KINDS; `secret`, which is one of three options, with File and Env after the
    name; or the values, as `error|latest`. default: a text of that kind; None without one.
    """

    name: str
    kind: str
    default: str | None
    about: str

    @property
    def names(self) -> tuple[str, ...]:
        """The name, or the three names of a secret."""
        return (self.name, f"{self.name}File", f"{self.name}Env") if self.kind == _SECRET else (self.name,)

    def parse(self, text: str) -> Any:
        """Return the value. Raises SourceError."""
        return _KINDS[self.kind](self.name, text) if self.kind in _KINDS else self._choose(text)

    def _choose(self, text: str) -> str:
        choices, text = self.kind.split("|"), text.strip().lower()
        if text not in choices:
            raise SourceError(f"{self.name} must be one of {', '.join(choices)}, not {text!r}")
        return text


class Given:
    """The options of one read or write."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.texts = {name.lower(): text for name, text in options.items()}
        """By names in lower case."""

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.texts

    def __getitem__(self, name: str) -> Any:
        """The value of an option, its default, or None. Raises SourceError."""
        option = _ALL[name]
        if option.kind == _SECRET:
            return Secret(name, *(self.texts.get(each.lower()) for each in option.names))
        text = self.texts.get(name.lower(), option.default)
        return None if text is None else option.parse(text)

    def named(self, options: Collection[Option]) -> list[str]:
        """The names of those options that are given."""
        return [name for name in names_of(options) if name in self]


def names_of(options: Collection[Option]) -> tuple[str, ...]:
    """Return all names of options."""
    return tuple(name for option in options for name in option.names)


def integer(text: str) -> int | None:
    """Return the decimal number in a text; None if it is none."""
    return int(text) if re.fullmatch(r"\s*-?[0-9]{1,19}\s*", text) else None


def _text(name: str, text: str) -> str:
    return text


def _boolean(name: str, text: str) -> bool:
    text = text.strip().lower()
    if text not in {"true", "false"}:
        raise SourceError(f"{name} must be true or false, not {text!r}")
    return text == "true"


def _count(name: str, text: str) -> int:
    number = integer(text)
    if number is None or not 1 <= number <= MAX_INT64:
        raise SourceError(f"{name} must be a number above 0, not {text!r}")
    return number


def _fraction(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SourceError(f"{name} must be a number like 0.5, not {text!r}") from None


def _time_ms(name: str, text: str) -> int:
    """Return a text that is a time, in ms. Raises SourceError."""
    number = integer(text)
    if number is None or number < 0:
        raise SourceError(f"{name} must be a time in ms since 1970, not {text!r}")
    return number


def _duration_ms(name: str, text: str) -> int:
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise SourceError(f"{name} must be a duration like 500ms, 30s or 15m, not {text!r}")
    return int(match[1]) * _UNITS_MS[match[2]]


_KINDS: Final[dict[str, Callable[[str, str], Any]]] = {
    "text": _text,
    "boolean": _boolean,
    "count": _count,
    "fraction": _fraction,
    "time": _time_ms,
    "duration": _duration_ms,
}


def _options(text: str) -> tuple[Option, ...]:
    """The options in lines of `name kind [default]: meaning`; lines with more indentation continue one."""
    found = []
    for line in re.sub(r"\n {8}", " ", text).split("\n"):
        if line.strip():
            head, _, about = line.strip().partition(": ")
            name, kind, *default = head.split(" ")
            found.append(Option(name, kind, default[0] if default else None, about))
    return tuple(found)


TLS: Final = _options("""
    redis.ssl.ca text: for `rediss://`: PEM file of the trusted authorities, else the system's
    redis.ssl.cert text: PEM file of the client's certificate
    redis.ssl.key text: PEM file of its key
    redis.ssl.keyPassword secret: the password of that key
    redis.ssl.checkHostname boolean true: whether the server's certificate must name its host
""")
CONNECTION: Final = (
    *_options(f"""
    redis text {DEFAULT_URL}: URL: `redis://`, `rediss://` (TLS), `unix://`, several nodes of a cluster
        (`redis://one:6379,two:6379`), or [sentinels](../guides/sentinel.md)
        (`redis+sentinel://one,two/NAME`); never with a password
    redis.user text: the user, if the URL names none
    redis.password secret: the password, or the file or environment variable that contains it on the driver
        and every executor
    redis.sentinel.password secret: the same for the password of the sentinels
"""),
    *TLS,
    *_options(f"keyspace text {DEFAULT_KEYSPACE}: prefix of the keys"),
)
TOPICS: Final = _options("""
    topic text: the name of a topic: of all rows in a write; a read needs this or one of the next four
    topics text: several names, separated by commas
    subscribe text: the same
    subscribePattern text: a Python regular expression that must match the whole name; internal topics are
        left out
    assign text: partitions: `{"orders": [0, 1]}`
""")
STARTING: Final = _options("""
    startingOffsets text earliest: `earliest`, for streams also `latest` (not their default), or JSON
        `{"orders": {"0": 1234}}`; -2 is the beginning, -1 the end. Partitions that the JSON omits start at
        the beginning.
    startingOffsetsByTimestamp text: such JSON with times in ms: from the first record with that timestamp or
        a later one
    startingTimestamp time: one such time for all partitions. Precedence: this, then times by partition, then
        offsets.
    startingOffsetsByTimestampStrategy error|latest error: if no record is that new: `error`, or `latest` to
        start at the end
""")
ENDING: Final = _options("""
    endingOffsets text latest: `latest`, or such JSON; the offset itself is not read
    endingOffsetsByTimestamp text: such JSON with times in ms: up to the first record with that timestamp or a
        later one
    endingTimestamp time: one such time for all partitions, with the same precedence
""")
# A task of more records than maxRecordsPerPartition is slow to repeat; with far fewer, most of the time is
# task start-up.
READING: Final = _options("""
    failOnDataLoss boolean true: `false`: if records are gone, read the rest
    isolationLevel read_committed|read_uncommitted read_committed: `read_committed`, or `read_uncommitted` to
        see records of open and aborted transactions
    openTransactions wait|pass|only wait: where `read_committed` stops: `wait` before the first open
        transaction, or `pass`: at the end, without the records of open transactions. `only`: a batch of
        nothing but these. [Transactions](../explain/spark-source.md#transactions)
    includeHeaders boolean true: `false` leaves out the column `headers`
    minPartitions count 1: the approximate least number of tasks
    maxRecordsPerPartition count 1000000: the approximate largest number of records for one task; in batches
        less, for [32 tasks](../explain/spark-source.md#tasks)
    maxRedisCpu fraction: read only as fast as keeps Redis's main thread below this part of its time, for
        example `0.5` ([load of Redis](../explain/spark-source.md#load-of-redis)); else without a limit
    pushdown boolean false: `true`: filters limit what is read (Spark 4.1 or newer); also set
        `spark.sql.python.filterPushdown.enabled=true`
""")
STREAM: Final = _options("""
    maxRecordsPerTrigger count: streams, Spark 4.2: the largest number of records in a batch, distributed in
        proportion to what each partition has; else without a limit
    minRecordsPerTrigger count: streams, Spark 4.2: wait for about this number of records, at most
        `maxTriggerDelay`; else without a wait
    maxTriggerDelay duration 15m: streams, Spark 4.2: the longest wait for these: `500ms`, `30s`, `15m`
""")
NEWEST: Final = _options("""
    newestCommits count: batches of `__consumer_offsets`: each task returns only the records on groups, and so
        many of the newest commits that it has read of each group, topic and partition, and the last
        commits of as many slots of 1, 5, 20 and 60 minutes; else all records
    newestCommitsUntil time: the same: records with a later timestamp don't count (ms)
""")
SOURCE: Final = (*CONNECTION, *TOPICS, *STARTING, *ENDING, *READING, *STREAM, *NEWEST)

BOOTSTRAP: Final = "kafka.bootstrap.servers"
# The sink passes other options `kafka.*` to librdkafka.
KAFKA_SECRETS: Final = _options("""
    kafka.sasl.password secret: the password of SASL; Spark's plans and logs don't show it, nor those below
    kafka.sasl.oauthbearer.client.secret secret: the secret of the OAuth client
    kafka.ssl.key.password secret: the password of the client's key
    kafka.ssl.keystore.password secret: the password of the client's key store
""")
KAFKA: Final = (
    *_options(f"{BOOTSTRAP} text 127.0.0.1:9092: the brokers to ask first: `host:9092,other:9092`"),
    *KAFKA_SECRETS,
)
# Of writing only. A view that is read and written has options of both kinds. deliveryTimeout is
# delivery.timeout.ms of Kafka's producers.
WRITING: Final = _options("""
    jobId text: batches: names the job. A job with the same ID and the same rows writes only what is missing.
        Else a new one
    sortRows boolean false: `true`: tasks sort their rows ([why](../explain/spark-sink.md#each-row-once))
    maxRecordsPerSecond count: a limit for the job. Each task gets its part.
    concurrentTasks count: the number of tasks that run at once; needed with `maxRecordsPerSecond`
    progressTopic text korvet-sink-progress: the topic of the groups' commits
    deliveryTimeout duration 2m: how long brokers may take for a transaction; at most their
        `transaction.max.timeout.ms`
""")
SINK: Final = (*(option for option in TOPICS if option.name == "topic"), *WRITING)
_ALL: Final = {option.name: option for option in (*SOURCE, *KAFKA, *WRITING)}


@dataclass(frozen=True, slots=True)
class Flag:
    """The flag of an option in the commands, and its environment variable."""

    name: str
    variable: str | None
    metavar: str | None
    help: str


FLAGS: Final = {
    "redis": Flag(
        "--redis",
        "KORVET_REDIS",
        "URL",
        "The Redis that holds the data.  [default: the embedded server's, in --data-dir]",
    ),
    "keyspace": Flag("--keyspace", "KORVET_KEYSPACE", None, "Prefix of the keys."),
    "redis.user": Flag("--redis-user", "KORVET_REDIS_USER", "NAME", "Redis user, if the URL names none."),
    "redis.passwordFile": Flag(
        "--redis-password-file",
        "KORVET_REDIS_PASSWORD_FILE",
        "FILE",
        "File with the password, on every machine of Spark. Or use the URL or KORVET_REDIS_PASSWORD.",
    ),
    "redis.ssl.ca": Flag(
        "--redis-ca",
        "KORVET_REDIS_CA",
        "FILE",
        "For rediss://: PEM file of the trusted authorities.  [default: the system's]",
    ),
    "redis.ssl.cert": Flag(
        "--redis-cert", "KORVET_REDIS_CERT", "FILE", "PEM file of the client's certificate."
    ),
    "redis.ssl.key": Flag("--redis-key", "KORVET_REDIS_KEY", "FILE", "PEM file of its key."),
    "maxRedisCpu": Flag(
        "--max-redis-cpu",
        None,
        "PART",
        "Read only as fast as keeps Redis's main thread, with all its clients, below this part of its time, "
        "for example 0.5.",
    ),
}
"""By the names of options."""

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
