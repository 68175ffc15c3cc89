"""Truncations: consumers that validate leader epochs are told of records that were lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.robustness.checkers.facts import short
from tests.robustness.checkers.violation import Violation
from tests.robustness.history import UNKNOWN, Assign, OffsetForEpoch, Poll, Truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.robustness.checkers.facts import Facts, Partition
    from tests.robustness.history import Record


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
                                "untold truncation", message, *partition, record.offset, (before, index)
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
    """OffsetForLeaderEpoch answers an end below a record of that epoch, or above one of a later epoch.

    Only records that were acknowledged or read before, and are in the log at the end, count.
    """
    known: dict[Partition, list[tuple[int, int, str, int]]] = {}
    for sent in facts.sends.values():
        survivors = facts.survivors(sent.partition) or {}
        if sent.epoch != UNKNOWN and sent.done is not None and survivors.get(sent.value) == sent.offset:
            known.setdefault(sent.partition, []).append((sent.offset, sent.epoch, sent.value, sent.done))
    for read in facts.polled.values():
        survivors = facts.survivors(read.partition) or {}
        if read.epoch != UNKNOWN and survivors.get(read.value) == read.offset:
            known.setdefault(read.partition, []).append((read.offset, read.epoch, read.value, read.index))
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
            for offset, epoch, value, done in known.get(partition, ()):
                if done < began and (epoch <= event.answered) != (offset < event.end):
                    message = (
                        f"epoch {event.answered} ends at {event.end}, but {short(value)} of epoch {epoch} is "
                        f"at {offset}"
                    )
                    yield Violation("wrong epoch end", message, *partition, offset, (done, index))


def needless_truncations(facts: Facts) -> Iterator[Violation]:
    """A consumer is told of a truncation, although the last record that it read is still in the log."""
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
                    if _is_there(facts, record):
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
