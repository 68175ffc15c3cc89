"""Topics as frames, as a batch or a stream, for exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.spark.source.connection import connected
from korvet.spark.source.settings import SourceOptions, options_of
from korvet.spark.source.source import FORMAT
from korvet.spark.source.topics import load_topics, select_topics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.source.address import Address


def read_topics(
    spark: SparkSession, address: Address, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """All records of topics as they are now. Raises SourceError as check_topics does."""
    return spark.read.format(FORMAT).options(**check_topics(address, topics, options)).load()


def stream_topics(
    spark: SparkSession, address: Address, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """The records of topics as they come, from the beginning on unless options say otherwise.

    Raises SourceError as check_topics does.
    """
    given = check_topics(address, topics, options, streaming=True)
    return spark.readStream.format(FORMAT).options(**given).load()


def check_topics(
    address: Address,
    topics: Sequence[str],
    options: Mapping[str, str] | None = None,
    *,
    streaming: bool = False,
) -> dict[str, str]:
    """The options to read topics with. Spark is not needed for that.

    Raises SourceError when Redis does not answer, there is no such topic, or an option is none.
    """
    given = options_of(address, {"topics": ",".join(topics), **(options or {})})
    address = SourceOptions.parse(given, streaming=streaming).address
    with connected(address) as connection:
        select_topics(load_topics(connection, address, topics), topics, address)
    return given
