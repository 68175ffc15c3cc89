"""When the broker's scheduling changes."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest

from korvet.server import scheduling
from korvet.server.backpressure import Backpressure
from korvet.server.scheduling import Bulk, keep_scheduling

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux's scheduling policies")


def test_much_begins_with_the_least_and_ends_below_half_of_it() -> None:
    bulk = Bulk(1000, 10.0)
    produced = 0
    for now_s, more, is_on in [
        (10.5, 499, False),
        (11.0, 500, True),
        (12.0, 500, True),
        (12.5, 250, True),
        (13.5, 499, False),
        (14.5, 999, False),
        (14.6, 100, True),
        (15.6, 0, False),
    ]:
        before = bulk.is_on
        produced += more
        assert bulk.look(produced, now_s) is (is_on is not before), now_s
        assert bulk.is_on is is_on, now_s


def run_producing(monkeypatch: pytest.MonkeyPatch, least_per_s: int, *amounts: int) -> None:
    """Scheduling while so many bytes are produced in each period, and its end."""
    monkeypatch.setattr(scheduling, "_PERIOD_S", 0.0)

    async def run() -> None:
        pressure = Backpressure(1 << 30)
        task = asyncio.create_task(keep_scheduling(pressure, least_per_s))
        for amount in amounts:
            await asyncio.sleep(0)
            pressure.take(amount)
            for _ in range(5):
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


@linux
def test_the_usual_policy_is_back_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", lambda _, policy, __: told.append(policy))
    run_producing(monkeypatch, 1, 1 << 20)
    assert told[0] == os.SCHED_BATCH
    assert told[-1] == os.SCHED_OTHER


@linux
def test_zero_is_never_and_the_choice_of_others_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda *told_now: told.append(told_now))
    run_producing(monkeypatch, 0, 1 << 20)
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_IDLE)
    run_producing(monkeypatch, 1, 1 << 20)
    assert told == []


@linux
def test_where_the_policy_may_not_be_changed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("not here")

    caplog.set_level("INFO")
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    run_producing(monkeypatch, 1, 1 << 20, 1 << 20)
    assert [record.message for record in caplog.records if "schedules" in record.message] == [
        "Linux schedules the broker alike whatever is produced: not here"
    ]
