"""The site of docs/ (tools/site.py) has all pages, and shows what the repository's host shows."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt

from tools import site

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
# Elements in which two readings of a page differ if they take it for different blocks.
ELEMENT = re.compile(r"h\d|p|ul|ol|li|table|tr|td|pre|code|strong|em|img")


class Shape(HTMLParser):
    """Counts the elements of a text, and collects its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if ELEMENT.fullmatch(tag):
            self.elements[tag] += 1

    def handle_data(self, data: str) -> None:
        self.words += re.sub(r"\W", "", data)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert site.build(DOCS, folder) == 0, "a link leads nowhere: see the output"
    return folder / "site"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_reads_the_same_in_the_site_and_in_the_repository(built: Path, page: Path) -> None:
    path = page.parent if page.name == site.START else page.with_suffix("")
    (article,) = re.findall(r"<article.*?</article>", (built / path / "index.html").read_text(), re.DOTALL)
    # Marks of the theme: the place in the navigation, links to headings, and buttons.
    shown = Shape(re.sub(r'<nav.*?</nav>|<a class="headerlink".*?</a>', "", article, flags=re.DOTALL))
    written = Shape(MarkdownIt("commonmark").enable("table").render((DOCS / page).read_text()))
    assert shown.elements == written.elements
    assert shown.words == written.words


def test_the_search_finds_every_page(built: Path) -> None:
    text = (built / "search.json").read_text()
    folders = [str(page.with_suffix("")) for page in PAGES if page.name != site.START]
    assert [folder for folder in folders if f"{folder}/" not in text] == []


def places(nav: object) -> Iterator[str]:
    """Yields the pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    for entry in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else []:
        yield from places(entry)


def test_the_navigation_leads_to_each_page_once() -> None:
    assert sorted(places(site.navigation((DOCS / site.START).read_text()))) == sorted(map(str, PAGES))


def test_the_navigation_has_the_sections_and_groups_of_the_start_page() -> None:
    start = """
[outside](outside.md)
## One
[`a`](a.md#part) · [b](b.md)
## Two
| some | |
|---|---|
| [c](two/c.md), [again](a.md) | |
"""
    assert site.navigation(start) == [
        {"Overview": "README.md"},
        {"One": [{"A": "a.md"}, {"B": "b.md"}]},
        {"Two": [{"Some": [{"C": "two/c.md"}]}]},
    ]


@pytest.mark.parametrize("link", ["missing.md", "page.md#missing", "../LICENSE.md"])
def test_a_link_that_leads_nowhere_fails(tmp_path: Path, link: str) -> None:
    docs = tmp_path / "source"
    docs.mkdir()
    (docs / "README.md").write_text(f"# Start\n\n[link]({link})\n\n## Pages\n\n[page](page.md)\n")
    (docs / "page.md").write_text("# Page\n")
    (docs / "site.css").write_text("")
    (tmp_path / "LICENSE.md").write_text("# Licence\n")
    assert site.build(docs, tmp_path) != 0
    (docs / "README.md").write_text("# Start\n\n[link](page.md#page)\n\n## Pages\n\n[page](page.md)\n")
    assert site.build(docs, tmp_path) == 0
