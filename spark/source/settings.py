"""The options of the source `korvet`, checked. Options that Spark's Kafka source also has keep its names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from korvet.spark.source.address import DEFAULT_KEYSPACE, DEFAULT_URL, Address, Secret, Tls
from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from korvet.spark.source.extents import TopicPartition

EARLIEST = -2
LATEST = -1
# Records of one task. A task of more is slow to repeat; with far fewer, most of the time is task start-up.
DEFAULT_PARTITION_RECORDS = 1_000_000
MAX_INT64 = (1 << 63) - 1

TOPIC_OPTIONS = ("topic", "topics", "subscribe", "subscribePattern", "assign")
STARTING_OPTIONS = (
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
)
ENDING_OPTIONS = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
STREAM_OPTIONS = ("maxRecordsPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay")
TLS_OPTIONS = (
    "redis.ssl.ca",
    "redis.ssl.cert",
    "redis.ssl.key",
    "redis.ssl.keyPassword",
    "redis.ssl.keyPasswordFile",
    "redis.ssl.keyPasswordEnv",
    "redis.ssl.checkHostname",
)
CONNECTION_OPTIONS = (
    "redis",
    "redis.user",
    "redis.password",
    "redis.passwordFile",
    "redis.passwordEnv",
    "redis.sentinel.password",
    "redis.sentinel.passwordFile",
    "redis.sentinel.passwordEnv",
    *TLS_OPTIONS,
    "keyspace",
)
BOOTSTRAP = "kafka.bootstrap.servers"
# Options of writing only, beside properties `kafka.*`. A view that is read and written has both kinds.
SINK_OPTIONS = (
    "jobId",
    "sortRows",
    "maxRecordsPerSecond",
    "concurrentTasks",
    "progressTopic",
    "deliveryTimeout",
)
OPTIONS = (
    *CONNECTION_OPTIONS,
    *TOPIC_OPTIONS,
    *STARTING_OPTIONS,
    *ENDING_OPTIONS,
    "failOnDataLoss",
    "isolationLevel",
    "openTransactions",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxRedisCpu",
    *STREAM_OPTIONS,
    "pushdown",
)
# Options of other sources, and the options that replace them here.
_INSTEAD = {
    "kafka.bootstrap.servers": "redis",
    "path": "topic",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger (offsets are sparse)",
    "minOffsetsPerTrigger": "minRecordsPerTrigger (offsets are sparse)",
    "kafka.isolation.level": "isolationLevel",
    "minReplicas": "the topic's config min.insync.replicas (the sink writes with acks=all)",
    "progressRetention": "the brokers' setting offsets.retention.minutes",
}
_DURATION = re.compile(r"(\d{1,12})\s*(ms|s|m|min|h|d)?")
_UNITS_MS = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

Limits = Mapping[str, Mapping[int, int]]
"""Offsets or timestamps by topic and partition."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Where a read starts or ends: an offset, EARLIEST, LATEST, or the first record at or after a time (ms).

    A partition without its own position has `timestamp` if that is set, else `default`.
    """

    option: str
    default: int
    offsets: Limits
    timestamps: Limits
    timestamp: int | None = None
    no_match: Literal["error", "latest"] = "latest"

    def time_of(self, topic_partition: TopicPartition) -> int | None:
        """Return the time for a partition; None if its position is an offset."""
        topic, partition = topic_partition
        return self.timestamps.get(topic, {}).get(partition, self.timestamp)

    def offset_of(self, topic_partition: TopicPartition) -> int:
        """Return the offset for a partition whose position is not a time."""
        topic, partition = topic_partition
        return self.offsets.get(topic, {}).get(partition, self.default)

    def is_latest(self, topic_partition: TopicPartition) -> bool:
        """Return whether the position of a partition is the end of the log."""
        return self.time_of(topic_partition) is None and self.offset_of(topic_partition) == LATEST

    @property
    def named(self) -> list[TopicPartition]:
        """All partitions with their own position."""
        named = (self.offsets, self.timestamps)
        return [(topic, part) for limits in named for topic in limits for part in limits[topic]]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics to read: by name, by a pattern that matches the whole name, or by partition."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    topic_partitions: frozenset[TopicPartition] | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read, checked."""

    address: Address
    topics: Topics
    starting: Positions
    ending: Positions
    fail_on_data_loss: bool
    read_committed: bool
    pass_open: bool
    only_open: bool
    include_headers: bool
    min_partitions: int
    partition_records: int
    trigger_records: int | None
    least_trigger_records: int | None
    trigger_delay_ms: int
    pushdown: bool
    # The names of STREAM_OPTIONS that are given.
    stream_options: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
        """Parse Spark's option map (names in any case).

        Raises SourceError for an option that is unknown, missing, malformed or invalid for this read.
        """
        given = {name.lower(): value for name, value in options.items()}
        _check_names(given, streaming=streaming)
        read = Reading(given)
        topics = _topics(given)
        starting, ending = _positions(given, topics, "starting"), _positions(given, topics, "ending")
        if starting.default == LATEST and not streaming:
            raise SourceError("startingOffsets can't be latest in a batch: there is nothing after the end")
        most, least = read.count("maxRecordsPerTrigger"), read.count("minRecordsPerTrigger")
        if most is not None and least is not None and least > most:
            raise SourceError(f"minRecordsPerTrigger ({least}) is above maxRecordsPerTrigger ({most})")
        committed = read.choice("isolationLevel", ("read_committed", "read_uncommitted")) == "read_committed"
        opened = read.choice("openTransactions", ("wait", "pass", "only"))
        if opened == "only" and streaming:
            raise SourceError("openTransactions=only is for a batch: a stream does not return a record twice")
        return cls(
            address=parse_address(given),
            topics=topics,
            starting=starting,
            ending=ending,
            fail_on_data_loss=read.boolean("failOnDataLoss", default=True),
            read_committed=committed and opened != "only",
            pass_open=committed and opened == "pass",
            only_open=opened == "only",
            include_headers=read.boolean("includeHeaders", default=True),
            min_partitions=read.count("minPartitions") or 1,
            partition_records=read.count("maxRecordsPerPartition") or DEFAULT_PARTITION_RECORDS,
            trigger_records=most,
            least_trigger_records=least,
            trigger_delay_ms=read.duration_ms("maxTriggerDelay", 15 * 60_000),
            pushdown=read.boolean("pushdown", default=False),
            stream_options=tuple(name for name in STREAM_OPTIONS if name.lower() in given),
        )


