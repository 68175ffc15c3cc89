"""`korvet demo`: it succeeds or reports the reason, and leaves a report and no process."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from korvet.demo import cli as demo_cli
from korvet.demo.cli import demo
from korvet.demo.failure import DemoFailed, expect
from korvet.demo.report import check_report
from korvet.demo.scenario import GroupClaim
from korvet.offsets.packing import entry_id, offset_of
from tests.support.polling import until
from tests.support.processes import Child, run

if TYPE_CHECKING:
    from collections.abc import Sequence

# Numbers that the report must contain: unread records, members.
GROUPS = {
    "billing": (0, 1),
    "search-index": (1_200, 1),
    "audit": (2_940, 1),
    "old-export": (2_500, 0),
    "workers": (0, 2),
    "screens": (0, 2),
    "alerts": (0, 1),
    "bridge": (750, 0),
}


def command(data: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "korvet", "demo", "--data-dir", str(data), "--out", str(out)]


def command_line(pid: int) -> str:
    """Returns the command of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def processes_on(folder: Path) -> list[int]:
    """Returns the processes whose command names a folder."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if str(folder) in command_line(pid)]


def running_on(folder: Path) -> list[str]:
    """Returns the commands of these processes."""
    return [command_line(pid) for pid in processes_on(folder)]


@pytest.mark.clients
@pytest.mark.spark
def test_demo(tmp_path):
    data, out = tmp_path / "data", tmp_path / "report"
    done = run(command(data, out), timeout_s=280)
    shown = done.stdout.decode()
    assert done.returncode == 0, shown + done.stderr.decode()
    assert f"Report: {out / 'report.html'}" in shown
    assert f"korvet serve --data-dir {data}" in shown
    rows = pyarrow.parquet.read_table(out / "group_status").to_pylist()
    assert {row["group"]: (row["record_lag"], row["member_count"]) for row in rows} == GROUPS
    page = (out / "report.html").read_text()
    assert all(f'"record_lag":{unread}' in page and group in page for group, (unread, _) in GROUPS.items())
    for offset, entry in re.findall(r"offset (\d+) = entry (\S+)", shown):
        assert entry_id(int(offset)) == entry
    committed = re.search(r"committed: offset (\d+)", shown)
    native = re.search(r"XREADGROUP .* begins with (\S+)", shown)
    assert committed is not None
    assert native is not None
    assert int(committed[1]) == offset_of(native[1])
    assert "generation 3: 3 members, generation 4: 2 members" in shown
    dumped = [json.loads(line) for line in shown.splitlines() if line.startswith('    {"key"')]
    assert {line["key"]["data"]["group"] for line in dumped} == {"search-index"}
    assert running_on(tmp_path) == []


@pytest.mark.clients
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_the_demo_leaves_nothing_running(tmp_path, number):
    child = Child(command(tmp_path / "data", tmp_path / "report"), tmp_path / "log")
    until(lambda: "Four consumer groups" in child.output() or not child.running, 60, "the demo is at work")
    os.kill(child.pid, number)
    until(lambda: not child.running, 40, "the demo ended")
    assert child.exit_code == 130, child.output()
    assert "Stopped" in child.output()
    assert "Traceback" not in child.output()
    until(lambda: running_on(tmp_path / "data") == [], 10, "the broker and its server are gone")


def test_an_interrupted_client_library_may_raise_an_error_of_its_own(tmp_path, monkeypatch):
    def play(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise TypeError("expected list of unicode strings") from None

    monkeypatch.setattr(demo_cli, "_play", play)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        done = CliRunner().invoke(demo, ["--data-dir", str(tmp_path / "data")])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (done.exit_code, "Stopped; nothing is left running" in done.output) == (130, True)


@pytest.mark.clients
def test_a_killed_demo_takes_its_broker_along(tmp_path):
    child = Child(command(tmp_path / "data", tmp_path / "report"), tmp_path / "log")
    until(lambda: "Kafka clients connect" in child.output() or not child.running, 60, "the broker runs")
    child.kill()
    until(lambda: running_on(tmp_path / "data") == [], 20, "the broker and its server are gone")


@pytest.mark.clients
def test_a_broker_that_ends_is_named_as_the_reason(tmp_path):
    child = Child(command(tmp_path / "data", tmp_path / "report"), tmp_path / "log")
    until(lambda: "Four consumer groups" in child.output() or not child.running, 60, "the demo is at work")
    brokers = [pid for pid in processes_on(tmp_path / "data") if " serve " in command_line(pid)]
    assert len(brokers) == 1
    os.kill(brokers[0], signal.SIGKILL)
    until(lambda: not child.running, 60, "the demo ended")
    assert child.exit_code == 1
    assert "Error: the broker exited with status -9" in child.output()
    assert "Traceback" not in child.output()


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "something").touch()
    done = CliRunner().invoke(demo, ["--data-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert "is not empty" in done.output


def test_a_wrong_number_is_a_failure():
    expect("entries", 3, 3)
    with pytest.raises(DemoFailed, match=r"entries: found 3, expected 4"):
        expect("entries", 3, 4)


def write_groups(folder: Path, rows: Sequence[tuple[str, int]]) -> None:
    table = [
        {"group": group, "record_lag": unread, "member_count": 1, "status": "OK", "time_lag_ms": 0}
        for group, unread in rows
    ]
    (folder / "group_status").mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), folder / "group_status" / "part.parquet")
    (folder / "report.html").write_text("billing audit")


def test_the_report_is_held_to_what_the_clients_did(tmp_path):
    claims = {"billing": GroupClaim(0, 1), "audit": GroupClaim(7, 1)}
    write_groups(tmp_path / "right", [("billing", 0), ("audit", 7)])
    assert len(check_report(tmp_path / "right", claims)) == 2
    write_groups(tmp_path / "wrong", [("billing", 0), ("audit", 6)])
    with pytest.raises(DemoFailed, match="groups in the report"):
        check_report(tmp_path / "wrong", claims)
