"""Names of the fields in a stream entry: of a record, of a transaction marker, or of a whole record batch."""

from __future__ import annotations

from typing import Final

# An entry that is one record.
KEY: Final = b"key"
VALUE: Final = b"value"
# ms that the record's timestamp is after the ms of the entry ID.
TIMESTAMP: Final = b"ts"
# The name of a record header follows the prefix. A header whose value is null has the second prefix and an
# empty value.
HEADER_PREFIX: Final = b"header."
NULL_HEADER_PREFIX: Final = b"nullheader."

# Fields that an entry has in addition if the record is part of a transaction.
PRODUCER_ID: Final = b"pid"
PRODUCER_EPOCH: Final = b"epoch"
# A transaction marker has this field beside the producer's two, and no other.
CONTROL: Final = b"ctl"
COMMIT: Final = b"commit"
ABORT: Final = b"abort"
# Names and values of a transaction marker.
MARKER_STRINGS: Final = 6

# An entry that is a whole record batch has this one field.
BATCH: Final = b"batch"
