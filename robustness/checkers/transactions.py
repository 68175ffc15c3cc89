"""Transactions: what readers of committed records see, all or nothing, and dependencies between them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from robustness.checkers.facts import Outcome, short
from robustness.checkers.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from robustness.checkers.facts import Facts, Sent, Transaction


def aborted_reads(facts: Facts) -> Iterator[Violation]:
    """A reader of committed records sees one of an aborted transaction."""
    for read in facts.reads:
        sent = facts.sends.get(read.value)
        if read.poll.isolation == "read_committed" and sent and _is_aborted(facts, sent):
            message = f"{read.process} read {short(read.value)} of aborted transaction {sent.txn}"
            events = (*sent.events, read.index)
            yield Violation("aborted read", message, *read.partition, read.offset, events)
    for partition in facts.partitions:
        for offset, value in facts.final(partition, "read_committed") or ():
            sent = facts.sends.get(value)
            if sent and _is_aborted(facts, sent):
                message = f"the final read has {short(value)} of aborted transaction {sent.txn}"
                yield Violation("aborted read", message, *partition, offset, sent.events)


def _is_aborted(facts: Facts, sent: Sent) -> bool:
    return facts.outcome(sent.txn) is Outcome.ABORTED


def precommitted_reads(facts: Facts) -> Iterator[Violation]:
    """A reader of committed records sees one before its transaction's commit was asked for."""
    for read in facts.reads:
        sent = facts.sends.get(read.value)
        if read.poll.isolation != "read_committed" or sent is None or sent.txn is None:
            continue
        txn = facts.txns[sent.txn]
        if txn.commit_invoked is not None and read.index < txn.commit_invoked:
            message = f"{read.process} read {short(read.value)} before transaction {txn.name} was committed"
            events = (*sent.events, read.index, txn.commit_invoked)
            yield Violation("precommitted read", message, *read.partition, read.offset, events)


def torn_transactions(facts: Facts) -> Iterator[Violation]:
    """A part of a transaction's acknowledged records is missing at the end, or all of a committed one's.

    A transaction with an unknown outcome counts as committed if anybody read one of its records as committed.
    """
    seen = {read.value for read in facts.reads if read.poll.isolation == "read_committed"}
    for txn in facts.txns.values():
        there, missing = _parts(facts, txn)
        is_committed = txn.outcome is Outcome.COMMITTED or not seen.isdisjoint(txn.values)
        if txn.outcome is Outcome.ABORTED or not missing or not (there or is_committed):
            continue
        first = missing[0]
        yield Violation(
            "torn transaction" if there else "lost transaction",
            f"transaction {txn.name}: {len(there)} records at the end, {len(missing)} missing, "
            f"the first is {short(first.value)}",
            *first.partition,
            first.offset,
            (*txn.events, *first.events),
            is_note=not facts.run.kept_commits or not all(map(facts.is_kept, missing)),
        )


def _parts(facts: Facts, txn: Transaction) -> tuple[list[Sent], list[Sent]]:
    """Returns the acknowledged records that are visible at the end, and those that are not."""
    there, missing = [], []
    for value in txn.values:
        sent = facts.sends[value]
        is_known = facts.final(sent.partition, "read_committed") is not None
        if sent.outcome != "ok" or not is_known:
            continue
        if value in facts.committed_at_the_end[sent.partition]:
            there.append(sent)
        elif not facts.may_be_removed(sent.partition, sent.offset, sent):
            missing.append(sent)
    return there, missing


def repeated_copies(facts: Facts) -> Iterator[Violation]:
    """A group has more committed copies of a value than there are places where it was read.

    A transaction's offsets and records did not take effect together.
    """
    copies: dict[tuple[str, str | None, str], list[Sent]] = defaultdict(list)
    originals = _places(facts)
    for partition in facts.partitions:
        for value in facts.committed_at_the_end[partition]:
            sent = facts.sends.get(value)
            if sent is not None and sent.copy_of is not None:
                group = None if sent.txn is None else facts.txns[sent.txn].group
                copies[partition[0], group, sent.copy_of].append(sent)
    for (*_, original), found in copies.items():
        if len(found) > max(len(originals.get(original, ())), 1):
            yield Violation(
                "repeated copy",
                f"{short(original)} was copied as {' and '.join(short(sent.value) for sent in found)}",
                *found[-1].partition,
                found[-1].offset,
                tuple(index for sent in found for index in sent.events),
                is_note=not facts.run.kept_commits,
            )