def check_known(
    given: Mapping[str, str], offered: tuple[str, ...], ignored: tuple[str, ...], user: str
) -> None:
    """Raises SourceError for an option that is neither offered nor ignored; `user` names who offers them."""
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


def _check_names(given: Mapping[str, str], *, streaming: bool) -> None:
    # A view that is read and written has the properties of the sink's clients, too.
    is_view = "redis" in given and BOOTSTRAP in given
    own = {name: value for name, value in given.items() if not (is_view and name.startswith("kafka."))}
    check_known(own, OPTIONS, SINK_OPTIONS, "source")
    foreign = ENDING_OPTIONS if streaming else STREAM_OPTIONS
    out_of_place = [name for name in foreign if name.lower() in given]
    if out_of_place:
        kind = "a stream, which has no end" if streaming else "a batch"
        raise SourceError(f"{', '.join(out_of_place)}: not an option of {kind}")


@dataclass(frozen=True, slots=True)
class Reading:
    """Parsers of single options by type. `given`: the options by their names in lower case."""

    given: Mapping[str, str]

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return an option that is true or false. Raises SourceError."""
        text = self.given.get(name.lower(), str(default)).strip().lower()
        if text not in {"true", "false"}:
            raise SourceError(f"{name} must be true or false, not {text!r}")
        return text == "true"

    def count(self, name: str, *, least: Literal[0, 1] = 1) -> int | None:
        """Return an option that is a number from `least` on; None if it isn't given. Raises SourceError."""
        text = self.given.get(name.lower())
        if text is None:
            return None
        number = _integer(text)
        if number is None or not least <= number <= MAX_INT64:
            wanted = "above 0" if least else "from 0 on"
            raise SourceError(f"{name} must be a number {wanted}, not {text!r}")
        return number

    def fraction(self, name: str) -> float | None:
        """Return an option that is a decimal number; None if it isn't given. Raises SourceError."""
        text = self.given.get(name.lower())
        if text is None:
            return None
        try:
            return float(text)
        except ValueError:
            raise SourceError(f"{name} must be a number like 0.5, not {text!r}") from None

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return an option that is one of the choices, the first one by default. Raises SourceError."""
        text = self.given.get(name.lower(), choices[0]).strip().lower()
        if text not in choices:
            raise SourceError(f"{name} must be one of {', '.join(choices)}, not {text!r}")
        return text

    def duration_ms(self, name: str, default_ms: int) -> int:
        """Return an option that is a duration, in ms. Raises SourceError."""
        text = self.given.get(name.lower())
        if text is None:
            return default_ms
        match = _DURATION.fullmatch(text.strip().lower())
        if match is None:
            raise SourceError(f"{name} must be a duration like 500ms, 30s or 15m, not {text!r}")
        return int(match[1]) * _UNITS_MS[match[2]]


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*-?[0-9]{1,19}\s*", text) else None


def parse_address(given: Mapping[str, str]) -> Address:
    """Return the address in options (by their names in lower case). Raises SourceError."""
    tls = None
    if any(name.lower() in given for name in TLS_OPTIONS):
        tls = Tls(
            ca_file=given.get("redis.ssl.ca"),
            certificate_file=given.get("redis.ssl.cert"),
            key_file=given.get("redis.ssl.key"),
            key_password=_secret(given, "redis.ssl.keyPassword"),
            check_hostname=Reading(given).boolean("redis.ssl.checkHostname", default=True),
        )
    return Address(
        url=given.get("redis", DEFAULT_URL),
        keyspace=given.get("keyspace", DEFAULT_KEYSPACE),
        user=given.get("redis.user"),
        password=_secret(given, "redis.password"),
        tls=tls,
        sentinel_password=_secret(given, "redis.sentinel.password"),
        max_cpu=Reading(given).fraction("maxRedisCpu"),
    )


def options_of(address: Address, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options of an address, the inverse of SourceOptions.parse.

    Options in `more` take precedence (names in any case). A password among them, in any of its three forms,
    replaces the address's password.
    """
    given = {"redis": address.url, "keyspace": address.keyspace}
    given |= _secret_options(address.password) | _secret_options(address.sentinel_password)
    if address.user is not None:
        given["redis.user"] = address.user
    if address.max_cpu is not None:
        given["maxRedisCpu"] = str(address.max_cpu)
    tls = address.tls
    if tls is not None:
        files = {
            "redis.ssl.ca": tls.ca_file,
            "redis.ssl.cert": tls.certificate_file,
            "redis.ssl.key": tls.key_file,
        }
        given |= {name: file for name, file in files.items() if file is not None}
        given |= _secret_options(tls.key_password)
        given["redis.ssl.checkHostname"] = str(tls.check_hostname).lower()
    own = {name.lower() for name in more or {}}
    secrets = (address.password, address.sentinel_password, *((tls.key_password,) if tls else ()))
    for secret in (each.name for each in secrets):
        forms = {secret.lower() + form for form in ("", "file", "env")}
        if own & forms:
            own |= forms
    return {name: value for name, value in given.items() if name.lower() not in own} | dict(more or {})


