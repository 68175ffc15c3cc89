"""Security: every API with {no principal, wrong password, no ACL, ACL}, with Kafka's errors; what is filtered
out instead, and what changes of ACLs and users do.
"""

from __future__ import annotations

import base64
import struct
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.config.checks import STANDARD_AUTHORIZER
from korvet.protocol import registry
from korvet.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from korvet.security.decoys import Decoys
from korvet.security.scram import ScramClient, ScramMechanism, salt_password
from tests.api.asking import KEYS, Client, frame, versions
from tests.api.batches import batch
from tests.api.test_fetch_sessions import Session
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.servers import KorvetServer
from tests.support.wire import ConnectionClosed, RawConnection, advertised
from tests.unit.protocol.test_registry import errors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE = Operation.ALTER, Operation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
NO_TOPIC, NO_GROUP = ErrorCode.topic_authorization_failed, ErrorCode.group_authorization_failed
NO_CLUSTER = ErrorCode.cluster_authorization_failed
# What an ACL names, and what it does not: a topic and a group that there are, and those that there are not.
ORDERS, READERS = "orders", "readers"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Row:
    """A request of one API: which ACLs it needs, its errors without them and with them."""

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
# Nobody has such a producer.
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
        allowed=ErrorCode.invalid_request,
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
    row("ListConfigResources", 1, {}, (DESCRIBE_CONFIGS, CLUSTER, CLUSTER_), denied=NO_CLUSTER),
    row(
        "DescribeTopicPartitions",
        0,
        {"topics": [{"name": ORDERS}], "response_partition_limit": 10},
        (DESCRIBE, TOPIC, ORDERS),
        denied=NO_TOPIC,
    ),
]
# What may be asked before anybody has authenticated.
AT_FIRST = {"ApiVersions", "SaslHandshake"}


def id_of(one: Row) -> str:
    return f"{one.name}-{'-'.join(kind.name for _, kind, _ in one.acls) or 'open'}"


every_row = pytest.mark.parametrize("one", TABLE, ids=id_of)


class Secured:
    """A broker with an authorizer; everybody's password is `secret`."""

    def __init__(self) -> None:
        users = ["admin", "nobody", "other", "lister", "fetcher", "creator", "writer", "guesser"]
        users += [f"u{number}" for number in range(len(TABLE))]
        listed = " ".join(f'user_{user}="secret"' for user in users)
        self.sasl_port = free_port()
        self.server = KorvetServer()
        listeners = f"OPEN://127.0.0.1:{self.server.port},SAFE://127.0.0.1:{self.sasl_port}"
        for pair in (
            f"listeners={listeners}",
            "listener.security.protocol.map=OPEN:PLAINTEXT,SAFE:SASL_PLAINTEXT",
            f"plain.sasl.jaas.config={MODULE} required {listed};",
            "connection.failed.authentication.delay.ms=0",
            f"authorizer.class.name={STANDARD_AUTHORIZER}",
            "super.users=User:admin",
        ):
            self.server.options += ["--set", pair]
        self._served: dict[int, tuple[int, int]] = {}
        self._open: list[RawConnection] = []

    def start(self) -> Secured:
        self.server.start()
        self._served = advertised("127.0.0.1", self.sasl_port)
        return self

    def connect(self, *, safe: bool = True) -> Client:
        client = Client("127.0.0.1", self.sasl_port if safe else self.server.port, self._served)
        self._open.append(client.raw)
        return client

    def authenticated(self, user: str) -> Client:
        client = self.connect()
        assert authenticate(client, user, "secret").error_code is ErrorCode.none
        return client

    def close(self) -> None:
        for each in self._open:
            each.socket.close()
        self._open.clear()


def authenticate(client: Client, user: str, password: str) -> Any:
    shaken = client("SaslHandshake", 1, mechanism="PLAIN")
    assert shaken.error_code is ErrorCode.none
    return client("SaslAuthenticate", 2, auth_bytes=f"\0{user}\0{password}".encode())


