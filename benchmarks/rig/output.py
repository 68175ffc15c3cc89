"""Writes the results: tables, and a JSON file with every sample."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.table import Table

from benchmarks.rig.measuring import KORVET, SMALLER_IS_BETTER, Row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.rig.goals import Reached

_REFERENCES = ("redis", "kafka")


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


def goal_table(compared: Sequence[Reached]) -> Table:
    """Print every goal: korvet's value divided by another side's, by round, and their median."""
    shown = Table(title="goals", caption="korvet / the other side: the median of the rounds' ratios")
    for heading in ("benchmark", "figure", "korvet to"):
        shown.add_column(heading, overflow="fold")
    for heading in ("rounds", "ratio", "goal", ""):
        shown.add_column(heading, justify="right", no_wrap=True)
    for each in compared:
        rounds = " ".join(f"{ratio:.2f}" for ratio in each.ratios)
        bound = f"{'≤' if each.at_most else '≥'} {each.goal.bound:.2f}"
        cells = (each.goal.benchmark, each.goal.figure, each.goal.side, rounds, f"{each.ratio:.2f}", bound)
        shown.add_row(*cells, "met" if each.met else "missed")
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


def write_json(
    path: Path, rows: Sequence[Row], compared: Sequence[Reached], machine: dict[str, object]
) -> None:
    """Write every sample of every side, with medians and ratios, and the goals."""
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
        "goals": [
            {
                "benchmark": each.goal.benchmark,
                "figure": each.goal.figure,
                "side": each.goal.side,
                "ratio": each.ratio,
                "at_most" if each.at_most else "at_least": each.goal.bound,
                "met": each.met,
            }
            for each in compared
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _ratios(row: Row) -> dict[str, float]:
    return {side: row.ratio(side) for side in row.values if side != KORVET and KORVET in row.values}
