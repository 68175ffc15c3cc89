"""The files of a release: their contents, and that they work when they are installed."""

from __future__ import annotations

import platform
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet
from tools import release

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1800
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
@pytest.mark.timeout(TIMEOUT_S)
def test_a_release_is_built_and_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With this Python: the wheel, and the source distribution without a compiler, each in an environment."""
    monkeypatch.setattr(release, "DIST", tmp_path / "dist")
    monkeypatch.setattr(release, "WORK", tmp_path / "work")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not release.find_pythons([version]):
        pytest.skip(f"needs a Python {version} that can create environments and compile")
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK")
    assert release.main([version]) == 0, capfd.readouterr().err
    tried = capfd.readouterr().err
    for how in ("compiled", "interpreted"):
        used = "a broker kept a record and stopped, .* a test of five lines passed, "
        assert re.search(rf" on Python {version}\.\d+, {how}, .*{used}", tried)
    (source,) = (tmp_path / "dist").glob("*.tar.gz")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with tarfile.open(source) as opened:
        in_source = {name.partition("/")[2] for name in opened.getnames()}
    with zipfile.ZipFile(wheel) as unzipped:
        in_wheel = set(unzipped.namelist())
    for names in (in_source, in_wheel):
        assert not [name for name in names if name.startswith("tests")]
        assert {f"korvet/monitoring/{name}" for name in MONITORING} <= names
    assert "korvet/redis/module/korvet_module.so" in in_wheel
    assert "korvet/redis/module/korvet_module.c" in in_source - in_wheel
    assert "korvet/spark/session/driver.jar" in in_wheel
    driver = ROOT / "spark" / "session" / "driver"
    java = {f"korvet/spark/session/driver/{path.relative_to(driver)}" for path in driver.rglob("*.java")}
    assert java <= in_source - in_wheel
    if sys.platform == "linux" and platform.machine() == "x86_64":
        assert "manylinux_2_17_x86_64" in wheel.name


def test_unknown_versions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["3.10"]) == 2
    assert "unknown argument '3.10'" in capsys.readouterr().err
