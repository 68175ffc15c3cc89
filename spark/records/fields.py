"""The row of one entry that is no record batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from korvet.offsets.entry_fields import HEADER_PREFIX, NULL_HEADER_PREFIX, Record, read_entry
from korvet.offsets.native_entry import first_value, native_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.spark.records.columns import Header


def native_json(fields: Sequence[bytes]) -> bytes:
    """Return a native entry's fields as a compact JSON object, with the same bytes that brokers return."""
    return json.dumps(native_document(fields), ensure_ascii=False, separators=(",", ":")).encode()


def native_value(fields: Sequence[bytes], wanted: bytes | None) -> bytes:
    """Return the value of the first field named `wanted`; the JSON of all fields if there is none."""
    found = None if wanted is None else first_value(fields, wanted)
    return native_json(fields) if found is None else found


def parse_fields(
    fields: Sequence[bytes], entry_ms: int, native_field: bytes | None
) -> tuple[bytes | None, bytes | None, int, list[Header] | None, int] | None:
    """Return an entry's key, value, timestamp in ms, headers or None, and transactional producer or -1.

    None for a transaction marker.
    """
    found = read_entry(fields, entry_ms)
    if found is None:
        return None, native_value(fields, native_field), entry_ms, None, -1
    if not isinstance(found, Record):
        return None
    headers = [(name.decode("utf-8", "replace"), value) for name, value in found.headers]
    return found.key, found.value, found.timestamp_ms, headers or None, found.producer_id


def header_name(field: bytes) -> str | None:
    """Return the name of the record header that a field is; None for any other field."""
    for prefix in (HEADER_PREFIX, NULL_HEADER_PREFIX):
        if field.startswith(prefix):
            return field[len(prefix) :].decode("utf-8", "replace")
    return None
