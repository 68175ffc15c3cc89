"""Rounds, ratios, and the three output forms of results."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import click
import pytest
from rich.console import Console

from benchmarks.rig import output
from benchmarks.rig.measuring import KORVET, Row, Sample, interleaved
from benchmarks.suite import CASES, cases_of

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


def test_the_table_shows_every_side() -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(output.table([ROW, ALONE, OTHER, LATENCY], "title"))
    text = console.file.getvalue()
    assert all(word in text for word in ("0.2 k/s", "0.75", "2.00", "2.00 M/s", "broker 2.00", "0.25 ms"))
    assert "key and value 0.002 k/s 0.50" in text


def test_json_has_every_sample(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    output.write_json(path, [ROW, ALONE, LATENCY], {"cores": 2})
    content = json.loads(path.read_text())
    first, alone, latency = content["rows"]
    assert content["machine"] == {"cores": 2}
    assert first["samples"] == ROW.values
    assert first["ratios"] == {"redis": 0.75, "kafka": 2.0}
    assert first["cpu_s_per_million"] == {KORVET: {"broker": 2.0}}
    assert alone["ratios"] == {}
    assert (first["smaller_is_better"], latency["smaller_is_better"]) == (False, True)


def test_the_picture_has_a_bar_per_ratio(tmp_path: Path) -> None:
    path = tmp_path / "results.svg"
    output.write_picture(path, [ROW, ALONE, OTHER, LATENCY])
    picture = ElementTree.parse(path).getroot()
    bars = [rect for rect in picture.iter("{http://www.w3.org/2000/svg}rect") if "fill" in rect.attrib][1:]
    shown = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert len(bars) == 4
    assert {"0.75", "2.00", "0.50", "0.25", "latency: p99 <ms> \u2193"} <= set(shown)


def test_names_of_benchmarks() -> None:
    assert cases_of(None) == CASES
    assert cases_of("fetch, produce") == ("fetch", "produce")
    with pytest.raises(click.BadParameter, match="no benchmark nothing"):
        cases_of("fetch,nothing")
