"""The jar of korvet's part in Spark's driver: compiled once, and what is said if it can't be."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from korvet.spark.session.driver_jar import driver_jar
from korvet.spark.session.jars import JarsMissing
from korvet.spark.session.session import JavaMissing

if TYPE_CHECKING:
    from pathlib import Path

compiled = driver_jar.__wrapped__


def java(folder: Path, script: str) -> str:
    """A folder for JAVA_HOME whose `java` is a shell script."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return str(folder)


@pytest.fixture(autouse=True)
def _jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KORVET_JARS_DIR", str(tmp_path / "jars"))


def test_the_jar_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jar = compiled()
    with zipfile.ZipFile(jar) as archive:
        assert "korvet/spark/DriverCalls.class" in archive.namelist()
    monkeypatch.setenv("JAVA_HOME", java(tmp_path / "none", "exit 1"))
    assert compiled() == jar
    assert list(jar.parent.iterdir()) == [jar]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'FindException: Module jdk.compiler not found'; exit 1", "has no compiler, .* use a JDK 17"),
        ("echo 'error: cannot access Path' >&2; exit 1", "can't compile .*: error: cannot access Path"),
    ],
)
def test_a_java_that_cannot_compile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", java(tmp_path / "home", script))
    with pytest.raises(JavaMissing, match=said):
        compiled()
    assert list((tmp_path / "jars").iterdir()) == []


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KORVET_JARS_DIR", str(tmp_path / "file" / "jars"))
    with pytest.raises(JarsMissing, match="set KORVET_JARS_DIR"):
        compiled()
