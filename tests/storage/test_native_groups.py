"""The offsets of Redis groups as korvet_moved reports them: pending entries, gaps, batches, entries without
an offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.groups.native import NativeGroup, Projected
from korvet.offsets.packing import entry_id, pack
from korvet.redis_groups.moved_groups import NativeGroups
from korvet.redis_groups.projection import GroupCommit, Projection
from tests.api.batches import batch
from tests.storage.proxy import until
from tests.storage.test_batch_layout import append, batched, pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.log.partition_log import PartitionLog
    from tests.storage.conftest import Bench

GROUP = "g"
LAST_ID = "18446744073709551615-18446744073709551615"


class Groups:
    """One partition and its Redis groups."""

    def __init__(self, bench: Bench, log: PartitionLog) -> None:
        self.bench = bench
        self.log = log
        self.client = bench.client
        self.stream = log.stream
        self.reader = NativeGroups(bench.store.commands)

    def add(self, *ids: str) -> None:
        for one in ids:
            self.client.xadd(self.stream, {"value": "v"}, id=one)

    def create(self, at: str = "0", name: str = GROUP) -> None:
        self.client.xgroup_create(self.stream, name, at, mkstream=True)

    def read(self, count: int = 1000) -> list[str]:
        reply = self.client.xreadgroup(GROUP, "c", {self.stream: ">"}, count=count)
        return [one.decode() for one, _ in reply[0][1]] if reply else []

    def moved(self) -> list[NativeGroup]:
        found: list[NativeGroup] = self.bench.run(self.reader.moved([(self.log.topic, 0)]))
        return found

    def offset(self) -> int:
        (found,) = self.moved()
        return found.at

    def project(self, offset: int, position: int, native: int | None = None) -> None:
        projection = Projection(self.bench.store.commands)

        async def run() -> None:
            outcomes: list[Any] = []
            one = GroupCommit(GROUP, position, offset, offset, native)
            projection.project("t", 0, [one], bias=self.log.bias, done=outcomes.append)
            await until(lambda: bool(outcomes))
            assert outcomes == [[]]

        self.bench.run(run())


@pytest.fixture(params=["clock", "dense"])
def groups(bench: Bench, request: pytest.FixtureRequest) -> Groups:
    return Groups(bench, bench.log(offset_assignment=request.param))


def offsets(groups: Groups, *ids: str) -> list[int]:
    return [pack(*map(int, one.split("-"))) - groups.log.bias for one in ids]


IDS = [f"0-{number}" for number in range(1, 9)]


def test_the_offset_of_a_group(groups: Groups) -> None:
    groups.add(*IDS)
    named = offsets(groups, *IDS)
    groups.create()
    assert groups.offset() == 0
    assert groups.read(5) == IDS[:5]
    assert groups.offset() == named[0]
    groups.client.xack(groups.stream, GROUP, IDS[1], IDS[0])
    assert groups.offset() == named[2]
    groups.client.xack(groups.stream, GROUP, *IDS[2:5])
    assert groups.offset() == named[4] + 1
    groups.client.xgroup_setid(groups.stream, GROUP, "$")
    assert groups.offset() == named[7] + 1


@pytest.mark.each_server
def test_a_group_that_was_set_back_before_its_pending_entries(groups: Groups) -> None:
    groups.add(*IDS)
    groups.create()
    groups.read(6)
    groups.client.xack(groups.stream, GROUP, *IDS[:4])
    assert [groups.offset()] == offsets(groups, IDS[4])
    groups.client.xgroup_setid(groups.stream, GROUP, IDS[1])
    assert [groups.offset()] == offsets(groups, IDS[2])
    assert groups.read(1) == [IDS[2]]
    assert [groups.offset()] == offsets(groups, IDS[2])


def test_a_group_in_step_is_not_reported(groups: Groups) -> None:
    groups.add(*IDS)
    named = offsets(groups, *IDS)
    for position, offset in enumerate(
        (named[3], named[3] + 1, 0, named[7] + 1, 2**53 - 2, 2**63 - 1, named[2])
    ):
        groups.project(offset, position)
        assert groups.moved() == []
    # Neither if native readers have pending entries or are ahead.
    groups.read(3)
    (found,) = [*groups.moved(), None]
    assert found is None
    groups.client.xack(groups.stream, GROUP, IDS[2])
    (moved,) = groups.moved()
    assert (moved.at, moved.projected) == (named[3], Projected(6, named[2]))
    groups.project(named[2] + 1, 7)
    assert groups.moved() == []
    groups.project(named[3], 8, native=named[3])
    assert groups.moved() == []


@pytest.mark.each_server
def test_pending_entries_that_exist_no_more(groups: Groups) -> None:
    """Deleted one by one, trimmed, or all of them: the group is at the first one that still exists."""
    ids = [f"0-{number}" for number in range(1, 200)]
    groups.add(*ids)
    named = offsets(groups, *ids)
    groups.create()
    groups.read()
    groups.client.xdel(groups.stream, ids[0], ids[1], ids[3])
    assert groups.offset() == named[2]
    groups.client.xack(groups.stream, GROUP, ids[2])
    assert groups.offset() == named[4]
    groups.client.xtrim(groups.stream, minid=ids[50], approximate=False)
    assert groups.offset() == named[50]
    # Every other entry is deleted, those in between are acknowledged: skipping all of them takes time.
    groups.client.xack(groups.stream, GROUP, *ids[50:190:2])
    groups.client.xdel(groups.stream, *ids[51:190:2])
    assert named[51] <= groups.offset() <= named[190]
    groups.client.xack(groups.stream, GROUP, *ids[51:100:2])
    assert groups.offset() == named[190]
    groups.client.xdel(groups.stream, *ids)
    assert groups.offset() == named[-1] + 1


def test_entries_that_no_offset_names(bench: Bench) -> None:
    groups = Groups(bench, bench.log())
    groups.add("5-0", "5-1023", "5-1024", "5-4000", "6-0")
    groups.create()
    assert groups.read(3) == ["5-0", "5-1023", "5-1024"]
    groups.client.xack(groups.stream, GROUP, "5-0", "5-1023")
    assert groups.offset() == pack(6, 0)
    groups.client.xack(groups.stream, GROUP, "5-1024")
    assert groups.offset() == pack(6, 0)
    groups.project(pack(6, 0), 1, native=pack(6, 0))
    assert groups.read(1) == ["5-4000"]
    assert groups.moved() == [], "it comes before what is committed already"
    groups.client.xack(groups.stream, GROUP, "5-4000")
    groups.client.xgroup_setid(groups.stream, GROUP, LAST_ID)
    assert groups.offset() == 2**53


def test_the_log_start_is_reported(groups: Groups) -> None:
    groups.create()
    (found,) = groups.moved()
    assert (found.at, found.log_start, found.offset, found.projected) == (0, 0, 0, None)
    groups.add(*IDS)
    groups.client.xtrim(groups.stream, minid=IDS[3], approximate=False)
    (found,) = groups.moved()
    assert found.at == 0
    assert found.offset == found.log_start == offsets(groups, IDS[3])[0]


@pytest.mark.parametrize("assignment", ["clock", "dense"])
def test_batches_are_acknowledged_as_a_whole(bench: Bench, assignment: str) -> None:
    groups = Groups(bench, batched(bench, offset_assignment=assignment))
    sent = [bench.run(append(groups.log, batch(pairs(*[b"v"] * 10)))).base_offset for _ in range(4)]
    groups.create()
    held = groups.read(2)
    assert groups.offset() == sent[0]
    groups.client.xack(groups.stream, GROUP, held[0])
    assert groups.offset() == sent[1]
    groups.client.xack(groups.stream, GROUP, held[1])
    assert groups.offset() == sent[1] + 10
    # A commit inside a batch stays when a native reader gets that batch again.
    groups.project(sent[2] + 4, 1)
    assert groups.moved() == []
    (again,) = groups.read(1)
    assert again == entry_id(sent[2] + 9, groups.log.bias)
    assert groups.moved() == []
    groups.client.xack(groups.stream, GROUP, again)
    (found,) = groups.moved()
    assert found.at == sent[2] + 10


def test_a_pending_batch_that_begins_before_the_log_start(bench: Bench) -> None:
    groups = Groups(bench, batched(bench))
    sent = [bench.run(append(groups.log, batch(pairs(*[b"v"] * 10)))).base_offset for _ in range(3)]
    groups.create()
    held = groups.read(2)
    start = bench.run(groups.log.delete_before(sent[0] + 4, 1_000))
    (found,) = groups.moved()
    assert (found.at, found.offset) == (sent[0], start)
    groups.project(found.offset, 1, native=found.at)
    assert groups.moved() == []
    # Neither after a Kafka commit further on in the batch, nor back at the log start.
    groups.project(start + 2, 2)
    assert groups.moved() == []
    groups.project(start, 3)
    assert groups.read(1) == held[:1]
    assert groups.moved() == []
    groups.client.xack(groups.stream, GROUP, held[0])
    assert groups.offset() == sent[0] + 10


@pytest.mark.parametrize("layout", ["record", "batch"])
@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.each_server
def test_the_lag_after_a_commit_before_trimmed_entries(bench: Bench, layout: str, left: int) -> None:
    log = bench.log(storage_layout=layout)
    sent = [bench.run(append(log, batch(pairs(*[b"v"] * 100)))) for _ in range(10)]
    bench.client.xtrim(log.stream, maxlen=left, approximate=False)
    groups = Groups(bench, log)
    groups.project(sent[2].base_offset, 1)
    added = bench.client.xinfo_stream(log.stream)["entries-added"]
    assert added - bench.client.xinfo_groups(log.stream)[0]["entries-read"] == left
    groups.read()
    assert bench.client.xinfo_groups(log.stream)[0]["lag"] == 0


@pytest.mark.parametrize("layout", ["record", "batch"])
@pytest.mark.parametrize("reads", [0, 3])
@pytest.mark.each_server
def test_the_lag_after_native_reads_past_trimmed_entries(bench: Bench, layout: str, reads: int) -> None:
    log = bench.log(storage_layout=layout)
    sent = [bench.run(append(log, batch(pairs(b"v")))).base_offset for _ in range(20)]
    groups = Groups(bench, log)
    groups.project(sent[1], 1)
    bench.client.xtrim(log.stream, minid=entry_id(sent[12]), approximate=False)
    for _ in range(reads):
        groups.read(1)

    def lag() -> int:
        return bench.client.xinfo_stream(log.stream)["entries-added"] - group()["entries-read"]

    def group() -> Any:
        return bench.client.xinfo_groups(log.stream)[0]

    groups.project(sent[2], 2)
    assert lag() == 8 - reads
    groups.project(sent[16], 3)
    assert lag() == group()["lag"] == 4
    groups.read()
    assert lag() == group()["lag"] == 0


def test_many_groups_take_several_calls(groups: Groups) -> None:
    groups.add(*IDS)
    pipeline = groups.client.pipeline(transaction=False)
    for number in range(2_345):
        pipeline.xgroup_create(groups.stream, f"g{number}", "$")
    pipeline.execute()
    moved = groups.moved()
    assert {found.group for found in moved} == {f"g{number}" for number in range(2_345)}
    assert len(moved) == 2_345
    assert {found.at for found in moved} == {offsets(groups, IDS[-1])[0] + 1}


def test_a_round_lists_the_groups_of_a_stream_a_few_times_only(groups: Groups) -> None:
    def listings() -> int:
        counted: dict[str, Any] = groups.client.info("commandstats").get("cmdstat_xinfo|groups", {})
        return int(counted.get("calls", 0))

    groups.add(*IDS)
    pipeline = groups.client.pipeline(transaction=False)
    for number in range(20_000):
        pipeline.xgroup_create(groups.stream, f"g{number}", "0-3")
    pipeline.execute()
    before = listings()
    assert len(groups.moved()) == 20_000
    assert listings() - before <= 5


def test_nothing_to_read(groups: Groups) -> None:
    assert groups.moved() == []
    groups.add(*IDS)
    assert groups.moved() == []
    groups.client.delete(groups.stream)
    groups.client.set(groups.stream, "no stream")
    assert groups.moved() == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.sampled_from(("ack", "delete")), st.integers(0, 20)),
        st.tuples(st.sampled_from(("trim", "set")), st.integers(0, 20)),
    ),
    max_size=12,
)


@given(steps=STEPS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_rule_in_python(bench: Bench, steps: Sequence[tuple[str, int]]) -> None:
    """The oldest pending entry that exists, or the offset after the last delivered entry if that is earlier
    or nothing is pending.
    """
    topic = bench.store.catalogue.get("t")
    groups = Groups(bench, bench.log() if topic is None else bench.store.logs.get(topic, 0))
    groups.client.delete(groups.stream)
    live = list(range(1, 21))
    groups.add(*(f"{number}-0" for number in live))
    groups.create()
    delivered, pending = 0, set[int]()
    for step, number in steps:
        one = f"{number}-0"
        if step == "read":
            taken = [each for each in live if each > delivered][:number]
            assert groups.read(number) == [f"{each}-0" for each in taken]
            delivered = max([delivered, *taken])
            pending |= set(taken)
        elif step == "ack":
            groups.client.xack(groups.stream, GROUP, one)
            pending.discard(number)
        elif step == "set":
            groups.client.xgroup_setid(groups.stream, GROUP, one)
            delivered = number
        else:
            gone = [each for each in live if (each < number if step == "trim" else each == number)]
            live = [each for each in live if each not in gone]
            if gone:
                groups.client.xdel(groups.stream, *(f"{each}-0" for each in gone))
    left = pending & set(live)
    behind = pack(delivered, 0) + 1 if delivered else 0
    assert groups.offset() == min([behind, *(pack(each, 0) for each in left)])
