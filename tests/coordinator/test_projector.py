"""The order in which changes of one stream reach Redis, with a projection that answers on command."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from korvet.cluster.topic import Topic
from korvet.coordinator.lane import CHANGES_AT_ONCE, CommitChange
from korvet.coordinator.projector import AT_ONCE, Projector
from korvet.offsets.partition import partition_for
from korvet.redis.errors import StorageError, StorageFault
from korvet.redis_groups.projection import GroupCommit
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.redis_groups.projection import Dropped, Projected


@dataclass
class Held:
    """A stand-in for Projection: keeps every call until it is answered."""

    calls: list[tuple[str, Callable[[StorageError | None], None]]] = field(default_factory=list)
    log: list[tuple[str, Any]] = field(default_factory=list)
    stored: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    left: list[GroupCommit] = field(default_factory=list)
    fails: bool = False
    elsewhere: set[str] = field(default_factory=set)
    """Groups that another broker coordinates."""

    def project(
        self, topic: str, partition: int, commits: Sequence[GroupCommit], *, bias: int, done: Projected
    ) -> None:
        assert bias == 0
        self.log.append(("project", [commit.position for commit in commits]))

        def answered(error: StorageError | None) -> None:
            left, self.left = self.left, []
            done(left if error is None else error)

        self.calls.append(("project", answered))

    def drop(
        self, group: str, topic: str, partition: int, position: int, *, bias: int, force: bool, done: Dropped
    ) -> None:
        assert bias == 0
        self.log.append(("drop", position))
        self.calls.append(("drop", done))

    async def forget(self, topic: str, partition: int, groups: Sequence[str]) -> None:
        self.log.append(("forget", list(groups)))

    async def projected(self, topic: str, partition: int) -> dict[str, int]:
        if self.fails:
            raise StorageFault("not now")
        return dict(self.stored.get((topic, partition), {}))

    def answer(self, error: StorageError | None = None) -> None:
        self.calls.pop(0)[1](error)


def projector(*topics: str, partitions: int = 1) -> tuple[Projector, Held]:
    held = Held()
    known = {name: Topic(name=name, topic_id=uuid.uuid4(), partitions=partitions) for name in topics}
    catalogue: Any = SimpleNamespace(get=known.get, topics=known)
    projection: Any = held
    return Projector(
        projection, catalogue, lambda group: group not in held.elsewhere, lambda group: False
    ), held


def change(position: int, offset: int | None = 1, group: str = "g", partition: int = 0) -> CommitChange:
    return CommitChange(group, "t", partition, position, offset)


async def turn() -> None:
    """Run the work that was deferred to the loop's next turn."""
    await asyncio.sleep(0)


async def test_changes_of_one_place_follow_one_another() -> None:
    subject, held = projector("t")
    finished: list[str] = []
    subject.apply([change(1)], lambda: finished.append("first"))
    await turn()
    subject.apply([change(2, None)], lambda: finished.append("second"))
    assert held.log == [("project", [1])]
    held.answer()
    assert finished == ["first"]
    assert held.log == [("project", [1]), ("drop", 2)]
    held.answer()
    assert finished == ["first", "second"]


async def test_what_gathers_behind_a_call_is_one_call() -> None:
    subject, held = projector("t")
    finished: list[int] = []
    subject.apply([change(1)], lambda: finished.append(1))
    await turn()
    for position in range(2, 10):
        subject.apply([change(position, position, f"g{position % 3}")], partial(finished.append, position))
    held.answer()
    assert held.log == [("project", [1]), ("project", [8, 9, 7])]
    assert finished == [1]
    held.answer()
    assert sorted(finished) == list(range(1, 10))
    assert held.calls == []


async def test_streams_do_not_wait_for_each_other() -> None:
    subject, held = projector("t", partitions=2)
    subject.apply([change(1)], lambda: None)
    subject.apply([change(2, partition=1)], lambda: None)
    await turn()
    assert held.log == [("project", [1]), ("project", [2])]


async def test_call_is_bounded() -> None:
    subject, held = projector("t")
    count = 2 * CHANGES_AT_ONCE + 1
    finished: list[bool] = []
    subject.apply([change(number, 1, f"g{number}") for number in range(count)], lambda: finished.append(True))
    await turn()
    while held.calls:
        held.answer()
    assert [len(positions) for _, positions in held.log] == [CHANGES_AT_ONCE, CHANGES_AT_ONCE, 1]
    assert finished == [True]


