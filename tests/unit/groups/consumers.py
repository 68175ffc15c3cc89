"""Topics, requests and records of consumer groups (KIP-848) for tests."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from korvet.groups.consumer.messages import ConsumerDescribeRequest, ConsumerHeartbeatRequest, OwnedTopic
from korvet.groups.consumer.regex import compile_regex
from korvet.groups.consumer.topics import Matching, TopicInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.groups.consumer.messages import DescribedConsumerGroup, MemberHeartbeatReply
    from tests.unit.groups.driver import Driver

Partitions = dict[str, set[int]]


def topic_id(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:16]


class FakeTopics:
    """Topics that can be made, grown and deleted."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.version = 1
        self._topics = {name: TopicInfo(name, topic_id(name), count) for name, count in counts.items()}

    def put(self, topic: TopicInfo) -> None:
        self.version += 1
        self._topics[topic.name] = topic

    def set(self, name: str, partitions: int) -> None:
        self.put(TopicInfo(name, topic_id(name), partitions))

    def delete(self, name: str) -> None:
        self.version += 1
        del self._topics[name]

    def get(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def by_id(self, wanted: bytes) -> TopicInfo | None:
        return next((topic for topic in self._topics.values() if topic.topic_id == wanted), None)

    def matching(self, pattern: str) -> Matching:
        matches = compile_regex(pattern).matches
        return Matching(tuple(filter(matches, self._topics)), self.version)


def heartbeat(member_id: str, epoch: int, group_id: str = "g", **fields: Any) -> ConsumerHeartbeatRequest:
    return ConsumerHeartbeatRequest(
        group_id, member_id, epoch, client_id="app", client_host="/127.0.0.1", **fields
    )


class Consumer:
    """A member that behaves as a client: it reads its assignment, and revokes partitions before it takes new
    ones.
    """

    def __init__(
        self, driver: Driver, member_id: str, *topics: str, group_id: str = "g", **fields: Any
    ) -> None:
        self.driver = driver
        self.member_id = member_id
        self.group_id = group_id
        self.topics = topics
        self.fields = fields
        self.epoch = 0
        self.owned: dict[bytes, tuple[int, ...]] = {}
        self.changed = False
        self.lost_response = False

    def join(self) -> MemberHeartbeatReply:
        self.epoch, self.owned, self.lost_response = 0, {}, False
        return self.send(owned=(), **self._all_fields())

    def beat(self) -> MemberHeartbeatReply:
        """Send a heartbeat: with all fields if the last response was lost, else with the owned partitions if
        they have changed.
        """
        owned = None
        if self.changed or self.lost_response:
            owned = tuple(OwnedTopic(topic, numbers) for topic, numbers in self.owned.items())
        fields = {"instance_id": self.fields.get("instance_id")}
        if self.lost_response:
            fields = self._all_fields()
        self.changed = self.lost_response = False
        return self.send(owned=owned, **fields)

    def lose_response(self) -> None:
        """Send a heartbeat whose response is lost: the member's view stays as it was."""
        before = self.epoch, self.owned
        self.beat()
        self.epoch, self.owned = before
        self.lost_response = True

    def _all_fields(self) -> dict[str, Any]:
        return {"subscribed_topic_names": self.topics, "rebalance_timeout_ms": 60_000} | self.fields

    def send(self, epoch: int | None = None, **fields: Any) -> MemberHeartbeatReply:
        wanted = self.epoch if epoch is None else epoch
        reply: MemberHeartbeatReply = self.driver.answer(
            "consumer_heartbeat", heartbeat(self.member_id, wanted, self.group_id, **fields)
        )
        if reply.error == 0 and wanted >= 0:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.owned = {topic.topic_id: topic.partitions for topic in reply.assignment}
                self.changed = True
        return reply

    def leave(self, epoch: int = -1) -> MemberHeartbeatReply:
        reply = self.send(epoch, instance_id=self.fields.get("instance_id"))
        self.owned = {}
        return reply

    def partitions(self, topic: str) -> list[int]:
        return list(self.owned.get(topic_id(topic), ()))


def described(driver: Driver, group_id: str = "g") -> DescribedConsumerGroup:
    (group,) = driver.answer("describe_consumers", ConsumerDescribeRequest((group_id,))).groups
    return group
