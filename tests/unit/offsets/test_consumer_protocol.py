"""Member bytes of real clients, compared with the result of Kafka's ConsumerProtocol."""

from __future__ import annotations

from dataclasses import replace

import pytest

from korvet.offsets.consumer_protocol import (
    Assignment,
    DecodeError,
    EncodeError,
    Subscription,
    TopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tests.unit.offsets.golden import CAPTURES, rows

OWNED = (TopicPartitions("a", (0, 2)), TopicPartitions("b", ()))
SUBSCRIPTION = Subscription(("a", "b"), b"data", OWNED, 7, "rack")


def flat(topics: tuple[TopicPartitions, ...]) -> list[str]:
    """The capture lists partitions in ascending order, in any order of the bytes."""
    return sorted(f"{entry.topic}-{partition}" for entry in topics for partition in entry.partitions)


def hexadecimal(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


@pytest.mark.parametrize("capture", CAPTURES)
def test_golden_members(capture: str) -> None:
    members = rows(capture, "decoded_members")
    assert members
    for row in members:
        subscription = decode_subscription(bytes.fromhex(row["subscription_hex"]))
        assert {
            "version": subscription.version,
            "topics": list(subscription.topics),
            "user_data_hex": hexadecimal(subscription.user_data),
            "owned_partitions": flat(subscription.owned_partitions),
            "generation_id": subscription.generation_id,
            "rack_id": subscription.rack_id,
        } == row["subscription"]
        assignment = decode_assignment(bytes.fromhex(row["assignment_hex"]))
        assert {
            "version": assignment.version,
            "partitions": flat(assignment.assigned_partitions),
            "user_data_hex": hexadecimal(assignment.user_data),
        } == row["assignment"]
        # Only an empty rack does not come back: it means no rack, which is written as null.
        raw = row["subscription_hex"]
        empty_rack = raw.startswith("0003") and not raw.endswith("ffff") and subscription.rack_id is None
        assert encode_subscription(subscription).hex() == (raw[:-4] + "ffff" if empty_rack else raw)
        assert encode_assignment(assignment).hex() == row["assignment_hex"]


def test_subscription_versions() -> None:
    topics, owned = (
        "00000002 0001 61 0001 62 00000004 64617461",
        "00000002 0001 61 00000002 00000000 00000002",
    )
    owned += "0001 62 00000000"
    expected = {
        0: f"0000 {topics}",
        1: f"0001 {topics} {owned}",
        2: f"0002 {topics} {owned} 00000007",
        3: f"0003 {topics} {owned} 00000007 0004 7261636b",
    }
    for version, text in expected.items():
        assert encode_subscription(replace(SUBSCRIPTION, version=version)) == bytes.fromhex(text)
    without = Subscription(("a", "b"), b"data", version=0)
    assert decode_subscription(bytes.fromhex(expected[0])) == without
    assert decode_subscription(bytes.fromhex(expected[1])) == replace(
        without, owned_partitions=OWNED, version=1
    )
    assert decode_subscription(bytes.fromhex(expected[3])) == SUBSCRIPTION


def test_newer_versions_and_trailing_bytes_are_read_as_far_as_known() -> None:
    data = b"\x00\x09" + encode_subscription(SUBSCRIPTION)[2:] + b"more"
    assert decode_subscription(data) == replace(SUBSCRIPTION, version=9)
    assignment = Assignment(OWNED, None)
    data = b"\x00\x09" + encode_assignment(assignment)[2:] + b"more"
    assert decode_assignment(data) == replace(assignment, version=9)


@pytest.mark.parametrize("version", range(4))
def test_every_truncation_is_damage(version: int) -> None:
    data = encode_subscription(replace(SUBSCRIPTION, version=version))
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_subscription(data[:end])
    data = encode_assignment(Assignment(OWNED, b"x", version))
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_assignment(data[:end])


def test_versions_out_of_range() -> None:
    with pytest.raises(DecodeError, match="version -1"):
        decode_subscription(b"\xff\xff")
    with pytest.raises(DecodeError, match="version -1"):
        decode_assignment(b"\xff\xff")
    for version in (-1, 4):
        with pytest.raises(EncodeError, match="no version"):
            encode_subscription(replace(SUBSCRIPTION, version=version))
        with pytest.raises(EncodeError, match="no version"):
            encode_assignment(Assignment((), version=version))
