"""Metadata responses written by hand have the bytes that kio's encoder gives them, in every version."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from korvet.api.metadata_response import LEADER_EPOCH, encode_response, encode_topic
from korvet.config import Address
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


def by_schema(
    version: int, node_id: int, endpoint: Address, cluster_id: str, topics: Any, bits: int
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
                    leader_id=node_id,
                    leader_epoch=LEADER_EPOCH,
                    replica_nodes=(node_id,),
                    isr_nodes=(node_id,),
                    offline_replicas=(),
                )
                for index in range(topic["partitions"])
            ),
            topic_authorized_operations=topic["operations"],
        )
        for topic in topics
    )
    broker = schema.make(
        "MetadataResponseBroker", node_id=node_id, host=endpoint.host, port=endpoint.port, rack=None
    )
    response = schema.make(
        "MetadataResponse",
        brokers=(broker,),
        cluster_id=cluster_id,
        controller_id=node_id,
        topics=made,
        cluster_authorized_operations=bits,
        error_code=ErrorCode.none,
    )
    return schema.encode(response)


@pytest.mark.parametrize("version", range(14))
@given(
    node_id=st.integers(0, 5),
    host=st.text(min_size=1, max_size=50),
    topics=st.lists(TOPICS, max_size=4),
    operations=INT32,
)
def test_every_version_has_the_schema_encoders_bytes(
    version: int, node_id: int, host: str, topics: list[dict[str, Any]], operations: int
) -> None:
    if version < 12:
        topics = [topic | {"name": topic["name"] or ""} for topic in topics]
    endpoint = Address(host, 9092)
    encoded = [encode_topic(version, node_id, **topic) for topic in topics]
    found = encode_response(version, node_id, endpoint, "cluster", encoded, operations=operations)
    assert found == by_schema(version, node_id, endpoint, "cluster", topics, operations)


def test_topics_of_any_size_share_what_is_encoded() -> None:
    topic_id = uuid.uuid4()
    large, small, larger = (
        encode_topic(9, 1, "t", topic_id, partitions=count, operations=0) for count in (500, 3, 1200)
    )
    for count, encoded in ((500, large), (3, small), (1200, larger)):
        topic = {
            "name": "t",
            "topic_id": topic_id,
            "partitions": count,
            "internal": False,
            "error": ErrorCode.none,
            "operations": 0,
        }
        whole = by_schema(9, 1, Address("h", 1), "c", [topic], 0)
        assert whole == encode_response(9, 1, Address("h", 1), "c", [encoded], operations=0)