def _secret_options(secret: Secret) -> dict[str, str]:
    forms = {"": secret.value, "File": secret.file, "Env": secret.variable}
    return {secret.name + form: text for form, text in forms.items() if text is not None}


def _secret(given: Mapping[str, str], name: str) -> Secret:
    lower = name.lower()
    return Secret(name, given.get(lower), given.get(lower + "file"), given.get(lower + "env"))


def _topics(given: Mapping[str, str]) -> Topics:
    named = [name for name in TOPIC_OPTIONS if name.lower() in given]
    if len(named) != 1:
        was = f", not {' and '.join(named)}" if named else ""
        raise SourceError(
            f"give the option topic (one name) or exactly one of {', '.join(TOPIC_OPTIONS[1:])}{was}"
        )
    option = named[0]
    text = given[option.lower()]
    if option == "subscribePattern":
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise SourceError(f"subscribePattern is not a regular expression: {error}") from None
        return Topics(pattern=text)
    if option == "assign":
        return _assigned(text)
    if option == "topic" and "," in text:
        raise SourceError(f"topic must be one name, not {text!r}; use topics for several")
    names = text.split(",")
    names = list(dict.fromkeys(name.strip() for name in names))
    if not all(names):
        raise SourceError(f"the option {option} contains an empty name")
    return Topics(names=tuple(names))


