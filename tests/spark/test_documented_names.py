"""docs/spark.md: every Python name in it can be imported from the package of its folder."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
PACKAGES = [f"korvet.spark.{part}" for part in ("export", "expressions", "session", "source", "tables")]
# The methods of a Spark reader, which the page also shows without one.
SPARKS_OWN = {"format", "schema"}


def code() -> list[str]:
    page = PAGE.read_text("utf-8")
    return re.findall(r"`([^`\n]+)`", page) + re.findall(r"^ {4}(.*)$", page, re.MULTILINE)


def public_names() -> set[str]:
    return {name for package in PACKAGES for name in importlib.import_module(package).__all__}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"korvet\.spark(?:\.\w+)*", PAGE.read_text("utf-8")))))
def test_dotted_names_exist(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        package, _, attribute = name.rpartition(".")
        assert attribute in importlib.import_module(package).__all__


def test_imports_work() -> None:
    found = [line for line in code() if line.startswith("from korvet")]
    assert found
    for line in found:
        exec(line, {})


def test_called_and_made_names_are_public() -> None:
    named = {name for line in code() for name in re.findall(r"(?<![\w.])([A-Za-z_]\w+)\(", line)}
    assert named - SPARKS_OWN <= public_names()


def test_public_names_exist() -> None:
    for package in PACKAGES:
        module = importlib.import_module(package)
        assert all(hasattr(module, name) for name in module.__all__), package