async def test_commits_do_not_join_across_a_deletion() -> None:
    subject, held = projector("t")
    subject.apply([change(1)], lambda: None)
    await turn()
    subject.apply([change(2), change(3, None), change(4), change(5)], lambda: None)
    while held.calls:
        held.answer()
    assert held.log == [("project", [1]), ("project", [2]), ("drop", 3), ("project", [5])]


async def test_unfinished_commit_is_sent_again_with_those_that_came() -> None:
    subject, held = projector("t")
    finished: list[str] = []
    subject.apply([change(1), change(2, 1, "other")], lambda: finished.append("first"))
    await turn()
    subject.apply([change(3, 1, "third")], lambda: finished.append("third"))
    held.left = [GroupCommit("g", 1, 1, 1)]
    held.answer()
    assert held.log[-1] == ("project", [1, 3])
    assert finished == []
    held.answer()
    assert sorted(finished) == ["first", "third"]


async def test_late_commit_does_not_undo_a_deletion() -> None:
    subject, held = projector("t")
    finished: list[str] = []
    subject.apply([change(5, None)], lambda: finished.append("drop"))
    await turn()
    subject.apply([change(4)], lambda: finished.append("late"))
    held.answer()
    assert sorted(finished) == ["drop", "late"]
    assert held.log == [("drop", 5)]


async def test_done_waits_for_all_places() -> None:
    subject, held = projector("t")
    finished: list[bool] = []
    gone = CommitChange("g", "gone", 0, 3, 1)
    subject.apply([change(1), change(2, partition=9), gone], lambda: finished.append(True))
    await turn()
    assert held.log == [("project", [1])]  # nothing, because it does not exist
    assert finished == []
    held.answer()
    assert finished == [True]


def test_nothing_to_apply_is_done_at_once() -> None:
    subject, _ = projector()
    finished: list[bool] = []
    subject.apply([], lambda: finished.append(True))
    assert finished == [True]


async def test_a_watch_has_what_is_on_its_way_and_what_changes_until_its_end() -> None:
    subject, held = projector("t")
    subject.changed([("before", "t", 0)])
    subject.apply([change(1)], lambda: None)
    watched = subject.watch([("g", "t", 1)])
    assert watched == {change(1).place, ("g", "t", 1)}
    subject.changed([("during", "t", 0)])
    await turn()
    held.answer()
    subject.unwatch()
    subject.changed([("after", "t", 0)])
    assert watched == {change(1).place, ("g", "t", 1), ("during", "t", 0)}
    assert not subject.watch([])
    await subject.close()


async def test_failed_change_is_tried_again_and_superseded() -> None:
    subject, held = projector("t")
    finished: list[int] = []
    subject.apply([change(1)], lambda: finished.append(1))
    await turn()
    held.answer(StorageFault("not now"))
    assert (finished, len(subject.watch([]))) == ([1], 1)
    subject.apply([change(2)], lambda: finished.append(2))
    await turn()
    held.answer(StorageFault("not now"))
    assert (finished, len(subject.watch([]))) == ([1, 2], 1)
    await until_async(lambda: len(held.calls) == 1, 20, "the retry")
    assert held.log[-1] == ("project", [2])
    held.answer()
    assert not subject.watch([])
    await subject.close()


async def test_newer_success_makes_a_retry_needless() -> None:
    subject, held = projector("t")
    subject.apply([change(1)], lambda: None)
    await turn()
    held.answer(StorageFault("not now"))
    subject.apply([change(2)], lambda: None)
    await turn()
    held.answer()
    assert not subject.watch([])
    await subject.close()
    await turn()
    assert held.calls == []


async def test_retry_leaves_out_what_was_deleted_meanwhile() -> None:
    subject, held = projector("t", partitions=2)
    for changes in ([change(n, group=f"g{n}") for n in range(AT_ONCE)], [change(AT_ONCE, partition=1)]):
        subject.apply(changes, lambda: None)
        await turn()
        while held.calls:
            held.answer(StorageFault("not now"))
    await until_async(lambda: len(held.calls) == 1, 20, "the retry")
    subject.apply([change(1_000, None, partition=1)], lambda: None)
    await turn()
    held.calls.reverse()
    while held.calls:
        held.answer()
        for _ in range(5):
            await turn()
    assert ("project", [AT_ONCE]) not in held.log[held.log.index(("drop", 1_000)) :]
    assert subject.failed == 0
    await subject.close()


