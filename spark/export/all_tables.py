"""All tables of a keyspace or a Kafka cluster, stored in a folder and updated: `korvet tables refresh`."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from korvet.spark.export.checkpoint import claimed
from korvet.spark.export.tables import table_named
from korvet.spark.export.target import ExportError
from korvet.spark.export.topics import stream_topics, topic_options
from korvet.spark.session.folders import Folder
from korvet.spark.source.connection import connected
from korvet.spark.source.settings import SourceOptions
from korvet.spark.source.topics import OFFSETS_TOPIC, load_topics, select_topics
from korvet.spark.tables import decode
from korvet.spark.tables.questions import QUESTIONS, answer
from korvet.spark.tables.readers import OFFSETS_OPTIONS, KafkaReader, RedisReader
from korvet.spark.tables.stored_tables import CHECKPOINT, StoredTables
from korvet.spark.versions import features

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.source.address import Address
    from korvet.spark.tables.kafka_offsets import Finding

# Records of one batch. The first update has all records, and Spark keeps a batch while it builds the tables.
# Spark 4.0 and 4.1 can't limit a batch.
BATCH_RECORDS: Final = 5_000_000
# The file in the checkpoint with the ID of the topic.
TOPIC_ID: Final = "korvet-topic-id"
_INTERVAL = re.compile(r"(\d+)\s*(millisecond|second|minute|hour|day)s?")
_UNITS_S = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86_400}


def update_tables(
    spark: SparkSession,
    source: Address | KafkaReader,
    location: str,
    *,
    every_s: float | None = None,
    compact: bool = False,
    options: Mapping[str, str] | None = None,
    tell: Callable[[Finding], None] = lambda finding: None,
) -> None:
    """Update the tables in a folder with the new records, and add a snapshot as of now.

    every_s: repeat at this interval until interrupted; None updates once. compact: also merge the files of
    earlier days. options: of the source in Redis. tell: called with each finding about a Kafka cluster.
    Raises ExportError if the folder contains anything else, or is of an earlier topic, JarsMissing if the
    session lacks Delta, SourceError as the source and StoredTables do, and a failed query's error; a later
    call continues from there.
    """
    followed = _OfKafka(source) if isinstance(source, KafkaReader) else _OfRedis(source, options or {})
    reader = followed.reader
    folder = Folder(spark, location)

    def check(fresh: bool) -> None:
        if fresh and any(folder.files()):
            raise ExportError(f"{location} contains other files than stored tables; choose another folder")

    with claimed(folder.child(CHECKPOINT), f"tables of {reader.name}", check):
        stored = StoredTables(spark, location)
        while True:
            began = time.monotonic()
            with reader.connected(spark):
                stream = followed.stream(spark, folder.child(CHECKPOINT).child(TOPIC_ID), location)
                now_ms = time.time_ns() // 1_000_000
                findings = stored.update(
                    stream,
                    now_ms,
                    logs=reader.logs,
                    ends=reader.ends,
                    pending=reader.open_transactions,
                    sizes=reader.sizes,
                    names=reader.topic_names,
                    later=reader.later,
                    findings=reader.findings,
                    share_queues=reader.queues,
                )
            for finding in findings:
                tell(finding)
            if compact:
                stored.compact(now_ms)
            if every_s is None:
                return
            time.sleep(max(0.0, began + every_s - time.monotonic()))


class _OfRedis:
    """`__consumer_offsets` of a keyspace."""

    def __init__(self, address: Address, options: Mapping[str, str]) -> None:
        limit = {"maxRecordsPerTrigger": str(BATCH_RECORDS)} if features().read_limits else {}
        self._address = address
        self._options = {**OFFSETS_OPTIONS, "failOnDataLoss": "false", **limit, **options}
        # The options may have another keyspace or password, which the topics' records need, too.
        whole = topic_options(address, [OFFSETS_TOPIC], self._options)
        self.reader = RedisReader(SourceOptions.parse(whole, streaming=True).address)

    def stream(self, spark: SparkSession, note: Folder, location: str) -> DataFrame:
        """The records as a stream, after check_topic."""
        check_topic(note, self.reader.address, location)
        return stream_topics(spark, self._address, [OFFSETS_TOPIC], self._options, decode.NEEDED)


class _OfKafka:
    """`__consumer_offsets` of a Kafka cluster."""

    def __init__(self, reader: KafkaReader) -> None:
        self.reader = reader

    def stream(self, spark: SparkSession, note: Folder, location: str) -> DataFrame:
        """The records as a stream, after check_topic_id."""
        # The stream first: it says why if the topic is missing or refused.
        records = self.reader.stream(spark, BATCH_RECORDS)
        check_topic_id(note, self.reader.topic_id(spark), location)
        return records.select(*decode.NEEDED)


def check_topic(note: Folder, address: Address, location: str) -> None:
    """Note the ID of the topic that the tables follow.

    Raises ExportError if it is another one than before: a topic that was created again has the offsets of
    earlier records, and the tables take the largest offset for the newest. Raises SourceError as the source
    does.
    """
    with connected(address) as connection:
        known = load_topics(connection, address, (OFFSETS_TOPIC,))
        (topic,) = select_topics(known, (OFFSETS_TOPIC,), address)
    if topic.topic_id:
        check_topic_id(note, topic.topic_id, location)


def check_topic_id(note: Folder, topic_id: str, location: str) -> None:
    """Note the ID of the topic that the tables follow, as check_topic does."""
    if not note.exists():
        note.write_text(topic_id)
    elif note.read_text() != topic_id:
        raise ExportError(
            f"{OFFSETS_TOPIC} was deleted and created again since the tables in {location} began: choose "
            "another folder"
        )


def stored_table(spark: SparkSession, location: str, name: str) -> DataFrame:
    """Return one table of such a folder, or the answer to one of QUESTIONS.

    Raises ExportError for an unknown name or an empty folder.
    """
    if name not in QUESTIONS:
        table_named(name)
    if not Folder(spark, location).child(CHECKPOINT).exists():
        raise ExportError(
            f"{location} contains no tables: `korvet tables refresh --to {location}` writes them"
        )
    stored = StoredTables(spark, location)
    return answer(name, stored.read) if name in QUESTIONS else stored.read(name)


def seconds_of(interval: str) -> float:
    """Return the seconds of an interval like Spark's, for example `10 seconds`. Raises ExportError."""
    match = _INTERVAL.fullmatch(interval.strip().lower())
    if match is None:
        raise ExportError(f"{interval!r} is not an interval like `10 seconds` or `5 minutes`")
    return int(match[1]) * _UNITS_S[match[2]]
