"""Appends from the call to the answer: single ones, and groups of guarded ones."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from korvet.records.batch import SPAN_RECORDS, AppendArguments, AppendCommands, Span
from korvet.storage.log.values import Appended, ProducerSequence, ReceivedBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.records.control import ControlMarker
    from korvet.storage.errors import StorageError
    from korvet.storage.log.values import Summary

# From this size on a lone entry is sent as XADD after the gate: Redis copies and hashes function arguments.
_THROUGH_GATE_BYTES: Final = 28 << 10


class ProducedAppend(msgspec.Struct, eq=False):
    """The append of a producer's batch."""

    received: ReceivedBatch
    producer: ProducerSequence | None
    epoch: int | str
    followed: bool
    done: Callable[[Appended | StorageError], None]
    is_wanted: Callable[[], bool]

    @property
    def record_count(self) -> int:
        """The records of the batch."""
        return self.received.header.record_count


class OwnAppend(msgspec.Struct, eq=False):
    """The append of records of the broker's own."""

    arguments: AppendArguments
    producer: ProducerSequence | None
    epoch: int | str
    done: Callable[[Appended | StorageError], None]
    within: bool = False
    """Whether it is also made at maxmemory, within the allowance."""

    @property
    def record_count(self) -> int:
        """The number of records."""
        return self.arguments.record_count


class MarkerAppend(msgspec.Struct, eq=False):
    """The append of a marker."""

    marker: ControlMarker
    epoch: int | str
    done: Callable[[Any], None]
    within: bool = False
    """See OwnAppend."""

    producer = None
    record_count = 1


AnyAppend = ProducedAppend | OwnAppend | MarkerAppend


def admitted(summary: Summary) -> None:
    """The admission of a batch that was held back: it was checked before."""


class AppendGroup:
    """Guarded appends that take effect together, the records of each directly after those of the append
    before it.
    """

    __slots__ = (
        "appends",
        "command_count",
        "entry_count",
        "forms",
        "largest_bytes",
        "previous_position",
        "record_count",
        "size_bytes",
        "spans",
    )

    def __init__(self, previous_position: int) -> None:
        self.previous_position = previous_position
        """The position after the append before this group."""
        self.appends: list[ProducedAppend] = []
        self.forms: list[AppendCommands] = []
        self.entry_count = 0
        self.command_count = 0
        """The commands that add the entries through the gate."""
        self.record_count = 0
        self.largest_bytes = 0
        """The size of the largest entry."""
        self.size_bytes = 0
        self.spans: list[Span] = []

    def add(self, append: ProducedAppend, form: AppendCommands) -> None:
        """Add an append whose position is directly after the last one's."""
        self.appends.append(append)
        self.forms.append(form)
        self.entry_count += form.entry_count
        self.command_count += form.command_count
        self.record_count += form.record_count
        self.size_bytes += form.size_bytes
        self.largest_bytes = max(self.largest_bytes, form.largest_bytes)
        for span in form.spans:
            self._add_span(span)

    def _add_span(self, span: Span) -> None:
        """Add a span, joined with the last one if both are short: Redis has work for each."""
        if self.spans:
            last = self.spans[-1]
            records = last.records + span.records
            if records <= SPAN_RECORDS:
                entries, size_bytes = last.entries + span.entries, last.size_bytes + span.size_bytes
                self.spans[-1] = Span(records, entries, size_bytes, max(last.newest_ms, span.newest_ms))
                return
        self.spans.append(span)

    @property
    def gated(self) -> bool:
        """Whether the entries are added through the gate; else the guard adds the only entry."""
        return self.entry_count > 1 or self.size_bytes >= _THROUGH_GATE_BYTES

    @property
    def needs_module(self) -> bool:
        """Whether a KORVET.ADD adds entries."""
        return any(form.add for form in self.forms)

    def outcomes(self, first: Appended) -> list[Appended]:
        """The outcome of each append, derived from that of the first one."""
        outcomes = [first]
        base = first.base_offset
        for before, form in itertools.pairwise(self.forms):
            base += before.record_count
            append_ms = form.append_ms if form.append_ms >= 0 else first.append_ms
            outcomes.append(
                Appended(
                    base,
                    first.log_start,
                    base,
                    append_ms,
                    first.lead_ms,
                    duplicate=False,
                    last_stable_offset=first.last_stable_offset,
                )
            )
        return outcomes


class Undone(NamedTuple):
    """A group that has not taken effect, as far as is known."""

    group: AppendGroup
    is_unknown: bool
    """Whether its outcome has to be read back."""
