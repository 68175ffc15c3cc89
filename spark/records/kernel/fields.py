"""The fields of an entry that korvet wrote: their names, and the values of all but record headers."""

from __future__ import annotations

import cython  # the uncompiled form is for tests only

from korvet.offsets import entry_fields
from korvet.spark.records.kernel.memory import WORD, WORD_BYTES, BytesPointer, number, word_at

# A timestamp field has at most this many digits if the record's timestamp is one of Spark's.
MAX_TIME_DIGITS = cython.declare(cython.Py_ssize_t, 15)

MAX_EPOCH = cython.declare(cython.longlong, entry_fields.MAX_EPOCH)

# Field names, and the prefixes of longer ones, as little-endian numbers.
KEY = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.KEY, "little"))
VALUE = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.VALUE, "little"))
TIMESTAMP = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.TIMESTAMP, "little"))
PRODUCER = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.PRODUCER_ID, "little"))
EPOCH = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.PRODUCER_EPOCH, "little"))
CONTROL = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.CONTROL, "little"))
COMMIT = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.COMMIT, "little"))
ABORT = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.ABORT, "little"))
BATCH = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.BATCH, "little"))
HEADER_PREFIX = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.HEADER_PREFIX, "little"))
NULL_PREFIX = cython.declare(
    cython.ulonglong, int.from_bytes(entry_fields.NULL_HEADER_PREFIX[:WORD], "little")
)
NULL_PREFIX_END = cython.declare(
    cython.ulonglong, int.from_bytes(entry_fields.NULL_HEADER_PREFIX[WORD:], "little")
)
HEADER_PREFIX_BYTES = cython.declare(cython.Py_ssize_t, len(entry_fields.HEADER_PREFIX))
NULL_PREFIX_BYTES = cython.declare(cython.Py_ssize_t, len(entry_fields.NULL_HEADER_PREFIX))

# One bit for each field, in Fields.seen.
HAS_KEY = cython.declare(cython.longlong, 1)
HAS_VALUE = cython.declare(cython.longlong, 2)
HAS_TIMESTAMP = cython.declare(cython.longlong, 4)
HAS_PRODUCER = cython.declare(cython.longlong, 8)
HAS_EPOCH = cython.declare(cython.longlong, 16)
HAS_CONTROL = cython.declare(cython.longlong, 32)
HAS_HEADER = cython.declare(cython.longlong, 64)
HAS_NULL_HEADER = cython.declare(cython.longlong, 128)

# An entry's fields, without its record headers. Sizes are -1 for null.
Fields = cython.struct(
    seen=cython.longlong,  # fields of the entry; -1 if a field is unknown or its value unusual
    key_at=cython.Py_ssize_t,
    key_size=cython.Py_ssize_t,
    value_at=cython.Py_ssize_t,
    value_size=cython.Py_ssize_t,
    relative_ms=cython.longlong,  # timestamp minus the entry's time
    producer=cython.longlong,  # producer ID if the record is in a transaction, else -1
)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def no_fields() -> Fields:
    """The fields of an entry before any of them is read."""
    fields = cython.declare(Fields)
    fields.seen = 0
    fields.key_at = 0
    fields.key_size = -1
    fields.value_at = 0
    fields.value_size = -1
    fields.relative_ms = 0
    fields.producer = -1
    return fields


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def field_of(p: BytesPointer, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.longlong:
    """The field with a name of n bytes, HAS_KEY ... HAS_NULL_HEADER; 0 for any other name."""
    word: cython.ulonglong = word_at(p, at, n)
    if n == 5 and word == VALUE:
        return HAS_VALUE
    if n == 3 and word == KEY:
        return HAS_KEY
    if n == 2 and word == TIMESTAMP:
        return HAS_TIMESTAMP
    if n == 3 and word == PRODUCER:
        return HAS_PRODUCER
    if n == 5 and word == EPOCH:
        return HAS_EPOCH
    if n == 3 and word == CONTROL:
        return HAS_CONTROL
    if n >= HEADER_PREFIX_BYTES and word == HEADER_PREFIX:
        return HAS_HEADER
    if (
        n >= NULL_PREFIX_BYTES
        and word == NULL_PREFIX
        and word_at(p, at + WORD_BYTES, NULL_PREFIX_BYTES - WORD_BYTES) == NULL_PREFIX_END
    ):
        return HAS_NULL_HEADER
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def with_field(
    fields: Fields, field: cython.longlong, p: BytesPointer, at: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> Fields:
    """The fields with one more, of n bytes. A repeated field or an unusual value sets seen to -1."""
    if fields.seen & field:
        fields.seen = -1
        return fields
    fields.seen |= field
    if field == HAS_VALUE:
        fields.value_at = at
        fields.value_size = n
    elif field == HAS_KEY:
        fields.key_at = at
        fields.key_size = n
    elif field == HAS_TIMESTAMP:
        return _with_timestamp(fields, p, at, n)
    elif field == HAS_PRODUCER:
        fields.producer = number(p, at, n)
        if fields.producer < 0:
            fields.seen = -1
    elif field == HAS_EPOCH:
        if not 0 <= number(p, at, n) <= MAX_EPOCH:
            fields.seen = -1
    elif not (n == 6 and word_at(p, at, n) == COMMIT) and not (n == 5 and word_at(p, at, n) == ABORT):
        fields.seen = -1
    return fields


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _with_timestamp(fields: Fields, p: BytesPointer, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> Fields:
    """The fields with a timestamp, an optional minus sign and digits."""
    sign: cython.Py_ssize_t = 1 if n > 0 and p[at] == 45 else 0
    fields.relative_ms = number(p, at + sign, n - sign)
    if fields.relative_ms < 0 or n - sign > MAX_TIME_DIGITS:
        fields.seen = -1
    if sign:
        fields.relative_ms = -fields.relative_ms
    return fields


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def is_marker(fields: Fields) -> cython.bint:
    """Whether the fields are those of a transaction marker."""
    return fields.seen == HAS_CONTROL | HAS_PRODUCER | HAS_EPOCH


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def is_record(fields: Fields) -> cython.bint:
    """Whether the fields are those of a record: no marker's, and producer ID and epoch both or neither."""
    return not fields.seen & HAS_CONTROL and (fields.seen & HAS_PRODUCER != 0) == (
        fields.seen & HAS_EPOCH != 0
    )
