"""Calls the sink as a Spark task does, without a Spark session."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from korvet.spark.source.sink.columns import SinkRow
from korvet.spark.source.sink.options import RedisOptions, parse_sink_options
from korvet.spark.source.sink.progress import Job
from korvet.spark.source.sink.task import Written, write_task
from korvet.storage.link.functions import public_source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.spark.keyspace import Keyspace


def load_functions(client: Any) -> None:
    """Load the library for applications, as brokers do."""
    client.function_load(public_source(), replace=True)


def sink_options(url: str, topic: str | None = "t", **options: str) -> RedisOptions:
    """Return the options of a write. With the topic None, rows name their topic."""
    named = {} if topic is None else {"topic": topic}
    found = parse_sink_options({"redis": url, **named, **options})
    assert isinstance(found, RedisOptions)
    return found


def row(value: bytes | None, key: bytes | None = None, **more: Any) -> SinkRow:
    """Return a row with defaults for the columns that aren't given."""
    given = {"topic": None, "partition": None, "headers": (), "timestamp_ms": None, **more}
    return SinkRow(key, value, **given)


def random_rows(seed: int, count: int, partitions: int) -> list[SinkRow]:
    """Return rows with keys, without keys, and with partitions; each value names its row."""
    chance = random.Random(seed)
    return [
        row(
            b"%d" % number,
            chance.choice([None, b"%d" % chance.randrange(50)]),
            partition=chance.choice([None, None, chance.randrange(partitions)]),
            headers=chance.choice([(), (("h", b"1"), ("h", None))]),
            timestamp_ms=chance.choice([None, 1_700_000_000_000 + number]),
        )
        for number in range(count)
    ]


def write(
    keyspace: Keyspace,
    rows: Iterable[SinkRow],
    batch: int = 0,
    task: int = 0,
    topic: str | None = "t",
    **options: str,
) -> Written:
    """Write the rows as one attempt of a task of the job j."""
    return write_task(sink_options(keyspace.url, topic, **options), Job("j", batch, task), rows)


def values(keyspace: Keyspace, partitions: int) -> list[list[bytes]]:
    """Return the values in each partition of t."""
    return [
        [fields[b"value"] for _, fields in keyspace.client.xrange(f"korvet:t:{number}")]
        for number in range(partitions)
    ]
