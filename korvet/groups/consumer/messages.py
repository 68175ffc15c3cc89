"""Requests and replies of ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kio.schema.errors import ErrorCode


class OwnedTopic(msgspec.Struct, frozen=True):
    """Partitions of a topic, named by topic id."""

    topic_id: bytes
    partitions: tuple[int, ...]


def owned_topics(partitions: Mapping[bytes, Collection[int]]) -> tuple[OwnedTopic, ...]:
    """Partitions by topic id, in the form of a heartbeat."""
    return tuple(OwnedTopic(topic, tuple(sorted(numbers))) for topic, numbers in partitions.items())


class ConsumerHeartbeatRequest(msgspec.Struct, frozen=True):
    """ConsumerGroupHeartbeat (v0 to v1); None (-1 for the timeout) means unchanged.

    member_epoch: 0 joins, -1 leaves, -2 leaves temporarily (static members). gives_member_id: the coordinator
    replaces an empty member id (v0). may_describe: the topics that an expression may match.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: tuple[OwnedTopic, ...] | None = None
    client_id: str = ""
    client_host: str = ""
    gives_member_id: bool = False
    may_describe: Callable[[str], bool] | None = None


class MemberHeartbeatReply(msgspec.Struct, frozen=True):
    """The answer to a heartbeat of the newer protocols, consumer and share; assignment None means
    unchanged.
    """

    error: ErrorCode
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[OwnedTopic, ...] | None = None


class ConsumerDescribeRequest(msgspec.Struct, frozen=True):
    """ConsumerGroupDescribe (v0 to v1)."""

    group_ids: tuple[str, ...]


class NamedTopic(msgspec.Struct, frozen=True):
    """Partitions of a topic by id and name."""

    topic_id: bytes
    name: str
    partitions: tuple[int, ...]


class DescribedConsumer(msgspec.Struct, frozen=True):
    """A member of a consumer group; is_classic: it uses the classic protocol."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: tuple[NamedTopic, ...]
    target: tuple[NamedTopic, ...]
    is_classic: bool


class DescribedConsumerGroup(msgspec.Struct, frozen=True):
    """A described consumer group; topics: all that its members subscribe to or are assigned."""

    group_id: str
    error: ErrorCode
    error_message: str | None = None
    state: str = ""
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    topics: frozenset[str] = frozenset()


class ConsumerDescribeReply(msgspec.Struct, frozen=True):
    """The answer to a ConsumerDescribeRequest, in its order."""

    groups: tuple[DescribedConsumerGroup, ...]
