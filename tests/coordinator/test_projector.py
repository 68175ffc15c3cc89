"""The order in which changes of one place reach Redis, with a projection that answers when the test says."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from korvet.coordinator.projector import CommitChange, Projector
from korvet.storage.catalogue import Topic
from korvet.storage.errors import StorageError, StorageFault
from tests.support.polling import until_async

if TYPE_CHECKING:
    from korvet.storage.projection import GroupCommit, Projected


@dataclass
class Held:
    """Stands for Projection: keeps every call until it is answered."""

    calls: list[tuple[str, int, Projected]] = field(default_factory=list)
    log: list[tuple[str, int]] = field(default_factory=list)

    def project(self, commit: GroupCommit, *, bias: int, done: Projected) -> None:
        assert bias == 0
        self._hold("project", commit.position, done)

    def drop(
        self, group: str, topic: str, partition: int, position: int, *, force: bool, done: Projected
    ) -> None:
        assert (group, topic, partition, force) == ("g", "t", 0, True)
        self._hold("drop", position, done)

    def _hold(self, kind: str, position: int, done: Projected) -> None:
        self.calls.append((kind, position, done))
        self.log.append((kind, position))

    def answer(self, error: StorageError | None = None) -> None:
        _, _, done = self.calls.pop(0)
        done(error)


def projector(*topics: str) -> tuple[Projector, Held]:
    held = Held()
    known = {name: Topic(name=name, topic_id=uuid.uuid4(), partitions=1) for name in topics}
    catalogue: Any = SimpleNamespace(get=known.get, topics=known)
    projection: Any = held
    return Projector(projection, catalogue), held


def change(position: int, offset: int | None = 1) -> CommitChange:
    return CommitChange("g", "t", 0, position, offset)


def test_changes_of_one_place_follow_one_another() -> None:
    subject, held = projector("t")
    finished: list[str] = []
    subject.apply([change(1)], lambda: finished.append("first"))
    subject.apply([change(2, None)], lambda: finished.append("second"))
    assert held.log == [("project", 1)]
    held.answer()
    assert finished == ["first"]
    assert held.log == [("project", 1), ("drop", 2)]
    held.answer()
    assert finished == ["first", "second"]


def test_late_commit_does_not_undo_a_deletion() -> None:
    subject, held = projector("t")
    finished: list[str] = []
    subject.apply([change(5, None)], lambda: finished.append("drop"))
    subject.apply([change(4)], lambda: finished.append("late"))
    held.answer()
    assert sorted(finished) == ["drop", "late"]
    assert held.log == [("drop", 5)]


def test_done_waits_for_all_places() -> None:
    subject, held = projector("t")
    finished: list[bool] = []
    other = CommitChange("other", "t", 0, 2, 1)
    subject.apply([change(1), other, CommitChange("g", "gone", 0, 3, 1)], lambda: finished.append(True))
    assert held.log == [("project", 1), ("project", 2)]  # nothing for a topic that does not exist
    held.answer()
    assert finished == []
    held.answer()
    assert finished == [True]


def test_nothing_to_apply_is_done_at_once() -> None:
    subject, _ = projector()
    finished: list[bool] = []
    subject.apply([], lambda: finished.append(True))
    assert finished == [True]


async def test_failed_change_is_tried_again_and_superseded() -> None:
    subject, held = projector("t")
    finished: list[int] = []
    subject.apply([change(1)], lambda: finished.append(1))
    held.answer(StorageFault("not now"))
    assert (finished, subject.backlog) == ([1], 1)
    subject.apply([change(2)], lambda: finished.append(2))
    held.answer(StorageFault("not now"))
    assert (finished, subject.backlog) == ([1, 2], 1)

    async def retried() -> bool:
        return len(held.calls) == 1

    await until_async(retried, 5, "the retry")
    assert held.log[-1] == ("project", 2)
    held.answer()
    assert subject.backlog == 0
    await subject.close()


async def test_newer_success_makes_a_retry_needless() -> None:
    subject, held = projector("t")
    subject.apply([change(1)], lambda: None)
    held.answer(StorageFault("not now"))
    subject.apply([change(2)], lambda: None)
    held.answer()
    assert subject.backlog == 0
    await subject.close()
    await asyncio.sleep(0)
    assert held.calls == []
