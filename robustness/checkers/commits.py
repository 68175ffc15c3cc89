"""Committed offsets: a fetch returns the newest acknowledged commit, or one that is not older.

For each group and partition, a fetch must return a commit that was asked for before the fetch was answered.
If an acknowledged commit was over before the fetch began, all commits that were over before that one began
are too old. So an acknowledged commit goes back only by a later commit, for example of an older member.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from robustness.checkers.violation import Violation
from robustness.history import (
    UNKNOWN,
    Admin,
    Assign,
    Commit,
    NativeRead,
    ReadCommit,
    ReadNativeGroup,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from robustness.checkers.facts import Facts, Partition
    from robustness.history import Place

Key = tuple[str, "Partition"]


@dataclass(frozen=True, slots=True)
class Write:
    """A commit of one partition's offset. Without `done` it may take effect at any time after `invoked`."""

    offset: int
    invoked: int
    done: int | None
    is_acknowledged: bool

    @property
    def events(self) -> tuple[int, ...]:
        """The events of the call."""
        return (self.invoked,) if self.done is None else (self.invoked, self.done)


def commits(facts: Facts) -> Iterator[Violation]:
    """A fetch of committed offsets returns one that is older than an acknowledged commit, or unknown."""
    writes = _writes(facts)
    skipped = _groups_of_others(facts)
    open_reads: dict[tuple[str, str], int] = {}
    for index, event in enumerate(facts.history):
        if not isinstance(event, ReadCommit) or event.group in skipped:
            continue
        if event.type == "invoke":
            open_reads[event.process, event.group] = index
            continue
        invoked = open_reads.pop((event.process, event.group), index)
        if event.type == "ok":
            for place in event.offsets:
                mine = writes.get((event.group, (place.topic, place.partition)), [])
                yield from _check(facts, event.group, place, mine, invoked, index)


def _check(
    facts: Facts, group: str, place: Place, writes: list[Write], invoked: int, done: int
) -> Iterator[Violation]:
    begun = [write for write in writes if write.invoked < done]
    settled = [write for write in begun if write.is_acknowledged and write.done and write.done < invoked]
    newest = max(settled, key=lambda write: write.invoked, default=None)
    if place.offset == UNKNOWN:
        candidates: list[Write] = []
        is_right = newest is None
    else:
        candidates = [write for write in begun if write.offset == place.offset]
        is_right = any(
            newest is None or write.done is None or write.done >= newest.invoked for write in candidates
        )
    if is_right:
        return
    kind = "commit went back" if candidates else "lost commit"
    if newest is None or (not candidates and place.offset != UNKNOWN):
        kind = "unknown commit"
    found = "none" if place.offset == UNKNOWN else place.offset
    after = "" if newest is None else f" after {newest.offset} was acknowledged"
    yield Violation(
        kind,
        f"group {group} has committed offset {found}{after}",
        place.topic,
        place.partition,
        place.offset,
        (*(newest.events if newest else ()), done),
        is_note=not facts.run.kept_commits,
    )


def _writes(facts: Facts) -> dict[Key, list[Write]]:
    """Returns the commits of each group and partition that may have taken effect."""
    found: dict[Key, list[Write]] = defaultdict(list)
    begun: dict[tuple[str, str, tuple[Place, ...]], list[int]] = defaultdict(list)

    def add(group: str, offsets: tuple[Place, ...], invoked: int, done: int | None, *, ok: bool) -> None:
        for place in offsets:
            key = (group, (place.topic, place.partition))
            found[key].append(Write(place.offset, invoked, done if ok else None, ok))

    for index, event in enumerate(facts.history):
        if not isinstance(event, Commit):
            continue
        waiting = begun[event.process, event.group, event.offsets]
        if event.type == "invoke":
            waiting.append(index)
            continue
        invoked = waiting.pop(0) if waiting else index
        if event.type != "fail":
            add(event.group, event.offsets, invoked, index, ok=event.type == "ok")
    for (_, group, offsets), waiting in begun.items():
        for invoked in waiting:
            add(group, offsets, invoked, None, ok=False)
    for txn in facts.txns.values():
        if txn.group is not None and txn.commit_invoked is not None and txn.commit != "fail":
            is_ok = txn.commit == "ok"
            add(txn.group, txn.offsets, txn.commit_invoked, txn.commit_done, ok=is_ok)
    return found


def _groups_of_others(facts: Facts) -> set[str]:
    """Returns groups that Redis clients or administrators move, too."""
    found = {e.group for e in facts.history if isinstance(e, NativeRead) and e.group is not None}
    return found | {e.detail for e in facts.history if isinstance(e, Admin) and e.action == "delete_group"}


def two_owners(facts: Facts) -> Iterator[Violation]:
    """A member commits a partition after another member got it, and this is accepted."""
    # The member that got a partition last, and when.
    owners: dict[Key, tuple[str, int]] = {}
    mine: dict[str, set[Partition]] = {}
    began: dict[tuple[str, str, tuple[Place, ...]], int] = {}
    for index, event in enumerate(facts.history):
        if isinstance(event, Assign) and event.group is not None:
            partitions = {(place.topic, place.partition) for place in event.places}
            for partition in partitions:
                owners[event.group, partition] = (event.process, index)
            mine[event.process] = partitions
        elif isinstance(event, Commit):
            key = (event.process, event.group, event.offsets)
            if event.type == "invoke":
                began[key] = index
            elif event.type == "ok":
                for place in event.offsets:
                    partition = (place.topic, place.partition)
                    owner, since = owners.get((event.group, partition), (event.process, index))
                    both_have_it = all(partition in mine.get(name, ()) for name in (owner, event.process))
                    if owner != event.process and both_have_it and since < began.get(key, since):
                        message = f"{event.process} commits for {event.group}, and {owner} has the partition"
                        events = (since, began[key], index)
                        yield Violation("two owners", message, *partition, place.offset, events)


def native_groups(facts: Facts) -> Iterator[Violation]:
    """The Redis group of a name is not at the committed offset, or has pending entries below it."""
    committed: dict[Key, int] = {}
    for index, event in enumerate(facts.history):
        if isinstance(event, ReadCommit) and event.type == "ok":
            for place in event.offsets:
                committed[event.group, (place.topic, place.partition)] = place.offset
        elif isinstance(event, ReadNativeGroup) and event.type == "ok":
            partition = (event.topic, event.partition)
            offset = committed.get((event.group, partition), UNKNOWN)
            if offset == UNKNOWN:
                continue
            first, last = sorted((offset, event.offset))
            log = (facts.survivors(partition) or {}).values()
            between = [at for at in log if first <= at < last]
            pending = [at for at in event.pending if at < offset]
            if between or pending:
                yield Violation(
                    "Redis group differs",
                    f"group {event.group} has committed {offset}; the Redis group is at {event.offset} and "
                    f"has {len(pending)} pending entries below the commit",
                    *partition,
                    offset,
                    (index,),
                )


CHECKERS = (commits, two_owners, native_groups)
