"""The decoder of Fetch requests that is written by hand agrees with the one made from the schema."""

from __future__ import annotations

import datetime
from typing import Any

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.static.constants import EntityType

from korvet.protocol.durations import milliseconds
from korvet.protocol.fetch_request import decode_fetch, requested_partition
from korvet.protocol.messages import request_schema
from korvet.protocol.primitives import MalformedRequest, unsigned_varint
from tests.unit.protocol.instances import encode

FETCH = 1
VERSIONS = range(4, 19)
FLEXIBLE = range(12, 19)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PARTITION = st.fixed_dictionaries(
    {
        "partition": INT32,
        "current_leader_epoch": INT32,
        "fetch_offset": INT64,
        "last_fetched_epoch": INT32,
        "log_start_offset": INT64,
        "partition_max_bytes": INT32,
    }
)
TOPIC = st.tuples(st.text(max_size=200), st.none() | st.uuids(), st.lists(PARTITION, max_size=4))
FORGOTTEN = st.tuples(st.text(max_size=200), st.none() | st.uuids(), st.lists(INT32, max_size=4))
REQUEST = st.fixed_dictionaries(
    {
        "replica_id": INT32,
        "max_wait": INT32,
        "min_bytes": INT32,
        "max_bytes": INT32,
        "isolation_level": st.integers(-128, 127),
        "session_id": INT32,
        "session_epoch": INT32,
        "topics": st.lists(TOPIC, max_size=3),
        "forgotten": st.lists(FORGOTTEN, max_size=3),
        "rack_id": st.text(max_size=200),
    }
)
ONE_PARTITION = {
    "partition": 3,
    "current_leader_epoch": 4,
    "fetch_offset": 5,
    "last_fetched_epoch": 6,
    "log_start_offset": 7,
    "partition_max_bytes": 8,
}
ONE = {
    "replica_id": -1,
    "max_wait": 500,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "isolation_level": 0,
    "session_id": 0,
    "session_epoch": -1,
    "topics": [("topic", None, [ONE_PARTITION, ONE_PARTITION])],
    "forgotten": [("topic", None, [1, 2])],
    "rack_id": "",
}


def body(version: int, request: dict[str, Any]) -> bytes:
    """The bytes of a request."""
    schema: Any = kio.index.load_request_schema(FETCH, version)
    module = kio.index.load_payload_module(FETCH, version, EntityType.request)

    def made(cls: Any, **fields: Any) -> Any:
        """A structure with those fields that this version has."""
        return cls(**{name: value for name, value in fields.items() if name in cls.__dataclass_fields__})

    topics = tuple(
        made(
            module.FetchTopic,
            topic=name,
            topic_id=topic_id,
            partitions=tuple(made(module.FetchPartition, **each) for each in partitions),
        )
        for name, topic_id, partitions in request["topics"]
    )
    forgotten: tuple[Any, ...] = ()
    if version >= 7:
        forgotten = tuple(
            made(module.ForgottenTopic, topic=name, topic_id=topic_id, partitions=tuple(indexes))
            for name, topic_id, indexes in request["forgotten"]
        )
    max_wait = datetime.timedelta(milliseconds=request["max_wait"])
    fields = request | {"topics": topics, "forgotten_topics_data": forgotten, "max_wait": max_wait}
    return encode(made(schema, **fields))


def by_hand(version: int, content: bytes) -> Any:
    """What the decoder reads; None if it refuses the request."""
    try:
        found = decode_fetch(memoryview(b"header" + content), 6, version)
    except MalformedRequest:
        return None
    topics = []
    for topic in found.topics:
        partitions = [requested_partition(version, entry) for entry in topic.entries]
        fields = [(each.index, each.leader_epoch, each.offset, each.max_bytes) for each in partitions]
        topics.append((topic.key, fields))
    return (
        found.max_wait_ms,
        found.min_bytes,
        found.max_bytes,
        found.isolation_level,
        found.session_id,
        found.session_epoch,
        topics,
        list(found.forgotten),
    )


