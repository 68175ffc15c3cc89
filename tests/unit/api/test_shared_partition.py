"""When the leader of a partition looks at the locks of members."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from korvet.api.sharing import partition as module
from korvet.api.sharing.configs import ShareConfig
from korvet.api.sharing.counts import ShareCounts
from korvet.api.sharing.partition import SharedPartition
from korvet.coordinator.share_changes import ShareChanges
from korvet.redis.errors import StorageError
from korvet.redis_groups.share import Acquired, Demand, Found, Limits, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LOCK_S = 30.0
CONFIG = ShareConfig(Limits(lock_ms=int(LOCK_S * 1000), deliveries=5, locks=2000))


class Queue:
    """What Redis answers."""

    def __init__(self) -> None:
        self.demands: list[Demand] = []
        self.locks = 0
        self.reads_new = False
        self.runs: list[Run] = []
        self.is_reachable = True
        self.during: Callable[[], object] = int
        """Called while records are acquired."""

    async def release(self, member: str, limits: Limits, end: int | None) -> tuple[int, int]:
        del member, limits
        return 0, 0

    async def acquire(self, member: str, limits: Limits, demand: Demand, leader_epoch: int) -> Acquired:
        del member, limits, leader_epoch
        self.demands.append(demand)
        self.during()
        if not self.is_reachable:
            raise StorageError("gone")
        runs, self.runs = self.runs, []
        found = Found(self.locks, False, 0, 0, False, (b"", b""), self.reads_new)
        return Acquired(runs, b"", has_more=False, found=None if demand.only_new else found)


class Leader:
    """A partition whose leader has looked at the locks of earlier leaders."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        clock = SimpleNamespace(time=lambda: self.now_s)
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(get_running_loop=lambda: clock))
        self.queue = Queue()
        log: Any = SimpleNamespace(
            topic=SimpleNamespace(topic_id=SimpleNamespace(bytes=b"t" * 16), name="t", bias=0),
            partition=0,
            leader_epoch=0,
            waits_for_replicas=False,
            ends=SimpleNamespace(high_watermark=0, last_stable_offset=0),
            state=SimpleNamespace(largest_bytes=1),
        )
        monkeypatch.setattr(module, "ShareQueue", lambda *_: self.queue)
        commands: Any = None
        self.changes = ShareChanges()
        self.partition = SharedPartition(
            commands, log, "g", ShareCounts(), self._always, lambda *_: None, self.changes
        )
        monkeypatch.setattr(self.partition, "_initialised", True)
        self.acquire()
        self.now_s += 2 * LOCK_S
        self.acquire()
        self.queue.demands.clear()

    async def _always(self, *_: Any) -> bool:
        return True

    def acquire(self, config: ShareConfig = CONFIG) -> None:
        """Ask for records, as members do when the partition may have some."""
        if self.partition.may_have_records(self.now_s):
            returned(self.partition.acquire("m", config, 500, 1 << 20, None))

    def looks(self) -> int:
        """How often it has looked at the locks of members."""
        return sum(demand.checks_members for demand in self.queue.demands)


def returned(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    return Leader(monkeypatch)


def give_a_lock(leader: Leader, config: ShareConfig = CONFIG) -> None:
    leader.queue.runs, leader.queue.locks = [Run(0, 0, 1)], 1
    leader.partition.wake()
    leader.acquire(config)
    assert leader.looks() == 0


def test_it_looks_when_a_lock_ends(leader: Leader) -> None:
    give_a_lock(leader)
    leader.queue.locks = 0
    for _ in range(3):
        leader.now_s += LOCK_S
        leader.acquire()
    assert leader.looks() == 1


def test_it_looks_in_time_after_locks_became_shorter(leader: Leader) -> None:
    give_a_lock(leader)
    shorter = ShareConfig(Limits(lock_ms=int(LOCK_S * 500), deliveries=5, locks=2000))
    give_a_lock(leader, shorter)
    leader.now_s += LOCK_S / 2
    leader.acquire(shorter)
    assert leader.looks() == 1


def test_it_looks_again_after_an_error(leader: Leader) -> None:
    give_a_lock(leader)
    leader.queue.is_reachable = False
    leader.now_s += LOCK_S
    with pytest.raises(StorageError):
        leader.acquire()
    leader.queue.is_reachable = True
    leader.queue.locks = 0
    leader.acquire()
    assert leader.looks() == 2


def test_it_looks_until_members_have_nothing(leader: Leader) -> None:
    """The clock of Redis went back, so the lock lasts longer than the leader thinks."""
    give_a_lock(leader)
    for number in range(1, 4):
        leader.now_s += LOCK_S
        leader.acquire()
        assert leader.looks() == number


def test_it_reads_only_new_records_while_none_is_released(leader: Leader) -> None:
    leader.queue.reads_new = True

    def is_only_new() -> bool:
        leader.partition.wake()
        leader.acquire()
        return leader.queue.demands[-1].only_new

    assert not is_only_new()
    assert is_only_new()
    returned(leader.partition.release("m", CONFIG))
    assert not is_only_new()
    assert is_only_new()
    leader.queue.is_reachable = False
    leader.partition.wake()
    with pytest.raises(StorageError):
        leader.acquire()
    leader.queue.is_reachable = True
    assert not is_only_new()
    leader.now_s += LOCK_S
    assert not is_only_new()


def test_a_release_during_an_acquisition_counts(leader: Leader) -> None:
    leader.queue.reads_new = True
    leader.queue.during = lambda: returned(leader.partition.release("m", CONFIG))
    for is_only_new in (False, False):
        leader.partition.wake()
        leader.acquire()
        assert leader.queue.demands[-1].only_new is is_only_new


def test_released_records_before_an_offset_are_looked_for_next(leader: Leader) -> None:
    """A fetch that goes on after an offset leaves released records before the offset."""
    leader.queue.reads_new = True
    for after, is_only_new in ((7, False), (None, False), (None, True)):
        leader.partition.wake()
        returned(leader.partition.acquire("m", CONFIG, 500, 1 << 20, after))
        assert leader.queue.demands[-1].only_new is is_only_new


def test_it_asks_for_no_more_records_than_members_may_have(leader: Leader) -> None:
    leader.queue.reads_new = True
    leader.queue.locks = CONFIG.limits.locks - 10
    leader.partition.wake()
    leader.acquire()
    leader.queue.runs = [Run(0, 9, 1)]
    leader.partition.wake()
    leader.acquire()
    leader.partition.wake()
    leader.acquire()
    demands = [(demand.records, demand.only_new) for demand in leader.queue.demands]
    assert demands == [(500, False), (10, True), (500, False)]
