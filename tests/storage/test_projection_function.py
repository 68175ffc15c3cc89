"""korvet_project and korvet_drop_group on a real server: the position of a Redis group after commits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.offsets.packing import entry_id, pack
from korvet.redis.functions import library_source
from tests.storage.projected_stream import GROUP, MORE, STALE, Client, Stream

if TYPE_CHECKING:
    from tests.support.redis_server import Server

# Other groups of a stream: more than a call lists.
CROWD = 150


@pytest.fixture(scope="session")
def client(server: Server) -> Client:
    """The shared server with korvet's functions."""
    server.client.function_load(library_source(), replace=True)
    return server.client


Make = Callable[..., Stream]


@pytest.fixture(params=[0, CROWD], ids=["alone", "in a crowd"])
def make(client: Client, request: pytest.FixtureRequest) -> Make:
    """Make a stream with these entries; if there are entries, also with other groups."""

    def new(*offsets: int, bias: int = 0) -> Stream:
        stream = Stream(client, bias=bias)
        stream.add(*offsets)
        if offsets:
            stream.crowd(request.param)
        return stream

    return new


def packed(*milliseconds: int) -> list[int]:
    return [pack(ms, 0) for ms in milliseconds]


@pytest.mark.parametrize("bias", [0, 1])
def test_native_group_continues_at_the_committed_offset(make: Make, bias: int) -> None:
    stream = make(*range(1, 11), bias=bias)
    assert stream.project(6, 1) == 1
    assert stream.group()["lag"] == 5
    assert stream.read(1) == [6]
    assert stream.pending() == stream.ids([6])


