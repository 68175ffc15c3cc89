"""A served partition whose records wait for replicas, without Redis."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.coordinator.served import Claim, ServedPartition, Step
from korvet.offsets.wire import EncodeError
from korvet.redis.errors import NotEnoughReplicasAfterAppend, StorageError


class Log:
    """Takes appends, and keeps what waits for replicas."""

    topic = SimpleNamespace(name="t", configs={})
    closed = False
    waits_for_replicas = True
    missing_replicas = None
    writes_refused = False

    def __init__(self) -> None:
        self.end = 0
        self.waiting: list[Any] = []

    def append_own(self, arguments: Any, producer: Any, done: Any, *, epoch: int) -> None:
        self.end += 1
        done(SimpleNamespace(base_offset=self.end - 1))

    def await_released(self, end: int, timeout_ms: int, done: Any) -> None:
        self.waiting.append(done)


class Shard:
    """Answers each request with its name, after one record."""

    def answer(self, request: str, token: int, now_ms: int) -> Any:
        return SimpleNamespace(records=[request], replies=[(token, request)])

    def __init__(self, due_ms: int | None = None) -> None:
        self._due_ms = due_ms

    def next_deadline_ms(self) -> int | None:
        return self._due_ms

    def shift(self, by_ms: int) -> None:
        assert self._due_ms is not None
        self._due_ms += by_ms


class Partition(ServedPartition[Shard, Step]):
    """The simplest coordinator."""

    def _step(self, outcome: Any) -> Step:
        return Step(outcome)

    def _replay(self, outcome: Any) -> None:
        pass

    def _encode(self, record: Any) -> tuple[bytes, bytes | None]:
        return record.encode(), b""

    def _refuse(self, request: Any, error: ErrorCode) -> Any:
        return error

    def _release(self, step: Step) -> None:
        self._finish(step)


async def test_a_refused_client_may_ask_again_at_once() -> None:
    """Its next request has been received already, and is submitted before the refusal returns."""
    log, failures = Log(), []
    claim = Claim(log, 1, 0, lambda: 0, lambda at_ms: None, failures.append, lambda: 1000, 1000)  # type: ignore[arg-type]
    partition, answers = Partition(Shard(), claim), []

    def refused(answer: Any) -> None:
        answers.append(answer)
        partition.submit(Shard.answer, "again", answers.append)

    partition.submit(Shard.answer, "first", refused)
    partition.submit(Shard.answer, "second", answers.append)
    await asyncio.sleep(0)
    log.waiting.pop(0)(NotEnoughReplicasAfterAppend("late"))
    assert answers == [ErrorCode.coordinator_not_available] * 2
    await asyncio.sleep(0)
    while log.waiting:
        log.waiting.pop(0)(None)
    assert answers[2:] == ["again"]
    assert not failures


def test_the_alarm_moves_with_the_clock() -> None:
    alarms: list[int | None] = []
    claim = Claim(Log(), 1, 0, lambda: 0, alarms.append, lambda error: None, lambda: 1000, 1000)  # type: ignore[arg-type]
    Partition(Shard(5_000), claim).shift(-3_600_000)
    assert alarms == [5_000 - 3_600_000]


def test_an_event_that_raises_an_encode_error_ends_the_term() -> None:
    """There is no outcome that could be discarded."""
    failures: list[Exception] = []
    claim = Claim(Log(), 1, 0, lambda: 0, lambda at_ms: None, failures.append, lambda: 1000, 1000)  # type: ignore[arg-type]
    shard: Any = Shard()
    error = EncodeError("too long")

    def tick(now_ms: int) -> Any:
        raise error

    shard.tick = tick
    Partition(shard, claim).tick()
    assert failures == [error]


@pytest.mark.parametrize("error", [None, NotEnoughReplicasAfterAppend("late")])
async def test_a_release_that_raises_ends_the_term(error: StorageError | None) -> None:
    """Otherwise the requests of later steps would wait for ever."""

    class Defective(Partition):
        def _step_needs_replicas(self, step: Step) -> bool:
            return False

        def _release(self, step: Step) -> None:
            raise KeyError(step)

    log, failures = Log(), []
    claim = Claim(log, 1, 0, lambda: 0, lambda at_ms: None, failures.append, lambda: 1000, 1000)  # type: ignore[arg-type]
    partition = Defective(Shard(), claim)
    partition.submit(Shard.answer, "first", lambda answer: None)
    await asyncio.sleep(0)
    log.waiting.pop(0)(error)
    assert [type(each) for each in failures] == [KeyError]


async def test_a_request_whose_step_needs_replicas_is_refused_although_it_needs_none() -> None:
    """Offsets may expire in the step that ends a rebalance: its members must not wait with the offsets."""

    class OfMembers(Partition):
        def _needs_replicas(self, request: Any) -> bool:
            return False

    log, failures = Log(), []
    claim = Claim(log, 1, 0, lambda: 0, lambda at_ms: None, failures.append, lambda: 1000, 1000)  # type: ignore[arg-type]
    partition, answers = OfMembers(Shard(), claim), []
    partition.submit(Shard.answer, "join", answers.append)
    await asyncio.sleep(0)
    partition.submit(Shard.answer, "not in the log", answers.append)
    log.waiting.pop(0)(NotEnoughReplicasAfterAppend("late"))
    assert answers == [ErrorCode.coordinator_not_available]
    await asyncio.sleep(0)
    while log.waiting:
        log.waiting.pop()(None)
    assert answers[1:] == ["not in the log"]
    assert not failures
