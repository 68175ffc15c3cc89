"""The suite of benchmarks runs: every load client against a real broker, one table, JSON and a picture."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rig import programs
from benchmarks.suite import goals_of
from tests.support.processes import run

ROOT = Path(__file__).resolve().parents[2]
SOME = "produce,fetch,latency,commits"
OTHERS = "durable,clients,wide_fetch,tail,single,connections,metadata,scrape,shares"

pytestmark = pytest.mark.clients


@pytest.fixture(autouse=True)
def compiler() -> str:
    program = shutil.which("cc")
    if program is None:
        pytest.skip("needs a C compiler: no cc on PATH")
    return program


@pytest.mark.parametrize("source", sorted(programs.SOURCES.glob("*.c")), ids=lambda path: path.stem)
def test_load_clients_compile_without_a_warning(source: Path, compiler: str, tmp_path: Path) -> None:
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "program", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("names", [SOME, pytest.param(OTHERS, marks=pytest.mark.long)])
def test_the_suite_runs(tmp_path: Path, names: str) -> None:
    path = tmp_path / "results.json"
    arguments = ["--quick", "--seconds", "0.2", "--no-kafka", "--only", names, "--json", str(path)]
    done = run([sys.executable, "-m", "benchmarks.suite", *arguments], 200, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    rows = json.loads(path.read_text())["rows"]
    found = {row["benchmark"].partition(",")[0] for row in rows if "korvet" in row["samples"]}
    assert len(found) == len(names.split(",")), (found, done.stderr.decode())
    rates = [row for row in rows if row["unit"] == "1/s"]
    assert all(value > 0 for row in rates for values in row["samples"].values() for value in values)
    assert {"redis", "korvet"} <= set(rows[0]["samples"])
    assert "records per second" in done.stdout.decode()
    assert path.with_suffix(".svg").stat().st_size > 0


def test_goals_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    arguments = [
        "--quick",
        "--seconds",
        "0.2",
        "--no-kafka",
        "--only",
        "produce,wide_fetch,metadata",
        "--goals",
    ]
    done = run([sys.executable, "-m", "benchmarks.suite", *arguments, "--json", str(path)], 200, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    content = json.loads(path.read_text())
    wanted = {goal.benchmark for goal in goals_of(("produce", "wide_fetch"))}
    assert {row["benchmark"] for row in content["rows"]} == wanted
    assert "redis" in {goal["side"] for goal in content["goals"]}


def test_starts_are_measured_beside_those_of_another_checkout() -> None:
    arguments = ["--rounds", "1", "--beside", str(ROOT)]
    done = run([sys.executable, "-m", "benchmarks.starting", *arguments], 300, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    rows = [
        line for line in done.stdout.decode().splitlines() if "Metadata" in line or "KorvetBroker" in line
    ]
    assert len(rows) == 6
    assert all(len(re.findall(r"\d\.\d{3}", row)) == 2 for row in rows)


def test_a_failing_client_says_why() -> None:
    with pytest.raises(programs.LoadFailed, match=r"no-such\.requests"):
        programs.run("requests", "127.0.0.1:1", "no-such.requests")
