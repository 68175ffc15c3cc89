"""Records of share groups: who had them, and what became of them.

Only what a member was told while it certainly had a lock is proof: an acknowledgement of a record before the
group's start is answered without an error, and ignored.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from robustness.checkers.facts import short
from robustness.checkers.violation import Violation
from robustness.history import CatchUp, Settle, Take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from robustness.checkers.facts import Facts
    from robustness.history import Record

Key = tuple[str, str, int, int]


@dataclass(slots=True)
class Taken:
    """A record that a member has got."""

    process: str
    asked: int
    """The event with which the member asked."""
    got: int
    native: bool


@dataclass(slots=True)
class End:
    """An acceptance or rejection of a record by the member that had it."""

    outcome: str
    own: Taken
    said: int
    answered: int


@dataclass(slots=True)
class Shared:
    """What happened to a record in a share group. The index of an event is its time."""

    record: Record
    takes: list[Taken] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    """Acceptances and rejections that count."""


@lru_cache(maxsize=1)
def shared_records(facts: Facts) -> dict[Key, Shared]:
    """All records that members of share groups have got, by group, partition and offset."""
    found: dict[Key, Shared] = {}
    asked: dict[str, int] = {}
    said: dict[tuple[str, Key], int] = {}
    for index, event in enumerate(facts.history):
        if isinstance(event, Take):
            if event.type == "invoke":
                asked[event.process] = index
            for record in event.records:
                shared = found.setdefault(_key(event.group, record), Shared(record))
                shared.takes.append(Taken(event.process, asked[event.process], index, event.native))
        elif isinstance(event, Settle):
            key = _key(event.group, event.record)
            if event.type == "invoke":
                said[event.process, key] = index
            elif event.type == "ok" and event.outcome != "release":
                own = _taken_by(found[key], event.process)
                lasts_ns = facts.run.lock_ms * 1_000_000
                if event.at < facts.history[own.asked].at + lasts_ns:
                    found[key].ends.append(End(event.outcome, own, said[event.process, key], index))
    return found


def _taken_by(shared: Shared, process: str) -> Taken:
    """The last time that a member got a record."""
    return next(take for take in reversed(shared.takes) if take.process == process)


def _key(group: str, record: Record) -> Key:
    return group, record.topic, record.partition, record.offset


def taken_after_the_end(facts: Facts) -> Iterator[Violation]:
    """A record was accepted or rejected, and a member that asked later has got it."""
    for (group, *_), shared in shared_records(facts).items():
        for end in shared.ends:
            for take in shared.takes:
                if take.asked > end.answered:
                    message = (
                        f"{group}: the {end.outcome} of {end.own.process} counts, and {take.process} got it"
                    )
                    yield _violation(facts, "taken after its end", message, shared, (end.answered, take.got))


def ended_twice(facts: Facts) -> Iterator[Violation]:
    """A record was accepted or rejected more than once, each time with success."""
    for (group, *_), shared in shared_records(facts).items():
        if len(shared.ends) > 1:
            message = f"{group}: {', '.join(f'{end.own.process}: {end.outcome}' for end in shared.ends)}"
            yield _violation(
                facts, "ended twice", message, shared, tuple(end.answered for end in shared.ends)
            )


def two_owners(facts: Facts) -> Iterator[Violation]:
    """A record was given to somebody while a member had it that then accepted or rejected it with success."""
    for (group, *_), shared in shared_records(facts).items():
        for end in shared.ends:
            own = end.own
            for take in shared.takes:
                if own.got < take.asked and take.got < end.said:
                    message = f"{group}: {take.process} got it while {own.process} had it"
                    events = own.got, take.got, end.answered
                    yield _violation(facts, "two owners", message, shared, events)


def taken_too_often(facts: Facts) -> Iterator[Violation]:
    """Members have got a record more often than the limit of deliveries allows. Redis clients may take it
    beyond the limit, too.
    """
    for (group, *_), shared in shared_records(facts).items():
        events = tuple(take.got for take in shared.takes if not take.native)
        if len(events) > facts.run.deliveries:
            message = f"{group}: members got it {len(events)} times, the limit is {facts.run.deliveries}"
            yield _violation(facts, "taken too often", message, shared, events)


def never_taken(facts: Facts) -> Iterator[Violation]:
    """A share group has caught up, and none of its members has got a record that is in the log."""
    taken: dict[str, set[str]] = defaultdict(set)
    topics: dict[str, set[str]] = defaultdict(set)
    for (group, topic, *_), shared in shared_records(facts).items():
        taken[group].add(shared.record.value)
        topics[group].add(topic)
    caught_up = {event.group for event in facts.history if isinstance(event, CatchUp) and event.type == "ok"}
    for group in caught_up.intersection(facts.run.share_groups):
        for partition in facts.partitions:
            if partition[0] not in topics[group]:
                continue
            for offset, value in facts.readable(partition, "read_committed"):
                if value not in taken[group]:
                    message = f"{group}: nobody got {short(value)}"
                    yield Violation("never taken", message, *partition, offset)


def _violation(facts: Facts, kind: str, message: str, shared: Shared, events: tuple[int, ...]) -> Violation:
    record = shared.record
    place = record.topic, record.partition, record.offset
    return Violation(kind, message, *place, tuple(sorted(events)), is_note=not facts.run.kept_locks)


CHECKERS = (taken_after_the_end, ended_twice, two_owners, taken_too_often, never_taken)
