"""Share groups of a real Kafka (KIP-932), re-enacted: our coordinator writes the same records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from korvet.groups.config import GroupConfig
from korvet.groups.messages import DeleteRequest, ListRequest
from korvet.groups.shard import GroupShard
from korvet.groups.share.group import ASSIGNMENT, RECORD_TYPES, STATES, TARGET
from korvet.groups.share.messages import RemoveStatesRequest, ShareHeartbeatRequest
from korvet.offsets.codec import decode_key, decode_value, encode_key, encode_value
from korvet.offsets.group_records import ShareAssignment, ShareMember, SharePartitions, TargetEpoch
from korvet.offsets.schema import GroupMemberKey
from tests.unit.groups.driver import Driver
from tests.unit.groups.sharers import described, group_of, initialise
from tests.unit.groups.test_consumer_golden import golden_topics, lines, with_protocol

if TYPE_CHECKING:
    from korvet.groups.messages import Record
    from tests.unit.groups.test_consumer_golden import Batch

SHARE_GROUPS = with_protocol(set(RECORD_TYPES))


def comparable(records: list[Record]) -> list[Any]:
    """Records as bytes, without what Kafka leaves to the order of its hash tables: which partitions a member
    gets, and the order of the members in a target.
    """
    counted: list[Any] = []
    for key, value in records:
        if key.version == TARGET and value is not None:
            counted.append((encode_key(key), sorted(len(each.partitions) for each in value.topic_partitions)))
        elif isinstance(value, ShareAssignment):
            counts = sorted(len(each.partitions) for each in value.assigned_partitions)
            rest = (value.member_epoch, value.previous_member_epoch, value.state)
            counted.append((encode_key(key), rest, counts))
        else:
            counted.append((encode_key(key), None if value is None else encode_value(value)))
    targets = sorted(
        record for record, (key, value) in zip(counted, records, strict=True) if key.version == TARGET
    )
    return [
        targets.pop(0) if key.version == TARGET else record
        for record, (key, _) in zip(counted, records, strict=True)
    ]


class Reenactment:
    """Lets the members of a golden group do what led to its records, at the times that those bear."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.driver = Driver(GroupConfig(), topics=golden_topics())
        self.members: dict[str, ShareAssignment] = {}

    def run(self, batch: Batch) -> list[Record]:
        """The records that our coordinator writes for the events of the batch."""
        self.driver.now_ms = batch.at_ms
        for _, value in batch.records:
            if isinstance(value, TargetEpoch) and value.assignment_timestamp:
                self.driver.now_ms = value.assignment_timestamp
        written = self.events(batch)
        for key, value in batch.records:
            if isinstance(key, GroupMemberKey) and isinstance(value, ShareAssignment):
                self.members[key.member_id] = value
        return written

    def events(self, batch: Batch) -> list[Record]:
        for key, value in batch.records:
            if isinstance(value, ShareMember):
                return self.heartbeat(key.member_id, 0, value.subscribed_topic_names)
            if key.version == ASSIGNMENT and value is None:
                return self.heartbeat(key.member_id, -1)
        if {key.version for key, _ in batch.records} == {STATES}:
            before = len(self.driver.log)
            initialise(self.driver)
            return self.driver.log[before:]
        member_id = next(key.member_id for key, value in batch.records if isinstance(value, ShareAssignment))
        return self.heartbeat(member_id, self.members[member_id].member_epoch)

    def heartbeat(self, member_id: str, epoch: int, names: tuple[str, ...] | None = None) -> list[Record]:
        request = ShareHeartbeatRequest(
            self.group_id, member_id, epoch, None, names, client_id="sharer", client_host="/127.0.0.1"
        )
        return self.driver.records_of("share_heartbeat", request)


@pytest.mark.parametrize("group_id", sorted(SHARE_GROUPS))
def test_group_writes_what_kafka_wrote(group_id: str) -> None:
    group = Reenactment(group_id)
    for batch in SHARE_GROUPS[group_id]:
        assert comparable(group.run(batch)) == comparable(batch.records)


def test_there_are_groups() -> None:
    assert len(SHARE_GROUPS) > 1


def test_replayed_groups_are_what_kafka_says() -> None:
    shards: dict[int, GroupShard] = {}
    topics = golden_topics()
    for record in lines("records.jsonl"):
        if not record["control"]:
            shard = shards.setdefault(
                record["partition"], GroupShard(GroupConfig(), lambda: "unused", topics)
            )
            key = decode_key(bytes.fromhex(record["key_hex"]))
            value = None if record["value_hex"] is None else bytes.fromhex(record["value_hex"])
            shard.replay(key, decode_value(key, value))
    found = {}
    for shard in shards.values():
        driver = Driver()
        driver.shard = shard
        driver.take(shard.loaded(driver.now_ms))
        for listed in driver.answer("list_groups", ListRequest(types=("share",))).groups:
            group = described(driver, listed.group_id)
            found[listed.group_id] = (group.state, group.epoch, group.target_epoch, listed.protocol_type)
    expected = {each["group"] for each in lines("final_state.jsonl") if each.get("type") == "Share"}
    assert found == dict.fromkeys(expected, ("Empty", 5, 5, "share"))
    assert len(expected) > 1


def test_a_group_is_deleted_as_kafka_deletes_it() -> None:
    """First the states, then the group: types 12, 15 and 11."""
    group_id = "queue.workers"
    group = Reenactment(group_id)
    for batch in SHARE_GROUPS[group_id]:
        group.run(batch)
    driver = group.driver
    written = driver.records_of("remove_states", RemoveStatesRequest(group_id))
    ((_, value),) = written
    (orders,) = value.deleting_topics
    assert value == SharePartitions((), (), (orders,))
    places = driver.replies[driver.asked].places
    assert {(place.group_id, place.topic_id, place.topic) for place in places} == {
        (group_id, orders.topic_id, "orders")
    }
    assert [place.partition for place in places] == [0, 1, 2, 3, 4, 5]
    assert group_of(driver, group_id).state_name == "Empty"
    written = driver.records_of("delete_groups", DeleteRequest((group_id,)))
    assert [(key.version, value) for key, value in written] == [(12, None), (15, None), (11, None)]
    assert group_id not in driver.shard.groups
