"""The shell around the commands: help, late imports, errors in one line."""

import importlib.metadata
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from korvet.cli import app
from korvet.cli.app import korvet
from korvet.cli.options import KeyValue
from korvet.redis.module import VERSION, find_module


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(korvet, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_help_lists_every_command() -> None:
    status, text = run("--help")
    assert status == 0
    for name in app._BUILTIN:
        assert f"  {name} " in text


@pytest.mark.parametrize("name", app._BUILTIN)
def test_every_command_has_help_of_its_own(name: str) -> None:
    status, text = run(name, "--help")
    assert status == 0
    assert text.startswith(f"Usage: korvet {name}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "list", "--bootstrap-server", "127.0.0.1:1"),
        ("groups", "describe", "g", "--bootstrap-server", "nowhere"),
        ("serve", "--listen", "nowhere"),
        ("serve", "--set", "num.partitions"),
        ("serve", "--set", "no.such.key=1"),
        ("serve", "--config", "does-not-exist.toml"),
        ("doctor", "--redis", "redis://127.0.0.1:1"),
        ("doctor", "--redis", "redis://127.0.0.1:1,127.0.0.1:2"),
        ("doctor", "--redis", "redis://127.0.0.1:x"),
        ("doctor", "--redis", "redis://a..b"),
        ("upgrade", "--redis", "redis://127.0.0.1:1", "--keyspace", "a{b"),
        ("topics", "list", "--bootstrap-server", "a..b:9092"),
        ("doctor", "--redis", "redis+sentinel://127.0.0.1:1,127.0.0.1:2/main"),
        ("doctor", "--redis", "redis+sentinel://127.0.0.1:1"),
        ("serve", "--redis", "redis+sentinel://127.0.0.1:1/main"),
        ("doctor", "--data-dir", "does-not-exist"),
    ],
)
def test_what_a_user_can_mend_is_one_line(arguments: tuple[str, ...]) -> None:
    status, text = run(*arguments)
    assert status == 1
    assert text.startswith("Error: ")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "command", [("doctor",), ("backup", "b"), ("restore", "."), ("repair", "--yes"), ("rewrite",)]
)
def test_an_empty_data_folder_is_not_the_working_folder(command: tuple[str, ...]) -> None:
    status, text = run(*command, "--data-dir", "")
    assert status == 2
    assert "Invalid value for '--data-dir': expected a folder, not an empty name" in text


def test_an_unknown_command_is_named() -> None:
    status, text = run("topic")
    assert status == 2
    assert "topic" in text


class _Point(importlib.metadata.EntryPoint):
    """An entry point whose module needs a missing package."""

    def load(self) -> click.Command:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = _Point("report", "korvet.spark.cli:report", app.ENTRY_POINTS)
    monkeypatch.setattr(app, "_entry_points", lambda: {"report": point})
    status, text = run("report")
    assert status == 1
    assert "pip install 'korvet[spark]'" in text


def test_an_entry_point_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_entry_points", dict)
    status, text = run("demo")
    assert status == 1
    assert "not installed" in text


def test_the_path_of_the_server_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("korvet.cli.module.find_module", lambda: tmp_path / "korvet_module.so")
    assert run("module") == (0, f"{tmp_path / 'korvet_module.so'}\n")
    monkeypatch.setattr("korvet.cli.module.find_module", lambda: None)
    status, text = run("module")
    assert status == 1
    assert "no C compiler" in text


def test_version_is_readable_by_programs() -> None:
    status, text = run("version", "--json")
    assert status == 0
    facts = json.loads(text)
    assert facts["korvet"]
    assert facts["servers"]
    assert isinstance(facts["accelerated"], bool)
    assert facts["module"] == (VERSION if find_module() else None)


def test_version_names_a_module_that_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.cli.version.find_module", lambda: None)
    assert "not built" in run("version")[1]
    assert json.loads(run("version", "--json")[1])["module"] is None


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_key_value_needs_both(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected KEY=VALUE"):
        KeyValue()(text)


def test_key_value_splits_at_the_first_sign() -> None:
    assert KeyValue()("a=b=c") == ("a", "b=c")
