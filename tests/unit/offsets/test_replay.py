"""Replay of `__consumer_offsets`, compared with a broker's final answers, and each rule alone."""

from __future__ import annotations

import pytest

from korvet.offsets.codec import DecodeError, encode_key, encode_value
from korvet.offsets.group_records import (
    ConsumerAssignment,
    ConsumerMember,
    GroupEpoch,
    ResolvedRegex,
    TargetEpoch,
)
from korvet.offsets.schema import (
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecordKey,
    GroupRegexKey,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownValue,
)
from korvet.offsets.wire import uuid_text
from tests.support.offsets_replay import CommitTarget, OffsetsReplay
from tests.unit.offsets.golden import CAPTURES, records, replayed, rows

KEY = encode_key(OffsetCommitKey("g", "t", 0))
TARGET = CommitTarget("g", "t", 0)
COMMIT, ABORT = b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"


def commit(offset: int) -> bytes:
    return encode_value(OffsetCommitValue(offset))


def current(replay: OffsetsReplay) -> int | None:
    stored = replay.offsets.get(TARGET)
    return None if stored is None else stored.value.offset


@pytest.mark.parametrize("capture", CAPTURES)
def test_golden_records_end_in_the_brokers_answer(capture: str) -> None:
    replay = replayed(records(capture))
    answer = {
        (row["group"], entry["topic"], entry["partition"]): (
            entry["offset"],
            entry["leader_epoch"],
            entry["metadata"],
        )
        for row in rows(capture, "final_state")
        if row["kind"] == "group"
        for entry in row.get("offsets", ())
    }
    ours = {
        target: (stored.value.offset, stored.value.leader_epoch, stored.value.metadata)
        for target, stored in replay.offsets.items()
    }
    assert ours == answer
    assert len(ours) > 10
    assert replay.open_transactions > 0
    members = {
        row["group"]: {member["member_id"] for member in row["members"]}
        for row in rows(capture, "final_state")
        if row["kind"] == "group" and row["type"] == "Classic" and row.get("members")
    }
    assert members
    for group, ids in members.items():
        assert {member.member_id for member in replay.groups[group].members} == ids


def topic_names(capture: str) -> dict[str, str]:
    return {row["topicId"]: row["topic"] for row in rows(capture, "final_state") if row["kind"] == "topic"}


@pytest.mark.parametrize("capture", CAPTURES)
def test_golden_newer_groups_end_in_the_brokers_answer(capture: str) -> None:
    replay = replayed(records(capture))
    names = topic_names(capture)
    described = [row for row in rows(capture, "final_state") if row.get("type", "Classic") != "Classic"]
    assert described
    assert {row["group"] for row in described} == set(replay.newer_groups)
    for row in described:
        group = replay.newer_groups[row["group"]]
        if row["type"] != "Consumer":
            assert group.members == {}
            continue
        epoch, target = group.properties[3], group.properties[6]
        assert isinstance(epoch, GroupEpoch)
        assert isinstance(target, TargetEpoch)
        if "group_epoch" in row:
            assert (epoch.epoch, target.assignment_epoch) == (
                row["group_epoch"],
                row["target_assignment_epoch"],
            )
        ours = []
        for member_id, values in group.members.items():
            about, owned = values[5], values[8]
            assert isinstance(about, ConsumerMember)
            assert isinstance(owned, ConsumerAssignment)
            places = [
                f"{names[uuid_text(part.topic_id)]}-{partition}"
                for part in owned.assigned_partitions
                for partition in part.partitions
            ]
            ours.append((member_id, about.client_id, about.client_host, owned.member_epoch, sorted(places)))
        theirs = [
            (m["member_id"], m["client_id"], m["host"], m["member_epoch"], sorted(m["assignment"]))
            for m in row.get("members", ())
        ]
        assert sorted(ours) == sorted(theirs)


