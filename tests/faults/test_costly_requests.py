"""Requests that name much: whoever sends them waits, and nobody else; the broker's memory stays small."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from tests.api.asking import KEYS, connect, frame, newest
from tests.support.bystander import Bystander, peak_bytes
from tests.support.servers import KorvetServer
from tests.support.wire import RawConnection, decode_response

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.faults

MOST_BYTES = 10**9
LONGEST_S = 1.0
TOPIC = "some.topic"
# The most elements that a request may have, but for a few.
MANY = 190_000


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    server = KorvetServer()
    server.start()
    ask = connect(server)
    ask("CreateTopics", 7, topics=[_new(TOPIC, 10_000)], timeout=60_000)
    ask("CreateTopics", 7, topics=[_new(name_of(number), 1) for number in range(3_000)], timeout=60_000)
    ask("OffsetCommit", 9, group_id="g", generation_id_or_member_epoch=-1, topics=[_commit(range(10_000))])
    for number in range(500):
        ask("InitProducerId", 4, transactional_id=name_of(number), transaction_timeout=60_000)
    ask.raw.socket.close()
    yield server
    server.discard()


def name_of(number: int) -> str:
    """Names that have nothing in common."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, str(number)).hex


def _new(name: str, partitions: int) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1}


def _commit(partitions: Any) -> dict[str, Any]:
    offsets = [{"partition_index": index, "committed_offset": 1} for index in partitions]
    return {"name": TOPIC, "partitions": offsets}


def ids(count: int) -> list[uuid.UUID]:
    return [uuid.UUID(int=number + 1) for number in range(count)]


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Metadata: a topic under many IDs": (
        "Metadata",
        {"topics": [{"name": TOPIC, "topic_id": each} for each in ids(5_000)]},
    ),
    "Metadata: unknown topics": (
        "Metadata",
        {
            "topics": [{"name": f"un.known_{number}", "topic_id": None} for number in range(50_000)],
            "allow_auto_topic_creation": False,
        },
    ),
    "DescribeConfigs: one resource": (
        "DescribeConfigs",
        {
            "resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}] * 3_000,
            "include_synonyms": True,
        },
    ),
    "DescribeConfigs: many resources": (
        "DescribeConfigs",
        {
            "resources": [
                {"resource_type": 2, "resource_name": name_of(number), "configuration_keys": None}
                for number in range(3_000)
            ],
            "include_synonyms": True,
            "include_documentation": True,
        },
    ),
    "CreateTopics: names that may collide": (
        "CreateTopics",
        {"topics": [_new(f"x{number}.y_z", 1) for number in range(9_000)], "validate_only": True},
    ),
    "ListOffsets": (
        "ListOffsets",
        {
            "replica_id": -1,
            "topics": [
                {
                    "name": TOPIC,
                    "partitions": [
                        {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
                        for index in range(MANY)
                    ],
                }
            ],
        },
    ),
    "OffsetForLeaderEpoch": (
        "OffsetForLeaderEpoch",
        {
            "topics": [
                {
                    "topic": TOPIC,
                    "partitions": [
                        {"partition": index, "current_leader_epoch": -1, "leader_epoch": 0}
                        for index in range(MANY)
                    ],
                }
            ]
        },
    ),
    "DescribeProducers": (
        "DescribeProducers",
        {"topics": [{"name": TOPIC, "partition_indexes": list(range(MANY))}]},
    ),
    "DeleteRecords": (
        "DeleteRecords",
        {
            "topics": [
                {
                    "name": TOPIC,
                    "partitions": [{"partition_index": index, "offset": 0} for index in range(MANY)],
                }
            ],
            "timeout": 60_000,
        },
    ),
    "OffsetDelete": (
        "OffsetDelete",
        {
            "group_id": "g",
            "topics": [
                {"name": TOPIC, "partitions": [{"partition_index": index} for index in reversed(range(MANY))]}
            ],
        },
    ),
    "OffsetFetch: all of a group": (
        "OffsetFetch",
        {"groups": [{"group_id": "g", "topics": None, "member_epoch": -1}] * 5_000},
    ),
    "DescribeGroups: one group": ("DescribeGroups", {"groups": ["g"] * MANY}),
    "DescribeLogDirs": (
        "DescribeLogDirs",
        {"topics": [{"topic": TOPIC, "partitions": list(range(10_000))}] * 15},
    ),
    "ConsumerGroupHeartbeat: an expression in many states": (
        "ConsumerGroupHeartbeat",
        {
            "group_id": "expressions",
            "member_id": "m",
            "rebalance_timeout": 60_000,
            "subscribed_topic_regex": "(.?){1000}",
            "topic_partitions": [],
        },
    ),
    "ListTransactions: an expression in many states": (
        "ListTransactions",
        {"duration_filter": -1, "transactional_id_pattern": "(.?){1000}"},
    ),
    "FindCoordinator": ("FindCoordinator", {"coordinator_keys": [f"g{number}" for number in range(50_000)]}),
}


LONG = {name for name, (_, fields) in CASES.items() if len(repr(fields)) > 5_000_000}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in CASES]
)
def test_nobody_else_waits(server: KorvetServer, case: str) -> None:
    name, fields = CASES[case]
    version = min(newest(name), 9) if name == "OffsetFetch" else newest(name)
    request = frame(name, version, 1, **fields)
    with RawConnection(server.host, server.port, 120) as attacker:
        with Bystander(server.host, server.port) as other:
            answer = attacker.ask(request)
        assert attacker.works()
    assert other.longest_s < LONGEST_S, case
    assert peak_bytes(server) < MOST_BYTES, case
    response = decode_response(KEYS[name], version, answer).message
    if name in {"ConsumerGroupHeartbeat", "ListTransactions"}:
        assert response.error_code is ErrorCode.invalid_regular_expression
