"""A share group in random order: members come, go and fall silent, topics change, initialisations end or
fail, and the coordinator restarts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.share.group import ShareGroup
from tests.unit.groups.consumers import FakeTopics, topic_id
from tests.unit.groups.driver import Driver
from tests.unit.groups.sharers import Sharer, described, initialise

if TYPE_CHECKING:
    from korvet.groups.consumer.messages import MemberHeartbeatReply

CONFIG = GroupConfig(share_max_size=5)
NAMES = ("a", "b", "c")
MEMBERS = st.sampled_from([f"m{number}" for number in range(6)])
TOPICS = st.sets(st.sampled_from(NAMES), min_size=1).map(sorted)
EXPECTED = {
    ErrorCode.none,
    ErrorCode.group_id_not_found,
    ErrorCode.group_max_size_reached,
    ErrorCode.unknown_member_id,
    ErrorCode.fenced_member_epoch,
}


class ShareGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topics = FakeTopics({"a": 3, "b": 1})
        self.driver = Driver(CONFIG, topics=self.topics)
        self.sharers: dict[str, Sharer] = {}

    @property
    def group(self) -> ShareGroup | None:
        group = self.driver.shard.groups.get("g")
        assert group is None or isinstance(group, ShareGroup)
        return group

    def check(self, reply: MemberHeartbeatReply) -> None:
        assert reply.error in EXPECTED, reply

    @rule(name=MEMBERS, topics=TOPICS)
    def join(self, name: str, topics: list[str]) -> None:
        sharer = Sharer(self.driver, name, *topics)
        reply = sharer.join()
        self.check(reply)
        if reply.error is ErrorCode.none:
            self.sharers[name] = sharer

    @rule(name=MEMBERS)
    def beat(self, name: str) -> None:
        if name in self.sharers:
            self.check(self.sharers[name].beat())

    @rule(name=MEMBERS, topics=TOPICS)
    def subscribe(self, name: str, topics: list[str]) -> None:
        if name in self.sharers:
            self.check(self.sharers[name].subscribe(*topics))

    @rule(name=MEMBERS)
    def leave(self, name: str) -> None:
        if name in self.sharers:
            self.check(self.sharers.pop(name).leave())

    @rule(by_ms=st.sampled_from([1, 500, 1_000, 20_000, CONFIG.share_session_timeout_ms]))
    def advance(self, by_ms: int) -> None:
        self.driver.advance(by_ms)

    @rule(failed=st.booleans())
    def end_initialisations(self, failed: bool) -> None:
        initialise(self.driver, failed=failed)

    @rule(name=st.sampled_from(NAMES), more=st.integers(1, 3))
    def grow(self, name: str, more: int) -> None:
        present = self.topics.get(name)
        self.topics.set(name, more if present is None else present.partitions + more)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if self.topics.get(name) is not None:
            self.driver.take(self.driver.shard.delete_topics([name], self.driver.now_ms))
            self.topics.delete(name)

    @rule()
    def restart(self) -> None:
        before, now_ms = self.driver, self.driver.now_ms
        self.driver = Driver(CONFIG, topics=self.topics, log=before.log)
        self.driver.log = before.log
        self.driver.now_ms = max(now_ms, self.driver.now_ms)
        for sharer in self.sharers.values():
            sharer.driver = self.driver

    @rule()
    def settle(self) -> None:
        """Without changes, every partition of the members' topics is taken by somebody."""
        if self.group is None:
            return
        for _ in range(4):
            initialise(self.driver)
            self.driver.advance(CONFIG.share_assignment_interval_ms)
            for sharer in [each for each in self.sharers.values() if each.member_id in self.group.members]:
                if sharer.beat().error is not ErrorCode.none:
                    assert sharer.join().error is ErrorCode.none
        wanted = {
            (topic_id(name), number)
            for name in self.group.subscribed_topics
            if (topic := self.topics.get(name)) is not None
            for number in range(topic.partitions)
        }
        taken = {
            (topic, number)
            for member in self.group.members.values()
            for topic, numbers in member.assigned.items()
            for number in numbers
        }
        assert self.group.is_empty or taken == wanted
        for sharer in self.sharers.values():
            member = self.group.members.get(sharer.member_id)
            if member is not None:
                assert {
                    topic: frozenset(numbers) for topic, numbers in sharer.owned.items()
                } == member.assigned

    @invariant()
    def replay_gives_the_same_group(self) -> None:
        if self.group is None:
            return
        assert len(self.group.members) <= CONFIG.share_max_size
        again = Driver(CONFIG, topics=self.topics, log=self.driver.log)
        assert described(again) == described(self.driver)
        found = again.shard.groups["g"]
        assert isinstance(found, ShareGroup)
        assert (found.states, found.targets) == (self.group.states, self.group.targets)

    @invariant()
    def members_have_initialised_partitions_of_their_topics(self) -> None:
        if self.group is None:
            return
        for member in self.group.members.values():
            ids = {topic_id(name) for name in member.subscription.subscribed_topic_names}
            assert member.assigned.keys() <= ids
        assert self.group.target_epoch <= self.group.epoch


TestShareGroups = ShareGroupMachine.TestCase
