"""Decoding requests: of every version, with tagged fields of the future, and damaged in every way."""

from __future__ import annotations

import random

import pytest
from kio.serial import entity_reader

from korvet.protocol.messages import request_schema
from korvet.protocol.primitives import MalformedRequest, unsigned_varint
from korvet.protocol.schemas import request_class
from tests.unit.protocol.instances import NAMES, VERSIONS, encode, random_request, version_id
from tests.unit.protocol.nulls import bodies_with_null

EXAMPLES = 20
KEYS = {name: key for key, name in NAMES.items()}
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
def test_strings_that_are_not_utf8_are_read_with_replacements(case: tuple[int, int]) -> None:
    rng = random.Random(repr(case))
    for _ in range(EXAMPLES):
        request = random_request(rng, *case)
        body = encode(request).replace("😀".encode(), b"\xed\xa0\x80?")
        found = request_schema(*case).decode(memoryview(b"header" + body), 6)
        assert repr(found) == repr(request).replace("😀", "\N{REPLACEMENT CHARACTER}?")


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


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_null_is_read_only_where_the_schema_has_it(case: tuple[int, int]) -> None:
    schema = request_schema(*case)
    for place, body in bodies_with_null(*case):
        if place.nullable:
            schema.decode(memoryview(body), 0)
        else:
            with pytest.raises(MalformedRequest, match=f"{last_name(place.path)} is null"):
                schema.decode(memoryview(body), 0)


def last_name(path: str) -> str:
    """As a message names the field."""
    name = path.rpartition(".")[2]
    return f"an element of {name.removesuffix('[]')}" if name.endswith("[]") else name


def test_what_may_be_null_depends_on_the_version() -> None:
    """Some of Kafka's schemas, not as kio has them."""

    def nullable(name: str, version: int) -> set[str]:
        return {place.path for place, _ in bodies_with_null(KEYS[name], version) if place.nullable}

    assert nullable("Metadata", 0) == set()
    assert nullable("Metadata", 1) == {"topics"}
    assert nullable("Metadata", 12) == {"topics", "topics[].name"}
    assert nullable("Produce", 9) == {"transactional_id", "topic_data[].partition_data[].records"}
    assert nullable("OffsetFetch", 1) == set()
    assert nullable("OffsetFetch", 2) == {"topics"}
    assert nullable("OffsetCommit", 6) == {"topics[].partitions[].committed_metadata"}
    assert nullable("DescribeTopicPartitions", 0) == {"cursor"}


@pytest.mark.parametrize("size", [32_767, 32_768, 2_000_000])
def test_a_string_is_as_long_as_an_older_version_could_say(size: int) -> None:
    body = encode(random_request(random.Random(1), 12, 4))
    name_size = body[0] if body[0] < 0x80 else pytest.fail("the group's name is short")
    longer = unsigned_varint(size + 1) + b"g" * size + body[name_size:]
    if size <= 32_767:
        assert request_schema(12, 4).decode(memoryview(longer), 0).group_id == "g" * size
    else:
        with pytest.raises(MalformedRequest, match=f"a string of {size} bytes"):
            request_schema(12, 4).decode(memoryview(longer), 0)


def test_more_elements_than_any_client_sends_are_refused() -> None:
    """Before anything is made of them: each of them costs time in which nobody else is served."""
    names = (300_000).to_bytes(4) + b"\x00\x00" * 300_000 + b"\x00"
    with pytest.raises(MalformedRequest, match="more than 100000 elements"):
        request_schema(KEYS["Metadata"], 4).decode(memoryview(names), 0)
    partitions = (300).to_bytes(4) + bytes(12 * 300)
    nested = (1_000).to_bytes(4) + (b"\x00\x01t" + partitions) * 1_000 + bytes(4)
    with pytest.raises(MalformedRequest, match="more than 100000 elements"):
        request_schema(KEYS["DeleteRecords"], 1).decode(memoryview(nested), 0)


def read_or_refuse(schema: object, body: bytes | bytearray) -> None:
    """Any other exception fails the test."""
    try:
        schema.decode(memoryview(bytes(body)), 0)  # type: ignore[attr-defined]
    except MalformedRequest:
        return


FLEXIBLE = [case for case in VERSIONS if request_class(*case).__flexible__]


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


@pytest.mark.parametrize("count", [40, 60, 20_000])
def test_a_few_dozen_tagged_fields_are_passed_over_and_no_more(count: int) -> None:
    request = random_request(random.Random(5), 12, 4)
    body = memoryview(encode(request)[:-1] + unsigned_varint(count) + b"\x63\x00" * count)
    if count == 40:
        assert request_schema(12, 4).decode(body, 0) == request
    else:
        with pytest.raises(MalformedRequest, match=f"{count} tagged fields"):
            request_schema(12, 4).decode(body, 0)


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
            for name, field in request_class(*case).__dataclass_fields__.items()
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
