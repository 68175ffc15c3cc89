"""The kernel's decoder of Produce requests agrees with the one made from the schema."""

from __future__ import annotations

import datetime
from typing import Any

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.static.constants import EntityType

from korvet.protocol.headers import LASTING_FRAME_BYTES
from korvet.protocol.messages import request_schema
from korvet.protocol.primitives import MalformedRequest, unsigned_varint, uuid_of
from korvet.protocol.produce_request import decode_produce
from korvet.records.produce_request import ProduceRequest, RequestError
from tests.unit.protocol.instances import encode
from tests.unit.records.forms import FORMS

PRODUCE = 0
VERSIONS = range(3, 14)
FLEXIBLE = range(9, 14)
PARTITION = st.tuples(st.integers(-(2**31), 2**31 - 1), st.none() | st.binary(max_size=300))
TOPIC = st.tuples(st.text(max_size=200), st.none() | st.uuids(), st.lists(PARTITION, max_size=3))
REQUEST = st.fixed_dictionaries(
    {
        "transactional_id": st.none() | st.text(max_size=40),
        "acks": st.integers(-(2**15), 2**15 - 1),
        "timeout": st.integers(-(2**31), 2**31 - 1),
        "topics": st.lists(TOPIC, max_size=3),
    }
)
ONE = {"transactional_id": None, "acks": 1, "timeout": 0, "topics": [("topic", None, [(3, b"batch")])]}


def body(version: int, request: dict[str, Any]) -> bytes:
    """The bytes of a request."""
    schema: Any = kio.index.load_request_schema(PRODUCE, version)
    module = kio.index.load_payload_module(PRODUCE, version, EntityType.request)
    topics = tuple(
        module.TopicProduceData(
            **({"topic_id": topic_id} if version >= 13 else {"name": name}),
            partition_data=tuple(
                module.PartitionProduceData(index=index, records=records) for index, records in partitions
            ),
        )
        for name, topic_id, partitions in request["topics"]
    )
    return encode(
        schema(
            transactional_id=request["transactional_id"],
            acks=request["acks"],
            timeout=datetime.timedelta(milliseconds=request["timeout"]),
            topic_data=topics,
        )
    )


def by_hand(version: int, content: bytes) -> Any:
    """What every form of the kernel reads; None if it refuses the request."""
    first, *others = [form_reads(form, version, content) for form in FORMS]
    assert others == [first] * len(others)
    return first


def form_reads(form: Any, version: int, content: bytes) -> Any:
    """What one form of the kernel reads; None if it refuses the request."""
    try:
        found = form.decode_produce(memoryview(b"header" + content), 6, version, uuid_of, False)
    except RequestError:
        return None
    return (
        found.acks,
        found.transactional_id,
        [
            (topic.name, topic.topic_id, [(each.index, each.records) for each in topic.partitions])
            for topic in found.topics
        ],
    )


def by_schema(version: int, content: bytes) -> Any:
    """The same of the schema's decoder."""
    try:
        found = request_schema(PRODUCE, version).decode(memoryview(b"header" + content), 6)
    except MalformedRequest:
        return None
    return (
        found.acks,
        found.transactional_id,
        [
            (
                getattr(topic, "name", ""),
                getattr(topic, "topic_id", None),
                [(each.index, each.records) for each in topic.partition_data],
            )
            for topic in found.topic_data
        ],
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
@pytest.mark.parametrize("place", range(3))
@given(data=st.data())
def test_tagged_fields_are_passed_over_alike(version: int, place: int, data: st.DataObject) -> None:
    """KIP-482. Those of the partition, the topic and the request are the last three bytes of this request."""
    content = body(version, ONE)
    fields = data.draw(st.lists(st.binary(max_size=5), max_size=60))
    tagged = unsigned_varint(len(fields)) + b"".join(
        unsigned_varint(number) + unsigned_varint(len(value)) + value for number, value in enumerate(fields)
    )
    at = len(content) - 3 + place
    content = content[:at] + tagged + content[at + 1 :]
    found = by_hand(version, content)
    assert found == by_schema(version, content)
    assert (found is None) == (len(fields) > 48)


@pytest.mark.parametrize("version", [8, 9, 13])
@pytest.mark.parametrize(("topics", "partitions"), [(1, 99_999), (1, 100_000), (2, 50_000), (300, 333)])
def test_as_many_elements_are_taken_as_by_schema(version: int, topics: int, partitions: int) -> None:
    content = body(version, {**ONE, "topics": [("t", None, [(0, None)] * partitions)] * topics})
    assert (by_hand(version, content) is None) == (topics + topics * partitions > 100_000)
    assert (by_schema(version, content) is None) == (topics + topics * partitions > 100_000)


@pytest.mark.parametrize("size", [32_767, 32_768])
@pytest.mark.parametrize("version", FLEXIBLE)
def test_strings_are_as_long_as_by_schema(version: int, size: int) -> None:
    content = body(version, {**ONE, "transactional_id": "t" * size})
    assert by_hand(version, content) == by_schema(version, content)
    assert (by_hand(version, content) is None) == (size > 32_767)


@pytest.mark.parametrize("size", [100, LASTING_FRAME_BYTES + 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_copied_unless_their_frame_lasts(version: int, size: int) -> None:
    content = body(version, {**ONE, "topics": [("topic", None, [(3, bytes(size))])]})
    buffer = bytearray(content)
    found: ProduceRequest = decode_produce(memoryview(buffer).toreadonly(), 0, version)
    buffer[:] = b"\xff" * len(buffer)
    ((data,),) = [topic.partitions for topic in found.topics]
    assert data.records == (b"\xff" if size > LASTING_FRAME_BYTES else b"\x00") * size


def test_a_refusal_names_the_request() -> None:
    with pytest.raises(MalformedRequest, match="ProduceRequest: the request ends before its last field"):
        decode_produce(memoryview(b"header"), 6, 9)
