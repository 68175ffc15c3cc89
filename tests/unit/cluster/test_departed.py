"""Brokers that have just left, as Metadata lists them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from korvet.cluster.assignment import Assignment, Broker
from korvet.cluster.departed import LISTED_S, Departed
from korvet.cluster.versions import FIRST_PROTOCOLS, PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Callable

ONE, TWO, THREE = (Broker(number, "host", 9000 + number, 0, protocols=PROTOCOLS) for number in (1, 2, 3))


def ports(assignment: Assignment, departed: Departed, now_s: float) -> list[int]:
    return [port for _, _, port in assignment.endpoints("PLAINTEXT", departed.brokers(now_s))]


def test_a_broker_that_has_left_is_listed_for_a_moment() -> None:
    departed, both, left = Departed(), Assignment(1, [ONE, TWO]), Assignment(2, [ONE])
    departed.announced(2, 10.0)
    departed.note(both, left, 10.0)
    assert ports(left, departed, 10.0 + LISTED_S / 2) == [9001, 9002]
    assert ports(left, departed, 10.0 + LISTED_S) == [9001]


def test_a_broker_whose_lease_expired_is_not_listed() -> None:
    departed, left = Departed(), Assignment(2, [ONE])
    departed.note(Assignment(1, [ONE, TWO]), left, 10.0)
    assert ports(left, departed, 10.0) == [9001]


def test_an_announcement_counts_after_the_departure_too_and_then_no_more() -> None:
    departed, left = Departed(), Assignment(2, [ONE])
    departed.note(Assignment(1, [ONE, TWO]), left, 10.0)
    departed.announced(2, 10.1)
    assert ports(left, departed, 10.1) == [9001, 9002]
    assert ports(left, departed, 10.1 + LISTED_S) == [9001]
    departed.note(Assignment(3, [ONE, TWO]), Assignment(4, [ONE]), 20.0)
    assert ports(left, departed, 20.0) == [9001]


def test_a_broker_of_a_release_that_cannot_announce_it_is_listed() -> None:
    departed, left = Departed(), Assignment(2, [ONE])
    early = Broker(2, "host", 9002, 0, protocols=FIRST_PROTOCOLS)
    departed.note(Assignment(1, [ONE, early]), left, 10.0)
    assert ports(left, departed, 10.0) == [9001, 9002]


def test_a_broker_that_comes_back_is_listed_once_and_where_it_is_now() -> None:
    departed = Departed()
    back = Broker(2, "host", 9999, 3)
    departed.announced(2, 10.0)
    departed.note(Assignment(1, [ONE, TWO]), Assignment(2, [ONE]), 10.0)
    departed.note(Assignment(2, [ONE]), Assignment(3, [ONE, back]), 10.5)
    assert ports(Assignment(3, [ONE, back]), departed, 10.6) == [9001, 9999]


def test_several_leave_one_after_the_other() -> None:
    departed = Departed()
    departed.announced(3, 10.0)
    departed.note(Assignment(1, [ONE, TWO, THREE]), Assignment(2, [ONE, TWO]), 10.0)
    departed.announced(2, 11.0)
    departed.note(Assignment(2, [ONE, TWO]), Assignment(3, [ONE]), 11.0)
    assert sorted(ports(Assignment(3, [ONE]), departed, 11.5)) == [9001, 9002, 9003]
    assert ports(Assignment(3, [ONE]), departed, 10.0 + LISTED_S) == [9001, 9002]


LEFT, LOST = "node 2 at host:9002 has left", "node 2 at host:9002 is lost: it has not renewed its lease"
AGAIN = Broker(2, "host", 9002, 3, protocols=PROTOCOLS)
BOTH, ALONE, BOTH_AGAIN = Assignment(1, [ONE, TWO]), Assignment(2, [ONE]), Assignment(3, [ONE, AGAIN])


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """What was logged since the last call."""
    caplog.set_level(logging.INFO)

    def taken() -> list[tuple[str, str]]:
        found = [(each.levelname, each.getMessage()) for each in caplog.records]
        caplog.clear()
        return found

    return taken


@pytest.mark.parametrize("announced_s", [9.9, 10.1, 10.9])
def test_who_announces_it_has_left(announced_s: float, told: Callable[[], list[tuple[str, str]]]) -> None:
    departed = Departed(1)
    if announced_s < 10:
        departed.announced(2, announced_s)
    departed.note(BOTH, ALONE, 10.0)
    departed.tell(10.05)
    if announced_s > 10:
        assert told() == []
        departed.announced(2, announced_s)
    assert told() == [("INFO", LEFT)]
    departed.tell(20.0)
    departed.note(ALONE, BOTH_AGAIN, 30.0)
    assert told() == [("INFO", "node 2 at host:9002 has joined")]


def test_who_does_not_is_lost_until_it_is_back(told: Callable[[], list[tuple[str, str]]]) -> None:
    departed = Departed(1)
    departed.note(BOTH, ALONE, 10.0)
    departed.tell(10.5)
    assert told() == []
    for now_s in (11.0, 12.0):
        departed.tell(now_s)
    assert told() == [("WARNING", LOST)]
    departed.note(ALONE, BOTH_AGAIN, 52.0)
    assert told() == [("WARNING", "node 2 at host:9002 is back after 42 s")]


def test_who_has_left_comes_back_and_dies_at_once_is_lost(told: Callable[[], list[tuple[str, str]]]) -> None:
    departed = Departed(1)
    departed.announced(2, 10.0)
    departed.note(BOTH, ALONE, 10.0)
    departed.note(ALONE, BOTH_AGAIN, 10.5)
    departed.note(BOTH_AGAIN, Assignment(4, [ONE]), 10.0 + LISTED_S - 0.1)
    departed.tell(20.0)
    assert told() == [("INFO", LEFT), ("INFO", "node 2 at host:9002 has joined"), ("WARNING", LOST)]


def test_who_comes_back_between_two_looks_was_lost(told: Callable[[], list[tuple[str, str]]]) -> None:
    departed = Departed(1)
    departed.note(BOTH, BOTH_AGAIN, 10.0)
    assert told() == [("WARNING", LOST), ("WARNING", "node 2 at host:9002 is back after 0 s")]
    departed.note(BOTH_AGAIN, BOTH_AGAIN, 11.0)
    departed.tell(20.0)
    assert told() == []


def test_the_log_of_a_broker_tells_of_others_only(told: Callable[[], list[tuple[str, str]]]) -> None:
    departed = Departed(2)
    departed.note(BOTH, BOTH_AGAIN, 10.0)
    departed.tell(20.0)
    assert told() == []


def test_a_release_that_cannot_announce_it_is_no_warning(told: Callable[[], list[tuple[str, str]]]) -> None:
    departed = Departed(1)
    early = Broker(2, "host", 9002, 0, protocols=FIRST_PROTOCOLS)
    departed.note(Assignment(1, [ONE, early]), ALONE, 10.0)
    departed.tell(11.0)
    assert told() == [("INFO", LOST)]
