"""The report as one HTML page that opens offline: data, script and style are in it, and nothing is loaded.

The script builds the page from the data; what it may do is only what the page's own policy lets it, which
names the script by its hash. Names of groups and topics are data throughout.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from korvet.spark.report.words import clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PLACE = re.compile(r"\{(\w+)\}")
# The parts of a group that are tables.
_ROWS = ("offsets", "inventory", "rebalances", "anomalies")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_EMPTY = """\
<section class="card"><h2>No consumer group has committed anything yet</h2><p>There is no offset and no group
in <code>__consumer_offsets</code>. Let a Kafka consumer with a <code>group.id</code> read a topic and commit,
then run the report again.</p></section>"""
_NO_SCRIPT = "<noscript><section class='card'>This page needs JavaScript.</section></noscript>"


def render(document: Mapping[str, Any]) -> str:
    """The page as HTML text. `document` is what assets/page.js draws: see korvet.spark.report.report."""
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": escape(document["title"]),
        "source": escape(document["source"]),
        "as_of": clock(document["as_of"]),
        "style": _asset("page.css"),
        "script": script,
        "script_hash": f"sha256-{digest}",
        "body": _NO_SCRIPT if document["groups"] else _EMPTY,
        "data": _json_for_html(_packed(document)),
    }
    return _PLACE.sub(lambda found: parts[found[1]], _asset("page.html"))


def series(values: Sequence[int | None]) -> str:
    """Numbers from 0 on as short text: in base 36, one like that before it left out, - for None."""
    parts: list[str] = []
    before: int | None = None
    for value in values:
        if value is None:
            parts.append("-")
        elif value == before:
            parts.append("")
        else:
            parts.append(_base36(value))
        before = value
    return ",".join(parts)


def _packed(document: Mapping[str, Any]) -> dict[str, Any]:
    """With the rows of groups as lists: the names of their columns are said once, in `columns`."""
    columns = {
        name: next((list(group[name][0]) for group in document["groups"] if group[name]), [])
        for name in _ROWS
    }
    groups = [
        {**group, **{name: [[row[key] for key in columns[name]] for row in group[name]] for name in _ROWS}}
        for group in document["groups"]
    ]
    return {**document, "columns": columns, "groups": groups}


def _base36(value: int) -> str:
    digits = ""
    while True:
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
        if not value:
            return digits


def _json_for_html(document: Mapping[str, Any]) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return files("korvet.spark.report").joinpath("assets", name).read_text("utf-8").rstrip("\n")
