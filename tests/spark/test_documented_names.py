"""The pages about Spark: every Python name in them can be imported from the package of its folder."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PACKAGES = [f"korvet.spark.{part}" for part in ("export", "session", "source", "tables")]
TEXT = "\n".join(
    text for page in sorted(DOCS.rglob("*.md")) if "korvet.spark" in (text := page.read_text("utf-8"))
)
# The methods of a Spark reader, which the pages also show without one; a function of SQL, a class of pathlib.
SPARKS_OWN = {"format", "schema", "cast", "Path"}


def code() -> list[str]:
    programs = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return [*re.findall(r"`([^`\n]+)`", TEXT), *(line for text in programs for line in text.splitlines())]


def public_names() -> set[str]:
    return {name for package in PACKAGES for name in importlib.import_module(package).__all__}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"korvet\.spark(?:\.\w+)*", TEXT))))
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
