"""Members of share groups (KIP-932) for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from korvet.groups.share.group import ShareGroup
from korvet.groups.share.messages import ShareDescribeRequest, ShareHeartbeatRequest
from tests.unit.groups.consumers import topic_id

if TYPE_CHECKING:
    from collections.abc import Collection

    from korvet.groups.consumer.messages import MemberHeartbeatReply
    from korvet.groups.share.messages import DescribedShareGroup, SharePartition
    from tests.unit.groups.driver import Driver


class Sharer:
    """A member that behaves as a client."""

    def __init__(self, driver: Driver, member_id: str, *topics: str, group_id: str = "g") -> None:
        self.driver = driver
        self.member_id = member_id
        self.group_id = group_id
        self.topics = topics
        self.epoch = 0
        self.owned: dict[bytes, tuple[int, ...]] = {}

    def join(self) -> MemberHeartbeatReply:
        self.epoch, self.owned = 0, {}
        return self.send(subscribed_topic_names=self.topics)

    def beat(self) -> MemberHeartbeatReply:
        return self.send()

    def subscribe(self, *topics: str) -> MemberHeartbeatReply:
        self.topics = topics
        return self.send(subscribed_topic_names=topics)

    def leave(self) -> MemberHeartbeatReply:
        return self.send(-1)

    def send(self, epoch: int | None = None, **fields: Any) -> MemberHeartbeatReply:
        wanted = self.epoch if epoch is None else epoch
        request = ShareHeartbeatRequest(
            self.group_id, self.member_id, wanted, client_id="app", client_host="/127.0.0.1", **fields
        )
        reply: MemberHeartbeatReply = self.driver.answer("share_heartbeat", request)
        if reply.error == 0 and wanted >= 0:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.owned = {topic.topic_id: topic.partitions for topic in reply.assignment}
        return reply

    def partitions(self, topic: str) -> list[int]:
        return list(self.owned.get(topic_id(topic), ()))


def initialise(
    driver: Driver, places: Collection[SharePartition] | None = None, *, failed: bool = False
) -> None:
    """End the initialisations of these partitions, or of all that were begun and have not ended."""
    if places is None:
        places = [each.place for each in driver.initialisations]
        driver.initialisations.clear()
    for group_id in sorted({place.group_id for place in places}):
        of_group = [place for place in places if place.group_id == group_id]
        driver.take(driver.shard.initialised(of_group, driver.now_ms, failed=failed))


def group_of(driver: Driver, group_id: str = "g") -> ShareGroup:
    group = driver.shard.groups[group_id]
    assert isinstance(group, ShareGroup)
    return group


def described(driver: Driver, group_id: str = "g") -> DescribedShareGroup:
    (group,) = driver.answer("describe_sharing", ShareDescribeRequest((group_id,))).groups
    return group
