"""Random lives of groups of every type, as their coordinators record them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from korvet.offsets.consumer_protocol import (
    Assignment,
    Subscription,
    TopicPartitions,
    encode_assignment,
    encode_subscription,
)
from korvet.offsets.group_records import (
    ClassicMember,
    ConsumerAssignment,
    ConsumerMember,
    GroupEpoch,
    OwnedPartitions,
    ResolvedRegex,
    ShareAssignment,
    ShareEpoch,
    ShareMember,
    TargetAssignment,
    TargetEpoch,
    TopicIdPartitions,
)
from korvet.offsets.schema import (
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecordKey,
    GroupRegexKey,
    MemberMetadata,
)
from korvet.offsets.streams_records import (
    OwnedTasks,
    StreamsAssignment,
    StreamsEpoch,
    StreamsMember,
    Subtopology,
    TargetTasks,
    TaskIds,
    Topology,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from korvet.offsets.schema import Key, Value

NAMES = "abcd"
Record = tuple["Key", "Value | None"]
Topics = dict[str, tuple[bytes, int]]
"""The ID and the number of partitions of each topic that exists now."""


@dataclass
class ClassicGroup:
    """A group of the classic protocol. Each act is one record."""

    name: str
    chance: random.Random
    generation: int = 0
    members: dict[str, MemberMetadata] = field(default_factory=dict)

    def act(self, at_ms: int, topics: Topics) -> list[Record]:
        chance = self.chance
        if chance.random() < 0.08:
            self.members = {}
            return [(GroupMetadataKey(self.name), None)]
        if chance.random() < 0.8:
            self.generation += 1
            present = [name for name in NAMES if chance.random() < 0.45]
            self.members = {name: self._member(name, topics) for name in present}
        kind = "connect" if self.name.startswith("connect") else "consumer"
        everyone = tuple(self.members.values())
        value = GroupMetadataValue(
            "" if not everyone and chance.random() < 0.2 else kind,
            self.generation,
            chance.choice(("range", "cooperative-sticky")) if everyone else None,
            everyone[0].member_id if everyone else None,
            chance.choice((at_ms, at_ms, at_ms - 70, -1)),
            everyone,
            chance.randrange(5),
        )
        return [(GroupMetadataKey(self.name), value)]

    def _member(self, name: str, topics: Topics) -> MemberMetadata:
        chance = self.chance
        chosen = tuple(topic for topic in topics if chance.random() < 0.5)
        owned = tuple(
            TopicPartitions(topic, tuple(range(chance.randrange(1, topics[topic][1] + 1))))
            for topic in chosen
            if chance.random() < 0.8
        )
        subscription = encode_subscription(Subscription(chosen, version=chance.randrange(4)))
        assignment = encode_assignment(Assignment(owned, version=chance.randrange(4)))
        return MemberMetadata(
            f"member-{name}",
            chance.choice((None, f"static-{name}")),
            f"client-{name}",
            f"/10.0.0.{chance.randrange(3)}",
            chance.choice((60_000, 300_000)),
            chance.choice((10_000, 45_000)),
            # A member has no subscription or assignment while it joins; some are unreadable.
            chance.choice((subscription, subscription, subscription, b"", b"\0\1\0")),
            chance.choice((assignment, assignment, assignment, b"", b"\xff")),
        )


@dataclass
class NewerGroup:
    """A group of the consumer, share or streams protocol: a heartbeat adds several records."""

    name: str
    chance: random.Random
    kind: str
    epoch: int = 0
    members: set[str] = field(default_factory=set)

    def act(self, at_ms: int, topics: Topics) -> list[Record]:
        chance, dice = self.chance, self.chance.random()
        if dice < 0.06 and self.epoch:
            return self._delete()
        if dice < 0.35 and self.members:
            return self._leave(chance.choice(sorted(self.members)))
        if dice < 0.5 and self.members:
            name = chance.choice(sorted(self.members))
            return self._assign(name, topics)
        if dice < 0.57 and self.kind == "consumer":
            regex = ResolvedRegex(tuple(topics), 1, at_ms)
            return [(GroupRegexKey(self.name, "or.*"), chance.choice((regex, None)))]
        return self._join(chance.choice(NAMES), at_ms, topics)

    def _join(self, name: str, at_ms: int, topics: Topics) -> list[Record]:
        """A member joins or changes its subscription, and everybody is assigned anew."""
        self.epoch += 1
        self.members.add(name)
        records: list[Record] = [
            (self._key("member", name), self._member(name, topics)),
            (self._key("epoch"), self._epoch()),
            (self._key("target"), TargetEpoch(self.epoch, at_ms)),
        ]
        if self.kind == "streams":
            part = Subtopology("0", tuple(topics), (), (), (), (), ())
            records.append((GroupRecordKey(self.name, 23), Topology(1, (part,))))
        if self.chance.random() < 0.8:
            records += self._assign(name, topics)
        return records

    def _leave(self, name: str) -> list[Record]:
        self.epoch += 1
        self.members.discard(name)
        return [
            (self._key("current", name), None),
            (self._key("share", name), None),
            (self._key("member", name), None),
            (self._key("epoch"), self._epoch()),
        ]

    def _delete(self) -> list[Record]:
        gone = [
            (self._key(what, name), None)
            for name in sorted(self.members)
            for what in ("current", "share", "member")
        ]
        self.members, self.epoch = set(), 0
        return [*gone, (self._key("target"), None), (self._key("epoch"), None)]

    def _assign(self, name: str, topics: Topics) -> list[Record]:
        chance = self.chance
        parts = [
            (topic_id, tuple(range(chance.randrange(count + 1))))
            for topic_id, count in topics.values()
            if chance.random() < 0.5
        ]
        given = tuple(TopicIdPartitions(*part) for part in parts)
        current: Value
        target: Value = TargetAssignment(given)
        match self.kind:
            case "consumer":
                owned = tuple(OwnedPartitions(*part) for part in parts)
                current = ConsumerAssignment(self.epoch, self.epoch - 1, 0, owned, ())
            case "share":
                current = ShareAssignment(self.epoch, self.epoch - 1, 0, given)
            case _:
                tasks = (OwnedTasks("0", (0, 1)),)
                current = StreamsAssignment(self.epoch, 0, 0, tasks, (), (), (), (), ())
                target = TargetTasks((TaskIds("0", (0, 1)),), (), ())
        return [(self._key("share", name), target), (self._key("current", name), current)]

    def _member(self, name: str, topics: Topics) -> Value:
        chance, chosen = self.chance, tuple(topic for topic in topics if self.chance.random() < 0.5)
        client, host = f"client-{name}", f"/10.0.1.{chance.randrange(3)}"
        instance = chance.choice((None, f"static-{name}"))
        match self.kind:
            case "consumer":
                classic = chance.choice((None, None, ClassicMember(45_000)))
                return ConsumerMember(instance, None, client, host, chosen, None, 60_000, None, classic)
            case "share":
                return ShareMember(None, client, host, chosen)
        return StreamsMember(instance, None, client, host, 60_000, 1, "process", None, ())

    def _epoch(self) -> Value:
        match self.kind:
            case "consumer":
                return GroupEpoch(self.epoch)
            case "share":
                return ShareEpoch(self.epoch, 7)
        return StreamsEpoch(self.epoch, 7)

    def _key(self, what: str, member: str | None = None) -> Key:
        version = _KEYS[self.kind][what]
        if member is None:
            return GroupRecordKey(self.name, version)
        return GroupMemberKey(self.name, f"member-{member}", version)


# Record types. `share` is a member's share of the target assignment, `current` what it has.
_KEYS: Mapping[str, Mapping[str, int]] = {
    "consumer": {"epoch": 3, "member": 5, "target": 6, "share": 7, "current": 8},
    "share": {"member": 10, "epoch": 11, "target": 12, "share": 13, "current": 14},
    "streams": {"epoch": 17, "member": 19, "target": 20, "share": 21, "current": 22},
}


def new_groups(chance: random.Random, prefix: str) -> Sequence[Any]:
    """Returns groups of every type; `converted` has two lives, a classic one and one of KIP-848."""
    return [
        ClassicGroup(f"{prefix}classic", chance),
        ClassicGroup(f"{prefix}worker", chance),
        ClassicGroup(f"connect-{prefix}", chance),
        ClassicGroup(f"{prefix}converted", chance),
        NewerGroup(f"{prefix}converted", chance, "consumer"),
        NewerGroup(f"{prefix}newer", chance, "consumer"),
        NewerGroup(f"{prefix}shared", chance, "share"),
        NewerGroup(f"{prefix}streams", chance, "streams"),
    ]
