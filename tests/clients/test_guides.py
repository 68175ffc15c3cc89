"""The commands of docs/start/ and docs/guides/ work as printed. tests/support/guides.py says which run."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from korvet.spark.session.jars import DELTA, KAFKA, JarsMissing, fetch_jars
from tests.support.guides import DOCS, FILES, FIRST_TOPIC, JARS, SOURCES, Desk, blocks, starts_servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.clients

PAGES = [*sorted((DOCS / "start").glob("*.md")), *sorted((DOCS / "guides").glob("*.md"))]
RUN = [page for page in PAGES if any(block.runs for block in blocks(page))]
# Pages of a minute or two, whose commands tests/spark runs, too.
LONG = {"export-to-delta", "report", "report-by-cron", "stored-tables"}
BY_PATH = {"ids": lambda page: page.stem}
COMMAND = re.compile(
    r"^(?:\S*/)?(?:korvet|docker|kubectl|pip|spark-submit|valkey-\w+|redis-\w+|kafka-\w+\.sh) ",
    re.MULTILINE,
)
FETCH_TIMEOUT_S = 60
# What a page runs that needs a tool.
TOOLS = {
    "redis-cli": "valkey-cli ",
    "java": "korvet (?:export|report|tables)|pyspark|korvet.spark|^java ",
    "node": "^node ",
    "go": "^go ",
}
# The most words of a guide besides its blocks.
WORDS = 800


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Where guides begin: the broker and the topic of docs/start/first-topic.md."""
    made = Desk(tmp_path_factory.mktemp("desk"))
    try:
        made.follow(FIRST_TOPIC)
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] * (page.stem in LONG)) for page in RUN], **BY_PATH
)
def test_commands_work_as_printed(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    _skip_without_tools(page)
    if page == FIRST_TOPIC or not starts_servers(page):
        shared: Desk = request.getfixturevalue("desk")
        if page != FIRST_TOPIC:
            shared.follow(page)
        return
    own = Desk(tmp_path / "desk")
    try:
        own.follow(page)
    finally:
        own.close()


def _skip_without_tools(page: Path) -> None:
    text = "\n".join(block.text for block in blocks(page) if block.runs)
    for tool, needed in TOOLS.items():
        if re.search(needed, text, re.MULTILINE) and shutil.which(tool) is None:
            pytest.skip(f"needs {tool} on PATH")
    if "korvet jars" in text:
        try:
            for name in (KAFKA, DELTA):
                # The page finds them there: its network leads nowhere.
                for _ in fetch_jars(JARS, name, timeout_s=FETCH_TIMEOUT_S):
                    pass
        except JarsMissing as error:
            pytest.skip(str(error))


@pytest.mark.parametrize("page", PAGES, **BY_PATH)
def test_every_command_is_run_or_says_why_not(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.count("\n```") == 2 * len(blocks(page))
    for block in blocks(page):
        assert block.language in {"sh", "sql", "text", *FILES, *SOURCES}, block
        assert block.reason or block.runs or block.file or block.language in {"text", *FILES}, block
        assert block.language != "text" or not COMMAND.search(block.text), block
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"(?<=\n\n)    \S.*", outside) == [], "a block without fences"


@pytest.mark.parametrize("page", PAGES, **BY_PATH)
def test_a_guide_is_one_task(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert len(text.split()) <= WORDS


def test_a_failing_command_fails_its_page(tmp_path: Path) -> None:
    own = Desk(tmp_path / "desk")
    try:
        with pytest.raises(AssertionError, match="exit status 3"):
            own.shell("here", "exit 3")
        with pytest.raises(AssertionError, match="ended"):
            own.shell("here", "korvet serve --listen nowhere")
    finally:
        own.close()
