"""What the coordinator of groups counts for metrics, in plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.metrics.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Container

REBALANCE_BOUNDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds. A rebalance takes as long as its slowest member."""


class GroupCounts:
    """Counts of all groups that one broker coordinates, since its start; one instance for all shards."""

    __slots__ = (
        "commits",
        "committed_offsets",
        "diverged_groups",
        "expired_members",
        "expired_offsets",
        "exported_offsets",
        "heartbeats",
        "joins",
        "leaves",
        "rebalance_seconds",
        "rebalances",
        "syncs",
    )

    def __init__(self) -> None:
        self.joins = 0
        """JoinGroup requests, and first heartbeats of the consumer protocol."""
        self.syncs = 0
        """SyncGroup requests."""
        self.heartbeats = 0
        """Heartbeat and ConsumerGroupHeartbeat requests."""
        self.leaves = 0
        """LeaveGroup requests, and last heartbeats of the consumer protocol."""
        self.expired_members = 0
        """Members that were removed because they sent no heartbeat, or did not rejoin, in time."""
        self.rebalances: dict[str, int] = {}
        """Rebalances that began, by group. A rebalance of the consumer protocol is a new group epoch."""
        self.rebalance_seconds = Histogram(REBALANCE_BOUNDS)
        """From the beginning of a rebalance until the group is stable."""
        self.commits: dict[str, int] = {}
        """Commit requests that were accepted, by group, transactional ones included."""
        self.committed_offsets = 0
        """Offsets in these requests that were accepted."""
        self.exported_offsets = 0
        """Offsets that were committed for Redis groups."""
        self.diverged_groups = 0
        """Redis groups that were not at the newest commit in the last round over them."""
        self.expired_offsets = 0
        """Offsets that were removed after their retention time."""

    def rebalance(self, group_id: str) -> None:
        """Count the beginning of a rebalance."""
        self.rebalances[group_id] = self.rebalances.get(group_id, 0) + 1

    def commit(self, group_id: str) -> None:
        """Count an accepted commit request."""
        self.commits[group_id] = self.commits.get(group_id, 0) + 1

    def forget(self, group_id: str) -> None:
        """Drop the counts of a group that was deleted."""
        self.rebalances.pop(group_id, None)
        self.commits.pop(group_id, None)

    def keep(self, groups: Container[str]) -> None:
        """Drop the counts of all groups except these, which this broker coordinates."""
        for counts in (self.rebalances, self.commits):
            for group_id in [each for each in counts if each not in groups]:
                del counts[group_id]
