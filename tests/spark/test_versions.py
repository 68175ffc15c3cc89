"""Versions of Spark: what each has, and the error for those that korvet does not work with."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

import pytest

from korvet.spark.cli import options
from korvet.spark.session.jars import DELTA, KAFKA, jar_sets
from korvet.spark.versions import (
    REQUIREMENT,
    TESTED,
    UnsupportedSpark,
    check_supported,
    named,
    parse,
    warn_if_untested,
)
from tools import spark_versions
from tools.dev import OTHER_SPARKS

ROOT = Path(__file__).resolve().parents[2]
WORK = r"it works with 4\.0, 4\.1, 4\.2 and 4\.3 \(pip install 'pyspark>=4\.0,<5'\)"


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4", "4.2.0.dev1", "4.3.1"])
def test_supported(version: str, caplog: pytest.LogCaptureFixture) -> None:
    check_supported(version)
    warn_if_untested(version)
    assert not caplog.messages


def test_commands_are_silent_about_a_new_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark 4.2 and 4.3 warn of pandas 3, which a fresh installation gets."""
    at_work = mock.Mock()

    def started(*_: object, **__: object) -> mock.Mock:
        warnings.warn("PySpark does not yet fully support pandas >= 3.0.0. Some", FutureWarning, stacklevel=1)
        return at_work

    monkeypatch.setattr(options, "build_session", started)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with options.spark_session("app", "local[1]") as spark:
            assert spark is at_work
    at_work.stop.assert_called_once_with()


def test_a_newer_minor_version_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    check_supported("4.11.0")
    warn_if_untested("4.11.0")
    (message,) = caplog.messages
    assert re.fullmatch(rf"korvet was not tested with Spark 4\.11\.0; {WORK}", message)
    sets = jar_sets((4, 11))
    assert sets[KAFKA] == jar_sets(TESTED[-1])[KAFKA]
    assert sets[DELTA] == ()


@pytest.mark.parametrize("version", ["3.5.9", "5.0.0"])
def test_the_error_names_what_works(version: str) -> None:
    with pytest.raises(UnsupportedSpark, match=rf"does not work with Spark {version}; {WORK}"):
        check_supported(version)
    with pytest.raises(UnsupportedSpark, match="'trunk', which is not a number"):
        parse("trunk")


@pytest.mark.parametrize(
    ("version", "module"), [("3.5.9", "korvet.spark.source"), ("5.0.1", "korvet.spark.tables")]
)
def test_an_import_fails_at_once(version: str, module: str) -> None:
    code = f"import pyspark; pyspark.__version__ = '{version}'; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"UnsupportedSpark: korvet does not work with Spark {version}" in done.stderr.splitlines()[-1]


def test_a_command_says_so_in_one_line() -> None:
    code = (
        "import pyspark; pyspark.__version__ = '5.0.0'; import sys; sys.argv = ['korvet', 'report'];"
        "from korvet.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: korvet does not work with Spark 5.0.0; it works with 4.0, 4.1")
    assert "Traceback" not in done.stderr


def test_without_a_release_of_delta_a_command_says_what_to_do() -> None:
    code = (
        "import pyspark; pyspark.__version__ = '4.3.0'; import sys; sys.argv = ['korvet', 'jars', 'delta'];"
        "from korvet.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "Error: stored tables and Delta exports need Delta, which has no release for Spark 4.3: "
        "use Spark 4.2 (pip install 'pyspark==4.2.*')"
    )


@pytest.mark.parametrize("version", TESTED[:-1])
def test_jars_follow_the_version(version: tuple[int, int]) -> None:
    sets = jar_sets(version)
    assert sets[KAFKA][0].version.startswith(f"{named(version)}.")
    assert sets[DELTA][0].artifact == f"delta-spark_{named(version)}_2.13"


def test_jars_of_a_version_before_its_jars() -> None:
    """The newest connector works with it; Delta is built for each version."""
    assert jar_sets((4, 3)) == {KAFKA: jar_sets((4, 2))[KAFKA], DELTA: ()}


def test_each_other_version_is_tested() -> None:
    runs = spark_versions.RUNS
    assert [*runs] == [*map(named, TESTED), "connect"]
    assert [*OTHER_SPARKS] == [name for name, run in runs.items() if run.release or run.connect]
    for run in spark_versions.RUNS.values():
        assert run.release is None or run.release.startswith(f"{run.name}.")


def test_the_extra_allows_what_works() -> None:
    assert f'"{REQUIREMENT}"' in (ROOT / "pyproject.toml").read_text()