def binding(
    user: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    *,
    deny: bool = False,
    prefixed: bool = False,
) -> dict[str, Any]:
    return {
        "resource_type": int(kind),
        "resource_name": name,
        "resource_pattern_type": int(PatternType.PREFIXED if prefixed else PatternType.LITERAL),
        "principal": f"User:{user}",
        "host": "*",
        "operation": int(operation),
        "permission_type": int(Permission.DENY if deny else Permission.ALLOW),
    }


def errors_of(answer: Any) -> frozenset[ErrorCode]:
    return frozenset(errors_in(answer) - {ErrorCode.none})


@pytest.fixture(scope="module")
def running() -> Iterator[Secured]:
    secured = Secured()
    try:
        admin = secured.start().authenticated("admin")
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in (ORDERS, "hidden")]
        assert not errors_of(admin("CreateTopics", 7, topics=topics, timeout=10_000))
        commit = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        for group in (READERS, "others"):
            done = admin(
                "OffsetCommit",
                9,
                group_id=group,
                generation_id_or_member_epoch=-1,
                topics=[{"name": name, "partitions": [commit]} for name in (ORDERS, "hidden")],
            )
            assert not errors_of(done)
        # The first one makes the topic of the coordinator, which is loaded then.
        assert not errors_of(admin("FindCoordinator", 6, coordinator_keys=["mover"], key_type=1))
        ended = MOVER | {"committed": True}
        until(lambda: admin("EndTxn", 5, **ended).error_code is NO_PRODUCER, DEADLINE_S, "the coordinator")
        creations = [binding(f"u{at}", *acl) for at, one in enumerate(TABLE) for acl in one.acls]
        assert not errors_of(admin("CreateAcls", 3, creations=creations))
        secured.close()
        yield secured
    finally:
        secured.close()
        secured.server.discard()


@pytest.fixture
def secured(running: Secured) -> Iterator[Secured]:
    yield running
    running.close()


@pytest.fixture
def let(secured: Secured) -> Callable[..., None]:
    """Let users do something: they may at once."""

    def create(*creations: dict[str, Any]) -> None:
        admin = secured.authenticated("admin")
        assert not errors_of(admin("CreateAcls", 3, creations=list(creations)))

    return create


def test_the_table_has_every_api() -> None:
    assert {one.name for one in TABLE} == {api.name for api in registry.registered()}


def test_no_principal_ends_the_connection(secured: Secured) -> None:
    for one in TABLE:
        client = secured.connect()
        client.send(one.name, one.version, **one.fields)
        if one.name in AT_FIRST:
            assert not errors_of(client.receive(one.name, one.version))
        else:
            assert client.raw.closed_by_server(), one.name


def test_a_wrong_password_ends_the_connection(secured: Secured) -> None:
    for one in TABLE:
        client = secured.connect()
        refused = authenticate(client, "admin", "wrong")
        assert refused.error_code is ErrorCode.sasl_authentication_failed
        assert refused.error_message == "Authentication failed: Invalid username or password"
        with pytest.raises((ConnectionClosed, BrokenPipeError, ConnectionResetError)):
            client(one.name, one.version, **one.fields)


def test_another_request_amid_an_authentication_is_refused(secured: Secured) -> None:
    for one in TABLE:
        if one.name == "SaslAuthenticate":
            continue
        client = secured.connect()
        assert not errors_of(client("SaslHandshake", 1, mechanism="PLAIN"))
        client.send(one.name, one.version, **one.fields)
        said = errors_of(client.receive(one.name, one.version))
        assert said <= {ErrorCode.illegal_sasl_state}, one.name
        assert client.raw.closed_by_server(), one.name


@every_row
def test_without_acl(secured: Secured, one: Row) -> None:
    expected = one.denied if one.acls else one.allowed
    assert errors_of(secured.authenticated("nobody")(one.name, one.version, **one.fields)) == expected
    if one.acls:
        # An unauthenticated listener's clients are User:ANONYMOUS.
        assert errors_of(secured.connect(safe=False)(one.name, one.version, **one.fields)) == expected


