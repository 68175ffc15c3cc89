"""The costliest request of each API that takes a list."""

from __future__ import annotations

import uuid
from typing import Any

TOPIC = "some.topic"
# Nearly the largest number of elements that a request may have.
MANY = 95_000
_PARTITIONS = [{"partition_index": number} for number in range(MANY)]


def name_of(number: int) -> str:
    """Names without a common prefix."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, str(number)).hex


def new_topic(name: str, partitions: int) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1}


def commit_of(partitions: Any) -> dict[str, Any]:
    offsets = [{"partition_index": index, "committed_offset": 1} for index in partitions]
    return {"name": TOPIC, "partitions": offsets}


def fetch_of(partitions: Any) -> dict[str, Any]:
    limits = {"partition_max_bytes": 2**20, "current_leader_epoch": -1}
    fetched = [{"partition": index, **limits} for index in partitions]
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
        {"topics": [new_topic(f"x{number}.y_z", 1) for number in range(9_000)], "validate_only": True},
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
        {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [commit_of(range(MANY))]},
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
    "ElectLeaders": ("ElectLeaders", {"topic_partitions": [{"topic": TOPIC, "partitions": [*range(MANY)]}]}),
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
            "topics": [fetch_of(range(MANY))],
        },
    ),
    "Fetch: a session": (
        "Fetch",
        {
            "max_bytes": 2**20,
            "topics": [fetch_of(range(MANY))],
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
                new_topic("configured", 1)
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
            "topics": [commit_of(range(MANY))],
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
    "DescribeQuorum": ("DescribeQuorum", {"topics": [{"topic_name": TOPIC, "partitions": _PARTITIONS}]}),
    "DescribeQuorum: one partition": (
        "DescribeQuorum",
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}] * MANY}]},
    ),
    "UpdateFeatures": (
        "UpdateFeatures",
        {"feature_updates": [{"feature": name_of(each), "max_version_level": 1} for each in range(MANY)]},
    ),
}
