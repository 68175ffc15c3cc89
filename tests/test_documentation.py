"""Checks the documents: links, generated parts, names. clients/test_readme.py runs the blocks of README."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from kio.schema.index import api_key_map

from korvet import api
from korvet.cli.app import korvet as korvet_command
from korvet.config.keys import OF_A_LISTENER, settings
from korvet.protocol import registry
from tools import compatibility

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), ROOT / "robustness" / "README.md"]
START = DOCS / "README.md"
# A path into docs/ in a source text, a rule or a message; with the anchor that a URL may have.
DOC_PATH = re.compile(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?")
# A page by its path below the root.
BY_PATH = {"ids": lambda page: str(page.relative_to(ROOT))}
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")


def sections(page: Path) -> set[str]:
    """Returns the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, **BY_PATH)
def test_links_lead_to_files_and_sections(page):
    links = LINK.findall(page.read_text())
    assert [path for path, _ in links if not (page.parent / path).exists()] == []
    targets = [(page.parent / path if path else page, section) for path, section in links if section]
    assert [section for target, section in targets if section not in sections(target)] == []


def linked(page: Path) -> set[Path]:
    """Returns the pages of docs/ to which a page links."""
    return {(page.parent / path).resolve() for path, _ in LINK.findall(page.read_text()) if path} & set(PAGES)


def test_two_clicks_lead_from_the_start_page_to_every_page():
    once = linked(START)
    reached = {START, *once, *(page for first in once for page in linked(first))}
    readme = linked(README)
    assert START in readme
    # Pages of docs/ can't link to files outside, because the site doesn't have them (tools/site.py).
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in {README, *reached, *readme}] == []


def test_paths_into_docs_lead_to_files_and_sections():
    """In code, rules, manifests and messages: links of runbooks, and comments."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    found = 0
    for name in listed.split("\0"):
        path = ROOT / name
        if not name or name.endswith((".md", ".png")) or not path.is_file() or path.is_symlink():
            continue
        for link in DOC_PATH.findall(path.read_text(errors="replace")):
            page, _, section = link.partition("#")
            found += 1
            assert (ROOT / page).exists(), (name, link)
            assert not section or section in sections(ROOT / page), (name, link)
    assert found > 100


def test_generated_references_are_up_to_date():
    # In a process of its own: click keeps the -h of the first context that a command got.
    command = [sys.executable, "-m", "tools.reference", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_client_is_run_as_described():
    folder = ROOT / "tests" / "clients"
    for client in compatibility.clients():
        for name in client.files:
            text = (folder / name).read_text()
            is_long = re.search(r"^pytestmark = .*mark\.long", text, re.MULTILINE) is not None
            assert not is_long if client.every_run else "mark.long" in text, name


def test_every_api_exists_or_is_listed_as_missing():
    api.load_all()
    there = {one.name for one in registry.registered()}
    named = [name for one in compatibility.MISSING for name in one.apis]
    known = {"".join(word.title() for word in folder.split("_")) for folder in api_key_map.values()}
    assert len(set(named)) == len(named)
    assert known - there - set(named) == set()
    assert set(named) <= known


def test_every_setting_is_documented():
    text = (DOCS / "reference" / "settings.md").read_text()
    assert [s.key for s in settings() if f"`{s.key}`" not in text or f"`{s.variable}`" not in text] == []


def test_every_setting_of_a_listener_is_documented():
    text = "".join((DOCS / "guides" / f"{name}.md").read_text() for name in ("security", "oauth"))
    assert [key for key in OF_A_LISTENER if f"`{key}`" not in text] == []


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yields every command, without groups, with its full name."""
    if not isinstance(command, click.Group):
        yield context.command_path, command
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from commands(below, click.Context(below, parent=context, info_name=name))


def test_every_command_and_option_is_documented():
    """Compares names only, because click decides the layout of help texts."""
    text = (DOCS / "reference" / "commands.md").read_text()
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}
    found = dict(commands(korvet_command, click.Context(korvet_command, info_name="korvet")))
    assert set(sections) == set(found), "run python -m tools.reference"
    for path, command in found.items():
        options = [word for option in command.params for word in option.opts if word.startswith("-")]
        assert [word for word in options if word not in sections[path]] == [], path


@pytest.mark.parametrize("page", PAGES, **BY_PATH)
def test_files_that_the_documents_name_exist(page):
    folders = (ROOT, *(ROOT / "korvet").glob("*/lua"), DOCS, ROOT / "tests" / "clients")
    named = re.findall(
        r"`((?:korvet|spark|offsets|tests|tools|benchmarks|robustness)/[\w./]*|\w+\.(?:py|lua|md))`",
        page.read_text(),
    )
    assert page.name != "architecture.md" or len(named) > 60
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def test_definitions_that_architecture_names_exist():
    found = re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", (DOCS / "explain" / "architecture.md").read_text())
    assert len(found) >= 2
    for name, path in found:
        for part in name.split("."):
            assert re.search(rf"(def|class) {part}\b", (ROOT / path).read_text()), f"{name} in {path}"


@pytest.mark.parametrize("page", PAGES, **BY_PATH)
def test_modules_that_the_documents_name_exist(page):
    for name in set(re.findall(r"`(korvet(?:\.\w+)+)`|from (korvet(?:\.\w+)+) import", page.read_text())):
        _resolve("".join(name))


def _resolve(name: str) -> object:
    """Returns a module, or its attribute, by dotted name. Raises ImportError or AttributeError."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, attribute = name.rpartition(".")
        return getattr(_resolve(parent), attribute)


@pytest.mark.parametrize("page", sorted((DOCS / "decisions").glob("*.md")), **BY_PATH)
def test_a_decision_says_in_short_why_and_what_follows(page):
    text = page.read_text()
    assert len(text.split()) <= 250
    assert set(re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)) >= {"Context", "Decision", "Consequences"}


def test_the_picture_of_the_report_is_a_png():
    assert (ROOT / "docs" / "images" / "report.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
