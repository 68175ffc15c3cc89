"""Records that appear where they don't belong: twice, at other offsets, with other values, or never sent."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from robustness.checkers.facts import short
from robustness.checkers.violation import Violation
from robustness.history import UNKNOWN, Assign, NativeRead, Truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from robustness.checkers.facts import Facts, Partition


def phantoms(facts: Facts) -> Iterator[Violation]:
    """A record is read that nobody sent, that was sent later, or whose send has failed."""
    for value, read in facts.polled.items():
        sent = facts.sends.get(value)
        if sent is None or read.index < sent.invoked:
            message = f"{short(value)} was read by {read.process} before anybody sent it"
            yield Violation("phantom", message, *read.partition, read.offset, (read.index,))
    for value, partition, offset, events in _where(facts):
        sent = facts.sends.get(value)
        if sent is None:
            if value not in facts.polled:
                yield Violation("phantom", f"nobody sent {short(value)}", *partition, offset)
        elif sent.outcome == "fail":
            message = f"{short(value)} was read, but its send has failed"
            yield Violation("failed write", message, *partition, offset, (*sent.events, *events))
        elif sent.partition != partition:
            message = f"{short(value)} was sent to {sent.partition[0]}-{sent.partition[1]}"
            yield Violation("misplaced", message, *partition, offset, (*sent.events, *events))


def _where(facts: Facts) -> Iterator[tuple[str, Partition, int, tuple[int, ...]]]:
    """Yields each value once for each partition in which it was read, with an offset and the event."""
    known: set[tuple[str, Partition]] = set()
    for read in facts.reads:
        if (read.value, read.partition) not in known:
            known.add((read.value, read.partition))
            yield read.value, read.partition, read.offset, (read.index,)
    for partition in facts.partitions:
        for offset, value in (
            *(facts.log(partition) or ()),
            *(facts.final(partition, "read_committed") or ()),
        ):
            if (value, partition) not in known:
                known.add((value, partition))
                yield value, partition, offset, ()


def duplicates(facts: Facts) -> Iterator[Violation]:
    """A value has two offsets in one log. Allowed, but reported, without an idempotent producer.

    In a log whose readable records are stable, a value that was read at another offset counts, too.
    """
    read_at: dict[Partition, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for read in facts.reads:
        if facts.is_stable(read.partition[0]) and not facts.may_be_removed(read.partition, read.offset, None):
            read_at[read.partition][read.value].add(read.offset)
    for partition in sorted({*facts.partitions, *read_at}):
        offsets = read_at[partition]
        for offset, value in facts.log(partition) or ():
            offsets[value].add(offset)
        for value, places in offsets.items():
            if len(places) < 2:
                continue
            sent = facts.sends.get(value)
            yield Violation(
                "duplicate",
                f"{short(value)} is at offsets {', '.join(map(str, sorted(places)))}",
                *partition,
                max(places),
                sent.events if sent else (),
                is_note=sent is not None and not sent.is_idempotent and sent.txn is None,
            )


def moved_offsets(facts: Facts) -> Iterator[Violation]:
    """A producer was told an offset at which its record is not, although the record is in the log."""
    at: dict[str, set[int]] = defaultdict(set)
    for read in facts.reads:
        at[read.value].add(read.offset)
    for partition in facts.partitions:
        for offset, value in facts.log(partition) or ():
            at[value].add(offset)
    for sent in facts.sends.values():
        if (
            sent.outcome == "ok"
            and sent.offset != UNKNOWN
            and at[sent.value] - {sent.offset} == at[sent.value]
        ):
            if not at[sent.value]:
                continue
            where = ", ".join(map(str, sorted(at[sent.value])))
            yield Violation(
                "moved offset",
                f"{short(sent.value)} was acknowledged at offset {sent.offset} and read at {where}",
                *sent.partition,
                sent.offset,
                sent.events,
                # It may have been written twice, and the acknowledged copy may be lost or removed.
                is_note=not sent.is_idempotent
                and (not facts.is_kept(sent) or facts.may_be_removed(sent.partition, sent.offset, sent)),
            )


def inconsistent_offsets(facts: Facts) -> Iterator[Violation]:
    """Two values at one offset, both in one leader epoch or in a topic whose readable records are stable.

    An acknowledgement counts like a read if the topic keeps records with such acks.
    """
    seen: dict[tuple[Partition, int], dict[str, tuple[int, tuple[int, ...]]]] = defaultdict(dict)
    for read in facts.reads:
        known = seen[read.partition, read.offset].get(read.value, (UNKNOWN, ()))
        epoch = read.epoch if known[0] == UNKNOWN else known[0]
        seen[read.partition, read.offset][read.value] = (epoch, known[1] or (read.index,))
    for sent in facts.sends.values():
        if sent.outcome == "ok" and sent.offset != UNKNOWN and (facts.is_kept(sent) or sent.epoch != UNKNOWN):
            place = seen[sent.partition, sent.offset]
            epoch = max(place.get(sent.value, (UNKNOWN, ()))[0], sent.epoch)
            place[sent.value] = (epoch, sent.events)
    for partition in facts.partitions:
        for offset, value in facts.log(partition) or ():
            seen[partition, offset].setdefault(value, (UNKNOWN, ()))
    for (partition, offset), values in seen.items():
        if len(values) < 2:
            continue
        epochs = [epoch for epoch, _ in values.values() if epoch != UNKNOWN]
        is_within_epoch = len(set(epochs)) < len(epochs)
        yield Violation(
            "inconsistent offset",
            f"offset {offset} has {' and '.join(short(value, 30) for value in values)}"
            + (" in one leader epoch" if is_within_epoch else ""),
            *partition,
            offset,
            tuple(index for _, events in values.values() for index in events),
            is_note=not is_within_epoch and not facts.is_stable(partition[0]),
        )


def inconsistent_reads(facts: Facts) -> Iterator[Violation]:
    """A consumer that validates epochs reads two values at one offset, and nobody told it of a truncation."""
    for process, stream in facts.streams.items():
        seen: dict[tuple[str, int, int], tuple[str, int]] = {}
        for index, event in stream:
            if isinstance(event, Assign):
                # The consumer starts at a committed offset, which may be before the truncation.
                seen.clear()
            elif isinstance(event, Truncated):
                gone = [
                    key
                    for key in seen
                    if key[:2] == (event.topic, event.partition) and key[2] >= event.offset
                ]
                for key in gone:
                    del seen[key]
            elif event.validates:
                for topic, partition, offset, value, _ in event.records:
                    known, before = seen.setdefault((topic, partition, offset), (value, index))
                    if known != value:
                        message = f"{process} read {short(known)}, then {short(value)}, and was not told why"
                        yield Violation(
                            "two values for a consumer", message, topic, partition, offset, (before, index)
                        )


def native_differs(facts: Facts) -> Iterator[Violation]:
    """Redis clients and Kafka consumers see different records at the end."""
    for partition in facts.partitions:
        native, kafka = facts.final(partition, reader="native"), facts.final(partition)
        if native is None or kafka is None:
            continue
        for name, only in (("Redis", set(native) - set(kafka)), ("Kafka", set(kafka) - set(native))):
            for offset, value in sorted(only):
                message = f"only {name} clients see {short(value)}"
                yield Violation("native readers differ", message, *partition, offset)


def native_order(facts: Facts) -> Iterator[Violation]:
    """A Redis client without a group reads entries in another order than that of their offsets."""
    last: dict[tuple[str, Partition], int] = {}
    for index, event in enumerate(facts.history):
        if not isinstance(event, NativeRead) or event.type != "ok" or event.group is not None:
            continue
        partition = (event.topic, event.partition)
        for entry_id, value in event.entries:
            offset = facts.offset_of(event.topic, entry_id)
            if offset == UNKNOWN:
                continue
            if offset <= last.get((event.process, partition), UNKNOWN):
                message = f"{event.process} read {short(value)} after a later entry"
                yield Violation(
                    "native readers differ",
                    message,
                    *partition,
                    offset,
                    (index,),
                    is_note=not facts.is_stable(event.topic),
                )
            last[event.process, partition] = offset


CHECKERS = (
    phantoms,
    duplicates,
    moved_offsets,
    inconsistent_offsets,
    inconsistent_reads,
    native_differs,
    native_order,
)
