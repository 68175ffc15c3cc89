"""Golden, random and damaged records of `__consumer_offsets`, and what the codec reads in them.

Works with every version of Spark, because it imports none of its modules.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from korvet.offsets.codec import DecodeError, decode_key, decode_value, encode_key, encode_value
from korvet.offsets.schema import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    UnknownValue,
)

GOLDEN = Path(__file__).parents[1] / "data" / "consumer_offsets"
Record = tuple[bytes | None, bytes | None]


def golden_records() -> list[Record]:
    records: list[Record] = []
    for path in sorted(GOLDEN.rglob("records.jsonl")):
        for line in path.read_text().splitlines():
            document = json.loads(line)
            if not document["control"]:
                value = document["value_hex"]
                key = bytes.fromhex(document["key_hex"])
                records.append((key, None if value is None else bytes.fromhex(value)))
    return records


def codec_reads(record: Record) -> tuple[Any, Any] | None:
    """Key and value by the codec; None for quarantined records."""
    key_bytes, value_bytes = record
    try:
        key = decode_key(key_bytes or b"")
        value = decode_value(key, value_bytes)
    except DecodeError:
        return None
    known = not isinstance(key, UnknownKey)
    return None if known and isinstance(value, UnknownValue) else (key, value)


def check_commit(row: Any, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
    assert (row["group"], row["topic"], row["partition"], row["key_version"]) == (
        key.group,
        key.topic,
        key.partition,
        key.version,
    )
    assert row["tombstone"] == (value is None)
    if value is None:
        assert (row["committed_offset"], row["metadata"], row["commit_ts"]) == (None, None, None)
        return
    # The time of a commit that has none is null in the table.
    assert row["commit_ms"] != -1
    assert OffsetCommitValue(
        row["committed_offset"],
        row["leader_epoch"],
        row["metadata"],
        -1 if row["commit_ms"] is None else row["commit_ms"],
        row["expire_ms"],
        None if row["topic_id"] is None else bytes(row["topic_id"]),
        row["value_version"],
        value.unknown_tags,
    ) == (value)


def random_text(source: random.Random) -> str:
    alphabet = 'abc-._ \0"\\äß€😀'
    size = source.choice([0, 1, 5, 40, 126, 127, 128, 300])
    return "".join(source.choice(alphabet) for _ in range(size))


def random_commit(source: random.Random) -> Record:
    version = source.randrange(5)
    numbers = [0, 1, -1, 2**31 - 1, 2**31, 2**63 - 1, -(2**63), 1_700_000_000_000, source.getrandbits(62)]
    key = OffsetCommitKey(
        random_text(source), random_text(source), source.choice([0, 7, 2**31 - 1, -1]), source.randrange(2)
    )
    value = OffsetCommitValue(
        source.choice(numbers),
        source.choice([-1, 0, 5, 2**31 - 1, -(2**31)]) if version >= 3 else -1,
        random_text(source) * source.choice([1, 1, 1, 20]),
        source.choice(numbers),
        source.choice(numbers) if version == 1 else -1,
        source.choice([None, source.randbytes(16)]) if version == 4 else None,
        version,
    )
    return encode_key(key), source.choice(
        [encode_value(value), encode_value(value), encode_value(value), None]
    )


def random_group(source: random.Random) -> Record:
    members = tuple(
        MemberMetadata(
            random_text(source),
            None,
            random_text(source),
            "/127.0.0.1",
            30_000,
            10_000,
            b"\0\1",
            source.randbytes(9),
        )
        for _ in range(source.randrange(4))
    )
    value = GroupMetadataValue(
        source.choice(["consumer", "connect"]), source.randrange(99), "range", None, 5, members, 3
    )
    return encode_key(GroupMetadataKey(random_text(source))), encode_value(value)


def damaged(source: random.Random, record: Record) -> Record:
    """Returns the record with a truncated, lengthened or changed key or value."""
    halves = list(record)
    half = source.randrange(2)
    data = bytearray(halves[half] or b"")
    kind = source.randrange(3)
    if kind == 0 and data:
        del data[source.randrange(len(data)) :]
    elif kind == 1:
        data += source.randbytes(source.randrange(1, 4))
    elif data:
        data[source.randrange(len(data))] = source.choice([0, 0x7F, 0x80, 0xFF])
    halves[half] = bytes(data)
    return halves[0], halves[1]


def random_records(seed: int) -> list[Record]:
    """Intact, damaged and unusual records."""
    source = random.Random(seed)
    whole = [random_commit(source) for _ in range(1500)] + [random_group(source) for _ in range(200)]
    broken = [damaged(source, source.choice(whole)) for _ in range(3000)]
    odd: list[Record] = [
        (None, b"x"),
        (b"", None),
        (b"\0", b""),
        (b"\0\1", b"\0\1"),
        (b"\0\2", b"\0\2"),
        (b"\0\7other", b"\0\0payload"),
        (b"\0\x09other", b"\0\0payload"),
        (b"\0\x18other", b"\0\0payload"),
        (b"\0\3\0\1g", b"\0\5future"),
        (whole[0][0], b"\0\5future"),
        (whole[0][0], b"\xff\xffpast"),
        (whole[0][0], b""),
    ]
    records = whole + broken + odd
    source.shuffle(records)
    return records
