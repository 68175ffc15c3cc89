"""Requests and replies of share groups (KIP-932): heartbeats, descriptions, states of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from kio.schema.errors import ErrorCode  # noqa: TC002 - decoded

if TYPE_CHECKING:
    from korvet.groups.consumer.messages import NamedTopic


class ShareHeartbeatRequest(msgspec.Struct, frozen=True):
    """ShareGroupHeartbeat (v1); None means unchanged. member_epoch: 0 joins, -1 leaves."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""


class ShareDescribeRequest(msgspec.Struct, frozen=True):
    """ShareGroupDescribe (v1)."""

    group_ids: tuple[str, ...]


class DescribedSharer(msgspec.Struct, frozen=True):
    """A member of a share group."""

    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    assignment: tuple[NamedTopic, ...]


class DescribedShareGroup(msgspec.Struct, frozen=True):
    """A described share group."""

    group_id: str
    error: ErrorCode
    error_message: str | None = None
    state: str = ""
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedSharer, ...] = ()

    @property
    def topics(self) -> frozenset[str]:
        """The topics that members have partitions of."""
        return frozenset(topic.name for member in self.members for topic in member.assignment)


class ShareDescribeReply(msgspec.Struct, frozen=True):
    """The answer to a ShareDescribeRequest, in its order."""

    groups: tuple[DescribedShareGroup, ...]


class SharePartition(msgspec.Struct, frozen=True, gc=False):
    """A partition of a share group; topic_id has 16 bytes."""

    group_id: str
    topic_id: bytes
    topic: str
    partition: int


class Initialisation(msgspec.Struct, frozen=True):
    """A partition whose state must be made before members get it.

    is_added: the partition was added to a topic which the group has taken records from, so the group begins
    with its first record; else where `share.auto.offset.reset` says.
    """

    place: SharePartition
    is_added: bool


class StatesRequest(msgspec.Struct, frozen=True):
    """Which partitions of a share group are initialised: of all, or whether this one is."""

    group_id: str
    place: SharePartition | None = None


class RestartStatesRequest(msgspec.Struct, frozen=True):
    """The first step of AlterShareGroupOffsets: note that these partitions are being initialised."""

    group_id: str
    places: tuple[SharePartition, ...]


class RemoveStatesRequest(msgspec.Struct, frozen=True):
    """The first step of DeleteGroups, or with topics of DeleteShareGroupOffsets: note that the states of the
    group's partitions are being removed.
    """

    group_id: str
    topics: frozenset[str] | None = None


class EndStatesRequest(msgspec.Struct, frozen=True):
    """The last step: note that these partitions are initialised, or the states in these topics removed."""

    group_id: str
    initialised: tuple[SharePartition, ...] = ()
    removed: frozenset[bytes] = frozenset()


class StatesReply(msgspec.Struct, frozen=True):
    """The answer to a request about states: the partitions that it is about. Without topics, removing states
    of a group of another type has none.
    """

    error: ErrorCode
    error_message: str | None = None
    places: tuple[SharePartition, ...] = ()
