"""The server knows no API: it imports none of their modules, and looks for none by its number."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path

import korvet.api
import korvet.server
from korvet.protocol import registry

SOURCES = sorted(Path(korvet.server.__path__[0]).glob("*.py"))
API_MODULES = {
    f"korvet.api.{module.name}" for module in pkgutil.iter_modules(korvet.api.__path__) if not module.ispkg
}


def imported(tree: ast.Module) -> set[str]:
    """The modules that a file imports, each name of `from x import y` as if it were a module, too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def numbers_of_apis(tree: ast.Module) -> list[str]:
    """The places that name an API, or that use an API key beside a number."""
    names = {entry.name.lower() for entry in registry.registered()}
    found = []
    for node in ast.walk(tree):
        text = ast.unparse(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(ast.unparse(each).replace("_", "").lower() in names for each in targets):
                found.append(text)
        if isinstance(node, (ast.Compare, ast.Subscript, ast.Dict)) and (
            "api_key" in text or "api.key" in text
        ):
            numbers = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
            if any(isinstance(each.value, int) for each in numbers):
                found.append(text)
    return found


def test_the_server_imports_no_module_of_an_api() -> None:
    korvet.api.load_all()
    assert {"korvet.api.produce", "korvet.api.fetch"} <= API_MODULES
    for path in SOURCES:
        assert not imported(ast.parse(path.read_text())) & API_MODULES, path.name


def test_the_server_knows_no_api_by_its_number() -> None:
    korvet.api.load_all()
    for path in SOURCES:
        assert not numbers_of_apis(ast.parse(path.read_text())), path.name


def test_numbers_of_apis_are_found() -> None:
    korvet.api.load_all()
    for line in ("_PRODUCE: Final = 0", "if api_key == 8: pass", "x = {1: 2}[api.key]", "OFFSET_COMMIT = 8"):
        assert numbers_of_apis(ast.parse(line)), line
