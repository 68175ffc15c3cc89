"""The report as one HTML page that opens offline: it contains data, script and style, and loads nothing.

The script builds the page from the data. The page's Content-Security-Policy allows only this script, by its
hash. Names of groups and topics are always data.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from korvet.spark.report.times import clock
from korvet.spark.source.topics import OFFSETS_TOPIC
from korvet.spark.tables.kafka_offsets import NOT_READ

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A placeholder in page.html.
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
# The members of a group that are tables.
_ROWS = (
    "offsets",
    "inventory",
    "rebalances",
    "anomalies",
    "changes",
    "slo",
    "expiring",
    "owners",
    "queues",
    "workers",
)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_EMPTY = """\
<section class="card"><h2>No consumer group has committed anything yet</h2><p>There are no offsets and no
groups in <code>__consumer_offsets</code>. Start a Kafka consumer with a <code>group.id</code> that reads a
topic and
commits, then run the report again.</p></section>"""
_NONE_SEEN = """\
<section class="card"><h2>This login sees no consumer group</h2><p>It may not read
<code>__consumer_offsets</code>, and may describe no group, or there is none. Give it the right to read the
topic, or to describe groups, then run the report again.</p></section>"""
_NO_SCRIPT = "<noscript><section class='card'>This page needs JavaScript.</section></noscript>"


def render(document: Mapping[str, Any]) -> str:
    """Return the page as HTML. `document` is the data for assets/page.js (korvet.spark.report.report)."""
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": escape(document["title"]),
        "source": escape(document["source"]),
        "as_of": clock(document["as_of"]),
        "style": _asset("page.css"),
        "script": script,
        "script_hash": f"sha256-{digest}",
        "body": _NO_SCRIPT if document["groups"] else _without_groups(document["findings"]),
        "data": _json_for_html(_packed(document)),
    }
    return _PLACEHOLDER.sub(lambda found: parts[found[1]], _asset("page.html"))


def _without_groups(findings: Sequence[Mapping[str, Any]]) -> str:
    """What a page without groups states: why there are none, and the findings about the cluster."""
    refused = any((each["kind"], each["topic"]) == (NOT_READ, OFFSETS_TOPIC) for each in findings)
    return (_NONE_SEEN if refused else _EMPTY) + "".join(
        f"<p class='note left'>{escape(each['message'])}</p>" for each in findings
    )


def series(values: Sequence[int | None]) -> str:
    """Return numbers of at least 0 as short text: base 36, empty for a repeated number, - for None."""
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
    """The document with rows as lists. Their column names are stored once, in `columns`."""
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
    """JSON for a script element: it contains nothing that ends the element or starts a comment."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return files("korvet.spark.report").joinpath("assets", name).read_text("utf-8").rstrip("\n")
