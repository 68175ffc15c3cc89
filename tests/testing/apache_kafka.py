"""Two brokers of Apache Kafka that offer to tests what a KorvetBroker does, so that
`test_faults_as_kafka.py` runs on them, too:

    KORVET_TEST_FAULTS_ON_KAFKA=1 ./dev test tests/testing/test_faults_as_kafka.py

Errors are provoked: NOT_LEADER_OR_FOLLOWER and NOT_COORDINATOR by moving the partition to the other broker,
NOT_ENOUGH_REPLICAS by raising `min.insync.replicas` for a second, MESSAGE_TOO_LARGE by lowering
`max.message.bytes`, COORDINATOR_LOAD_IN_PROGRESS by moving the coordinator of many commits,
REBALANCE_IN_PROGRESS by a member that comes and leaves, an expired member by LeaveGroup
from elsewhere, an aborted transaction by a timeout of a second. Clients are connected by proxies, which close
connections, lose answers, delay them, or pass nothing on.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import struct
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import kio.schema.alter_partition_reassignments.v0 as alter_reassignments
import kio.schema.describe_groups.v5 as describe_groups
import kio.schema.describe_transactions.v0 as describe_transactions
import kio.schema.join_group.v5 as join_group
import kio.schema.leave_group.v3 as leave_group
from confluent_kafka import Producer
from kio.schema.alter_partition_reassignments.v0.request import ReassignablePartition, ReassignableTopic
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v5.request import JoinGroupRequestProtocol
from kio.schema.leave_group.v3.request import MemberIdentity
from kio.schema.types import BrokerId, GroupId, TopicName, TransactionalId
from kio.static.primitive import i32, i32Timedelta

from korvet.cli.client import Cluster, CoordinatorKind
from korvet.cli.security import ClientSecurity
from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.testing.verbs import Verbs
from tests.support.admin import alter_topic, create_topic
from tests.support.frame_proxy import FrameProxy
from tests.support.java import JavaTools
from tests.support.polling import patient, until
from tests.support.ports import accepts, free_port
from tests.support.real_kafka import start_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.config.address import Address
    from korvet.testing import Record
    from tests.support.frame_proxy import Take

WAIT_S: Final = 60
TRANSACTION_TIMEOUT_MS: Final = 1000
_START_S: Final = 120
_SHORTAGE_S: Final = 1.0
# API key, version, correlation ID, and the length of the client ID.
_HEADER: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")
_KEYS: Final = {"Produce": 0, "Fetch": 1}
_OFFSETS_PARTITIONS: Final = 4
# Commits that take a coordinator seconds to load, and how many a producer holds.
_MANY_COMMITS: Final = 1_000_000
_FLUSHED: Final = 50_000
_PROPERTIES: Final = """\
process.roles={roles}
node.id={node}
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertised},INTERNAL://127.0.0.1:{internal}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=INTERNAL
log.dirs={folder}/logs
offsets.topic.replication.factor=1
offsets.topic.num.partitions={offsets_partitions}
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
group.initial.rebalance.delay.ms=0
"""


class NetworkFault:
    """What the next requests of an API meet on their way."""

    def __init__(self, api: str, action: str, times: int, ms: int = 0) -> None:
        self.key = _KEYS[api]
        self.action = action
        self.left = times
        self.ms = ms


class Provoked:
    """An error that the brokers give by themselves."""

    left = 0


class NetworkFaults:
    """Lets requests meet the faults of a list. See FrameProxy."""

    def __init__(self, faults: list[NetworkFault]) -> None:
        self._faults = faults
        self._lock = threading.Lock()

    def takes(self) -> tuple[Take, Take]:
        """What takes the frames of a connection."""
        met: dict[int, NetworkFault] = {}
        return partial(self._request, met), partial(_response, met)

    def _request(self, met: dict[int, NetworkFault], frame: bytes) -> bool | None:
        key, _, correlation, _ = _HEADER.unpack_from(frame)
        with self._lock:
            fault = next((each for each in self._faults if each.key == key and each.left), None)
            if fault is None:
                return True
            fault.left -= 1
        met[correlation] = fault
        return {"disconnect": None, "ignore": False}.get(fault.action, True)


def _response(met: dict[int, NetworkFault], frame: bytes) -> bool | None:
    fault = met.get(_CORRELATION.unpack_from(frame)[0])
    if fault is None:
        return True
    if fault.action == "lose_answer":
        return None
    time.sleep(fault.ms / 1000)
    return True


class ApacheKafka:
    """The brokers, from the beginning of a `with` to its end."""

    def __init__(self) -> None:
        self._network: list[NetworkFault] = []
        self._cleanup = contextlib.ExitStack()
        self.faults = KafkaFaults(self, self._network)

    def __enter__(self) -> Self:
        with self._cleanup:
            self._start(JavaTools.resolve())
            self._cleanup = self._cleanup.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._cleanup.close()

    def _start(self, tools: JavaTools) -> None:
        folder = Path(tempfile.mkdtemp(prefix="korvet-test-kafka-"))
        self._cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        controller = free_port()
        proxies = []
        takes = NetworkFaults(self._network).takes
        for node in (1, 2):
            proxy = FrameProxy(takes)
            self._cleanup.callback(proxy.close)
            proxies.append(proxy)
            proxy.target_port, internal = free_port(), free_port()
            own = folder / str(node)
            own.mkdir()
            listeners = f"PLAINTEXT://127.0.0.1:{proxy.target_port},INTERNAL://127.0.0.1:{internal}"
            if node == 1:
                listeners += f",CONTROLLER://127.0.0.1:{controller}"
            properties = own / "server.properties"
            properties.write_text(
                _PROPERTIES.format(
                    roles="broker,controller" if node == 1 else "broker",
                    node=node,
                    controller=controller,
                    listeners=listeners,
                    advertised=proxy.port,
                    internal=internal,
                    folder=own,
                    offsets_partitions=_OFFSETS_PARTITIONS,
                )
            )
            child = start_node(tools, properties, own / "kafka.log")
            self._cleanup.callback(child.terminate, _START_S)
        for proxy in proxies:
            until(partial(accepts, "127.0.0.1", proxy.target_port), _START_S, "Kafka accepts connections")
        self.bootstrap_servers = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        self._verbs = Verbs(self.bootstrap_servers, ClientSecurity(None))
        self._cleanup.callback(self._verbs.disconnect)
        until(
            lambda: len(self.ask(lambda cluster: cluster.brokers())) == 2, _START_S, "both brokers are known"
        )

    def create_topic(self, name: str) -> None:
        create_topic(self.bootstrap_servers, name, 1)

        def known(cluster: Cluster) -> bool:
            found = (cluster.metadata([name], broker).topics[0] for broker in cluster.brokers())
            return all(topic.error_code is ErrorCode.none for topic in found)

        until(lambda: self.ask(known), WAIT_S, "both brokers know the topic")

    def records(self, topic: str) -> list[Record]:
        return self._verbs.records(topic)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        return self._verbs.committed(group)

    def ask(self, request: Callable[[Cluster], Any]) -> Any:
        with Cluster(self.bootstrap_servers, timeout_s=patient(WAIT_S)) as cluster:
            return request(cluster)


class KafkaFaults:
    """See Faults of korvet.testing."""

    def __init__(self, kafka: ApacheKafka, network: list[NetworkFault]) -> None:
        self._kafka = kafka
        self._network = network
        self._restored: list[threading.Timer] = []

    def fail(
        self, api: str, error: str, *, topic: str = "", group: str = "", times: int | None = 1
    ) -> Provoked:
        match error:
            case "NOT_LEADER_OR_FOLLOWER":
                self.move_leader(topic)
            case "NOT_COORDINATOR":
                # One move is the error of all APIs.
                if api == "Heartbeat":
                    self.move_coordinator(group=group)
            case "COORDINATOR_LOAD_IN_PROGRESS":
                self._commit_much(partition_for(group, _OFFSETS_PARTITIONS))
                self.move_coordinator(group=group)
            case "NOT_ENOUGH_REPLICAS":
                self._configure(topic, {"min.insync.replicas": "2"})
                timer = threading.Timer(_SHORTAGE_S, self._configure, (topic, {"min.insync.replicas": None}))
                timer.start()
                self._restored.append(timer)
            case "MESSAGE_TOO_LARGE":
                self._configure(topic, {"max.message.bytes": "10"})
            case "REBALANCE_IN_PROGRESS":
                self._come_and_leave(group)
            case _:
                raise NotImplementedError(error)
        return Provoked()

    def delay(self, api: str, ms: int, *, topic: str, times: int = 1) -> NetworkFault:
        return self._meet(NetworkFault(api, "delay", times, ms))

    def disconnect(self, api: str, *, topic: str, times: int = 1) -> NetworkFault:
        return self._meet(NetworkFault(api, "disconnect", times))

    def ignore(self, api: str, *, topic: str, times: int = 1) -> NetworkFault:
        return self._meet(NetworkFault(api, "ignore", times))

    def lose_answer(self, api: str, *, topic: str, times: int = 1) -> NetworkFault:
        return self._meet(NetworkFault(api, "lose_answer", times))

    def _meet(self, fault: NetworkFault) -> NetworkFault:
        self._network.append(fault)
        return fault

    def listed(self) -> list[dict[str, int]]:
        return [{"left": each.left} for each in self._network]

    def clear(self) -> None:
        for timer in self._restored:
            timer.join()
        self._restored.clear()
        self._network.clear()

    def move_leader(self, topic: str, partition: int = 0) -> None:
        """Move a partition's only replica to the other broker."""

        def leader(cluster: Cluster) -> int:
            parts = {int(each.partition_index): each for each in cluster.topic(topic).partitions}
            return int(parts[partition].leader_id)

        former = self._kafka.ask(leader)
        other = 3 - former
        place = ReassignablePartition(partition_index=i32(partition), replicas=(BrokerId(other),))
        request = alter_reassignments.AlterPartitionReassignmentsRequest(
            topics=(ReassignableTopic(name=TopicName(topic), partitions=(place,)),)
        )
        answer = self._kafka.ask(
            lambda cluster: cluster.ask(request, alter_reassignments.AlterPartitionReassignmentsResponse)
        )
        assert answer.error_code is ErrorCode.none, answer
        assert answer.responses[0].partitions[0].error_code is ErrorCode.none, answer
        until(lambda: self._kafka.ask(leader) == other, WAIT_S, "the partition is at the other broker")

    def move_coordinator(self, *, group: str) -> None:
        self.move_leader("__consumer_offsets", partition_for(group, _OFFSETS_PARTITIONS))

    def expire_member(self, group: str, member: str) -> None:
        self._kafka.ask(lambda cluster: self._leave(cluster, cluster.coordinator(group), group, member))

    def abort_transaction(self, transactional_id: str) -> None:
        """Wait until the timeout of the transaction has aborted it."""
        request = describe_transactions.DescribeTransactionsRequest(
            transactional_ids=(TransactionalId(transactional_id),)
        )

        def aborted(cluster: Cluster) -> bool:
            broker = cluster.coordinator(transactional_id, CoordinatorKind.TRANSACTIONAL_ID)
            answer = cluster.ask(request, describe_transactions.DescribeTransactionsResponse, broker)
            return str(answer.transaction_states[0].transaction_state) == "CompleteAbort"

        until(lambda: self._kafka.ask(aborted), WAIT_S, "the transaction is aborted")

    def _configure(self, topic: str, configs: dict[str, str | None]) -> None:
        alter_topic(self._kafka.bootstrap_servers, topic, configs)

    def _commit_much(self, partition: int) -> None:
        """Append to a partition of __consumer_offsets what takes its next coordinator seconds to load."""
        # Kafka lets this client write to the topic.
        producer = Producer(
            {"bootstrap.servers": self._kafka.bootstrap_servers, "client.id": "__admin_client"}
        )
        value = encode_value(OffsetCommitValue(offset=1))
        keys = [encode_key(OffsetCommitKey(group="other", topic="t", partition=each)) for each in range(1000)]
        for number in range(_MANY_COMMITS):
            producer.produce("__consumer_offsets", value, keys[number % len(keys)], partition)
            if number % _FLUSHED == 0:
                producer.flush(WAIT_S)
        assert producer.flush(WAIT_S) == 0

    def _come_and_leave(self, group: str) -> None:
        """Let a group rebalance, with the members that it has in the end."""

        def come(cluster: Cluster, broker: Address, member: str) -> Any:
            metadata = struct.pack(">hii", 0, 0, -1)
            request = join_group.JoinGroupRequest(
                group_id=GroupId(group),
                session_timeout=_timedelta(30),
                rebalance_timeout=_timedelta(30),
                member_id=member,
                protocol_type="consumer",
                protocols=tuple(
                    JoinGroupRequestProtocol(name=name, metadata=metadata) for name in ("range", "roundrobin")
                ),
            )
            return cluster.ask(request, join_group.JoinGroupResponse, broker)

        def members(cluster: Cluster, broker: Address) -> set[str]:
            request = describe_groups.DescribeGroupsRequest(
                groups=(GroupId(group),), include_authorized_operations=False
            )
            answer = cluster.ask(request, describe_groups.DescribeGroupsResponse, broker)
            return {str(member.member_id) for member in answer.groups[0].members}

        broker = self._kafka.ask(lambda cluster: cluster.coordinator(group))
        refused = self._kafka.ask(lambda cluster: come(cluster, broker, ""))
        assert refused.error_code is ErrorCode.member_id_required
        coming = threading.Thread(
            target=self._kafka.ask, args=(lambda cluster: come(cluster, broker, refused.member_id),)
        )
        coming.start()
        has_come = partial(self._kafka.ask, lambda cluster: refused.member_id in members(cluster, broker))
        until(has_come, WAIT_S, "the group has another member")
        self._kafka.ask(lambda cluster: self._leave(cluster, broker, group, refused.member_id))
        coming.join()

    @staticmethod
    def _leave(cluster: Cluster, broker: Address, group: str, member: str) -> None:
        request = leave_group.LeaveGroupRequest(
            group_id=GroupId(group), members=(MemberIdentity(member_id=member),)
        )
        answer = cluster.ask(request, leave_group.LeaveGroupResponse, broker)
        assert answer.error_code is ErrorCode.none, answer
        assert answer.members[0].error_code is ErrorCode.none, answer


def _timedelta(seconds: int) -> i32Timedelta:
    return i32Timedelta.parse(datetime.timedelta(seconds=seconds))
