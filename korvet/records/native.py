"""The record value of a native application's entry, by korvet.offsets.native_entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from korvet.offsets.native_entry import first_value, native_document, native_field

if TYPE_CHECKING:
    from collections.abc import Callable


def native_json(fields: list[bytes]) -> bytes:
    """Return the native document of an entry as compact JSON. The same fields always give the same bytes."""
    return msgspec.json.encode(native_document(fields))


def native_rule(native_format: str) -> Callable[[list[bytes]], bytes]:
    """Return the function from a native entry's fields to its record value, by a topic's `native.format`."""
    wanted = native_field(native_format)
    if wanted is None:
        return native_json

    def field_value(fields: list[bytes]) -> bytes:
        found = first_value(fields, wanted)
        return native_json(fields) if found is None else found

    return field_value
