"""The stubs that type checkers read instead of the kernels have the kernels' signatures."""

from __future__ import annotations

import ast
from pathlib import Path

import korvet.spark
from tests.unit.records.forms import SOURCES, installed

SPARK_KERNEL = Path(next(iter(korvet.spark.__path__)), "records", "kernel.py")


def declarations(path: Path) -> dict[str, str]:
    """Public functions, and methods of public classes, with their signatures."""
    found: dict[str, str] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                visit(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef) and (node.name == "__init__" or node.name[0] != "_"):
                returns = ast.unparse(node.returns) if node.returns else ""
                found[prefix + node.name] = f"({ast.unparse(node.args)}) -> {returns}"

    visit(ast.parse(path.read_text("utf-8")).body, "")
    return found


def test_the_stub_of_the_spark_kernel_matches_its_source() -> None:
    assert declarations(SPARK_KERNEL.with_suffix(".pyi")) == declarations(SPARK_KERNEL)


def test_the_stub_of_the_record_kernel_has_the_public_names_of_its_modules() -> None:
    stub = declarations(SOURCES / "__init__.pyi")
    sources: dict[str, str] = {}
    for path in SOURCES.glob("*.py"):
        sources |= declarations(path)
    public = set(installed.__all__) - {"ACCELERATED"}
    expected = {name: text for name, text in sources.items() if name.partition(".")[0] in public}
    assert stub == expected


def test_what_the_stub_has_is_there() -> None:
    assert all(hasattr(installed, name.split(".")[0]) for name in declarations(SOURCES / "__init__.pyi"))
