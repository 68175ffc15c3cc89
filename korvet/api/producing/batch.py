"""One batch of a Produce request, from its place in a log to its answer. No I/O: the request does what the
batch's step waits for, and the outcome is the next event.

| event   | UNPACKING            | JOINING   | APPENDING            | REPLICATING |
|---------|----------------------|-----------|----------------------|-------------|
| unpack  | JOINING or APPENDING | -         | -                    | -           |
| join    | -                    | APPENDING | -                    | -           |
| append  | -                    | -         | REPLICATING or ENDED | -           |
| release | -                    | -         | -                    | ENDED       |
| refuse  | ENDED                | ENDED     | ENDED                | ENDED       |

Only transactional batches are JOINING, only those that replicas are waited for REPLICATING. A batch that is
not compressed begins as if it were unpacked. What is not in the table cannot happen, and nothing happens to a
batch that has ended.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from korvet.api.producing.response import PartitionAnswer
from korvet.api.producing.transaction import check_reply

if TYPE_CHECKING:
    from uuid import UUID

    from korvet.api.producing.response import Refusal
    from korvet.api.producing.unpacking import Unpacked
    from korvet.records.batch import BatchHeader, BytesLike
    from korvet.topics.directory import Place
    from korvet.transactions.messages import AddRequest


class Step(enum.Enum):
    """What a batch waits for."""

    UNPACKING = enum.auto()
    """Its decompression, and before that memory."""
    JOINING = enum.auto()
    """The transaction coordinator, which knows whether the partition is in the producer's transaction."""
    APPENDING = enum.auto()
    """The log."""
    REPLICATING = enum.auto()
    """Replicas, with acks=all."""
    ENDED = enum.auto()
    """Nothing: its answer is complete."""


# An enum looks its members up, which takes 0.2 us.
UNPACKING, JOINING, APPENDING, REPLICATING, ENDED = Step


class Batch(PartitionAnswer, kw_only=True, eq=False):
    """A batch whose log is known, and its answer, which is complete at the end."""

    data: BytesLike
    """The batch as it was received; empty while it is REPLICATING."""
    header: BatchHeader
    plain: bytes | None = None
    """The decompressed records of a compressed batch, until the append has ended."""
    topic: str | UUID | None
    """The topic as the request names it."""
    place: Place
    joins: AddRequest | None
    """What the transaction coordinator is asked; None without a transaction."""
    step: Step = APPENDING
    unpacked: Unpacked | None = None
    """Holds the memory of `plain`."""

    def __post_init__(self) -> None:
        if self.header.codec:
            self.step = UNPACKING
        elif self.joins is not None:
            self.step = JOINING

    def unpack(self, unpacked: Unpacked) -> None:
        """Take over the decompressed records."""
        assert self.step is UNPACKING, f"a batch was unpacked while {self.step}"
        self.unpacked, self.plain = unpacked, unpacked.plain
        self.step = APPENDING if self.joins is None else JOINING

    def join(self, version: int, reply: Any) -> None:
        """Take over the transaction coordinator's reply. Raises Refused if the batch may not be appended."""
        assert self.step is JOINING, f"a batch joined its transaction while {self.step}"
        check_reply(reply, version)
        self.step = APPENDING

    def append(self, base_offset: int, log_start: int = -1, append_ms: int = -1, *, waits: bool) -> None:
        """Take over that the log has the records. `waits`: whether replicas are to have them, too."""
        assert self.step is APPENDING, f"a batch was appended while {self.step}"
        self.base_offset, self.log_start = base_offset, log_start
        if append_ms >= 0:
            self.append_ms = append_ms
        if waits:
            # Many requests may do so.
            self.data = b""
        self.step = REPLICATING if waits else ENDED
        if self.unpacked is not None:
            self._give_back()

    def release(self) -> None:
        """Take over that the replicas have the records."""
        assert self.step is REPLICATING, f"a batch was released while {self.step}"
        self.step = ENDED

    def refuse(self, refusal: Refusal) -> None:
        """End with an error."""
        assert self.step is not ENDED, f"a batch that had ended was refused: {refusal}"
        PartitionAnswer.refuse(self, refusal)
        self.step = ENDED
        if self.unpacked is not None:
            self._give_back()

    def _give_back(self) -> None:
        """The records are in the log, or will not be: give back their memory."""
        assert self.unpacked is not None
        self.unpacked.release()
        self.unpacked = self.plain = None
