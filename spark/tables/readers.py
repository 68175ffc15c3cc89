"""Readers of `__consumer_offsets` and of consumed topics, from Redis or through the Kafka protocol."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from korvet.offsets.wire import uuid_text
from korvet.spark.session import kafka_state
from korvet.spark.session.kafka_cluster import cluster_of
from korvet.spark.session.tuning import FEW_ROWS
from korvet.spark.source.connection import connected
from korvet.spark.source.errors import SourceError
from korvet.spark.source.extents import extents
from korvet.spark.source.newest import NEEDED
from korvet.spark.source.reader import has_records
from korvet.spark.source.settings import SourceOptions, options_of
from korvet.spark.source.source import FORMAT
from korvet.spark.source.topics import OFFSETS_TOPIC, load_topics
from korvet.spark.tables.decode import newest_records, not_after
from korvet.spark.tables.kafka_logs import look_up
from korvet.spark.tables.kafka_offsets import as_records, confirmed, groups_in, hanging, missing, origin
from korvet.spark.tables.kafka_queues import kafka_queues, newest_states
from korvet.spark.tables.queues import SHARE_STATE_TOPIC, Place, Queue, as_frame
from korvet.spark.tables.redis_logs import logs_by_index
from korvet.spark.tables.redis_queues import redis_queues
from korvet.spark.tables.views import FIRST_CLOCK_OFFSET, as_runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.session.kafka_cluster import Cluster
    from korvet.spark.source.address import Address
    from korvet.spark.tables.kafka_offsets import Finding
    from korvet.spark.tables.needs import Needs, TopicPartition
    from korvet.spark.tables.runs import Logs

Starts = Mapping[str, Mapping[int, int]]
EARLIEST, LATEST = -2, -1
# Columns of the ends of partitions. start_offset is the log start. Every offset from known_from to the log
# start was a record; before known_from, on a topic with clock offsets, there may have been gaps.
ENDS = "topic string, partition int, end_offset bigint, start_offset bigint, known_from bigint"
# Columns of the records that count as lag.
RECORDS = "topic string, partition int, offset bigint, timestamp timestamp"
# Columns of the sizes of partitions.
SIZES = (
    "topic string, partition int, start_offset bigint, end_offset bigint, entries bigint, "
    "appended_entries bigint, memory_bytes bigint"
)
# Commits behind an open transaction of another group count at once.
OFFSETS_OPTIONS = {"openTransactions": "pass"}
# Options of the connector's consumers, unless their properties contain others. All records exist already: a
# fetch at the end of a partition would delay the requests after it.
CONSUMER = {
    "max.poll.records": "10000",
    "max.partition.fetch.bytes": str(8 << 20),
    "fetch.max.wait.ms": "1",
}
# Without this setting the connector's planner silently drops internal topics.
DEPRECATED_FETCHING = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
# The setting with the names of options that plans don't show. Parameters of config providers must be among
# them, because Kafka's clients take no references there.
REDACTED = "spark.sql.redaction.options.regex"
_PARAMETERS = r"config\.providers\..*\.param\."


class TopicReader(Protocol):
    """A source of reports."""

    @property
    def name(self) -> str:
        """The source's name in the report."""

    def connected(self, spark: SparkSession) -> AbstractContextManager[None]:
        """Return a block in which all methods use one client, if they need any."""

    def offsets_topic(self, spark: SparkSession) -> DataFrame | None:
        """Return all records of `__consumer_offsets` that count; None if the topic does not exist."""

    def newest_records(self, spark: SparkSession, count: int, as_of_ms: int) -> DataFrame | None:
        """Return the records that the current state of groups depends on, as decode.newest_records does.

        Records after as_of_ms don't count. None if the offsets topic does not exist.
        """

    def open_transactions(self, spark: SparkSession) -> DataFrame | None:
        """Return the records of open transactions in `__consumer_offsets`; None without any, or if they
        aren't known.
        """

    def logs(self, spark: SparkSession, needs: Needs, as_of_ms: int) -> DataFrame:
        """Return the logs of topics that `needs` depends on: records (RECORDS), or runs of them (RUNS).

        Topics that don't exist are left out.
        """

    def ends(self, spark: SparkSession, topics: Collection[str]) -> DataFrame:
        """Return the current starts and ends of the topics' partitions (ENDS), without missing topics."""

    def sizes(self, spark: SparkSession) -> DataFrame | None:
        """Return the current sizes of all partitions (SIZES); None if they can't be told."""

    def later(self, spark: SparkSession) -> DataFrame | None:
        """Return the records of `__consumer_offsets` that count but that a stream has only when earlier
        transactions end; None without any.
        """

    def findings(self, spark: SparkSession, topics: Collection[str], as_of_ms: int) -> list[Finding]:
        """Return what a report of these consumed topics states beside its groups."""

    def topic_names(self, spark: SparkSession, ids: Collection[str]) -> Mapping[str, str]:
        """Return the names of those topics that exist, by ID, as Kafka's tools write IDs."""

    def queues(self, spark: SparkSession, places: Sequence[Place], as_of_ms: int) -> DataFrame:
        """Return what is known of these partitions of share groups (queues.QUEUES), without missing topics.

        Records of the topic of their state after as_of_ms don't count.
        """


