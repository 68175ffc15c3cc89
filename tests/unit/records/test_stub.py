"""The stubs that type checkers read instead of the kernels say what the kernels say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.unit.records.forms import SOURCE, installed


def declarations(source: str) -> dict[str, str]:
    """Public functions, and methods of public classes, with their signatures."""
    found: dict[str, str] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                visit(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef) and (node.name == "__init__" or node.name[0] != "_"):
                returns = ast.unparse(node.returns) if node.returns else ""
                found[prefix + node.name] = f"({ast.unparse(node.args)}) -> {returns}"

    visit(ast.parse(source).body, "")
    return found


@pytest.mark.parametrize("source", [SOURCE, SOURCE.replace("records", "spark/records")])
def test_the_stub_matches_the_source(source: str) -> None:
    stub = declarations(Path(source + "i").read_text())
    assert stub == declarations(Path(source).read_text())


def test_what_the_stub_has_is_there() -> None:
    stub = declarations(Path(SOURCE + "i").read_text())
    assert all(hasattr(installed, name.split(".")[0]) for name in stub)
