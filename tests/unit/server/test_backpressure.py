"""Bytes in flight and who has to wait for them."""

from korvet.server.backpressure import Backpressure


def test_the_limit_lets_one_request_through_and_holds_the_next() -> None:
    resumed: list[str] = []
    pressure = Backpressure(100)
    assert not pressure.blocked(lambda: resumed.append("never"))
    pressure.take(1000)
    assert pressure.blocked(lambda: resumed.append("a"))
    assert pressure.blocked(lambda: resumed.append("b"))
    pressure.give_back(949)
    assert resumed == []
    pressure.give_back(1)
    assert resumed == ["a", "b"]
    pressure.give_back(50)
    assert resumed == ["a", "b"]


def test_one_that_is_resumed_may_be_held_again() -> None:
    pressure = Backpressure(100)
    order: list[str] = []

    def hungry() -> None:
        order.append("hungry")
        pressure.take(100)

    def patient() -> None:
        order.append("patient")
        if pressure.blocked(patient):
            order.append("held again")

    pressure.take(100)
    assert pressure.blocked(hungry)
    assert pressure.blocked(patient)
    pressure.give_back(100)
    assert order == ["hungry", "patient", "held again"]
    pressure.give_back(100)
    assert order == ["hungry", "patient", "held again", "patient"]


def test_bytes_are_given_back_once_and_requests_when_they_are_answered() -> None:
    pressure = Backpressure(100)
    waiting, answered = pressure.take(60), pressure.take(60)
    assert pressure.full
    waiting.give_back()
    waiting.give_back()
    answered.answered()
    assert (pressure.in_flight_bytes, pressure.unanswered) == (0, 1)
    waiting.answered()
    assert (pressure.in_flight_bytes, pressure.unanswered) == (0, 0)
