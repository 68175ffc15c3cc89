"""The JSON text, character by character as Kafka's console formatters print it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from korvet.offsets.codec import DecodeError, encode_key, encode_value
from korvet.offsets.formatters import (
    format_group_record,
    format_newer_group_record,
    format_offset_record,
)
from korvet.offsets.schema import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    UnknownValue,
)
from tests.unit.offsets.golden import CAPTURES, printed, records

if TYPE_CHECKING:
    from collections.abc import Callable

OFFSET_KEY = encode_key(OffsetCommitKey("g", "t", 3))
GROUP_KEY = encode_key(GroupMetadataKey("g"))


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize(
    ("formatter", "name"),
    [
        (format_offset_record, "decoded_offsets"),
        (format_group_record, "decoded_groups"),
        (format_newer_group_record, "decoded_other"),
    ],
)
def test_golden_output(
    capture: str, formatter: Callable[[bytes | None, bytes | None], str | None], name: str
) -> None:
    ours = {}
    for record in records(capture):
        text = None if record.control else formatter(record.key, record.value)
        if text is not None:
            ours[record.partition, record.offset] = text
    theirs = printed(capture, name)
    assert len(theirs) > 10
    assert ours == theirs


# Kafka 4.3.1's own formatters printed the expected texts below for these bytes.
@pytest.mark.parametrize(
    ("value", "data"),
    [
        (
            OffsetCommitValue(7, 5, "m", 9, 11, version=0),
            '{"offset":7,"metadata":"m","commitTimestamp":9}',
        ),
        (
            OffsetCommitValue(7, 5, "m", 9, 11, version=1),
            '{"offset":7,"metadata":"m","commitTimestamp":9,"expireTimestamp":11}',
        ),
        (
            OffsetCommitValue(7, 5, "m", 9, 11, version=2),
            '{"offset":7,"metadata":"m","commitTimestamp":9}',
        ),
        (
            OffsetCommitValue(7, 5, "m", 9, 11, version=3),
            '{"offset":7,"leaderEpoch":5,"metadata":"m","commitTimestamp":9}',
        ),
        (
            OffsetCommitValue(7, 5, "m", 9, version=4),
            '{"offset":7,"leaderEpoch":5,"metadata":"m","commitTimestamp":9}',
        ),
        (
            OffsetCommitValue(7, 5, "m", 9, topic_id=bytes(16), version=4, unknown_tags=((3, b"xyz"),)),
            '{"offset":7,"leaderEpoch":5,"metadata":"m","commitTimestamp":9}',
        ),
        (
            OffsetCommitValue(7, 5, "m", 9, topic_id=b"\xfb" * 16, version=4),
            '{"offset":7,"leaderEpoch":5,"metadata":"m","commitTimestamp":9,"topicId":"-_v7-_v7-_v7-_v7-_v7-w"}',
        ),
    ],
)
def test_offset_commit_versions(value: OffsetCommitValue, data: str) -> None:
    expected = (
        '{"key":{"type":1,"data":{"group":"g","topic":"t","partition":3}},'
        f'"value":{{"version":{value.version},"data":{data}}}}}'
    )
    assert format_offset_record(OFFSET_KEY, encode_value(value)) == expected


def test_the_oldest_key_type_and_escapes() -> None:
    key = encode_key(OffsetCommitKey('g\u2028\x7f/<é😀\x1b\x08\x0c\r\x0b\x00"\\\t\n', "t", 3, version=0))
    escaped = 'g\u2028\x7f/<é😀\\u001B\\b\\f\\r\\u000B\\u0000\\"\\\\\\t\\n'
    expected = f'{{"key":{{"type":0,"data":{{"group":"{escaped}","topic":"t","partition":3}}}},"value":null}}'
    assert format_offset_record(key, None) == expected


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (
            0,
            '"leader":"l","members":[{"memberId":"m","clientId":"c","clientHost":"h","sessionTimeout":4,'
            '"subscription":"+/8=","assignment":""}]',
        ),
        (
            1,
            '"leader":"l","members":[{"memberId":"m","clientId":"c","clientHost":"h","rebalanceTimeout":3,'
            '"sessionTimeout":4,"subscription":"+/8=","assignment":""}]',
        ),
        (
            2,
            '"leader":"l","currentStateTimestamp":77,"members":[{"memberId":"m","clientId":"c","clientHost":"h",'
            '"rebalanceTimeout":3,"sessionTimeout":4,"subscription":"+/8=","assignment":""}]',
        ),
        (
            3,
            '"leader":"l","currentStateTimestamp":77,"members":[{"memberId":"m","groupInstanceId":null,'
            '"clientId":"c","clientHost":"h","rebalanceTimeout":3,"sessionTimeout":4,"subscription":"+/8=",'
            '"assignment":""}]',
        ),
        (
            4,
            '"leader":"l","currentStateTimestamp":77,"members":[{"memberId":"m","groupInstanceId":null,'
            '"clientId":"c","clientHost":"h","rebalanceTimeout":3,"sessionTimeout":4,"subscription":"+/8=",'
            '"assignment":""}]',
        ),
    ],
)
def test_group_metadata_versions(version: int, data: str) -> None:
    member = MemberMetadata("m", None, "c", "h", 3, 4, b"\xfb\xff", b"")
    value = GroupMetadataValue("consumer", 1, None, "l", 77, (member,), version)
    expected = (
        f'{{"key":{{"type":2,"data":{{"group":"g"}}}},"value":{{"version":{version},"data":'
        f'{{"protocolType":"consumer","generation":1,"protocol":null,{data}}}}}}}'
    )
    assert format_group_record(GROUP_KEY, encode_value(value)) == expected


FORMATTERS = (format_offset_record, format_group_record)


def test_other_records_print_nothing() -> None:
    other = encode_key(UnknownKey(9, b"abc"))
    for formatter in (*FORMATTERS, format_newer_group_record):
        assert formatter(other, b"\x00\x00x") is None
        assert formatter(None, b"x") is None
    assert format_offset_record(GROUP_KEY, None) is None
    assert format_group_record(OFFSET_KEY, None) is None


def test_versions_from_the_future_are_named() -> None:
    text = format_group_record(GROUP_KEY, encode_value(UnknownValue(9, b"?")))
    assert text == '{"key":{"type":2,"data":{"group":"g"}},"value":{"version":9,"data":"unknown"}}'


def test_damage_is_reported() -> None:
    for formatter in FORMATTERS:
        with pytest.raises(DecodeError):
            formatter(b"", None)
    with pytest.raises(DecodeError):
        format_offset_record(OFFSET_KEY, b"\x00\x03")
