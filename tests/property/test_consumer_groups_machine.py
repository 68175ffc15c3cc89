"""Random members of a consumer group (KIP-848): two members never have the same partition, and all get their
target.

Members join, leave, die, return, change their subscriptions, lose responses; topics are created, grow and are
deleted; the coordinator restarts from its log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.consumer.group import ConsumerGroup
from tests.unit.groups.consumers import Consumer, FakeTopics
from tests.unit.groups.driver import Driver
from tests.unit.groups.test_consumer_groups import newest, same

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

CONFIG = GroupConfig()
REBALANCE_MS = 20_000
TOPICS = ("alpha", "beta", "gamma")
FENCED = frozenset({ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id})
SUBSCRIPTIONS: SearchStrategy[tuple[str, ...]] = st.sets(st.sampled_from(TOPICS), min_size=1).map(
    lambda names: tuple(sorted(names))
)
INSTANCES = st.sampled_from([None, None, "first", "second"])
EXPRESSIONS = st.sampled_from([None, None, "(alpha|gamma)", ".*a"])
ASSIGNORS = st.sampled_from([None, None, "uniform", "range"])


class ConsumerGroupMachine(RuleBasedStateMachine):
    """One group, its members in the clients' own view, and a model of who may use which partition."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = FakeTopics({"alpha": 3, "beta": 4})
        self.driver = Driver(CONFIG, topics=self.topics)
        self.members: list[Consumer] = []
        self.made = 0
        self.highest_epoch = 0

    def group(self) -> ConsumerGroup | None:
        group = self.driver.shard._context.groups.get("g")
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    @initialize(topics=SUBSCRIPTIONS)
    def begin(self, topics: tuple[str, ...]) -> None:
        self.start(topics, None, None, None)

    def start(
        self, topics: tuple[str, ...], instance: str | None, regex: str | None, assignor: str | None
    ) -> None:
        self.made += 1
        member = Consumer(
            self.driver,
            f"member-{self.made}",
            *topics,
            instance_id=instance,
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        reply = member.join()
        if reply.error is ErrorCode.none:
            self.members.append(member)
        else:
            assert reply.error is ErrorCode.unreleased_instance_id

    @rule(topics=SUBSCRIPTIONS, instance=INSTANCES, regex=EXPRESSIONS, assignor=ASSIGNORS)
    def join(
        self, topics: tuple[str, ...], instance: str | None, regex: str | None, assignor: str | None
    ) -> None:
        assume(len(self.members) < 6)
        self.start(topics, instance, regex, assignor)

    def beat(self, member: Consumer) -> None:
        reply = member.beat()
        if reply.error in FENCED:
            member.owned = {}
            if reply.error is ErrorCode.fenced_instance_id or member.join().error is not ErrorCode.none:
                self.members.remove(member)
        else:
            assert reply.error is ErrorCode.none

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def one_beats(self, data: st.DataObject) -> None:
        self.beat(data.draw(st.sampled_from(self.members)))

    @rule()
    def all_beat(self) -> None:
        for member in list(self.members):
            self.beat(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def answer_is_lost(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.members)).lose_response()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), topics=SUBSCRIPTIONS)
    def subscribe(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        member = data.draw(st.sampled_from(self.members))
        member.topics = topics
        reply = member.send(subscribed_topic_names=topics, instance_id=member.fields["instance_id"])
        if reply.error in FENCED:
            self.beat(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), for_a_while=st.booleans())
    def leave(self, data: st.DataObject, for_a_while: bool) -> None:
        member = data.draw(st.sampled_from(self.members))
        is_static = member.fields["instance_id"] is not None
        member.leave(-2 if is_static and for_a_while else -1)
        self.members.remove(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """The member uses nothing any more, but the coordinator is not informed."""
        self.members.remove(data.draw(st.sampled_from(self.members)))

    @rule(by_ms=st.sampled_from([1, 500, 1_000, 5_000]))
    def time_goes_by(self, by_ms: int) -> None:
        for _ in range(max(by_ms // 1_000, 1)):
            self.driver.advance(min(by_ms, 1_000))
        if by_ms >= 5_000:
            self.all_beat()

    @rule(name=st.sampled_from(TOPICS), count=st.integers(1, 6))
    def topic_grows(self, name: str, count: int) -> None:
        known = self.topics.get(name)
        self.topics.set(name, count if known is None else max(count, known.partitions))

    @rule(name=st.sampled_from(TOPICS))
    def topic_goes(self, name: str) -> None:
        if self.topics.get(name) is not None:
            self.topics.delete(name)
            for member in self.members:
                # The partition is gone, whichever member still believes that it may read it.
                member.owned = {
                    topic: numbers for topic, numbers in member.owned.items() if self.topics.by_id(topic)
                }
                member.changed = True

    @rule(is_compacted=st.booleans())
    def restart(self, is_compacted: bool) -> None:
        log = newest(self.driver.log) if is_compacted else self.driver.log
        driver = Driver(CONFIG, log=log, topics=self.topics)
        driver.now_ms = self.driver.now_ms
        driver.log = self.driver.log
        before, after = self.group(), driver.shard._context.groups.get("g")
        assert (before is None) == (after is None)
        assert before is None or same(before, after)
        self.driver = driver
        for member in self.members:
            member.driver = driver

    @invariant()
    def no_partition_has_two_users(self) -> None:
        used = [
            (topic, number)
            for member in self.members
            for topic, numbers in member.owned.items()
            for number in numbers
        ]
        assert len(used) == len(set(used))

    @invariant()
    def owners_are_what_members_say(self) -> None:
        group = self.group()
        if group is None:
            return
        assert group.epoch >= max(group.target_epoch, self.highest_epoch)
        self.highest_epoch = group.epoch
        owners = {
            (topic, number): member.member_id
            for member in group.members.values()
            for owned in (member.assigned, member.revoking)
            for topic, numbers in owned.items()
            for number in numbers
        }
        assert owners == group.owners
        assert all(member.epoch <= group.target_epoch for member in group.members.values())

    def teardown(self) -> None:
        """If nothing else happens, every member gets its subscription within the timeouts."""
        for _ in range(60):
            self.driver.advance(1_000)
            self.all_beat()
        group = self.group()
        if group is None or not self.members:
            return
        assert group.state_name == "Stable"
        readable = {
            (topic_id, number) for topic_id, count in self._readable(group).items() for number in range(count)
        }
        used = {
            (topic, number)
            for member in self.members
            for topic, numbers in member.owned.items()
            for number in numbers
        }
        assert used == readable
        self.no_partition_has_two_users()

    def _readable(self, group: ConsumerGroup) -> dict[bytes, int]:
        topics = (self.topics.get(name) for name in group.subscribed_topics)
        return {topic.topic_id: topic.partitions for topic in topics if topic is not None}


TestConsumerGroups = ConsumerGroupMachine.TestCase
TestConsumerGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
