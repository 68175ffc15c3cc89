"""The callbacks of those who wait for a log to change."""

from __future__ import annotations

import asyncio

from korvet.storage.log.listeners import Listeners


def test_a_listener_of_a_closed_log_is_called_once_and_soon() -> None:
    """Otherwise it would wait for changes that will not come."""

    async def test() -> None:
        listeners = Listeners("log")
        calls: list[str] = []
        listeners.close()
        listeners.add(lambda: calls.append("late"))
        assert calls == []
        await asyncio.sleep(0)
        listeners.wake()
        assert calls == ["late"]
        assert not listeners

    asyncio.run(test())
