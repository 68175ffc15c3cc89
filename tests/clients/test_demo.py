"""`korvet demo`, as a newcomer starts it: ends well, leaves a report and no process."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import run

pytestmark = [pytest.mark.clients, pytest.mark.spark]


def running_on(folder: Path) -> list[str]:
    """Command lines of processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_demo(tmp_path):
    data, out = tmp_path / "data", tmp_path / "report"
    command = [sys.executable, "-m", "korvet", "demo", "--data-dir", str(data), "--out", str(out)]
    done = run(command, timeout_s=240)
    shown = done.stdout.decode()
    assert done.returncode == 0, shown + done.stderr.decode()
    assert f"Report: {out / 'report.html'}" in shown
    page = (out / "report.html").read_text()
    for group in ("billing", "search-index", "audit", "mailer", "tracking", "warehouse"):
        assert group in page
    assert list(out.rglob("*.parquet"))
    committed = re.search(r"committed offset +(\d+) = entry (\S+)", shown)
    native = re.search(r"XREADGROUP [^\n]*\n +(\d+) = entry (\S+)", shown)
    assert committed is not None
    assert native is not None
    assert committed.groups() == native.groups()
    assert running_on(data) == []
