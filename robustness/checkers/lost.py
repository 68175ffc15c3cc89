"""Records that were acknowledged or read, and are not there at the end."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from robustness.checkers.facts import short
from robustness.checkers.violation import Violation
from robustness.history import UNKNOWN, Admin, CatchUp, ReadAll, Stuck

if TYPE_CHECKING:
    from collections.abc import Iterator

    from robustness.checkers.facts import Facts, Partition, Read


def lost_writes(facts: Facts) -> Iterator[Violation]:
    """An acknowledged record is missing: `lost write` if a reader got further, else `unseen`.

    Without a final read of its partition, a record is lost if a reader got further and nobody has read it.
    Records of transactions are the subject of `transactions.py`.
    """
    for sent in facts.sends.values():
        if sent.outcome != "ok" or sent.txn is not None:
            continue
        survivors = facts.survivors(sent.partition)
        read_by = facts.polled if survivors is None else survivors
        passed = UNKNOWN < sent.offset < facts.highest.get(sent.partition, UNKNOWN)
        if sent.value in read_by or (survivors is None and not passed):
            continue
        if facts.may_be_removed(sent.partition, sent.offset, sent):
            continue
        how = "and readers got further" if passed else "and is not read at the end"
        yield Violation(
            "lost write" if passed else "unseen",
            f"{short(sent.value)} was acknowledged (acks={sent.acks}) {how}",
            *sent.partition,
            sent.offset,
            sent.events,
            is_note=not facts.is_kept(sent),
        )


def hidden_records(facts: Facts) -> Iterator[Violation]:
    """A record outside of transactions is in the log, and readers of committed records don't see it."""
    for partition in facts.partitions:
        everything = facts.final(partition)
        if everything is None or facts.final(partition, "read_committed") is None:
            continue
        for offset, value in everything:
            sent = facts.sends.get(value)
            if sent is None or sent.txn is not None or value in facts.committed_at_the_end[partition]:
                continue
            if not facts.may_be_removed(partition, offset, sent):
                message = f"{short(value)} is in the log, and not visible to readers of committed records"
                yield Violation("unseen", message, *partition, offset, sent.events)


def vanished_reads(facts: Facts) -> Iterator[Violation]:
    """A consumer has read a record that is missing at the end, so it read above the high watermark."""
    for value, read in facts.polled.items():
        survivors = facts.survivors(read.partition)
        sent = facts.sends.get(value)
        if survivors is None or value in survivors:
            continue
        if facts.final(read.partition) is None and not facts.is_visible(value):
            continue
        if facts.may_be_removed(read.partition, read.offset, sent):
            continue
        yield Violation(
            "vanished read",
            f"{short(value)} was read by {read.process} and is missing at the end",
            *read.partition,
            read.offset,
            (*(sent.events if sent else ()), read.index),
            is_note=not facts.is_stable(read.partition[0]),
        )


def unfinished_reads(facts: Facts) -> Iterator[Violation]:
    """A partition can't be read to its end after all faults have ended."""
    for (partition, reader, isolation), index in facts.unfinished.items():
        message = f"the final read by {reader}, {isolation}, did not complete"
        yield Violation("unreadable", message, *partition, events=(index,))


def lost_partitions(facts: Facts) -> Iterator[Violation]:
    """A partition that was added, or that has an acknowledged record, is missing when all others are read."""
    read = {(event.topic, event.partition) for event in facts.history if isinstance(event, ReadAll)}
    known: dict[Partition, tuple[int, ...]] = {}
    for sent in facts.sends.values():
        if sent.outcome == "ok" and facts.is_kept(sent):
            known.setdefault(sent.partition, sent.events)
    for index, event in enumerate(facts.history):
        if isinstance(event, Admin) and event.action == "create_partitions" and event.type == "ok":
            known.setdefault((event.topic or "", int(event.detail) - 1), (index,))
    for partition, events in known.items():
        if read and partition not in read and not facts.is_deleted(partition[0]):
            yield Violation("lost partition", "it does not exist at the end", *partition, events=events)


def undeleted_records(facts: Facts) -> Iterator[Violation]:
    """DeleteRecords was acknowledged, and a record below its offset is there at the end."""
    for index, event in enumerate(facts.history):
        if not isinstance(event, Admin) or (event.action, event.type) != ("delete_records", "ok"):
            continue
        partition = (event.topic or "", event.partition)
        for offset, value in facts.log(partition) or ():
            if offset < event.offset:
                message = f"{short(value)} is there, and records before {event.offset} were deleted"
                is_note = not facts.is_stable(partition[0])
                yield Violation("undeleted", message, *partition, offset, (index,), is_note)


def stalled_groups(facts: Facts) -> Iterator[Violation]:
    """The members of a group don't get to the end of the log after all faults have ended."""
    for index, event in enumerate(facts.history):
        if isinstance(event, CatchUp) and event.type == "info":
            yield Violation("stalled group", f"{event.group}: {event.error}", events=(index,))


def stuck_clients(facts: Facts) -> Iterator[Violation]:
    """A producer gets no acknowledgement, or a group no record, after all faults have ended."""
    for index, event in enumerate(facts.history):
        if isinstance(event, Stuck):
            message = f"{event.subject} makes no progress {event.waited_s:g} s after the last fault"
            yield Violation("stuck client", message, events=(index,))


def unread_by_groups(facts: Facts) -> Iterator[Violation]:
    """A group has committed an offset, and none of its members has read a record below it.

    In a topic that may lose records, the commit may belong to a lost history. It does not if a member has
    read the last record below it. But a member that has read a record of a lost history at that offset may
    commit past the offset, and lose the partition, before it learns of the truncation.
    """
    reads_of = _reads_of(facts)
    for (group, partition), (committed, index) in facts.last_commits.items():
        reads = reads_of.get((group, partition), [])
        if group not in facts.run.groups:
            continue
        isolation = reads[0].poll.isolation if reads else "read_committed"
        read, passed = {one.value for one in reads}, {one.offset for one in reads}
        below = [one for one in facts.readable(partition, isolation) if one[0] < committed]
        is_stable = facts.is_stable(partition[0])
        if not below or not (is_stable or max(below)[1] in read):
            continue
        for offset, value in below:
            sent = facts.sends.get(value)
            if value in read or facts.may_be_removed(partition, offset, sent):
                continue
            yield Violation(
                "unread by group",
                f"{group} has committed {committed} and no member has read {short(value)}",
                *partition,
                offset,
                (*(sent.events if sent else ()), index),
                is_note=not is_stable and (offset in passed or not all(one.poll.validates for one in reads)),
            )


def _reads_of(facts: Facts) -> dict[tuple[str, Partition], list[Read]]:
    found = defaultdict(list)
    for read in facts.reads:
        if read.poll.group is not None:
            found[read.poll.group, read.partition].append(read)
    return found


CHECKERS = (
    lost_writes,
    hidden_records,
    vanished_reads,
    unfinished_reads,
    lost_partitions,
    undeleted_records,
    stuck_clients,
    stalled_groups,
    unread_by_groups,
)
