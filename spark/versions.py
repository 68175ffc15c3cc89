"""The versions of Spark that korvet works with, and what each one has. No other module looks at a version.

korvet.spark.expressions needs no Python data source, so it works with Spark 3.5 as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

Version = tuple[int, int]
SUPPORTED: tuple[Version, ...] = ((4, 0), (4, 1), (4, 2))
# Has no Python data sources; korvet.spark.expressions works.
EXPRESSIONS_ONLY: Version = (3, 5)
REQUIREMENT = "pyspark>=4.0,<4.3"


class UnsupportedSpark(ImportError):
    """The installed Spark lacks what korvet needs. The message names the versions that work."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a version of Spark has for data sources in Python, and for SQL expressions."""

    data_sources: bool
    # The reader can take filters (pushFilters).
    filter_pushdown: bool
    # A stream is asked for a batch by its start and a limit, and reports how far it could read.
    read_limits: bool
    # to_arrow_schema takes the time zone of timestamps; before, they were always UTC.
    arrow_time_zones: bool
    # SQL has is_valid_utf8; decode() fails on invalid bytes instead of replacing them.
    utf8_checks: bool


def features_of(version: Version) -> Features:
    """Return what a version (major, minor) has. Source: `versionadded` in PySpark's documentation."""
    return Features(
        data_sources=version >= (4, 0),
        filter_pushdown=version >= (4, 1),
        read_limits=version >= (4, 2),
        arrow_time_zones=version >= (4, 2),
        utf8_checks=version >= (4, 0),
    )


def parse(text: str) -> Version:
    """Return major and minor of a version ("4.1.0.dev1" is 4, 1). Raises UnsupportedSpark for other texts."""
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None:
        raise UnsupportedSpark(f"Spark has the version {text!r}, which is not a number; {_works()}")
    return int(found[1]), int(found[2])


def running() -> Version:
    """Return the version of the installed PySpark."""
    return parse(pyspark.__version__)


@cache
def features() -> Features:
    """Return what the installed PySpark has."""
    return features_of(running())


def check_supported(version: str | None = None, *, expressions: bool = False) -> None:
    """Raises UnsupportedSpark if korvet does not work with a version.

    version: the installed PySpark's if it is None. expressions: only korvet.spark.expressions is needed.
    """
    text = pyspark.__version__ if version is None else version
    found = parse(text)
    if found in SUPPORTED or (expressions and found == EXPRESSIONS_ONLY):
        return
    if found == EXPRESSIONS_ONLY:
        raise UnsupportedSpark(
            f"Spark {text} has no data sources in Python; {_works()}. In Spark {named(found)}, "
            "korvet.spark.expressions decodes what Spark's Kafka connector reads"
        )
    raise UnsupportedSpark(f"korvet does not work with Spark {text}; {_works()}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with these columns. Timestamps are UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 (imports pyarrow)

    if features().arrow_time_zones:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def named(version: Version) -> str:
    """Return a version as text, for example 4.1."""
    return f"{version[0]}.{version[1]}"


def _works() -> str:
    *most, last = map(named, SUPPORTED)
    return f"it works with {', '.join(most)} and {last} (pip install '{REQUIREMENT}')"
