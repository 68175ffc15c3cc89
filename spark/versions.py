"""The versions of Spark that korvet works with, and what each one has. No other module looks at a version."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

Version = tuple[int, int]
TESTED: tuple[Version, ...] = ((4, 0), (4, 1), (4, 2), (4, 3))
REQUIREMENT = "pyspark>=4.0,<5"
log = logging.getLogger(__name__)


class UnsupportedSpark(ImportError):
    """The installed Spark lacks what korvet needs. The message names the versions that work."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a version of Spark has for data sources in Python."""

    # The reader can take filters (pushFilters).
    filter_pushdown: bool
    # A stream is asked for a batch by its start and a limit, and reports how far it could read.
    read_limits: bool
    # to_arrow_schema takes the time zone of timestamps; before, they were always UTC.
    arrow_time_zones: bool


def features_of(version: Version) -> Features:
    """Return what a version (major, minor) has. Source: `versionadded` in PySpark's documentation."""
    return Features(
        filter_pushdown=version >= (4, 1),
        read_limits=version >= (4, 2),
        arrow_time_zones=version >= (4, 2),
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


def check_supported(version: str | None = None) -> None:
    """Raises UnsupportedSpark if korvet does not work with a version, by default the installed PySpark's.

    A minor version that is newer than all of TESTED is not refused.
    """
    text = pyspark.__version__ if version is None else version
    oldest, newest = TESTED[0], TESTED[-1]
    found = parse(text)
    if found < oldest or found[0] > newest[0]:
        raise UnsupportedSpark(f"korvet does not work with Spark {text}; {_works()}")


def warn_if_untested(version: str | None = None) -> None:
    """Log a warning if no test of korvet has run with a version, by default the installed PySpark's."""
    text = pyspark.__version__ if version is None else version
    if parse(text) not in TESTED:
        log.warning("korvet was not tested with Spark %s; %s", text, _works())


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
    *most, last = map(named, TESTED)
    return f"it works with {', '.join(most)} and {last} (pip install '{REQUIREMENT}')"
