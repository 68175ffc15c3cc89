"""Deletions of topics that one broker has begun and the controller finishes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet import broker
from korvet.coordinator.service import CoordinatorService
from korvet.redis.errors import LinkLost, NotReplicated
from korvet.topics.directory import TopicDirectory
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest


class Topics:
    """A topic in deletion; the first attempts to finish it fail."""

    def __init__(self, failures: int) -> None:
        self.attempts, self._failures = 0, failures

    @property
    def deletes_are_pending(self) -> bool:
        return self.attempts <= self._failures

    async def forget_deleted(self) -> None:
        pass

    async def finish_deletes(self) -> None:
        self.attempts += 1
        if self.attempts <= self._failures:
            raise LinkLost("the connection was lost")


class Coordinators:
    def follow_assignment(self) -> None:
        pass

    async def start(self) -> None:
        pass

    async def wait_loaded(self) -> None:
        pass


async def test_a_deletion_that_cannot_be_finished_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other change of the catalogue comes to the help of a topic that is half deleted."""
    monkeypatch.setattr(broker, "_DELETION_RETRY_S", 0.001)
    topics = Topics(failures=2)
    parts: Any = SimpleNamespace(
        coordinator=Coordinators(),
        transactions=Coordinators(),
        topics=topics,
        member=SimpleNamespace(leadership=SimpleNamespace(is_controller=True)),
    )
    changes = broker._ChangeListener(parts)
    await changes.complete_changes()
    await until_async(lambda: not topics.deletes_are_pending, 2, "the deletion is finished")
    await changes.close()
    assert topics.attempts == 3


async def test_a_deletion_that_waits_for_replicas_holds_no_other_one_up() -> None:
    """In a cluster, one server lacks its replica, and the topic `free` is on the others."""
    finished: list[str] = []

    class Catalogue:
        def pending_deletes(self) -> list[str]:
            return ["waits", "free"]

        async def finish_delete(self, topic: str, _: Any) -> None:
            if topic == "waits":
                raise NotReplicated("0 replica(s) in sync of 1")
            finished.append(topic)

    directory: Any = SimpleNamespace(_catalogue=Catalogue(), _forget_everywhere=None)
    with contextlib.suppress(NotReplicated):
        await TopicDirectory.finish_deletes(directory)
    assert finished == ["free"]


async def test_clients_are_served_while_many_topics_are_forgotten() -> None:
    """Each topic costs a look at all offsets of this broker's groups."""
    looks: list[tuple[str, int]] = []
    loop, turn = asyncio.get_running_loop(), 0

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count_turns)

    def delete_topics(names: Sequence[str], on_safe: Callable[[ErrorCode], None]) -> None:
        looks.append((names[0], turn))
        on_safe(ErrorCode.none)

    loaded = asyncio.Event()
    loaded.set()
    shard = SimpleNamespace(states_of_topic=lambda _: ())
    partition = SimpleNamespace(
        changed=loaded, epoch=1, term=SimpleNamespace(delete_topics=delete_topics, shard=shard)
    )
    subject: Any = object.__new__(CoordinatorService)
    subject._partitions = [partition] * 3
    subject._release_timeout_ms = None
    subject._forgetting = asyncio.Lock()
    count_turns()
    await asyncio.gather(*(subject.forget_topic(f"t{number}") for number in range(5)))
    assert len(looks) == 15
    turns = [{turn for name, turn in looks if name == f"t{number}"} for number in range(5)]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(turns, 2))
