"""Durations of tests: measured in each process, and merged over runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Plugins that the run does not need.
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
CONFTEST = """
from tests.support.durations import Durations

def pytest_configure(config):
    config.pluginmanager.register(Durations(config.rootpath))
"""
BURN = "import os\nwhile sum(os.times()[:2]) < 0.3:\n    sum(range(1000))\n"
WAIT = BURN + "print(flush=True); input()"
TESTS = f"""
import subprocess, sys

def test_in_a_child():
    subprocess.run([sys.executable, "-c", {BURN!r}], check=True)

def test_in_a_live_child():
    child = subprocess.Popen([sys.executable, "-c", {WAIT!r}], stdin=-1, stdout=-1)
    child.stdout.readline()
    test_in_a_live_child.child = child

def test_nothing():
    pass

def test_end():
    test_in_a_live_child.child.communicate()
"""


def test_cpu_time_is_recorded_by_test(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])}
        command = [sys.executable, "-m", "pytest", *WITHOUT, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (tmp_path / "pytest.ini").touch()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_b.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    out = run("-n", "2", "--dist", "loadfile")
    stored = tmp_path / ".cache" / "test-durations.json"
    first = json.loads(stored.read_text())
    assert first["test_a.py::test_in_a_child"]["cpu_s"] >= 0.3, out
    assert first["test_a.py::test_in_a_live_child"]["cpu_s"] >= 0.3
    assert first["test_a.py::test_nothing"]["cpu_s"] < 0.3
    assert "test_a.py" in out.partition("= durations =")[2].splitlines()[2]
    (tmp_path / "test_a.py").unlink()
    run("test_b.py::test_one")
    assert json.loads(stored.read_text()).keys() == {"test_b.py::test_one", "test_b.py::test_two"}
    stored.write_text(stored.read_text()[:20])
    run("test_b.py::test_one")
    assert json.loads(stored.read_text()).keys() == {"test_b.py::test_one"}
    stored.unlink()
    stored.mkdir()
    assert "the durations are not stored: " in run("test_b.py::test_one")
