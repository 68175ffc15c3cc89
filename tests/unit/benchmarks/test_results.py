"""Rounds, ratios, goals, and the output forms of results."""

from __future__ import annotations

import io
import json
import statistics
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import click
import pytest
from rich.console import Console

from benchmarks.picture import rows_of
from benchmarks.rig import output
from benchmarks.rig.goals import Goal, reached
from benchmarks.rig.measuring import KORVET, Row, Sample, interleaved
from benchmarks.rig.picture import write_picture
from benchmarks.suite import CASES, cases_of, goals_of

if TYPE_CHECKING:
    from pathlib import Path

ROW = Row(
    "produce",
    "records per second",
    "1/s",
    {KORVET: [100.0, 300.0, 200.0], "redis": [200.0, 400.0, 250.0], "kafka": [50.0, 150.0, 400.0]},
    {KORVET: {"broker": [1.0, 3.0, 2.0]}},
)
ALONE = Row("redis-benchmark", "records per second", "1/s", {"redis": [2e6]})
OTHER = Row("decode", "records per second", "1/s", {KORVET: [1.0], "key and value": [2.0]})
GOALS = [
    Goal("produce", "records per second", "redis", 0.8),
    Goal("latency", "p99 <ms>", "kafka", 0.3),
    Goal("latency", "p99 <ms>", "redis", 0.3),
    Goal("produce", "p99 <ms>", "kafka", 1.0),
]
LATENCY = Row("latency", "p99 <ms>", "ms", {KORVET: [0.25], "kafka": [1.0]})


def test_every_side_is_run_once_a_round_and_another_one_begins() -> None:
    order: list[str] = []

    def side(name: str) -> Sample:
        order.append(name)
        return Sample(
            {"rate": float(len(order)), "extra": 1.0} if name == "a" else {"rate": 1.0}, {"cpu": 2.0}
        )

    sides = {name: lambda name=name: side(name) for name in "ab"}
    rate, extra = interleaved("some", sides, 3, {"rate": "1/s", "extra": "B"})
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert rate.values == {"a": [1.0, 4.0, 5.0], "b": [1.0, 1.0, 1.0]}
    assert rate.cpu == {"a": {"cpu": [2.0] * 3}, "b": {"cpu": [2.0] * 3}}
    assert extra.values == {"a": [1.0] * 3}


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    assert ROW.median() == 200.0
    assert ROW.ratio("redis") == 0.75
    assert ROW.ratio("kafka") == 2.0
    assert ROW.ratio("kafka", "redis") == statistics.median([4.0, 400 / 150, 250 / 400])


def test_the_table_shows_every_side() -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(output.table([ROW, ALONE, OTHER, LATENCY], "title"))
    text = console.file.getvalue()
    assert all(word in text for word in ("0.2 k/s", "0.75", "2.00", "2.00 M/s", "broker 2.00", "0.25 ms"))
    assert "key and value 0.002 k/s 0.50" in text


def test_json_has_every_sample(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    compared = list(reached(GOALS, [ROW, ALONE, LATENCY]))
    output.write_json(path, [ROW, ALONE, LATENCY], compared, {"cores": 2})
    content = json.loads(path.read_text())
    first, alone, latency = content["rows"]
    assert content["machine"] == {"cores": 2}
    assert first["samples"] == ROW.values
    assert first["ratios"] == {"redis": 0.75, "kafka": 2.0}
    assert first["cpu_s_per_million"] == {KORVET: {"broker": 2.0}}
    assert alone["ratios"] == {}
    assert (first["smaller_is_better"], latency["smaller_is_better"]) == (False, True)
    assert [goal["met"] for goal in content["goals"]] == [False, True]
    assert (content["goals"][0]["at_least"], content["goals"][1]["at_most"]) == (0.8, 0.3)
    assert [row.values for row in rows_of(path)] == [ROW.values, ALONE.values, LATENCY.values]


def test_the_table_of_goals_shows_those_that_were_measured() -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(output.goal_table(list(reached(GOALS, [ROW, ALONE, LATENCY]))))
    missed, met = [line for line in console.file.getvalue().splitlines() if "met" in line or "missed" in line]
    assert all(word in missed for word in ("produce", "0.50 0.75 0.80", "0.75", "≥ 0.80", "missed"))
    assert all(word in met for word in ("latency", "kafka", "0.25", "≤ 0.30", "met"))


def test_the_picture_has_a_bar_per_side(tmp_path: Path) -> None:
    path = tmp_path / "results.svg"
    write_picture(path, [ROW, ALONE, OTHER, LATENCY])
    picture = ElementTree.parse(path).getroot()
    bars = [rect for rect in picture.iter("{http://www.w3.org/2000/svg}rect") if "fill" in rect.attrib][1:]
    shown = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert len(bars) == 3
    assert {"2.00 korvet", "2.67 redis", "0.25 korvet", "p99 <ms>, kafka = 1 (smaller is better)"} <= shown


def test_names_of_benchmarks() -> None:
    assert cases_of(None) == CASES
    assert cases_of("fetch, produce") == ("fetch", "produce")
    with pytest.raises(click.BadParameter, match="no benchmark nothing"):
        cases_of("fetch,nothing")


def test_every_goal_is_of_its_benchmark() -> None:
    assert {name for name in CASES if goals_of((name,))} == {
        "clients",
        "durable",
        "latency",
        "produce",
        "refresh",
        "replicas",
        "scrape",
        "shares",
        "single",
        "skew",
        "spark_tables",
        "tail",
        "wide_fetch",
    }
