"""README on a package index: every link leads to a file of the repository, at the tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

from tools.index_readme import README, absolute

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = "https://host/owner/name"


def targets(text: str) -> Iterator[tuple[str, str]]:
    """The kind and the target of each link and image."""
    for block in MarkdownIt().parse(text):
        for token in block.children or ():
            if token.type == "link_open":
                yield "blob", str(token.attrs["href"])
            elif token.type == "image":
                yield "raw", str(token.attrs["src"])


def code(text: str) -> list[str]:
    """The content of each block of code, and of each piece in a line."""
    tokens = [each for block in MarkdownIt().parse(text) for each in (block, *(block.children or ()))]
    return [each.content for each in tokens if each.type in {"fence", "code_block", "code_inline"}]


def test_every_link_of_the_readme_leads_to_a_file_of_the_tag() -> None:
    text = README.read_text()
    before, after = list(targets(text)), list(targets(absolute(text, REPOSITORY, "v1.2.3")))
    assert len(before) > 20
    assert "raw" in dict(before)
    for (kind, path), (_, target) in zip(before, after, strict=True):
        assert target == f"{REPOSITORY}/{kind}/v1.2.3/{path}"
        assert (README.parent / path.partition("#")[0]).exists()


def test_other_links_and_code_stay() -> None:
    text = README.read_text()
    assert code(absolute(text, REPOSITORY, "v1")) == code(text)
    text = "[site](https://x/y.md) [mail](mailto:a@b) [here](#limits)"
    assert absolute(text, REPOSITORY, "v1") == text
