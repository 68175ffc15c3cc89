"""Topics as frames, as a batch or a stream, for exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.spark.source import FORMAT
from korvet.spark.store import Address, connected, load_topics, select_topics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession


def read_topics(
    spark: SparkSession, address: Address, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """All records of topics as they are now. Raises SourceError, now, for one that does not exist."""
    return spark.read.format(FORMAT).options(**_options(address, topics, options)).load()


def stream_topics(
    spark: SparkSession, address: Address, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """The records of topics as they come, from the beginning on unless options say otherwise.

    Raises SourceError, now, for a topic that does not exist.
    """
    return spark.readStream.format(FORMAT).options(**_options(address, topics, options)).load()


def _options(address: Address, topics: Sequence[str], more: Mapping[str, str] | None) -> dict[str, str]:
    with connected(address) as connection:
        select_topics(load_topics(connection, address), topics, address)
    options = {"redis": address.url, "keyspace": address.keyspace, "topics": ",".join(topics), **(more or {})}
    if address.password is not None:
        options["redis.password"] = address.password
    return options
