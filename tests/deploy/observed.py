"""The rules and dashboards of deploy/, and the metrics that korvet declares."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from korvet.metrics.family import MetricType
from tests.support.families import all_families

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.metrics.family import Family

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
CASES = Path(__file__).with_name("alert_cases.yml")

# Labels that Prometheus adds, and that of the page of several brokers.
SCRAPED = {"job", "instance", "node_id"}
# Replaces what Grafana fills in.
FILLED = {
    "$__rate_interval": "1m",
    "$__range": "1h",
    "$topic": ".+",
    "$group": ".+",
    "$broker": ".+",
}


@dataclass(frozen=True, slots=True)
class Use:
    """An expression, and who evaluates it."""

    place: str
    expression: str


def read_yaml(path: Path) -> Any:
    """Returns the only document of a file."""
    return yaml.safe_load(path.read_text())


def rules() -> Iterator[dict[str, Any]]:
    """Yields every rule: `alert` or `record`, `expr` and so on."""
    for path in RULES:
        for group in read_yaml(path)["groups"]:
            yield from group["rules"]


def alert_names() -> list[str]:
    return [rule["alert"] for rule in rules() if "alert" in rule]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    """Returns the panels of a dashboard that show something."""
    return [panel for panel in json.loads(dashboard.read_text())["panels"] if panel["type"] != "row"]


def filled(expression: str, interval: str = "1m") -> str:
    """Returns a panel's expression as Grafana sends it, with everything selected."""
    for name, value in {**FILLED, "$__rate_interval": interval}.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def uses() -> Iterator[Use]:
    """Yields every expression of the rules and dashboards."""
    for rule in rules():
        yield Use(rule.get("alert") or rule["record"], rule["expr"])
    for path in DASHBOARDS:
        for panel in panels(path):
            for target in panel["targets"]:
                yield Use(f"{path.stem}: {panel['title']}", filled(target["expr"]))


def known_series() -> dict[str, set[str]]:
    """Returns the names of all series that brokers and recording rules make, with their labels."""
    found: dict[str, set[str]] = {"up": set()}
    for family in all_families().values():
        found |= dict(series(family))
    for rule in rules():
        if "record" in rule:
            found[rule["record"]] = set(rule["record"].partition(":")[0].split("_"))
    return found


def series(family: Family) -> Iterator[tuple[str, set[str]]]:
    """Yields the names of the series of a family, with their labels."""
    labels = set(family.labels)
    if family.kind is MetricType.HISTOGRAM:
        yield f"{family.name}_bucket", {*labels, "le"}
    if family.kind is MetricType.SUMMARY:
        yield family.name, {*labels, "quantile"}
    if family.kind in (MetricType.HISTOGRAM, MetricType.SUMMARY):
        yield f"{family.name}_sum", labels
        yield f"{family.name}_count", labels
    else:
        yield family.name, labels
