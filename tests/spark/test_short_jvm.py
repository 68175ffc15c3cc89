"""The options of a JVM with a short life."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from korvet.spark.session.short_jvm import short_session

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_first_session_writes_the_archive_and_later_ones_map_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    jars = tmp_path / "of a user"
    monkeypatch.setenv("KORVET_JARS_DIR", str(jars))
    first = _options()
    (name,) = [word for word in first.split('"') if "ArchiveClassesAtExit=" in word]
    archive = name.partition("=")[2]
    assert archive.startswith(f"{jars}/korvet-classes-")
    assert jars.is_dir()
    with open(archive, "x", encoding="utf-8"):
        assert f'"-XX:SharedArchiveFile={archive}"' in _options()
    # Another Java has another archive.
    os.utime(java, ns=(1, 1))
    assert "ArchiveClassesAtExit=" in _options()
    assert archive not in _options()


def test_without_a_folder_there_is_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KORVET_JARS_DIR", str(tmp_path / "file" / "jars"))
    assert "Archive" not in _options()
    assert short_session("spark://host:7077") == {}


def _options() -> str:
    return short_session("local[*]")["spark.driver.extraJavaOptions"]
