"""Hand-written Metadata responses equal kio's encoding in every version, byte for byte."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from korvet.api.common.metadata_response import encode_partitions, encode_response, encode_topic
from korvet.api.common.replicas import FIRST_REPLICA as FIRST
from korvet.cluster.assignment import Assignment, Broker
from korvet.outlook.copies import Copies
from korvet.protocol.messages import response_schema

METADATA = 3
INT32 = st.integers(-(2**31), 2**31 - 1)
TOPICS = st.fixed_dictionaries(
    {
        "name": st.none() | st.text(max_size=200),
        "topic_id": st.none() | st.uuids(),
        "partitions": st.integers(0, 300),
        "internal": st.booleans(),
        "error": st.sampled_from(ErrorCode),
        "operations": INT32,
    }
)


BROKERS = st.lists(
    st.builds(
        Broker,
        node_id=st.integers(0, 5),
        host=st.text(min_size=1, max_size=50),
        port=st.integers(1, 65535),
        joined=st.integers(1, 9),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda broker: broker.node_id,
)
LEFT = st.lists(st.tuples(st.integers(6, 9), st.integers(1, 12)), max_size=2)


# Copies of any partition, and of single ones, which may depend on the partition.
COUNTS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)).map(
    lambda counts: Copies(*sorted(counts, reverse=True))
)
COPIES = COUNTS | st.lists(COUNTS, min_size=300, max_size=300)


def copies_at(copies: Copies | list[Copies], index: int) -> Copies:
    return copies[index] if isinstance(copies, list) else copies


def by_schema(
    version: int, assignment: Assignment, cluster_id: str, topics: Any, copies: Any, bits: int
) -> bytes:
    schema = response_schema(METADATA, version)
    made = tuple(
        schema.make(
            "MetadataResponseTopic",
            error_code=topic["error"],
            name=topic["name"],
            topic_id=topic["topic_id"],
            is_internal=topic["internal"],
            partitions=tuple(
                schema.make(
                    "MetadataResponsePartition",
                    error_code=ErrorCode.none,
                    partition_index=index,
                    leader_id=leader.node_id,
                    leader_epoch=leader.epoch,
                    replica_nodes=(leader.node_id, *range(FIRST, FIRST + found.expected)),
                    isr_nodes=(leader.node_id, *range(FIRST, FIRST + found.in_sync)),
                    offline_replicas=tuple(range(FIRST + found.attached, FIRST + found.expected)),
                )
                for index in range(topic["partitions"])
                for leader in [assignment.leader(topic["name"] or "", index)]
                for found in [copies_at(copies, index)]
            ),
            topic_authorized_operations=topic["operations"],
        )
        for topic in topics
    )
    brokers = tuple(
        schema.make("MetadataResponseBroker", node_id=each.node_id, host=each.host, port=each.port, rack=None)
        for each in assignment.brokers
    )
    response = schema.make(
        "MetadataResponse",
        brokers=brokers,
        cluster_id=cluster_id,
        controller_id=assignment.controller.node_id,
        topics=made,
        cluster_authorized_operations=bits,
        error_code=ErrorCode.none,
    )
    return schema.encode(response)


def by_hand(
    version: int, assignment: Assignment, cluster_id: str, topics: Any, copies: Any, bits: int
) -> bytes:
    encoded = []
    for topic in topics:
        count = topic["partitions"]
        partitions = encode_partitions(version, assignment, topic["name"] or "", count, copies)
        rest = {key: topic[key] for key in ("name", "topic_id", "internal", "error", "operations")}
        encoded.append(encode_topic(version, **rest, partitions=partitions, count=count))
    controller = assignment.controller.node_id
    brokers = assignment.endpoints("PLAINTEXT")
    return encode_response(version, brokers, controller, cluster_id, encoded, operations=bits)


@pytest.mark.parametrize("version", range(14))
@given(brokers=BROKERS, left=LEFT, topics=st.lists(TOPICS, max_size=4), copies=COPIES, operations=INT32)
def test_every_version_has_the_schema_encoders_bytes(
    version: int,
    brokers: list[Broker],
    left: list[tuple[int, int]],
    topics: list[dict[str, Any]],
    copies: Copies | list[Copies],
    operations: int,
) -> None:
    if version < 12:
        topics = [topic | {"name": topic["name"] or ""} for topic in topics]
    assignment = Assignment(12, brokers, left)
    for _ in range(2):
        found = by_hand(version, assignment, "cluster", topics, copies, operations)
        assert found == by_schema(version, assignment, "cluster", topics, copies, operations)


def test_topics_of_any_size_share_what_is_encoded() -> None:
    alone = Assignment(3, [Broker(1, "h", 1, 2)])
    sizes = (500, 3, 1200)
    runs = [encode_partitions(9, alone, "t", count, Copies(1, 1, 1)) for count in sizes]
    for count, run in zip(sizes, runs, strict=True):
        topic = {
            "name": "t",
            "topic_id": uuid.uuid4(),
            "partitions": count,
            "internal": False,
            "error": ErrorCode.none,
            "operations": 0,
        }
        encoded = encode_topic(9, "t", topic["topic_id"], partitions=run, count=count, operations=0)
        whole = encode_response(9, alone.endpoints("PLAINTEXT"), 1, "c", [encoded], operations=0)
        assert whole == by_schema(9, alone, "c", [topic], Copies(1, 1, 1), 0)
