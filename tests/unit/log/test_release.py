"""The released end of a log, with a barrier whose answers the test gives."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from korvet.log.ends import UNKNOWN_END, KnownEnds
from korvet.log.release import Release
from korvet.log.transactions import TransactionIndex
from korvet.log.values import Ends
from korvet.redis.barrier import Level
from korvet.redis.errors import (
    FencedEpoch,
    HistoryChanged,
    LinkLost,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    RedisFault,
    StorageError,
)
from korvet.redis.replicas import Held
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import Callable

LEVEL = Level(1)
LONG_MS = 60_000


class Barriers:
    """The barriers of a log's server, which keep what they are asked."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.shortage: NotEnoughReplicas | None = None

    def wait(
        self, level: Level, key: bytes, history: str, done: Callable[[StorageError | None], None]
    ) -> None:
        self._log.asked.append((level, history, done))

    def refusal(self, level: Level) -> NotEnoughReplicas | None:
        return self.shortage


class Log:
    """A log, its server and both of the server's links."""

    is_moving = False

    def __init__(
        self, end: int, level: Level = LEVEL, released: int = 0, catalogue: Held | None = None
    ) -> None:
        self.links = self.server = self.write = self.read = self
        self.barriers = Barriers(self)
        self.history = SimpleNamespace(id="h1")
        self.held = Held(self, b"key", b"key")  # type: ignore[arg-type]
        self.catalogue = catalogue or self.held
        self.asked: list[tuple[Level, str, Callable[[StorageError | None], None]]] = []
        self.sent: list[Callable[[Any], None]] = []
        self.forgotten = self.announced = 0
        self.known = KnownEnds(TransactionIndex())
        if released != UNKNOWN_END:
            self.known.take(0, end, 0)
        self.known.await_copies(waits=True)
        self.known.released = released
        self.release = self.released_at(level)
        self.outcomes: list[StorageError | None] = []

    def released_at(self, level: Level) -> Release:
        return Release(
            self.known,
            level,
            self.held,
            self.catalogue,
            forget=self.forget,
            read_bounds=lambda _, failed: self.sent.append(failed),
            read_noted=self.sent.append,
            announce=self.announce,
        )

    def send(self, command: bytes, on_reply: Callable[[Any], None]) -> None:
        self.sent.append(on_reply)

    def take(self, end: int, stable: int = -1) -> None:
        """Both ends were read for the first time since another server took over."""
        self.known.take(0, end, stable)
        self.release.loaded()

    def forget(self) -> None:
        self.forgotten += 1
        self.known.forget()
        self.release.moved()

    def announce(self) -> None:
        self.announced += 1

    def grow(self, end: int, stable: int = -1) -> None:
        self.known.take(0, end, stable)
        self.release.grown()

    def answer(self, error: StorageError | None = None) -> None:
        """Answer the barrier's oldest question."""
        self.asked.pop(0)[2](error)

    def await_end(self, end: int, timeout_ms: int = LONG_MS) -> None:
        self.release.wait(end, timeout_ms, self.outcomes.append)


async def test_a_log_that_is_closed_while_waiters_are_answered_answers_each_once() -> None:
    """A connection looks whether the lease has expired before it takes the request after an answered one."""
    log = Log(0)
    log.grow(10)

    def answered(error: StorageError | None) -> None:
        log.outcomes.append(error)
        log.release.close(FencedEpoch("the lease has expired"))

    log.release.wait(5, LONG_MS, answered)
    log.await_end(10)
    log.answer()
    first, second = log.outcomes
    assert first is None
    assert isinstance(second, NotEnoughReplicasAfterAppend)


async def test_who_waits_for_less_is_answered_earlier() -> None:
    """Readers of a new leader wait for any answer of the replicas, repeated batches for earlier records."""
    log = Log(0)
    log.grow(5)
    log.grow(10)
    log.await_end(10)
    log.await_end(3)
    log.answer()
    assert log.known.released == 5
    assert log.outcomes == [None]


