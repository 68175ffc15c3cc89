"""What keys do, and how they arrive as bytes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from korvet.cli.top.view import TABLES, columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.cli.top.view import State

_ESCAPE: Final = "\x1b"
_ENTER: Final = ("\r", "\n")
_ERASE: Final = ("\x7f", "\b")
_SEQUENCES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
}
_NAMES: Final = {"k": "up", "j": "down"}
_TABLE_KEYS: Final = {"b": "brokers", "t": "topics", "g": "groups"}
_PAGE: Final = 10
_INTERVALS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def split(text: str) -> Iterator[str]:
    """Yields the keys in what a terminal sent at once. Unknown escape sequences are one unknown key."""
    while text:
        known = next((sequence for sequence in _SEQUENCES if text.startswith(sequence)), None)
        if known is not None:
            yield _SEQUENCES[known]
            text = text[len(known) :]
        elif text[0] == _ESCAPE and len(text) > 1 and text[1] in "[O":
            end = next((at for at, char in enumerate(text[2:], 2) if "@" <= char <= "~"), len(text) - 1)
            yield text[: end + 1]
            text = text[end + 1 :]
        else:
            yield text[0]
            text = text[1:]


def press(state: State, key: str) -> State | None:
    """Returns the state after a key; None after the key that quits."""
    if state.typing:
        return _type(state, key)
    key = _NAMES.get(key, key)
    if key in ("q", "Q"):
        return None
    if key in _TABLE_KEYS:
        return _show(state, _TABLE_KEYS[key])
    if key == "\t":
        names = list(TABLES)
        return _show(state, names[(names.index(state.table) + 1) % len(names)])
    changes: dict[str, dict[str, object]] = {
        "r": {"reverse": not state.reverse},
        "i": {"internal": not state.internal},
        " ": {"paused": not state.paused},
        "?": {"help": not state.help},
        "h": {"help": not state.help},
        "/": {"typing": True, "first": 0},
        _ESCAPE: {"pattern": "", "help": False, "first": 0},
        "s": {"sort": _next_field(state), "reverse": False, "first": 0},
        "up": {"first": max(state.first - 1, 0)},
        "down": {"first": state.first + 1},
        "page up": {"first": max(state.first - _PAGE, 0)},
        "page down": {"first": state.first + _PAGE},
        "home": {"first": 0},
        "+": {"interval_s": _longer(state.interval_s)},
        "-": {"interval_s": _shorter(state.interval_s)},
    }
    return replace(state, **changes.get(key, {}))


def _type(state: State, key: str) -> State:
    if key in _ENTER:
        return replace(state, typing=False)
    if key == _ESCAPE:
        return replace(state, typing=False, pattern="")
    if key in _ERASE:
        return replace(state, pattern=state.pattern[:-1])
    return replace(state, pattern=state.pattern + key) if len(key) == 1 and key.isprintable() else state


def _show(state: State, table: str) -> State:
    return replace(state, table=table, sort=None, reverse=False, pattern="", first=0)


def _next_field(state: State) -> str:
    fields = [column.field for column in columns(state)]
    current = state.sort or fields[0]
    return fields[(fields.index(current) + 1) % len(fields)]


def _longer(interval_s: float) -> float:
    return next((each for each in _INTERVALS_S if each > interval_s), interval_s)


def _shorter(interval_s: float) -> float:
    return next((each for each in reversed(_INTERVALS_S) if each < interval_s), interval_s)
