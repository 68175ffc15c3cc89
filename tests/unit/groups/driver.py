"""Drives a shard as its caller must (replay at once, answer once) and makes the requests of the tests."""

from __future__ import annotations

from itertools import count
from struct import pack
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.messages import (
    CommitPartition,
    CommitRequest,
    CommitTopic,
    DescribeRequest,
    FetchRequest,
    HeartbeatRequest,
    JoinProtocol,
    JoinRequest,
    LeaveRequest,
    LeavingMember,
    SyncAssignment,
    SyncRequest,
)
from korvet.groups.offset_table import NO_PRODUCER_ID
from korvet.groups.shard import GroupShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from korvet.groups.consumer.topics import Topics
    from korvet.groups.messages import DescribedGroup, Outcome, Record
    from korvet.groups.share.messages import Initialisation

START_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000
NONE = ErrorCode.none


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription v0 without user data."""
    names = b"".join(pack(">h", len(topic.encode())) + topic.encode() for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


def protocols(*names: str, topics: Iterable[str] = ("orders",)) -> tuple[JoinProtocol, ...]:
    """The same subscription in these protocols."""
    return tuple(JoinProtocol(name, subscription(*topics)) for name in names)


RANGE = protocols("range")


class Driver:
    """A shard, a clock, the log that it has written and the replies that it has given."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        *,
        log: Iterable[Record] = (),
        suffix: Callable[[], str] | None = None,
        topics: Topics | None = None,
        least_generation: int = 0,
    ) -> None:
        numbers = count(1)
        self.suffix = suffix or (lambda: str(next(numbers)))
        self.shard = GroupShard(config or GroupConfig(), self.suffix, topics, least_generation)
        self.now_ms = START_MS
        self.log: list[Record] = []
        self.replies: dict[int, Any] = {}
        self.initialisations: list[Initialisation] = []
        self.asked = 0
        for key, value in log:
            self.shard.replay(key, value)
        self.take(self.shard.loaded(self.now_ms))

    def take(self, outcome: Outcome) -> list[Record]:
        """Do with an outcome what the caller of a shard does."""
        producer_id = NO_PRODUCER_ID if outcome.producer is None else outcome.producer[0]
        for key, value in outcome.records:
            self.shard.replay(key, value, producer_id)
            self.log.append((key, value))
        for token, reply in outcome.replies:
            assert token not in self.replies, "answered twice"
            self.replies[token] = reply
        self.initialisations += outcome.initialisations
        return outcome.records

    def ask(self, handler: str, request: object) -> int:
        """Send a request; the token under which its reply will be."""
        self.asked += 1
        self.take(getattr(self.shard, handler)(request, self.asked, self.now_ms))
        return self.asked

    def answer(self, handler: str, request: object) -> Any:
        """Send a request that is answered at once."""
        return self.replies[self.ask(handler, request)]

    def advance(self, by_ms: int) -> list[Record]:
        """Let time go by, with ticks exactly when the shard wants them; what they recorded."""
        until_ms, before = self.now_ms + by_ms, len(self.log)
        while (due_ms := self.shard.next_deadline_ms()) is not None and due_ms <= until_ms:
            self.now_ms = max(due_ms, self.now_ms)
            self.take(self.shard.tick(self.now_ms))
        self.now_ms = until_ms
        return self.log[before:]

    def records_of(self, handler: str, request: object) -> list[Record]:
        """What a request recorded."""
        before = len(self.log)
        self.ask(handler, request)
        return self.log[before:]

    # Requests

    def join(self, member_id: str = "", group_id: str = "g", **fields: Any) -> int:
        """JoinGroup by a consumer that knows protocol range."""
        defaults = {
            "protocol_type": "consumer",
            "protocols": RANGE,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "client_id": "app",
            "client_host": "/127.0.0.1",
        }
        return self.ask("join", JoinRequest(group_id=group_id, member_id=member_id, **(defaults | fields)))

    def sync(
        self, member_id: str, generation: int, given: dict[str, bytes] | None = None, **fields: Any
    ) -> int:
        """SyncGroup; given: the leader's assignments."""
        assignments = tuple(SyncAssignment(*item) for item in (given or {}).items())
        return self.ask("sync", SyncRequest("g", generation, member_id, assignments=assignments, **fields))

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        """Heartbeat."""
        reply = self.answer("heartbeat", HeartbeatRequest("g", generation, member_id, instance_id))
        return ErrorCode(reply.error)

    def leave(self, *member_ids: str) -> list[ErrorCode]:
        """LeaveGroup by member ids."""
        request = LeaveRequest("g", tuple(LeavingMember(member_id) for member_id in member_ids))
        return [member.error for member in self.answer("leave", request).members]

    def commit(self, offset: int, member_id: str = "", generation: int = -1, **fields: Any) -> ErrorCode:
        """OffsetCommit of orders/0."""
        reply = self.answer("commit", commit_request(offset, member_id, generation, **fields))
        return ErrorCode(reply.topics[0].partitions[0].error)

    def fetched(self, group_id: str = "g") -> dict[tuple[str, int], int]:
        """All committed offsets of a group."""
        reply = self.answer("fetch", FetchRequest(group_id))
        return {
            (topic.name, part.partition): part.offset for topic in reply.topics for part in topic.partitions
        }

    def described(self, group_id: str = "g") -> DescribedGroup:
        """The group in a DescribeGroups response."""
        described: DescribedGroup = self.answer("describe", DescribeRequest((group_id,))).groups[0]
        return described

    def state(self, group_id: str = "g") -> str:
        """The group's state, Dead if there is none."""
        return self.described(group_id).state

    # Steps that many tests begin with

    def pass_initial_delay(self) -> None:
        """Let the initial rebalance end without further members."""
        self.advance(1_000)

    def stable(self, *clients: str, topics: Iterable[str] = ("orders",)) -> list[str]:
        """A Stable group of generation 1 with a member per client; their ids, leader first."""
        tokens = [
            self.join(client_id=client, protocols=protocols("range", topics=topics)) for client in clients
        ]
        self.pass_initial_delay()
        ids = [self.replies[token].member_id for token in tokens]
        for member_id in reversed(ids):
            self.sync(member_id, 1, {each: b"for " + each.encode() for each in ids})
        return ids


def commit_request(
    offset: int,
    member_id: str = "",
    generation: int = -1,
    *,
    group_id: str = "g",
    topic: str = "orders",
    partition: int = 0,
    **fields: Any,
) -> CommitRequest:
    """OffsetCommit of one partition; fields go to the partition or the topic or the request that has them."""
    of_partition = {
        name: fields.pop(name) for name in ("leader_epoch", "metadata", "refusal") if name in fields
    }
    of_topic = {"topic_id": fields.pop("topic_id")} if "topic_id" in fields else {}
    place = CommitTopic(topic, (CommitPartition(partition, offset, **of_partition),), **of_topic)
    return CommitRequest(group_id, (place,), generation, member_id, **fields)
