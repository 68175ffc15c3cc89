"""Changes to a correct history that break one rule, each with the kinds of violations that must be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from robustness.checkers import Facts
from robustness.checkers.facts import Outcome
from robustness.history import (
    UNKNOWN,
    Commit,
    OffsetForEpoch,
    Poll,
    ReadAll,
    ReadCommit,
    ReadNativeGroup,
    Record,
    Send,
    Truncated,
)
from robustness.model_log import KEPT

if TYPE_CHECKING:
    from collections.abc import Callable

    from robustness.checkers.facts import Sent
    from robustness.dice import Dice
    from robustness.history import Event

    Mutation = Callable[[list[Event], Dice], list[Event] | None]

MUTATIONS: dict[str, tuple[Mutation, frozenset[str]]] = {}


def breaks(*kinds: str) -> Callable[[Mutation], Mutation]:
    """Registers a mutation; one of the kinds must be found. It returns None for a history without a place."""

    def register(mutation: Mutation) -> Mutation:
        MUTATIONS[mutation.__name__] = (mutation, frozenset(kinds))
        return mutation

    return register


def _changed(events: list[Event], index: int, **fields: Any) -> list[Event]:
    return [*events[:index], msgspec.structs.replace(events[index], **fields), *events[index + 1 :]]


def _pick(events: list[Event], dice: Dice, wanted: Callable[[Any], bool]) -> int | None:
    places = [index for index, event in enumerate(events) if wanted(event)]
    return dice.one_of(places) if places else None


def _sent(events: list[Event], dice: Dice, wanted: Callable[[Facts, Sent], bool]) -> Sent | None:
    facts = Facts(events)
    sends = [s for s in facts.sends.values() if s.partition[0] == KEPT and wanted(facts, s)]
    return dice.one_of(sends) if sends else None


def _add_poll(events: list[Event], index: int, records: list[Record], **fields: Any) -> list[Event]:
    poll = Poll(at=events[index].at, process="added", type="ok", records=tuple(records), **fields)
    return [*events[:index], poll, *events[index:]]


def _without(events: list[Event], value: str) -> list[Event]:
    """Returns the history in which nobody reads a value."""
    changed: list[Event] = []
    for event in events:
        if isinstance(event, Poll):
            kept = tuple(record for record in event.records if record.value != value)
            changed.append(msgspec.structs.replace(event, records=kept))
        elif isinstance(event, ReadAll):
            left = tuple(record for record in event.records if record[1] != value)
            changed.append(msgspec.structs.replace(event, records=left))
        else:
            changed.append(event)
    return changed


@breaks("lost write", "unseen", "lost transaction", "torn transaction")
def lose_a_record(events: list[Event], dice: Dice) -> list[Event] | None:
    sent = _sent(events, dice, lambda f, s: s.outcome == "ok" and f.outcome(s.txn) is Outcome.COMMITTED)
    return None if sent is None else _without(events, sent.value)


@breaks("vanished read")
def lose_a_record_after_it_was_read(events: list[Event], dice: Dice) -> list[Event] | None:
    polled = Facts(events).polled
    sent = _sent(events, dice, lambda _, s: s.value in polled)
    if sent is None:
        return None
    return [
        changed if isinstance(event, ReadAll) else event
        for event, changed in zip(events, _without(events, sent.value), strict=True)
    ]


@breaks("duplicate")
def store_a_record_twice(events: list[Event], dice: Dice) -> list[Event] | None:
    sent = _sent(events, dice, lambda _, s: s.is_idempotent and s.outcome == "ok")
    if sent is None:
        return None
    index = _pick(events, dice, lambda e: _is_end_of(e, sent.partition))
    if index is None:
        return None
    return _with_last(events, index, sent.value)


def _is_end_of(event: Event, partition: tuple[str, int]) -> bool:
    return (
        isinstance(event, ReadAll)
        and (event.topic, event.partition) == partition
        and (event.reader, event.isolation, event.complete) == ("kafka", "read_uncommitted", True)
    )


@breaks("duplicate")
def read_a_record_at_another_offset(events: list[Event], dice: Dice) -> list[Event] | None:
    """It is back at its own offset at the end."""
    sent = _sent(events, dice, lambda f, s: s.is_idempotent and s.value in f.polled)
    if sent is None:
        return None
    return _add_poll(events, len(events) - 1, [Record(*sent.partition, 99_999, sent.value)])


@breaks("failed write")
def store_a_failed_send(events: list[Event], dice: Dice) -> list[Event] | None:
    sent = _sent(events, dice, lambda _, s: s.outcome == "fail")
    index = None if sent is None else _pick(events, dice, lambda e: _is_end_of(e, sent.partition))
    return None if sent is None or index is None else _with_last(events, index, sent.value)


@breaks("misplaced")
def store_a_record_in_another_partition_as_well(events: list[Event], dice: Dice) -> list[Event] | None:
    sent = _sent(events, dice, lambda _, s: s.outcome == "ok")
    if sent is None:
        return None
    index = _pick(events, dice, lambda e: _is_end_of(e, (KEPT, 1 - sent.partition[1])))
    return None if index is None else _with_last(events, index, sent.value)


def _with_last(events: list[Event], index: int, value: str) -> list[Event]:
    end = events[index]
    assert isinstance(end, ReadAll)
    return _changed(events, index, records=(*end.records, (99_999, value)))


@breaks("unseen")
def hide_a_record_from_readers_of_committed_ones(events: list[Event], dice: Dice) -> list[Event] | None:
    sent = _sent(events, dice, lambda _, s: s.outcome == "ok" and s.txn is None)
    if sent is None:
        return None
    return [
        changed if isinstance(event, ReadAll) and event.isolation == "read_committed" else event
        for event, changed in zip(events, _without(events, sent.value), strict=True)
    ]


@breaks("internal nonmonotonic poll")
def swap_records_of_a_poll(events: list[Event], dice: Dice) -> list[Event] | None:
    index = _pick(events, dice, lambda e: _pair(e) is not None)
    if index is None:
        return None
    poll, at = events[index], _pair(events[index])
    assert isinstance(poll, Poll)
    assert at is not None
    records = list(poll.records)
    records[at], records[at + 1] = records[at + 1], records[at]
    return _changed(events, index, records=tuple(records))


def _pair(event: Event, length: int = 2) -> int | None:
    """Returns the index of the first `length` neighbours of one partition in a poll."""
    if not isinstance(event, Poll):
        return None
    places = [(record.topic, record.partition) for record in event.records]
    pairs = (i for i in range(len(places) - length + 1) if len(set(places[i : i + length])) == 1)
    return next(pairs, None)


@breaks("nonmonotonic poll")
def poll_twice(events: list[Event], dice: Dice) -> list[Event] | None:
    index = _pick(events, dice, lambda e: isinstance(e, Poll) and bool(e.records))
    return None if index is None else [*events[: index + 1], *events[index:]]


@breaks("internal skipped poll")
def leave_a_record_out_of_a_poll(events: list[Event], dice: Dice) -> list[Event] | None:
    def is_in_the_middle(event: Event) -> bool:
        at = _pair(event, 3)
        return at is not None and isinstance(event, Poll) and event.records[at].topic == KEPT

    index = _pick(events, dice, is_in_the_middle)
    if index is None:
        return None
    poll, at = events[index], _pair(events[index], 3)
    assert isinstance(poll, Poll)
    assert at is not None
    return _changed(events, index, records=(*poll.records[: at + 1], *poll.records[at + 2 :]))


@breaks("inconsistent offset")
def read_another_value(events: list[Event], dice: Dice) -> list[Event] | None:
    index = _pick(events, dice, lambda e: isinstance(e, Poll) and any(r.topic == KEPT for r in e.records[:1]))
    if index is None:
        return None
    poll = events[index]
    assert isinstance(poll, Poll)
    other = poll.records[0]._replace(value="another")
    return _changed(events, index, records=(other, *poll.records[1:]))


@breaks("moved offset")
def acknowledge_another_offset(events: list[Event], dice: Dice) -> list[Event] | None:
    polled = Facts(events).polled

    def is_fixed(event: Any) -> bool:
        is_sent = isinstance(event, Send) and event.offset != UNKNOWN and event.value in polled
        return is_sent and (event.idempotent or event.topic == KEPT)

    index = _pick(events, dice, is_fixed)
    return None if index is None else _changed(events, index, offset=99_999)


@breaks("nonmonotonic send")
def acknowledge_in_another_order(events: list[Event], dice: Dice) -> list[Event] | None:
    indexes: dict[tuple[str, int], list[int]] = {}
    for index, event in enumerate(events):
        if isinstance(event, Send) and event.idempotent and event.txn is None and event.offset != UNKNOWN:
            indexes.setdefault((event.topic, event.partition), []).append(index)
    pairs = [both[-2:] for (topic, _), both in indexes.items() if topic == KEPT and len(both) > 1]
    if not pairs:
        return None
    first, second = dice.one_of(pairs)
    one, other = events[first], events[second]
    assert isinstance(one, Send)
    assert isinstance(other, Send)
    return _changed(_changed(events, first, offset=other.offset), second, offset=one.offset)


@breaks("phantom")
def read_before_the_send(events: list[Event], dice: Dice) -> list[Event] | None:
    sent = _sent(events, dice, lambda _, s: s.outcome == "ok")
    if sent is None:
        return None
    return _add_poll(events, sent.invoked, [Record(*sent.partition, sent.offset, sent.value)])


@breaks("failed write")
def read_a_failed_send(events: list[Event], dice: Dice) -> list[Event] | None:
    sent = _sent(events, dice, lambda _, s: s.outcome == "fail")
    if sent is None:
        return None
    return _add_poll(events, len(events) - 1, [Record(*sent.partition, 99_999, sent.value)])


@breaks("aborted read")
def read_an_aborted_record(events: list[Event], dice: Dice) -> list[Event] | None:
    sent = _sent(events, dice, lambda f, s: f.outcome(s.txn) is Outcome.ABORTED)
    if sent is None:
        return None
    records = [Record(*sent.partition, sent.offset, sent.value)]
    return _add_poll(events, len(events) - 1, records, isolation="read_committed")


@breaks("precommitted read")
def read_before_the_commit(events: list[Event], dice: Dice) -> list[Event] | None:
    sent = _sent(events, dice, lambda f, s: s.txn is not None and f.txns[s.txn].commit_invoked is not None)
    if sent is None or sent.done is None:
        return None
    records = [Record(*sent.partition, sent.offset, sent.value)]
    return _add_poll(events, sent.done + 1, records, isolation="read_committed")


@breaks("torn transaction")
def drop_a_marker(events: list[Event], dice: Dice) -> list[Event] | None:
    """One partition shows none of the records of a transaction that has some in both."""
    facts = Facts(events)
    txns = [
        txn
        for txn in facts.txns.values()
        if txn.outcome is Outcome.COMMITTED and len({facts.sends[v].partition for v in txn.values}) == 2
    ]
    if not txns:
        return None
    txn = dice.one_of(txns)
    hidden = [value for value in txn.values if facts.sends[value].partition == (KEPT, 0)]
    for value in hidden:
        without = _without(events, value)
        for index, event in enumerate(events):
            if isinstance(event, ReadAll | Poll) and event.isolation == "read_committed":
                events = [*events[:index], without[index], *events[index + 1 :]]
    return events


@breaks("write-read cycle")
def read_each_other(events: list[Event], dice: Dice) -> list[Event] | None:
    facts = Facts(events)
    txns = [t for t in facts.txns.values() if t.outcome is not Outcome.ABORTED and t.values]
    if len(txns) < 2:
        return None
    for reader, writer in ((txns[0], txns[1]), (txns[1], txns[0])):
        sent = facts.sends[dice.one_of(writer.values)]
        record = Record(*sent.partition, sent.offset, sent.value)
        events = _add_poll(events, len(events) - 1, [record], txn=reader.name)
    return events


def _last_fetch(events: list[Event]) -> int:
    return max(i for i, event in enumerate(events) if isinstance(event, ReadCommit) and event.type == "ok")


@breaks("lost commit")
def lose_all_commits(events: list[Event], dice: Dice) -> list[Event] | None:
    if not any(isinstance(event, Commit) and event.type == "ok" for event in events):
        return None
    last = _last_fetch(events)
    fetch = events[last]
    assert isinstance(fetch, ReadCommit)
    gone = tuple(place._replace(offset=UNKNOWN) for place in fetch.offsets)
    return _changed(events, last, offsets=gone)


@breaks("commit went back")
def return_an_older_commit(events: list[Event], dice: Dice) -> list[Event] | None:
    """Another member commits at the end, and the fetch does not notice."""
    last = _last_fetch(events)
    fetch = events[last]
    assert isinstance(fetch, ReadCommit)
    unanswered = {
        place
        for event in events
        if isinstance(event, Commit) and event.type == "info"
        for place in event.offsets
    }
    known = [place for place in fetch.offsets if place.offset != UNKNOWN and place not in unanswered]
    if not known:
        return None
    newer = (dice.one_of(known)._replace(offset=99_999),)
    at = events[last].at
    commits = [
        Commit(at=at, process="added", type=type_, group=fetch.group, offsets=newer)
        for type_ in ("invoke", "ok")
    ]
    return [*events[: last - 1], *commits, *events[last - 1 :]]


@breaks("unknown commit")
def return_a_commit_of_nobody(events: list[Event], dice: Dice) -> list[Event] | None:
    last = _last_fetch(events)
    fetch = events[last]
    assert isinstance(fetch, ReadCommit)
    other = tuple(place._replace(offset=99_999) for place in fetch.offsets)
    return _changed(events, last, offsets=other)


@breaks("Redis group differs")
def forget_an_acknowledgement(events: list[Event], dice: Dice) -> list[Event] | None:
    index = _pick(events, dice, lambda e: isinstance(e, ReadNativeGroup) and e.offset > 0)
    if index is None:
        return None
    group = events[index]
    assert isinstance(group, ReadNativeGroup)
    return _changed(events, index, pending=(group.offset - 1,))


@breaks("native readers differ")
def hide_an_entry_from_redis_clients(events: list[Event], dice: Dice) -> list[Event] | None:
    index = _pick(events, dice, lambda e: isinstance(e, ReadAll) and e.reader == "native" and bool(e.records))
    if index is None:
        return None
    end = events[index]
    assert isinstance(end, ReadAll)
    return _changed(events, index, records=end.records[1:])


@breaks("unreadable")
def end_before_the_end(events: list[Event], dice: Dice) -> list[Event] | None:
    last = max(i for i, e in enumerate(events) if isinstance(e, ReadAll) and e.complete)
    return _changed(events, last, complete=False)


@breaks("wrong epoch end", "untold truncation", "two values for a consumer")
def keep_an_old_epoch(events: list[Event], dice: Dice) -> list[Event] | None:
    """After a failover nobody is told, and old epochs reach to the log end."""
    facts = Facts(events)
    survivors = facts.survivors(("lossy", 0)) or {}
    told = [i for i, e in enumerate(events) if isinstance(e, Truncated)]
    for index in told:
        process = events[index].process
        later = _next_poll_of_lossy(events, index, process)
        before = _next_poll_of_lossy(events[::-1], len(events) - 1 - index, process)
        if later is None or before is None or before in survivors or later not in survivors:
            continue
        return events[:index] + events[index + 1 :]
    answers = [i for i, e in enumerate(events) if isinstance(e, OffsetForEpoch) and e.type == "ok"]
    grown = [i for i in answers if _grew(facts, i)]
    return _changed(events, dice.one_of(grown), answered=0) if grown else None


def _next_poll_of_lossy(events: list[Event], index: int, process: str) -> str | None:
    """Returns the first value of the lossy topic that a process reads after an event, and before another
    assignment.
    """
    for event in events[index + 1 :]:
        if event.process == process and not isinstance(event, Poll | OffsetForEpoch | Commit):
            return None
        if event.process == process and isinstance(event, Poll):
            values = [record.value for record in event.records if record.topic == "lossy"]
            if values:
                return values[0]
    return None


def _grew(facts: Facts, index: int) -> bool:
    """Whether the log had surviving records when an epoch's end was answered."""
    survivors = facts.survivors(("lossy", 0)) or {}
    return any(
        sent.epoch != UNKNOWN and sent.done is not None and sent.done < index - 1 and sent.value in survivors
        for sent in facts.sends.values()
        if sent.partition == ("lossy", 0)
    )


@breaks("unread by group")
def skip_for_a_group(events: list[Event], dice: Dice) -> list[Event] | None:
    """The members never read a record below the last commit."""
    facts = Facts(events)
    last = events[_last_fetch(events)]
    assert isinstance(last, ReadCommit)
    ends = {(place.topic, place.partition): place.offset for place in last.offsets}
    sent = _sent(
        events,
        dice,
        lambda _, s: s.value in facts.polled and facts.polled[s.value].offset < ends[s.partition],
    )
    if sent is None or not facts.is_visible(sent.value):
        return None
    return [
        changed if isinstance(event, Poll) else event
        for event, changed in zip(events, _without(events, sent.value), strict=True)
    ]
