"""Background work: restarted after an exception, logged and counted; no exception is swallowed."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from korvet import supervisor
from korvet.supervisor import failures, keep, once

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROOT = Path(__file__).resolve().parents[2]
# They await what they start.
AWAITING = {"korvet/cli/serve.py", "korvet/cli/processes.py"}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.0)


def failing(times: int, then: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
    left = times

    async def work() -> None:
        nonlocal left
        if left:
            left -= 1
            raise RuntimeError("a defect")
        await then()

    return work


async def test_work_that_failed_runs_again_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    goes_on = asyncio.Event()

    async def signal() -> None:
        goes_on.set()

    before = failures["retention of tests"]
    await asyncio.wait_for(keep("retention of tests", failing(3, signal)), 10)
    assert goes_on.is_set()
    assert failures["retention of tests"] == before + 3
    assert caplog.text.count("retention of tests failed") == 3
    assert caplog.text.count("Traceback") == 1, "the traceback of one cause is logged once"


async def test_work_that_cannot_go_on_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    await keep("membership", failing(99, asyncio.Event().wait), most_failures=4, give_up=lost.set_result)
    assert str(lost.result()) == "a defect"
    assert "membership failed 4 times in a row" in caplog.text


async def test_work_that_is_cancelled_ends(caplog: pytest.LogCaptureFixture) -> None:
    task = keep("retention", lambda: asyncio.Event().wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not caplog.text


async def test_work_that_awaited_something_cancelled_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    """The work itself was not cancelled: it would be gone without a line in the log."""
    answers: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
    answers[0].cancel()
    answers[1].set_result(None)
    left = iter(answers)

    async def work() -> None:
        await next(left)

    await asyncio.wait_for(keep("retention", work), 10)
    assert "retention failed" in caplog.text


async def test_the_exception_of_a_task_that_nobody_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    before = failures["claims"]
    await asyncio.wait([once("claims", failing(1, asyncio.Event().wait)())])
    assert failures["claims"] == before + 1
    assert "claims failed" in caplog.text
    assert "a defect" in caplog.text


def test_every_task_is_supervised() -> None:
    """create_task outside the supervisor would swallow the exception of a task that nobody awaits."""
    found = []
    for path in sorted((ROOT / "korvet").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name in AWAITING or name == "korvet/supervisor.py":
            continue
        found += [
            f"{name}:{node.lineno}"
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Attribute) and node.attr in {"create_task", "ensure_future"}
        ]
    assert not found
