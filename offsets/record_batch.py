"""The layout of a record batch, magic 2, as Kafka's RecordBatch defines it (KIP-98).

Every number is big-endian. A batch begins with a header of HEADER_BYTES; its records follow, compressed as a
whole if the attributes name a codec. The CRC32C covers everything from the attributes on, so a broker sets
base offset and leader epoch without computing the CRC again.
"""

from __future__ import annotations

import struct
from typing import Final

# Position of each header field in bytes from the start of the batch.
BASE_OFFSET_AT: Final = 0
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
RECORD_COUNT_AT: Final = 57
HEADER_BYTES: Final = 61

# The codec is in the lower byte of the attributes.
CODEC_AT: Final = 22
# The length field counts neither itself nor the base offset before it.
LENGTH_EXCLUDES_BYTES: Final = 12
BASE_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")

# All header fields in their order, the header up to the CRC, and the header that the CRC covers.
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_START: Final = struct.Struct(">qiibI")
CHECKED_HEADER: Final = struct.Struct(">hiqqqhii")

MAGIC: Final = 2

# Attributes: three bits of codec, then one bit each. LOG_APPEND_TIME is the timestamp type (KIP-32).
CODEC_MASK: Final = 7
LOG_APPEND_TIME: Final = 8
TRANSACTIONAL: Final = 16
CONTROL: Final = 32

# Codecs; zstd needs KIP-110.
UNCOMPRESSED: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

# Fields without a value.
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

# Sequence numbers of a producer are int32 and continue with 0 after this one.
MAX_PRODUCER_SEQUENCE: Final = (1 << 31) - 1
# A record's offset is the base offset plus an int32.
MAX_OFFSET_DELTA: Final = (1 << 31) - 1

# Size of a record or of a record header of which every part takes one byte.
SMALLEST_RECORD_BYTES: Final = 7
SMALLEST_RECORD_HEADER_BYTES: Final = 2

# The record of a control batch. Its key is ControlRecordType (version, type), its value EndTxnMarker
# (version, coordinator epoch).
CONTROL_KEY: Final = struct.Struct(">hh")
CONTROL_VALUE: Final = struct.Struct(">hi")
ABORT: Final = 0
COMMIT: Final = 1


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint, and the position after it. Raises IndexError if it is cut off."""
    byte = data[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    raw, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
