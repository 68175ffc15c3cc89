"""Redis consumer groups that Redis applications move (XREADGROUP, XACK, XGROUP): when one of them is a commit
of the Kafka group of its name.

Theory of operation. A Redis group follows the Kafka group's commits, and beside it is noted which commit it
was last brought in step with, and where it stood right after. Where it stands elsewhere now, native consumers
have moved it, and that is a commit, but only if the commit noted is still the newest: a newer one is about to
move the Redis group itself, and is not to be undone. The commit that results is noted in turn, so each
movement is told once. A deletion that leaves the Redis group to its consumers is noted like a commit: the
group counts again when it has moved on.

What is read of a Redis group may be out of date when it is decided upon. So the caller hands in only groups
of which no commit has come since before they were read, and whose earlier ones had all been projected by
then.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.offsets.wire import MAX_STRING_BYTES

if TYPE_CHECKING:
    from korvet.offsets.schema import OffsetCommitValue

# Consumers that read the same topic commit their own positions, every 5 s by default
# (auto.commit.interval.ms), and would take faster native ones back each time: until they have committed
# nothing for so long, they lead.
QUIET_MS: Final = 6_000
# An offset in Kafka's records is an int64; the entry ID of a native writer may lie beyond it.
_MAX_OFFSET: Final = 2**63 - 1


class Projected(msgspec.Struct, frozen=True, gc=False):
    """What a Redis group was last brought in step with: the record at `position` of `__consumer_offsets`,
    which committed `offset`, or (None) deleted what was committed.

    read_off: the commit was one that the Redis group itself had led to.
    """

    position: int
    offset: int | None
    read_off: bool = False


class NativeGroup(msgspec.Struct, frozen=True, gc=False):
    """A Redis group that stands at offset `at`, elsewhere than when it was brought in step (None: it never
    was).

    `at`: its oldest pending entry that still exists, else what is behind the last one delivered; it may lie
    before `log_start`.
    """

    group: str
    topic: str
    partition: int
    at: int
    log_start: int
    projected: Projected | None
    topic_id: bytes

    @property
    def place(self) -> tuple[str, str, int]:
        """Group, topic, partition."""
        return self.group, self.topic, self.partition

    @property
    def offset(self) -> int:
        """What this is as a commit."""
        return min(max(self.at, self.log_start), _MAX_OFFSET)


class Decision(Enum):
    """What to do about a Redis group."""

    COMMIT = auto()
    NOTHING = auto()
    """It stands where the commit is."""
    WAIT = auto()
    """Kafka consumers of the group are at work there."""
    PROJECT = auto()
    """What it was brought in step with is not the newest commit: that is to be projected (again) first."""


def decide(
    native: NativeGroup, committed: OffsetCommitValue | None, now_ms: int, *, contested: bool
) -> Decision:
    """What is to be done about a group that stands elsewhere than when it was brought in step.

    committed: its newest commit. contested: Kafka consumers of this group may be reading the topic.
    """
    projected = native.projected
    offset = projected.offset if projected is not None else None
    if offset != (committed.offset if committed is not None else None):
        return Decision.PROJECT
    if projected is None or committed is None:
        return Decision.COMMIT
    if native.offset == committed.offset:
        return Decision.NOTHING
    is_recent = now_ms - committed.commit_timestamp_ms < QUIET_MS
    if contested and is_recent and not projected.read_off:
        return Decision.WAIT
    return Decision.COMMIT


def group_id_of(name: bytes) -> str | None:
    """The Kafka group of a Redis group's name; None where there can be none of that name: it is empty, too
    long, or no UTF-8.
    """
    if not 0 < len(name) <= MAX_STRING_BYTES:
        return None
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None
