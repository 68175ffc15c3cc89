"""Redis consumer groups that Redis applications move (XREADGROUP, XACK, XGROUP), and when such a movement is
a commit of the Kafka group of the same name.

Theory of operation. A Redis group follows the commits of its Kafka group. Each synchronisation is recorded:
the commit, and the position of the Redis group after it. If the Redis group has another position now,
native consumers have moved it. The movement is a commit, but only if the recorded commit is still the
newest: a newer commit is about to move the Redis group itself and must not be undone. The resulting commit
is recorded in turn, so each movement is committed once. A deletion that leaves the Redis group to its
native consumers is recorded like a commit: the group counts again when it has moved further.

The state of a Redis group may be out of date when the decision is made. So the caller passes only groups
without a commit since before they were read, and whose earlier commits had all been projected by then.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.offsets.wire import MAX_STRING_BYTES

if TYPE_CHECKING:
    from korvet.groups.offset_table import GroupTopicPartition
    from korvet.offsets.schema import OffsetCommitValue

# Consumers of a topic commit their own positions, every 5 s by default (auto.commit.interval.ms), and would
# reset faster native consumers each time. Until the consumers have committed nothing for this long, their
# commits take precedence.
QUIET_MS: Final = 6_000
# An offset in Kafka's records is an int64; the entry ID of a native writer may lie beyond it.
_MAX_OFFSET: Final = 2**63 - 1


class Projected(msgspec.Struct, frozen=True, gc=False):
    """The last synchronisation of a Redis group: the record at `position` of `__consumer_offsets`, which
    committed `offset`, or deleted the commit (None).

    read_off: the commit was read from the Redis group itself.
    """

    position: int
    offset: int | None
    read_off: bool = False


class NativeGroup(msgspec.Struct, frozen=True, gc=False):
    """A Redis group at offset `at`, which differs from its last synchronisation (None: never synchronised).

    `at`: its oldest pending entry that still exists, or the offset after the last delivered entry if that is
    earlier or nothing is pending; it may lie before `log_start`.
    """

    group: str
    topic: str
    partition: int
    at: int
    log_start: int
    projected: Projected | None
    topic_id: bytes

    @property
    def place(self) -> GroupTopicPartition:
        """Group, topic, partition."""
        return self.group, self.topic, self.partition

    @property
    def offset(self) -> int:
        """The commit that this movement makes."""
        return min(max(self.at, self.log_start), _MAX_OFFSET)


class Decision(Enum):
    """What to do with a moved Redis group."""

    COMMIT = auto()
    NOTHING = auto()
    """The Redis group is at the newest commit."""
    WAIT = auto()
    """Kafka clients of the group are active on the topic."""
    PROJECT = auto()
    """The last synchronisation is not with the newest commit: that must be projected (again) first."""


def decide(
    native: NativeGroup, committed: OffsetCommitValue | None, now_ms: int, *, contested: bool
) -> Decision:
    """Decide about a Redis group that has moved since its last synchronisation.

    committed: the group's newest commit. contested: Kafka consumers of this group may be reading the topic.
    """
    projected = native.projected
    offset = projected.offset if projected is not None else None
    # A Redis group follows a negative offset, which clients may commit, as offset 0.
    followed = max(committed.offset, 0) if committed is not None else None
    if offset != followed:
        return Decision.PROJECT
    if projected is None or committed is None:
        return Decision.COMMIT
    if native.offset == followed:
        return Decision.NOTHING
    is_recent = 0 <= now_ms - committed.commit_timestamp_ms < QUIET_MS
    if contested and is_recent and not projected.read_off:
        return Decision.WAIT
    return Decision.COMMIT


def group_id_of(name: bytes) -> str | None:
    """The Kafka group of a Redis group's name; None if no Kafka group can have the name: it is empty, too
    long, or not UTF-8.
    """
    if not 0 < len(name) <= MAX_STRING_BYTES:
        return None
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None
