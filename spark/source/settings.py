"""The options of a read, checked. Options that Spark's Kafka source also has keep its names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from korvet.spark.source import options as known
from korvet.spark.source.address import Address, Secret, Tls
from korvet.spark.source.errors import SourceError
from korvet.spark.source.options import MAX_INT64, Given, check_known, integer, names_of

if TYPE_CHECKING:
    from korvet.spark.source.extents import TopicPartition

EARLIEST = -2
LATEST = -1

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
    newest_commits: int | None
    newest_until_ms: int | None
    # The names of options of streams that are given.
    stream_options: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
        """Parse Spark's option map (names in any case).

        Raises SourceError for an option that is unknown, missing, malformed or invalid for this read.
        """
        given = Given(options)
        _check_names(given, streaming=streaming)
        topics = _topics(given)
        starting, ending = _positions(given, topics, "starting"), _positions(given, topics, "ending")
        if starting.default == LATEST and not streaming:
            raise SourceError("startingOffsets can't be latest in a batch: there is nothing after the end")
        most, least = given["maxRecordsPerTrigger"], given["minRecordsPerTrigger"]
        if most is not None and least is not None and least > most:
            raise SourceError(f"minRecordsPerTrigger ({least}) is above maxRecordsPerTrigger ({most})")
        committed = given["isolationLevel"] == "read_committed"
        opened = given["openTransactions"]
        if given["newestCommits"] is None and "newestCommitsUntil" in given:
            raise SourceError("newestCommitsUntil needs newestCommits")
        if given["newestCommits"] is not None and given["pushdown"]:
            raise SourceError("newestCommits: not an option of a read with pushdown")
        if opened == "only" and streaming:
            raise SourceError("openTransactions=only is for a batch: a stream does not return a record twice")
        return cls(
            address=parse_address(given),
            topics=topics,
            starting=starting,
            ending=ending,
            fail_on_data_loss=given["failOnDataLoss"],
            read_committed=committed and opened != "only",
            pass_open=committed and opened == "pass",
            only_open=opened == "only",
            include_headers=given["includeHeaders"],
            min_partitions=given["minPartitions"],
            partition_records=given["maxRecordsPerPartition"],
            trigger_records=most,
            least_trigger_records=least,
            trigger_delay_ms=given["maxTriggerDelay"],
            pushdown=given["pushdown"],
            newest_commits=given["newestCommits"],
            newest_until_ms=given["newestCommitsUntil"],
            stream_options=tuple(given.named(known.STREAM)),
        )


def _check_names(given: Given, *, streaming: bool) -> None:
    # A view that is read and written has the properties of the sink's clients, too.
    is_view = "redis" in given and known.BOOTSTRAP in given
    own = [name for name in given.texts if not (is_view and name.startswith("kafka."))]
    check_known(own, names_of(known.SOURCE), names_of(known.WRITING), "source")
    out_of_place = given.named((*known.ENDING, *known.NEWEST) if streaming else known.STREAM)
    if out_of_place:
        kind = "a batch"
        if streaming:
            kind = "a stream, which has no end" if given.named(known.ENDING) else "a stream"
        raise SourceError(f"{', '.join(out_of_place)}: not an option of {kind}")


def parse_address(given: Given) -> Address:
    """Return the address in options. Raises SourceError."""
    tls = None
    if given.named(known.TLS):
        tls = Tls(
            ca_file=given["redis.ssl.ca"],
            certificate_file=given["redis.ssl.cert"],
            key_file=given["redis.ssl.key"],
            key_password=given["redis.ssl.keyPassword"],
            check_hostname=given["redis.ssl.checkHostname"],
        )
    return Address(
        url=given["redis"],
        keyspace=given["keyspace"],
        user=given["redis.user"],
        password=given["redis.password"],
        tls=tls,
        sentinel_password=given["redis.sentinel.password"],
        max_cpu=given["maxRedisCpu"],
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


def _topics(given: Given) -> Topics:
    named = given.named(known.TOPICS)
    if len(named) != 1:
        was = f", not {' and '.join(named)}" if named else ""
        raise SourceError(
            f"give the option topic (one name) or exactly one of {', '.join(names_of(known.TOPICS[1:]))}{was}"
        )
    option = named[0]
    text = given.texts[option.lower()]
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


def _positions(given: Given, topics: Topics, end: Literal["starting", "ending"]) -> Positions:
    """The positions. Precedence as in the Kafka source: one time for all, times, offsets."""
    default = EARLIEST if end == "starting" else LATEST
    name = f"{end}Offsets"
    by_time, one_time = f"{end}OffsetsByTimestamp", f"{end}Timestamp"
    strategy: Literal["error", "latest"] = "latest"
    if end == "starting" and given["startingOffsetsByTimestampStrategy"] == "error":
        strategy = "error"
    offsets: Limits = {}
    timestamps: Limits = {}
    timestamp = None
    texts = given.texts
    if one_time in given:
        name = one_time
        timestamp = given[name]
    elif by_time in given:
        name = by_time
        timestamps = _limits(name, texts[name.lower()], "1700000000000")
        _check_values(name, timestamps, 0, "a time in ms since 1970")
    elif name in given:
        text = texts[name.lower()].strip()
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
            number = integer(partition)
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
