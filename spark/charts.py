"""Small charts as inline SVG: no script, colours from the page's style sheet. Pure functions of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 640, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 10, 22
MAX_BARS = 120
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Step:
    """From `at_ms` on the value is `value`; `label` says why it changed."""

    at_ms: int
    value: int
    label: str


def rate_chart(counts: dict[int, int], first_ms: int, last_ms: int) -> str:
    """Commits per minute between two times, as bars. `counts` is by the minute's beginning in ms.

    A long time is shown in bars of several minutes, each the mean of its minutes.
    """
    first, last = first_ms // MINUTE_MS, max(last_ms, first_ms) // MINUTE_MS
    width = -(-(last - first + 1) // MAX_BARS)
    bars = []
    for begin in range(first, last + 1, width):
        commits = sum(counts.get(minute * MINUTE_MS, 0) for minute in range(begin, begin + width))
        bars.append((begin * MINUTE_MS, commits / width))
    top = max([value for _, value in bars] + [1])
    slot = (WIDTH - LEFT - RIGHT) / len(bars)
    parts = []
    for index, (at_ms, value) in enumerate(bars):
        height = (HEIGHT - TOP - BOTTOM) * value / top
        if height:
            title = f"{clock(at_ms)}: {value:.3g} commits per minute"
            parts.append(
                f'<rect class="bar" x="{LEFT + index * slot + slot * 0.1:.1f}" '
                f'y="{HEIGHT - BOTTOM - height:.1f}" width="{slot * 0.8:.1f}" height="{height:.1f}" '
                f'rx="1"><title>{escape(title)}</title></rect>'
            )
    return _frame(parts, top, first * MINUTE_MS, (last + 1) * MINUTE_MS, "Commits per minute")


def step_chart(steps: Sequence[Step], first_ms: int, last_ms: int) -> str:
    """A number that changes now and then, as a line with a dot at every change."""
    top = max([step.value for step in steps] + [1])
    span = max(last_ms - first_ms, 1)

    def x(at_ms: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max((at_ms - first_ms) / span, 0), 1)

    def y(value: int) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    path, dots, height = "", [], y(0)
    for step in steps:
        at, before, height = x(step.at_ms), height, y(step.value)
        path += f"{'L' if path else 'M'}{at:.1f} {before:.1f}L{at:.1f} {height:.1f}"
        title = f"{clock(step.at_ms)}: {step.label}"
        dots.append(
            f'<circle class="dot" cx="{at:.1f}" cy="{height:.1f}" r="3.5">'
            f"<title>{escape(title)}</title></circle>"
        )
    if path:
        path += f"L{x(last_ms):.1f} {height:.1f}"
    return _frame([f'<path class="line" d="{path}"/>', *dots], top, first_ms, last_ms, "Members over time")


def _frame(parts: Sequence[str], top: float, first_ms: int, last_ms: int, title: str) -> str:
    """Axes and labels around what is drawn."""
    base = HEIGHT - BOTTOM
    labels = [
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{top:.3g}</text>',
        f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">0</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{clock(first_ms)}</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{clock(last_ms)}</text>',
    ]
    grid = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>'
        for height in (TOP, (TOP + base) / 2, base)
    )
    body = grid + "".join(parts) + "".join(labels)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>'


def clock(at_ms: int) -> str:
    """A time in UTC, to the minute."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def duration(ms: int | None) -> str:
    """A length of time for people: two units at most; a dash for None."""
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
