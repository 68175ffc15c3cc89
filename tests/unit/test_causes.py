"""One cause, one line and a count."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from korvet.causes import Causes
from tests.support.polling import until_async

if TYPE_CHECKING:
    import pytest

log = logging.getLogger("of the test")
PERIOD_S = 0.2


def test_one_cause_is_one_line_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        causes = Causes(log, PERIOD_S)
        for number in range(4_516):
            causes.warn(f"NOREPLICAS in slot {number}", "request %d: %s", number, "NOREPLICAS")
        causes.warn("LOADING", "request: %s", "LOADING")
        assert caplog.messages == ["request 0: NOREPLICAS", "request: LOADING"]

        async def counted() -> bool:
            return len(caplog.messages) == 3

        await until_async(counted, 10, "the count is logged")
        assert caplog.messages[-1] == "request 4515: NOREPLICAS (4515 times more in 0 s)"

        async def forgotten() -> bool:
            causes.warn("NOREPLICAS in slot 7", "again")
            return caplog.messages[-1] == "again"

        # A cause that ended and returns is logged again.
        await asyncio.sleep(3 * PERIOD_S)
        assert await forgotten()

    asyncio.run(work())


def test_memory_is_bounded_whatever_the_causes(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        causes = Causes(log)
        for number in range(20_000):
            causes.warn("x" * (number % 10_000 + 1), "message")

    asyncio.run(work())
    assert len(caplog.messages) == 1_001
