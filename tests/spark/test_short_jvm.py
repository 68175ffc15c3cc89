"""The options of a JVM with a short life, and the commands that have one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from korvet.spark.cli import report_command, tables_command
from korvet.spark.session.short_jvm import short_session
from korvet.spark.source.errors import SourceError
from korvet.spark.tables import readers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.spark.keyspace import Keyspace


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
    # While that session runs, others neither write nor map it, unless it was killed.
    assert "Archive" not in _options()
    (note,) = jars.iterdir()
    os.utime(note, (1, 1))
    assert archive in _options()
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


@pytest.mark.parametrize("command", ["report", "refresh"])
def test_commands_for_few_records_have_such_a_jvm(
    command: str, keyspace: Keyspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyspace.topic("t", 2)
    keyspace.offsets_topic()
    keyspace.commit("g", "t", 0, 1, at_ms=1)
    for number in range(3):
        keyspace.add("t", number % 2, f"{number + 1}-0", b"value", b"v")
    sessions: list[Mapping[str, str]] = []
    monkeypatch.setenv("KORVET_JARS_DIR", str(tmp_path / "jars"))

    @contextmanager
    def begun(*_: Any, conf: Mapping[str, str], **__: Any) -> Iterator[None]:
        sessions.append(conf)
        raise SourceError("enough")
        yield

    monkeypatch.setattr(report_command, "spark_session", begun)
    monkeypatch.setattr(tables_command, "spark_session", begun)
    monkeypatch.setattr(tables_command, "stored_session", lambda location, master: ([], {}))
    commands = {
        "report": (report_command.report, ["--out", str(tmp_path / "report")]),
        "refresh": (tables_command.refresh, ["--to", str(tmp_path / "tables")]),
    }
    program, words = commands[command]
    for most in (4, 3):
        monkeypatch.setattr(readers, "FEW_ROWS", most)
        done = CliRunner().invoke(program, ["--redis", keyspace.url, *words])
        assert "Error: enough" in done.output
    few, many = sessions
    assert "TieredStopAtLevel=1" in few["spark.driver.extraJavaOptions"]
    assert many == {}


def _options() -> str:
    return short_session("local[*]")["spark.driver.extraJavaOptions"]