async def answering(held: Held, work: asyncio.Future[Any]) -> None:
    """Answer all calls until the work is done."""
    while not work.done():
        await turn()
        while held.calls:
            held.answer()
    await work


def groups_of(number: int, count: int) -> list[str]:
    """Group ids of one partition of `__consumer_offsets`."""
    names = (f"g{serial}" for serial in itertools.count())
    return list(itertools.islice((name for name in names if partition_for(name, 50) == number), count))


async def test_reconcile_projects_what_is_missing_and_drops_what_is_gone() -> None:
    subject, held = projector("t")
    missing, behind, right, gone = groups_of(7, 4)
    (other,) = groups_of(8, 1)
    held.stored["t", 0] = {behind: 1, right: 5, gone: 2, other: 3}
    newest = {missing: (3, 10), behind: (4, 20), right: (5, 30)}
    subject.expect({("t", 0): newest, ("no-topic", 0): {missing: (6, 1)}}, 7, 9, 50)
    await answering(held, asyncio.ensure_future(subject.reconcile(50, lambda _: None)))
    # `other` belongs to a partition that was not loaded.
    assert held.log == [("drop", 2), ("project", [3, 4])]
    assert not subject.expects


async def test_reconcile_keeps_a_commit_that_is_retried_after_the_load() -> None:
    subject, held = projector("t")
    (group,) = groups_of(7, 1)
    subject.expect({("t", 0): {group: (3, 10)}}, 7, 9, 50)
    subject.apply([change(3, 10, group)], lambda: None)
    await turn()
    held.stored["t", 0] = {group: 3}
    held.answer()
    await answering(held, asyncio.ensure_future(subject.reconcile(50, lambda _: None)))
    assert held.log == [("project", [3])]
    assert not subject.expects


async def test_reconcile_forgets_records_that_the_log_has_lost() -> None:
    subject, held = projector("t")
    lost, overtaken, alone, newer = groups_of(7, 4)
    held.stored["t", 0] = {lost: 12, overtaken: 8, alone: 13, newer: 10}
    subject.expect({("t", 0): {lost: (3, 10), overtaken: (4, 20)}}, 7, 9, 50)
    ends = {7: 11}
    await answering(held, asyncio.ensure_future(subject.reconcile(50, ends.get)))
    # `newer` was committed after the load.
    assert held.log == [("forget", [lost, overtaken, alone]), ("project", [3, 4])]
    assert not subject.expects


async def refused(subject: Projector, held: Held, *changes: CommitChange) -> None:
    """Redis refuses the changes."""
    subject.apply(changes, lambda: None)
    await turn()
    while held.calls:
        held.answer(StorageFault("OOM"))


async def test_failed_commits_are_not_retried_after_a_load_that_has_others() -> None:
    """A failover has lost the commit at 12 and the deletion at 13: the log ends at 9 now."""
    subject, held = projector("t")
    lost, deletion, kept = groups_of(7, 3)
    await refused(subject, held, change(12, 99, lost), change(13, None, deletion), change(8, None, kept))
    subject.expect({("t", 0): {lost: (3, 10), deletion: (4, 20)}}, 7, 9, 50)
    assert [place[0] for place in subject.watch([])] == [kept]
    await subject.close()


async def test_a_commit_that_fails_between_a_load_and_its_comparison_drops_no_group() -> None:
    subject, held = projector("t")
    (group,) = groups_of(7, 1)
    subject.expect({("t", 0): {group: (3, 10)}}, 7, 9, 50)
    await refused(subject, held, change(9, 20, group))
    held.stored["t", 0] = {group: 3}
    await answering(held, asyncio.ensure_future(subject.reconcile(50, lambda _: 10)))
    await subject.close()
    assert ("drop", 3) not in held.log


async def test_a_commit_that_fails_during_the_comparison_drops_no_group() -> None:
    """The commit was on its way when the projections were read."""
    subject, held = projector("t")
    (group,) = groups_of(7, 1)
    subject.expect({("t", 0): {group: (3, 10)}}, 7, 9, 50)
    held.stored["t", 0] = {group: 3}
    subject.apply([change(9, 20, group)], lambda: None)
    await turn()
    comparing = asyncio.ensure_future(subject.reconcile(50, lambda _: 10))
    await turn()
    held.answer(StorageFault("OOM"))
    await answering(held, comparing)
    await subject.close()
    assert ("drop", 3) not in held.log