def _assigned(text: str) -> Topics:
    document = _document("assign", text, '{"orders": [0, 1]}')
    topic_partitions: set[TopicPartition] = set()
    for topic, partitions in document.items():
        listed = partitions if isinstance(partitions, list) else []
        numbers = [one for one in listed if type(one) is int and one >= 0]
        topic_partitions.update((topic, number) for number in numbers)
        if not numbers or len(numbers) < len(listed):
            raise SourceError(
                'assign must be JSON like {"orders": [0, 1]}, with a list of partitions for each topic'
            )
    if not document:
        raise SourceError("assign names no topic")
    return Topics(names=tuple(document), topic_partitions=frozenset(topic_partitions))


def _positions(given: Mapping[str, str], topics: Topics, end: Literal["starting", "ending"]) -> Positions:
    """The positions. Precedence as in the Kafka source: one time for all, times, offsets."""
    default = EARLIEST if end == "starting" else LATEST
    name = f"{end}Offsets"
    strategy: Literal["error", "latest"] = "latest"
    if end == "starting":
        chosen = Reading(given).choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
        strategy = "error" if chosen == "error" else "latest"
    offsets: Limits = {}
    timestamps: Limits = {}
    timestamp = None
    if f"{end}timestamp" in given:
        name = f"{end}Timestamp"
        timestamp = _integer(given[name.lower()])
        if timestamp is None or timestamp < 0:
            raise SourceError(f"{name} must be a time in ms since 1970, not {given[name.lower()]!r}")
    elif f"{end}offsetsbytimestamp" in given:
        name = f"{end}OffsetsByTimestamp"
        timestamps = _limits(name, given[name.lower()], "1700000000000")
        _check_values(name, timestamps, 0, "a time in ms since 1970")
    elif name.lower() in given:
        text = given[name.lower()].strip()
        if text.lower() in {"earliest", "latest"}:
            default = EARLIEST if text.lower() == "earliest" else LATEST
        else:
            offsets = _limits(name, text, "1234")
            _check_values(name, offsets, EARLIEST, "an offset, -2 (earliest) or -1 (latest)")
    found = Positions(name, default, offsets, timestamps, timestamp, strategy)
    _check_selected(found, topics)
    _check_end(found, end)
    return found


def _check_end(found: Positions, end: str) -> None:
    begins = [
        topic_partition
        for topic_partition in found.named
        if found.offset_of(topic_partition) == EARLIEST and found.time_of(topic_partition) is None
    ]
    if end == "ending" and (found.default == EARLIEST or begins):
        where = f" for {begins[0][0]}-{begins[0][1]}" if begins else ""
        raise SourceError(f"endingOffsets can't be earliest (-2){where}: nothing is before the beginning")


def _check_values(name: str, limits: Limits, least: int, what: str) -> None:
    for topic, parts in limits.items():
        for partition, value in parts.items():
            if partition < 0:
                raise SourceError(f"{name}: {topic} has no partition {partition}")
            if not least <= value <= MAX_INT64:
                raise SourceError(f"{name}: {value} for {topic}-{partition} is not {what}")


def _check_selected(found: Positions, topics: Topics) -> None:
    for topic in {topic_partition[0] for topic_partition in found.named} if topics.names else ():
        if topic not in topics.names:
            raise SourceError(f"{found.option} names the topic {topic}, which is not read")
    for topic_partition in found.named if topics.topic_partitions is not None else ():
        if topics.topic_partitions is not None and topic_partition not in topics.topic_partitions:
            raise SourceError(
                f"{found.option} names {topic_partition[0]}-{topic_partition[1]}, which is not assigned"
            )


def _limits(name: str, text: str, example: str) -> dict[str, dict[int, int]]:
    example = f'{{"orders": {{"0": {example}}}}}'
    document = _document(name, text, example)
    found: dict[str, dict[int, int]] = {}
    for topic, parts in document.items():
        if not isinstance(parts, dict):
            raise SourceError(f"{name}: {topic} has no object of partitions; use JSON like {example}")
        found[topic] = {}
        for partition, value in parts.items():
            number = _integer(partition)
            if number is None or type(value) is not int:
                raise SourceError(
                    f"{name}: {partition!r}: {value!r} of {topic} are not numbers; use JSON like {example}"
                )
            found[topic][number] = value
    return found


def _document(name: str, text: str, example: str) -> dict[str, object]:
    words = ' "earliest", "latest" or' if name.endswith("Offsets") else ""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise SourceError(f"{name} must be{words} JSON like {example}, not {text[:100]!r}")
    return document
