"""One request of each API: the required ACLs, and the errors without and with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from korvet.security.acls import CLUSTER_NAME, Operation, ResourceType
from tests.api.batches import batch

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE = Operation.ALTER, Operation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
NO_TOPIC, NO_GROUP = ErrorCode.topic_authorization_failed, ErrorCode.group_authorization_failed
NO_CLUSTER = ErrorCode.cluster_authorization_failed
# Resources with and without an ACL: an existing topic and group, and ones that don't exist.
ORDERS, READERS = "orders", "readers"


@dataclass(frozen=True, slots=True)
class Row:
    """A request of one API: the required ACLs, and the errors without and with them."""

    name: str
    version: int
    fields: dict[str, Any]
    acls: tuple[tuple[Operation, ResourceType, str], ...] = ()
    denied: frozenset[ErrorCode] = frozenset()
    allowed: frozenset[ErrorCode] = frozenset()


def row(
    name: str,
    version: int,
    fields: dict[str, Any],
    *acls: tuple[Operation, ResourceType, str],
    denied: ErrorCode | None = None,
    allowed: ErrorCode | None = None,
) -> Row:
    return Row(
        name,
        version,
        fields,
        acls,
        frozenset() if denied is None else frozenset({denied}),
        frozenset() if allowed is None else frozenset({allowed}),
    )


READS_GROUP, READS_TOPIC = (READ, GROUP, READERS), (READ, TOPIC, ORDERS)
CLUSTER_ = CLUSTER_NAME
MEMBER = {"group_id": READERS, "member_id": "m", "generation_id": 1}
UNKNOWN_MEMBER = ErrorCode.unknown_member_id
ONE_PARTITION = [{"name": ORDERS, "partitions": [{"partition_index": 0, "timestamp": -1, "offset": 0}]}]
ANY_ACL = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
MARKER = {"producer_id": 7, "topics": [{"name": ORDERS, "partition_indexes": [0]}]}
MOVER = {"transactional_id": "mover", "producer_id": 7, "producer_epoch": 0}
WRITES_MOVER = (WRITE, ResourceType.TRANSACTIONAL_ID, "mover")
SHOWS_MOVER = (DESCRIBE, ResourceType.TRANSACTIONAL_ID, "mover")
NO_TRANSACTION = ErrorCode.transactional_id_authorization_failed
# There is no such producer.
NO_PRODUCER = ErrorCode.invalid_producer_id_mapping
TABLE = [
    row(
        "Produce",
        12,
        {
            "acks": 1,
            "timeout": 1000,
            "topic_data": [{"name": ORDERS, "partition_data": [{"index": 0, "records": batch()}]}],
        },
        (WRITE, TOPIC, ORDERS),
        denied=NO_TOPIC,
    ),
    row(
        "Fetch",
        12,
        {
            "session_epoch": -1,
            "max_bytes": 1000,
            "topics": [{"topic": ORDERS, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}],
        },
        READS_TOPIC,
        denied=NO_TOPIC,
    ),
    row("ListOffsets", 11, {"topics": ONE_PARTITION}, (DESCRIBE, TOPIC, ORDERS), denied=NO_TOPIC),
    row(
        "OffsetForLeaderEpoch",
        4,
        {"topics": [{"topic": ORDERS, "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
        (DESCRIBE, TOPIC, ORDERS),
        denied=NO_TOPIC,
    ),
    row("Metadata", 12, {"topics": [{"name": ORDERS}]}, (DESCRIBE, TOPIC, ORDERS), denied=NO_TOPIC),
    row(
        "OffsetCommit",
        9,
        {
            "group_id": READERS,
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": ORDERS, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
        },
        READS_GROUP,
        READS_TOPIC,
        denied=NO_GROUP,
    ),
    row(
        "OffsetFetch",
        9,
        {"groups": [{"group_id": READERS, "topics": [{"name": ORDERS, "partition_indexes": [0]}]}]},
        (DESCRIBE, GROUP, READERS),
        (DESCRIBE, TOPIC, ORDERS),
        denied=NO_GROUP,
    ),
    row("FindCoordinator", 6, {"coordinator_keys": [READERS]}, (DESCRIBE, GROUP, READERS), denied=NO_GROUP),
    row(
        "JoinGroup",
        9,
        {
            "group_id": READERS,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        READS_GROUP,
        denied=NO_GROUP,
        allowed=ErrorCode.member_id_required,
    ),
    row("Heartbeat", 4, MEMBER, READS_GROUP, denied=NO_GROUP, allowed=UNKNOWN_MEMBER),
    row(
        "LeaveGroup",
        5,
        {"group_id": READERS, "members": [{"member_id": "m"}]},
        READS_GROUP,
        denied=NO_GROUP,
        allowed=UNKNOWN_MEMBER,
    ),
    row(
        "SyncGroup",
        5,
        {**MEMBER, "protocol_type": "consumer", "protocol_name": "range"},
        READS_GROUP,
        denied=NO_GROUP,
        allowed=UNKNOWN_MEMBER,
    ),
    row("DescribeGroups", 5, {"groups": [READERS]}, (DESCRIBE, GROUP, READERS), denied=NO_GROUP),
    row(
        "ConsumerGroupHeartbeat",
        1,
        {
            "group_id": READERS,
            "member_id": "m",
            "member_epoch": 5,
            "subscribed_topic_names": [ORDERS],
            "topic_partitions": [],
        },
        READS_GROUP,
        (DESCRIBE, TOPIC, ORDERS),
        denied=NO_GROUP,
        allowed=ErrorCode.group_id_not_found,
    ),
    row(
        "ConsumerGroupDescribe",
        1,
        {"group_ids": [READERS]},
        (DESCRIBE, GROUP, READERS),
        denied=NO_GROUP,
        allowed=ErrorCode.group_id_not_found,
    ),
    row(
        "ShareGroupHeartbeat",
        1,
        {"group_id": READERS, "member_id": "m", "member_epoch": 5, "subscribed_topic_names": [ORDERS]},
        READS_GROUP,
        (DESCRIBE, TOPIC, ORDERS),
        denied=NO_GROUP,
        allowed=ErrorCode.group_id_not_found,
    ),
    row(
        "ShareGroupDescribe",
        1,
        {"group_ids": [READERS]},
        (DESCRIBE, GROUP, READERS),
        denied=NO_GROUP,
        allowed=ErrorCode.group_id_not_found,
    ),
    row(
        "DescribeShareGroupOffsets",
        1,
        {"groups": [{"group_id": READERS, "topics": [{"topic_name": ORDERS, "partitions": [0]}]}]},
        (DESCRIBE, GROUP, READERS),
        (DESCRIBE, TOPIC, ORDERS),
        denied=NO_GROUP,
    ),
    row(
        "AlterShareGroupOffsets",
        0,
        {
            "group_id": "workers",
            "topics": [{"topic_name": ORDERS, "partitions": [{"partition_index": 0, "start_offset": 1}]}],
        },
        (READ, GROUP, "workers"),
        READS_TOPIC,
        denied=NO_GROUP,
    ),
    row(
        "DeleteShareGroupOffsets",
        0,
        {"group_id": "gone", "topics": [{"topic_name": ORDERS}]},
        (DELETE, GROUP, "gone"),
        READS_TOPIC,
        denied=NO_GROUP,
        allowed=ErrorCode.group_id_not_found,
    ),
    row(
        "ShareFetch",
        2,
        {"group_id": READERS, "member_id": "m", "share_session_epoch": 7},
        READS_GROUP,
        denied=NO_GROUP,
        allowed=ErrorCode.share_session_not_found,
    ),
    row(
        "ShareAcknowledge",
        2,
        {"group_id": READERS, "member_id": "m", "share_session_epoch": 7},
        READS_GROUP,
        denied=NO_GROUP,
        allowed=ErrorCode.share_session_not_found,
    ),
    row("ListGroups", 5, {}),
    row("SaslHandshake", 1, {"mechanism": "PLAIN"}, allowed=ErrorCode.illegal_sasl_state),
    row("ApiVersions", 3, {"client_software_name": "test", "client_software_version": "1"}),
    row(
        "CreateTopics",
        7,
        {"topics": [{"name": "made", "num_partitions": 1, "replication_factor": 1}], "validate_only": True},
        (CREATE, TOPIC, "made"),
        (DESCRIBE_CONFIGS, TOPIC, "made"),
        denied=NO_TOPIC,
    ),
    row(
        "DeleteTopics",
        6,
        {"topics": [{"name": "gone"}]},
        (DELETE, TOPIC, "gone"),
        denied=NO_TOPIC,
        allowed=ErrorCode.unknown_topic_or_partition,
    ),
    row("DeleteRecords", 2, {"topics": ONE_PARTITION}, (DELETE, TOPIC, ORDERS), denied=NO_TOPIC),
    row(
        "InitProducerId",
        5,
        {"producer_id": -1, "producer_epoch": -1},
        (Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
    ),
    row(
        "InitProducerId",
        5,
        {"transactional_id": "mover", "producer_id": 7, "producer_epoch": -1},
        WRITES_MOVER,
        denied=NO_TRANSACTION,
        allowed=ErrorCode.invalid_request,
    ),
    row(
        "Produce",
        12,
        {
            "transactional_id": "mover",
            "acks": -1,
            "timeout": 1000,
            "topic_data": [
                {
                    "name": ORDERS,
                    "partition_data": [{"index": 0, "records": batch(attributes=0x10, producer=(7, 0, 0))}],
                }
            ],
        },
        (WRITE, TOPIC, ORDERS),
        WRITES_MOVER,
        denied=NO_TRANSACTION,
        allowed=NO_PRODUCER,
    ),
    row(
        "FindCoordinator",
        6,
        {"coordinator_keys": ["mover"], "key_type": 1},
        SHOWS_MOVER,
        denied=NO_TRANSACTION,
    ),
    row(
        "AddPartitionsToTxn",
        3,
        {f"v3_and_below_{name}": value for name, value in MOVER.items()}
        | {"v3_and_below_topics": [{"name": ORDERS, "partitions": [0]}]},
        WRITES_MOVER,
        (WRITE, TOPIC, ORDERS),
        denied=NO_TRANSACTION,
        allowed=NO_PRODUCER,
    ),
    row(
        "AddPartitionsToTxn",
        5,
        {"transactions": [MOVER | {"topics": [{"name": ORDERS, "partitions": [0]}]}]},
        (Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
        allowed=NO_PRODUCER,
    ),
    row(
        "AddOffsetsToTxn",
        4,
        MOVER | {"group_id": READERS},
        WRITES_MOVER,
        READS_GROUP,
        denied=NO_TRANSACTION,
        allowed=NO_PRODUCER,
    ),
    row(
        "EndTxn",
        5,
        MOVER | {"committed": True},
        WRITES_MOVER,
        denied=NO_TRANSACTION,
        allowed=NO_PRODUCER,
    ),
    row(
        "WriteTxnMarkers",
        1,
        {"markers": [MARKER]},
        (Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
    ),
    row("WriteTxnMarkers", 1, {"markers": [MARKER]}, (ALTER, CLUSTER, CLUSTER_), denied=NO_CLUSTER),
    row(
        "TxnOffsetCommit",
        5,
        MOVER
        | {
            "group_id": READERS,
            "generation_id": -1,
            "topics": [{"name": ORDERS, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
        },
        WRITES_MOVER,
        READS_GROUP,
        READS_TOPIC,
        denied=NO_TRANSACTION,
        allowed=NO_PRODUCER,
    ),
    row(
        "DescribeProducers",
        0,
        {"topics": [{"name": ORDERS, "partition_indexes": [0]}]},
        READS_TOPIC,
        denied=NO_TOPIC,
    ),
    row(
        "DescribeTransactions",
        0,
        {"transactional_ids": ["mover"]},
        SHOWS_MOVER,
        denied=NO_TRANSACTION,
        allowed=ErrorCode.transactional_id_not_found,
    ),
    row("ListTransactions", 2, {"duration_filter": -1, "transactional_id_pattern": None}),
    row("DescribeAcls", 3, ANY_ACL, (DESCRIBE, CLUSTER, CLUSTER_), denied=NO_CLUSTER),
    row(
        "CreateAcls",
        3,
        {"creations": [{"principal": "nobody", "operation": 3}]},
        (ALTER, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
        allowed=ErrorCode.invalid_request,
    ),
    row(
        "DeleteAcls",
        3,
        {"filters": [{**ANY_ACL, "principal_filter": "User:nobody"}]},
        (ALTER, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
    ),
    row(
        "DescribeConfigs",
        4,
        {"resources": [{"resource_type": 2, "resource_name": ORDERS}]},
        (DESCRIBE_CONFIGS, TOPIC, ORDERS),
        denied=NO_TOPIC,
    ),
    row(
        "DescribeConfigs",
        4,
        {"resources": [{"resource_type": 4, "resource_name": "1"}]},
        (DESCRIBE_CONFIGS, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
    ),
    row(
        "AlterConfigs",
        2,
        {"resources": [{"resource_type": 2, "resource_name": ORDERS}], "validate_only": True},
        (ALTER_CONFIGS, TOPIC, ORDERS),
        denied=NO_TOPIC,
    ),
    row("DescribeLogDirs", 5, {"topics": None}, (DESCRIBE, CLUSTER, CLUSTER_), denied=NO_CLUSTER),
    row("SaslAuthenticate", 2, {"auth_bytes": b"\0x\0y"}, allowed=ErrorCode.illegal_sasl_state),
    row(
        "CreatePartitions",
        3,
        {"topics": [{"name": ORDERS, "count": 9}], "validate_only": True},
        (ALTER, TOPIC, ORDERS),
        denied=NO_TOPIC,
    ),
    row(
        "DeleteGroups",
        2,
        {"groups_names": ["gone"]},
        (DELETE, GROUP, "gone"),
        denied=NO_GROUP,
        allowed=ErrorCode.group_id_not_found,
    ),
    row(
        "ElectLeaders",
        2,
        {"topic_partitions": [{"topic": ORDERS, "partitions": [0]}]},
        (ALTER, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
        allowed=ErrorCode.election_not_needed,
    ),
    row(
        "IncrementalAlterConfigs",
        1,
        {"resources": [{"resource_type": 2, "resource_name": ORDERS}], "validate_only": True},
        (ALTER_CONFIGS, TOPIC, ORDERS),
        denied=NO_TOPIC,
    ),
    row(
        "IncrementalAlterConfigs",
        1,
        {"resources": [{"resource_type": 4, "resource_name": "1"}]},
        (ALTER_CONFIGS, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
    ),
    row(
        "IncrementalAlterConfigs",
        1,
        {"resources": [{"resource_type": 8, "resource_name": "1"}]},
        (ALTER_CONFIGS, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
    ),
    row(
        "AlterPartitionReassignments",
        1,
        {"topics": [{"name": ORDERS, "partitions": [{"partition_index": 0, "replicas": None}]}]},
        (ALTER, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
        allowed=ErrorCode.no_reassignment_in_progress,
    ),
    row(
        "AlterReplicaLogDirs",
        2,
        {"dirs": [{"path": "/elsewhere", "topics": [{"name": ORDERS, "partitions": [0]}]}]},
        (ALTER, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
        allowed=ErrorCode.log_dir_not_found,
    ),
    row("ListPartitionReassignments", 0, {}, (DESCRIBE, CLUSTER, CLUSTER_), denied=NO_CLUSTER),
    row(
        "OffsetDelete",
        0,
        {"group_id": "gone", "topics": []},
        (DELETE, GROUP, "gone"),
        denied=NO_GROUP,
        allowed=ErrorCode.group_id_not_found,
    ),
    row("DescribeClientQuotas", 1, {}, (DESCRIBE_CONFIGS, CLUSTER, CLUSTER_), denied=NO_CLUSTER),
    row(
        "AlterClientQuotas",
        1,
        {"entries": [{"entity": [{"entity_type": "user", "entity_name": ""}]}]},
        (ALTER_CONFIGS, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
        allowed=ErrorCode.invalid_request,
    ),
    row("DescribeUserScramCredentials", 0, {}, (DESCRIBE, CLUSTER, CLUSTER_), denied=NO_CLUSTER),
    row(
        "AlterUserScramCredentials",
        0,
        {"deletions": [{"name": "nobody", "mechanism": 1}]},
        (ALTER, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
        allowed=ErrorCode.resource_not_found,
    ),
    row("DescribeCluster", 2, {"endpoint_type": 1}),
    row(
        "DescribeQuorum",
        2,
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
        (DESCRIBE, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
    ),
    row(
        "UpdateFeatures",
        2,
        {"feature_updates": [{"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}]},
        (ALTER, CLUSTER, CLUSTER_),
        denied=NO_CLUSTER,
    ),
    row("ListConfigResources", 1, {}, (DESCRIBE_CONFIGS, CLUSTER, CLUSTER_), denied=NO_CLUSTER),
    row(
        "DescribeTopicPartitions",
        0,
        {"topics": [{"name": ORDERS}], "response_partition_limit": 10},
        (DESCRIBE, TOPIC, ORDERS),
        denied=NO_TOPIC,
    ),
]
