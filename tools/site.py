"""Builds the site of docs/ into build/site: `./dev docs`. A link or an anchor that leads nowhere fails it.

The navigation consists of the links of docs/README.md. A link from docs/ to a file outside leads nowhere:
the site doesn't have that file.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = "README.md"
# The heading of a section, a table's header with the name of a group of pages, or a link.
_PLACE = re.compile(
    r"^## (?P<section>.+)$|^\| (?P<group>[^|[]+) \| \|$|\[(?P<title>[^]]+)\]\((?P<path>[^)#]+)", re.MULTILINE
)


def build(docs: Path, folder: Path) -> int:
    """Build the site of the pages in `docs` into `folder/site`. Returns the exit status of the generator."""
    # The generator takes only pages below the folder of its configuration.
    shutil.rmtree(folder / "docs", ignore_errors=True)
    shutil.copytree(docs, folder / "docs")
    config = folder / "zensical.toml"
    config.write_text(configuration((ROOT / "zensical.toml").read_text(), (docs / START).read_text()))
    program = Path(sys.executable).with_name("zensical")
    command = [str(program), "build", "--strict", "--clean", "--config-file", str(config)]
    return subprocess.run(command, check=False).returncode


def configuration(settings: str, start: str) -> str:
    """Returns the text of a configuration: these settings, with the navigation of this start page."""
    return settings.replace("[project]\n", f"[project]\nnav = {_toml(navigation(start))}\n", 1)


def navigation(start: str) -> list[dict[str, object]]:
    """Returns the sections, groups and pages of a start page, in its order, each page once."""
    pages: list[dict[str, object]] = []
    nav: list[dict[str, object]] = [{"Overview": START}]
    section = nav
    seen = set()
    for found in _PLACE.finditer(start):
        if found["section"]:
            section = pages = []
            nav.append({found["section"]: pages})
        elif found["group"]:
            pages = []
            section.append({_upper(found["group"]): pages})
        elif section is not nav and found["path"] not in seen:
            seen.add(found["path"])
            pages.append({_upper(found["title"].replace("`", "")): found["path"]})
    return nav


def _upper(title: str) -> str:
    """Returns a title that begins with a capital letter."""
    return title[:1].upper() + title[1:]


def _toml(value: object) -> str:
    """Returns lists, tables and strings in TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(one)}' for key, one in value.items())}}}"
    return json.dumps(value)


if __name__ == "__main__":
    (ROOT / "build").mkdir(exist_ok=True)
    raise SystemExit(build(ROOT / "docs", ROOT / "build"))
