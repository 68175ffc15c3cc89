"""The map from group to partition, against Java's own hash codes and a real topic."""

from __future__ import annotations

import pytest

from korvet.offsets.codec import decode_key
from korvet.offsets.partition import java_hash, partition_for
from korvet.offsets.schema import UnknownKey
from tests.unit.offsets.golden import CAPTURES, records


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("testgroup", -1172783827),
        ("polygenelubricants", -(1 << 31)),
        ("😀", 1772899),
        ("\ud83d", 0xD83D),
    ],
)
def test_java_hash(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_partition_for() -> None:
    assert partition_for("testgroup") == 27
    assert partition_for("polygenelubricants") == 0
    assert partition_for("") == 0
    assert partition_for("testgroup", 1) == 0


@pytest.mark.parametrize("partitions", [0, -1])
def test_there_must_be_a_partition(partitions: int) -> None:
    with pytest.raises(ValueError, match="partitions"):
        partition_for("g", partitions)


@pytest.mark.parametrize("capture", CAPTURES)
def test_every_golden_group_is_in_its_partition(capture: str) -> None:
    groups = 0
    for record in records(capture):
        if record.control:
            continue
        key = decode_key(record.key)
        if not isinstance(key, UnknownKey):
            groups += 1
            assert partition_for(key.group) == record.partition
    assert groups > 100
