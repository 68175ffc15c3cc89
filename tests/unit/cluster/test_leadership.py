"""Leadership: each event in each state, and random series of events."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from korvet.cluster.assignment import Assignment, Broker
from korvet.cluster.leadership import Effect, Leadership, State
from korvet.cluster.lease import NO_VERSION, LeaseCounts, Renewal
from korvet.redis.errors import KeyspaceLost
from korvet.redis.refusals import Cause, Refusals

if TYPE_CHECKING:
    from collections.abc import Callable

    Event = Callable[[Leadership], Effect | None]

LEASE_S = 4.0
JOINED, LATER, MET = 3, 4, 7
"""Versions of the assignment: in which node 1 joined, in which it joins again, and of which it has heard."""


def assigned(version: int, joined: int, *others: int) -> Assignment:
    """An assignment to node 1 and others."""
    nodes = (1, joined), *((node_id, version) for node_id in others)
    return Assignment(version, [Broker(node_id, "host", 9000 + node_id, since) for node_id, since in nodes])


# Node 1 leads this partition also if node 2 is live.
OWN = next(number for number in range(20) if assigned(0, 0, 2).leader("t", number).node_id == 1)


def began() -> Leadership:
    """Node 1 after it took its lease, at 0 s."""
    return Leadership(1, assigned(JOINED, JOINED), LEASE_S, LeaseCounts(), Refusals(), 0.0, 0.0)


def leads(leadership: Leadership) -> bool:
    return leadership.leader_epoch_of("t", OWN) is not None


def followed(version: int, joined: int | None, now_s: float = 5.0, *, loses: bool = False) -> Event:
    """A renewal that was asked at 4 s returns a version, with the assignment if node 1 `joined` in it.
    `loses`: writes are lost before the answer.
    """
    assignment = None if joined is None else assigned(version, joined)
    renewal = Renewal(version, 0, None, None, assignment, {}, ())

    def event(leadership: Leadership) -> Effect | None:
        leadership.ask()
        if loses:
            leadership.lose_writes()
        return leadership.follow(renewal, 4.0, now_s)

    return event


def kept(now_s: float = 5.0, *, loses: bool = False) -> Event:
    """Redis refuses a renewal, and at 4 s the entry is still there. `loses`: see `followed`."""

    def event(leadership: Leadership) -> Effect | None:
        leadership.ask()
        if loses:
            leadership.lose_writes()
        return leadership.keep(4.0, now_s)

    return event


def lose_keyspace(leadership: Leadership) -> Effect | None:
    return leadership.lose_keyspace(KeyspaceLost("no topics"), "it is empty", 5.0)


RENEWED = followed(JOINED, None)
STATES: Final[dict[str, tuple[Event, ...]]] = {
    "leading": (RENEWED,),
    "leading, rejoins": (RENEWED, Leadership.lose_writes, kept()),
    "suspended": (lambda leadership: leadership.check(4.0),),
    "suspended, rejoins": (RENEWED, Leadership.lose_writes),
    "cut off": (RENEWED, lose_keyspace),
    "cut off, rejoins": (RENEWED, Leadership.lose_writes, lose_keyspace),
    "left": (RENEWED, lambda leadership: leadership.leave(None, 5.0)),
}
"""The states, and the events that lead to them."""
EVENTS: Final[dict[str, Event]] = {
    "check": lambda leadership: leadership.check(5.0),
    "check after the lease": lambda leadership: leadership.check(20.0),
    "lose_writes": Leadership.lose_writes,
    "meet": lambda leadership: leadership.meet(MET),
    "ask": lambda leadership: leadership.ask() and None,
    "follow the known version": RENEWED,
    "follow a new version": followed(LATER, LATER),
    "follow, asked before a loss": followed(LATER, LATER, loses=True),
    "follow after the lease": followed(LATER, LATER, 20.0),
    "keep": kept(),
    "keep, asked before a loss": kept(loses=True),
    "keep after the lease": kept(20.0),
    "lose_keyspace": lose_keyspace,
    "find_keyspace": lambda leadership: leadership.find_keyspace(5.0),
    "leave": lambda leadership: leadership.leave(None, 5.0),
}
SAME = ""
STOPPED, RENEWS = "suspended, rejoins: STOP", "suspended, rejoins: RENEW"
EXPECTED: Final[dict[str, tuple[str, ...]]] = {
    "check": (SAME,) * 7,
    "check after the lease": ("suspended: STOP", STOPPED, *(SAME,) * 5),
    "lose_writes": (*(STOPPED,) * 4, *("cut off, rejoins: STOP",) * 2, SAME),
    "meet": (SAME,) * 7,
    "ask": (SAME,) * 7,
    "follow the known version": (SAME, "leading", SAME, "suspended", *(SAME,) * 3),
    "follow a new version": (*("leading: LEAD",) * 4, *(SAME,) * 3),
    "follow, asked before a loss": (*(RENEWS,) * 4, "cut off, rejoins", SAME, SAME),
    "follow after the lease": (*("suspended: STOP",) * 4, *(SAME,) * 3),
    "keep": (SAME, SAME, "leading: LEAD", "leading, rejoins: LEAD", *(SAME,) * 3),
    "keep, asked before a loss": (*("suspended, rejoins",) * 4, "cut off, rejoins", SAME, SAME),
    "keep after the lease": (*("suspended: STOP", STOPPED) * 2, *(SAME,) * 3),
    "lose_keyspace": (*("cut off: STOP", "cut off, rejoins: STOP") * 2, *(SAME,) * 3),
    "find_keyspace": (*(SAME,) * 4, "suspended", "suspended, rejoins", SAME),
    "leave": (*("left: LEAVE",) * 6, SAME),
}
"""By event: the state after it and its effect, for each of STATES."""


def state_of(leadership: Leadership) -> str:
    name = leadership.state.name.lower().replace("_", " ")
    return f"{name}, rejoins" if leadership.rejoins and name != "left" else name


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_each_event_in_each_state(state: str, event: str) -> None:
    leadership = began()
    for each in STATES[state]:
        each(leadership)
    assert state_of(leadership) == state
    effect = EVENTS[event](leadership)
    expected = EXPECTED[event][list(STATES).index(state)] or state
    assert (state_of(leadership) if effect is None else f"{state_of(leadership)}: {effect.name}") == expected
    assert leads(leadership) == (leadership.state is State.LEADING)
    assert leadership.state is not State.CUT_OFF or leadership.lost is not None


def test_the_table_has_all_events() -> None:
    """Other methods only read."""
    readers = {"alone", "is_controller", "holds_lease", "leader_epoch_of", "endpoints", "renewal_interval_s"}
    public = {name for name in vars(Leadership) if not name.startswith("_")}
    assert public - readers == {name.replace(",", " ").split()[0] for name in EVENTS}


def test_a_lease_that_is_over_is_refused_until_it_is_renewed() -> None:
    refusals = Refusals()
    leadership = Leadership(1, assigned(JOINED, JOINED), LEASE_S, LeaseCounts(), refusals, 0.0, 0.0)
    leadership.lose_writes()
    leadership.check(LEASE_S)
    assert refusals.has(Cause.LEASE)
    followed(LATER, LATER)(leadership)
    assert not refusals.has(Cause.LEASE)
    lose_keyspace(leadership)
    assert refusals.has(Cause.KEYSPACE)
    leadership.check(20.0)
    assert not refusals.has(Cause.LEASE)
    leadership.find_keyspace(20.0)
    assert not refusals
    leadership.check(20.0)
    assert refusals.has(Cause.LEASE)


def test_what_is_asked() -> None:
    leadership = began()
    assert leadership.ask() == (JOINED, JOINED, False)
    leadership.meet(MET)
    assert leadership.ask() == (JOINED, MET, False)
    leadership.check(4.0)
    assert leadership.ask() == (NO_VERSION, MET, False)
    followed(MET + 1, MET + 1, loses=True)(leadership)
    assert leadership.ask() == (NO_VERSION, MET + 1, True)


def test_what_is_counted() -> None:
    leadership = began()
    leadership.lose_writes()
    followed(LATER, LATER)(leadership)
    leadership.check(20.0)
    counts = leadership.counts
    assert (counts.rejoins, counts.versions, counts.expired) == (1, 1, 1)


def test_a_broker_that_has_left_lists_itself_for_a_moment() -> None:
    leadership = began()
    leadership.leave(Assignment(LATER, [Broker(2, "host", 9002, JOINED)]), 5.0)
    assert [each[0] for each in leadership.endpoints("PLAINTEXT", 5.0)] == [2, 1]
    assert [each[0] for each in leadership.endpoints("PLAINTEXT", 20.0)] == [2]


@pytest.mark.parametrize(
    ("others", "suspended", "deletes", "expected_s"),
    [((), False, True, 1.0), ((), True, False, 0.25), ((2,), False, False, 0.25), ((2,), False, True, 0.05)],
)
def test_the_interval_of_renewals(
    others: tuple[int, ...], suspended: bool, deletes: bool, expected_s: float
) -> None:
    assignment = assigned(JOINED, JOINED, *others)
    leadership = Leadership(1, assignment, 2 * LEASE_S, LeaseCounts(), Refusals(), 0.0, 0.0)
    if suspended:
        leadership.lose_writes()
    assert leadership.renewal_interval_s(deletes=deletes) == expected_s


class LeadershipMachine(RuleBasedStateMachine):
    """Node 1, and Redis, which may lose versions and gives new ones as korvet_lease does."""

    def __init__(self) -> None:
        super().__init__()
        logging.disable()
        self.leadership = began()
        self.now_s = 0.0
        self.asked: tuple[tuple[int, int, bool], float] | None = None
        # Of Redis: its version, the one in which node 1 joined, and whether node 2 is live.
        self.stored = self.joined = JOINED
        self.has_other = False
        # When other brokers may remove node 1.
        self.until_s = LEASE_S
        # Whether writes were lost since the question was asked, since a version was followed, and since Redis
        # refused writes to a question.
        self.lost_since_asked = self.lost_since_followed = self.lost_since_refused = False
        self.highest = self.version = JOINED
        self.has_left = False

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)

    def do(self, event: Callable[[], Effect | None]) -> None:
        """Listeners hear of each change, and nothing happens after the end."""
        before, had_left = self.leadership.assignment, self.has_left
        led = leads(self.leadership)
        effect = event()
        if led != leads(self.leadership):
            assert effect in ((Effect.STOP, Effect.LEAVE) if led else (Effect.LEAD,))
        if before.version != self.leadership.assignment.version:
            assert effect not in (None, Effect.RENEW)
        if had_left:
            assert (effect, self.leadership.assignment) == (None, before)

    def answered(self) -> tuple[tuple[int, int, bool], float]:
        assert self.asked is not None
        answered, self.asked = self.asked, None
        return answered

    @rule(for_s=st.sampled_from([0.1, 1.0, 3.8, 5.0]))
    def wait(self, for_s: float) -> None:
        """The timer is late: a request comes first."""
        self.now_s += for_s

    @rule()
    def check(self) -> None:
        self.do(partial(self.leadership.check, self.now_s))
        assert not leads(self.leadership) or self.leadership.holds_lease(self.now_s)

    @precondition(lambda self: self.asked is None and not self.has_left)
    @rule()
    def ask(self) -> None:
        question = self.leadership.ask()
        _, highest, rejoins = question
        assert highest >= self.highest
        assert rejoins == self.lost_since_followed
        self.asked, self.highest, self.lost_since_asked = (question, self.now_s), highest, False

    @precondition(lambda self: self.asked)
    @rule(has_other=st.booleans(), can_follow=st.booleans())
    def renewed(self, has_other: bool, can_follow: bool) -> None:
        """`can_follow`: the catalogue can be read, too."""
        (known, highest, rejoins), asked_s = self.answered()
        joins = rejoins or self.stored < highest
        if joins or has_other != self.has_other:
            self.stored, self.has_other = max(self.stored, highest) + 1, has_other
            self.joined = self.stored if joins else self.joined
        assignment = assigned(self.stored, self.joined, *((2,) if has_other else ()))
        self.do(partial(self.leadership.find_keyspace, self.now_s))
        if can_follow:
            given = None if self.stored == known else assignment
            renewal = Renewal(self.stored, 0, None, None, given, {}, ())
            self.do(partial(self.leadership.follow, renewal, asked_s, self.now_s))
            self.extend(asked_s)
            self.highest = max(self.highest, self.stored)
            self.lost_since_followed &= self.lost_since_asked

    @precondition(lambda self: self.asked)
    @rule()
    def refused(self) -> None:
        asked_s = self.answered()[1]
        self.do(partial(self.leadership.keep, asked_s, self.now_s))
        self.extend(asked_s)
        self.lost_since_refused &= self.lost_since_asked

    def extend(self, asked_s: float) -> None:
        if not self.lost_since_asked:
            self.until_s = max(self.until_s, asked_s + LEASE_S)
        assert not leads(self.leadership) or self.now_s < self.until_s

    @precondition(lambda self: self.asked)
    @rule()
    def failed(self) -> None:
        self.answered()

    @rule(versions=st.integers(0, 3))
    def lose_writes(self, versions: int) -> None:
        self.stored -= versions
        self.do(self.leadership.lose_writes)
        if not self.has_left:
            self.lost_since_asked = self.lost_since_followed = self.lost_since_refused = True

    @rule(version=st.integers(0, 30))
    def meet(self, version: int) -> None:
        self.leadership.meet(version)
        self.highest = max(self.highest, version)

    @precondition(lambda self: self.asked)
    @rule()
    def lose_keyspace(self) -> None:
        self.answered()
        self.do(partial(lose_keyspace, self.leadership))

    @precondition(lambda self: self.asked is None)
    @rule(has_successors=st.booleans())
    def leave(self, has_successors: bool) -> None:
        version = max(self.stored, self.leadership.assignment.version) + 1
        successors = Assignment(version, [Broker(2, "host", 9002, version)]) if has_successors else None
        self.do(partial(self.leadership.leave, successors, self.now_s))
        self.has_left = True

    @invariant()
    def it_leads_in_its_states_only(self) -> None:
        leadership = self.leadership
        assert leads(leadership) == (leadership.state is State.LEADING)
        assert not leadership.holds_lease(self.now_s) or self.now_s < self.until_s
        assert not (leadership.state is State.CUT_OFF and leadership.lost is None)
        if self.has_left:
            assert leadership.state is State.LEFT
            assert not leadership.is_controller

    @invariant()
    def after_a_loss_it_leads_only_while_redis_takes_no_writes(self) -> None:
        assert self.has_left or self.leadership.rejoins == self.lost_since_followed
        assert not (leads(self.leadership) and self.lost_since_followed and self.lost_since_refused)

    @invariant()
    def versions_grow(self) -> None:
        assert self.leadership.assignment.version >= self.version
        self.version = self.leadership.assignment.version


TestLeadershipMachine = LeadershipMachine.TestCase
