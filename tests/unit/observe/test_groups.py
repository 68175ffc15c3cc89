"""What the collector of groups keeps from one scrape to the next."""

from __future__ import annotations

import struct
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from korvet.groups.context import GroupCounts
from korvet.observe.groups import GroupCollector
from korvet.observe.lag import WatchedGroup
from korvet.observe.ordinals import Ends
from korvet.observe.positions import Progress
from tests.unit.observe.pages import page_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def assignment(*partitions: int) -> bytes:
    """A member's assignment of partitions of one topic."""
    return assignment_of({"t": partitions})


def assignment_of(topics: Mapping[str, Sequence[int]]) -> bytes:
    """A member's assignment of partitions by topic."""
    found = struct.pack(">hi", 0, len(topics))
    for name, partitions in topics.items():
        found += struct.pack(f">h{len(name)}si", len(name), name.encode(), len(partitions))
        found += struct.pack(f">{len(partitions)}i", *partitions)
    return found + struct.pack(">i", -1)


def parts_with(groups: dict[str, Any], lag: Any) -> Any:
    """What the collector reads of a broker that coordinates these groups. All topics exist."""
    return SimpleNamespace(
        store=SimpleNamespace(
            commands=SimpleNamespace(cluster_id="id"),
            catalogue=SimpleNamespace(get=lambda name: SimpleNamespace(name=name)),
        ),
        coordinator=SimpleNamespace(
            terms=[(0, SimpleNamespace(shard=SimpleNamespace(groups=groups)))], counts=GroupCounts()
        ),
        lag=lag,
        config=SimpleNamespace(metrics_max_rows=20_000),
    )


def lag_of(groups: dict[str, WatchedGroup], logs: dict[tuple[str, int], Any] | None = None) -> Any:
    """A watch over these groups and logs, and no share groups."""
    return SimpleNamespace(
        groups=groups, logs=logs or {}, shows_group=lambda _: True, queues=SimpleNamespace(left_out=())
    )


def watched_group(topics: Sequence[str], partitions: int) -> WatchedGroup:
    """A group that has committed for these partitions of each topic."""
    watched = WatchedGroup("g")
    watched.is_shown = True
    watched.topics = {name: {number: Progress(0) for number in range(partitions)} for name in topics}
    return watched


def test_partitions_without_a_commit_take_no_quadratic_time() -> None:
    topics = [f"topic-{number}" for number in range(3_000)]
    member = SimpleNamespace(
        client_host="/h",
        member_id="m",
        client_id="c",
        assignment=assignment_of(dict.fromkeys(topics, range(10))),
    )
    group = SimpleNamespace(
        is_empty=False,
        members={"m": member},
        state_name="Stable",
        group_type="classic",
        protocol_type="consumer",
    )
    lag = lag_of({"g": watched_group(topics, 9)})
    collector = GroupCollector(parts_with({"g": group}, lag))
    durations_s = []
    # The shortest of three: another process may slow one of them down.
    for _ in range(3):
        began_s = time.process_time()
        page = page_of(collector.collect())
        durations_s.append(time.process_time() - began_s)
    assert min(durations_s) < 1
    rows = {key: value for key, value in page.items() if key.startswith("kafka_consumergroup_lag{")}
    assert rows == {
        f"kafka_consumergroup_lag{{consumergroup=g,partition=9,topic={name}}}": -1 for name in topics
    }


def test_a_group_that_has_gone_is_not_shown_until_the_next_look() -> None:
    ends = Ends(0, 0, 9, 0, 9)
    watched = watched_group(["t"], 1)
    watched.topics["t"][0].must_be_read(ends._replace(log_end=0))
    lag = lag_of({"g": watched}, {("t", 0): SimpleNamespace(ends=ends, backlogs=[])})
    group = SimpleNamespace(
        is_empty=True, members={}, state_name="Empty", group_type="classic", protocol_type="consumer"
    )
    groups: dict[str, Any] = {"g": group}
    collector = GroupCollector(parts_with(groups, lag))
    lag_key = "kafka_consumergroup_lag{consumergroup=g,partition=0,topic=t}"
    assert lag_key in page_of(collector.collect())
    # Deleted, or another broker coordinates it now.
    del groups["g"]
    assert lag_key not in page_of(collector.collect())


def scraped(collector: GroupCollector) -> None:
    for samples in collector.collect():
        list(samples.rows)


def test_only_assignments_of_present_members_are_kept() -> None:
    """Each rebalance makes other ones, of thousands of partitions."""
    lag = lag_of({})
    collector = GroupCollector(parts_with({}, lag))
    stays = assignment(1, 2)
    found = collector._assignment(stays)
    assert found == [("t", 1), ("t", 2)]
    for number in range(10):
        scraped(collector)
        assert collector._assignment(stays) is found
        collector._assignment(assignment(number, number + 1, number + 2))
    assert len(collector._assigned) + len(collector._assigned_before) <= 4
