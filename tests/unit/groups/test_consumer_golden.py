"""Consumer groups of a real Kafka (KIP-848), re-enacted: our coordinator writes the same records."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from korvet.groups.config import GroupConfig
from korvet.groups.consumer.messages import ConsumerHeartbeatRequest, OwnedTopic
from korvet.groups.consumer.topics import TopicInfo, metadata_hash
from korvet.groups.messages import (
    DeleteRequest,
    HeartbeatRequest,
    JoinProtocol,
    JoinRequest,
    ListRequest,
    SyncRequest,
)
from korvet.groups.shard import GroupShard
from korvet.offsets.codec import decode_key, decode_value
from korvet.offsets.consumer_protocol import (
    TopicPartitions,
    decode_assignment,
)
from korvet.offsets.group_records import (
    ConsumerAssignment,
    ConsumerMember,
    TargetEpoch,
)
from korvet.offsets.schema import GroupMetadataValue, OffsetCommitKey
from tests.unit.groups.consumers import FakeTopics, described
from tests.unit.groups.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.groups.messages import Record

DATA = Path(__file__).parents[2] / "data" / "consumer_offsets"
MEMBER, TARGET, ASSIGNMENT = 5, 7, 8


def lines(name: str) -> Iterator[dict[str, Any]]:
    with (DATA / name).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def golden_topics(folder: str = "") -> FakeTopics:
    topics = FakeTopics({})
    for entry in lines(f"{folder}final_state.jsonl"):
        if entry["kind"] == "topic":
            topic_id = base64.urlsafe_b64decode(entry["topicId"] + "==")
            topics.put(TopicInfo(entry["topic"], topic_id, len(entry["end_offsets"])))
    return topics


class Batch(NamedTuple):
    """Records that were written together, and when."""

    at_ms: int
    records: list[Record]


def histories() -> dict[str, list[Batch]]:
    """By group, the batches without commits."""
    found: dict[str, dict[int, Batch]] = {}
    for record in lines("records.jsonl"):
        if record["control"]:
            continue
        key = decode_key(bytes.fromhex(record["key_hex"]))
        if isinstance(key, OffsetCommitKey) or not hasattr(key, "group"):
            continue
        value = None if record["value_hex"] is None else bytes.fromhex(record["value_hex"])
        batches = found.setdefault(key.group, {})
        batch = batches.setdefault(record["batch_base_offset"], Batch(record["timestamp"], []))
        batch.records.append((key, decode_value(key, value)))
    return {group: list(batches.values()) for group, batches in found.items()}


def with_protocol(protocol: set[int]) -> dict[str, list[Batch]]:
    return {
        group: history
        for group, history in histories().items()
        if {key.version for batch in history for key, _ in batch.records} <= protocol
    }


def reads_one_topic(history: list[Batch]) -> bool:
    members = [value for batch in history for _, value in batch.records if isinstance(value, ConsumerMember)]
    return bool(members) and all(
        len(member.subscribed_topic_names) == 1 and not member.subscribed_topic_regex for member in members
    )


CONSUMER_GROUPS = {
    group: history for group, history in with_protocol({3, 4, 5, 6, 7, 8}).items() if reads_one_topic(history)
}


def comparable(records: list[Record]) -> list[Any]:
    """Records with what has no order in Kafka put in one: the members of a target."""
    targets = sorted((record for record in records if record[0].version == TARGET), key=str)
    return [targets.pop(0) if key.version == TARGET else (key, value) for key, value in records]


class Reenactment:
    """Lets the members of a golden group do what led to its records, at the times that those bear."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.driver = Driver(GroupConfig(), topics=golden_topics())
        self.members: dict[str, ConsumerAssignment | None] = {}
        self.instances: dict[str, str | None] = {}

    def run(self, batch: Batch) -> list[Record]:
        """The records that our coordinator writes for the events of the batch."""
        self.driver.now_ms = batch.at_ms
        for _, value in batch.records:
            if isinstance(value, TargetEpoch) and value.assignment_timestamp:
                self.driver.now_ms = value.assignment_timestamp
        joins = [(key, value) for key, value in batch.records if isinstance(value, ConsumerMember)]
        steps = [(key, value) for key, value in batch.records if isinstance(value, ConsumerAssignment)]
        leavers = [key for key, value in batch.records if key.version == ASSIGNMENT and value is None]
        if joins:
            key, value = joins[-1]
            written = self.join(key.member_id, value)
        elif leavers:
            written = self.heartbeat(leavers[0].member_id, -1)
        elif steps:
            key, value = steps[-1]
            epoch = -2 if value.member_epoch == -2 else self.members[key.member_id].member_epoch
            written = self.heartbeat(key.member_id, epoch)
        else:
            written = self.driver.records_of("delete_groups", DeleteRequest((self.group_id,)))
        for key, value in steps:
            self.members[key.member_id] = value
        return written

    def join(self, member_id: str, value: ConsumerMember) -> list[Record]:
        self.instances[member_id] = value.instance_id
        request = ConsumerHeartbeatRequest(
            self.group_id,
            member_id,
            0,
            value.instance_id,
            value.rack_id,
            value.rebalance_timeout_ms,
            value.subscribed_topic_names,
            None,
            value.server_assignor,
            (),
            value.client_id,
            value.client_host,
        )
        return self.driver.records_of("consumer_heartbeat", request)

    def heartbeat(self, member_id: str, epoch: int) -> list[Record]:
        now = self.members[member_id]
        owned = None
        if now is not None and now.state == 1:
            owned = tuple(OwnedTopic(each.topic_id, each.partitions) for each in now.assigned_partitions)
        value = self.driver.shard._context.groups[self.group_id].members[member_id].subscription
        request = ConsumerHeartbeatRequest(
            self.group_id,
            member_id,
            epoch,
            self.instances[member_id],
            owned=owned,
            client_id=value.client_id,
            client_host=value.client_host,
        )
        return self.driver.records_of("consumer_heartbeat", request)


