"""Checks the Prometheus rules and Grafana dashboards in deploy/: promtool parses every expression, and korvet
declares every metric and label that one reads. tests/observe evaluates them on real brokers.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.deploy.observed import (
    CASES,
    DASHBOARDS,
    DEPLOY,
    ROOT,
    RULES,
    SCRAPED,
    alert_names,
    filled,
    known_series,
    panels,
    read_yaml,
    rules,
    uses,
)
from tests.support.prometheus import promtool
from tests.support.promql import reads
from tests.test_documentation import sections

if TYPE_CHECKING:
    from pathlib import Path

# Grafana's grid is this wide.
COLUMNS = 24


def test_promtool_accepts_rules_and_configuration() -> None:
    for arguments in (
        ("check", "rules", "--lint-fatal", *map(str, RULES)),
        ("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")),
    ):
        done = promtool(*arguments)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_promtool_finds_faults(tmp_path: Path) -> None:
    """Its silence in the other tests means something."""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(RULES[0].read_text().replace("sum(", "sun(", 1))
    assert "unknown function" in promtool("check", "rules", wrong).stderr.decode()


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    # As texts: the values `0x10` of a series are no number.
    cases = yaml.load(CASES.read_text(), yaml.CBaseLoader)
    cases["rule_files"] = [str((CASES.parent / file).resolve()) for file in cases["rule_files"]]
    # Cases have the annotations that depend on the series.
    fixed = {rule["alert"]: rule["annotations"] for rule in rules() if "alert" in rule}
    for check in (check for case in cases["tests"] for check in case["alert_rule_test"]):
        for alert in check.get("exp_alerts", ()):
            annotations = fixed[check["alertname"]]
            alert["exp_annotations"] |= {name: annotations[name] for name in ("description", "action")}
    complete = tmp_path / "cases.yml"
    complete.write_text(json.dumps(cases))
    done = promtool("test", "rules", complete)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_every_alert_has_cases_of_both_kinds() -> None:
    fires: dict[str, set[bool]] = {name: set() for name in alert_names()}
    for case in read_yaml(CASES)["tests"]:
        for check in case["alert_rule_test"]:
            fires[check["alertname"]].add(bool(check.get("exp_alerts")))
    assert [name for name, kinds in fires.items() if kinds != {True, False}] == []


def test_every_alert_is_explained() -> None:
    text = (ROOT / "docs" / "reference" / "alerts.md").read_text()
    assert re.findall(r"^\| `(\w+)`", text, re.MULTILINE) == alert_names()


def test_every_alert_has_a_severity_and_says_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"critical", "warning"}, rule["alert"]
            for name in ("summary", "description", "action"):
                assert rule["annotations"][name].endswith("."), (rule["alert"], name)


def test_every_alert_has_a_runbook_that_exists() -> None:
    for rule in rules():
        if "alert" in rule:
            page, _, section = rule["annotations"]["runbook_url"].partition("#")
            assert (ROOT / page).is_file(), rule["alert"]
            assert not section or section in sections(ROOT / page), rule["alert"]


@pytest.mark.parametrize(
    ("what", "metrics"),
    [
        ("memory", {"korvet_redis_memory_used_bytes", "korvet_redis_memory_max_bytes"}),
        ("disk", {"korvet_disk_free_bytes"}),
        ("persistence", {"korvet_redis_persistence_ok", "korvet_redis_aof_bytes"}),
        ("snapshots", {"korvet_redis_rdb_last_save_timestamp_seconds"}),
        (
            "forks",
            {"korvet_redis_last_fork_seconds", "korvet_redis_aof_rewriting", "korvet_redis_rdb_saving"},
        ),
        ("evictions", {"korvet_redis_evicted_keys_total", "korvet_redis_evicts_keys"}),
    ],
)
def test_dashboards_show_what_redis_may_run_out_of(what: str, metrics: set[str]) -> None:
    shown = {
        name
        for path in DASHBOARDS
        for panel in panels(path)
        for target in panel["targets"]
        for name in reads(filled(target["expr"])).metrics
    }
    assert metrics <= shown, what


def test_expressions_of_dashboards_are_correct(tmp_path: Path) -> None:
    made = [{"record": f"r{number}", "expr": use.expression} for number, use in enumerate(uses())]
    file = tmp_path / "expressions.yml"
    file.write_text(json.dumps({"groups": [{"name": "expressions", "rules": made}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stderr.decode()


def test_all_values_of_a_variable_leave_out_samples_without_the_label() -> None:
    """The traffic of all topics together has no topic: no panel shows it as one of the topics."""
    for path in DASHBOARDS:
        found = json.loads(path.read_text())["templating"]["list"]
        assert {each["allValue"] for each in found if each["type"] == "query"} == {".+"}, path.name


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_places_and_explanations(path: Path) -> None:
    document = json.loads(path.read_text())
    numbers = [panel["id"] for panel in document["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        cells = cells_of(panel["gridPos"])
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels(path):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["targets"], panel["title"]


def cells_of(place: dict[str, Any]) -> set[tuple[int, int]]:
    """Returns the cells of the grid that a panel covers."""
    assert place["x"] + place["w"] <= COLUMNS
    columns = range(place["x"], place["x"] + place["w"])
    return {(column, place["y"] + down) for column in columns for down in range(place["h"])}


@pytest.mark.parametrize(
    ("expression", "metrics", "labels"),
    [
        ("sum by (a) (rate(x_total{b=~'y.*', c!=\"}\"}[5m])) > 0.5", {"x_total"}, {"a", "b", "c"}),
        ("sum(x) by (a, b) / on (c) group_left (d) a:x:sum", {"x", "a:x:sum"}, {"a", "b", "c", "d"}),
        ("x == 1 and y unless z offset 15m or vector(0)", {"x", "y", "z"}, set()),
        ("histogram_quantile(0.9, sum by (le) (rate(x_bucket[1h:5m])))", {"x_bucket"}, {"le"}),
    ],
)
def test_names_in_expressions_are_found(expression: str, metrics: set[str], labels: set[str]) -> None:
    assert reads(expression) == (metrics, labels)


def test_every_metric_and_label_is_declared() -> None:
    known = known_series()
    for use in uses():
        found = reads(use.expression)
        assert found.metrics, use
        assert found.metrics - known.keys() == set(), use
        assert found.labels - SCRAPED - set().union(*(known[name] for name in found.metrics)) == set(), use


def test_variables_read_declared_metrics() -> None:
    known = known_series()
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(
                    r"label_values\((\w+), (\w+)\)", variable["query"]["query"]
                ).groups()
                assert label in known[metric] | SCRAPED


def test_top_reads_declared_metrics() -> None:
    names = set(re.findall(r'"((?:kafka|korvet)_\w+)"', (ROOT / "korvet/cli/top.py").read_text()))
    assert len(names) >= 15
    assert names - known_series().keys() == set()