@pytest.mark.parametrize(("marker", "after"), [(COMMIT, 5), (ABORT, 1)])
def test_a_transactional_value_waits_for_its_marker(marker: bytes, after: int) -> None:
    replay = OffsetsReplay()
    replay.apply(0, 0, KEY, commit(1))
    replay.apply(0, 1, KEY, commit(4), producer_id=9, transactional=True)
    replay.apply(0, 2, KEY, commit(5), producer_id=9, transactional=True)
    assert (current(replay), replay.open_transactions) == (1, 1)
    replay.apply(0, 3, marker, b"", producer_id=8, transactional=True, control=True)
    replay.apply(1, 3, marker, b"", producer_id=9, transactional=True, control=True)
    assert (current(replay), replay.open_transactions) == (1, 1)
    replay.apply(0, 4, marker, b"", producer_id=9, transactional=True, control=True)
    assert (current(replay), replay.open_transactions) == (after, 0)


def test_a_tombstone_drops_pending_values_of_its_key_only() -> None:
    other = encode_key(OffsetCommitKey("g", "t", 1))
    replay = OffsetsReplay()
    for producer_id in (8, 9):
        replay.apply(0, producer_id, KEY, commit(5), producer_id=producer_id, transactional=True)
    replay.apply(0, 10, other, commit(6), producer_id=9, transactional=True)
    replay.apply(0, 11, KEY, None)
    assert replay.open_transactions == 1
    for producer_id in (8, 9):
        replay.apply(0, 12, COMMIT, b"", producer_id=producer_id, transactional=True, control=True)
    assert set(replay.offsets) == {CommitTarget("g", "t", 1)}


def test_groups() -> None:
    key = encode_key(GroupMetadataKey("g"))
    value = GroupMetadataValue("consumer", 1, "range", "m", 5, ())
    replay = OffsetsReplay()
    replay.apply(0, 0, key, encode_value(value))
    assert replay.groups == {"g": value}
    replay.apply(0, 1, key, None)
    replay.apply(0, 2, key, None)
    assert replay.groups == {}


def test_what_does_not_concern_the_state_is_counted() -> None:
    replay = OffsetsReplay()
    replay.apply(0, 0, KEY, commit(1))
    replay.apply(0, 1, KEY, encode_value(UnknownValue(9, b"?")))
    replay.apply(0, 2, b"\x00\x09abc", None)
    replay.apply(0, 3, None, b"x")
    replay.apply(0, 4, b"\x00\x00\x00\x02", b"", control=True)
    assert (current(replay), replay.skipped) == (1, 4)


@pytest.mark.parametrize(
    ("key", "value", "options"),
    [
        (b"", None, {}),
        (KEY, b"\x00\x03", {}),
        (KEY, commit(2), {"transactional": True}),
        (None, b"", {"control": True}),
        (b"\x00\x00\x00", b"", {"control": True}),
    ],
)
def test_damage_changes_nothing(key: bytes | None, value: bytes | None, options: dict[str, bool]) -> None:
    replay = OffsetsReplay()
    replay.apply(0, 0, KEY, commit(1))
    with pytest.raises(DecodeError):
        replay.apply(
            0,
            1,
            key,
            value,
            transactional=options.get("transactional", False),
            control=options.get("control", False),
        )
    assert (current(replay), replay.skipped) == (1, 0)


def test_newer_groups() -> None:
    replay = OffsetsReplay()
    epoch, member, regex = GroupRecordKey("g", 3), GroupMemberKey("g", "m", 8), GroupRegexKey("g", "r.*")
    values = (GroupEpoch(4), ConsumerAssignment(4, 3, 0, (), ()), ResolvedRegex(("t",), 1, 5))
    for at, (key, value) in enumerate(zip((epoch, member, regex), values, strict=True)):
        replay.apply(0, at, encode_key(key), encode_value(value))
    group = replay.newer_groups["g"]
    assert (group.properties, group.members, group.regexes) == (
        {3: values[0]},
        {"m": {8: values[1]}},
        {"r.*": values[2]},
    )
    for at, key in enumerate((epoch, member, regex, member)):
        assert "g" in replay.newer_groups or at == 3
        replay.apply(0, 10 + at, encode_key(key), None)
    assert (replay.newer_groups, replay.skipped) == ({}, 0)
