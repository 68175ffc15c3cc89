"""Requests that name much: whoever sends them waits, and nobody else; the broker's memory stays small."""

from __future__ import annotations

import time
import typing
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.protocol import registry
from korvet.protocol.schemas import request_class
from korvet.protocol.shape import without_null
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


def _fetch(partitions: Any) -> dict[str, Any]:
    fetched = [
        {"partition": index, "partition_max_bytes": 2**20, "current_leader_epoch": -1} for index in partitions
    ]
    return {"topic": TOPIC, "partitions": fetched}


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
    "DescribeConfigs: groups": (
        "DescribeConfigs",
        {
            "resources": [
                {"resource_type": 32, "resource_name": f"g{number}", "configuration_keys": None}
                for number in range(20_000)
            ],
            "include_synonyms": True,
        },
    ),
    "WriteTxnMarkers: partitions that do not exist": (
        "WriteTxnMarkers",
        {
            "markers": [
                {
                    "producer_id": 1,
                    "transaction_result": True,
                    "topics": [{"name": TOPIC, "partition_indexes": list(range(10_000, 30_000))}],
                }
            ]
        },
    ),
    "FindCoordinator": ("FindCoordinator", {"coordinator_keys": [f"g{number}" for number in range(50_000)]}),
    "Produce": (
        "Produce",
        {
            "acks": -1,
            "timeout": 10_000,
            "topic_data": [{"name": TOPIC, "partition_data": [{"index": index} for index in range(MANY)]}],
        },
    ),
    "Fetch": (
        "Fetch",
        {
            "max_bytes": 2**20,
            "session_epoch": -1,
            "topics": [_fetch(range(MANY))],
        },
    ),
    "Fetch: a session": (
        "Fetch",
        {
            "max_bytes": 2**20,
            "topics": [_fetch(range(MANY))],
        },
    ),
    "Fetch: forgotten partitions": (
        "Fetch",
        {
            "max_bytes": 2**20,
            "forgotten_topics_data": [{"topic": TOPIC, "partitions": list(range(MANY))}],
        },
    ),
    "JoinGroup": (
        "JoinGroup",
        {
            "group_id": "joined",
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "protocol_type": "consumer",
            "protocols": [{"name": f"p{number}", "metadata": b""} for number in range(MANY)],
        },
    ),
    "SyncGroup": (
        "SyncGroup",
        {
            "group_id": "g",
            "assignments": [{"member_id": f"m{number}", "assignment": b""} for number in range(MANY)],
        },
    ),
    "ListGroups": (
        "ListGroups",
        {
            "states_filter": [f"s{number}" for number in range(MANY // 2)],
            "types_filter": [f"t{number}" for number in range(MANY // 2)],
        },
    ),
    "OffsetFetch: many groups": (
        "OffsetFetch",
        {
            "groups": [
                {"group_id": f"g{number}", "topics": None, "member_epoch": -1} for number in range(MANY)
            ]
        },
    ),
    "DescribeGroups: many groups": ("DescribeGroups", {"groups": [f"g{number}" for number in range(MANY)]}),
    "ConsumerGroupDescribe": (
        "ConsumerGroupDescribe",
        {"group_ids": [f"g{number}" for number in range(MANY)]},
    ),
    "CreateTopics: assignments": (
        "CreateTopics",
        {
            "topics": [
                {
                    "name": "assigned",
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [
                        {"partition_index": index, "broker_ids": [1]} for index in range(MANY // 2)
                    ],
                }
            ],
            "timeout": 60_000,
            "validate_only": True,
        },
    ),
    "CreateTopics: configs": (
        "CreateTopics",
        {
            "topics": [
                _new("configured", 1)
                | {"configs": [{"name": f"c{number}", "value": "1"} for number in range(MANY)]}
            ],
            "timeout": 60_000,
        },
    ),
    "CreatePartitions": (
        "CreatePartitions",
        {
            "topics": [{"name": f"no-{number}", "count": 2, "assignments": None} for number in range(MANY)],
            "timeout": 60_000,
            "validate_only": True,
        },
    ),
    "WriteTxnMarkers": (
        "WriteTxnMarkers",
        {
            "markers": [
                {
                    "producer_id": 1,
                    "topics": [{"name": TOPIC, "partition_indexes": list(range(2_000))}],
                    "transaction_result": True,
                }
            ]
        },
    ),
    "TxnOffsetCommit": (
        "TxnOffsetCommit",
        {
            "transactional_id": name_of(0),
            "group_id": "g",
            "generation_id": -1,
            "topics": [_commit(range(MANY))],
        },
    ),
    "AddPartitionsToTxn: many transactions": (
        "AddPartitionsToTxn",
        {
            "transactions": [
                {"transactional_id": f"no-{number}", "verify_only": True} for number in range(MANY)
            ]
        },
    ),
    "CreateAcls": (
        "CreateAcls",
        {
            "creations": [
                {
                    "resource_type": 2,
                    "resource_name": f"t{number}",
                    "resource_pattern_type": 3,
                    "principal": "User:a",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
                for number in range(MANY)
            ]
        },
    ),
    "DeleteAcls": (
        "DeleteAcls",
        {
            "filters": [
                {
                    "resource_type_filter": 2,
                    "resource_name_filter": f"t{number}",
                    "pattern_type_filter": 3,
                    "operation": 3,
                    "permission_type": 3,
                }
                for number in range(MANY)
            ]
        },
    ),
    "DescribeConfigs: keys": (
        "DescribeConfigs",
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": TOPIC,
                    "configuration_keys": [f"k{number}" for number in range(MANY)],
                }
            ]
        },
    ),
    "AlterConfigs": (
        "AlterConfigs",
        {
            "resources": [
                {"resource_type": 2, "resource_name": f"no-{number}", "configs": []} for number in range(MANY)
            ]
        },
    ),
    "IncrementalAlterConfigs: one resource": (
        "IncrementalAlterConfigs",
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": TOPIC,
                    "configs": [
                        {"name": f"c{number}", "config_operation": 0, "value": "1"} for number in range(MANY)
                    ],
                }
            ]
        },
    ),
    "AlterPartitionReassignments": (
        "AlterPartitionReassignments",
        {
            "topics": [
                {
                    "name": TOPIC,
                    "partitions": [{"partition_index": index, "replicas": None} for index in range(MANY)],
                }
            ]
        },
    ),
    "ListPartitionReassignments": (
        "ListPartitionReassignments",
        {"topics": [{"name": TOPIC, "partition_indexes": list(range(MANY))}]},
    ),
    "DescribeClientQuotas": (
        "DescribeClientQuotas",
        {
            "components": [
                {"entity_type": f"type{number}", "match_type": 0, "match": "a"} for number in range(MANY)
            ]
        },
    ),
    "AlterClientQuotas": (
        "AlterClientQuotas",
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": f"u{number}"}],
                    "ops": [{"key": "no_such_rate", "value": 1.0, "remove": False}],
                }
                for number in range(MANY // 3)
            ]
        },
    ),
    "DescribeUserScramCredentials": (
        "DescribeUserScramCredentials",
        {"users": [{"name": f"u{number}"} for number in range(MANY)]},
    ),
    "AlterUserScramCredentials": (
        "AlterUserScramCredentials",
        {"deletions": [{"name": f"u{number}", "mechanism": 1} for number in range(MANY)]},
    ),
    "ListTransactions": (
        "ListTransactions",
        {
            "state_filters": [f"s{number}" for number in range(MANY // 2)],
            "producer_id_filters": list(range(MANY // 2)),
            "duration_filter": -1,
        },
    ),
    "ConsumerGroupHeartbeat: many owned partitions": (
        "ConsumerGroupHeartbeat",
        {
            "group_id": "owned",
            "member_id": "m",
            "rebalance_timeout": 60_000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [{"topic_id": uuid.UUID(int=1), "partitions": list(range(MANY))}],
        },
    ),
    "ListConfigResources": ("ListConfigResources", {"resource_types": [2] * MANY}),
    "DescribeTopicPartitions": (
        "DescribeTopicPartitions",
        {
            "topics": [{"name": name_of(number % 3_000)} for number in range(MANY)],
            "response_partition_limit": 2_000,
        },
    ),
}


# By name, and from clients rather than brokers.
OLDER = {"OffsetFetch": 9, "OffsetCommit": 9, "Produce": 12, "Fetch": 12}
LONG = {name for name, (_, fields) in CASES.items() if len(repr(fields)) > 2_500_000}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in CASES]
)
def test_nobody_else_waits(server: KorvetServer, case: str) -> None:
    name, fields = CASES[case]
    version = 3 if case == "AddPartitionsToTxn" else min(newest(name), OLDER.get(name, 99))
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


def test_every_api_that_takes_a_list_has_a_case() -> None:
    taking = {entry.name for entry in registry.registered() if _takes_a_list(entry)}
    assert taking - {name for name, _ in CASES.values()} == set()


def _takes_a_list(entry: registry.Api) -> bool:
    hints = typing.get_type_hints(request_class(entry.key, entry.max_version))
    return any(typing.get_origin(without_null(hint)) is tuple for hint in hints.values())


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
