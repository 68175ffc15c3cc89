"""Requests that name much: whoever sends them waits, and nobody else; the broker's memory stays small."""

from __future__ import annotations

import time
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
MANY = 95_000


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
        {"topics": [{"topic": TOPIC, "partitions": list(range(10_000))}] * 9},
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
    "OffsetFetch": (
        "OffsetFetch",
        {
            "groups": [
                {
                    "group_id": "g",
                    "topics": [{"name": TOPIC, "partition_indexes": list(range(MANY))}],
                    "member_epoch": -1,
                }
            ]
        },
    ),
    "OffsetCommit": (
        "OffsetCommit",
        {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [_commit(range(MANY))]},
    ),
    "LeaveGroup": ("LeaveGroup", {"group_id": "g", "members": [{"member_id": "m"}] * MANY}),
    "DeleteTopics": ("DeleteTopics", {"topics": [{"name": f"no-{number}"} for number in range(MANY)]}),
    "AddPartitionsToTxn": (
        "AddPartitionsToTxn",
        {
            "v3_and_below_transactional_id": name_of(0),
            "v3_and_below_topics": [{"name": TOPIC, "partitions": list(range(MANY))}],
        },
    ),
    "ConsumerGroupHeartbeat: many topics": (
        "ConsumerGroupHeartbeat",
        {
            "group_id": "topics",
            "member_id": "m",
            "rebalance_timeout": 60_000,
            "subscribed_topic_names": [name_of(number) for number in range(MANY)],
            "topic_partitions": [],
        },
    ),
    "ElectLeaders": (
        "ElectLeaders",
        {"topic_partitions": [{"topic": TOPIC, "partitions": list(range(MANY))}]},
    ),
    "AlterReplicaLogDirs": (
        "AlterReplicaLogDirs",
        {"dirs": [{"path": "/korvet", "topics": [{"name": TOPIC, "partitions": list(range(MANY))}]}]},
    ),
    "DescribeTransactions": (
        "DescribeTransactions",
        {"transactional_ids": [f"no-{number}" for number in range(MANY)]},
    ),
    "DeleteGroups": ("DeleteGroups", {"groups_names": [f"no-{number}" for number in range(MANY)]}),
    "IncrementalAlterConfigs": (
        "IncrementalAlterConfigs",
        {
            "resources": [
                {"resource_type": 2, "resource_name": f"no-{number}", "configs": []} for number in range(MANY)
            ]
        },
    ),
    "FindCoordinator": ("FindCoordinator", {"coordinator_keys": [f"g{number}" for number in range(50_000)]}),
}


# By name, and from clients rather than brokers.
OLDER = {"OffsetFetch": 9, "OffsetCommit": 9, "AddPartitionsToTxn": 3}
LONG = {name for name, (_, fields) in CASES.items() if len(repr(fields)) > 2_500_000}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in CASES]
)
def test_nobody_else_waits(server: KorvetServer, case: str) -> None:
    name, fields = CASES[case]
    version = min(newest(name), OLDER.get(name, 99))
    request = frame(name, version, 1, **fields)
    with RawConnection(server.host, server.port, 120) as attacker:
        with Bystander(server.host, server.port) as other:
            answer = attacker.ask(request)
        assert attacker.works()
    assert other.longest_s < LONGEST_S, case
    assert peak_bytes(server) < MOST_BYTES, case
    response = decode_response(KEYS[name], version, answer).message
    if "an expression" in case:
        assert response.error_code is ErrorCode.invalid_regular_expression


def test_many_clients_ask_for_much_at_once(server: KorvetServer) -> None:
    """Each of the requests takes some 30 ms; all of them in one turn of the event loop would take 3 s."""
    partitions = [{"index": index, "records": None} for index in range(10_000)]
    request = frame(
        "Produce", 9, 1, acks=-1, timeout=1000, topic_data=[{"name": "none", "partition_data": partitions}]
    )
    attackers = [RawConnection(server.host, server.port, 120) for _ in range(100)]
    with Bystander(server.host, server.port) as other:
        for each in attackers:
            each.send(request)
        for each in attackers:
            each.receive()
    for each in attackers:
        each.socket.close()
    assert other.longest_s < LONGEST_S


def test_commits_beside_many_redis_groups(server: KorvetServer) -> None:
    """A partition whose stream has 20,000 Redis groups: each commit used to list all of them."""
    ask = connect(server)
    topic = name_of(1)
    pipeline = server.redis.pipeline(transaction=False)
    for number in range(20_000):
        pipeline.xgroup_create(f"korvet:{topic}:0", f"native{number}", "0", mkstream=True)
    pipeline.execute()
    offset = {"partition_index": 0, "committed_offset": 1}
    commit = {"name": topic, "partitions": [offset]}
    with Bystander(server.host, server.port) as other:
        began = time.perf_counter()
        for number in range(200):
            group = f"g{number}"
            ask("OffsetCommit", 9, group_id=group, generation_id_or_member_epoch=-1, topics=[commit])
        took_s = time.perf_counter() - began
    ask.raw.socket.close()
    assert other.longest_s < LONGEST_S
    assert took_s < 200 * 0.025, "less than one listing of all groups for each commit"
    assert peak_bytes(server) < MOST_BYTES
