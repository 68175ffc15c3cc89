"""The names of an entry's fields as the kernel writes and compares them; see korvet.offsets.entry_fields."""

from __future__ import annotations

from korvet.offsets import entry_fields

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]


def bulk_string(text: bytes) -> bytes:
    """A bulk string of RESP."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


KEY_NAME: bytes = bulk_string(entry_fields.KEY)
VALUE_NAME: bytes = bulk_string(entry_fields.VALUE)
TIMESTAMP_NAME: bytes = bulk_string(entry_fields.TIMESTAMP)
PRODUCER_ID_NAME: bytes = bulk_string(entry_fields.PRODUCER_ID)
PRODUCER_EPOCH_NAME: bytes = bulk_string(entry_fields.PRODUCER_EPOCH)

# Three names as bulk strings, and both prefixes of header names. *_AT and *_SIZE name parts of these bytes.
FIELD_TEXTS: bytes = b"".join(
    (KEY_NAME, VALUE_NAME, TIMESTAMP_NAME, entry_fields.HEADER_PREFIX, entry_fields.NULL_HEADER_PREFIX)
)
KEY_NAME_AT = cython.declare(cython.Py_ssize_t, 0)
KEY_NAME_SIZE = cython.declare(cython.Py_ssize_t, len(KEY_NAME))
VALUE_NAME_AT = cython.declare(cython.Py_ssize_t, KEY_NAME_AT + KEY_NAME_SIZE)
VALUE_NAME_SIZE = cython.declare(cython.Py_ssize_t, len(VALUE_NAME))
TIMESTAMP_NAME_AT = cython.declare(cython.Py_ssize_t, VALUE_NAME_AT + VALUE_NAME_SIZE)
TIMESTAMP_NAME_SIZE = cython.declare(cython.Py_ssize_t, len(TIMESTAMP_NAME))
HEADER_PREFIX_AT = cython.declare(cython.Py_ssize_t, TIMESTAMP_NAME_AT + TIMESTAMP_NAME_SIZE)
HEADER_PREFIX_SIZE = cython.declare(cython.Py_ssize_t, len(entry_fields.HEADER_PREFIX))
NULL_PREFIX_AT = cython.declare(cython.Py_ssize_t, HEADER_PREFIX_AT + HEADER_PREFIX_SIZE)
NULL_PREFIX_SIZE = cython.declare(cython.Py_ssize_t, len(entry_fields.NULL_HEADER_PREFIX))

# Sizes of the names themselves, which count as an entry's bytes.
KEY_BYTES = cython.declare(cython.longlong, len(entry_fields.KEY))
VALUE_BYTES = cython.declare(cython.longlong, len(entry_fields.VALUE))
TIMESTAMP_BYTES = cython.declare(cython.longlong, len(entry_fields.TIMESTAMP))
