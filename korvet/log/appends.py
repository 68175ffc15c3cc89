"""Appends from the call to the answer, and the groups in which they are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.values import Appended, Producer, ReceivedBatch
    from korvet.records.batch import AppendArguments
    from korvet.records.control import ControlMarker
    from korvet.redis.errors import StorageError


def always() -> bool:
    """Whether anybody waits for an append of the broker's own."""
    return True


class RecordsAppend(msgspec.Struct, eq=False):
    """The append of a producer's batch, or of records of the broker's own."""

    form: AppendArguments
    producer: Producer | None
    epoch: int | str
    done: Callable[[Appended | StorageError], None]
    received: ReceivedBatch | None = None
    """The batch as its producer sent it; None for records of the broker's own."""
    is_wanted: Callable[[], bool] = always
    within: bool = False
    """Whether it is also made at maxmemory, within the allowance."""
    layout: object = None
    """What has encoded the batch."""

    @property
    def record_count(self) -> int:
        """The number of records."""
        return self.form.record_count


class MarkerAppend(msgspec.Struct, eq=False):
    """The append of a marker."""

    marker: ControlMarker
    epoch: int | str
    done: Callable[[Any], None]
    within: bool = False
    """See RecordsAppend."""

    producer = None
    record_count = 1
    is_unknown = False
    """A coordinator writes a marker again if its reply is lost."""

    @property
    def appends(self) -> list[MarkerAppend]:
        """The marker alone, as a call has its appends."""
        return [self]

    @staticmethod
    def is_wanted() -> bool:
        """A coordinator waits for it."""
        return True


AnyAppend = RecordsAppend | MarkerAppend


class Group(msgspec.Struct, eq=False):
    """Appends that are sent in one call. Each is answered on its own."""

    serial: int
    appends: list[RecordsAppend]
    is_unknown: bool = False
    """Whether the call may have taken effect: its reply was lost."""

    @property
    def within(self) -> bool:
        """Whether the call is also made at maxmemory, within the allowance."""
        return self.appends[0].within

    @property
    def record_count(self) -> int:
        """The records of all appends."""
        return sum([append.form.record_count for append in self.appends])
