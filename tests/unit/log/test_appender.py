"""The table of states and events in appender.py, without Redis: every event in every state."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from korvet.log import appender
from korvet.log.appender import Appender
from korvet.log.values import Appended, Marked, ProducerSequence
from korvet.records.control import ControlMarker
from korvet.records.kernel import encode_append_records
from korvet.redis.errors import (
    FencedEpoch,
    LinkLost,
    OutOfMemory,
    OutOfOrderSequence,
    RedisFault,
    StorageError,
    TopicGone,
    WritesRefused,
)
from tests.storage.batches import received

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_MS = 1_000_000


class Redis:
    """What the appender talks to: calls wait until the test answers them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.end = 100
        self.sessions = 0
        self.effects: list[int] = []

    def send(self, payload: Any, on_reply: Callable[[Any], None]) -> None:
        text = payload if isinstance(payload, bytes) else b"".join(payload)
        name = next(
            each for each in ("korvet_append", "korvet_mark", "korvet_begin") if each.encode() in text
        )
        self.calls.append((name, on_reply))

    async def call_packed(self, payload: Any) -> Any:
        future = asyncio.get_running_loop().create_future()

        def answered(reply: Any) -> None:
            if isinstance(reply, StorageError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.send(payload, answered)
        return await future

    def names(self) -> list[str]:
        return [name.removeprefix("korvet_") for name, _ in self.calls]

    def answer(self, *verdicts: int | bytes) -> None:
        """Answer the oldest call of korvet_append; each batch has one record."""
        name, on_reply = self.calls.pop(0)
        assert name == "korvet_append"
        numbers = [self.end, 0, NOW_MS, 0, 0, self.end]
        parts = [b":%d\r\n" % number for number in numbers]
        parts += [
            b":%d\r\n" % each if isinstance(each, int) else b"$%d\r\n%b\r\n" % (len(each), each)
            for each in verdicts
        ]
        self.end += sum(isinstance(each, int) for each in verdicts)
        on_reply(memoryview(b"*%d\r\n%b" % (len(parts), b"".join(parts))))

    def accept(self, batches: int = 1) -> None:
        self.answer(*range(self.end, self.end + batches))

    def fail(self, fault: StorageError) -> None:
        self.calls.pop(0)[1](fault)

    def begin(self, *effects: int) -> None:
        """Answer korvet_begin."""
        name, on_reply = self.calls.pop(0)
        assert name == "korvet_begin", name
        self.sessions += 1
        on_reply([self.sessions, self.end, 0, NOW_MS, *effects])


class Log:
    """A log's state as far as the appender uses it."""

    keys = (b"s", b"i", b"m", b"l")
    aborted_key, name, partition, bias = b"a", "t-0", 0, 0
    with_timestamps, keeps_batches = True, False
    epoch, leader_epoch = None, 0
    lead_cap_ms, next_position = 1000, -1
    refusal: StorageError | None = None
    topic = SimpleNamespace(name="t", storage_layout="record", log_append_time=False, keeps_latest=False)

    def __init__(self, redis: Redis) -> None:
        clock = SimpleNamespace(now_ms=lambda: NOW_MS, observe=lambda _: None)
        server = SimpleNamespace(module=SimpleNamespace(used=False, refused=lambda: None), address="here")
        self.links = SimpleNamespace(write_functions=redis, clock=clock, server=server)
        self.counts = SimpleNamespace()
        self.noted: list[int] = []

    def ahead_ms(self, position: int) -> int:
        return 0 if position < 0 else (position >> 10) - NOW_MS - self.lead_cap_ms

    def note_appended(self, outcomes: Any, forms: Any, batches: Any, *, index_stale: bool) -> None:
        self.noted += [outcome.base_offset for outcome in outcomes]

    def note_marked(self, *_: Any, **__: Any) -> None:
        pass

    def forget(self) -> None:
        pass

    def lost_track(self) -> None:
        pass


class Bench:
    """An appender, and what became of its appends, by their values."""

    is_full = False

    def __init__(self) -> None:
        self.redis = Redis()
        self.log = Log(self.redis)
        counts = SimpleNamespace(
            sent=lambda *_, **__: None, appended=lambda *_, **__: None, resolved=0, markers=0
        )
        resources = SimpleNamespace(
            commands=SimpleNamespace(keyspace=None),
            counts=counts,
            is_full=lambda _: self.is_full,
            refused=lambda *_: None,
            stale=None,
        )
        self.resources = resources
        self.appender = Appender(self.log, resources)  # type: ignore[arg-type]
        self.outcomes: dict[str, Any] = {}

    def append(self, name: str, producer: ProducerSequence | None = None) -> None:
        self.appender.append(
            received([(None, name.encode(), 5)]),
            producer,
            lambda _: None,
            lambda outcome: self.outcomes.__setitem__(name, outcome),
            epoch=None,
            followed=False,
            is_wanted=lambda: True,
        )

    def own(self, name: str) -> None:
        self.appender.append_own(
            encode_append_records([(None, name.encode(), 5)]),
            None,
            lambda outcome: self.outcomes.__setitem__(name, outcome),
            epoch=None,
        )

    def mark(self, name: str) -> None:
        marker = ControlMarker(7, 0, committed=True, coordinator_epoch=0)
        self.appender.mark(marker, None, lambda outcome: self.outcomes.__setitem__(name, outcome))

    def bases(self) -> dict[str, int]:
        return {name: each.base_offset for name, each in self.outcomes.items() if isinstance(each, Appended)}


async def turn() -> None:
    """Let the event loop do all that is due."""
    for _ in range(10):
        await asyncio.sleep(0)


async def opened() -> Bench:
    """An appender with a session, and nothing in flight."""
    bench = Bench()
    bench.append("first")
    await turn()
    bench.redis.begin()
    await turn()
    bench.redis.accept()
    assert bench.bases() == {"first": 100}
    return bench


async def waiting_for_the_clock() -> Bench:
    """Two appends wait: the first one was too early."""
    bench = await opened()
    bench.append("a")
    bench.append("b")
    bench.redis.fail(RedisFault("THROTTLED 900", "THROTTLED"))
    await turn()
    assert bench.redis.names() == []
    return bench


async def undone() -> Bench:
    """The call of `a` was refused for its session, that of `b` is in flight, and `c` waits."""
    bench = await opened()
    bench.append("a")
    bench.append("b")
    await turn()
    bench.append("c")
    bench.redis.fail(RedisFault("SESSION another", "SESSION"))
    await turn()
    assert bench.redis.names() == ["append"]
    return bench


async def all_are_sent_again(bench: Bench) -> None:
    """A session begins, and `a`, `b` and `c` go in one call, in their order."""
    await turn()
    bench.redis.begin()
    await turn()
    bench.redis.accept(3)
    assert bench.bases() == {"first": 100, "a": 101, "b": 102, "c": 103}


# Appends.


async def test_the_first_append_begins_a_session() -> None:
    bench = Bench()
    bench.append("a")
    bench.append("b")
    await turn()
    assert bench.redis.names() == ["begin"]
    bench.redis.begin()
    await turn()
    assert bench.redis.names() == ["append"]
    bench.redis.accept(2)
    assert bench.bases() == {"a": 100, "b": 101}


async def test_an_append_is_sent_at_once_if_nothing_is_in_flight() -> None:
    bench = await opened()
    bench.append("a")
    assert bench.redis.names() == ["append"]


async def test_appends_are_gathered_while_two_calls_are_in_flight() -> None:
    bench = await opened()
    for name in "ab":
        bench.append(name)
        await turn()
    for name in "cde":
        bench.append(name)
        await turn()
    assert bench.redis.names() == ["append", "append"]
    bench.redis.accept()
    assert bench.redis.names() == ["append", "append"]
    bench.redis.accept()
    bench.redis.accept(3)
    assert bench.bases() == {"first": 100, "a": 101, "b": 102, "c": 103, "d": 104, "e": 105}


@pytest.mark.parametrize("state", [waiting_for_the_clock, undone])
async def test_an_append_waits_in_the_other_states(state: Any) -> None:
    bench = await state()
    before = bench.redis.names()
    bench.append("later")
    bench.own("own")
    bench.mark("mark")
    await turn()
    assert bench.redis.names() == before


# Replies.


async def test_decisions_in_the_open_state_answer_each_batch() -> None:
    bench = await opened()
    bench.append("a")
    for name in "bcd":
        bench.append(name)
    await turn()
    bench.redis.accept()
    bench.redis.answer(102, b"OUTOFORDERSEQUENCE 5 follows 3", -1 - 17)
    assert isinstance(bench.outcomes["c"], OutOfOrderSequence)
    assert bench.bases() == {"first": 100, "a": 101, "b": 102, "d": 17}
    assert bench.outcomes["d"].duplicate


async def test_decisions_with_an_undone_call_answer_and_then_a_session_begins() -> None:
    bench = await undone()
    bench.redis.accept()
    assert bench.bases() == {"first": 100, "b": 101}
    await turn()
    assert bench.redis.names() == ["begin"]
    bench.redis.begin()
    await turn()
    bench.redis.accept(2)
    assert bench.bases() == {"first": 100, "b": 101, "a": 102, "c": 103}


async def test_throttled_in_the_open_state_waits_for_the_clock() -> None:
    bench = await waiting_for_the_clock()
    assert bench.appender.throttle_ms > 0 or bench.redis.names()
    await until(lambda: bench.redis.names() == ["append"])
    bench.redis.accept(2)
    assert bench.bases() == {"first": 100, "a": 101, "b": 102}


async def test_throttled_with_an_undone_call_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_LONGEST_WAIT_MS", 10)
    bench = await undone()
    bench.redis.fail(RedisFault("THROTTLED 900", "THROTTLED"))
    await turn()
    bench.redis.begin()
    await until(lambda: bench.redis.names() == ["append"])
    bench.redis.accept(3)
    assert bench.bases() == {"first": 100, "a": 101, "b": 102, "c": 103}


async def test_a_lost_reply_is_answered_by_the_next_session() -> None:
    """The first call took effect, the second one did not."""
    bench = await opened()
    bench.append("a")
    for name in "bc":
        bench.append(name)
    await turn()
    for _ in range(2):
        bench.redis.fail(LinkLost("cut"))
    await turn()
    assert bench.redis.names() == ["begin"]
    bench.redis.end += 1
    bench.redis.begin(2, 101, 1)
    await turn()
    assert bench.bases() == {"first": 100, "a": 101}
    bench.redis.accept(2)
    assert bench.bases() == {"first": 100, "a": 101, "b": 102, "c": 103}


async def test_of_a_lost_group_only_the_batches_without_effect_are_sent_again() -> None:
    bench = await opened()
    bench.append("a")
    for name in "bcd":
        bench.append(name)
    await turn()
    bench.redis.accept()
    bench.redis.fail(LinkLost("cut"))
    await turn()
    bench.redis.end += 2
    bench.redis.begin(3, 102, 0b101)
    await turn()
    assert bench.bases() == {"first": 100, "a": 101, "b": 102, "d": 103}
    bench.redis.accept()
    assert bench.bases()["c"] == 104


async def test_a_lost_reply_with_an_undone_call() -> None:
    bench = await undone()
    bench.redis.fail(LinkLost("cut"))
    await all_are_sent_again(bench)


async def test_full_memory_refuses_batches_and_lets_the_broker_s_records_go_within() -> None:
    bench = await opened()
    bench.append("a")
    bench.own("own")
    bench.mark("mark")
    await turn()
    for _ in range(3):
        bench.redis.fail(RedisFault("OOM command not allowed", "OOM"))
    await turn()
    assert isinstance(bench.outcomes["a"], OutOfMemory)
    assert bench.redis.names() == ["append", "mark"]
    bench.redis.accept()
    assert bench.bases()["own"] == 101
    bench.redis.fail(RedisFault("OOM command not allowed", "OOM"))
    assert isinstance(bench.outcomes["mark"], OutOfMemory)


@pytest.mark.parametrize("state", [opened, undone])
async def test_another_error_answers_its_appends_alone(state: Any) -> None:
    bench = await state()
    if state is opened:
        bench.append("b")
    bench.redis.fail(RedisFault("FENCED epoch 1 is older than 2", "FENCED"))
    assert isinstance(bench.outcomes["b"], FencedEpoch)
    assert set(bench.outcomes) == {"first", "b"}


async def test_records_within_the_allowance_overtake_none_that_full_memory_refuses() -> None:
    bench = await opened()
    bench.own("a")
    await turn()
    bench.is_full = True
    bench.own("b")
    await turn()
    assert bench.redis.names() == ["append"]
    bench.redis.fail(RedisFault("OOM command not allowed", "OOM"))
    await turn()
    bench.redis.accept()
    await turn()
    bench.redis.accept()
    assert bench.bases() == {"first": 100, "a": 101, "b": 102}


@pytest.mark.parametrize("code", ["OUTOFORDERSEQUENCE", "SEQUENCEGAP", "UNKNOWNPRODUCER"])
async def test_a_batch_that_lacks_an_undone_one_is_sent_again(code: str) -> None:
    bench = await undone()
    bench.redis.answer(b"%b earlier batches may be lost" % code.encode())
    await all_are_sent_again(bench)


async def test_one_call_at_a_time_while_the_log_s_end_is_unknown() -> None:
    """The first one may be too early, and the next one not."""
    bench = Bench()
    bench.append("a")
    await turn()
    bench.redis.begin()
    await turn()
    bench.append("b")
    await turn()
    assert bench.redis.names() == ["append"]
    bench.redis.accept()
    assert bench.redis.names() == ["append"]


async def test_many_small_appends_that_wait_are_counted_not_walked() -> None:
    """48 batches fill a call."""
    bench = await opened()
    for name in "ab":
        bench.append(name)
        await turn()
    for number in range(60):
        bench.append(str(number))
    await turn()
    assert bench.redis.names() == ["append"] * 3


async def test_nothing_is_sent_again_while_redis_may_have_lost_writes() -> None:
    bench = await undone()
    stale = bench.resources.stale = WritesRefused("Redis may have lost writes")
    bench.redis.fail(LinkLost("cut"))
    await turn()
    assert bench.redis.names() == []
    assert bench.outcomes["a"] is stale
    assert isinstance(bench.outcomes["b"], LinkLost)
    assert bench.outcomes["c"] is stale


async def test_a_malformed_reply_is_an_unknown_outcome() -> None:
    bench = await opened()
    bench.append("a")
    _, on_reply = bench.redis.calls.pop(0)
    on_reply(memoryview(b"+OK\r\n"))
    assert isinstance(bench.outcomes["a"], LinkLost)


async def test_a_marker_keeps_its_place() -> None:
    bench = await opened()
    bench.append("a")
    bench.mark("mark")
    bench.append("b")
    await turn()
    assert bench.redis.names() == ["append", "mark"]
    bench.redis.accept()
    _, on_reply = bench.redis.calls.pop(0)
    on_reply(memoryview(b"*7\r\n" + b"".join(b":%d\r\n" % n for n in (102, 102, 0, NOW_MS, 103, 50, 0))))
    assert isinstance(bench.outcomes["mark"], Marked)
    assert bench.redis.names() == ["append"]


async def test_the_second_batch_of_a_new_producer_waits_for_the_first() -> None:
    bench = await opened()
    bench.append("a", ProducerSequence(7, 0, 0))
    bench.append("b", ProducerSequence(7, 0, 1))
    await turn()
    assert bench.redis.names() == ["append"]
    bench.redis.accept()
    await turn()
    bench.append("c", ProducerSequence(7, 0, 2))
    await turn()
    assert bench.redis.names() == ["append", "append"]


# Sessions.


@pytest.mark.parametrize("state", [waiting_for_the_clock, undone])
async def test_close_refuses_all_that_waits(state: Any) -> None:
    bench = await state()
    gone = TopicGone("t")
    bench.log.refusal = gone
    bench.appender.close(gone)
    waiting = {"a", "c"} if state is undone else {"a", "b"}
    assert {name for name, outcome in bench.outcomes.items() if outcome is gone} == waiting
    if state is undone:
        bench.redis.fail(LinkLost("cut"))
        await turn()
        assert isinstance(bench.outcomes["b"], LinkLost)
    assert bench.redis.names() == []


async def test_without_a_session_all_is_refused() -> None:
    """What was lost is unknown, what was not sent is refused with the error of the question."""
    bench = await undone()
    bench.redis.fail(RedisFault("SESSION another", "SESSION"))
    await turn()
    bench.redis.fail(FencedEpoch("another broker leads it"))
    await turn()
    assert all(isinstance(bench.outcomes[name], FencedEpoch) for name in "abc")


async def test_what_was_lost_is_unknown_whatever_the_question_ends_with() -> None:
    bench = await opened()
    bench.append("a")
    bench.redis.fail(LinkLost("cut"))
    await turn()
    bench.redis.fail(FencedEpoch("another broker leads it"))
    await turn()
    assert isinstance(bench.outcomes["a"], LinkLost)


async def test_the_session_is_asked_for_until_redis_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_POLL_S", 0.0)
    bench = await opened()
    bench.append("a")
    bench.redis.fail(LinkLost("cut"))
    await turn()
    for _ in range(3):
        assert bench.redis.names() == ["begin"]
        bench.redis.fail(LinkLost("down"))
        await until(lambda: bool(bench.redis.calls))
    bench.redis.begin()
    await turn()
    bench.redis.accept()
    assert bench.bases() == {"first": 100, "a": 101}


async def test_in_the_end_the_outcome_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "LONGEST_ABSENCE_S", 0.0)
    bench = await opened()
    bench.append("a")
    await turn()
    bench.append("b")
    await turn()
    bench.append("c")
    for _ in range(2):
        bench.redis.fail(LinkLost("cut"))
    await turn()
    bench.redis.fail(LinkLost("down"))
    await turn()
    assert "unknown" in str(bench.outcomes["a"])
    assert "unknown" in str(bench.outcomes["b"])
    assert "unknown" not in str(bench.outcomes["c"])


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0)
