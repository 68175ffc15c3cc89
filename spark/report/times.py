"""Times and durations as text."""

from __future__ import annotations

from datetime import UTC, datetime


def clock(at_ms: int) -> str:
    """Return a time in UTC, to the minute; the number of a time that no calendar has."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return f"{at_ms} ms"


def iso(at_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(ms: int | None) -> str:
    """Return a duration with at most two units; a dash for None."""
    if ms is None:
        return "\u2013"
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms // 1000
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {unit} {rest} {smaller}" if rest else f"{seconds // size} {unit}"
    return f"{ms / 1000:.1f} s"
