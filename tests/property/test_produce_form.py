"""Produce requests decoded by their form say what the schema's decoder says, or are left to it."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.static.constants import EntityType

from korvet.api.producing.form import ProduceForm, ProduceOne
from korvet.protocol.headers import parse_header
from korvet.protocol.messages import request_schema
from tests.unit.protocol.instances import encode

PRODUCE = 0
VERSIONS = range(3, 14)
RECORDS = st.none() | st.binary(max_size=300)
SETTINGS = st.fixed_dictionaries(
    {
        "acks": st.integers(-1, 1),
        "timeout": st.integers(0, 2**31 - 1),
        "name": st.text(max_size=200),
        "topic_id": st.none() | st.uuids(),
        "client_id": st.none() | st.text(max_size=40),
    }
)


def frame(
    version: int, settings: dict[str, Any], data: list[list[tuple[int, bytes | None]]], **more: Any
) -> bytes:
    """A request with topics of partitions (index, records), the header included."""
    schema: Any = kio.index.load_request_schema(PRODUCE, version)
    module = kio.index.load_payload_module(PRODUCE, version, EntityType.request)
    named = {"topic_id": settings["topic_id"]} if version >= 13 else {"name": settings["name"]}
    topics = tuple(
        module.TopicProduceData(
            **named,
            partition_data=tuple(
                module.PartitionProduceData(index=index, records=records) for index, records in partitions
            ),
        )
        for partitions in data
    )
    body = schema(
        transactional_id=more.get("transactional_id"),
        acks=settings["acks"],
        timeout=datetime.timedelta(milliseconds=settings["timeout"]),
        topic_data=topics,
    )
    client_id = settings["client_id"]
    encoded = b"" if client_id is None else client_id.encode()
    head = struct.pack(
        ">hhih", PRODUCE, version, more.get("correlation_id", 1), -1 if client_id is None else len(encoded)
    )
    return head + encoded + (b"\x00" if version >= 9 else b"") + encode(body)


def decoded(version: int, content: bytes) -> tuple[Any, memoryview, int]:
    view = memoryview(content)
    schema = request_schema(PRODUCE, version)
    _, position = parse_header(view, schema.flexible)
    return schema.decode(view, position), view, position


def said(request: Any) -> tuple[Any, ...]:
    """All that is asked for."""
    topics = [
        (
            getattr(topic, "name", ""),
            getattr(topic, "topic_id", None),
            [(data.index, data.records) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    return request.acks, request.transactional_id, topics


def form_of(version: int, content: bytes) -> ProduceForm | None:
    request, view, position = decoded(version, content)
    return ProduceForm.of(version, request, view, position)


def decode(form: ProduceForm, content: bytes) -> ProduceOne | None:
    """The frame as it lies in a connection's buffer, between others."""
    return form.decode(bytearray(b"\x01\x02" + content + bytes(9)), 2, 2 + len(content))


@pytest.mark.parametrize("version", VERSIONS)
@given(settings=SETTINGS, first=RECORDS, second=RECORDS, index=st.integers(-(2**31), 2**31 - 1))
def test_the_next_request_of_a_form(
    version: int, settings: dict[str, Any], first: bytes | None, second: bytes | None, index: int
) -> None:
    form = form_of(version, frame(version, settings, [[(0, first)]]))
    assert form is not None
    again = frame(version, settings, [[(index, second)]], correlation_id=77)
    found = decode(form, again)
    if second:
        assert found is not None
        assert said(found) == said(decoded(version, again)[0])
    else:
        assert found is None


@pytest.mark.parametrize("version", VERSIONS)
@given(settings=SETTINGS, other=SETTINGS, records=st.binary(min_size=1, max_size=300))
def test_what_differs_is_left_to_the_schema(
    version: int, settings: dict[str, Any], other: dict[str, Any], records: bytes
) -> None:
    form = form_of(version, frame(version, settings, [[(0, records)]]))
    assert form is not None
    content = frame(version, other, [[(5, records)]])
    found = decode(form, content)
    assert found is None or said(found) == said(decoded(version, content)[0])
    several = [
        frame(version, settings, [[(0, records), (1, records)]]),
        frame(version, settings, [[(0, records)], [(1, records)]]),
        frame(version, settings, [[]]),
        frame(version, settings, []),
        frame(version, settings, [[(0, records)]], transactional_id="t"),
    ]
    for content in several:
        assert decode(form, content) is None
        assert form_of(version, content) is None


@pytest.mark.parametrize("version", VERSIONS)
@given(settings=SETTINGS, records=st.binary(min_size=1, max_size=60), data=st.data())
def test_damaged_frames_are_left_to_the_schema(
    version: int, settings: dict[str, Any], records: bytes, data: st.DataObject
) -> None:
    """Cut, lengthened or changed anywhere: what the form accepts, the schema's decoder reads the same."""
    content = frame(version, settings, [[(3, records)]])
    form = form_of(version, content)
    assert form is not None
    end = data.draw(st.integers(0, len(content) - 1))
    assert decode(form, content[:end]) is None
    assert decode(form, content + b"\x00") is None
    position = data.draw(st.integers(8, len(content) - 1))
    changed = bytearray(content)
    changed[position] ^= data.draw(st.integers(1, 255))
    found = decode(form, bytes(changed))
    if found is not None:
        assert said(found) == said(decoded(version, bytes(changed))[0])
