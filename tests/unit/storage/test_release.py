"""The released end of a log, with a barrier whose answers the test gives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from korvet.storage.errors import (
    FencedEpoch,
    HistoryChanged,
    LinkLost,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    StorageError,
)
from korvet.storage.link.barrier import Level
from korvet.storage.log.release import UNKNOWN_END, Release
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LEVEL = Level(1)
LONG_MS = 60_000


class Log:
    """A log, its server, the server's barrier and both of its links."""

    name = "log"
    meta = b"meta"
    barrier_key = b"key"
    bounds_call = b"bounds"
    history = "h1"
    refusal: StorageError | None = None
    loaded = True

    def __init__(self, end: int, level: Level = LEVEL, released: int = 0) -> None:
        self.links = self.server = self.barriers = self.write = self.read = self.read_functions = self
        self.listeners = self
        self.log_end = end
        self.asked: list[tuple[Level, str, Callable[[StorageError | None], None]]] = []
        self.sent: list[Callable[[Any], None]] = []
        self.forgotten = self.announced = 0
        self.release = Release(self, level, released)  # type: ignore[arg-type]
        self.outcomes: list[StorageError | None] = []

    def wait(
        self, level: Level, key: bytes, history: str, done: Callable[[StorageError | None], None]
    ) -> None:
        self.asked.append((level, history, done))

    def send(self, command: bytes, on_reply: Callable[[Any], None]) -> None:
        self.sent.append(on_reply)

    def forget(self) -> None:
        self.forgotten += 1
        self.loaded = False
        self.release.moved()

    def wake(self) -> None:
        pass

    def announce(self) -> None:
        self.announced += 1

    def grow(self, end: int) -> None:
        self.log_end = end
        self.release.grown()

    def answer(self, error: StorageError | None = None) -> None:
        """Answer the barrier's oldest question."""
        self.asked.pop(0)[2](error)

    def await_end(self, end: int, timeout_ms: int = LONG_MS) -> None:
        self.release.wait(end, timeout_ms, self.outcomes.append)


async def _any(found: list[Any]) -> bool:
    return bool(found)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_one_question_covers_all_growth_in_the_meantime() -> None:
    async def test() -> None:
        log = Log(0)
        log.grow(5)
        log.grow(7)
        log.grow(9)
        log.await_end(5)
        log.await_end(9)
        assert len(log.asked) == 1
        log.answer()
        assert (log.release.end, log.outcomes, log.announced) == (5, [None], 1)
        log.answer()
        assert (log.release.end, log.outcomes, log.announced) == (9, [None, None], 2)
        assert not log.asked
        log.await_end(9)
        assert log.outcomes == [None] * 3

    run(test)


def test_a_question_is_repeated_after_an_error() -> None:
    async def test() -> None:
        log = Log(0)
        log.grow(5)
        log.await_end(5)
        log.answer(LinkLost("broken"))
        assert not log.outcomes
        await until_async(lambda: _any(log.asked), 5, "the question is repeated")
        log.answer()
        assert log.outcomes == [None]

    run(test)


def test_missing_replicas_end_the_waits_at_once() -> None:
    async def test() -> None:
        log = Log(0)
        log.grow(5)
        log.await_end(5)
        log.answer(NotEnoughReplicas("none"))
        assert [type(outcome) for outcome in log.outcomes] == [NotEnoughReplicasAfterAppend]
        assert log.release.end == 0

    run(test)


def test_another_server_releases_nothing_of_the_last_one() -> None:
    async def test() -> None:
        log = Log(3, released=3)
        log.grow(5)
        log.await_end(5)
        log.history = "h2"
        log.answer(HistoryChanged("another server"))
        assert [type(outcome) for outcome in log.outcomes] == [HistoryChanged]
        assert log.forgotten == 1
        log.release.grown()
        assert not log.asked, "the end on the new server is unknown"
        log.log_end, log.loaded = 4, True
        log.release.loaded(4)
        assert log.release.end == 3
        log.answer()
        assert log.release.end == 4

    run(test)


def test_an_answer_that_came_too_late_counts_for_nothing() -> None:
    async def test() -> None:
        log = Log(0)
        log.grow(5)
        (late,) = log.asked
        log.release.moved()
        late[2](None)
        assert log.release.end == 0

    run(test)


@pytest.mark.parametrize("noted", [b"$1\r\n4\r\n", b"$2\r\n99\r\n", b"$-1\r\n"])
def test_the_noted_watermark_counts_until_the_barrier_answers(noted: bytes) -> None:
    async def test() -> None:
        log = Log(6, released=UNKNOWN_END)
        log.await_end(0)
        log.release.loaded(6)
        assert not log.outcomes
        log.sent.pop()(memoryview(noted))
        expected = {b"$1\r\n4\r\n": 4, b"$2\r\n99\r\n": 6}.get(noted, UNKNOWN_END)
        assert log.release.end == expected
        assert bool(log.outcomes) == (expected != UNKNOWN_END)
        log.answer()
        assert log.release.end == 6

    run(test)


def test_waits_end_in_time_whatever_their_order() -> None:
    async def test() -> None:
        log = Log(0)
        log.grow(5)
        log.await_end(5)
        log.await_end(5, 10)
        await until_async(lambda: _any(log.outcomes), 5, "the shorter wait ends")
        assert [type(outcome) for outcome in log.outcomes] == [NotEnoughReplicasAfterAppend]
        log.answer()
        assert log.outcomes[1:] == [None]

    run(test)


def test_who_waits_is_handed_over_to_another_level() -> None:
    async def test() -> None:
        log = Log(0)
        log.grow(5)
        log.await_end(5)
        former, log.release = log.release, Release(log, Level(2), 0)  # type: ignore[arg-type]
        former.hand_over(log.release)
        log.answer()
        assert not log.outcomes, "an answer to the former level"
        assert [level for level, _, _ in log.asked] == [Level(2)]
        log.answer()
        assert log.outcomes == [None]
        log.grow(6)
        log.await_end(6)
        log.release.hand_over(None)
        assert log.outcomes == [None, None]

    run(test)


def test_a_closed_log_lets_nobody_wait() -> None:
    async def test() -> None:
        log = Log(0)
        log.grow(5)
        log.await_end(5)
        log.refusal = FencedEpoch("another leader")
        log.release.close(log.refusal)
        assert [type(outcome) for outcome in log.outcomes] == [NotEnoughReplicasAfterAppend]
        assert "another leader" in str(log.outcomes[0])

    run(test)
