"""Draws results as an SVG of bars: each side's value divided by Kafka's, or by Redis's without a Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from benchmarks.rig.measuring import KORVET, SMALLER_IS_BETTER
from benchmarks.rig.rig import BATCH_LAYOUT, WITHOUT_MODULE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.rig.measuring import Row

_REFERENCES = ("kafka", "redis")
_COLOURS = {KORVET: "#1f6feb", WITHOUT_MODULE: "#9ec5fe", BATCH_LAYOUT: "#2da44e", "redis": "#c0392b"}
_OTHER_COLOUR = "#8c959f"
_BAR_PX, _GAP_PX, _TOP_PX, _LEFT_PX, _PER_ONE_PX, _RIGHT_PX = 11, 12, 34, 380, 130, 240
# Limits the length of a bar. Its number is beside it.
_MOST_RATIO = 3.0


def write_picture(path: Path, rows: Sequence[Row]) -> None:
    """Write the picture of all rows that have a reference, with a line at 1."""
    parts: list[str] = []
    top = _TOP_PX
    for row in rows:
        reference = next((side for side in _REFERENCES if side in row.values), None)
        if reference is not None and len(row.values) > 1:
            bars = {side: row.ratio(reference, side) for side in row.values if side != reference}
            parts += _group(row, reference, bars, top)
            top += _BAR_PX * len(bars) + _GAP_PX
    width, one = _LEFT_PX + _PER_ONE_PX * _MOST_RATIO + _RIGHT_PX, _LEFT_PX + _PER_ONE_PX
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {top}" width="{width:.0f}" '
        f'height="{top}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{one}" y="16" text-anchor="middle">the reference = 1</text>',
        f'<line x1="{one}" x2="{one}" y1="22" y2="{top}" stroke="#999"/>',
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*head, *parts, "</svg>"]) + "\n", encoding="utf-8")


def _group(row: Row, reference: str, bars: dict[str, float], top: int) -> list[str]:
    better = " (smaller is better)" if row.unit in SMALLER_IS_BETTER else ""
    parts = [
        f'<text x="{_LEFT_PX - 8}" y="{top + 9}" text-anchor="end">{escape(row.benchmark)}</text>',
        f'<text x="{_LEFT_PX - 8}" y="{top + 21}" text-anchor="end" fill="#666">'
        f"{escape(row.figure)}, {reference} = 1{better}</text>",
    ]
    for number, (side, ratio) in enumerate(bars.items()):
        y, length = top + number * _BAR_PX, _PER_ONE_PX * min(ratio, _MOST_RATIO)
        colour = _COLOURS.get(side, _OTHER_COLOUR)
        parts.append(
            f'<rect x="{_LEFT_PX}" y="{y}" width="{length:.1f}" height="{_BAR_PX - 1}" fill="{colour}"/>'
        )
        label = escape(f"{ratio:.2f} {side}")
        parts.append(f'<text x="{_LEFT_PX + length + 4:.1f}" y="{y + 9}">{label}</text>')
    return parts
