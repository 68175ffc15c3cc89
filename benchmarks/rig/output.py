"""Writes the results: a table, a JSON file with every sample, and a picture of the ratios."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from rich.table import Table

from benchmarks.rig.measuring import KORVET, Row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Units for which smaller values are better.
SMALLER_IS_BETTER = {"ms", "s", "B", "%"}
_REFERENCES = ("redis", "kafka")
_COLOURS = {"redis": "#c0392b", "kafka": "#2c3e50"}
_OTHER_COLOUR = "#7f8c8d"
_BAR_PX, _LINE_PX, _LEFT_PX, _PER_ONE_PX = 9, 30, 330, 200
_MOST_RATIO = 4.0


def table(rows: Sequence[Row], title: str) -> Table:
    """Print all rows. A ratio is korvet's value divided by the reference's."""
    shown = Table(title=title, caption="ratios: korvet / reference; CPU: seconds per million records")
    for heading in ("benchmark", "figure"):
        shown.add_column(heading, overflow="fold")
    for heading in ("korvet", "redis", "ratio", "kafka", "ratio"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("CPU korvet", overflow="fold")
    shown.add_column("CPU references", overflow="fold")
    before = ""
    for row in rows:
        cells = [number(row.median(), row.unit) if KORVET in row.values else "-"]
        for reference in _REFERENCES:
            cells += _compared(row, reference)
        name = row.benchmark if row.benchmark != before else ""
        before = row.benchmark
        references = [cpu_text(row, side) for side in _REFERENCES if row.cpu.get(side)]
        others = [side for side in row.values if side not in (KORVET, *_REFERENCES)]
        figure = "\n".join([row.figure, *(" ".join([side, *_compared(row, side)]) for side in others)])
        shown.add_row(name, figure, *cells, cpu_text(row, KORVET), "\n".join(references))
    return shown


def _compared(row: Row, reference: str) -> list[str]:
    if reference not in row.values:
        return ["", ""]
    ratio = f"{row.ratio(reference):.2f}" if KORVET in row.values else ""
    return [number(row.median(reference), row.unit), ratio]


def cpu_text(row: Row, side: str) -> str:
    """Formats CPU times: "broker 0.41  redis 1.30  client 0.05"."""
    return "  ".join(f"{name} {seconds:.2f}" for name, seconds in row.cpu_median(side).items())


def number(value: float, unit: str) -> str:
    """Formats a value with its unit: "740 k/s", "0.31 ms"."""
    if unit == "1/s":
        return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.4g} k/s"
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def write_json(path: Path, rows: Sequence[Row], machine: dict[str, object]) -> None:
    """Write every sample of every side, with medians and ratios."""
    content = {
        "machine": machine,
        "rows": [
            {
                "benchmark": row.benchmark,
                "figure": row.figure,
                "unit": row.unit,
                "smaller_is_better": row.unit in SMALLER_IS_BETTER,
                "samples": row.values,
                "medians": {side: row.median(side) for side in row.values},
                "ratios": _ratios(row),
                "cpu_s_per_million": {side: row.cpu_median(side) for side in row.cpu},
            }
            for row in rows
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _ratios(row: Row) -> dict[str, float]:
    return {side: row.ratio(side) for side in row.values if side != KORVET and KORVET in row.values}


def write_picture(path: Path, rows: Sequence[Row]) -> None:
    """Returns an SVG of bars: korvet divided by each reference, with a line at 1 (cut off at 4)."""
    compared = [row for row in rows if _ratios(row)]
    height = _LINE_PX * (len(compared) + 2)
    width = _LEFT_PX + _PER_ONE_PX * _MOST_RATIO + 80
    one = _LEFT_PX + _PER_ONE_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT_PX}" y="16">korvet / redis (red), korvet / kafka (blue), korvet / others (grey); '
        "&#8595;: smaller is better</text>",
        f'<line x1="{one}" x2="{one}" y1="24" y2="{height}" stroke="#999"/>',
    ]
    for index, row in enumerate(compared):
        top = _LINE_PX * (index + 1)
        arrow = " \u2193" if row.unit in SMALLER_IS_BETTER else ""
        label = escape(f"{row.benchmark}: {row.figure}{arrow}")
        parts.append(f'<text x="{_LEFT_PX - 6}" y="{top + 13}" text-anchor="end">{label}</text>')
        for line, (side, ratio) in enumerate(_ratios(row).items()):
            y = top + line * (_BAR_PX + 2)
            bar, colour = _PER_ONE_PX * min(ratio, _MOST_RATIO), _COLOURS.get(side, _OTHER_COLOUR)
            parts.append(
                f'<rect x="{_LEFT_PX}" y="{y}" width="{bar:.1f}" height="{_BAR_PX}" fill="{colour}"/>'
            )
            parts.append(f'<text x="{_LEFT_PX + bar + 4:.1f}" y="{y + _BAR_PX}">{ratio:.2f}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")