def missing_copies(facts: Facts) -> Iterator[Violation]:
    """A group that copies has committed an offset beyond a record, and has no committed copy of it.

    A transaction's offsets took effect without its records. In a topic that may lose records, the commit may
    belong to a lost history.
    """
    copies = _copies_by_group(facts)
    for (group, partition), (committed, index) in facts.last_commits.items():
        mine = copies.get(group)
        if mine is None or group not in facts.run.groups or not facts.is_stable(partition[0]):
            continue
        are_kept = all(facts.is_stable(sent.partition[0]) for found in mine.values() for sent in found)
        for offset, value in facts.readable(partition, "read_committed"):
            if offset < committed and not any(_may_be_there(facts, sent) for sent in mine.get(value, ())):
                yield Violation(
                    "missing copy",
                    f"{group} has committed {committed}, and there is no copy of {short(value)}",
                    *partition,
                    offset,
                    (*(event for sent in mine.get(value, ()) for event in sent.events), index),
                    is_note=not facts.run.kept_commits or not are_kept,
                )


def _copies_by_group(facts: Facts) -> Mapping[str, Mapping[str, list[Sent]]]:
    """Returns the copies of each group's transactions by the value of which they are copies."""
    found: dict[str, dict[str, list[Sent]]] = defaultdict(lambda: defaultdict(list))
    for sent in facts.sends.values():
        group = None if sent.txn is None else facts.txns[sent.txn].group
        if sent.copy_of is not None and group is not None:
            found[group][sent.copy_of].append(sent)
    return found


def _may_be_there(facts: Facts, copy: Sent) -> bool:
    """Whether readers of committed records see a copy, or it may have been removed."""
    if facts.final(copy.partition, "read_committed") is None:
        return True
    is_there = copy.value in facts.committed_at_the_end[copy.partition]
    return is_there or facts.may_be_removed(copy.partition, copy.offset, copy)


def _places(facts: Facts) -> Mapping[str, set[tuple[object, int]]]:
    """Returns the partitions and offsets of each value: a plain producer may write it twice. Some places may
    be deleted or compacted at the end.
    """
    places: dict[str, set[tuple[object, int]]] = defaultdict(set)
    for read in facts.reads:
        places[read.value].add((read.partition, read.offset))
    for partition in facts.partitions:
        for offset, value in facts.final(partition) or ():
            places[value].add((partition, offset))
    return places


def cycles(facts: Facts) -> Iterator[Violation]:
    """Transactions that have read each other's records, directly or by way of others (G1c).

    Edges are from a transaction to those that read its records. The order of writes in the logs adds none,
    because Kafka lets transactions write interleaved.
    """
    edges: dict[str, set[str]] = defaultdict(set)
    events: dict[tuple[str, str], int] = {}
    for read in facts.reads:
        sent = facts.sends.get(read.value)
        reader = read.poll.txn
        if sent is None or sent.txn is None or reader is None or sent.txn == reader:
            continue
        if Outcome.ABORTED in (facts.outcome(sent.txn), facts.outcome(reader)):
            continue
        edges[sent.txn].add(reader)
        events.setdefault((sent.txn, reader), read.index)
    for cycle in _cycles(edges):
        steps = list(zip(cycle, (*cycle[1:], cycle[0]), strict=True))
        path = " read by ".join((*cycle, cycle[0]))
        yield Violation("write-read cycle", f"transactions {path}", events=tuple(events[s] for s in steps))


def _cycles(edges: Mapping[str, set[str]]) -> Iterator[tuple[str, ...]]:
    """Yields one cycle for each transaction at which a depth-first search closes one."""
    done: set[str] = set()
    for start in list(edges):
        path: list[str] = []
        ahead: list[tuple[str, bool]] = [(start, False)]
        while ahead:
            node, leaves = ahead.pop()
            if leaves:
                path.pop()
                done.add(node)
            elif node in path:
                yield tuple(path[path.index(node) :])
            elif node not in done:
                path.append(node)
                ahead.append((node, True))
                ahead += [(next_, False) for next_ in sorted(edges.get(node, ()))]


CHECKERS = (
    aborted_reads,
    precommitted_reads,
    torn_transactions,
    repeated_copies,
    missing_copies,
    cycles,
)
