"""Topics as frames for exports, as a batch or a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.spark.source.connection import connected
from korvet.spark.source.errors import SourceError
from korvet.spark.source.options import TOPICS, names_of
from korvet.spark.source.settings import SourceOptions, options_of
from korvet.spark.source.source import COLUMNS, FORMAT
from korvet.spark.source.topics import load_topics, select_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.source.address import Address


def read_topics(
    spark: SparkSession, address: Address, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return all records of topics as of now. Raises SourceError as check_topics does."""
    return spark.read.format(FORMAT).options(**check_topics(address, topics, options)).load()


def stream_topics(
    spark: SparkSession,
    address: Address,
    topics: Sequence[str],
    options: Mapping[str, str] | None = None,
    columns: Collection[str] | None = None,
) -> DataFrame:
    """Return the records of topics as a stream, from the beginning unless `options` contain another start.

    columns: those of the source to build, if not all. Raises SourceError as check_topics does.
    """
    given = check_topics(address, topics, options, streaming=True)
    reader = spark.readStream.format(FORMAT).options(**given)
    if columns is not None:
        reader = reader.schema(", ".join(f"{name} {COLUMNS[name]}" for name in columns))
    return reader.load()


def check_topics(
    address: Address,
    topics: Sequence[str],
    options: Mapping[str, str] | None = None,
    *,
    streaming: bool = False,
) -> dict[str, str]:
    """Return the source's options for topics, after a check that needs no Spark.

    Raises SourceError if Redis does not answer, or a topic or an option does not exist.
    """
    given = topic_options(address, topics, options)
    address = SourceOptions.parse(given, streaming=streaming).address
    with connected(address) as connection:
        select_topics(load_topics(connection, address, topics), topics, address)
    return given


def topic_options(
    address: Address, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the source's options for topics. Raises SourceError if `options` select topics, too."""
    selecting = {name.lower() for name in names_of(TOPICS)}
    foreign = sorted(name for name in options or {} if name.lower() in selecting)
    if foreign:
        raise SourceError(f"{', '.join(foreign)}: not an option here, the topics are {', '.join(topics)}")
    return options_of(address, {"topics": ",".join(topics), **(options or {})})
