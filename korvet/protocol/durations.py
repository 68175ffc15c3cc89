"""Durations of the schemas (kio gives timedelta) as whole milliseconds."""

from __future__ import annotations

import datetime
from typing import Final

_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


def milliseconds(duration: datetime.timedelta) -> int:
    """The duration in ms, exact."""
    return duration // _MILLISECOND
