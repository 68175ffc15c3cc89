"""The header of a record batch: the positions of its fields, and what they contain."""

from __future__ import annotations

from korvet.offsets import record_batch

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

LENGTH_AT = cython.declare(cython.Py_ssize_t, record_batch.LENGTH_AT)
LEADER_EPOCH_AT = cython.declare(cython.Py_ssize_t, record_batch.LEADER_EPOCH_AT)
MAGIC_AT = cython.declare(cython.Py_ssize_t, record_batch.MAGIC_AT)
CRC_AT = cython.declare(cython.Py_ssize_t, record_batch.CRC_AT)
ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, record_batch.ATTRIBUTES_AT)
CODEC_AT = cython.declare(cython.Py_ssize_t, record_batch.CODEC_AT)
LAST_OFFSET_DELTA_AT = cython.declare(cython.Py_ssize_t, record_batch.LAST_OFFSET_DELTA_AT)
BASE_TIMESTAMP_AT = cython.declare(cython.Py_ssize_t, record_batch.BASE_TIMESTAMP_AT)
MAX_TIMESTAMP_AT = cython.declare(cython.Py_ssize_t, record_batch.MAX_TIMESTAMP_AT)
PRODUCER_ID_AT = cython.declare(cython.Py_ssize_t, record_batch.PRODUCER_ID_AT)
PRODUCER_EPOCH_AT = cython.declare(cython.Py_ssize_t, record_batch.PRODUCER_EPOCH_AT)
BASE_SEQUENCE_AT = cython.declare(cython.Py_ssize_t, record_batch.BASE_SEQUENCE_AT)
RECORD_COUNT_AT = cython.declare(cython.Py_ssize_t, record_batch.RECORD_COUNT_AT)
HEADER_SIZE = cython.declare(cython.Py_ssize_t, record_batch.HEADER_BYTES)
LENGTH_EXCLUDES = cython.declare(cython.Py_ssize_t, record_batch.LENGTH_EXCLUDES_BYTES)
SMALLEST_RECORD_SIZE = cython.declare(cython.Py_ssize_t, record_batch.SMALLEST_RECORD_BYTES)
MAGIC = cython.declare(cython.longlong, record_batch.MAGIC)
CODEC_MASK = cython.declare(cython.longlong, record_batch.CODEC_MASK)
LOG_APPEND_TIME = cython.declare(cython.longlong, record_batch.LOG_APPEND_TIME)
TRANSACTIONAL = cython.declare(cython.longlong, record_batch.TRANSACTIONAL)
CONTROL = cython.declare(cython.longlong, record_batch.CONTROL)
NEWEST_CODEC = cython.declare(cython.longlong, record_batch.ZSTD)
NO_SEQUENCE = cython.declare(cython.longlong, record_batch.NO_SEQUENCE)
