"""Which history the links of a server are in: each event in each state, and after which failovers writes may
be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from korvet.redis.histories import Effect, History, State, end_of, may_lack
from korvet.redis.replication import Replication, parse_replication

if TYPE_CHECKING:
    from collections.abc import Callable

    Event = Callable[[History], Effect | None]

NONE = "0" * 40


def report(
    history: str, offset: int = 0, former: str = NONE, former_end: int = -1, role: str = "master"
) -> Replication:
    return parse_replication(
        f"role:{role}\r\nconnected_slaves:0\r\nmaster_replid:{history}\r\nmaster_replid2:{former}\r\n"
        f"master_repl_offset:{offset}\r\nsecond_repl_offset:{former_end}\r\n".encode()
    )


REPLICA: Final = report("b", 900, "a", 501, "slave")
"""A former primary of history a that follows the new one."""


def go_down(history: History) -> None:
    history.go_down()


def met(found: str, times: int = 1) -> Event:
    def event(history: History) -> Effect | None:
        return [history.doubt(report(found)) for _ in range(times)][-1]

    return event


STATES: Final[dict[str, tuple[Event, ...]]] = {
    "down": (go_down,),
    "down at 500": (lambda history: history.leave("it"), lambda history: history.report(report("a", 500))),
    "up": (),
    "doubted": (met("b"),),
    "leaving": (lambda history: history.leave("it"),),
}
"""The states, and the events that lead to them after the link for writes came up in history a."""
EVENTS: Final[dict[str, Event]] = {
    "come_up, in the same history": lambda history: history.come_up(report("a", 600)),
    "come_up, has all writes if the end is known": lambda history: history.come_up(
        report("b", 600, "a", 501)
    ),
    "come_up, may lack some": lambda history: history.come_up(report("b", 600, "a", 500)),
    "go_down": go_down,
    "leave": lambda history: history.leave("it"),
    "doubt, a new one": met("c"),
    "doubt, one met before": met("c", 2),
    "doubt, one met often": met("c", 11),
    "report, none": lambda history: history.report(None),
    "report, none as an answer": lambda history: history.report(None, asked=True),
    "report, as before": lambda history: history.report(report("a", 500)),
    "report, as before as an answer": lambda history: history.report(report("a", 500), asked=True),
    "report, of a replica": lambda history: history.report(REPLICA),
    "report, of a replica as an answer": lambda history: history.report(REPLICA, asked=True),
    "report, a new id": lambda history: history.report(report("b", 600)),
    "report, another history": lambda history: history.report(report("b", 600, "a", 501)),
    "rename": lambda history: history.rename(report("b", 600, "a", 501)),
}
SAME = ""
LEFT, LEFT_AT = "down: LEAVE", "down at 500: LEAVE"
EXPECTED: Final[dict[str, tuple[str, ...]]] = {
    "come_up, in the same history": ("up: FOLLOW",) * 5,
    "come_up, has all writes if the end is known": ("up: LOSE", "up: FOLLOW", *("up: LOSE",) * 3),
    "come_up, may lack some": ("up: LOSE",) * 5,
    "go_down": (SAME, SAME, *("down",) * 3),
    "leave": (LEFT, LEFT_AT, "leaving: ASK", "leaving", SAME),
    "doubt, a new one": (SAME, SAME, "doubted: ASK", SAME, SAME),
    "doubt, one met before": (SAME, SAME, "doubted", SAME, SAME),
    "doubt, one met often": (SAME, SAME, "doubted", SAME, SAME),
    "report, none": (*(SAME,) * 4, LEFT),
    "report, none as an answer": (SAME, SAME, SAME, LEFT, LEFT),
    "report, as before": (*(SAME,) * 4, LEFT_AT),
    "report, as before as an answer": (SAME, SAME, SAME, LEFT_AT, LEFT_AT),
    "report, of a replica": (*(SAME,) * 4, LEFT_AT),
    "report, of a replica as an answer": (SAME, SAME, SAME, LEFT_AT, LEFT_AT),
    "report, a new id": (SAME, SAME, "up: FOLLOW", "up: FOLLOW", LEFT),
    "report, another history": (SAME, SAME, LEFT, LEFT, LEFT_AT),
    "rename": ("down: FOLLOW", "down at 500: FOLLOW", "up: FOLLOW", "doubted: FOLLOW", "leaving: FOLLOW"),
}
"""By event: the state after it and its effect, for each of STATES."""


def began() -> History:
    history = History()
    assert history.come_up(report("a", 100)) is Effect.FOLLOW, "there is nothing to lose"
    return history


def state_of(history: History) -> str:
    assert history.state is State.DOWN or history.end is None
    name = history.state.name.lower()
    return name if history.end is None else f"{name} at {history.end}"


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_each_event_in_each_state(state: str, event: str) -> None:
    history = began()
    for each in STATES[state]:
        each(history)
    assert state_of(history) == state
    effect = EVENTS[event](history)
    expected = EXPECTED[event][list(STATES).index(state)] or state
    assert (state_of(history) if effect is None else f"{state_of(history)}: {effect.name}") == expected
    assert history.admits(report(history.id)) == (history.state is not State.DOWN)
    assert not history.admits(report("c"))
    assert effect is not Effect.LEAVE or history.reason


def test_the_table_has_all_events() -> None:
    """Other methods only read."""
    readers = {"id", "continues_another", "has_id", "admits", "lacks_nothing_of"}
    members = {name for name in vars(History) if not name.startswith("_")} - {*History.__slots__}
    assert members - readers == {name.split(",")[0] for name in EVENTS}


def test_a_server_that_does_not_report_its_history_loses_nothing_that_is_known() -> None:
    history, silent = History(), parse_replication(b"")
    assert history.come_up(silent) is Effect.FOLLOW
    assert history.admits(silent)
    history.go_down()
    assert history.come_up(silent) is Effect.FOLLOW
    history.go_down()
    assert history.come_up(report("a")) is Effect.FOLLOW
    history.go_down()
    assert history.come_up(silent) is Effect.LOSE


def test_a_history_that_is_met_again_and_again_is_doubted_now_and_then() -> None:
    """An address that leads to several servers in turn does not end the link for writes each time."""
    history = began()
    doubted = []
    for meeting in range(40):
        for found in ("b", "c"):
            if history.doubt(report(found)) is Effect.ASK:
                doubted.append((meeting, found))
                history.report(report("a", 500), asked=True)
                history.come_up(report("a", 500))
    assert doubted == [(meeting, found) for meeting in (0, 10, 20, 30) for found in ("b", "c")]
    history.go_down()
    history.come_up(report("d"))
    assert history.doubt(report("b")) is Effect.ASK, "another history has met nothing yet"


def test_a_history_has_all_ids_that_it_had() -> None:
    history = began()
    for new in ("b", "c"):
        history.report(report(new))
    assert [history.has_id(each) for each in ("a", "b", "c", "d")] == [True, True, True, False]
    assert [history.admits(report(each)) for each in ("a", "b", "c")] == [False, False, True]
    history.go_down()
    history.come_up(report("d"))
    assert [history.has_id(each) for each in ("a", "b", "c", "d")] == [False, False, False, True]


def test_a_history_that_continues_that_of_another_server() -> None:
    history = History()
    found = []
    for each in (report("a"), report("b", 600, "a", 501), report("c", 700)):
        history.come_up(each)
        found.append(history.continues_another)
    assert found == [False, True, False]


def test_an_earlier_report_settles_no_doubt() -> None:
    """The first replica attaches, and a link comes up while an answer from before that is on its way."""
    history = began()
    history.doubt(report("b"))
    assert history.report(report("a", 500)) is None
    assert history.report(report("b", 600), asked=True) is Effect.FOLLOW
    assert history.admits(report("b"))


class Primary:
    """A server and what it has executed: the writes by number, each of one byte."""

    def __init__(self, history: str, writes: tuple[int, ...] = (), former: str = NONE, end: int = -1) -> None:
        self.writes = writes
        self.begin(history, former, end)

    def begin(self, history: str, former: str, end: int) -> None:
        """Begin a history."""
        self.history, self.former, self.former_end = history, former, end
        self.ids = {history}

    def rename(self, history: str) -> None:
        """Give the history another id."""
        self.history, self.former, self.former_end = history, NONE, -1
        self.ids.add(history)

    def report(self) -> Replication:
        return report(self.history, len(self.writes), self.former, self.former_end)


class HistoryMachine(RuleBasedStateMachine):
    """A broker's links to an address that leads to one of several primaries, whose replicas take over, and
    which are restarted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.primaries, self.count, self.writes = [Primary("h0")], 0, 0
        self.history = History()
        # Where the links lead to; None if they are down.
        self.write: Primary | None = None
        self.read: Primary | None = None
        # What the broker has seen of the history since it was told of a loss.
        self.seen: set[int] = set()
        # Whether a question after ASK is in flight.
        self.asked = False

    def new_id(self) -> str:
        self.count += 1
        return f"h{self.count}"

    def act(self, effect: Effect | None) -> None:
        if effect is Effect.ASK:
            assert self.write is not None
            self.asked = True
        elif effect is Effect.LEAVE:
            self.write, self.read, self.asked = None, None, False
        elif effect is not None:
            if effect is Effect.LOSE:
                self.seen.clear()
            if self.read is not None and not self.history.has_id(self.read_id):
                self.read = None

    # The servers

    @rule(lag=st.integers(0, 2), then=st.sampled_from(["break", "leave", "go on"]))
    def a_replica_takes_over(self, lag: int, then: str) -> None:
        """The former primary goes on. The broker's links break, or they are left for the new one, or not."""
        former = self.write or self.primaries[0]
        kept = former.writes[: max(len(former.writes) - lag, 0)]
        self.primaries.insert(0, Primary(self.new_id(), kept, former.history, len(kept) + 1))
        if self.write is None or then == "go on":
            return
        if then == "leave":
            self.leave()
            self.the_answer_arrives()
        else:
            self.the_link_for_writes_breaks()
        self.the_link_for_writes_connects(0)

    @rule(at=st.integers(0, 1))
    def the_first_replica_attaches(self, at: int) -> None:
        """Another id begins with the backlog, which a former replica has for an hour: by then it has reported
        that it was one.
        """
        primary = self.led_to(at)
        if primary is not self.write or self.history.id in primary.ids:
            primary.rename(self.new_id())

    @rule(at=st.integers(0, 1))
    def a_primary_is_a_replica_for_a_moment(self, at: int) -> None:
        """It copies another one: its links work, and its former writes are gone."""
        primary, other = self.led_to(at), self.led_to(1 - at)
        primary.begin(self.new_id(), other.history, len(other.writes) + 1)
        primary.writes = other.writes

    def led_to(self, at: int) -> Primary:
        return self.primaries[min(at, len(self.primaries) - 1)]

    # The broker

    @precondition(lambda self: self.write is not None)
    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        assert self.write is not None
        for _ in range(count):
            self.writes += 1
            self.write.writes += (self.writes,)
            # A server that was a replica for a moment has not told that yet.
            if self.history.id in self.write.ids:
                self.seen.add(self.writes)

    @precondition(lambda self: self.write is None)
    @rule(at=st.integers(0, 1))
    def the_link_for_writes_connects(self, at: int) -> None:
        self.write = self.led_to(at)
        self.act(self.history.come_up(self.write.report()))

    @precondition(lambda self: self.read is None)
    @rule(at=st.integers(0, 1))
    def the_link_for_reads_connects(self, at: int) -> None:
        found = self.led_to(at)
        if self.history.admits(found.report()):
            self.read, self.read_id = found, found.history
        else:
            self.act(self.history.doubt(found.report()))

    @precondition(lambda self: self.write is not None)
    @rule()
    def the_link_for_writes_breaks(self) -> None:
        self.write, asked, self.asked = None, self.asked, False
        if asked:
            self.act(self.history.report(None, asked=True))
        self.history.go_down()

    @precondition(lambda self: self.write is not None)
    @rule()
    def a_report_arrives(self) -> None:
        assert self.write is not None
        self.act(self.history.report(self.write.report()))
        self.asked &= self.history.state in (State.DOUBTED, State.LEAVING)

    @precondition(lambda self: self.asked)
    @rule()
    def the_answer_arrives(self) -> None:
        assert self.write is not None
        self.asked = False
        self.act(self.history.report(self.write.report(), asked=True))

    @precondition(lambda self: self.write is not None)
    @rule()
    def leave(self) -> None:
        self.act(self.history.leave("it"))

    # What must hold

    @invariant()
    def links_are_as_the_state_says(self) -> None:
        assert (self.write is None) == (self.history.state is State.DOWN)
        assert self.asked == (self.history.state in (State.DOUBTED, State.LEAVING))

    @invariant()
    def the_broker_is_told_of_losses(self) -> None:
        """What it has seen is where it appends, once it knows that server's history."""
        if self.write is not None and self.history.id in self.write.ids:
            assert self.seen <= {*self.write.writes}

    @invariant()
    def reads_are_in_the_history(self) -> None:
        if self.read is not None and self.write is not None:
            assert self.history.has_id(self.read_id)