async def test_the_last_stable_offset_counts_once_its_markers_are_released() -> None:
    log = Log(0)

    def seen() -> tuple[int, int]:
        return log.known.ends.high_watermark, log.known.ends.last_stable_offset

    log.grow(5, 2)
    log.grow(9, 9)
    log.answer()
    assert seen() == (5, 2), "the marker came after the question"
    log.answer()
    assert seen() == (9, 9)
    log.grow(12)
    log.grow(12, 12)
    log.answer()
    assert seen() == (12, 12), "all that it is of is released by now"


async def test_a_marker_after_the_question_is_not_released_by_its_answer() -> None:
    log = Log(0)
    log.grow(12, 9)
    log.grow(15, 15)
    log.answer()
    assert log.known.ends == Ends(0, 0, 9, 12, 15)
    # A late reply of that time.
    log.grow(12, 12)
    assert log.known.ends == Ends(0, 0, 9, 12, 15)


async def test_a_server_that_takes_over_with_an_open_transaction_lowers_the_last_stable_offset() -> None:
    log = Log(9, released=9)
    log.known.forget()
    log.take(7, 4)
    assert log.known.ends == Ends(0, 0, 4, 7, 7)


async def test_a_server_that_takes_over_keeps_the_released_last_stable_offset() -> None:
    """Replicas had all before it; of what follows, the new server alone proves nothing."""
    log = Log(0)
    log.grow(5, 5)
    log.answer()
    log.known.forget()
    log.take(7, 7)
    assert log.known.ends == Ends(0, 0, 5, 5, 7)
    log.answer()
    assert log.known.ends == Ends(0, 0, 7, 7, 7)


async def test_one_question_covers_all_growth_in_the_meantime() -> None:
    log = Log(0)
    log.grow(5)
    log.grow(7)
    log.grow(9)
    log.await_end(5)
    log.await_end(9)
    assert len(log.asked) == 1
    log.answer()
    assert (log.known.released, log.outcomes, log.announced) == (5, [None], 1)
    log.answer()
    assert (log.known.released, log.outcomes, log.announced) == (9, [None, None], 2)
    assert not log.asked
    log.await_end(9)
    assert log.outcomes == [None] * 3


async def test_a_question_is_repeated_after_an_error() -> None:
    log = Log(0)
    log.grow(5)
    log.await_end(5)
    log.answer(LinkLost("broken"))
    assert not log.outcomes
    await until_async(lambda: log.asked, 5, "the question is repeated")
    log.answer()
    assert log.outcomes == [None]


async def test_missing_replicas_end_the_waits_at_once() -> None:
    log = Log(0)
    log.grow(5)
    log.await_end(5)
    log.answer(NotEnoughReplicas("none"))
    assert [type(outcome) for outcome in log.outcomes] == [NotEnoughReplicasAfterAppend]
    assert log.known.released == 0


async def test_another_server_releases_nothing_of_the_last_one() -> None:
    log = Log(3, released=3)
    log.grow(5)
    log.await_end(5)
    log.history.id = "h2"
    log.answer(HistoryChanged("another server"))
    assert [type(outcome) for outcome in log.outcomes] == [HistoryChanged]
    assert log.forgotten == 1
    log.release.grown()
    assert not log.asked, "the end on the new server is unknown"
    log.take(4)
    assert log.known.released == 3
    log.answer()
    assert log.known.released == 4


async def test_the_new_servers_end_is_read_until_that_succeeds() -> None:
    log = Log(3, released=3)
    log.grow(5)
    log.answer(HistoryChanged("another server"))
    log.sent.pop()(LinkLost("no connection yet"))
    await until_async(lambda: log.sent, 5, "the ends are read again")
    log.take(4)
    log.answer()
    assert log.known.released == 4
    assert not log.asked


async def test_an_answer_that_came_too_late_counts_for_nothing() -> None:
    log = Log(0)
    log.grow(5)
    (late,) = log.asked
    log.release.moved()
    late[2](None)
    assert log.known.released == 0


