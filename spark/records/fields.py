"""The fields of one entry: a record, a transaction marker, or a native application's fields."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from korvet.offsets.entry_fields import (
    ABORT,
    COMMIT,
    CONTROL,
    HEADER_PREFIX,
    KEY,
    MARKER_STRINGS,
    NULL_HEADER_PREFIX,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TIMESTAMP,
    VALUE,
)
from korvet.offsets.native_entry import first_value, native_document
from korvet.spark.records.columns import Marker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.spark.records.columns import Header

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)

_OUTCOMES = {COMMIT: True, ABORT: False}
_DECIMAL = re.compile(rb"-?[0-9]{1,19}")
# Digits of a producer ID or epoch; every number of 18 digits fits int64.
_MAX_DIGITS = 18


def native_json(fields: Sequence[bytes]) -> bytes:
    """Return a native entry's fields as a compact JSON object, with the same bytes that brokers return."""
    return json.dumps(native_document(fields), ensure_ascii=False, separators=(",", ":")).encode()


def native_value(fields: Sequence[bytes], wanted: bytes | None) -> bytes:
    """Return the value of the first field named `wanted`; the JSON of all fields if there is none."""
    found = None if wanted is None else first_value(fields, wanted)
    return native_json(fields) if found is None else found


@dataclass(slots=True)
class _Record:
    key: bytes | None = None
    value: bytes | None = None
    relative_ms: int | None = None
    headers: list[Header] | None = None
    producer: int | None = None
    epoch: int | None = None


def parse_fields(
    fields: Sequence[bytes], entry_ms: int, native_field: bytes | None
) -> tuple[bytes | None, bytes | None, int, list[Header] | None, int]:
    """Return an entry's key, value, timestamp in ms, headers or None, and transactional producer or -1."""
    record = _korvet_record(fields, entry_ms)
    if record is None:
        return None, native_value(fields, native_field), entry_ms, None, -1
    producer = -1 if record.producer is None else record.producer
    return record.key, record.value, entry_ms + (record.relative_ms or 0), record.headers, producer


def marker_of(fields: Sequence[bytes], offset: int) -> Marker | None:
    """Return the transaction marker that an entry is: ctl (commit or abort), pid and epoch; else None."""
    if len(fields) != MARKER_STRINGS or CONTROL not in fields:
        return None
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    committed = _OUTCOMES.get(named.get(CONTROL, b""))
    producer, epoch = (_count(named.get(name, b"")) for name in (PRODUCER_ID, PRODUCER_EPOCH))
    if committed is None or producer is None or epoch is None:
        return None
    return Marker(offset, producer, committed)


def header_name(field: bytes) -> str | None:
    """Return the name of the record header that a field is; None for any other field."""
    for prefix in (HEADER_PREFIX, NULL_HEADER_PREFIX):
        if field.startswith(prefix):
            return field[len(prefix) :].decode("utf-8", "replace")
    return None


def _count(text: bytes) -> int | None:
    """A decimal number that is not negative and fits int64."""
    return int(text) if len(text) <= _MAX_DIGITS and text.isdigit() else None


def _korvet_record(fields: Sequence[bytes], entry_ms: int) -> _Record | None:
    """The entry as a record that korvet wrote; None if its fields don't have that layout."""
    record = _Record()
    for name, value in zip(fields[::2], fields[1::2], strict=False):
        if name == KEY and record.key is None:
            record.key = value
        elif name == VALUE and record.value is None:
            record.value = value
        elif name == TIMESTAMP and record.relative_ms is None:
            record.relative_ms = _relative_ms(value, entry_ms)
            if record.relative_ms is None:
                return None
        elif name == PRODUCER_ID and record.producer is None:
            record.producer = _count(value)
            if record.producer is None:
                return None
        elif name == PRODUCER_EPOCH and record.epoch is None:
            record.epoch = _count(value)
            if record.epoch is None:
                return None
        elif name.startswith(HEADER_PREFIX):
            _add_header(record, name[len(HEADER_PREFIX) :], value)
        elif name.startswith(NULL_HEADER_PREFIX):
            _add_header(record, name[len(NULL_HEADER_PREFIX) :], None)
        else:
            return None
    return record if (record.producer is None) == (record.epoch is None) else None


def _add_header(record: _Record, name: bytes, value: bytes | None) -> None:
    if record.headers is None:
        record.headers = []
    record.headers.append((name.decode("utf-8", "replace"), value))


def _relative_ms(text: bytes, entry_ms: int) -> int | None:
    if _DECIMAL.fullmatch(text) is None:
        return None
    relative = int(text)
    return relative if INT64_MIN <= entry_ms + relative <= INT64_MAX else None
