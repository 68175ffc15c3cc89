"""Real Kafka's `__consumer_offsets`: replayed into shards, and its classic groups re-enacted."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from korvet.groups.config import GroupConfig
from korvet.groups.messages import (
    JoinProtocol,
    LeaveRequest,
    LeavingMember,
    ListRequest,
    SyncAssignment,
    SyncRequest,
)
from korvet.groups.shard import GroupShard
from korvet.offsets.codec import decode_key, decode_value, encode_value
from korvet.offsets.consumer_protocol import decode_assignment
from korvet.offsets.schema import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from tests.unit.groups.driver import START_MS, Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parents[2] / "data" / "consumer_offsets"
CAPTURES = (DATA, DATA / "expiry")
MARKER_COMMIT = 1


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def replayed(capture: Path) -> dict[int, GroupShard]:
    shards: dict[int, GroupShard] = defaultdict(lambda: GroupShard(GroupConfig(), lambda: "unused"))
    for record in lines(capture / "records.jsonl"):
        shard, key = shards[record["partition"]], bytes.fromhex(record["key_hex"])
        if record["control"]:
            committed = int.from_bytes(key[2:4], "big") == MARKER_COMMIT
            shard.end_transaction(record["producer_id"], committed=committed)
            continue
        decoded = decode_key(key)
        value = None if record["value_hex"] is None else bytes.fromhex(record["value_hex"])
        producer_id = record["producer_id"] if record["transactional"] else -1
        shard.replay(decoded, decode_value(decoded, value), producer_id)
    return shards


class Loaded(NamedTuple):
    """A shard that serves what was replayed."""

    driver: Driver
    groups: dict[str, str]


def serve(shard: GroupShard) -> Loaded:
    driver = Driver()
    driver.shard = shard
    driver.take(shard.loaded(START_MS))
    listed = driver.answer("list_groups", ListRequest()).groups
    return Loaded(driver, {group.group_id: group.protocol_type for group in listed})


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
def test_replayed_state_is_what_kafka_says(capture: Path) -> None:
    served = [serve(shard) for shard in replayed(capture).values()]
    owners = {group_id: loaded for loaded in served for group_id in loaded.groups}
    final = {
        entry["group"]: entry for entry in lines(capture / "final_state.jsonl") if entry["kind"] == "group"
    }
    classic = {group_id for group_id, entry in final.items() if entry["type"] == "Classic"}
    # Groups of other types that committed look to us like simple groups.
    assert classic <= owners.keys() <= final.keys()
    assert len(classic) > 2
    for group_id in classic:
        check_group(owners[group_id], final[group_id])


def check_group(loaded: Loaded, expected: dict[str, Any]) -> None:
    described = loaded.driver.described(expected["group"])
    assert described.state == expected["state"]
    assert described.protocol_type == loaded.groups[expected["group"]] == expected["protocol_type"]
    assert described.protocol_data == expected.get("assignor", "")
    members = [
        {
            "member_id": member.member_id,
            "instance_id": member.group_instance_id,
            "client_id": member.client_id,
            "host": member.client_host,
            "assignment": [
                f"{topic.topic}-{partition}"
                for topic in decode_assignment(member.assignment).assigned_partitions
                for partition in topic.partitions
            ],
        }
        for member in described.members
    ]
    assert members == expected.get("members", [])
    offsets = {(entry["topic"], entry["partition"]): entry["offset"] for entry in expected["offsets"]}
    assert loaded.driver.fetched(expected["group"]) == offsets


# Re-enactment


class Written(NamedTuple):
    """A GroupMetadata record that Kafka wrote: its value as bytes and decoded."""

    data: bytes
    value: GroupMetadataValue


def histories() -> dict[str, list[Written]]:
    """The records of the classic groups all of whose generations were written down."""
    found: dict[str, list[Written | None]] = defaultdict(list)
    for capture in CAPTURES:
        for record in lines(capture / "records.jsonl"):
            key = None if record["control"] else decode_key(bytes.fromhex(record["key_hex"]))
            if not isinstance(key, GroupMetadataKey):
                continue
            data = None if record["value_hex"] is None else bytes.fromhex(record["value_hex"])
            value = decode_value(key, data)
            known = data is not None and isinstance(value, GroupMetadataValue)
            found[key.group].append(Written(data, value) if known else None)
    whole = {}
    for group_id, records in found.items():
        history = [written for written in records[:-1] if written is not None]
        if len(history) == len(records) - 1 and is_whole([*history, *filter(None, records[-1:])]):
            whole[group_id] = [*history, *filter(None, records[-1:])]  # without the tombstone at its end
    return whole


def is_whole(history: list[Written]) -> bool:
    """Whether nothing happened between the records: a generation that was never assigned leaves none."""
    steps = [after.value.generation - before.value.generation for before, after in pairwise(history)]
    return len(history) > 1 and history[0].value.generation == 0 and set(steps) <= {0, 1}


class Reenactment:
    """Lets the members of a golden group do what led to its records, at the times that those bear."""

    def __init__(self, group_id: str, history: list[GroupMetadataValue]) -> None:
        created, first = history[0], history[1]
        self.is_static = first.members[0].group_instance_id is not None
        # A dynamic member is sent back for its id when the group is created; a static one joins at once.
        self.delay_ms = 1
        if self.is_static:
            self.delay_ms = first.current_state_timestamp_ms - created.current_state_timestamp_ms
        self.group_id = group_id
        self.next_suffix = ""
        config = GroupConfig(initial_rebalance_delay_ms=self.delay_ms)
        self.driver = Driver(config, suffix=lambda: self.next_suffix)
        self.present: dict[str, MemberMetadata] = {}
        self.leader: str | None = None
        self.history = history

    def run(self) -> list[GroupMetadataValue]:
        """What our coordinator wrote."""
        generation = -1
        for value, after in zip(self.history, [*self.history[1:], None], strict=True):
            if value.generation == 0:
                self.create(value)
            elif not value.members:
                self.end(value)
            elif value.generation == generation:
                self.replace(value)
            else:
                is_replaced = after is not None and after.generation == value.generation
                self.rebalance(value, after.current_state_timestamp_ms if after and is_replaced else None)
            generation = value.generation
        return [value for _, value in self.driver.log if isinstance(value, GroupMetadataValue)]

    def create(self, value: GroupMetadataValue) -> None:
        self.driver.now_ms = value.current_state_timestamp_ms
        if not self.is_static:
            self.join(self.history[1].members[0], "", "any", needs_member_id=True)

    def rebalance(self, value: GroupMetadataValue, stable_ms: int | None) -> None:
        members = {member.member_id: member for member in value.members}
        is_initial = not self.present
        self.driver.now_ms = value.current_state_timestamp_ms - (self.delay_ms if is_initial else 0)
        gone = sorted(self.present.keys() - members.keys())
        if gone:
            self.leave(gone)
        # New members first, or the present ones would complete a rebalance of their own. Then the leader: an
        # unchanged join of another member starts no rebalance.
        for member in sorted(
            value.members,
            key=lambda m: (m.member_id in self.present, m.member_id != (self.leader or value.leader)),
        ):
            if member.member_id not in self.present and member.group_instance_id is not None:
                self.join(member, "", value.protocol or "")
            else:
                has_id = value.generation == 1 and member is value.members[0]
                if member.member_id not in self.present and not has_id:
                    self.join(member, "", value.protocol or "", needs_member_id=True)
                self.join(member, member.member_id, value.protocol or "")
        self.driver.advance(self.delay_ms if is_initial else 0)
        self.driver.now_ms = self.driver.now_ms if stable_ms is None else stable_ms
        given = tuple(SyncAssignment(member.member_id, member.assignment) for member in value.members)
        for member_id in sorted(members, key=lambda member_id: member_id == value.leader):
            assignments = given if member_id == value.leader else ()
            request = SyncRequest(self.group_id, value.generation, member_id, assignments=assignments)
            self.driver.ask("sync", request)
        self.present, self.leader = members, value.leader

    def replace(self, value: GroupMetadataValue) -> None:
        """A static member comes back under a new id."""
        back = next(member for member in value.members if member.member_id not in self.present)
        self.join(back, "", value.protocol or "")
        self.present, self.leader = {member.member_id: member for member in value.members}, value.leader

    def end(self, value: GroupMetadataValue) -> None:
        self.driver.now_ms = value.current_state_timestamp_ms
        self.leave(sorted(self.present))
        self.present, self.leader = {}, None

    def leave(self, member_ids: list[str]) -> None:
        leaving = tuple(LeavingMember(member_id) for member_id in member_ids)
        self.driver.ask("leave", LeaveRequest(self.group_id, leaving))

    def join(self, member: MemberMetadata, member_id: str, protocol: str, **fields: Any) -> None:
        prefix = member.client_id if member.group_instance_id is None else member.group_instance_id
        assert member.member_id.startswith(prefix + "-")
        self.next_suffix = member.member_id[len(prefix) + 1 :]
        self.driver.join(
            member_id,
            self.group_id,
            protocols=(JoinProtocol(protocol, member.subscription),),
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            client_id=member.client_id,
            client_host=member.client_host,
            group_instance_id=member.group_instance_id,
            **fields,
        )


def in_order_of(value: GroupMetadataValue, golden: GroupMetadataValue) -> GroupMetadataValue:
    """The same with its members in the order of golden's: Kafka's is that of a hash table."""
    ids = [member.member_id for member in golden.members]
    return replace(
        value, members=tuple(sorted(value.members, key=lambda member: ids.index(member.member_id)))
    )


HISTORIES = histories()


def test_there_are_histories() -> None:
    """Guards the next test against passing for lack of data."""
    assert len(HISTORIES) > 35
    assert sum(len(history) for history in HISTORIES.values()) > 140


@pytest.mark.parametrize("group_id", HISTORIES)
def test_group_records_are_those_of_kafka(group_id: str) -> None:
    golden = HISTORIES[group_id]
    ours = Reenactment(group_id, [written.value for written in golden]).run()
    assert [value.generation for value in ours] == [written.value.generation for written in golden]
    for value, written in zip(ours, golden, strict=True):
        assert encode_value(in_order_of(value, written.value)) == written.data