@pytest.mark.parametrize("noted", [b"$1\r\n4\r\n", b"$2\r\n99\r\n", b"$-1\r\n"])
async def test_the_noted_watermark_counts_until_the_barrier_answers(noted: bytes) -> None:
    log = Log(6, released=UNKNOWN_END)
    log.await_end(0)
    log.take(6)
    assert not log.outcomes
    log.sent.pop()(memoryview(noted))
    expected = {b"$1\r\n4\r\n": 4, b"$2\r\n99\r\n": 6}.get(noted, UNKNOWN_END)
    assert log.known.released == expected
    assert bool(log.outcomes) == (expected != UNKNOWN_END)
    if expected != 6:
        log.answer()
    assert log.known.released == 6
    assert not log.asked


async def test_the_catalogues_replicas_are_asked_before_the_first_release() -> None:
    catalogue = Log(0)
    log = Log(0, catalogue=catalogue.held)
    log.grow(5)
    log.await_end(5)
    assert not log.asked
    catalogue.answer(NotEnoughReplicas("none"))
    assert [type(outcome) for outcome in log.outcomes] == [NotEnoughReplicasAfterAppend]
    log.await_end(5)
    await until_async(lambda: catalogue.asked, 5, "the question is repeated")
    catalogue.answer()
    log.answer()
    assert log.outcomes[1:] == [None]
    log.grow(6)
    log.answer()
    assert log.known.released == 6
    assert not catalogue.asked


async def test_missing_replicas_of_the_catalogue_count_until_the_first_release() -> None:
    catalogue = Log(0)
    log = Log(0, catalogue=catalogue.held)
    log.known.forget()
    assert log.release.missing_replicas is None
    catalogue.barriers.shortage = missing = NotEnoughReplicas("none")
    assert log.release.missing_replicas is None, "perhaps the last leader has released records"
    log.grow(5)
    assert log.release.missing_replicas is missing
    catalogue.answer()
    log.answer()
    assert log.release.missing_replicas is None
    log.barriers.shortage = missing
    assert log.release.missing_replicas is missing


async def test_the_topic_of_released_records_is_safe() -> None:
    catalogue = Log(0)
    log = Log(6, released=UNKNOWN_END, catalogue=catalogue.held)
    log.take(6)
    log.sent.pop()(memoryview(b"$1\r\n4\r\n"))
    log.answer()
    assert log.known.released == 6
    assert not catalogue.asked


async def test_replicas_are_asked_once_the_server_has_the_moving_log() -> None:
    log = Log(0)
    log.is_moving = True
    log.grow(5)
    log.await_end(5)
    log.sent.pop()(RedisFault("ASK 7 host:1", "ASK"))
    assert not log.asked
    await until_async(lambda: log.sent, 5, "the server is asked again")
    assert not log.outcomes
    log.sent.pop()(memoryview(b":1\r\n"))
    log.answer()
    assert log.outcomes == [None]


async def test_waits_end_in_time_whatever_their_order() -> None:
    log = Log(0)
    log.grow(5)
    log.await_end(5)
    log.await_end(5, 10)
    await until_async(lambda: log.outcomes, 5, "the shorter wait ends")
    assert [type(outcome) for outcome in log.outcomes] == [NotEnoughReplicasAfterAppend]
    log.answer()
    assert log.outcomes[1:] == [None]


async def test_who_waits_is_handed_over_to_another_level() -> None:
    log = Log(0)
    log.grow(5)
    log.await_end(5)
    former, log.release = log.release, log.released_at(Level(2))
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


async def test_a_closed_log_lets_nobody_wait() -> None:
    log = Log(0)
    log.grow(5)
    log.await_end(5)
    log.release.close(FencedEpoch("another leader"))
    assert [type(outcome) for outcome in log.outcomes] == [NotEnoughReplicasAfterAppend]
    assert "another leader" in str(log.outcomes[0])
    # Redis answers an append that was in flight.
    log.await_end(5)
    await asyncio.sleep(0)
    assert [type(outcome) for outcome in log.outcomes] == [NotEnoughReplicasAfterAppend] * 2
