"""What a broker does beside its clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from korvet.broker import _at_work

if TYPE_CHECKING:
    import pytest


async def _fail() -> None:
    raise RuntimeError("a defect")


def test_work_that_a_defect_has_ended_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        await asyncio.wait([_at_work(_fail(), "retention")])

    asyncio.run(check())
    assert "retention has ended" in caplog.text
    assert "a defect" in caplog.text


def test_work_that_is_cancelled_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        task = _at_work(asyncio.Event().wait(), "retention")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(check())
    assert "ended" not in caplog.text
