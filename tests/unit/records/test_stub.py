"""The stubs that type checkers read instead of the kernels have the kernels' signatures."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import korvet.spark
from tests.unit.records.forms import SOURCES, installed

SPARK_KERNEL = Path(next(iter(korvet.spark.__path__)), "records", "kernel")


def declarations(path: Path) -> dict[str, str]:
    """Public functions, and methods of public classes, that Python can call, with their signatures."""
    found: dict[str, str] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                visit(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef) and (node.name == "__init__" or node.name[0] != "_"):
                if "cython.cfunc" in map(ast.unparse, node.decorator_list):
                    continue
                returns = ast.unparse(node.returns) if node.returns else ""
                found[prefix + node.name] = f"({ast.unparse(node.args)}) -> {returns}"

    visit(ast.parse(path.read_text("utf-8")).body, "")
    return found


def exported(folder: Path) -> set[str]:
    """The names in `__all__` of a kernel's package, without ACCELERATED."""
    for node in ast.parse((folder / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value)) - {"ACCELERATED"}
    raise AssertionError(f"{folder} has no __all__")


@pytest.mark.parametrize("folder", [SOURCES, SPARK_KERNEL])
def test_the_stub_has_the_exported_names_of_the_modules(folder: Path) -> None:
    sources: dict[str, str] = {}
    for path in folder.glob("*.py"):
        sources |= declarations(path)
    names = exported(folder)
    expected = {name: text for name, text in sources.items() if name.partition(".")[0] in names}
    assert declarations(folder / "__init__.pyi") == expected


def test_what_the_stub_has_is_there() -> None:
    assert all(hasattr(installed, name.split(".")[0]) for name in declarations(SOURCES / "__init__.pyi"))