def by_schema(version: int, content: bytes) -> Any:
    """The same of the schema's decoder."""
    try:
        found = request_schema(FETCH, version).decode(memoryview(b"header" + content), 6)
    except MalformedRequest:
        return None
    key = "topic_id" if version >= 13 else "topic"
    topics = []
    for topic in found.topics:
        fields = [
            (
                each.partition,
                getattr(each, "current_leader_epoch", -1),
                each.fetch_offset,
                each.partition_max_bytes,
            )
            for each in topic.partitions
        ]
        topics.append((getattr(topic, key), fields))
    forgotten = getattr(found, "forgotten_topics_data", ())
    return (
        milliseconds(found.max_wait),
        found.min_bytes,
        found.max_bytes,
        found.isolation_level,
        getattr(found, "session_id", 0),
        getattr(found, "session_epoch", -1),
        topics,
        [(getattr(topic, key), index) for topic in forgotten for index in topic.partitions],
    )


@pytest.mark.parametrize("version", VERSIONS)
@given(request=REQUEST, behind=st.binary(max_size=5))
def test_requests_are_read_alike(version: int, request: dict[str, Any], behind: bytes) -> None:
    content = body(version, request)
    found = by_hand(version, content + behind)
    assert found is not None
    assert found == by_schema(version, content + behind)


@pytest.mark.parametrize("version", VERSIONS)
@given(request=REQUEST, data=st.data())
def test_damaged_requests_are_read_or_refused_alike(
    version: int, request: dict[str, Any], data: st.DataObject
) -> None:
    """Cut short, and with bytes changed anywhere."""
    content = bytearray(body(version, request))
    assert by_hand(version, bytes(content[:-1])) is None
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= data.draw(st.integers(1, 255))
    size = data.draw(st.integers(0, len(content)))
    for damaged in (bytes(content), bytes(content[:size])):
        assert by_hand(version, damaged) == by_schema(version, damaged)


@pytest.mark.parametrize("version", VERSIONS)
@given(content=st.binary(max_size=80))
def test_any_bytes_are_read_or_refused_alike(version: int, content: bytes) -> None:
    assert by_hand(version, content) == by_schema(version, content)


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("place", ["partition", "last partition", "topic", "forgotten topic", "request"])
@given(data=st.data())
def test_tagged_fields_are_passed_over_alike(version: int, place: str, data: st.DataObject) -> None:
    """KIP-482. Each structure of this request ends with the number of its tagged fields."""
    content = body(version, ONE)
    topic_bytes = 16 if version >= 13 else 6
    ends = {"request": len(content), "forgotten topic": len(content) - 2}
    ends["topic"] = ends["forgotten topic"] - 1 - 8 - 1 - topic_bytes - 1
    ends["last partition"] = ends["topic"] - 1
    ends["partition"] = ends["last partition"] - 33
    at = ends[place] - 1
    assert content[at] == 0
    fields = data.draw(st.lists(st.binary(max_size=5), max_size=60))
    tagged = unsigned_varint(len(fields)) + b"".join(
        unsigned_varint(number) + unsigned_varint(len(value)) + value for number, value in enumerate(fields)
    )
    content = content[:at] + tagged + content[at + 1 :]
    found = by_hand(version, content)
    assert found == by_schema(version, content)
    assert (found is None) == (len(fields) > 48)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
@pytest.mark.parametrize(
    ("topics", "partitions"), [(1, 99_999), (1, 100_000), (2, 50_000), (300, 333), (100_001, 0)]
)
def test_as_many_elements_are_taken_as_by_schema(version: int, topics: int, partitions: int) -> None:
    named = [("t", None, [ONE_PARTITION] * partitions)] * topics
    content = body(version, {**ONE, "topics": named, "forgotten": []})
    assert (by_hand(version, content) is None) == (topics + topics * partitions > 100_000)
    assert (by_schema(version, content) is None) == (topics + topics * partitions > 100_000)


@pytest.mark.parametrize("version", [7, 12, 18])
@pytest.mark.parametrize("forgotten", [99_999, 100_000])
def test_forgotten_partitions_count_too(version: int, forgotten: int) -> None:
    content = body(version, {**ONE, "topics": [], "forgotten": [("t", None, [0] * forgotten)]})
    assert (by_hand(version, content) is None) == (1 + forgotten > 100_000)
    assert (by_schema(version, content) is None) == (1 + forgotten > 100_000)
