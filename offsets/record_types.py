"""Record types of `__consumer_offsets`, as Kafka's CoordinatorRecordType numbers them.

The record type is the version in a record's key. Kafka 4.4 writes 0 to 23, but not 9 and 18.
"""

from __future__ import annotations

from typing import Final

# A key names a group, and after the group nothing, a member ID or a regular expression.
GROUP_KEY_TYPES: Final = frozenset({3, 4, 6, 11, 12, 15, 17, 20, 23})
MEMBER_KEY_TYPES: Final = frozenset({5, 7, 8, 10, 13, 14, 19, 21, 22})
REGEX_KEY_TYPE: Final = 16

CONSUMER, SHARE, STREAMS = "consumer", "share", "streams"

_FIRST_SHARE_TYPE: Final = 10


def group_type(record_type: int) -> str:
    """The type of group that records of this type, 3 to 23, belong to."""
    if record_type < _FIRST_SHARE_TYPE or record_type == REGEX_KEY_TYPE:
        return CONSUMER
    return SHARE if record_type < REGEX_KEY_TYPE else STREAMS