@dataclass(frozen=True, slots=True)
class RedisReader:
    """Reads the streams in Redis, by the format korvet."""

    address: Address

    @property
    def name(self) -> str:
        """The URL, which contains no password, and the keyspace."""
        return f"{self.address.url}, keyspace {self.address.keyspace}"

    def connected(self, spark: SparkSession) -> AbstractContextManager[None]:
        """Return a block without effect: each method connects to Redis."""
        return nullcontext()

    def offsets_topic(self, spark: SparkSession) -> DataFrame | None:
        """Return all records of `__consumer_offsets` that count; None if the keyspace has no such topic.

        Records behind an open transaction are included.
        """
        if OFFSETS_TOPIC not in self._partitions():
            return None
        given = self._options({OFFSETS_TOPIC: {}}, OFFSETS_OPTIONS)
        return spark.read.format(FORMAT).options(**given).load()

    def has_few_records(self) -> bool:
        """Return whether all topics together have few records (FEW_ROWS), before there is a session."""
        with connected(self.address) as connection:
            topics = load_topics(connection, self.address)
            found = extents(connection, self.address, list(topics.values()))
        return sum(extent.records for extent in found) <= FEW_ROWS

    def newest_records(self, spark: SparkSession, count: int, as_of_ms: int) -> DataFrame | None:
        """Return the records that the current state of groups depends on; None without an offsets topic.

        Each task reduces what it reads before Spark has it.
        """
        if OFFSETS_TOPIC not in self._partitions():
            return None
        more = {**OFFSETS_OPTIONS, "newestCommits": str(count), "newestCommitsUntil": str(as_of_ms)}
        given = self._options({OFFSETS_TOPIC: {}}, more)
        return spark.read.format(FORMAT).options(**given).schema(NEEDED).load()

    def open_transactions(self, spark: SparkSession) -> DataFrame | None:
        """Return the records of open transactions in `__consumer_offsets`; None if there are none."""
        if OFFSETS_TOPIC not in self._partitions():
            return None
        given = self._options({OFFSETS_TOPIC: {}}, {"openTransactions": "only"})
        # Mostly there are none. Reading nothing would take Spark several jobs and processes.
        if not has_records(SourceOptions.parse(given)):
            return None
        return spark.read.format(FORMAT).options(**given).load()

    def logs(self, spark: SparkSession, needs: Needs, as_of_ms: int) -> DataFrame:
        """Return the logs in runs that the index counts; the records of partitions where it can't."""
        with connected(self.address) as connection:
            found = logs_by_index(connection, self.address, needs, as_of_ms)
        return _with_records(spark, self, found)

    def records(self, spark: SparkSession, starts: Starts) -> DataFrame:
        """Return the records from the given offsets on. Other partitions of the topics are left out."""
        existing = self._partitions()
        starting = {
            topic: {partition: parts.get(partition, LATEST) for partition in range(existing[topic])}
            for topic, parts in starts.items()
            if topic in existing
        }
        if not starting:
            return spark.createDataFrame([], RECORDS)
        return spark.read.format(FORMAT).options(**self._options(starting)).schema(RECORDS).load()

    def ends(self, spark: SparkSession, topics: Collection[str]) -> DataFrame:
        """Return the current starts and ends of the topics' partitions (ENDS), without missing topics."""
        with connected(self.address) as connection:
            known = load_topics(connection, self.address)
            wanted = [known[name] for name in sorted(topics) if name in known]
            found = extents(connection, self.address, wanted)
        rows = [
            (
                *extent.topic_partition,
                extent.log_end,
                extent.log_start,
                0 if extent.origin.bias else min(extent.first_offset, extent.log_start),
            )
            for extent in found
        ]
        return spark.createDataFrame(rows, ENDS)

    def sizes(self, spark: SparkSession) -> DataFrame:
        """Return the current sizes of all partitions (SIZES). Redis estimates the memory by samples."""
        with connected(self.address) as connection:
            topics = load_topics(connection, self.address)
            found = extents(connection, self.address, list(topics.values()))
            memory = connection.pipeline([("MEMORY", "USAGE", extent.stream) for extent in found])
        rows = [
            (
                *extent.topic_partition,
                extent.log_start,
                extent.log_end,
                extent.entries,
                extent.added,
                used or 0,
            )
            for extent, used in zip(found, memory, strict=True)
        ]
        return spark.createDataFrame(rows, SIZES)

    def later(self, spark: SparkSession) -> DataFrame | None:
        """Return None: the stream passes open transactions."""
        return None

    def findings(self, spark: SparkSession, topics: Collection[str], as_of_ms: int) -> list[Finding]:
        """Return nothing: all is in Redis, and korvet ends transactions after their timeout."""
        return []

    def topic_names(self, spark: SparkSession, ids: Collection[str]) -> Mapping[str, str]:
        """Return the names of those topics in the catalogue, by ID."""
        if not ids:
            return {}
        with connected(self.address) as connection:
            topics = load_topics(connection, self.address)
        names = {}
        for name, topic in topics.items():
            with suppress(ValueError):
                names[uuid_text(UUID(topic.topic_id).bytes)] = name
        return {each: names[each] for each in ids if each in names}

    def queues(self, spark: SparkSession, places: Sequence[Place], as_of_ms: int) -> DataFrame:
        """Return what pending entries tell of share groups, as of now (queues.QUEUES)."""
        with connected(self.address) as connection:
            return as_frame(spark, redis_queues(connection, self.address, places))

    def _partitions(self) -> dict[str, int]:
        with connected(self.address) as connection:
            # Raises SourceError for an unreadable offsets topic; the report would show no groups otherwise.
            topics = load_topics(connection, self.address, (OFFSETS_TOPIC,))
            return {name: topic.partitions for name, topic in topics.items()}

    def _options(self, starting: Starts, options: Mapping[str, str] | None = None) -> dict[str, str]:
        more = {
            **(options or {}),
            "topics": ",".join(starting),
            "startingOffsets": json.dumps(starting),
            # Commits have lag even if retention has deleted their records.
            "failOnDataLoss": "false",
        }
        return options_of(self.address, more)