async def test_a_lost_commit_that_was_on_its_way_during_the_load_is_not_retried() -> None:
    """In a cluster, the server of `__consumer_offsets` fails over, and that of the stream answers late."""
    subject, held = projector("t")
    (lost,) = groups_of(7, 1)
    subject.apply([change(12, 99, lost)], lambda: None)
    await turn()
    subject.expect({("t", 0): {lost: (3, 10)}}, 7, 9, 50)
    held.answer(StorageFault("OOM"))
    assert not subject.watch([])
    await subject.close()


async def test_a_former_coordinator_retries_nothing() -> None:
    """The present one may have deleted the group."""
    subject, held = projector("t")
    await refused(subject, held, change(1))
    held.elsewhere.add("g")
    await until_async(lambda: subject.failed == 0, 5, "the change is forgotten")
    assert held.log == [("project", [1])]


async def test_reconcile_that_failed_half_way_goes_on_there() -> None:
    subject, held = projector("t", partitions=2)
    (known,) = groups_of(7, 1)
    held.stored = {("t", 0): {known: 3}, ("t", 1): {known: 1}}
    subject.expect({("t", 0): {known: (3, 10)}, ("t", 1): {known: (4, 10)}}, 7, 9, 50)
    inner = held.projected

    async def second_fails(topic: str, partition: int) -> dict[str, int]:
        held.fails = partition == 1
        return await inner(topic, partition)

    held.projected = second_fails  # type: ignore[method-assign]
    try:
        await subject.reconcile(50, lambda _: None)
    except StorageFault:
        pass
    else:
        raise AssertionError("the second stream cannot be read")
    held.projected = inner  # type: ignore[method-assign]
    held.fails = False
    assert subject.expects
    await answering(held, asyncio.ensure_future(subject.reconcile(50, lambda _: None)))
    # The first stream was correct: it is neither dropped nor projected.
    assert held.log == [("project", [4])]
    assert not subject.expects


@given(st.lists(st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 5)), st.booleans())))
def test_the_newest_change_always_arrives(steps: list[tuple[str, int | None, bool]]) -> None:
    """Whenever Redis answers: each change is reported once, and each group's last one is sent."""

    async def run() -> None:
        subject, held = projector("t")
        told: list[int] = []
        newest: dict[str, tuple[str, int]] = {}
        for position, (group, offset, answers) in enumerate(steps):
            subject.apply([change(position, offset, group)], partial(told.append, position))
            newest[group] = ("drop" if offset is None else "project", position)
            if answers:
                await turn()
                if held.calls:
                    held.answer()
        await turn()
        while held.calls:
            held.answer()
        assert sorted(told) == list(range(len(steps)))
        sent = {
            (kind, position)
            for kind, positions in held.log
            for position in (positions if isinstance(positions, list) else [positions])
        }
        assert sent >= set(newest.values())
        # And all in log order.
        for group in newest:
            of_group = [
                position
                for kind, positions in held.log
                for position in (positions if isinstance(positions, list) else [positions])
                if steps[position][0] == group
            ]
            assert of_group == sorted(of_group)

    asyncio.run(run())


async def test_a_lost_commit_with_pending_entries_left_is_not_sent_again() -> None:
    """The commit at 12 is in flight when the partition, which ends at 9 now, is loaded after a failover."""
    subject, held = projector("t")
    (lost,) = groups_of(7, 1)
    subject.apply([change(12, 99, lost)], lambda: None)
    await turn()
    subject.expect({("t", 0): {lost: (3, 10)}}, 7, 9, 50)
    held.left = [GroupCommit(lost, 12, 99, 99)]
    held.answer()
    assert held.log == [("project", [12])]


async def test_a_later_load_forgets_what_an_earlier_one_expected() -> None:
    """A failover between both loads has lost the commit at 12, the group's only one."""
    subject, held = projector("t")
    (lost,) = groups_of(7, 1)
    subject.expect({("t", 0): {lost: (12, 99)}}, 7, 13, 50)
    subject.expect({}, 7, 9, 50)
    await answering(held, asyncio.ensure_future(subject.reconcile(50, lambda _: None)))
    assert held.log == []


async def test_commits_of_groups_that_moved_to_another_broker_are_not_compared() -> None:
    """The other broker has loaded the partition, and deleted the group since: no projection is left."""
    subject, held = projector("t")
    (group,) = groups_of(7, 1)
    subject.expect({("t", 0): {group: (3, 10)}}, 7, 9, 50)
    held.elsewhere.add(group)
    await answering(held, asyncio.ensure_future(subject.reconcile(50, lambda _: None)))
    assert held.log == []
