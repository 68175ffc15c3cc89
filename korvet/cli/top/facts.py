"""What one poll of a cluster has found. Two polls make rates: see rows.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from korvet.cli.lag import Commit, Lag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.cli.top.metrics import Metrics
    from korvet.config.address import Address


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Partition(msgspec.Struct, frozen=True):
    """A partition by Metadata. `leader` is None if it has none."""

    leader: int | None
    replicas: int
    in_sync: int
    internal: bool = False


class Group(msgspec.Struct, frozen=True):
    """A consumer group, and its committed offsets. `members` is None if they may not be seen."""

    state: str
    protocol: str
    members: int | None
    coordinator: int
    commits: Mapping[Place, int]


class Appended(NamedTuple):
    """Records that were appended within a time."""

    records: int
    seconds: float


class Facts(msgspec.Struct, frozen=True):
    """One poll. Maps lack what the poll couldn't find out; `notes` have the reasons."""

    at_s: float
    """Time of the poll by a monotonic clock."""
    now_ms: int
    """The same by the wall clock."""
    cluster_id: str
    controller: int
    brokers: Mapping[int, Address]
    partitions: Mapping[Place, Partition]
    groups: Mapping[str, Group]
    lags: Mapping[Commit, Lag] = {}
    appended: Mapping[Place, Appended] = {}
    sizes: Mapping[Place, int] = {}
    """In bytes."""
    oldest_ms: Mapping[Place, int] = {}
    """Timestamps of the oldest records."""
    metrics: Mapping[str, Metrics] = {}
    """By admin endpoint."""
    notes: tuple[str, ...] = ()

    def commits(self) -> set[Commit]:
        """The committed offsets of all groups."""
        return {
            Commit(*place, offset)
            for group in self.groups.values()
            for place, offset in group.commits.items()
        }
