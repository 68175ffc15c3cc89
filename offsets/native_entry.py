"""The record value of a stream entry that a native Redis application wrote with its own fields.

A topic's `native.format` selects the value: `json` is a JSON object of all fields; `field:<name>` is the
bytes of the first field of that name, and the JSON object if the entry has no such field.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# Prefix of an encoded field name. A name that begins with it is encoded too, so no two names coincide.
BINARY_NAME: Final = "base64:"

Value = str | dict[str, str]


def native_document(fields: Sequence[bytes]) -> dict[str, Value | list[Value]]:
    """Return the JSON object of a flat list name, value, name, value ...; its names keep their first order.

    A UTF-8 value is a string, any other value is {"base64": "..."}. A field that the entry repeats is a list
    of its values. A name that is not UTF-8 is "base64:" followed by its encoding. No field list raises.
    """
    values: dict[str, list[Value]] = {}
    for at in range(0, len(fields) - 1, 2):
        values.setdefault(_name(fields[at]), []).append(_value(fields[at + 1]))
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def native_field(native_format: str) -> bytes | None:
    """Return the field name in a topic's `native.format`; None for `json`."""
    kind, _, name = native_format.partition(":")
    return name.encode() if kind == "field" and name else None


def first_value(fields: Sequence[bytes], wanted: bytes) -> bytes | None:
    """Return the value of the first field named `wanted`; None if there is no such field."""
    for at in range(0, len(fields) - 1, 2):
        if fields[at] == wanted:
            return fields[at + 1]
    return None


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
    return base64.b64encode(data).decode("ascii")
