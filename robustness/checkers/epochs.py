"""Truncations: consumers that validate leader epochs are told of records that were lost.

Allowed is what docs/internals/robustness.md lists under its limits: entries that Redis clients add to a
promoted server before brokers use it belong to the former leader epoch, and hide the loss of what is before
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from robustness.checkers.facts import short
from robustness.checkers.violation import Violation
from robustness.history import UNKNOWN, Assign, OffsetForEpoch, Poll, Record, Truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from robustness.checkers.facts import Facts, Partition


def untold_truncations(facts: Facts) -> Iterator[Violation]:
    """A consumer that validates reads a record that was lost later, then one of the new history, untold."""
    for process, stream in facts.streams.items():
        lost: dict[Partition, tuple[Record, int]] = {}
        for index, event in stream:
            match event:
                case Assign():
                    lost.clear()
                case Truncated(topic=topic, partition=number, offset=offset):
                    if (topic, number) in lost and lost[topic, number][0].offset >= offset:
                        del lost[topic, number]
                case Poll(validates=True):
                    for record in event.records:
                        partition = (record.topic, record.partition)
                        if _is_lost(facts, record):
                            lost.setdefault(partition, (record, index))
                        elif partition in lost and _is_there(facts, record):
                            gone, before = lost.pop(partition)
                            message = (
                                f"{process} read {short(gone.value)} at {gone.offset}, which was lost, then "
                                f"{short(record.value)}, and was not told"
                            )
                            yield Violation(
                                "untold truncation",
                                message,
                                *partition,
                                record.offset,
                                (before, index),
                                is_note=_hides_a_loss(facts, partition, gone.offset, record.offset + 1),
                            )
                case _:
                    pass


def _is_lost(facts: Facts, record: Record) -> bool:
    partition = (record.topic, record.partition)
    sent = facts.sends.get(record.value)
    if facts.final(partition) is None or facts.may_be_removed(partition, record.offset, sent):
        return False
    return record.value not in (facts.survivors(partition) or {})


def _is_there(facts: Facts, record: Record) -> bool:
    survivors = facts.survivors((record.topic, record.partition))
    return survivors is not None and survivors.get(record.value) == record.offset


def epoch_ends(facts: Facts) -> Iterator[Violation]:
    """OffsetForLeaderEpoch answers an end that cuts off kept records, or none that cuts off lost ones.

    A leader may continue the log of an older epoch: then the epoch's end is above records of later ones. Only
    records count that were acknowledged or read before. Lost ones count if their own epoch is asked for, as
    by a consumer that has read them, and only after a record of a later epoch.
    """
    kept, lost = _known_epochs(facts)
    asked: dict[tuple[str, Partition, int], int] = {}
    for index, event in enumerate(facts.history):
        if not isinstance(event, OffsetForEpoch):
            continue
        partition = (event.topic, event.partition)
        key = (event.process, partition, event.epoch)
        if event.type == "invoke":
            asked[key] = index
        elif event.type == "ok" and event.answered != UNKNOWN:
            began = asked.pop(key, index)
            settled = [one for one in kept.get(partition, ()) if one.index < began]
            newest = max((one.epoch for one in settled), default=UNKNOWN)
            wrong = [one for one in settled if one.epoch <= event.answered and one.offset >= event.end]
            # Another epoch than that asked for is the newest one up to it.
            wrong += [one for one in settled if event.answered < one.epoch <= event.epoch]
            wrong += [
                one
                for one in lost.get(partition, ())
                if one.epoch == event.epoch
                and event.answered < newest
                and one.index < began
                and one.offset < event.end
            ]
            for one in wrong:
                message = (
                    f"epoch {event.answered} ends at {event.end}; {short(one.value)} of epoch {one.epoch} is "
                    f"{'kept' if one in settled else 'lost'} at {one.offset}"
                )
                is_note = one not in settled and _hides_a_loss(facts, partition, one.offset, event.end)
                events = (one.index, index)
                yield Violation("wrong epoch end", message, *partition, one.offset, events, is_note)


def _hides_a_loss(facts: Facts, partition: Partition, lost: int, end: int) -> bool:
    """Whether an entry of a Redis client is between a lost record and an offset."""
    survivors = facts.survivors(partition) or {}
    return any(
        lost < offset < end and value in facts.sends and facts.sends[value].is_native
        for value, offset in survivors.items()
    )


class Known(NamedTuple):
    """A record whose leader epoch a client knows since an event."""

    offset: int
    epoch: int
    value: str
    index: int


def _known_epochs(facts: Facts) -> tuple[dict[Partition, list[Known]], dict[Partition, list[Known]]]:
    """Returns the records with a known epoch: those that are kept, and those that were lost."""
    kept: dict[Partition, list[Known]] = {}
    lost: dict[Partition, list[Known]] = {}
    for sent in facts.sends.values():
        survivors = facts.survivors(sent.partition) or {}
        if sent.epoch != UNKNOWN and sent.done is not None and survivors.get(sent.value) == sent.offset:
            known = Known(sent.offset, sent.epoch, sent.value, sent.done)
            kept.setdefault(sent.partition, []).append(known)
    for read in facts.polled.values():
        if read.epoch == UNKNOWN:
            continue
        known = Known(read.offset, read.epoch, read.value, read.index)
        record = Record(*read.partition, read.offset, read.value, read.epoch)
        if _is_there(facts, record):
            kept.setdefault(read.partition, []).append(known)
        elif _is_lost(facts, record):
            lost.setdefault(read.partition, []).append(known)
    return kept, lost


def needless_truncations(facts: Facts) -> Iterator[Violation]:
    """A consumer is told of a truncation, although the last record that it read is still in the log, and
    nobody tried to delete it.
    """
    for process, stream in facts.streams.items():
        last: dict[Partition, tuple[Record, int]] = {}
        for index, event in stream:
            match event:
                case Assign():
                    last.clear()
                case Poll():
                    last.update(((r.topic, r.partition), (r, index)) for r in event.records)
                case Truncated(topic=topic, partition=number, offset=offset) if (topic, number) in last:
                    record, before = last.pop((topic, number))
                    # A marker after the record may be lost.
                    is_note = offset > record.offset and not facts.is_stable(topic)
                    if _is_there(facts, record) and not facts.may_be_deleted((topic, number), record.offset):
                        message = (
                            f"{process} was told of a truncation, but {short(record.value)} is still there"
                        )
                        events = (before, index)
                        yield Violation(
                            "needless truncation", message, *(topic, number, record.offset), events, is_note
                        )
                case _:
                    pass


CHECKERS = (untold_truncations, needless_truncations, epoch_ends)
