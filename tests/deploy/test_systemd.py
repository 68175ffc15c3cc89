"""Checks the unit for systemd with `systemd-analyze`, and its commands and times."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet
from tests.deploy.observed import read_yaml

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "korvet.service"
# Of 100, by `systemd-analyze security`: a service without any protection has 96.
MOST_EXPOSURE = 20


def analyzed(tmp_path: Path, *command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("needs systemd-analyze (systemd)")
    unit = tmp_path / UNIT.name
    korvet = Path(sys.executable).with_name("korvet")
    unit.write_text((text or UNIT.read_text()).replace("/opt/korvet/bin/korvet", str(korvet)))
    return subprocess.run([program, *command, str(unit)], capture_output=True, text=True, check=False)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    done = analyzed(tmp_path, "verify", "--man=no")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    wrong = UNIT.read_text().replace("StateDirectory=", "StateFolder=")
    assert "StateFolder" in analyzed(tmp_path, "verify", "--man=no", text=wrong).stderr


def test_the_service_is_protected(tmp_path: Path) -> None:
    done = analyzed(tmp_path, "security", "--offline=yes", f"--threshold={MOST_EXPOSURE}", "--no-pager")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_runs_commands_with_their_options() -> None:
    unit = UNIT.read_text()
    commands = re.findall(r"^ExecStart(?:Post)?=/opt/korvet/bin/korvet (\w+)(.*)$", unit, re.MULTILINE)
    assert [command for command, _ in commands] == ["serve", "ready"]
    for command, options in commands:
        shown = CliRunner().invoke(korvet, [command, "--help"]).output
        assert all(option in shown for option in re.findall(r"--[a-z-]+", options))
    (waits,) = re.findall(r"--wait (\d+)", unit)
    (start,) = re.findall(r"^TimeoutStartSec=(\d+)$", unit, re.MULTILINE)
    assert int(start) > int(waits)
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(stop) == read_yaml(ROOT / "deploy/helm/korvet/values.yaml")["terminationGracePeriodSeconds"]