@pytest.mark.parametrize("group_id", sorted(CONSUMER_GROUPS))
def test_group_writes_what_kafka_wrote(group_id: str) -> None:
    group = Reenactment(group_id)
    for batch in CONSUMER_GROUPS[group_id]:
        assert comparable(group.run(batch)) == comparable(batch.records)


def test_there_are_groups_of_each_kind() -> None:
    kinds = {"shop-848": "range", "turbines": "static", "short-lived": "deleted", "live-848": "live"}
    assert kinds.keys() <= CONSUMER_GROUPS.keys()
    assert len(CONSUMER_GROUPS) > 10


def test_metadata_hash_is_kafkas() -> None:
    topics = golden_topics()
    assert metadata_hash(topics, ["orders"]) == 6407170374945482749
    assert metadata_hash(topics, ["payments"]) == -8325586564547580595
    assert metadata_hash(topics, ["payments", "orders", "missing"]) == -672042357371960139
    assert metadata_hash(topics, ["missing"]) == 0


# Migration

CLASSIC_STEPS = {"migrating svc", "upgrader"}


class Migration(Reenactment):
    """A classic group that is upgraded by a consumer, downgraded when that leaves, and upgraded again."""

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.history = [batch.records for batch in histories()[group_id]]
        self.classic_value: GroupMetadataValue | None = None

    def value_of(self, kind: type, position: int, last: bool = False) -> Any:
        values = [value for _, value in self.history[position] if isinstance(value, kind)]
        return values[-1 if last else 0]


def upgraded(group_id: str) -> tuple[Migration, int]:
    """The group just before its first upgrade, and the number of that batch."""
    group = Migration(group_id)
    records = [record for batch in group.history[:2] for record in batch]
    topics = golden_topics()
    group.driver = Driver(GroupConfig(), topics=topics, log=records)
    # Records of a classic group lack the members' protocols that were not chosen.
    member = group.value_of(ConsumerMember, 2)
    (present,) = group.driver.shard._context.groups[group_id].members.values()
    protocols = tuple(
        JoinProtocol(each.name, each.metadata) for each in member.classic_member_metadata.supported_protocols
    )
    classic = group.driver.shard._context.groups[group_id]
    classic.update(present, protocols, present.rebalance_timeout_ms, present.session_timeout_ms)
    return group, 2


