"""Slots of keys, and the replies of cluster nodes about slots."""

from __future__ import annotations

import pytest

from korvet.redis.errors import RedisFault
from korvet.redis.keys import Keyspace
from korvet.redis.slots import SlotRange, parse_slots, redirected_to, slot_of


# The replies of CLUSTER KEYSLOT; 123456789 is the check value of CRC-16/XMODEM, 0x31C3.
@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"123456789", 0x31C3),
        (b"", 0),
        (b"foo", 12182),
        (b"{foo}", 12182),
        (b"a{foo}b{bar}", 12182),
        (b"{}foo", 9500),
        (b"foo{bar", 15278),
        (b"foo{{bar}}zap", 4015),
    ],
)
def test_known_slots(key: bytes, slot: int) -> None:
    assert slot_of(key) == slot


def test_all_keys_of_a_partition_and_all_shared_ones_are_in_one_slot() -> None:
    keys = Keyspace("some.where")
    partition = [*keys.partition_keys("orders", 7), keys.barrier("orders", 7), keys.pending("orders", 7, 1)]
    assert len({slot_of(key) for key in partition}) == 1
    assert len({slot_of(key) for key in (keys.topics, keys.cluster, keys.brokers)}) == 1


def test_the_map() -> None:
    reply = [
        [0, 5460, [b"10.0.0.1", 7000, b"id", []], [b"10.0.0.2", 7001, b"id"]],
        [5461, 16383, [b"", 7002, b"id", [b"hostname", b"x"]], [None, 7003, b"id"], [b"?", 7004, b"id"]],
        [5461, 5461, [b"?", 7005, b"id", [b"ip", b"10.0.0.5"]], [b"?", 7006, b"id", []]],
    ]
    assert parse_slots(reply, "asked") == [
        SlotRange(0, 5460, ("10.0.0.1", 7000), (("10.0.0.2", 7001),)),
        SlotRange(5461, 16383, ("asked", 7002), (("asked", 7003), ("asked", 7004))),
        SlotRange(5461, 5461, ("10.0.0.5", 7005), (("asked", 7006),)),
    ]


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("MOVED 3999 127.0.0.1:6381", ("127.0.0.1", 6381)),
        ("ASK 3999 node.example:6381", ("node.example", 6381)),
        ("MOVED 3999 ::1:6381", ("::1", 6381)),
        ("MOVED 3999 :6381", ("asked", 6381)),
    ],
)
def test_redirections(message: str, place: tuple[str, int]) -> None:
    assert redirected_to(RedisFault(message, message.split(maxsplit=1)[0]), "asked") == place
