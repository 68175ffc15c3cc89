"""All tables about groups kept in a folder for a keyspace: what `korvet export --all-tables` does."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from korvet.spark.export.checkpoint import claimed
from korvet.spark.export.tables import table_named
from korvet.spark.export.target import ExportError
from korvet.spark.export.topics import stream_topics
from korvet.spark.session.folders import Folder
from korvet.spark.source.errors import SourceError
from korvet.spark.source.topics import OFFSETS_TOPIC
from korvet.spark.tables.readers import RedisReader
from korvet.spark.tables.stored_tables import CHECKPOINT, StoredTables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.source.address import Address

# The first update has all there is, and a batch is held by Spark while its tables are made.
BATCH_RECORDS: Final = 5_000_000
_INTERVAL = re.compile(r"(\d+)\s*(millisecond|second|minute|hour|day)s?")
_UNITS_S = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86_400}
NOT_OURS: Final = {"topic", "topics", "subscribe", "subscribepattern", "assign"}


def keep_tables(
    spark: SparkSession,
    address: Address,
    location: str,
    *,
    every_s: float | None = None,
    options: Mapping[str, str] | None = None,
) -> None:
    """Bring the tables in a folder up to date with what is new, and add a snapshot as of now.

    Again every so many seconds, until interrupted, or once. `options` are the source's. Raises ExportError
    when the folder holds anything else, SourceError as the source does, and what a query fails with; a later
    call goes on from there.
    """
    foreign = NOT_OURS & {name.lower() for name in options or {}}
    if foreign:
        raise SourceError(f"{', '.join(sorted(foreign))}: tables about groups are made of {OFFSETS_TOPIC}")
    folder, reader = Folder(spark, location), RedisReader(address)

    def check(fresh: bool) -> None:
        if fresh and any(folder.files()):
            raise ExportError(
                f"{location} holds something else than tables kept up to date; choose another folder"
            )

    given = {"failOnDataLoss": "false", "maxRecordsPerTrigger": str(BATCH_RECORDS), **(options or {})}
    with claimed(folder.child(CHECKPOINT), f"tables of {reader.name}", check):
        stored = StoredTables(spark, location)
        while True:
            began = time.monotonic()
            stream = stream_topics(spark, address, [OFFSETS_TOPIC], given)
            now_ms = time.time_ns() // 1_000_000
            stored.update(
                stream,
                now_ms,
                records=lambda starts: reader.records(spark, starts),
                ends=lambda topics: reader.ends(spark, topics),
            )
            if every_s is None:
                return
            time.sleep(max(0.0, began + every_s - time.monotonic()))


def kept_table(spark: SparkSession, location: str, name: str) -> DataFrame:
    """One table of such a folder. Raises ExportError for a table or a folder that there is not."""
    table_named(name)
    if not Folder(spark, location).child(CHECKPOINT).exists():
        raise ExportError(
            f"{location} holds no tables: `korvet export --all-tables --to {location}` fills it"
        )
    return StoredTables(spark, location).read(name)


def seconds_of(interval: str) -> float:
    """An interval as Spark's triggers have them, `10 seconds` say. Raises ExportError for anything else."""
    match = _INTERVAL.fullmatch(interval.strip().lower())
    if match is None:
        raise ExportError(f"{interval!r} is no interval like `10 seconds` or `5 minutes`")
    return int(match[1]) * _UNITS_S[match[2]]
