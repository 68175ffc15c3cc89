"""The callbacks of those who wait for a log to change."""

from __future__ import annotations

import asyncio

from korvet.log.listeners import Listeners


async def test_a_listener_of_a_closed_log_is_called_once_and_soon() -> None:
    """Otherwise it would wait for changes that will not come."""
    listeners = Listeners("log")
    calls: list[str] = []
    listeners.close()
    listeners.add(lambda: calls.append("late"))
    assert calls == []
    await asyncio.sleep(0)
    listeners.wake()
    assert calls == ["late"]
    assert not listeners


def test_a_listener_may_close_the_log() -> None:
    """A connection looks whether the lease has expired before it takes the request after an answered one."""
    listeners = Listeners("log")
    calls: list[str] = []

    def close() -> None:
        calls.append("first")
        listeners.close()

    listeners.add(close)
    listeners.add(lambda: calls.append("second"))
    listeners.wake()
    assert calls == ["first", "first", "second"]


def test_a_listener_that_fails_costs_no_other_its_last_call() -> None:
    listeners = Listeners("log")
    calls: list[str] = []

    def fail() -> None:
        raise ValueError

    listeners.add(fail)
    listeners.add(lambda: calls.append("second"))
    listeners.close()
    assert calls == ["second"]
