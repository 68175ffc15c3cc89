"""Decoding requests: of every version, with tagged fields of the future, and damaged in every way."""

from __future__ import annotations

import random

import kio.index
import pytest
from kio.serial import entity_reader

from korvet.protocol.messages import request_schema
from korvet.protocol.primitives import MalformedRequest
from tests.unit.protocol.instances import VERSIONS, encode, random_request, version_id

EXAMPLES = 20
# What fills a buffer with lengths that promise gigabytes.
HUGE = (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff")


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_requests_are_read_as_their_schema_says(case: tuple[int, int]) -> None:
    rng = random.Random(repr(case))
    schema = request_schema(*case)
    for _ in range(EXAMPLES):
        request = random_request(rng, *case)
        assert schema.decode(memoryview(b"header" + encode(request)), 6) == request


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_bytes_behind_a_request_are_left_alone(case: tuple[int, int]) -> None:
    """librdkafka's Metadata v13 has some."""
    request = random_request(random.Random(repr(case)), *case)
    assert request_schema(*case).decode(memoryview(encode(request) + b"\x00behind"), 0) == request


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_a_request_cut_short_anywhere_is_malformed(case: tuple[int, int]) -> None:
    body = encode(random_request(random.Random(repr(case)), *case))
    for size in range(len(body)):
        with pytest.raises(MalformedRequest):
            request_schema(*case).decode(memoryview(body[:size]), 0)


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_lengths_that_promise_more_than_there_is_are_refused(case: tuple[int, int]) -> None:
    """Without reserving memory for it: that would end the process."""
    schema = request_schema(*case)
    for fill in HUGE:
        for filler in (b"\x00", b"\x01", b"\x02"):
            for before in range(40):
                read_or_refuse(schema, filler * before + fill * 10)


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_damaged_requests_are_malformed_or_other_requests(case: tuple[int, int]) -> None:
    rng = random.Random(repr(case))
    schema = request_schema(*case)
    for _ in range(EXAMPLES):
        body = bytearray(encode(random_request(rng, *case)))
        for _ in range(min(len(body), 20)):
            damaged = bytearray(body)
            damaged[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            read_or_refuse(schema, damaged)


def read_or_refuse(schema: object, body: bytes | bytearray) -> None:
    """Any other exception fails the test."""
    try:
        schema.decode(memoryview(bytes(body)), 0)  # type: ignore[attr-defined]
    except MalformedRequest:
        return


FLEXIBLE = [case for case in VERSIONS if kio.index.load_request_schema(*case).__flexible__]


@pytest.mark.parametrize("case", FLEXIBLE, ids=version_id)
def test_tagged_fields_that_nobody_knows_are_passed_over(case: tuple[int, int]) -> None:
    """KIP-482. The last byte of a flexible message is its empty list of tagged fields."""
    rng = random.Random(repr(case))
    request = random_request(rng, *case)
    body = encode(request)
    assert body[-1:] == b"\x00"
    tagged = b"\x02" + b"\x63\x03abc" + b"\xff\x7f\x00"
    decoded = request_schema(*case).decode(memoryview(body[:-1] + tagged), 0)
    assert decoded == request


def test_tagged_fields_within_a_list() -> None:
    # Metadata v12: one topic of no id and the name "t", with an unknown tag, then no auto-creation.
    topic = b"\x00" * 16 + b"\x02t" + b"\x01\x09\x02zz"
    body = b"\x02" + topic + b"\x00\x00\x00"
    request = request_schema(3, 12).decode(memoryview(body), 0)
    assert [(each.topic_id, each.name) for each in request.topics] == [(None, "t")]
    assert request.allow_auto_topic_creation is False


@pytest.mark.parametrize("tagged", [b"\x01", b"\x01\x05", b"\x01\x05\x7f", b"\xff\xff\xff\xff\x07\x00\x00"])
def test_damaged_tagged_fields_are_malformed(tagged: bytes) -> None:
    body = encode(random_request(random.Random(1), 12, 4))
    with pytest.raises(MalformedRequest):
        request_schema(12, 4).decode(memoryview(body[:-1] + tagged), 0)


def test_the_tagged_fields_that_are_cut_out_are_for_replicas() -> None:
    tags = set()
    for case in FLEXIBLE:
        tags |= {
            (case[0], name)
            for name, field in kio.index.load_request_schema(*case).__dataclass_fields__.items()
            if "tag" in field.metadata
        }
    assert tags == {(1, "cluster_id"), (1, "replica_state")}


def test_a_request_is_not_a_view_of_the_receive_buffer() -> None:
    """The buffer is written over while the request is at work."""
    rng = random.Random(3)
    request = random_request(rng, 11, 9)
    buffer = bytearray(encode(request))
    decoded = request_schema(11, 9).decode(memoryview(buffer).toreadonly(), 0)
    buffer[:] = bytes(len(buffer))
    assert decoded == request


def test_the_oracle_reads_what_is_written() -> None:
    """The generated requests are what their schema says; else the tests above would prove nothing."""
    for case in VERSIONS:
        request = random_request(random.Random(repr(case)), *case)
        read, size = entity_reader(type(request))(memoryview(encode(request)), 0)
        assert (read, size) == (request, len(encode(request)))
