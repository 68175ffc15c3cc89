"""The records of share groups on real servers (korvet_share_*)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.offsets.packing import entry_id, pack
from korvet.records.kernel import parse_batch
from korvet.redis_groups.backlogs import Backlog, read_backlogs
from korvet.redis_groups.share import (
    EXHAUSTED,
    FROM_END,
    FROM_START,
    REJECTED,
    RELEASED,
    UNREADABLE,
    Acknowledged,
    Acquired,
    DeadRecord,
    Limits,
    NoShareGroup,
    PastAcquired,
    PendingKind,
    PendingRun,
    PendingView,
    QueueView,
    Run,
)
from tests.storage.share_queue import ACCEPT, GAP, GROUP, LOCK_MS, REJECT, RELEASE, RENEW, Queue, seen

if TYPE_CHECKING:
    from tests.storage.conftest import Bench

pytestmark = pytest.mark.each_server
KEPT = Limits(LOCK_MS, 2, 2000, keeps_dead=True)


@pytest.fixture(params=["clock", "dense"])
def queue(bench: Bench, request: pytest.FixtureRequest) -> Queue:
    made = Queue(bench, offset_assignment=request.param)
    made.initialise()
    return made


def base_offsets(acquired: Acquired) -> list[int]:
    data, at, found = acquired.data, 0, []
    while at < len(data):
        header = parse_batch(data, at)
        found.append(header.base_offset)
        at += header.size
    return found


def test_new_records_are_acquired_in_runs(queue: Queue) -> None:
    queue.add(1, 2, 3, 7, 8, 20)
    acquired = queue.acquire()
    assert acquired.runs == [Run(1, 3, 1), Run(7, 8, 1), Run(20, 20, 1)]
    assert seen(acquired).locks == 6
    assert not acquired.has_more
    assert queue.owners()[7] == ("kafka:a", 1)
    assert queue.runs("b") == []


def test_limits_of_records_bytes_and_locks(queue: Queue) -> None:
    queue.add(*range(1, 101), value=b"x" * 100)
    assert queue.acquire(records=3).runs == [Run(1, 3, 1)]
    few = queue.acquire(size_bytes=1)
    assert few.runs == [Run(4, 4, 1)]
    assert few.has_more
    some = queue.acquire(size_bytes=550)
    assert some.runs == [Run(5, 9, 1)]
    assert some.has_more
    queue.limits = Limits(LOCK_MS, 5, 20)
    capped = queue.acquire("b")
    assert capped.runs == [Run(10, 20, 1)]
    assert seen(capped).locks == 20
    nothing = queue.acquire("b")
    assert nothing.runs == []
    assert not nothing.has_more


def test_locks_of_natives_and_released_records_do_not_count(queue: Queue) -> None:
    queue.add(*range(1, 51))
    queue.limits = Limits(LOCK_MS, 5, 5)
    queue.read_natively(20)
    assert queue.runs() == [(21, 25, 1)]
    queue.acknowledge("a", (21, 25, RELEASE))
    assert queue.runs() == [(21, 25, 2)]


def test_acknowledgements(queue: Queue) -> None:
    queue.add(*range(1, 11))
    queue.acquire()
    done = queue.acknowledge("a", (1, 2, ACCEPT), (3, 6, b"1234"), (7, 7, GAP))
    assert done == Acknowledged(accepted=3, rejected=2, archived=0, released=1, renewed=1)
    assert queue.owners() == {
        4: (RELEASED, 1),
        6: ("kafka:a", 1),
        8: ("kafka:a", 1),
        9: ("kafka:a", 1),
        10: ("kafka:a", 1),
    }
    again = queue.acquire("b")
    assert again.runs == [Run(4, 4, 2)]
    assert base_offsets(again) == [4]


@pytest.mark.parametrize(
    "refused",
    [
        [(4, 6, ACCEPT)],
        [(1, 4, ACCEPT)],
        [(1, 1, ACCEPT), (4, 4, RELEASE)],
    ],
)
def test_acknowledgement_of_one_foreign_record_changes_nothing(
    queue: Queue, refused: list[tuple[int, int, bytes]]
) -> None:
    queue.add(*range(1, 11))
    queue.acquire("a", 3)
    queue.acquire("b")
    before = queue.owners()
    assert queue.acknowledge("a", *refused) is None
    assert queue.owners() == before


@pytest.mark.parametrize("last", [11, 30, 1 << 50])
def test_acknowledgement_past_the_acquired_records_changes_nothing(queue: Queue, last: int) -> None:
    queue.add(*range(1, 13))
    queue.acquire("a", 10)
    before = queue.owners()
    with pytest.raises(PastAcquired):
        queue.acknowledge("a", (1, 1, ACCEPT), (10, last, GAP))
    assert queue.owners() == before
    queue.acknowledge("a", (1, 10, ACCEPT))
    assert queue.acknowledge("a", (11, last, ACCEPT)) is None


def test_acknowledgement_before_the_start_is_ignored(queue: Queue) -> None:
    queue.add(*range(1, 7))
    queue.acquire("a", 4)
    queue.acknowledge("a", (1, 2, ACCEPT))
    done = queue.acknowledge("a", (1, 3, b"221"))
    assert done == Acknowledged(1, 0, 0, 0, 0)
    assert queue.acknowledge("a", (4, 4, ACCEPT)) == Acknowledged(1, 0, 0, 0, 0)
    assert queue.acknowledge("a", (1, 4, ACCEPT)) == Acknowledged(0, 0, 0, 0, 0)
    assert queue.acknowledge("a", (5, 5, ACCEPT)) is None


def test_expired_lock_goes_to_the_next_member(queue: Queue) -> None:
    queue.add(*range(1, 7))
    queue.acquire("a", 4)
    queue.age([2, 3])
    assert queue.acknowledge("a", (2, 2, ACCEPT)) is None
    found = queue.acquire("b", 3)
    assert found.runs == [Run(2, 3, 2), Run(5, 5, 1)]
    assert seen(found).expired == 2
    assert queue.acknowledge("a", (1, 1, ACCEPT), (4, 4, ACCEPT)) == Acknowledged(2, 0, 0, 0, 0)
    assert queue.acknowledge("a", (3, 3, ACCEPT)) is None


def test_expired_locks_are_left_unless_asked_for(queue: Queue) -> None:
    queue.add(1, 2)
    queue.acquire("a", 1)
    queue.age([1])
    assert queue.runs("b", checks_members=False) == [(2, 2, 1)]


def test_renewal_begins_the_lock_again(queue: Queue) -> None:
    queue.add(1)
    queue.acquire()
    queue.age([1], LOCK_MS // 2)
    queue.acknowledge("a", (1, 1, RENEW))
    (row,) = queue.client.xpending_range(queue.stream, GROUP, "-", "+", 1)
    assert row["time_since_delivered"] < LOCK_MS // 2
    assert row["times_delivered"] == 1


@pytest.mark.parametrize("how", ["release", "expire", "close"])
def test_record_is_archived_after_the_last_delivery(queue: Queue, how: str) -> None:
    queue.add(1, 2)
    queue.limits = Limits(LOCK_MS, 2, 2000)
    queue.acquire("a", 1)
    queue.acknowledge("a", (1, 1, RELEASE))
    assert queue.runs("b", 1) == [(1, 1, 2)]
    if how == "release":
        assert queue.acknowledge("b", (1, 1, RELEASE)) == Acknowledged(0, 0, 1, 0, 0)
    elif how == "expire":
        queue.age([1])
    else:
        assert queue.release("b") == (1, 0)
    found = queue.acquire("c")
    assert [tuple(run) for run in found.runs] == [(2, 2, 1)]
    assert seen(found).archived == (how == "expire")
    assert list(queue.owners()) == [2]


@pytest.mark.parametrize("how", ["expire", "close"])
def test_records_that_were_read_too_early_were_not_delivered(queue: Queue, how: str) -> None:
    """A member has read records that it may not get yet, and is gone before it could give them back."""
    queue.add(*range(1, 5))
    queue.limits = Limits(LOCK_MS, 1, 2000)
    assert queue.runs("b", 1) == [(1, 1, 1)]
    queue.client.xreadgroup(GROUP, "kafka:a", {queue.stream: ">"}, count=3)
    if how == "expire":
        queue.age(range(1, 5))
        assert queue.runs("c", end=3) == []
    else:
        assert queue.release("a", end=3) == (1, 2)
        assert queue.release("b", end=3) == (1, 0)
    assert queue.owners() == {3: (RELEASED, 0), 4: (RELEASED, 0)}
    assert queue.runs("c", end=5) == [(3, 4, 1)]


@pytest.mark.parametrize("keeps_dead", [False, True])
def test_lower_limit_archives_released_records(queue: Queue, keeps_dead: bool) -> None:
    queue.add(1, 2)
    queue.acquire()
    queue.acknowledge("a", (1, 2, RELEASE))
    queue.limits = Limits(LOCK_MS, 1, 2000, keeps_dead=keeps_dead)
    found = queue.acquire()
    assert (found.runs, seen(found).archived, seen(found).has_dead) == ([], 2, keeps_dead)
    assert {owner for owner, _ in queue.owners().values()} == ({EXHAUSTED} if keeps_dead else set())


def test_closed_member_has_nothing_left(queue: Queue) -> None:
    queue.add(*range(1, 1502))
    queue.acquire("a", 1500)
    queue.acquire("b", 1)
    assert queue.release("a") == (0, 1500)
    assert queue.release("a") == (0, 0)
    assert {owner for owner, _ in queue.owners().values()} == {RELEASED, "kafka:b"}
    names = {row["name"] for row in queue.client.xinfo_consumers(queue.stream, GROUP)}
    assert b"kafka:a" not in names
    assert queue.runs("b", 2000) == [(1, 1500, 2)]


def test_deleted_entries_are_not_delivered_again(queue: Queue) -> None:
    queue.add(*range(1, 7))
    queue.acquire("a", 6)
    queue.acknowledge("a", (1, 4, RELEASE))
    queue.client.xdel(queue.stream, entry_id(2, queue.bias), entry_id(5, queue.bias))
    assert queue.runs("b") == [(1, 1, 2), (3, 4, 2)]
    assert queue.acknowledge("a", (5, 6, RELEASE)) == Acknowledged(0, 0, 0, 2, 0)
    assert queue.runs("b") == [(6, 6, 2)]
    assert set(queue.owners()) == {1, 3, 4, 6}


def test_native_workers_compete(queue: Queue) -> None:
    queue.add(*range(1, 11))
    queue.acquire("a", 2)
    natively = queue.read_natively(3)
    assert queue.runs("b", 2) == [(6, 7, 1)]
    queue.client.xack(queue.stream, GROUP, natively[0])
    # A native worker takes what a member released, and a member what a native worker has kept too long.
    queue.acknowledge("a", (1, 1, RELEASE))
    claimed = queue.client.xautoclaim(queue.stream, GROUP, "native", LOCK_MS, "0-0")[1]
    assert [entry for entry, _ in claimed] == [entry_id(1, queue.bias).encode()]
    queue.age([4])
    found = queue.acquire("b", 10)
    assert found.runs == [Run(4, 4, 2), Run(8, 10, 1)]
    assert seen(found).has_natives
    assert queue.owners()[5] == ("native", 1)
    assert queue.acknowledge("a", (2, 2, ACCEPT)) == Acknowledged(1, 0, 0, 0, 0)


def test_pages_of_native_consumers(queue: Queue) -> None:
    queue.add(*range(1, 1023))
    queue.read_natively(700, "x")
    queue.read_natively(300, "y")
    queue.age([650, 990])
    first = queue.acquire(records=1)
    assert first.runs == [Run(1001, 1001, 1)]
    second = queue.acquire(records=1, natives_after=seen(first).natives_after)
    assert second.runs == [Run(650, 650, 2)]
    assert seen(second).natives_after == (b"y", entry_id(300 + 700, queue.bias).encode())
    third = queue.acquire(records=1, natives_after=seen(second).natives_after)
    assert third.runs == [Run(990, 990, 2)]
    assert seen(third).natives_after == (b"", b"")


def test_group_that_goes_back_is_read_in_order(queue: Queue) -> None:
    queue.add(*range(1, 11))
    queue.acquire("a", 10)
    queue.acknowledge("a", (1, 9, b"111211111"))
    queue.client.xgroup_setid(queue.stream, GROUP, entry_id(1, queue.bias))
    assert queue.runs("b") == [(2, 10, 1)]


def test_nothing_is_acquired_from_the_end_on(queue: Queue) -> None:
    assert queue.runs(end=0) == []
    queue.add(*range(1, 11))
    first = queue.acquire(end=4)
    assert first.runs == [Run(1, 3, 1)]
    assert not first.has_more
    assert queue.runs(end=4) == []
    queue.add(11)
    assert queue.runs(end=4) == []
    assert queue.runs(end=7) == [(4, 6, 1)]
    assert queue.runs() == [(7, 11, 1)]


def test_markers_and_aborted_transactions_are_gaps(queue: Queue) -> None:
    queue.add(1, 2, pid=7, epoch=0)
    queue.add(3)
    queue.add(4, pid=8, epoch=0)
    queue.client.xadd(queue.stream, {"ctl": "abort", "pid": 7, "epoch": 0}, id=entry_id(5, queue.bias))
    queue.client.xadd(queue.stream, {"ctl": "commit", "pid": 8, "epoch": 0}, id=entry_id(6, queue.bias))
    queue.add(7, pid=7, epoch=0)
    queue.client.zadd(queue.aborted, {"7 1 4": 5})
    assert queue.runs(end=7, is_committed=True) == [(3, 4, 1)]
    assert queue.runs("b", is_committed=False) == [(7, 7, 1)]
    assert set(queue.owners()) == {3, 4, 7}


def test_records_of_aborted_transactions_are_delivered_uncommitted(queue: Queue) -> None:
    queue.add(1, 2, pid=7, epoch=0)
    queue.client.xadd(queue.stream, {"ctl": "abort", "pid": 7, "epoch": 0}, id=entry_id(3, queue.bias))
    queue.client.zadd(queue.aborted, {"7 1 4": 3})
    assert queue.runs() == [(1, 2, 1)]


def test_entries_without_records_are_left_to_native_workers(bench: Bench) -> None:
    queue = Queue(bench)
    queue.initialise()
    queue.client.xadd(queue.stream, {"value": "v"}, id="1-1024")
    queue.client.xadd(queue.stream, {"batch": b"x" * 16 + b"\x02" + b"x" * 60}, id="2-0")
    queue.client.xadd(queue.stream, {"anything": "else", "batch": "x"}, id="2-1")
    queue.client.xadd(queue.stream, {"batch": "short"}, id="2-2")
    assert queue.runs() == [(pack(2, 1), pack(2, 2), 1)]
    parked = queue.client.xpending_range(queue.stream, GROUP, "-", "+", 10, UNREADABLE)
    assert [row["message_id"] for row in parked] == [b"1-1024", b"2-0"]


def test_group_begins_where_it_is_told(bench: Bench) -> None:
    queue = Queue(bench)
    with pytest.raises(NoShareGroup):
        queue.acquire()
    queue.add(1, 2, 3)
    assert queue.initialise(FROM_END)
    assert not queue.initialise(FROM_START)
    assert queue.runs() == []
    queue.add(4)
    assert queue.runs() == [(4, 4, 1)]
    # Members that have nothing are forgotten.
    queue.acquire("b")
    queue.initialise(FROM_START)
    assert [row["name"] for row in queue.client.xinfo_consumers(queue.stream, GROUP)] == [b"kafka:a"]


def test_group_without_a_stream(bench: Bench) -> None:
    queue = Queue(bench)
    assert queue.release("a") == (0, 0)
    assert queue.acknowledge("a", (1, 1, ACCEPT)) is None
    assert bench.run(queue.queue.view()) is None
    assert queue.initialise(FROM_END)
    queue.add(1)
    assert queue.runs() == [(1, 1, 1)]


def test_a_group_begins_anew(queue: Queue) -> None:
    queue.add(1, 2, 3, 4)
    assert queue.runs() == [(1, 4, 1)]
    queue.release("a")
    queue.acquire(records=2)
    queue.bench.run(queue.queue.restart(entry_id(2, queue.bias)))
    assert queue.owners() == {}
    view = queue.bench.run(queue.queue.view())
    assert view is not None
    assert (view.start, view.lag) == (3, 2)
    assert queue.runs("b") == [(3, 4, 1)]


def test_a_group_that_does_not_exist_begins(bench: Bench) -> None:
    queue = Queue(bench)
    bench.run(queue.queue.restart(FROM_START))
    queue.add(1)
    assert queue.runs() == [(1, 1, 1)]


def test_view(queue: Queue) -> None:
    assert queue.bench.run(queue.queue.view()) == (0, 0, 0, 0, 0, 0, 0, -1)
    queue.add(*range(1, 11))
    queue.acquire("a", 4)
    queue.acknowledge("a", (1, 3, b"121"))
    queue.read_natively(2)
    view = queue.bench.run(queue.queue.view())
    assert view is not None
    assert view[:-1] == (2, 1, 2, 1, 0, 0, 4)
    assert (view.lag, view._replace(new=-1).lag) == (8, -1)
    assert view.first_ms == 0


def test_view_tells_how_long_the_first_record_is_there(queue: Queue) -> None:
    def first_ms() -> int:
        view = queue.bench.run(queue.queue.view())
        assert view is not None
        assert view.waiting_ms(100) == max(100 - view.first_ms, 0)
        return view.first_ms

    queue.limits = KEPT
    for offset in range(1, 6):
        queue.add(offset, ts=offset)
    assert first_ms() == 1
    queue.acquire(records=3)
    queue.acknowledge("a", (1, 1, REJECT))
    assert first_ms() == 2
    queue.acknowledge("a", (2, 2, RELEASE), (3, 3, ACCEPT))
    assert first_ms() == 2
    assert queue.runs("b", 1) == [(2, 2, 2)]
    queue.read_natively(1)
    queue.acknowledge("b", (2, 2, ACCEPT))
    assert first_ms() == 4
    queue.client.xack(queue.stream, GROUP, entry_id(4, queue.bias))
    assert first_ms() == 5
    queue.acquire(records=1)
    queue.client.xdel(queue.stream, entry_id(5, queue.bias))
    empty = queue.bench.run(queue.queue.view())
    assert empty is not None
    assert (empty.first_ms, empty.waiting_ms(5)) == (-1, 0)


@pytest.mark.parametrize("deliveries", [1, 2])
def test_records_that_nobody_has_are_no_backlog_of_a_consumer(queue: Queue, deliveries: int) -> None:
    """They look as if they had been delivered in 1970, so that anybody gets them."""
    queue.limits = Limits(LOCK_MS, deliveries, 2000, keeps_dead=True)
    queue.add(1)
    queue.acquire()
    queue.acknowledge("a", (1, 1, RELEASE))
    (found,) = queue.bench.run(read_backlogs(queue.bench.store.commands, queue.stream))
    assert found == Backlog(GROUP, 2, 1, None)


def dead_of(queue: Queue, count: int = 100, *, copies: bool = False, **demand: Any) -> list[DeadRecord]:
    return queue.bench.run(queue.queue.dead(count, copies=copies, **demand))


def test_archived_records_wait_to_become_dead_letters(queue: Queue) -> None:
    queue.limits = KEPT
    queue.add(1, 2, 3, 4, 5)
    queue.acquire()
    done = queue.acknowledge("a", (1, 1, ACCEPT), (2, 2, REJECT), (3, 3, GAP), (4, 5, RELEASE))
    assert done == Acknowledged(accepted=1, rejected=2, archived=0, released=2, renewed=0)
    queue.acquire()
    queue.acknowledge("a", (4, 4, RELEASE))
    queue.age([5])
    looked = queue.acquire(records=0)
    assert seen(looked).has_dead
    assert queue.owners() == {2: (REJECTED, 1), 4: (EXHAUSTED, 2), 5: (EXHAUSTED, 2)}
    found = dead_of(queue, copies=True)
    assert [(one.offset, one.deliveries, one.rejected) for one in found] == [
        (2, 1, True),
        (4, 2, False),
        (5, 2, False),
    ]
    assert {tuple(one.fields) for one in found} == {(b"value", b"v")}
    assert queue.bench.run(queue.queue.view()) == QueueView(2, 0, 0, 0, 0, 3, 0, mock.ANY)
    queue.bench.run(queue.queue.forget_dead(dead_of(queue, 2)))
    assert queue.owners() == {5: (EXHAUSTED, 2)}


def test_the_records_of_a_lost_member_and_of_native_consumers_become_dead_letters(queue: Queue) -> None:
    queue.limits = KEPT
    queue.add(1, 2, 3)
    queue.runs(records=1)
    queue.release("a")
    assert queue.runs("b", records=1) == [(1, 1, 2)]
    assert queue.release("b") == (1, 0)
    [taken, late] = queue.read_natively(2)
    for entry in (taken, late):
        queue.client.xclaim(queue.stream, GROUP, "other", 0, [entry], idle=LOCK_MS)
    # What a native worker hands to this consumer, it rejects.
    queue.client.xclaim(queue.stream, GROUP, REJECTED, 0, [taken], justid=True)
    assert seen(queue.acquire(records=0)).has_dead
    assert [(one.offset, one.deliveries, one.rejected) for one in dead_of(queue)] == [
        (2, 2, True),
        (1, 2, False),
        (3, 2, False),
    ]


def test_no_dead_letters_of_what_committed_readers_do_not_get(queue: Queue) -> None:
    """Native consumers read markers, aborted records, and those of open transactions."""
    queue.limits = KEPT
    queue.add(1, pid=7, epoch=0)
    queue.client.xadd(queue.stream, {"ctl": "abort", "pid": 7, "epoch": 0}, id=entry_id(2, queue.bias))
    queue.client.zadd(queue.aborted, {"7 1 1": 2})
    queue.add(3)
    queue.add(4, pid=7, epoch=0)
    ids = queue.read_natively(4)
    queue.client.xclaim(queue.stream, GROUP, "other", 0, ids, idle=LOCK_MS)
    assert seen(queue.acquire(records=0)).has_dead
    committed = dead_of(queue, end=4, is_committed=True)
    assert [(one.offset, one.is_gap) for one in committed] == [(1, True), (2, True), (3, False)]
    assert dead_of(queue, end=0) == []
    assert [one.is_gap for one in dead_of(queue)] == [False, True, False, False]


def test_a_record_that_somebody_has_again_is_not_archived_with_its_letter(queue: Queue) -> None:
    """New offsets, or XCLAIM, gave it to a consumer while the letter was written."""
    queue.limits = KEPT
    queue.add(1, 2, 3)
    queue.acquire()
    queue.acknowledge("a", (1, 3, REJECT))
    dead = dead_of(queue)
    queue.client.xclaim(queue.stream, GROUP, "native", 0, [entry_id(2, queue.bias)], justid=True)
    queue.bench.run(queue.queue.forget_dead(dead))
    assert queue.owners() == {2: ("native", 1)}
    queue.bench.run(queue.queue.restart(FROM_START))
    assert queue.runs() == [(1, 3, 1)]
    queue.bench.run(queue.queue.forget_dead(dead))
    assert queue.owners() == dict.fromkeys((1, 2, 3), ("kafka:a", 1))
    queue.client.xgroup_destroy(queue.stream, GROUP)
    queue.bench.run(queue.queue.forget_dead(dead))


def test_dead_letters_of_entries_that_are_gone_have_no_fields(queue: Queue) -> None:
    queue.limits = KEPT
    queue.add(1)
    queue.acquire()
    queue.acknowledge("a", (1, 1, REJECT))
    queue.client.xdel(queue.stream, entry_id(1, queue.bias))
    assert [tuple(one.fields) for one in dead_of(queue, copies=True)] == [()]


def test_a_group_that_keeps_no_dead_letters_any_more_forgets_them(queue: Queue) -> None:
    queue.limits = KEPT
    queue.add(1, 2)
    queue.acquire()
    queue.acknowledge("a", (1, 1, REJECT))
    queue.limits = Limits(LOCK_MS, 2, 2000)
    assert not seen(queue.acquire()).has_dead
    assert queue.owners() == {2: ("kafka:a", 1)}


# The view of pending entries


def test_the_view_of_many_pending_entries_is_cut(queue: Queue) -> None:
    queue.add(*range(1, 1_501))
    queue.read_natively(1_500)
    queue.client.xack(queue.stream, GROUP, entry_id(1, queue.bias))
    view = queue.bench.run(queue.queue.pending())
    assert view == PendingView(2, 1_501, 1_499, True, [PendingRun(2, 1_001, 1, PendingKind.TAKEN)])


def test_without_a_group_nothing_is_pending(queue: Queue) -> None:
    queue.client.xgroup_destroy(queue.stream, GROUP)
    assert queue.bench.run(queue.queue.pending()) is None


def test_entries_without_an_offset_are_in_no_run(queue: Queue) -> None:
    queue.add(1, 2)
    queue.client.xadd(queue.stream, {"value": b"v"}, id=f"{1 << 60}-7")
    queue.read_natively(3)
    view = queue.bench.run(queue.queue.pending())
    assert view is not None
    assert view.runs == [PendingRun(1, 2, 1, PendingKind.TAKEN)]


# Fields of an entry, and whether a member gets it with read_uncommitted and with read_committed.
KINDS: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "record": ({"value": "v"}, True, True),
    "large": ({"value": "v" * 300}, True, True),
    "foreign": ({"batch": "short"}, True, True),
    "transaction": ({"value": "v", "pid": 8, "epoch": 0}, True, True),
    "aborted": ({"value": "v", "pid": 7, "epoch": 0}, True, False),
    "marker": ({"ctl": "abort", "pid": 7, "epoch": 0}, False, False),
    "whole batch": ({"batch": b"x" * 16 + b"\x02" + b"x" * 60}, False, False),
    "without an offset": ({"value": "v"}, False, False),
}
entries = st.lists(st.tuples(st.sampled_from(["record", *KINDS]), st.integers(1, 2)), max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    entries=entries,
    records=st.sampled_from([1, 3, 500]),
    size_bytes=st.sampled_from([1, 500, 1 << 20]),
    largest_bytes=st.sampled_from([0, 1, 400]),
    is_committed=st.booleans(),
    end=st.none() | st.integers(0, 60),
)
def test_each_record_is_acquired_once_whatever_is_among_them(
    queue: Queue,
    entries: list[tuple[str, int]],
    records: int,
    size_bytes: int,
    largest_bytes: int,
    is_committed: bool,
    end: int | None,
) -> None:
    queue.client.delete(queue.stream, queue.aborted)
    queue.initialise()
    queue.client.zadd(queue.aborted, {f"7 0 {pack(90, 0)}": pack(90, 0)})
    expected, unreadable, offset = [], 0, 0
    for kind, step in entries:
        fields, *is_record = KINDS[kind]
        offset += step
        is_read = end is None or offset < end
        if kind == "without an offset":
            ms = (offset + queue.bias) // 1024
            offset, is_read = pack(ms, 1023) - queue.bias, end is None
            queue.client.xadd(queue.stream, fields, id=f"{ms}-1024")
        else:
            queue.client.xadd(queue.stream, fields, id=entry_id(offset, queue.bias))
        unreadable += is_read and kind in {"whole batch", "without an offset"}
        if is_read and is_record[is_committed]:
            expected.append(offset)
    found: list[int] = []
    only_new = False
    while True:
        acquired = queue.acquire(
            records=records,
            size_bytes=size_bytes,
            largest_bytes=largest_bytes,
            is_committed=is_committed,
            end=end,
            only_new=only_new,
        )
        assert acquired.records <= records
        assert len(acquired.data) <= size_bytes or acquired.records == 1
        found += [offset for run in acquired.runs for offset in range(run.first, run.last + 1)]
        assert all(run.deliveries == 1 for run in acquired.runs)
        only_new = acquired.reads_new or (acquired.found is None and only_new)
        if not acquired.has_more and not acquired.runs:
            break
    assert found == expected
    owners = queue.client.xpending(queue.stream, GROUP)["consumers"]
    pending = {row["name"].decode(): row["pending"] for row in owners}
    pending.pop(RELEASED, None)
    assert pending == {
        name: count for name, count in (("kafka:a", len(expected)), (UNREADABLE, unreadable)) if count
    }


def test_a_reader_of_new_records_notices_that_the_group_is_gone(queue: Queue) -> None:
    queue.add(1)
    assert queue.runs(only_new=True) == [(1, 1, 1)]
    queue.client.xgroup_destroy(queue.stream, GROUP)
    with pytest.raises(NoShareGroup):
        queue.acquire(only_new=True)


@pytest.mark.parametrize("types", [b"1", b"2", b"12"])
def test_acknowledging_all_locks_leaves_other_entries(queue: Queue, types: bytes) -> None:
    """Also between and beside the ranges, and across milliseconds."""
    offsets = [*range(1020, 1030), *range(1032, 1036), 2050]
    queue.add(1, *offsets, 3000)
    assert queue.read_natively(1) == [entry_id(1, queue.bias).encode()]
    queue.acquire("a", len(offsets))
    queue.acquire("b")
    missing = (1020, 1029, types[:1]), (1032, 1034, types[:1])
    assert queue.acknowledge("a", *missing, (2050, 2051, types[:1])) is None
    assert queue.acknowledge("a", *missing, (2049, 2050, types[:1])) is None
    assert set(queue.owners()) == {1, *offsets, 3000}
    done = queue.acknowledge("a", (1020, 1029, types[:1]), (1032, 1035, types[-1:]), (2050, 2050, types[:1]))
    assert done is not None
    assert done.accepted + done.released == len(offsets)
    assert {offset for offset, (owner, _) in queue.owners().items() if owner != RELEASED} == {1, 3000}


def test_an_expired_lock_among_all_of_a_member(queue: Queue) -> None:
    queue.add(1, 2, 3)
    queue.acquire()
    queue.age([2])
    assert queue.acknowledge("a", (1, 3, ACCEPT)) is None
    assert set(queue.owners()) == {1, 2, 3}