@pytest.mark.parametrize("group_id", sorted(CLASSIC_STEPS))
def test_migration_writes_what_kafka_wrote(group_id: str) -> None:
    group, upgrade = upgraded(group_id)
    driver, history = group.driver, histories()[group_id]

    # The first consumer makes a consumer group of it.
    assert comparable(group.run(history[upgrade])) == comparable(history[upgrade].records)
    new_id = [key.member_id for key, value in history[upgrade].records if isinstance(value, ConsumerMember)][
        1
    ]
    old_id = next(
        key.member_id for key, value in history[upgrade].records if isinstance(value, ConsumerMember)
    )

    # It waits for what the classic member has.
    driver.now_ms = history[3].at_ms
    assert group.run(history[3]) == history[3].records

    # The classic member hears of it, and joins again with nothing.
    driver.now_ms = history[4].at_ms
    assert driver.answer("heartbeat", HeartbeatRequest(group_id, 1, old_id)).error == 27
    known = next(value for _, value in history[4].records if isinstance(value, ConsumerMember))
    protocols = tuple(
        JoinProtocol(each.name, each.metadata) for each in known.classic_member_metadata.supported_protocols
    )
    request = JoinRequest(
        group_id, old_id, "consumer", protocols, 45_000, 300_000, None, known.client_id, known.client_host
    )
    assert driver.records_of("join", request) == history[4].records
    reply = driver.replies[driver.asked]
    assert (reply.error, reply.generation_id, reply.protocol_name, reply.leader) == (0, 2, "range", "")
    synced = driver.answer("sync", SyncRequest(group_id, 2, old_id))
    assert decode_assignment(synced.assignment).assigned_partitions == (TopicPartitions("orders", (0, 1, 2)),)
    assert driver.answer("heartbeat", HeartbeatRequest(group_id, 2, old_id)).error == 0

    # What it gave up is free now.
    assert group.run(history[5]) == history[5].records
    members = {member.member_id: member.is_classic for member in described(driver, group_id).members}
    assert members == {old_id: True, new_id: False}
    assert described(driver, group_id).state == "Stable"

    # Without the consumer it is a classic group again, in its next rebalance.
    downgrade = history[6]
    driver.now_ms = next(
        value.current_state_timestamp_ms
        for _, value in downgrade.records
        if isinstance(value, GroupMetadataValue)
    )
    written = group.heartbeat(new_id, -1)
    assert sorted(map(str, written[:-1])) == sorted(map(str, downgrade.records[:-1]))
    assert [key.version for key, _ in written] == [key.version for key, _ in downgrade.records]
    assert written[-1] == downgrade.records[-1]
    driver.advance(1)
    assert driver.described(group_id).state == "PreparingRebalance"
    assert driver.answer("heartbeat", HeartbeatRequest(group_id, 2, old_id)).error == 27


# Replay


@pytest.mark.parametrize("folder", ["", "expiry/"])
def test_replayed_groups_are_what_kafka_says(folder: str) -> None:
    shards: dict[int, GroupShard] = {}
    topics = golden_topics(folder)
    for record in lines(f"{folder}records.jsonl"):
        if record["control"]:
            continue
        shard = shards.setdefault(record["partition"], GroupShard(GroupConfig(), lambda: "unused", topics))
        key = decode_key(bytes.fromhex(record["key_hex"]))
        value = None if record["value_hex"] is None else bytes.fromhex(record["value_hex"])
        shard.replay(key, decode_value(key, value))
    found = {}
    for shard in shards.values():
        driver = Driver()
        driver.shard = shard
        driver.take(shard.loaded(driver.now_ms))
        for listed in driver.answer("list_groups", ListRequest(types=("consumer",))).groups:
            found[listed.group_id] = described(driver, listed.group_id)
    final = {entry["group"]: entry for entry in lines(f"{folder}final_state.jsonl") if "group" in entry}
    consumer = {group_id: entry for group_id, entry in final.items() if entry["type"] == "Consumer"}
    assert found.keys() == consumer.keys() != set()
    for group_id, group in found.items():
        expected = consumer[group_id]
        assert (group.state, group.epoch, group.target_epoch) == (
            expected["state"],
            expected["group_epoch"],
            expected["target_assignment_epoch"],
        )
        assert [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "member_epoch": member.member_epoch,
                "assignment": [
                    f"{topic.name}-{number}" for topic in member.assignment for number in topic.partitions
                ],
            }
            for member in group.members
        ] == expected["members"]
