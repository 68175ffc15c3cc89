"""What requests of a coordinator's partition are answered while this broker does not serve it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.coordinator.partitions import Partitions

TOPIC: Any = SimpleNamespace(name="topic", topic_id=1, partitions=1)


class Logs:
    """`epoch`: the epoch in which this broker leads the partition; `moved`: whether another one leads it."""

    def __init__(self) -> None:
        self.epoch: int | None = 0
        self.moved = False

    def leader_epoch_of(self, topic: str, partition: int) -> int | None:
        return self.epoch

    def is_led_by_another(self, topic: str, partition: int) -> bool:
        return self.moved

    def get(self, topic: Any, partition: int) -> Any:
        return SimpleNamespace(acquire_epoch=asyncio.Event().wait)


class Term:
    def __init__(self) -> None:
        self.ended: list[ErrorCode] = []

    def close(self, error: ErrorCode) -> None:
        self.ended.append(error)


@pytest.mark.parametrize(
    ("epoch", "moved", "waiting", "later"),
    [
        (None, True, ErrorCode.not_coordinator, ErrorCode.not_coordinator),
        # The lease has expired.
        (None, False, ErrorCode.coordinator_not_available, ErrorCode.coordinator_not_available),
        (7, False, ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress),
    ],
)
async def test_clients_look_elsewhere_only_if_another_broker_coordinates(
    epoch: int | None, moved: bool, waiting: ErrorCode, later: ErrorCode
) -> None:
    logs, term = Logs(), Term()
    clock: Any = SimpleNamespace(correct=lambda: 0)
    partitions: Partitions[Any] = Partitions(
        logs,  # type: ignore[arg-type]
        "topic",
        clock,
        lambda _: pytest.fail("the partition is not claimed"),
        message_max_bytes=lambda: 0,
        release_timeout_ms=None,
    )
    partitions.follow(TOPIC)
    partitions[0].term = term
    logs.epoch, logs.moved = epoch, moved
    partitions.follow(TOPIC)
    assert term.ended == [waiting]
    assert partitions[0].error is later
    # The next leader becomes known later.
    logs.epoch, logs.moved = None, True
    partitions.follow(TOPIC)
    assert partitions[0].error is ErrorCode.not_coordinator
    await partitions.close()
