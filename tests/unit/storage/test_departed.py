"""Brokers that have just left, as Metadata lists them."""

from __future__ import annotations

from korvet.storage.brokers.assignment import Assignment, Broker
from korvet.storage.brokers.departed import LISTED_S, Departed
from korvet.storage.versions import FIRST_PROTOCOLS, PROTOCOLS

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
