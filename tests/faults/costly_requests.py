"""The costliest request of each API that takes a list: what makes its fields, after the API's name."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "some.topic"
# Nearly the largest number of elements that a request may have.
MANY = 95_000


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


ACCEPTED = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}


def share_of(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"topic_id": each, "partitions": [{"partition_index": 0, "acknowledgement_batches": batches}]}
        for each in ids(MANY // 4)
    ]


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "Metadata: a topic under many IDs": lambda: {
        "topics": [{"name": TOPIC, "topic_id": each} for each in ids(5_000)]
    },
    "Metadata: unknown topics": lambda: {
        "topics": [{"name": f"un.known_{number}", "topic_id": None} for number in range(50_000)],
        "allow_auto_topic_creation": False,
    },
    "DescribeConfigs: one resource": lambda: {
        "resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}] * 3_000,
        "include_synonyms": True,
    },
    "DescribeConfigs: many resources": lambda: {
        "resources": [
            {"resource_type": 2, "resource_name": name_of(number), "configuration_keys": None}
            for number in range(3_000)
        ],
        "include_synonyms": True,
        "include_documentation": True,
    },
    "CreateTopics: names that may collide": lambda: {
        "topics": [new_topic(f"x{number}.y_z", 1) for number in range(9_000)],
        "validate_only": True,
    },
    "ListOffsets": lambda: {
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
    "OffsetForLeaderEpoch": lambda: {
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
    "DescribeProducers": lambda: {"topics": [{"name": TOPIC, "partition_indexes": list(range(MANY))}]},
    "DeleteRecords": lambda: {
        "topics": [
            {
                "name": TOPIC,
                "partitions": [{"partition_index": index, "offset": 0} for index in range(MANY)],
            }
        ],
        "timeout": 60_000,
    },
    "OffsetDelete": lambda: {
        "group_id": "g",
        "topics": [
            {"name": TOPIC, "partitions": [{"partition_index": index} for index in reversed(range(MANY))]}
        ],
    },
    "OffsetFetch: all of a group": lambda: {
        "groups": [{"group_id": "g", "topics": None, "member_epoch": -1}] * 5_000
    },
    "DescribeGroups: one group": lambda: {"groups": ["g"] * MANY},
    "DescribeLogDirs": lambda: {"topics": [{"topic": TOPIC, "partitions": list(range(10_000))}] * 9},
    "ConsumerGroupHeartbeat: an expression in many states": lambda: {
        "group_id": "expressions",
        "member_id": "m",
        "rebalance_timeout": 60_000,
        "subscribed_topic_regex": "(.?){1000}",
        "topic_partitions": [],
    },
    "ListTransactions: an expression in many states": lambda: {
        "duration_filter": -1,
        "transactional_id_pattern": "(.?){1000}",
    },
    "OffsetFetch": lambda: {
        "groups": [
            {
                "group_id": "g",
                "topics": [{"name": TOPIC, "partition_indexes": list(range(MANY))}],
                "member_epoch": -1,
            }
        ]
    },
    "OffsetCommit": lambda: {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "topics": [commit_of(range(MANY))],
    },
    "LeaveGroup": lambda: {"group_id": "g", "members": [{"member_id": "m"}] * MANY},
    "DeleteTopics": lambda: {"topics": [{"name": f"no-{number}"} for number in range(MANY)]},
    "AddPartitionsToTxn": lambda: {
        "v3_and_below_transactional_id": name_of(0),
        "v3_and_below_topics": [{"name": TOPIC, "partitions": list(range(MANY))}],
    },
    "ConsumerGroupHeartbeat: many topics": lambda: {
        "group_id": "topics",
        "member_id": "m",
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": [name_of(number) for number in range(MANY)],
        "topic_partitions": [],
    },
    "ElectLeaders": lambda: {"topic_partitions": [{"topic": TOPIC, "partitions": [*range(MANY)]}]},
    "AlterReplicaLogDirs": lambda: {
        "dirs": [{"path": "/korvet", "topics": [{"name": TOPIC, "partitions": list(range(MANY))}]}]
    },
    "DescribeTransactions": lambda: {"transactional_ids": [f"no-{number}" for number in range(MANY)]},
    "DeleteGroups": lambda: {"groups_names": [f"no-{number}" for number in range(MANY)]},
    "IncrementalAlterConfigs": lambda: {
        "resources": [
            {"resource_type": 2, "resource_name": f"no-{number}", "configs": []} for number in range(MANY)
        ]
    },
    "DescribeConfigs: groups": lambda: {
        "resources": [
            {"resource_type": 32, "resource_name": f"g{number}", "configuration_keys": None}
            for number in range(20_000)
        ],
        "include_synonyms": True,
    },
    "WriteTxnMarkers: partitions that do not exist": lambda: {
        "markers": [
            {
                "producer_id": 1,
                "transaction_result": True,
                "topics": [{"name": TOPIC, "partition_indexes": list(range(10_000, 30_000))}],
            }
        ]
    },
    "FindCoordinator": lambda: {"coordinator_keys": [f"g{number}" for number in range(50_000)]},
    "Produce": lambda: {
        "acks": -1,
        "timeout": 10_000,
        "topic_data": [{"name": TOPIC, "partition_data": [{"index": index} for index in range(MANY)]}],
    },
    "Fetch": lambda: {
        "max_bytes": 2**20,
        "session_epoch": -1,
        "topics": [fetch_of(range(MANY))],
    },
    "Fetch: a session": lambda: {
        "max_bytes": 2**20,
        "topics": [fetch_of(range(MANY))],
    },
    "Fetch: forgotten partitions": lambda: {
        "max_bytes": 2**20,
        "forgotten_topics_data": [{"topic": TOPIC, "partitions": list(range(MANY))}],
    },
    "JoinGroup": lambda: {
        "group_id": "joined",
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "protocol_type": "consumer",
        "protocols": [{"name": f"p{number}", "metadata": b""} for number in range(MANY)],
    },
    "SyncGroup": lambda: {
        "group_id": "g",
        "assignments": [{"member_id": f"m{number}", "assignment": b""} for number in range(MANY)],
    },
    "ListGroups": lambda: {
        "states_filter": [f"s{number}" for number in range(MANY // 2)],
        "types_filter": [f"t{number}" for number in range(MANY // 2)],
    },
    "OffsetFetch: many groups": lambda: {
        "groups": [{"group_id": f"g{number}", "topics": None, "member_epoch": -1} for number in range(MANY)]
    },
    "DescribeGroups: many groups": lambda: {"groups": [f"g{number}" for number in range(MANY)]},
    "ConsumerGroupDescribe": lambda: {"group_ids": [f"g{number}" for number in range(MANY)]},
    "ShareGroupDescribe": lambda: {"group_ids": [f"g{number}" for number in range(MANY)]},
    "ShareGroupHeartbeat": lambda: {
        "group_id": "queue",
        "member_id": "m",
        "member_epoch": 0,
        "subscribed_topic_names": [name_of(number) for number in range(3_000)],
    },
    "DescribeShareGroupOffsets: many groups": lambda: {
        "groups": [{"group_id": f"g{number}", "topics": None} for number in range(MANY)]
    },
    "DescribeShareGroupOffsets: many partitions": lambda: {
        "groups": [{"group_id": "queue", "topics": [{"topic_name": TOPIC, "partitions": list(range(MANY))}]}]
    },
    "AlterShareGroupOffsets": lambda: {
        "group_id": "nobodys",
        "topics": [
            {
                "topic_name": TOPIC,
                "partitions": [{"partition_index": index, "start_offset": 0} for index in range(MANY)],
            }
        ],
    },
    "DeleteShareGroupOffsets": lambda: {
        "group_id": "nobodys",
        "topics": [{"topic_name": f"t{number}"} for number in range(MANY)],
    },
    "ShareFetch": lambda: {
        "group_id": "queue",
        "member_id": "m",
        "share_session_epoch": 0,
        "max_wait": 0,
        "topics": share_of([]),
    },
    "ShareAcknowledge": lambda: {
        "group_id": "queue",
        "member_id": "m",
        "share_session_epoch": 1,
        "topics": share_of([ACCEPTED]),
    },
    "CreateTopics: assignments": lambda: {
        "topics": [
            {
                "name": "assigned",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": index, "broker_ids": [1]} for index in range(MANY // 2)],
            }
        ],
        "timeout": 60_000,
        "validate_only": True,
    },
    "CreateTopics: configs": lambda: {
        "topics": [
            new_topic("configured", 1)
            | {"configs": [{"name": f"c{number}", "value": "1"} for number in range(MANY)]}
        ],
        "timeout": 60_000,
    },
    "CreatePartitions": lambda: {
        "topics": [{"name": f"no-{number}", "count": 2, "assignments": None} for number in range(MANY)],
        "timeout": 60_000,
        "validate_only": True,
    },
    "WriteTxnMarkers": lambda: {
        "markers": [
            {
                "producer_id": 1,
                "topics": [{"name": TOPIC, "partition_indexes": list(range(2_000))}],
                "transaction_result": True,
            }
        ]
    },
    "TxnOffsetCommit": lambda: {
        "transactional_id": name_of(0),
        "group_id": "g",
        "generation_id": -1,
        "topics": [commit_of(range(MANY))],
    },
    "AddPartitionsToTxn: many transactions": lambda: {
        "transactions": [{"transactional_id": f"no-{number}", "verify_only": True} for number in range(MANY)]
    },
    "CreateAcls": lambda: {
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
    "DeleteAcls": lambda: {
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
    "DescribeConfigs: keys": lambda: {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": TOPIC,
                "configuration_keys": [f"k{number}" for number in range(MANY)],
            }
        ]
    },
    "AlterConfigs": lambda: {
        "resources": [
            {"resource_type": 2, "resource_name": f"no-{number}", "configs": []} for number in range(MANY)
        ]
    },
    "IncrementalAlterConfigs: one resource": lambda: {
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
    "AlterPartitionReassignments": lambda: {
        "topics": [
            {
                "name": TOPIC,
                "partitions": [{"partition_index": index, "replicas": None} for index in range(MANY)],
            }
        ]
    },
    "ListPartitionReassignments": lambda: {
        "topics": [{"name": TOPIC, "partition_indexes": list(range(MANY))}]
    },
    "DescribeClientQuotas": lambda: {
        "components": [
            {"entity_type": f"type{number}", "match_type": 0, "match": "a"} for number in range(MANY)
        ]
    },
    "AlterClientQuotas": lambda: {
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": f"u{number}"}],
                "ops": [{"key": "no_such_rate", "value": 1.0, "remove": False}],
            }
            for number in range(MANY // 3)
        ]
    },
    "DescribeUserScramCredentials": lambda: {"users": [{"name": f"u{number}"} for number in range(MANY)]},
    "AlterUserScramCredentials": lambda: {
        "deletions": [{"name": f"u{number}", "mechanism": 1} for number in range(MANY)]
    },
    "ListTransactions": lambda: {
        "state_filters": [f"s{number}" for number in range(MANY // 2)],
        "producer_id_filters": list(range(MANY // 2)),
        "duration_filter": -1,
    },
    "ConsumerGroupHeartbeat: many owned partitions": lambda: {
        "group_id": "owned",
        "member_id": "m",
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": [TOPIC],
        "topic_partitions": [{"topic_id": uuid.UUID(int=1), "partitions": list(range(MANY))}],
    },
    "ListConfigResources": lambda: {"resource_types": [2] * MANY},
    "DescribeTopicPartitions": lambda: {
        "topics": [{"name": name_of(number % 3_000)} for number in range(MANY)],
        "response_partition_limit": 2_000,
    },
    "DescribeQuorum": lambda: {
        "topics": [
            {"topic_name": TOPIC, "partitions": [{"partition_index": number} for number in range(MANY)]}
        ]
    },
    "DescribeQuorum: one partition": lambda: {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}] * MANY}]
    },
    "UpdateFeatures": lambda: {
        "feature_updates": [{"feature": name_of(each), "max_version_level": 1} for each in range(MANY)]
    },
}
