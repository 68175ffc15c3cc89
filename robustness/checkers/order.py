"""The order in which one client sends, and in which one consumer reads within an assignment."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from robustness.checkers.facts import Outcome, short
from robustness.checkers.violation import Violation
from robustness.history import UNKNOWN, Assign, Poll, Truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from robustness.checkers.facts import Facts, Log, Partition, Sent
    from robustness.history import Isolation, Record


def poll_order(facts: Facts) -> Iterator[Violation]:
    """Offsets go back: within a poll, or between polls of one assignment.

    A consumer that was told of a truncation may go back to where the log was truncated.
    """
    for process, stream in facts.streams.items():
        last: dict[Partition, tuple[int, int]] = {}
        for index, event in stream:
            match event:
                case Assign():
                    last.clear()
                case Truncated(topic=topic, partition=number, offset=offset):
                    if (topic, number) in last:
                        at, before = last[topic, number]
                        last[topic, number] = (min(at, offset - 1), before)
                case Poll():
                    for topic, number, offset, value, _ in event.records:
                        at, before = last.get((topic, number), (UNKNOWN, index))
                        if offset <= at:
                            kind = "internal nonmonotonic poll" if before == index else "nonmonotonic poll"
                            message = f"{process} read {short(value)} at {offset} after offset {at}"
                            yield Violation(kind, message, topic, number, offset, (before, index))
                        last[topic, number] = (offset, index)


def skipped_polls(facts: Facts) -> Iterator[Violation]:
    """Between two records that a consumer read one after the other, the log has another one.

    Only if both records are still in the log: then all between them has been there at that time. After a
    truncation, the consumer reads on at the offset that it was told. A skipped record is allowed, but
    reported, if the consumer does not validate epochs and the topic may lose records: the consumer may have
    passed a marker of a lost history at that offset.
    """
    visible: dict[tuple[Partition, Isolation], Log] = {}
    for process, stream in facts.streams.items():
        # The last offset before the next record, and the event that says so.
        last: dict[Partition, tuple[int, int]] = {}
        for index, event in stream:
            match event:
                case Assign():
                    last.clear()
                case Truncated(topic=topic, partition=number, offset=offset):
                    last[topic, number] = (offset - 1, index)
                case Poll():
                    for record in event.records:
                        partition = (record.topic, record.partition)
                        before = last.pop(partition, None)
                        if not _is_there(facts, record):
                            continue
                        last[partition] = (record.offset, index)
                        if before is None:
                            continue
                        key = (partition, event.isolation)
                        if key not in visible:
                            visible[key] = _visible(facts, *key)
                        may_lose = not event.validates and not facts.is_stable(record.topic)
                        for skipped in _skipped(facts, process, visible[key], before, (record, index)):
                            yield replace(skipped, is_note=may_lose)


def _is_there(facts: Facts, record: Record) -> bool:
    survivors = facts.survivors((record.topic, record.partition)) or {}
    return survivors.get(record.value) == record.offset


def _skipped(
    facts: Facts, process: str, log: Log, before: tuple[int, int], now: tuple[Record, int]
) -> Iterator[Violation]:
    (first, began), (last, ended) = before, now
    position = bisect_right(log, first, key=lambda entry: entry[0])
    while position < len(log) and log[position][0] < last.offset:
        offset, value = log[position]
        position += 1
        if facts.may_be_removed((last.topic, last.partition), offset, None):
            continue
        message = f"{process} read on after offset {first} at {last.offset}, and not {short(value)} between"
        kind = "internal skipped poll" if began == ended else "skipped poll"
        yield Violation(kind, message, last.topic, last.partition, offset, (began, ended))


def _visible(facts: Facts, partition: Partition, isolation: Isolation) -> Log:
    """Returns the records at the end that a consumer with this isolation can't have missed.

    The end of a transaction is known before anybody reads committed records after it.
    """
    log = facts.final(partition, isolation)
    if log is None:
        log = tuple(entry for entry in facts.log(partition) or () if facts.is_visible(entry[1]))
    return tuple(sorted(log))


def send_order(facts: Facts) -> Iterator[Violation]:
    """Acknowledged records of one producer to one partition have offsets in another order than its sends.

    Allowed, but reported, if the producer may repeat a record after later ones. A record that was lost, and
    may be, is left out.
    """
    by_producer: dict[tuple[str, Partition], list[Sent]] = defaultdict(list)
    for sent in facts.sends.values():
        if sent.outcome == "ok" and sent.offset != UNKNOWN and not _may_be_lost(facts, sent):
            by_producer[sent.process, sent.partition].append(sent)
    for (process, partition), sends in by_producer.items():
        highest: Sent | None = None
        for sent in sends:
            if highest is not None and sent.offset <= highest.offset:
                yield Violation(
                    "nonmonotonic send",
                    f"{process} sent {short(sent.value)} after {short(highest.value)}, which is at "
                    f"offset {highest.offset}",
                    *partition,
                    sent.offset,
                    (*highest.events, *sent.events),
                    is_note=not sent.is_ordered,
                )
            else:
                highest = sent


def _may_be_lost(facts: Facts, sent: Sent) -> bool:
    survivors = facts.survivors(sent.partition)
    if survivors is None or sent.value in survivors or facts.is_kept(sent):
        return False
    return facts.outcome(sent.txn) is Outcome.COMMITTED or facts.final(sent.partition) is not None


CHECKERS = (poll_order, skipped_polls, send_order)