TestHistoryMachine = HistoryMachine.TestCase


@pytest.mark.parametrize(
    ("former", "end"),
    [
        (report("a", 500), 500),
        (report("a", 500, role="slave"), 500),
        # It has continued with the history of the new primary.
        (report("b", 900, "a", 501, role="slave"), 500),
        # It has copied all data of a new primary.
        (report("b", 900, role="slave"), None),
        (report("c", 900, "b", 700), None),
        (parse_replication(b""), None),
    ],
)
def test_the_end_of_a_history(former: Replication, end: int | None) -> None:
    assert end_of("a", former) == end


@pytest.mark.parametrize(
    ("end", "now", "lacks"),
    [
        (None, report("a", 10), False),
        # A replica became the primary; it had received 500 bytes.
        (500, report("b", 600, "a", 501), False),
        (499, report("b", 600, "a", 501), False),
        (501, report("b", 600, "a", 501), True),
        (None, report("b", 600, "a", 501), True),
        # Two failovers, a restart, another server.
        (500, report("c", 900, "b", 700), True),
        (500, report("b", 600), True),
        (500, parse_replication(b""), True),
    ],
)
def test_a_server_may_lack_writes(end: int | None, now: Replication, lacks: bool) -> None:
    assert may_lack("a", end, now) is lacks
    history, former = History(), History()
    history.come_up(now)
    former.come_up(report("a"))
    if end is not None:
        assert history.lacks_nothing_of(former, report("a", end)) is not lacks
