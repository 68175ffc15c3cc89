"""An Airflow 3 DAG that reports on consumer groups each hour, and fails if a group is in a critical state.

korvet, with its extra `spark`, and Java must be on the workers. Redis and its password come from the worker's
environment: KORVET_REDIS and KORVET_REDIS_PASSWORD.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

OUT = os.environ.get("KORVET_REPORT_DIR", "/var/lib/korvet/report")
COMMAND = ["korvet", "report", "--json", "--fail-on", "warning", "--since-hours", "24"]
# The exit statuses of a written report: no alerts, warnings, critical alerts. All others are errors.
WRITTEN, WARNING, CRITICAL = 0, 3, 4

log = logging.getLogger(__name__)


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def korvet_report() -> None:
    """Write the report, then judge its alerts. Only errors are retried: a retry would not change an alert."""

    @task(retries=2, retry_delay=timedelta(minutes=5), execution_timeout=timedelta(minutes=30))
    def report() -> dict[str, Any]:
        """Return the report's alerts, as in alerts.json."""
        done = subprocess.run([*COMMAND, "--out", OUT], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (WRITTEN, WARNING, CRITICAL):
            raise AirflowException(f"korvet report ended with status {done.returncode}; its message is above")
        alerts: dict[str, Any] = json.loads(done.stdout)
        return alerts

    @task(retries=0)
    def check(found: dict[str, Any]) -> None:
        """Log all alerts; fail if one of them is critical."""
        for alert in found["alerts"]:
            log.warning("%s: group %s %s", alert["severity"], alert["group"], alert["message"])
        if found["severity"] == "critical":
            groups = found["groups_by_severity"]["critical"]
            raise AirflowFailException(f"{groups} of {found['groups']} groups are in a critical state")

    check(report())


korvet_report()
