"""The page in a real browser: content, search, sorting, charts, and names that try to inject code."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from korvet.spark.report import pictures
from korvet.spark.report.alerts import KINDS, severity_rank
from korvet.spark.report.page import render, series
from korvet.spark.report.pictures import BrowserError, find_browser, save_pictures
from tests.spark.fleet import HOSTILE, document, queue
from tests.support.browser import Page, open_page
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GROUPS = 1000
DEADLINE_S = 30
# Long enough for two busy cores; an idle machine needs a tenth.
LONGEST_LOAD_MS = 15_000
LARGEST_PAGE_BYTES = 3_500_000


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(document(GROUPS)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(report: Path) -> Iterator[Page]:
    if find_browser() is None:
        pytest.skip("no Chromium or Chrome on PATH, and none in KORVET_BROWSER")
    with open_page() as opened:
        opened.show(report.as_uri())
        yield opened
        # After every test: nothing was loaded, and no error occurred.
        assert opened.errors == []
        assert {url.partition(":")[0] for url in opened.requests} <= {"file", "blob", "about"}


@pytest.fixture(autouse=True)
def _from_the_start(request: pytest.FixtureRequest) -> None:
    if "page" in request.fixturenames:
        page: Page = request.getfixturevalue("page")
        page.evaluate("location.hash = ''")
        page.evaluate("document.activeElement.blur()")
        page.press("Escape")
        wait(page, "document.querySelectorAll('.groups tbody tr').length === 100")


def wait(page: Page, condition: str) -> None:
    until(lambda: page.evaluate(condition), DEADLINE_S, condition)


def texts(page: Page, selector: str) -> list[str]:
    """The text of every element that matches the selector."""
    found = page.evaluate(f"[...document.querySelectorAll('{selector}')].map((node) => node.textContent)")
    return [str(text) for text in found]


def names(page: Page) -> list[str]:
    rows = "[...document.querySelectorAll('.groups tbody tr')]"
    return [str(name) for name in page.evaluate(f"{rows}.map((row) => row.dataset.group)")]


def column(page: Page, number: int) -> list[str]:
    return texts(page, f".groups tbody td:nth-child({number})")


def test_a_thousand_groups_are_small_and_quick(report: Path, page: Page) -> None:
    assert report.stat().st_size < LARGEST_PAGE_BYTES
    timing = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert timing < LONGEST_LOAD_MS
    assert page.evaluate("document.querySelector('.tiles b').textContent") == "1,000"


def test_what_needs_attention_comes_first(page: Page) -> None:
    """Many groups are listed by reason: a line for each reason, which opens."""
    badges = texts(page, ".reason > summary .badge")
    assert badges[:3] == ["rewind", "stalled", "stopped"]
    severity = [severity_rank(KINDS[status.replace(" ", "_")]) for status in badges]
    assert severity == sorted(severity)
    assert "ok" not in badges
    assert texts(page, ".reason > summary .why")[0] == "each went back to an earlier offset"
    assert page.evaluate("document.querySelectorAll('.attention > li').length") == 0
    page.evaluate("document.querySelector('.reason > summary').click()")
    wait(page, "document.querySelector('.reason[open] .attention > li') !== null")
    lines = texts(page, ".reason[open] .attention > li > .badge")
    assert texts(page, ".reason[open] > summary b") == [f"{len(lines)} groups"]
    assert set(lines) == {"rewind"}
    page.evaluate("document.querySelector('.reason[open] > summary').click()")


def test_a_few_groups_have_a_line_each(page: Page, report: Path, tmp_path: Path) -> None:
    path = tmp_path / "few.html"
    path.write_text(render(document(36)), encoding="utf-8")
    page.show(path.as_uri())
    assert len(texts(page, ".attention > li > .badge")) == 8
    page.evaluate("document.querySelector('.attention + .more').click()")
    shown = texts(page, ".attention > li > .badge")
    assert 8 < len(shown) <= 20
    severity = [severity_rank(KINDS[status.replace(" ", "_")]) for status in shown]
    assert severity == sorted(severity)
    # The reasons after the first are behind the line.
    is_shown = "document.querySelector('.attention > li .also').checkVisibility()"
    assert page.evaluate(is_shown) is False
    page.evaluate("document.querySelector('.attention > li summary').click()")
    wait(page, is_shown)
    page.show(report.as_uri())


def test_search_sort_and_filter(page: Page) -> None:
    page.press("/")
    page.type("group-01 client")
    wait(page, "document.querySelector('.head .note').textContent === '100 of 1,000 groups'")
    assert all(name.startswith("group-01") for name in names(page))
    page.press("Escape")
    for number in (4, 6):
        page.evaluate(f"document.querySelector('th:nth-child({number}) button').click()")
        figures = [int(text.replace(",", "")) for text in column(page, number)]
        assert figures == sorted(figures, reverse=True)
        head = f"document.querySelector('th:nth-child({number})')"
        assert page.evaluate(f"{head}.getAttribute('aria-sort')") == "descending"
    page.evaluate("document.querySelector('.chip.warn').click()")
    assert set(column(page, 2)) == {"warning"}
    page.press("Escape")


def test_keys_lead_to_a_group_and_back(page: Page) -> None:
    page.press("j")
    page.press("j")
    chosen = names(page)[1]
    page.press("Enter")
    wait(page, "document.querySelector('.group h1') !== null")
    assert page.evaluate("document.querySelector('.group h1').firstChild.textContent") == chosen
    headings = texts(page, "figcaption b, h2")
    assert {"Unread records", "Waiting", "Commits", "Rebalances", "Offsets", "Members", "Anomalies"} <= set(
        headings
    )
    assert "4611686018427387904" in page.evaluate("document.body.textContent")
    assert {"Service level", "Who read what when"} <= set(headings)
    assert texts(page, '[data-label="Read up in"]') == [
        "\u2013",
        "never",
        "1 min 21 s",
        "5 s",
        "0 s",
        "never",
    ]
    rates = texts(page, '[data-label="Read/s"]')
    assert rates == ["\u2013", "0", "0.25", "18", "12.3K", "\u22123"]
    assert texts(page, '[data-label="Within"]') == ["100.00 %", "97.44 %"]
    assert texts(page, '[data-label="Budget left"]') == ["8 min 32 s", "\u22129 min 8 s"]
    assert texts(page, '[data-label="Without owner"]') == ["\u2264 900 ms", "12 s", "\u2264 4 s", "\u2013"]
    assert "at most 17 s since" in page.evaluate("document.body.textContent")
    assert texts(page, '[data-label="Until (UTC)"]')[:2] == ["now", "now"]
    assert "57 more times are in the Parquet tables" in page.evaluate("document.body.textContent")
    page.press("ArrowRight")
    wait(page, f"!document.title.startsWith({json.dumps(chosen)})")
    page.press("Escape")
    wait(page, "document.querySelector('.groups') !== null")
    page.press("?")
    assert page.evaluate("document.getElementById('help').open") is True
    page.press("Escape")


def test_offsets_that_expire_are_shown_with_their_time(page: Page) -> None:
    stale = (
        "[...document.querySelectorAll('.groups tbody tr')].find((row) => row.textContent.includes('stale'))"
    )
    page.evaluate(
        "[...document.querySelectorAll('.chip')].find((chip) => chip.textContent.includes('stale')).click()"
    )
    page.evaluate(f"location.hash = 'group=' + encodeURIComponent({stale}.dataset.group)")
    wait(page, "document.querySelector('.group h1') !== null")
    assert "2 offsets expire, the first is due" in texts(page, ".group .note")[0]
    assert texts(page, '[data-label="In"]') == ["due", "2 h"]


def test_names_are_text(page: Page) -> None:
    for name in HOSTILE:
        page.evaluate(f"location.hash = 'group=' + encodeURIComponent({json.dumps(name)})")
        wait(page, "document.querySelector('.group h1') !== null")
        shown = page.evaluate("document.querySelector('.group h1').firstChild.textContent")
        assert shown == (name or "(empty name)")
        assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
        assert "owned" not in {page.evaluate("document.title")}
        page.evaluate("location.hash = ''")
        wait(page, "document.querySelector('.groups') !== null")
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    page.evaluate("location.hash = 'group=%E0%A4%A'")
    wait(page, "document.querySelector('.groups') !== null")


def brightness(colour: str) -> int:
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))


def test_light_and_dark(report: Path, page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.show(report.as_uri(), dark=True)
    dark = page.evaluate(background)
    assert brightness(light) > 600
    assert brightness(dark) < 200
    page.press("t")
    assert page.evaluate(background) == light
    page.press("t")
    assert page.evaluate(background) == dark
    page.press("t")
    page.show(report.as_uri())


# Visible texts whose contrast with their background is below 4.5 (WCAG 2, level AA).
PALE = """(() => {
    const parse = (css) => {
        const [r, g, b, alpha = 1] = css.match(/[\\d.]+/g).map(Number);
        return (css.startsWith('color(') ? [r * 255, g * 255, b * 255] : [r, g, b]).concat(alpha);
    };
    const over = ([r, g, b, alpha], under) =>
        [r, g, b].map((value, at) => value * alpha + under[at] * (1 - alpha));
    const ground = (node) => {
        const own = parse(getComputedStyle(node).backgroundColor);
        const parent = node.parentElement;
        return own[3] === 1 ? own : over(own, parent ? ground(parent) : [255, 255, 255]);
    };
    const part = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * part(r / 255) + 0.7152 * part(g / 255) + 0.0722 * part(b / 255);
    const isText = (child) => child.nodeType === 3 && child.textContent.trim();
    const shown = [...document.querySelectorAll('body *')].filter((node) => [...node.childNodes].some(isText)
        && node.getBoundingClientRect().width);
    return shown.flatMap((node) => {
        const chart = node.ownerSVGElement, style = getComputedStyle(node);
        const below = ground(chart ? chart.parentElement : node);
        const one = light(over(parse(chart ? style.fill : style.color), below)), other = light(below);
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        return contrast < 4.5 ? [`${node.className} ${node.textContent}: ${contrast.toFixed(2)}`] : [];
    });
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_have_contrast(page: Page, compared: Path, report: Path, dark: bool) -> None:
    page.show(compared.as_uri(), dark=dark)
    assert page.evaluate(PALE) == []
    page.evaluate("document.querySelector('.groups a').click()")
    wait(page, "document.querySelector('.group h1') !== null")
    assert page.evaluate(PALE) == []
    page.show(report.as_uri())


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compared") / "report.html"
    made = document(30, compared=True, console="https://console.example/groups/{group}")
    path.write_text(render(made), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def phone(compared: Path) -> Iterator[Page]:
    if find_browser() is None:
        pytest.skip("no Chromium or Chrome on PATH, and none in KORVET_BROWSER")
    with open_page(360, 780) as opened:
        opened.show(compared.as_uri())
        yield opened
        assert opened.errors == []


FITS = """[...document.querySelectorAll('main *')].every((node) => {
    const box = node.getBoundingClientRect();
    return box.width === 0 || (box.left >= 0 && box.right <= innerWidth);
})"""


def test_a_phone_shows_all_columns(phone: Page) -> None:
    wait(phone, "document.querySelector('.groups tbody tr') !== null")
    assert phone.evaluate("document.documentElement.scrollWidth") == 360
    assert phone.evaluate(FITS.replace("main *", ".groups td, .attention *, .tiles *, .blocks td")) is True
    labels = phone.evaluate(
        """[...document.querySelector('.groups tbody tr').children].filter((cell) => cell.offsetHeight > 0)
        .map((cell) => cell.dataset.label)"""
    )
    assert {"Group", "Status", "Unread", "Waiting", "Last commit"} <= set(labels)
    shown = "getComputedStyle(document.querySelector('.groups td:nth-child({})'), '::before').content"
    assert [phone.evaluate(shown.format(number)) for number in (4, 5)] == ['"Unread"', '"Waiting"']
    phone.evaluate("document.querySelector('.groups a').click()")
    wait(phone, "document.querySelector('.group h1') !== null")
    assert phone.evaluate(FITS.replace("main *", ".blocks td, .group *")) is True
    # Blocks are still tables for screen readers.
    assert phone.evaluate("document.querySelector('.blocks td').getAttribute('role')") == "cell"
    phone.evaluate("location.hash = ''")


# Labels that are cut at the edge of their chart, or touch another label of it.
UNREADABLE = """[...document.querySelectorAll('figure svg[role=img]')].flatMap((chart) => {
    const edge = chart.getBoundingClientRect();
    const labels = [...chart.querySelectorAll('text')];
    const boxes = labels.map((node) => node.getBoundingClientRect());
    const whole = (box) => box.left >= edge.left - 0.5 && box.right <= edge.right + 0.5
        && box.top >= edge.top - 0.5 && box.bottom <= edge.bottom + 0.5;
    const touch = (one, other) => one !== other && one.right + 2 >= other.left && other.right + 2 >= one.left
        && one.bottom > other.top + 2 && other.bottom > one.top + 2;
    return labels.filter((_, at) => !whole(boxes[at]) || boxes.some((box) => touch(box, boxes[at])))
        .map((node) => `${chart.getAttribute('aria-label')}: ${node.textContent}`);
})"""
LABELS = "[...document.querySelectorAll('figure svg[role=img] text')].map((node) => node.textContent)"
SECOND_MS = 1000
# Lengths of a chart's step in ms, and the most unread records and the longest wait in ms on it.
SCALES = [
    (SECOND_MS, 1, 500),
    (60 * SECOND_MS, 1_250, 290 * SECOND_MS),
    (900 * SECOND_MS, 24_000, 1_100 * SECOND_MS),
    (86_400 * SECOND_MS, 240_000_000, 20 * 86_400 * SECOND_MS),
    (30 * 86_400 * SECOND_MS, 2**53, 900 * 86_400 * SECOND_MS),
]


def scaled(step_ms: int, unread: int, wait_ms: int) -> dict[str, Any]:
    """A document with one group, whose charts have these scales."""
    made = document(1, names=("scaled",))
    made |= {"from": made["as_of"] // step_ms * step_ms - 95 * step_ms, "step": step_ms}
    shares = [number / 95 for number in range(96)]
    values = [[round(most * share) for share in shares] for most in (unread, wait_ms, unread)]
    made["groups"][0]["history"] = [series(each) for each in values]
    return made


@pytest.mark.parametrize("width", [360, 390, 1400])
def test_labels_of_all_charts_are_whole(tmp_path: Path, width: int) -> None:
    if find_browser() is None:
        pytest.skip("no Chromium or Chrome on PATH, and none in KORVET_BROWSER")
    seen = set()
    with open_page(width, 900) as page:
        for number, scale in enumerate(SCALES):
            path = tmp_path / f"{number}.html"
            path.write_text(render(scaled(*scale)), encoding="utf-8")
            for address in ("", "#group=scaled"):
                page.show(path.as_uri() + address)
                wait(page, "document.querySelectorAll('figure svg[role=img]').length === 4")
                assert page.evaluate(UNREADABLE) == [], (scale, address)
                seen |= set(page.evaluate(LABELS))
        assert page.errors == []
    assert {"500 ms", "2 min 30 s", "20 min", "10 d", "25K"} <= seen


CHANGED_ROWS = """[...document.querySelectorAll('.card')]
    .filter((card) => card.textContent.startsWith('Changes since'))
    .flatMap((card) => [...card.querySelectorAll('tbody tr')]).map((row) => row.textContent)"""


def test_what_changed_and_where_the_console_is(phone: Page) -> None:
    wait(phone, "document.querySelector('.groups tbody tr') !== null")
    rows = phone.evaluate(CHANGED_ROWS)
    assert len(rows) == 21
    grown = [int(row.partition("+")[2].partition("80")[0] or -1) for row in rows[:-1]]
    assert grown == sorted(grown, reverse=True)
    assert rows[-1].startswith("<i>old")
    assert "group is gone" in rows[-1]
    phone.evaluate("location.hash = 'group=' + encodeURIComponent('a%2Fb#group=c&d')")
    wait(phone, "document.querySelector('.group h1') !== null")
    console = phone.evaluate("document.querySelector('.console').href")
    assert console == "https://console.example/groups/a%252Fb%23group%3Dc%26d"
    (kept, new, gone) = phone.evaluate(CHANGED_ROWS)
    assert "stopped" in kept
    assert ("new" in new, "gone" in gone) == (True, True)
    phone.evaluate("location.hash = ''")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_paper_is_white_in_both_themes(page: Page, compared: Path, report: Path, dark: bool) -> None:
    page.show(compared.as_uri(), dark=dark, media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    colour = "getComputedStyle(document.querySelector('{}')).{}"
    assert brightness(page.evaluate(colour.format("body", "backgroundColor"))) == 3 * 255
    for selector in ("h2", ".groups td:nth-child(4)", ".attention .note", "figcaption b"):
        assert brightness(page.evaluate(colour.format(selector, "color"))) < 300, selector
    # The canvas has its own colours: the names on the heat map are dark.
    darkest = """(() => {
        const canvas = document.querySelector('canvas');
        const data = canvas.getContext('2d').getImageData(0, 0, 300, 60).data;
        let darkest = 765;
        for (let at = 0; at < data.length; at += 4)
            if (data[at + 3] > 200) darkest = Math.min(darkest, data[at] + data[at + 1] + data[at + 2]);
        return darkest;
    })()"""
    assert page.evaluate(darkest) < 150
    troubled = int(page.evaluate("document.querySelectorAll('.tiles b')[1].textContent"))
    assert page.evaluate("document.querySelectorAll('.attention > li').length") == troubled
    assert page.evaluate("document.querySelectorAll('.attention details:not([open])').length") == 0
    assert page.evaluate("document.querySelector('.save').offsetHeight") == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "auto"
    page.show(report.as_uri())


def picture_size(data: bytes) -> tuple[int, int]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_every_chart_can_be_saved(page: Page) -> None:
    saved = {
        title: base64.b64decode(data.partition(",")[2]) for title, data in page.evaluate("korvetFigures()")
    }
    assert list(saved) == ["Unread records", "Longest wait", "Groups behind", "Commits", "Commit heat map"]
    for title, data in saved.items():
        width, height = picture_size(data)
        assert width > 900, title
        assert height > 300, title
        # An empty picture is smaller.
        assert len(data) > 8000, title
    page.evaluate(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () { saved.push(this.download); }"
    )
    page.evaluate("document.querySelector('.save').click()")
    wait(page, "saved.length === 1")
    assert page.evaluate("saved[0]") == "Unread-records.png"


def test_the_pointer_reads_the_charts(page: Page) -> None:
    for chart in ("svg[role=img]", "canvas"):
        page.evaluate(f"document.querySelector('{chart}').scrollIntoView()")
        # Scrolling, which takes a moment, hides the tip.
        point = f"""(() => {{
            const chart = document.querySelector('{chart}');
            const box = chart.getBoundingClientRect();
            const at = {{clientX: box.left + box.width / 2, clientY: box.top + 20, bubbles: true}};
            chart.dispatchEvent(new PointerEvent('pointermove', at));
            const tip = document.getElementById('tip');
            return !tip.hidden && tip.textContent.includes('UTC');
        }})()"""
        wait(page, point)


def test_few_groups_and_more_than_there_is_room_for(page: Page, report: Path, tmp_path: Path) -> None:
    quiet = document(1, names=("quiet",), left_out=2)
    (group,) = quiet["groups"]
    lists = (
        "offsets",
        "inventory",
        "rebalances",
        "anomalies",
        "topics",
        "clients",
        "slo",
        "expiring",
        "owners",
    )
    nothing: dict[str, list[Any]] = {name: [] for name in lists}
    group |= {**nothing, "status": "OK", "age": None, "lag_ms": None, "record_lag": 0, "members": 0}
    path = tmp_path / "quiet.html"
    path.write_text(render(quiet), encoding="utf-8")
    page.show(path.as_uri())
    assert texts(page, ".tiles > div")[:2] == ["1of 3 groups", "0need attention"]
    assert "The Parquet tables contain all 3" in texts(page, ".note.left")[0]
    page.evaluate("location.hash = 'group=quiet'")
    wait(page, "document.querySelector('.group h1') !== null")
    assert texts(page, ".group .note") == ["Has not committed anything. No members \u00b7 never committed"]
    page.show(report.as_uri())


def test_share_groups_have_a_table_of_their_own(
    page: Page, phone: Page, report: Path, compared: Path, tmp_path: Path
) -> None:
    assert "Queues" not in texts(page, "h2")
    made = document(3, names=("plain", "told", "<b>state"))
    for group in made["groups"]:
        if group["name"] != "plain":
            group.update(queue(group["name"], told=group["name"] == "told"))
    path = tmp_path / "queues.html"
    path.write_text(render(made), encoding="utf-8")
    for shown in (page, phone):
        shown.show(path.as_uri())
        wait(shown, "document.querySelector('.groups tbody tr') !== null")
        assert shown.evaluate(FITS.replace("main *", ".blocks td, .blocks a")) is True
    card = "[...document.querySelectorAll('h2')].find((each) => each.textContent === 'Queues').parentNode"
    lines = f"[...{card}.querySelectorAll('tbody tr')]"
    cells = f"{lines}.map((row) => [...row.cells].map((cell) => cell.textContent))"
    rows = {row[0]: row[1:] for row in page.evaluate(cells)}
    known = ["behind", "1,234", "12", "7", "3", "2", "10 min", "3", "1"]
    hidden = {2, 5, 8}
    assert rows == {
        "told": known,
        "<b>state": ["\u2013" if at in hidden else text for at, text in enumerate(known)],
    }
    page.evaluate("location.hash = 'group=told'")
    wait(page, "document.querySelector('.group h1') !== null")
    assert not {"Offsets", "Over time"} & {*texts(page, "h2")}
    assert {"Queue", "Workers", "Members"} <= {*texts(page, "h2")}
    (note, *_) = texts(page, ".group .note")
    assert "never committed" not in note
    assert "1,234 left, the oldest for 10 min" in note
    page.show(report.as_uri())
    phone.show(compared.as_uri())


def test_upper_bounds_are_marked(page: Page, report: Path, tmp_path: Path) -> None:
    two = document(2, names=("bounded", "counted"))
    for group in two["groups"]:
        group |= {"record_lag": 1234, "exact": group["name"] == "counted", "offsets": group["offsets"][:1]}
        group["offsets"] = [{**row, "record_lag": 77, "exact": group["exact"]} for row in group["offsets"]]
    path = tmp_path / "bounded.html"
    path.write_text(render(two), encoding="utf-8")
    page.show(path.as_uri())
    assert [text for text in texts(page, ".tiles b") if "\u2264" in text] == ["\u2264 2,468"]
    marked = dict(zip(names(page), column(page, 4), strict=True))
    assert marked == {"bounded": "\u2264 1,234", "counted": "1,234"}
    for name, unread in (("bounded", "\u2264 77"), ("counted", "77")):
        page.evaluate(f"location.hash = 'group={name}'")
        wait(page, f"document.title.startsWith('{name}')")
        assert unread in texts(page, "main td")
    page.show(report.as_uri())


def test_long_names_are_wrapped_and_end_their_direction(page: Page, report: Path, tmp_path: Path) -> None:
    long, turned = "x" * 200, "\u202eevil"
    path = tmp_path / "long.html"
    path.write_text(render(document(2, names=(long, turned))), encoding="utf-8")
    page.show(path.as_uri())
    for name in (long, turned):
        page.evaluate(f"location.hash = 'group=' + encodeURIComponent({json.dumps(name)})")
        wait(page, f"document.title.startsWith({json.dumps(name)})")
        fits = "(box) => box.scrollWidth <= box.clientWidth + 260"
        assert page.evaluate(f"[...document.querySelectorAll('.scroll')].every({fits})")
        # The badge follows the name, even if the name changes the text direction.
        right = "(part) => document.querySelector('.group h1 ' + part).getBoundingClientRect().right"
        name_right, badge_right = page.evaluate(f"['bdi', '.badge'].map({right})")
        assert name == long or badge_right > name_right
    page.show(report.as_uri())


def test_pictures_beside_the_report(tmp_path: Path) -> None:
    if find_browser() is None:
        pytest.skip("no Chromium or Chrome on PATH, and none in KORVET_BROWSER")
    path = tmp_path / "report.html"
    path.write_text(render(document(12)), encoding="utf-8")
    written = save_pictures(path)
    assert [picture.name for picture in written][:2] == ["report.png", "report-unread-records.png"]
    assert picture_size(written[0].read_bytes())[1] > 900


def test_no_browser_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(pictures.VARIABLE, str(tmp_path / "none"))
    path = tmp_path / "report.html"
    with pytest.raises(BrowserError, match="no browser: install Chromium or Chrome"):
        save_pictures(path)
    ends = tmp_path / "ends"
    ends.write_text("#!/bin/sh\nexit $STATUS\n")
    ends.chmod(0o755)
    monkeypatch.setenv(pictures.VARIABLE, str(ends))
    for status, message in [("0", "did not draw the charts"), ("3", "the browser ended with status 3")]:
        monkeypatch.setenv("STATUS", status)
        with pytest.raises(BrowserError, match=message):
            save_pictures(path)


def test_series_are_read_back() -> None:
    def read(text: str) -> list[Any]:
        found: list[int | None] = []
        last: int | None = None
        for part in text.split(","):
            last = None if part == "-" else int(part, 36) if part else last
            found.append(last)
        return found

    for values in ([0], [None], [0, 0, 35, 36, 36, None, None, 0], [2**52, 1], [None, 5, 5, None, 5]):
        assert read(series(values)) == values
    assert series([7, 7, 7, 36]) == "7,,,10"
