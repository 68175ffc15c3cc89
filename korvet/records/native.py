"""The value that Kafka clients see for an entry that a native application wrote with its own fields."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

BINARY_NAME = "base64:"
"""Marks an encoded field name; a name that really begins so is encoded too, so that no two names coincide."""

Value = str | dict[str, str]


def native_json(fields: list[bytes]) -> bytes:
    """One compact JSON object for a flat list field, value, field, value ...

    Names stand in the order of their first occurrence. A UTF-8 value is a string, any other is
    {"base64": "..."}; a field that the entry repeats is a list of its values. A name that is not UTF-8 is
    "base64:" and its encoding. The same fields always give the same bytes, and no field list raises.
    """
    members: dict[str, list[Value]] = {}
    for position in range(0, len(fields) - 1, 2):
        members.setdefault(_name(fields[position]), []).append(_value(fields[position + 1]))
    return msgspec.json.encode({name: v[0] if len(v) == 1 else v for name, v in members.items()})


def native_rule(native_format: str) -> Callable[[list[bytes]], bytes]:
    """What makes a record's value of a native entry's fields, by a topic's `native.format`.

    `json` is native_json; `field:<name>` the bytes of the first field of that name, and native_json for an
    entry without it, so that nothing is hidden.
    """
    prefix, _, name = native_format.partition(":")
    if prefix != "field" or not name:
        return native_json
    wanted = name.encode()

    def field_value(fields: list[bytes]) -> bytes:
        for position in range(0, len(fields) - 1, 2):
            if fields[position] == wanted:
                return fields[position + 1]
        return native_json(fields)

    return field_value


def _name(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return BINARY_NAME + _base64(name)
    return BINARY_NAME + _base64(name) if text.startswith(BINARY_NAME) else text


def _value(value: bytes) -> Value:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": _base64(value)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
