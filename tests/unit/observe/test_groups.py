"""What the collector of groups keeps from one scrape to the next."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

from korvet.groups.counts import GroupCounts
from korvet.observe.groups import GroupCollector


def assignment(*partitions: int) -> bytes:
    """A member's assignment of partitions of one topic."""
    return struct.pack(">hih1si", 0, 1, 1, b"t", len(partitions)) + struct.pack(
        f">{len(partitions)}ii", *partitions, -1
    )


def scraped(collector: GroupCollector) -> None:
    for samples in collector.collect():
        list(samples.rows)


def test_only_assignments_of_present_members_are_kept() -> None:
    """Each rebalance makes other ones, of thousands of partitions."""
    parts = SimpleNamespace(
        store=SimpleNamespace(commands=SimpleNamespace(cluster_id="id")),
        coordinator=SimpleNamespace(terms=(), counts=GroupCounts()),
        lag=SimpleNamespace(groups={}, logs={}, shows_group=lambda _: True),
        config=SimpleNamespace(metrics_max_rows=20_000),
    )
    collector = GroupCollector(cast("Any", parts))
    stays = assignment(1, 2)
    found = collector._assignment(stays)
    assert found == [("t", 1), ("t", 2)]
    for number in range(10):
        scraped(collector)
        assert collector._assignment(stays) is found
        collector._assignment(assignment(number, number + 1, number + 2))
    assert len(collector._assigned) + len(collector._assigned_before) <= 4