@every_row
def test_with_acl(secured: Secured, one: Row) -> None:
    client = secured.authenticated(f"u{TABLE.index(one)}")
    assert errors_of(client(one.name, one.version, **one.fields)) == one.allowed


@every_row
def test_super_users_need_none(secured: Secured, one: Row) -> None:
    assert errors_of(secured.authenticated("admin")(one.name, one.version, **one.fields)) == one.allowed


def test_what_does_not_exist_is_answered_as_what_is_not_allowed(secured: Secured) -> None:
    nobody = secured.authenticated("nobody")
    for name in ("hidden", "no-such-topic"):
        (topic,) = nobody("Metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=True).topics
        assert (topic.error_code, topic.name, topic.topic_id, topic.partitions) == (NO_TOPIC, name, None, ())
        (topic,) = nobody("ListOffsets", 11, topics=[{"name": name, "partitions": [{}]}]).topics
        assert topic.partitions[0].error_code is NO_TOPIC
        (topic,) = nobody("DeleteTopics", 6, topics=[{"name": name}]).responses
        assert (topic.error_code, topic.name, topic.topic_id) == (NO_TOPIC, name, None)


def test_ids_that_may_not_be_seen_are_not_compared_with_a_pattern(secured: Secured) -> None:
    """An expression that takes too long is refused to who may see the ids, and says nothing to others."""
    admin, nobody = secured.authenticated("admin"), secured.authenticated("nobody")
    for number in range(100):
        name = uuid.uuid5(uuid.NAMESPACE_DNS, str(number)).hex * 2
        admin("InitProducerId", 4, transactional_id=name, transaction_timeout=60_000)
    asked = {"duration_filter": -1, "transactional_id_pattern": "(.?){1000}"}
    assert errors_of(admin("ListTransactions", 2, **asked)) == {ErrorCode.invalid_regular_expression}
    answer = nobody("ListTransactions", 2, **asked)
    assert (answer.error_code, answer.transaction_states) == (ErrorCode.none, ())


def test_lists_leave_out_what_may_not_be_seen(secured: Secured, let: Callable[..., None]) -> None:
    other = secured.authenticated("lister")
    assert other("Metadata", 12, topics=None).topics == ()
    assert other("ListGroups", 5).groups == ()
    assert other("DescribeTopicPartitions", 0, response_partition_limit=10).topics == ()
    let(
        binding("lister", DESCRIBE, TOPIC, "ord", prefixed=True),
        binding("lister", DESCRIBE, GROUP, READERS),
    )
    assert [topic.name for topic in other("Metadata", 12, topics=None).topics] == [ORDERS]
    assert [group.group_id for group in other("ListGroups", 5).groups] == [READERS]
    listed = other("DescribeTopicPartitions", 0, response_partition_limit=10)
    assert [topic.name for topic in listed.topics] == [ORDERS]
    (group,) = other("OffsetFetch", 9, groups=[{"group_id": READERS, "topics": None}]).groups
    assert [topic.name for topic in group.topics] == [ORDERS]


def test_a_topic_id_tells_no_name(secured: Secured) -> None:
    admin, nobody = secured.authenticated("admin"), secured.authenticated("nobody")
    (topic,) = admin("Metadata", 12, topics=[{"name": "hidden"}]).topics
    (told,) = nobody("Metadata", 12, topics=[{"topic_id": topic.topic_id, "name": None}]).topics
    assert (told.error_code, told.name, told.topic_id) == (NO_TOPIC, None, topic.topic_id)
    (deleted,) = nobody("DeleteTopics", 6, topics=[{"topic_id": topic.topic_id, "name": None}]).responses
    assert (deleted.error_code, deleted.name, deleted.topic_id) == (NO_TOPIC, None, topic.topic_id)


def test_topics_named_by_id_are_guarded_as_by_name(secured: Secured, let: Callable[..., None]) -> None:
    let(binding("other", READ, GROUP, "others"))
    admin, other = secured.authenticated("admin"), secured.authenticated("other")
    (topic,) = admin("Metadata", 12, topics=[{"name": "hidden"}]).topics
    for topic_id, error in ((topic.topic_id, NO_TOPIC), (uuid.UUID(int=77), ErrorCode.unknown_topic_id)):
        data = {"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch()}]}
        assert errors_of(other("Produce", 13, acks=1, timeout=1000, topic_data=[data])) == {error}
        part = {"partition": 0, "partition_max_bytes": 1000}
        topics: list[dict[str, Any]] = [{"topic_id": topic_id, "partitions": [part]}]
        assert errors_of(other("Fetch", 13, session_epoch=-1, max_bytes=1000, topics=topics)) == {error}
        commit = {"group_id": "others", "generation_id_or_member_epoch": -1}
        topics = [{"topic_id": topic_id, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        assert errors_of(other("OffsetCommit", 10, **commit, topics=topics)) == {error}
        topics = [{"topic_id": topic_id, "partition_indexes": [0]}]
        groups = [{"group_id": "others", "topics": topics}]
        (group,) = other("OffsetFetch", 10, groups=groups).groups
        assert [each.topic_id for each in group.topics] == [topic_id]
        assert errors_of(group) == {error}


def test_a_group_alone_is_not_enough_for_its_topics(secured: Secured, let: Callable[..., None]) -> None:
    let(binding("other", READ, GROUP, "others"), binding("other", DELETE, GROUP, "others"))
    other = secured.authenticated("other")
    commit = [{"name": "hidden", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    member = {"group_id": "others", "generation_id_or_member_epoch": -1}
    assert errors_of(other("OffsetCommit", 9, **member, topics=commit)) == {NO_TOPIC}
    asked = [{"group_id": "others", "topics": [{"name": "hidden", "partition_indexes": [0]}]}]
    (group,) = other("OffsetFetch", 9, groups=asked).groups
    assert group.error_code is ErrorCode.none
    (partition,) = group.topics[0].partitions
    assert (partition.error_code, partition.committed_offset) == (NO_TOPIC, -1)
    deleted = other("OffsetDelete", 0, group_id="others", topics=commit)
    assert deleted.error_code is ErrorCode.none
    assert errors_of(deleted) == {NO_TOPIC}
    admin = secured.authenticated("admin")
    (group,) = admin("OffsetFetch", 9, groups=asked).groups
    assert group.topics[0].partitions[0].committed_offset == 0


def test_a_consumer_group_shows_nothing_of_hidden_topics(secured: Secured, let: Callable[..., None]) -> None:
    let(binding("other", READ, GROUP, "consumers"))
    admin, other = secured.authenticated("admin"), secured.authenticated("other")
    join: dict[str, Any] = {"group_id": "consumers", "rebalance_timeout": 1000, "topic_partitions": []}
    named = {**join, "member_id": "named", "subscribed_topic_names": ["hidden"]}
    assert errors_of(other("ConsumerGroupHeartbeat", 1, **named)) == {NO_TOPIC}
    regex = {**join, "member_id": "regex", "subscribed_topic_regex": "hid.*"}
    answer = other("ConsumerGroupHeartbeat", 1, **regex)
    assert (answer.error_code, answer.assignment.topic_partitions) == (ErrorCode.none, ())
    assert not errors_of(admin("ConsumerGroupHeartbeat", 1, **named))
    (group,) = other("ConsumerGroupDescribe", 1, group_ids=["consumers"]).groups
    assert (group.error_code, group.members) == (NO_TOPIC, ())
    (group,) = admin("ConsumerGroupDescribe", 1, group_ids=["consumers"]).groups
    assert len(group.members) == 2
    for member_id in ("named", "regex"):
        left = {**join, "member_id": member_id, "member_epoch": -1}
        assert not errors_of(admin("ConsumerGroupHeartbeat", 1, **left))


def test_a_created_topics_configs_are_for_who_may_see_them(
    secured: Secured, let: Callable[..., None]
) -> None:
    let(binding("creator", CREATE, CLUSTER, CLUSTER_NAME))
    made = {"name": "unseen", "num_partitions": 2, "replication_factor": 1}
    (topic,) = secured.authenticated("creator")("CreateTopics", 7, topics=[made], timeout=10_000).topics
    assert (topic.error_code, topic.topic_config_error_code) == (ErrorCode.none, NO_TOPIC)
    assert (topic.num_partitions, topic.replication_factor, topic.configs) == (-1, -1, ())


def test_authorized_operations_are_those_that_are_allowed(secured: Secured, let: Callable[..., None]) -> None:
    let(binding("writer", WRITE, TOPIC, "written"), binding("writer", CREATE, TOPIC, "written"))
    writer = secured.authenticated("writer")
    asked = {"topics": [{"name": "written"}], "include_topic_authorized_operations": True}
    (topic,) = writer("Metadata", 12, **asked, allow_auto_topic_creation=True).topics
    assert topic.topic_authorized_operations == 1 << WRITE | 1 << CREATE | 1 << DESCRIBE
    cluster = writer("DescribeCluster", 2, endpoint_type=1, include_cluster_authorized_operations=True)
    assert cluster.cluster_authorized_operations == 0
    cluster = secured.authenticated("admin")(
        "DescribeCluster", 2, endpoint_type=1, include_cluster_authorized_operations=True
    )
    assert cluster.cluster_authorized_operations == 0b1_1111_1010_0000


def test_a_denial_wins_also_over_a_fetch_that_is_repeated(secured: Secured, let: Callable[..., None]) -> None:
    (fetch,) = (one for one in TABLE if one.name == "Fetch")
    let(binding("fetcher", READ, TOPIC, "orders"))
    other = secured.authenticated("fetcher")
    for _ in range(3):
        assert not errors_of(other("Fetch", fetch.version, **fetch.fields))
    let(binding("fetcher", READ, TOPIC, "orders", deny=True))
    assert errors_of(other("Fetch", fetch.version, **fetch.fields)) == {NO_TOPIC}
    admin = secured.authenticated("admin")
    wanted = {**ANY_ACL, "principal_filter": "User:fetcher", "permission_type": int(Permission.DENY)}
    (gone,) = admin("DeleteAcls", 3, filters=[wanted]).filter_results
    assert len(gone.matching_acls) == 1
    assert not errors_of(other("Fetch", fetch.version, **fetch.fields))


def test_a_fetch_session_has_the_rights_of_who_fetches(secured: Secured, let: Callable[..., None]) -> None:
    """On each fetch, of all its partitions, whoever goes on with it."""
    let(binding("fetcher", READ, TOPIC, ORDERS))
    session = Session(secured.authenticated("fetcher"))
    (part,) = session.fetch((ORDERS, 0, 0))
    assert part.error_code is ErrorCode.none
    assert session.fetch((ORDERS, 0, part.high_watermark)) == []
    assert session.fetch(max_wait=100) == []
    let(binding("fetcher", READ, TOPIC, ORDERS, deny=True))
    for _ in range(2):
        (part,) = session.fetch(max_wait=100)
        assert (part.error_code, part.high_watermark, part.records) == (NO_TOPIC, -1, b"")
    session.ask = secured.authenticated("admin")
    (part,) = session.fetch()
    assert part.error_code is ErrorCode.none
    session.ask = secured.authenticated("other")
    (part,) = session.fetch()
    assert part.error_code is NO_TOPIC


def test_acls_of_elsewhere_are_in_force_within_a_second(secured: Secured) -> None:
    nobody = secured.authenticated("nobody")
    redis = secured.server.redis
    redis.hset("{korvet}:acls", b'[4,"kafka-cluster",3,"User:nobody","*",10,3]', b"")
    began = time.monotonic()
    redis.hincrby("{korvet}:cluster", "security", 1)
    until(lambda: not errors_of(nobody("ListConfigResources", 1)), DEADLINE_S, "the ACL is in force")
    assert time.monotonic() - began < DEADLINE_S
    redis.hdel("{korvet}:acls", b'[4,"kafka-cluster",3,"User:nobody","*",10,3]')
    redis.hincrby("{korvet}:cluster", "security", 1)
    until(lambda: errors_of(nobody("ListConfigResources", 1)), DEADLINE_S, "the ACL is gone")


def test_raw_tokens_after_the_first_version_of_the_handshake(secured: Secured) -> None:
    client = secured.connect()
    assert not errors_of(client("SaslHandshake", 0, mechanism="PLAIN"))
    assert client.raw.ask(b"\0nobody\0secret") == b""
    assert client.raw.works()
    client = secured.connect()
    assert not errors_of(client("SaslHandshake", 0, mechanism="PLAIN"))
    client.raw.send(b"\0a\0b")
    assert client.raw.closed_by_server()


@versions("SaslAuthenticate")
def test_every_version_authenticates(secured: Secured, version: int) -> None:
    client, scram = secured.connect(), ScramClient(ScramMechanism.SHA_256, "erin", "secret")
    assert not errors_of(client("SaslHandshake", 1, mechanism="SCRAM-SHA-256"))
    # There is no such user, which does not show before the end; every version has the text.
    answer = client("SaslAuthenticate", version, auth_bytes=scram.first())
    assert answer.error_code is ErrorCode.none
    refused = client("SaslAuthenticate", version, auth_bytes=scram.answer(answer.auth_bytes))
    assert refused.error_code is ErrorCode.sasl_authentication_failed
    assert refused.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        "SCRAM-SHA-256"
    )
    assert client.raw.closed_by_server()
    client = secured.connect()
    assert not errors_of(client("SaslHandshake", 1, mechanism="PLAIN"))
    assert not errors_of(client("SaslAuthenticate", version, auth_bytes=b"\0nobody\0secret"))
    again = client("SaslAuthenticate", version, auth_bytes=b"\0nobody\0secret")
    assert again.error_code is ErrorCode.illegal_sasl_state
    assert client.raw.works()


def test_a_user_that_does_not_exist_keeps_its_salt(secured: Secured) -> None:
    """As a user that exists does, at every broker."""

    def salt_of(user: str) -> bytes:
        client = secured.connect()
        assert not errors_of(client("SaslHandshake", 1, mechanism="SCRAM-SHA-256"))
        answer = client("SaslAuthenticate", 2, auth_bytes=f"n,,n={user},r=abc".encode())
        assert answer.error_code is ErrorCode.none
        return bytes(answer.auth_bytes.split(b",")[1])

    assert salt_of("erin") == salt_of("erin") != salt_of("frank")
    secret = secured.server.redis.hget("{korvet}:cluster", "decoy_secret")
    assert isinstance(secret, bytes)
    expected = base64.b64encode(Decoys(secret).of("erin", ScramMechanism.SHA_256).salt)
    assert salt_of("erin") == b"s=" + expected


@versions("CreateAcls")
def test_every_version_makes_finds_and_deletes_acls(secured: Secured, version: int) -> None:
    admin = secured.authenticated("admin")
    name = f"acl-{version}"
    made = [
        binding("dave", READ, TOPIC, name),
        binding("dave", WRITE, TOPIC, name, deny=True),
        binding("dave", READ, TOPIC, name, prefixed=True),
        binding("dave", READ, TOPIC, ""),
    ]
    results = admin("CreateAcls", version, creations=made).results
    assert [each.error_code for each in results] == [*[ErrorCode.none] * 3, ErrorCode.invalid_request]
    assert results[3].error_message == "Invalid empty resource name"
    wanted = {**ANY_ACL, "resource_name_filter": name, "principal_filter": "User:dave"}
    found = admin("DescribeAcls", version, **wanted)
    listed = [
        (each.resource_type, each.resource_name, each.pattern_type, acl.operation, acl.permission_type)
        for each in found.resources
        for acl in each.acls
    ]
    literal, prefixed = int(PatternType.LITERAL), int(PatternType.PREFIXED)
    deny, allow = int(Permission.DENY), int(Permission.ALLOW)
    assert listed == [
        (2, name, literal, int(READ), allow),
        (2, name, literal, int(WRITE), deny),
        (2, name, prefixed, int(READ), allow),
    ]
    only = {**wanted, "pattern_type_filter": literal}
    unknown = {**wanted, "operation": 99}
    first, second, third = admin("DeleteAcls", version, filters=[only, unknown, wanted]).filter_results
    assert (len(first.matching_acls), len(third.matching_acls)) == (2, 3)
    assert second.error_code is ErrorCode.invalid_request
    assert admin("DescribeAcls", version, **wanted).resources == ()
    assert admin("DescribeAcls", version, **unknown).error_code is ErrorCode.invalid_request


def test_a_mechanism_that_is_not_enabled(secured: Secured) -> None:
    client = secured.connect()
    refused = client("SaslHandshake", 1, mechanism="GSSAPI")
    assert refused.error_code is ErrorCode.unsupported_sasl_mechanism
    assert refused.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    assert client.raw.closed_by_server()


def test_frames_before_the_authentication_are_small(secured: Secured) -> None:
    client = secured.connect()
    client.raw.socket.sendall(struct.pack(">i", 600_000))
    assert client.raw.closed_by_server()


def test_users_are_changed_and_described_without_their_secrets(secured: Secured) -> None:
    admin = secured.authenticated("admin")
    salted = salt_password(ScramMechanism.SHA_256, "pw", b"salt", 4096)
    user = {"name": "carol", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": salted}
    assert not errors_of(admin("AlterUserScramCredentials", 0, upsertions=[user]))
    client = secured.connect()
    assert authenticate(client, "carol", "pw").error_code is ErrorCode.none
    (told,) = admin("DescribeUserScramCredentials", 0, users=[{"name": "carol"}]).results
    assert [(info.mechanism, info.iterations) for info in told.credential_infos] == [(1, 4096)]
    assert b"carol" not in b"".join(secured.server.redis.hvals("{korvet}:users"))
    for changed, error in (
        ({"name": ""}, ErrorCode.unacceptable_credential),
        ({"iterations": 4095}, ErrorCode.unacceptable_credential),
        ({"iterations": 16385}, ErrorCode.unacceptable_credential),
        ({"mechanism": 3}, ErrorCode.unsupported_sasl_mechanism),
    ):
        assert errors_of(admin("AlterUserScramCredentials", 0, upsertions=[{**user, **changed}])) == {error}
    twice = admin("AlterUserScramCredentials", 0, upsertions=[user, user])
    assert errors_of(twice) == {ErrorCode.duplicate_resource}
    twice = admin("DescribeUserScramCredentials", 0, users=[{"name": "carol"}, {"name": "carol"}])
    assert errors_of(twice) == {ErrorCode.duplicate_resource}
    unknown = admin("DescribeUserScramCredentials", 0, users=[{"name": "dave"}])
    assert errors_of(unknown) == {ErrorCode.resource_not_found}
    gone = [{"name": "carol", "mechanism": 1}]
    assert not errors_of(admin("AlterUserScramCredentials", 0, deletions=gone))
    refused = authenticate(secured.connect(), "carol", "pw")
    assert refused.error_code is ErrorCode.sasl_authentication_failed


def test_all_users_are_described_where_none_is_named(secured: Secured) -> None:
    admin = secured.authenticated("admin")
    names = ["first", "second"]
    salted = salt_password(ScramMechanism.SHA_256, "pw", b"salt", 4096)
    made = {"iterations": 4096, "salt": b"salt", "salted_password": salted}
    users = [{"name": name, "mechanism": 1, **made} for name in names]
    assert not errors_of(admin("AlterUserScramCredentials", 0, upsertions=users))
    for asked in (None, []):
        told = admin("DescribeUserScramCredentials", 0, users=asked)
        assert not errors_of(told)
        assert set(names) <= {each.user for each in told.results}


def test_a_hidden_topic_is_not_seen_by_a_name_like_it(secured: Secured, let: Callable[..., None]) -> None:
    admin, nobody = secured.authenticated("admin"), secured.authenticated("guesser")
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("se.cret", "ope.n")]
    assert not errors_of(admin("CreateTopics", 7, topics=topics, timeout=10_000))
    alike = ("se_cret", "ope_n", "free_name")
    let(*(binding("guesser", DESCRIBE, TOPIC, name) for name in (*alike, "ope.n")))

    def errors(*, create: bool) -> list[ErrorCode]:
        asked = [{"name": name} for name in alike]
        told = nobody("Metadata", 12, topics=asked, allow_auto_topic_creation=create)
        assert [topic.name for topic in told.topics] == list(alike)
        return [topic.error_code for topic in told.topics]

    unknown, invalid = ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception
    assert errors(create=False) == [unknown, invalid, unknown]
    assert errors(create=True) == [NO_TOPIC] * 3
    let(*(binding("guesser", CREATE, TOPIC, name) for name in alike))
    assert errors(create=True) == [unknown, invalid, ErrorCode.none]
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in alike[:2]]
    hidden, seen = nobody("CreateTopics", 7, topics=topics, timeout=10_000).topics
    assert (hidden.error_code, seen.error_code) == (invalid, invalid)
    assert "se.cret" not in hidden.error_message
    assert "ope.n" in seen.error_message


def test_offsets_in_a_transaction_ask_for_the_topics_first(
    secured: Secured, let: Callable[..., None]
) -> None:
    """Of the transaction nothing is learned, nor of topics that may not be read."""
    writer = secured.authenticated("writer")
    let(
        binding("writer", WRITE, ResourceType.TRANSACTIONAL_ID, "mover"),
        binding("writer", READ, GROUP, READERS),
        binding("writer", READ, TOPIC, ORDERS),
        binding("writer", READ, TOPIC, "missing"),
    )

    def errors(*names: str) -> list[ErrorCode]:
        part = {"partition_index": 0, "committed_offset": 1}
        answer = writer(
            "TxnOffsetCommit",
            5,
            **MOVER,
            group_id=READERS,
            generation_id=-1,
            topics=[{"name": name, "partitions": [part]} for name in names],
        )
        assert [topic.name for topic in answer.topics] == list(names)
        return [topic.partitions[0].error_code for topic in answer.topics]

    unknown = ErrorCode.unknown_topic_or_partition
    assert errors("hidden", "no-such-topic", "missing") == [NO_TOPIC, NO_TOPIC, unknown]
    assert errors(ORDERS) == [NO_PRODUCER]
    assert errors("hidden", ORDERS, "missing") == [NO_TOPIC, NO_PRODUCER, unknown]
    assert errors() == []


def test_each_listener_tells_its_own_address(secured: Secured) -> None:
    for safe in (True, False):
        client = secured.authenticated("admin") if safe else secured.connect(safe=False)
        (broker,) = client("Metadata", 12, topics=[]).brokers
        assert broker.port == (secured.sasl_port if safe else secured.server.port)
        (broker,) = client("DescribeCluster", 2, endpoint_type=1).brokers
        assert broker.port == (secured.sasl_port if safe else secured.server.port)


def test_no_password_is_logged_or_told(secured: Secured) -> None:
    admin = secured.authenticated("admin")
    asked = [{"resource_type": 4, "resource_name": "1", "configuration_keys": ["plain.sasl.jaas.config"]}]
    (described,) = admin("DescribeConfigs", 4, resources=asked).results
    assert [(each.value, each.is_sensitive) for each in described.configs] == [(None, True)]
    assert "secret" not in secured.server.tail(10**7)


def test_without_an_authorizer_acls_are_disabled(ask: Client) -> None:
    disabled = {ErrorCode.security_disabled}
    assert errors_of(ask("DescribeAcls", 3, **ANY_ACL)) == disabled
    assert errors_of(ask("DeleteAcls", 3, filters=[ANY_ACL])) == disabled
    assert errors_of(ask("CreateAcls", 3, creations=[binding("x", READ, TOPIC, "t")])) == disabled
    assert errors_of(ask("SaslHandshake", 1, mechanism="PLAIN")) == {ErrorCode.illegal_sasl_state}
    assert frame("SaslAuthenticate", 2, 1, auth_bytes=b"")[:2] == KEYS["SaslAuthenticate"].to_bytes(2)
