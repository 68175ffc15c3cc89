"""Logging of the broker and the commands to standard error: each event is one line of text, or one JSON
object.

Messages may hold what clients have sent. In text, control characters are escaped, and the lines of a
traceback are indented, so a client can't write a line that looks like one of ours.
"""

from __future__ import annotations

import enum
import json
import logging
import math
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import TracebackType

log = logging.getLogger(__name__)

# The attributes of a log record that hold its fields, and a traceback as text.
_FIELDS: Final = "fields"
_TRACEBACK: Final = "traceback"
# The names that every JSON line may have; fields have others.
_RESERVED: Final = frozenset(("timestamp", "level", "logger", "message", "node_id", "exception", "stack"))
_UNPRINTABLE: Final = (
    *range(0x20),
    *range(0x7F, 0xA0),
    # Line and paragraph separators, and characters that change the direction of the text after them.
    *(0x2028, 0x2029, 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
)
_ESCAPED: Final = {char: chr(char).encode("unicode_escape").decode() for char in _UNPRINTABLE}
_INDENT: Final = "  "


def fields(**named: object) -> dict[str, dict[str, object]]:
    """Returns the argument `extra` of a logging call: fields of the JSON line, such as `topic` or `group`.

    The message contains the same values for people. Raises ValueError for a name that every line has.
    """
    if not _RESERVED.isdisjoint(named):
        raise ValueError(f"a line of the log has its own {', '.join(sorted(_RESERVED & set(named)))}")
    return {_FIELDS: named}


def current_traceback() -> dict[str, str]:
    """Returns the argument `extra` of a logging call: the traceback of the current exception, as text.

    A log record that has the exception itself (`exc_info`) would keep the frames, and so the request, alive.
    """
    return {_TRACEBACK: traceback.format_exc().rstrip("\n")}


def configure(level: str, form: str = "text", node_id: int | None = None) -> None:
    """Log messages of at least `level` (debug, info, warning, error) to standard error.

    `form` is "text" or "json". JSON lines carry `node_id`, unless it is None.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(node_id) if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught if form == "json" else sys.__excepthook__


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z WARNING korvet.server: message`, always in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line, and a traceback's lines after it, indented."""
        head = f"{_timestamp(record)} {record.levelname} {record.name}: {_message(record)}"
        lines = [head.translate(_ESCAPED)]
        for text in (_traceback(record), record.stack_info):
            lines += [_INDENT + line.translate(_ESCAPED) for line in (text or "").splitlines()]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object, in ASCII: any log collector can read it, in any locale."""

    def __init__(self, node_id: int | None = None) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line."""
        line: dict[str, Any] = {
            "timestamp": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
        }
        if self._node_id is not None:
            line["node_id"] = self._node_id
        line |= getattr(record, _FIELDS, {})
        if record.exc_info is not None and record.exc_info[0] is not None:
            kind, error, _ = record.exc_info
            name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            line["exception"] = {"type": name, "message": str(error)}
        stack = _traceback(record) or record.stack_info
        if stack:
            line["stack"] = stack
        return json.dumps(_plain(line), allow_nan=False)


def _timestamp(record: logging.LogRecord) -> str:
    """RFC 3339, in UTC, with milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - a wrong call must not lose the event: the line shows the error
        return f"{record.msg!r} % {record.args!r}: {error}"


def _traceback(record: logging.LogRecord) -> str | None:
    if record.exc_info is None or record.exc_info[0] is None:
        text: str | None = getattr(record, _TRACEBACK, None)
        return text
    return "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")


def _plain(value: object) -> object:
    """The value as JSON can hold it: bytes and invalid text with escapes, anything unknown as its text."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return str(value).encode("utf-8", "backslashreplace").decode()


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log the exception that ends the process."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.critical("the process ends: %s", error, exc_info=(kind, error, trace))


class FollowedLevel:
    """The level of the root logger, as far as a setting decides it."""

    def __init__(self, level: str) -> None:
        self._level = level

    def follow(self, level: str) -> None:
        """Take over a changed setting. A level that was set in another way stays otherwise."""
        if level != self._level:
            self._level = level
            logging.getLogger().setLevel(level.upper())
