"""The source distribution, and the wheel that is built from it."""

from __future__ import annotations

import os
import sys
import tarfile
import venv
from pathlib import Path

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet
from tests.support.processes import run

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
# Relative to korvet/monitoring in the package, and to deploy/ in the repository.
MONITORING = sorted(
    str(path.relative_to(ROOT / "deploy"))
    for kind in ("grafana", "prometheus")
    for path in (ROOT / "deploy" / kind).rglob("*")
    if path.is_file()
)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_rules_and_dashboards_are_written(tmp_path: Path) -> None:
    (tmp_path / "prometheus").mkdir()
    (tmp_path / "prometheus" / "own.yml").touch()
    done = CliRunner().invoke(korvet, ["monitoring", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert files_in(tmp_path) == sorted([*MONITORING, "prometheus/own.yml"])
    for name in MONITORING:
        assert (tmp_path / name).read_bytes() == (ROOT / "deploy" / name).read_bytes()


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_a_wheel_of_the_source_distribution_works(tmp_path: Path) -> None:
    listed = run(["git", "-C", str(ROOT), "ls-files", "-z"], TIMEOUT_S).stdout.decode().split("\0")
    tracked = "\n".join(name for name in listed if name and (ROOT / name).exists())
    source = tmp_path / "source"
    source.mkdir()
    packed = ["tar", "--create", "--directory", str(ROOT), "--files-from", "-"]
    archive = run(packed, TIMEOUT_S, stdin=tracked.encode())
    run(["tar", "--extract", "--directory", str(source)], TIMEOUT_S, stdin=archive.stdout)
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    # Without a compiler, because only the contents matter here.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"CC": "false"}

    def checked(*command: str, cwd: Path = tmp_path) -> None:
        done = run(command, TIMEOUT_S, env=env, cwd=cwd)
        assert done.returncode == 0, done.stderr.decode()[-4000:]

    checked(python, "-m", "pip", "install", "--quiet", "setuptools>=77", "cython>=3.1")
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path / 'dist')!r})"
    checked(python, "-c", build, cwd=source)
    (distribution,) = (tmp_path / "dist").iterdir()
    with tarfile.open(distribution) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert not [name for name in names if name.startswith("tests")]
    assert {f"korvet/monitoring/{name}" for name in MONITORING} <= names
    checked(python, "-m", "pip", "install", "--quiet", "--no-deps", str(distribution))
    # The dependencies are those of the tests.
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    command = str(tmp_path / "env" / "bin" / "korvet")
    checked(command, "monitoring", "written")
    assert files_in(tmp_path / "written") == MONITORING
    for name in ("serve", "ready"):
        checked(command, name, "--help")
    checked(command, "report", "--help")
