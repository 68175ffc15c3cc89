"""The log's two forms: one event is one line, for any message."""

from __future__ import annotations

import enum
import io
import json
import logging
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.logs import JsonFormatter, TextFormatter, current_traceback, fields

HOSTILE = [
    "a\nb",
    "\r\n2026-01-01T00:00:00.000Z ERROR korvet.server: forged",
    '"}\n{"level": "ERROR"}',
    "\x1b[2J\x1b]0;title\x07",
    "nul \x00 and del \x7f and \x85 and \x9b31m",
    "line\u2028paragraph\u2029 and \u202ereversed\u202c",
    "\ud800 alone \udcff",
    "umlaut ä and 😀",
    b"\xff\xfe raw".decode("utf-8", "surrogateescape"),
]


def record(message: str, *arguments: object, **extra: Any) -> logging.LogRecord:
    logger = logging.Logger("korvet.test")
    found: list[logging.LogRecord] = []
    logger.handle = found.append  # type: ignore[method-assign]
    logger.warning(message, *arguments, **extra)
    (one,) = found
    one.created, one.msecs = 1_769_860_800.25, 250.0
    return one


def as_json(one: logging.LogRecord, node_id: int | None = None) -> dict[str, Any]:
    line = JsonFormatter(node_id).format(one)
    assert line.isascii()
    assert line.isprintable()
    document: dict[str, Any] = json.loads(line)
    return document


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_clients_send_stays_in_its_line(hostile: str) -> None:
    line = TextFormatter().format(record("client %s", hostile))
    assert line.startswith("2026-01-31T12:00:00.250Z WARNING korvet.test: client ")
    assert len(line.splitlines()) == 1
    assert line.encode("utf-8", "backslashreplace").decode().isprintable()
    document = as_json(record("client %s", hostile, extra=fields(client_id=hostile)))
    shown = hostile.encode("utf-8", "backslashreplace").decode()
    assert document["message"] == f"client {shown}"
    assert document["client_id"] == shown


def test_a_json_line_has_time_level_logger_node_and_fields() -> None:
    named = fields(topic="orders", partition=3, error="NOT_LEADER_OR_FOLLOWER")
    assert as_json(record("%s-%d", "orders", 3, extra=named), node_id=7) == {
        "timestamp": "2026-01-31T12:00:00.250Z",
        "level": "WARNING",
        "logger": "korvet.test",
        "message": "orders-3",
        "node_id": 7,
        "topic": "orders",
        "partition": 3,
        "error": "NOT_LEADER_OR_FOLLOWER",
    }


def test_fields_of_any_type_are_valid_json() -> None:
    class Code(enum.IntEnum):
        FENCED = 3

    named = fields(
        raw=b"\xff\n",
        nan=float("nan"),
        huge=float("inf"),
        code=Code.FENCED,
        each={1, "a"},
        inner={b"k": None},
    )
    document = as_json(record("any", extra=named))
    assert (document["raw"], document["nan"], document["huge"]) == ("\\xff\n", "nan", "inf")
    assert document["code"] == "FENCED"
    assert sorted(map(str, document["each"])) == ["1", "a"]
    assert document["inner"] == {"k": None}


def test_a_name_that_every_line_has_is_refused_for_a_field() -> None:
    with pytest.raises(ValueError, match="level"):
        fields(level="high")


def failure(message: str) -> logging.LogRecord:
    try:
        raise LookupError(message)
    except LookupError:
        return record("it failed", exc_info=True)


def test_a_traceback_is_indented_so_that_its_text_is_no_line_of_the_log() -> None:
    forged = failure("a\n2026-01-01T00:00:00.000Z ERROR forged\x1b[0m")
    first, *others = TextFormatter().format(forged).split("\n")
    assert first.endswith("it failed")
    assert others[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in others)
    assert "\x1b" not in "".join(others)


def test_a_json_line_holds_the_exception_and_its_stack() -> None:
    document = as_json(failure("a\nb"))
    assert document["exception"] == {"type": "LookupError", "message": "a\nb"}
    assert document["stack"].startswith("Traceback (most recent call last):\n")
    assert document["stack"].endswith("LookupError: a\nb")


def test_a_traceback_may_be_logged_without_the_exception() -> None:
    try:
        raise LookupError("gone")
    except LookupError:
        one = record("it failed", extra=current_traceback())
    assert one.exc_info is None
    assert as_json(one)["stack"].endswith("LookupError: gone")
    assert TextFormatter().format(one).endswith("\n  LookupError: gone")


def test_a_wrong_logging_call_is_a_line_too() -> None:
    one = record("%d of %d", "x")
    assert "%d of %d" in as_json(one)["message"]
    assert "%d of %d" in TextFormatter().format(one)


def test_a_stream_that_cannot_hold_every_character_gets_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stderr", stream)
    handler = logging.StreamHandler(sys.stderr)
    for formatter in (JsonFormatter(), TextFormatter()):
        handler.setFormatter(formatter)
        for hostile in HOSTILE:
            handler.handle(record("%s", hostile))
    stream.flush()
    assert len(raw.getvalue().splitlines()) == 2 * len(HOSTILE)


@given(message=st.text(), raw=st.binary(), name=st.text(st.characters(), max_size=9))
def test_any_text_and_bytes_are_one_line(message: str, raw: bytes, name: str) -> None:
    one = record("%s %r", message, raw, extra=fields(raw=raw, nested={name: [message]}))
    assert len(JsonFormatter(1).format(one).splitlines()) == 1
    assert as_json(one)["logger"] == "korvet.test"
    assert len(TextFormatter().format(one).splitlines()) == 1
