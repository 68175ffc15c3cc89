"""Writes the Grafana dashboards in deploy/grafana/dashboards.

Run it with `./dev run python -m tools.dashboards`; `--check` only compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.dashboards.cluster import CLUSTER
from tools.dashboards.groups import GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tools.dashboards.panel import Dashboard, Panel, Row

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"
# Grafana's grid is this wide.
COLUMNS: Final = 24
HEIGHTS: Final = {"stat": 4, "timeseries": 8, "table": 10}
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def main(arguments: Sequence[str]) -> int:
    """Write the dashboards, or with --check print the names of outdated ones. Returns the exit status."""
    stale = [path for path, text in files() if not path.exists() or path.read_text() != text]
    if "--check" not in arguments:
        for path, text in files():
            path.write_text(text)
        return 0
    for path in stale:
        sys.stderr.write(f"{path.name} is out of date: run python -m tools.dashboards\n")
    return 1 if stale else 0


def files() -> Iterator[tuple[Path, str]]:
    """Yields the path and the content of every dashboard."""
    for dashboard in (CLUSTER, GROUPS):
        yield FOLDER / f"{dashboard.name}.json", json.dumps(document(dashboard), indent=2) + "\n"


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Returns a dashboard as Grafana stores it."""
    return {
        "uid": f"korvet-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["korvet", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "korvet",
                "tags": ["korvet"],
                "keepTime": True,
                "includeVars": True,
            }
        ],
        "templating": {"list": [datasource(), *(variable(*each) for each in dashboard.variables)]},
        "panels": list(placed(dashboard.rows)),
    }


def datasource() -> dict[str, Any]:
    """Returns the variable by which users choose their Prometheus."""
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def variable(name: str, query: str) -> dict[str, Any]:
    """Returns a variable with the values of a label: `label_values(metric, label)`."""
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yields the panels from left to right and from top to bottom, with a heading over each row."""
    top, number = 0, 0
    for row in rows:
        number += 1
        heading = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": heading}
        top, left, below = top + 1, 0, top + 1
        for panel in row.panels:
            height = HEIGHTS[panel.kind]
            if left + panel.width > COLUMNS:
                left, top = 0, below
            number += 1
            yield drawn(panel, number, {"h": height, "w": panel.width, "x": left, "y": top})
            left, below = left + panel.width, max(below, top + height)
        top = below


def drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    """Returns a panel as Grafana stores it."""
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 10, "showPoints": "never"}
    if panel.alarming is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.alarming}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        defaults["color"] = {"mode": "thresholds"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": OPTIONS[panel.kind],
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": panel.kind == "table",
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, (expression, legend) in enumerate(panel.targets)
        ],
    }


OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"},
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "table": {"sortBy": [{"displayName": "Value", "desc": True}]},
}
