"""OffsetCommit requests, from the frame to what the group's coordinator gets and back to the response."""

from __future__ import annotations

import datetime
import uuid
from types import SimpleNamespace
from typing import Any

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from korvet import api
from korvet.api.common.context import RequestContext
from korvet.groups.messages import (
    CommitPartition,
    CommitReply,
    CommitRequest,
    CommitTopic,
    PartitionResult,
    TopicResult,
)
from korvet.protocol import registry
from korvet.protocol.messages import request_schema, response_schema
from tests.support.wire import decode_response
from tests.unit.protocol.instances import encode

OFFSET_COMMIT = 8
VERSIONS = range(2, 11)
KNOWN_PARTITIONS = 4
ERRORS = st.sampled_from([ErrorCode.none, ErrorCode.illegal_generation, ErrorCode.offset_metadata_too_large])
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
# Index, offset, leader epoch and metadata.
PARTITION = st.tuples(st.integers(-1, KNOWN_PARTITIONS), INT64, INT32, st.none() | st.text(max_size=30))
TOPIC = st.tuples(st.sampled_from(["known", "other", "unknown"]), st.lists(PARTITION, max_size=3))
REQUEST = st.fixed_dictionaries(
    {
        "group_id": st.text(max_size=150),
        "generation": INT32,
        "member_id": st.text(max_size=40),
        "instance": st.none() | st.text(max_size=20),
        "retention_ms": st.integers(-1, 2**40),
        "topics": st.lists(TOPIC, max_size=3),
    }
)
IDS = {name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in ("known", "other", "unknown")}
TOPICS = {
    name: SimpleNamespace(name=name, topic_id=IDS[name], partitions=KNOWN_PARTITIONS)
    for name in ("known", "other")
}

api.load_all()


class Coordinator:
    """Keeps what it is to commit."""

    def __init__(self) -> None:
        self.commit = CommitRequest("", ())
        self.group_id = ""
        self.done: Any = None

    def submit(self, group_id: str, handler: object, commit: CommitRequest, done: Any) -> None:
        self.group_id, self.commit, self.done = group_id, commit, done


def body(version: int, request: dict[str, Any]) -> bytes:
    schema: Any = kio.index.load_request_schema(OFFSET_COMMIT, version)
    module = kio.index.load_payload_module(OFFSET_COMMIT, version, EntityType.request)

    def partition(index: int, offset: int, epoch: int, metadata: str | None) -> Any:
        epochs = {"committed_leader_epoch": epoch} if version >= 6 else {}
        return module.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=metadata, **epochs
        )

    topics = tuple(
        module.OffsetCommitRequestTopic(
            **({"topic_id": IDS[name]} if version >= 10 else {"name": name}),
            partitions=tuple(partition(*each) for each in partitions),
        )
        for name, partitions in request["topics"]
    )
    more: dict[str, Any] = {"group_instance_id": request["instance"]} if version >= 7 else {}
    if version <= 4:
        more["retention_time"] = datetime.timedelta(milliseconds=request["retention_ms"])
    return encode(
        schema(
            group_id=request["group_id"],
            generation_id_or_member_epoch=request["generation"],
            member_id=request["member_id"],
            topics=topics,
            **more,
        )
    )


def expected(version: int, name: str, partitions: list[tuple[int, int, int, str | None]]) -> CommitTopic:
    unknown = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition

    def refusal(index: int) -> ErrorCode:
        if name == "unknown":
            return unknown
        known = 0 <= index < KNOWN_PARTITIONS
        return ErrorCode.none if known else ErrorCode.unknown_topic_or_partition

    return CommitTopic(
        "" if name == "unknown" and version >= 10 else name,
        tuple(
            CommitPartition(index, offset, epoch if version >= 6 else -1, metadata, refusal(index))
            for index, offset, epoch, metadata in partitions
        ),
        None if name == "unknown" else IDS[name].bytes,
    )


@pytest.mark.parametrize("version", VERSIONS)
@given(request=REQUEST, errors=st.lists(ERRORS, min_size=9, max_size=9))
def test_a_commit_reaches_its_group_and_its_results_the_client(
    version: int, request: dict[str, Any], errors: list[ErrorCode]
) -> None:
    coordinator, answered = Coordinator(), list[Any]()
    ids = {topic.topic_id: topic for topic in TOPICS.values()}
    services: Any = SimpleNamespace(
        coordinator=coordinator, topics=SimpleNamespace(get=TOPICS.get, by_id=ids.get)
    )
    client: Any = SimpleNamespace(session=SimpleNamespace(access=None))
    context = RequestContext(services, response_schema(OFFSET_COMMIT, version), version, "client", client)
    entry = registry.find(OFFSET_COMMIT)
    assert entry is not None
    assert entry.submit is not None
    decoded = request_schema(OFFSET_COMMIT, version).decode(memoryview(body(version, request)), 0)
    entry.submit(context, decoded, answered.append)

    assert coordinator.group_id == request["group_id"]
    assert coordinator.commit == CommitRequest(
        group_id=request["group_id"],
        topics=tuple(expected(version, *topic) for topic in request["topics"]),
        generation_id=request["generation"],
        member_id=request["member_id"],
        group_instance_id=request["instance"] if version >= 7 else None,
        retention_time_ms=request["retention_ms"] if version <= 4 else -1,
        knows_member_epochs=version >= 9,
    )

    left = iter(errors)
    results = tuple(
        TopicResult(
            topic.name, tuple(PartitionResult(each.partition, next(left)) for each in topic.partitions)
        )
        for topic in coordinator.commit.topics
    )
    coordinator.done(CommitReply(results))
    ((encoded,),) = answered
    header = bytes(4) + (b"\x00" if version >= 8 else b"")
    response = decode_response(OFFSET_COMMIT, version, header + encoded)
    assert response.left_bytes == 0
    assert [
        (topic.topic_id if version >= 10 else topic.name, each.partition_index, each.error_code)
        for topic in response.message.topics
        for each in topic.partitions
    ] == [
        (IDS[name] if version >= 10 else name, each.partition, each.error)
        for (name, _), result in zip(request["topics"], results, strict=True)
        for each in result.partitions
    ]