def test_commit_acknowledges_everything_at_or_below(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.project(1, 1)
    assert stream.read(10) == list(range(1, 11))
    stream.project(6, 2)
    assert stream.pending() == stream.ids(range(6, 11))
    # Entries after the commit that native consumers have pending stay pending: none is delivered twice.
    assert stream.delivered() == entry_id(10)
    assert stream.read() == []


@pytest.mark.parametrize("deleted", [[5], [5, 6], [1, 2, 3, 4, 5], [7, 8, 9, 10]])
def test_commit_next_to_a_gap(make: Make, deleted: list[int]) -> None:
    stream = make(*range(1, 11))
    stream.delete(*deleted)
    left = [offset for offset in range(1, 11) if offset not in deleted]
    stream.project(6, 1)
    behind = [offset for offset in left if offset >= 6]
    group = stream.group()
    assert stream.client.xinfo_stream(stream.key)["entries-added"] - group["entries-read"] == len(behind)
    assert stream.read() == behind


def test_commit_of_a_sparse_offset_in_no_record(make: Make) -> None:
    stream = make(*packed(10, 20, 30))
    stream.project(pack(20, 0) + 1, 1)
    assert stream.delivered() == "20-0"
    assert stream.read() == packed(30)
    stream.project(pack(25, 7), 2)
    assert stream.delivered() == "30-0"


@pytest.mark.parametrize("bias", [0, 1])
def test_offset_zero_acknowledges_nothing(make: Make, bias: int) -> None:
    stream = make(*range(1 - bias, 4), bias=bias)
    stream.project(0, 1)
    assert stream.delivered() == "0-0"
    assert stream.read() == list(range(1 - bias, 4))
    held = stream.pending()
    stream.project(0, 2)
    assert stream.pending() == held


def test_rewind_releases_what_is_pending_and_goes_back(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.project(4, 1)
    assert stream.read(5) == [4, 5, 6, 7, 8]
    stream.project(9, 2)
    stream.project(3, 3)
    assert stream.pending() == []
    assert stream.group()["lag"] == 8
    assert stream.read() == list(range(3, 11))


def test_rewind_to_zero(make: Make) -> None:
    stream = make(*range(1, 4))
    stream.project(4, 1)
    assert stream.group()["lag"] == 0
    stream.project(0, 2)
    assert stream.delivered() == "0-0"
    assert stream.group()["lag"] == 3
    assert stream.read() == [1, 2, 3]


def test_native_consumer_that_moved_ahead_is_not_thrown_back(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.project(3, 1)
    assert stream.read(6, noack=True) == [3, 4, 5, 6, 7, 8]
    stream.project(5, 2)
    assert stream.delivered() == entry_id(8)
    assert stream.read() == [9, 10]


def test_group_made_by_a_native_application(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.client.xgroup_create(stream.key, GROUP, entry_id(7))
    assert stream.group()["lag"] is None
    stream.project(4, 1)
    assert stream.delivered() == entry_id(7)
    assert stream.group()["lag"] == 3


def test_already_acknowledged_records(make: Make) -> None:
    stream = make(*range(1, 6))
    stream.project(1, 1)
    stream.read(5)
    stream.client.xack(stream.key, GROUP, *stream.ids([1, 3]))
    stream.project(5, 2)
    assert stream.pending() == stream.ids([5])


@pytest.mark.each_server
def test_pending_entries_that_were_deleted_are_acknowledged(make: Make) -> None:
    stream = make(*range(1, 6))
    stream.project(1, 1)
    stream.read(5)
    stream.delete(1, 2)
    stream.project(4, 2)
    assert stream.pending() == stream.ids([4, 5])


@pytest.mark.parametrize("offset", [1_000, 10**9, 2**53 + 1, 2**63 - 1])
@pytest.mark.parametrize("bias", [0, 1])
def test_commit_past_the_log_end(make: Make, offset: int, bias: int) -> None:
    stream = make(1, 2, 3, bias=bias)
    stream.project(offset, 1)
    assert stream.stored() == f"1 {offset}".encode()
    assert stream.read() == []
    assert stream.group()["lag"] == 0
    stream.project(2, 2)
    assert stream.read() == [2, 3]


def test_neighbours_above_two_to_the_53_are_told_apart(make: Make) -> None:
    stream = make()
    stream.project(2**63 - 1, 1)
    stream.project(2**63 - 2, 2)
    assert stream.delivered() == entry_id(2**63 - 3)


def test_foreign_ids_above_two_to_the_53(make: Make) -> None:
    stream = make()
    stream.client.xadd(stream.key, {"value": "1"}, id=f"{2**64 - 1}-5")
    stream.client.xadd(stream.key, {"value": "2"}, id=f"{2**64 - 1}-{2**64 - 1}")
    stream.project(1, 1)
    assert stream.read(1) == [1]
    stream.project(2**63 - 1, 2)
    assert stream.delivered() == f"{2**64 - 1}-5"
    assert stream.read() == [2]


def test_many_pending_entries_go_in_bounded_chunks(make: Make, client: Client) -> None:
    stream = make()
    pipeline = client.pipeline(transaction=False)
    for offset in range(1, 5_101):
        pipeline.xadd(stream.key, {"value": str(offset)}, id=entry_id(offset))
    pipeline.execute()
    stream.project(1, 1)
    stream.read(5_100)
    assert stream.project_once(5_001, 2) == MORE
    assert stream.stored() == b"1 1"
    assert len(stream.pending()) == 4_100
    # 5,000 entries: four more full chunks, then one call that finds no pending entry.
    assert stream.project(5_001, 2) == 5
    assert stream.stored() == b"2 5001"
    assert stream.pending() == stream.ids(range(5_001, 5_101))


def test_newer_commit_overtakes_an_unfinished_one(make: Make) -> None:
    stream = make(*range(1, 21))
    stream.project(1, 1)
    stream.read(20)
    assert stream.project_once(15, 2, limit=5) == MORE
    stream.project(18, 3)
    assert stream.project_once(15, 2, limit=5) == STALE
    assert stream.pending() == stream.ids([18, 19, 20])
    assert stream.stored() == b"3 18"


def test_repeated_and_late_projections_do_nothing(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.project(5, 7)
    assert stream.read(3) == [5, 6, 7]
    before = (stream.group(), stream.pending(), stream.stored())
    assert stream.project(5, 7) == 0
    assert stream.project(9, 6) == 0
    assert stream.project(1, 2) == 0
    assert (stream.group(), stream.pending(), stream.stored()) == before


def test_positions_compare_as_numbers(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.project(5, 9)
    assert stream.project(6, 10) == 1
    assert stream.project(7, 9) == 0


def test_group_deleted_by_a_native_application_comes_back_with_the_next_commit(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.project(8, 1)
    stream.client.xgroup_destroy(stream.key, GROUP)
    stream.project(5, 2)
    assert stream.read() == list(range(5, 11))


def test_stream_deleted_by_a_native_application(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.project(8, 1)
    stream.client.delete(stream.key)
    stream.project(9, 2)
    assert stream.group()["lag"] == 0
    stream.client.delete(stream.key)
    assert stream.drop(force=True) == 0
    assert stream.stored() is None


@pytest.mark.each_server
def test_trimmed_stream_keeps_the_lag(make: Make) -> None:
    stream = make(*range(1, 21))
    stream.client.xtrim(stream.key, maxlen=5, approximate=False)
    stream.project(3, 1)
    assert stream.group()["lag"] == 5
    stream.project(18, 2)
    assert stream.group()["lag"] == 3


@pytest.mark.each_server
def test_lag_follows_later_appends(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.delete(2, 4)
    stream.project(7, 1)
    assert stream.group()["lag"] == 4
    stream.add(11, 12)
    assert stream.group()["lag"] == 6


def test_key_of_another_type_is_an_error_and_changes_nothing(make: Make, client: Client) -> None:
    stream = make()
    client.set(stream.key, "no stream")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        stream.project(1, 1)
    assert stream.stored() is None
    client.hset(stream.meta, f"commit:{GROUP}", "1 1")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        stream.drop(force=True)
    assert stream.stored() == b"1 1"


def test_commits_of_many_groups_in_one_call(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.client.xgroup_create(stream.key, "other", entry_id(8))
    commits = [(f"g{number}", number, number, number) for number in range(1, 11)]
    assert stream.project_all([*commits, ("other", 11, 5, 5)]) == [1] * 11
    listed = {group["name"].decode(): group for group in stream.client.xinfo_groups(stream.key)}
    groups = {name: group for name, group in listed.items() if not name.startswith("crowd")}
    assert {name: group["lag"] for name, group in groups.items()} == {
        **{f"g{number}": 11 - number for number in range(1, 11)},
        "other": 2,
    }
    assert stream.project_all([commits[0], ("g2", 12, 9, 9), ("other", 11, 5, 5)]) == [STALE, 1, STALE]


def test_several_commits_of_one_group_in_one_call(make: Make) -> None:
    stream = make(*range(1, 11))
    assert stream.project_all([(GROUP, 1, 8, 8), (GROUP, 2, 3, 3), (GROUP, 2, 3, 3)]) == [1, 1, STALE]
    assert stream.delivered() == entry_id(2)
    assert stream.stored() == b"2 3"
    assert stream.group()["lag"] == 8


@pytest.mark.parametrize("earliest", ["", 2])
def test_commit_that_stands_for_one_that_went_back(make: Make, earliest: int | str) -> None:
    stream = make(*range(1, 11))
    stream.project(4, 1)
    assert stream.read() == list(range(4, 11))
    stream.project_all([(GROUP, 3, 6, earliest)])
    assert stream.pending() == []
    assert stream.read() == list(range(6, 11))


@pytest.mark.parametrize("deleted", [[], [2], [5], [9], [1, 2, 3], [10]])
@pytest.mark.each_server
def test_lag_is_exact_step_by_step(make: Make, deleted: list[int]) -> None:
    stream = make(*range(1, 11))
    stream.project(3, 1)
    stream.delete(*deleted)
    for step, offset in enumerate((4, 6, 9, 10, 11), 2):
        stream.project(offset, step)
        left = [live for live in range(offset, 11) if live not in deleted]
        group = stream.group()
        assert stream.client.xinfo_stream(stream.key)["entries-added"] - group["entries-read"] == len(left)


def test_counting_beyond_the_index_is_bounded(client: Client) -> None:
    stream = Stream(client)
    client.eval("for n = 1, 30000 do redis.call('XADD', KEYS[1], n .. '-0', 'value', n) end", 1, stream.key)
    stream.project(pack(9, 0), 1)
    assert (stream.delivered(), stream.group()["lag"]) == ("8-1023", None)
    stream.project(pack(29_000, 0), 2)
    assert stream.group()["lag"] == 1_001


@pytest.mark.each_server
def test_lag_is_exact_behind_a_trim(make: Make) -> None:
    stream = make(*range(1, 201))
    stream.project(3, 1)
    stream.client.xtrim(stream.key, minid=entry_id(50), approximate=False)
    for step, offset in enumerate((5, 60, 61, 199, 300), 2):
        stream.project(offset, step)
        assert stream.group()["lag"] == max(0, 201 - max(offset, 50))


def test_drop_destroys_group_and_projection(make: Make) -> None:
    stream = make(1, 2, 3)
    stream.project(2, 1)
    stream.read()
    assert stream.drop(force=True) == 1
    assert GROUP.encode() not in [group["name"] for group in stream.client.xinfo_groups(stream.key)]
    assert stream.client.exists(stream.meta) == 0
    assert stream.drop(force=True) == 0
    # Deleted and used again: the earlier projection is forgotten.
    stream.project(3, 1)
    assert stream.read() == [3]


def test_late_drop_leaves_a_newer_commit_alone(make: Make) -> None:
    stream = make(1, 2, 3)
    stream.project(2, 10)
    assert stream.drop(force=True, position=9) == 0
    assert stream.stored() == b"10 2"
    assert stream.drop(force=True, position=10) == 1


def test_unforced_drop_leaves_native_consumers_alone(make: Make) -> None:
    stream = make(1, 2, 3)
    stream.project(2, 1)
    stream.read(1)
    assert stream.drop(force=False) == 0
    assert stream.pending() == stream.ids([2])
    assert stream.stored() == b"1000 -"
    stream.client.xack(stream.key, GROUP, *stream.ids([2]))
    assert stream.drop(force=False) == 0  # a consumer without pending entries still is one
    stream.client.xgroup_delconsumer(stream.key, GROUP, "c")
    assert stream.drop(force=False) == 1
    assert stream.stored() is None


def test_unforced_drop_leaves_a_group_alone_that_followed_no_commit(make: Make) -> None:
    stream = make(1, 2, 3)
    stream.client.xgroup_create(stream.key, GROUP, "0")
    assert stream.read(1) == [1]
    assert stream.drop(force=False) == 0
    assert stream.stored() == b"1000 -"
    assert stream.pending() == stream.ids([1])
    assert stream.read() == [2, 3]


def test_a_group_that_has_read_all_follows_a_commit_past_the_end(make: Make) -> None:
    stream = make(*range(1, 11))
    stream.project(1, 1)
    assert stream.read(10, noack=True) == list(range(1, 11))
    stream.project(21, 2)
    assert stream.delivered() == entry_id(20)
    stream.add(15)
    assert stream.read() == []


class Model:
    """The rules in Python: existing offsets, pending entries, the position, the newest commit."""

    def __init__(self) -> None:
        self.live: list[int] = []
        self.pending: set[int] = set()
        self.delivered = 0  # highest offset delivered; offset 0 cannot exist without bias
        self.newest: tuple[int, int] | None = None
        self.exists = False

    def commit(self, position: int, offset: int) -> None:
        if self.newest is not None and position <= self.newest[0]:
            return
        rewind = self.exists and self.newest is not None and offset < self.newest[1]
        self.pending = set() if rewind else {held for held in self.pending if held >= offset}
        last = max(offset - 1, 0)
        self.delivered = last if rewind or not self.exists else max(self.delivered, last)
        self.exists = True
        self.newest = (position, offset)

    def read(self, count: int) -> list[int]:
        got = [offset for offset in self.live if offset > self.delivered][:count]
        self.pending.update(got)
        self.delivered = max([self.delivered, *got])
        return got


def stands_alike(delivered: str, model: Model, *, exactly: bool) -> bool:
    """Whether a reader receives the same entries next, including future ones."""
    if exactly:
        return delivered == entry_id(model.delivered)
    stands, end = int(delivered.split("-")[1]), max([model.delivered, *model.live])
    behind = [[offset for offset in model.live if offset > at] for at in (stands, model.delivered)]
    return behind[0] == behind[1] and (stands <= end or stands == model.delivered)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 40), st.integers(-2, 3)),
        st.tuples(st.just("read"), st.integers(1, 10)),
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("delete"), st.integers(1, 40)),
        st.tuples(st.just("acknowledge"), st.integers(1, 40)),
    ),
    max_size=30,
)


@given(operations=OPERATIONS, limit=st.integers(1, 5), crowd=st.sampled_from([0, CROWD]))
@settings(max_examples=150)
def test_group_follows_the_model(
    client: Client, operations: list[tuple[Any, ...]], limit: int, crowd: int
) -> None:
    stream, model = Stream(client), Model()
    stream.crowd(crowd)
    position = end = 1
    for operation in operations:
        match operation:
            case ("commit", offset, step):
                position = max(1, position + step)
                stream.project(offset, position, limit)
                model.commit(position, offset)
            case ("read", count) if model.exists:
                assert stream.read(count) == model.read(count)
            case ("add", count):
                stream.add(*range(end, end + count))
                model.live.extend(range(end, end + count))
                end += count
            case ("delete", offset):
                stream.delete(offset)
                model.live = [live for live in model.live if live != offset]
            case ("acknowledge", offset) if model.exists:
                stream.client.xack(stream.key, GROUP, entry_id(offset))
                model.pending.discard(offset)
        if model.exists:
            assert stream.pending() == stream.ids(sorted(model.pending))
            assert stands_alike(stream.delivered(), model, exactly=not crowd)
            assert stream.stored() == "{} {}".format(*model.newest or ()).encode()


@pytest.mark.parametrize("others", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_commit_costs_the_same_however_many_groups_there_are(client: Client, others: int) -> None:
    def took_s(stream: Stream, position: int) -> float:
        began = time.perf_counter()
        stream.project(1 + position % 9, position)
        return time.perf_counter() - began

    alone, crowded = Stream(client), Stream(client)
    for stream in (alone, crowded):
        stream.add(*range(1, 11))
    crowded.crowd(others)
    times = [(took_s(alone, position), took_s(crowded, position)) for position in range(1, 101)]
    ratio = statistics.median(many for _, many in times) / statistics.median(one for one, _ in times)
    # Listing 20,000 groups takes 25 ms, a hundred times as long as the whole call.
    assert ratio < 10, ratio
    client.delete(crowded.key)
