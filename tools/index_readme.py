"""Rewrites README.md for a package index, which lacks the files of the repository: links lead to its files
at a tag. The workflow of a release runs this before it builds.

    python3 tools/index_readme.py https://host/owner/name v1.2.3
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

README: Final = Path(__file__).resolve().parents[1] / "README.md"
# A link or an image, whose target is neither a URL nor an anchor of the page.
_RELATIVE: Final = re.compile(r"(?P<image>!?)(?P<text>\[[^]]*\])\((?![a-z]+:|#)(?P<path>[^)]+)\)")


def absolute(text: str, repository: str, tag: str) -> str:
    """Returns a page of the repository's root with absolute links."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] else "blob"
        return f"{found['image']}{found['text']}({repository}/{kind}/{tag}/{found['path']})"

    return _RELATIVE.sub(link, text)


if __name__ == "__main__":
    README.write_text(absolute(README.read_text(), *sys.argv[1:]))
