"""The requests of the load clients: how others decode them, and the positions of errors."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import kio.index
from kio.serial import entity_reader

from benchmarks.cases.commits import commit_request, commit_requests
from benchmarks.rig import records
from benchmarks.rig.records import Request, Shape
from korvet.records import kernel

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SHAPE = Shape(100, 4 << 10)


def body_of(request: Request, api_key: int, api_version: int) -> object:
    """The decoded body of a request with a header of version 2."""
    size, key, version, correlation_id = struct.unpack_from(">ihhi", request.data)
    assert (size, key, version) == (len(request.data) - 4, api_key, api_version)
    assert correlation_id == records.CORRELATION_ID
    schema = kio.index.load_request_schema(api_key, api_version)
    message, used = entity_reader(schema)(memoryview(request.data), 4 + 8 + 2 + len("load") + 1)
    assert 4 + 8 + 2 + 4 + 1 + used == len(request.data)
    return message


def test_a_produce_request_holds_whole_batches_of_the_records() -> None:
    made = records.produce_requests("topic", 2, SHAPE, 3)
    assert [request.records for request in made] == [SHAPE.per_batch] * 3
    for number, request in enumerate(made):
        (topic,) = body_of(request, records.PRODUCE, 9).topic_data
        (partition,) = topic.partition_data
        assert (topic.name, partition.index) == ("topic", number % 2)
        header = kernel.parse_batch(bytes(partition.records), 0)
        assert (header.record_count, header.size) == (SHAPE.per_batch, len(partition.records))
        arguments = kernel.encode_append(bytes(partition.records), 0, header, None, False).resp
        for key, value in records.payloads(SHAPE, 3)[number]:
            assert key in arguments
            assert value in arguments


def test_batches_are_about_as_large_as_asked() -> None:
    for shape in (Shape(100, 16 << 10), Shape(100, 64 << 10), Shape(1024, 64 << 10)):
        (request,) = records.produce_requests("topic", 1, shape, 1)
        assert 0.85 < len(request.data) / shape.batch_bytes < 1.1
    assert Shape(1024, 0).per_batch == 1


def test_entries_have_one_placeholder_each_and_the_same_records() -> None:
    (request,) = records.entry_requests(["stream"], SHAPE, 1)
    assert request.data.count(b"0" * 13 + b"-") == SHAPE.per_batch
    assert request.data.startswith(records.resp(b"MULTI"))
    assert request.data.endswith(records.resp(b"EXEC"))
    assert all(key in request.data and value in request.data for key, value in records.payloads(SHAPE, 1)[0])
    ids = b"".join(b"$17\r\n1700000000000-%d\r\n" % (100 + i) for i in range(SHAPE.per_batch))
    reply = b"+OK\r\n" + b"+QUEUED\r\n" * SHAPE.per_batch + b"*%d\r\n" % SHAPE.per_batch + ids
    assert request.mark == len(reply)
    (alone,) = records.entry_requests(["stream"], Shape(100, 0), 1)
    assert alone.mark == len(b"$17\r\n1700000000000-100\r\n")
    assert b"MULTI" not in alone.data


def test_errors_of_produce_are_looked_for_in_the_right_place() -> None:
    request = records.produce_request("a-topic", 3, b"", 0)
    head = struct.pack(">ii", 0, 7) + b"\0" + b"\x02" + b"\x08a-topic" + b"\x02" + struct.pack(">i", 3)
    assert request.mark == len(head)


def test_commits_rise_group_by_group_on_every_connection() -> None:
    made = commit_requests("topic")
    seen: dict[str, int] = {}
    for request in made[: len(made) // 20]:
        body = body_of(request, records.OFFSET_COMMIT, 8)
        offset = body.topics[0].partitions[0].committed_offset
        assert offset == seen.get(body.group_id, -1) + 1
        seen[body.group_id] = offset
    head = (
        struct.pack(">ii", 0, 7) + b"\0" + struct.pack(">i", 0) + b"\x02\x06topic\x02" + struct.pack(">i", 0)
    )
    assert commit_request("group", "topic", 1).mark == len(head)


def test_the_file_of_a_load_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BUILD", tmp_path)
    path = records.write_requests("some", [Request(b"abc", 1, 2), Request(b"", 0, 0)])
    expected = struct.pack("=IIII", 2, 3, 1, 2) + b"abc" + struct.pack("=III", 0, 0, 0)
    assert path.read_bytes() == expected


def test_a_fetch_names_its_partitions_in_order_and_its_session() -> None:
    for partitions, session in (([2, 0], records.NO_SESSION), ([], (5, 6))):
        request = records.fetch_request("topic", partitions, 7, session)
        schema = kio.index.load_request_schema(records.FETCH, 11)
        head_bytes = 4 + 8 + 2 + len("load")
        message, used = entity_reader(schema)(memoryview(request.data), head_bytes)
        assert head_bytes + used == len(request.data)
        assert (message.session_id, message.session_epoch) == session
        assert [each.partition for topic in message.topics for each in topic.partitions] == partitions
        assert {topic.topic for topic in message.topics} == ({"topic"} if partitions else set())