@dataclass(frozen=True, slots=True)
class KafkaReader:
    """Reads through the Kafka protocol, by Spark's official connector. Works with Kafka, too.

    Partitions are always assigned, because a subscription joins a group and writes to the topic that it
    reads. properties: of Kafka's Java clients, which plans and logs may show (read_command_config). exact:
    count the records of topics, all of which are fetched; otherwise lags are differences of offsets.
    """

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)
    exact: bool = False
    # The cluster in a block of `connected`.
    _open: list[Cluster] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The bootstrap servers."""
        return self.bootstrap

    @contextmanager
    def connected(self, spark: SparkSession) -> Iterator[None]:
        """Return a block in which all methods use one admin client. Raises as offsets_topic does."""
        with self._cluster(spark) as cluster:
            self._open.append(cluster)
            try:
                yield
            finally:
                self._open.pop()

    def offsets_topic(self, spark: SparkSession) -> DataFrame | None:
        """Return all records of `__consumer_offsets` that count; None if the cluster has no groups.

        A partition is read up to its first open transaction: the connector never sees the markers that would
        tell which later records count. Of these, the commits count that coordinators confirm, and all records
        on groups. If the topic can't be read, the records are made of the coordinators' answers.

        Raises SourceError if Kafka does not answer, JarsMissing in a session without the connector.
        """
        with self._cluster(spark) as cluster:
            existing = cluster.partitions([OFFSETS_TOPIC]).get(OFFSETS_TOPIC)
            if existing is None or kafka_state.rights(cluster, [OFFSETS_TOPIC]).refused:
                names = kafka_state.groups(cluster)
                now = kafka_state.described(cluster, names)
                return as_records(spark, kafka_state.committed(cluster, names), now) if names else None
            held = _open_from(cluster, existing)
            starts = {OFFSETS_TOPIC: dict.fromkeys(existing, EARLIEST)}
            stops = {OFFSETS_TOPIC: {**dict.fromkeys(existing, LATEST), **held}}
            stable = self._load(spark, starts, stops)
            return stable.unionByName(self._later(spark, cluster, held)) if held else stable

    def later(self, spark: SparkSession) -> DataFrame | None:
        """Return the records of `__consumer_offsets` after open transactions that count, as in offsets_topic.

        None if there are none. Raises as stream does.
        """
        with self._cluster(spark) as cluster:
            existing = cluster.partitions([OFFSETS_TOPIC]).get(OFFSETS_TOPIC, [])
            held = _open_from(cluster, existing)
            return self._later(spark, cluster, held) if held else None

    def _later(self, spark: SparkSession, cluster: Cluster, held: Mapping[int, int]) -> DataFrame:
        """The records from these offsets on that coordinators confirm."""

        def records() -> DataFrame:
            ends = cluster.ends([(OFFSETS_TOPIC, part) for part in held])
            stops = {part: ends[OFFSETS_TOPIC, part] for part in held}
            return self._load(
                spark, {OFFSETS_TOPIC: held}, {OFFSETS_TOPIC: stops}, isolation="read_uncommitted"
            )

        # The answers first: what is committed meanwhile is after them.
        truth = kafka_state.committed(cluster, groups_in(records()))
        return confirmed(records(), truth)

    def stream(self, spark: SparkSession, batch_records: int | None = None) -> DataFrame:
        """Return the records of `__consumer_offsets` as a stream, from the beginning.

        A partition ends before its first open transaction. batch_records: the most of a batch. Raises
        SourceError as offsets_topic does, and if the topic doesn't exist or the login may not read it.
        """
        with self._cluster(spark) as cluster:
            if kafka_state.rights(cluster, [OFFSETS_TOPIC]).refused:
                raise SourceError(
                    f"this login may not read {OFFSETS_TOPIC} (ACL: Read on the topic): `korvet report`, and "
                    "`korvet export --table` of tables as of now, do without"
                )
            existing = cluster.partitions([OFFSETS_TOPIC]).get(OFFSETS_TOPIC)
        if existing is None:
            raise SourceError(f"Kafka at {self.bootstrap} has no {OFFSETS_TOPIC}: no group has committed yet")
        given = self._options(spark, {OFFSETS_TOPIC: dict.fromkeys(existing, EARLIEST)})
        if batch_records is not None:
            given["maxOffsetsPerTrigger"] = str(batch_records)
        return spark.readStream.format("kafka").options(**given).load()

    def topic_id(self, spark: SparkSession) -> str:
        """Return the ID of `__consumer_offsets`. Raises as stream does."""
        with self._cluster(spark) as cluster:
            return cluster.topic_id(OFFSETS_TOPIC)

    def newest_records(self, spark: SparkSession, count: int, as_of_ms: int) -> DataFrame | None:
        """Return the records that the current state of groups depends on; None without an offsets topic.

        Raises as offsets_topic does.
        """
        source = self.offsets_topic(spark)
        return None if source is None else newest_records(source.where(not_after(as_of_ms)), count)

    def open_transactions(self, spark: SparkSession) -> DataFrame | None:
        """Return None: the connector does not tell whose a record is."""
        return None

    def findings(self, spark: SparkSession, topics: Collection[str], as_of_ms: int) -> list[Finding]:
        """Return hanging transactions, what the login may not read, and where the numbers are from.

        Raises as offsets_topic does.
        """
        with self._cluster(spark) as cluster:
            rights = kafka_state.rights(cluster, [OFFSETS_TOPIC, *topics])
            existing = cluster.partitions([OFFSETS_TOPIC, *topics])
            places = [(topic, part) for topic in existing for part in existing[topic]]
            held = held_back(cluster, places)
            transactions = kafka_state.open_transactions(cluster, held)
        has_history = OFFSETS_TOPIC in existing and OFFSETS_TOPIC not in rights.refused
        later = [part for topic, part in held if topic == OFFSETS_TOPIC] if has_history else []
        lacking = missing(rights, {SHARE_STATE_TOPIC} & {*topics} - existing.keys())
        return [*hanging(transactions, as_of_ms), *lacking, origin(has_history, later)]

    def sizes(self, spark: SparkSession) -> DataFrame | None:
        """Return None: Kafka's offsets don't count records, and its consumers don't know sizes."""
        return None

    def topic_names(self, spark: SparkSession, ids: Collection[str]) -> Mapping[str, str]:
        """Return the names of those topics that the login may see, by ID. Raises as offsets_topic does."""
        if not ids:
            return {}
        with self._cluster(spark) as cluster:
            return cluster.topic_names(ids)

    def queues(self, spark: SparkSession, places: Sequence[Place], as_of_ms: int) -> DataFrame:
        """Return what `__share_group_state` tells of share groups (queues.QUEUES).

        Nothing is known if the topic is missing or can't be read. Raises as offsets_topic does.
        """
        with self._cluster(spark) as cluster:
            existing = cluster.partitions({SHARE_STATE_TOPIC, *(place.topic for place in places)})
            known = [place for place in places if place.topic in existing]
            state = existing.get(SHARE_STATE_TOPIC)
            if state is None or kafka_state.rights(cluster, [SHARE_STATE_TOPIC]).refused:
                return as_frame(spark, [Queue(*place) for place in known])
            records = self._load(spark, {SHARE_STATE_TOPIC: dict.fromkeys(state, EARLIEST)})
            states = newest_states(records.where(not_after(as_of_ms))).collect()
            names = cluster.topic_names({row["topic_id"] for row in states})
            extents = cluster.extents([(place.topic, place.partition) for place in known])
        empty = {where: extent.end for where, extent in extents.items() if extent.first == extent.end}
        return as_frame(spark, kafka_queues(known, states, names, empty))

    def logs(self, spark: SparkSession, needs: Needs, as_of_ms: int) -> DataFrame:
        """Return the logs in runs, from a few lookups; if `exact`, the records from the smallest offsets on.

        Of topics that the login may not read, each offset counts as a record, without a time.

        Raises as offsets_topic does.
        """
        with self._cluster(spark) as cluster:
            refused = kafka_state.rights(cluster, needs.starts).refused
            found = look_up(cluster, needs, as_of_ms, refused, exact=self.exact)
        return _with_records(spark, self, found)

    def records(self, spark: SparkSession, starts: Starts) -> DataFrame:
        """Return the records from the given offsets on, of partitions that exist.

        Raises as offsets_topic does.
        """
        columns = ("topic", "partition", "offset", "timestamp")
        starting = self._existing(spark, starts)
        if not starting:
            return spark.createDataFrame([], RECORDS)
        return self._load(spark, starting).select(*columns)

    def ends(self, spark: SparkSession, topics: Collection[str]) -> DataFrame:
        """Return the current starts and ends of the topics' partitions (ENDS), without missing topics.

        Raises as offsets_topic does.
        """
        with self._cluster(spark) as cluster:
            existing = cluster.partitions(topics)
            topic_partitions = [(topic, part) for topic in existing for part in existing[topic]]
            starts, ends = cluster.extents(topic_partitions), cluster.ends(topic_partitions)
        rows = []
        for topic_partition, end in ends.items():
            start = starts[topic_partition].first
            rows.append((*topic_partition, end, start, 0 if start < FIRST_CLOCK_OFFSET else start))
        return spark.createDataFrame(rows, ENDS)

    def _existing(self, spark: SparkSession, starts: Starts) -> dict[str, dict[int, int]]:
        """The starts with records to read, not before a partition's log start.

        The connector waits for a topic that does not exist, and refuses an offset outside the log.
        """
        with self._cluster(spark) as cluster:
            existing = cluster.partitions(starts)
            topic_partitions = [
                (topic, part) for topic in existing for part in existing[topic] if part in starts[topic]
            ]
            extents = cluster.extents(topic_partitions)
        readable: dict[str, dict[int, int]] = {}
        for (topic, partition), extent in extents.items():
            start = max(starts[topic][partition], extent.first)
            if start < extent.end:
                readable.setdefault(topic, {})[partition] = start
        return readable

    def _cluster(self, spark: SparkSession) -> AbstractContextManager[Cluster]:
        if self._open:
            return nullcontext(self._open[-1])
        return cluster_of(spark, self.bootstrap, self.properties)

    def _load(
        self,
        spark: SparkSession,
        starting: Starts,
        ending: Starts | None = None,
        isolation: str = "read_committed",
    ) -> DataFrame:
        """The records from the given offsets on, up to the others or the end."""
        given = self._options(spark, starting, isolation)
        given["endingOffsets"] = "latest" if ending is None else json.dumps(ending)
        return spark.read.format("kafka").options(**given).load()

    def _options(
        self, spark: SparkSession, starting: Starts, isolation: str = "read_committed"
    ) -> dict[str, str]:
        """The connector's options for partitions."""
        spark.conf.set(DEPRECATED_FETCHING, "true")
        redacted = str(spark.conf.get(REDACTED))
        if _PARAMETERS not in redacted:
            spark.conf.set(REDACTED, f"{redacted}|{_PARAMETERS}")
        consumer = {
            **CONSUMER,
            **self.properties,
            "bootstrap.servers": self.bootstrap,
            "isolation.level": isolation,
            "allow.auto.create.topics": "false",
        }
        return {
            **{f"kafka.{name}": value for name, value in consumer.items()},
            "assign": json.dumps({topic: sorted(parts) for topic, parts in starting.items()}),
            "startingOffsets": json.dumps(starting),
            "includeHeaders": "true",
            "failOnDataLoss": "false",
        }


def _with_records(spark: SparkSession, reader: RedisReader | KafkaReader, found: Logs) -> DataFrame:
    """The logs, with the records that are to be read."""
    if not found.runs:
        return reader.records(spark, found.read_from)
    runs = found.frame(spark)
    return runs.unionByName(as_runs(reader.records(spark, found.read_from))) if found.read_from else runs


def held_back(cluster: Cluster, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the partitions that have an open transaction, each with the offset of the first one."""
    # The ends first: what is appended meanwhile is no transaction.
    ends, extents = cluster.ends(places), cluster.extents(places)
    return {place: extents[place].end for place in places if extents[place].end < ends[place]}


def _open_from(cluster: Cluster, partitions: Sequence[int]) -> dict[int, int]:
    """The first open transaction of each partition of `__consumer_offsets` that has one."""
    held = held_back(cluster, [(OFFSETS_TOPIC, part) for part in partitions])
    return {part: offset for (_, part), offset in held.items()}
