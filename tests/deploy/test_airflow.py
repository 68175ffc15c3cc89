"""The Airflow DAG: its command is the report's, Airflow imports it, and its tasks follow the exit status."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from korvet.spark.cli import report
from tests.support.polling import patient

ROOT = Path(__file__).resolve().parents[2]
DAG = ROOT / "deploy" / "airflow" / "korvet_report.py"
AIRFLOW = "apache-airflow>=3,<4"
INSTALL_TIMEOUT_S = 1500


def command() -> list[str]:
    """The DAG's COMMAND. This environment has no Airflow, so the module can't be imported."""
    for statement in ast.parse(DAG.read_text("utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "COMMAND":
            found: list[str] = ast.literal_eval(statement.value)
            return found
    raise AssertionError("the DAG has no COMMAND")


def test_the_command_has_options_of_the_report() -> None:
    name, subcommand, *options = command()
    assert (name, subcommand) == ("korvet", "report")
    given = report.make_context("report", [*options, "--out", "folder"]).params
    assert (given["as_json"], given["fail_on"]) == (True, "warning")


@pytest.fixture(scope="module")
def airflow_python() -> Path:
    """The Python of an environment of its own, because Airflow pins hundreds of packages."""
    folder = ROOT / ".cache" / "airflow"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", AIRFLOW]
        done = subprocess.run(
            install, capture_output=True, text=True, check=False, timeout=patient(INSTALL_TIMEOUT_S)
        )
        if done.returncode:
            pytest.skip(f"Airflow can't be installed: {done.stderr.strip().splitlines()[-1]}")
        complete.touch()
    return python


@pytest.mark.long
@pytest.mark.timeout(INSTALL_TIMEOUT_S + 300)
@pytest.mark.parametrize(
    ("status", "severity", "outcome"),
    [
        (0, "ok", "passes"),
        (3, "warning", "passes"),
        (4, "critical", "fails: 2 of 5 groups are in a critical state"),
        (1, None, "retries: korvet report ended with status 1; its message is above"),
    ],
)
def test_airflow_imports_and_runs_the_dag(
    airflow_python: Path, tmp_path: Path, status: int, severity: str | None, outcome: str
) -> None:
    alerts: dict[str, Any] = {
        "severity": severity,
        "groups": 5,
        "groups_by_severity": {"critical": 2},
        "alerts": [{"severity": severity, "group": "billing", "message": "has stopped"}],
    }
    (tmp_path / "alerts.json").write_text("" if severity is None else json.dumps(alerts), encoding="utf-8")
    program = tmp_path / "korvet"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/alerts.json\nexit {status}\n", encoding="utf-8")
    program.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ |= {"AIRFLOW_HOME": str(tmp_path / "home"), "PATH": f"{tmp_path}{os.pathsep}{environ['PATH']}"}
    done = subprocess.run(
        [str(airflow_python), str(ROOT / "tests" / "deploy" / "dag_program.py"), str(DAG.parent)],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "import_errors": {},
        "order": {"report": [], "check": ["report"]},
        "outcome": outcome,
    }
