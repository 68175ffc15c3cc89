"""Groups of 50 members and 100 partitions, in both protocols: members join, leave, die; the broker dies."""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from korvet.groups.consumer.messages import MemberHeartbeatReply, OwnedTopic
from tests.api.asking import Client
from tests.support.admin import create_topic
from tests.support.polling import until
from tests.support.processes import Child
from tests.support.wire import advertised
from tests.unit.groups.consumers import Consumer

if TYPE_CHECKING:
    from pathlib import Path

    from korvet.groups.consumer.messages import ConsumerHeartbeatRequest
    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients, pytest.mark.long]

TOPIC, GROUP, PARTITIONS = "shared", "crowd", 100
SESSION_MS = 6_000
SETTINGS = [
    *("--set", f"group.consumer.session.timeout.ms={SESSION_MS}"),
    *("--set", "group.consumer.heartbeat.interval.ms=500"),
]
FENCED = {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch}
LOADING = {ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available}
# One process of members, which poll as long as they live.
MEMBERS = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic, protocol, count, session_ms = sys.argv[1:]
config = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
if protocol == "consumer":
    config["group.protocol"] = "consumer"
else:
    config |= {"session.timeout.ms": int(session_ms), "heartbeat.interval.ms": 500}
members = [Consumer(config) for _ in range(int(count))]
for member in members:
    member.subscribe([topic])
while True:
    for member in members:
        member.poll(0.01)
"""


class Wire:
    """A connection that looks like the driver of a shard."""

    def __init__(self, server: KorvetServer) -> None:
        self._ask = Client(server.host, server.port, advertised(server.host, server.port))

    def close(self) -> None:
        self._ask.raw.socket.close()

    def answer(self, handler: str, request: ConsumerHeartbeatRequest) -> MemberHeartbeatReply:
        assert handler == "consumer_heartbeat"
        owned: list[dict[str, Any]] | None = None
        if request.owned is not None:
            owned = [
                {"topic_id": uuid.UUID(bytes=each.topic_id), "partitions": list(each.partitions)}
                for each in request.owned
            ]
        names = request.subscribed_topic_names
        answer = self._ask(
            "ConsumerGroupHeartbeat",
            1,
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=request.rebalance_timeout_ms,
            subscribed_topic_names=None if names is None else list(names),
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=owned,
        )
        assignment = None
        if answer.assignment is not None:
            assignment = tuple(
                OwnedTopic(each.topic_id.bytes, tuple(each.partitions))
                for each in answer.assignment.topic_partitions
            )
        return MemberHeartbeatReply(
            ErrorCode(answer.error_code), None, answer.member_id, answer.member_epoch, 0, assignment
        )


class Crowd:
    """Members that send heartbeats in turn on one connection; after each answer, two members never have
    the same partition.
    """

    def __init__(self, server: KorvetServer) -> None:
        self.server = server
        self.wire: Any = Wire(server)
        self.members: list[Consumer] = []
        self.made = 0

    def join(self, count: int) -> None:
        for _ in range(count):
            self.made += 1
            member = Consumer(self.wire, f"m{self.made}", TOPIC, group_id=GROUP)
            until(lambda joins=member: joins.join().error not in LOADING, 30, "the coordinator is loaded")
            self.members.append(member)
            self.check()

    def beat(self) -> None:
        for member in self.members:
            error = member.beat().error
            if error in LOADING:
                member.changed = True
            elif error in FENCED:
                member.owned = {}
                member.join()
            else:
                assert error is ErrorCode.none
            self.check()

    def check(self) -> list[int]:
        owned = [number for member in self.members for numbers in member.owned.values() for number in numbers]
        assert len(owned) == len(set(owned)), "a partition with two members"
        return owned

    def settle(self) -> None:
        """Every partition is assigned, evenly."""

        def settled() -> bool:
            self.beat()
            sizes = [sum(map(len, member.owned.values())) for member in self.members]
            return len(self.check()) == PARTITIONS and max(sizes) - min(sizes) <= 1

        until(settled, 40, "all partitions are assigned evenly")

    def leave(self, count: int) -> None:
        for _ in range(count):
            assert self.members.pop(0).leave().error is ErrorCode.none

    def restart(self) -> None:
        self.wire.close()
        self.server.restart()
        self.wire = Wire(self.server)
        for member in self.members:
            member.driver = self.wire


def test_no_partition_is_ever_with_two_members(own_korvet) -> None:
    server = own_korvet(*SETTINGS)
    create_topic(server.bootstrap, TOPIC, PARTITIONS)
    crowd = Crowd(server)
    try:
        crowd.join(50)
        crowd.settle()
        crowd.leave(10)
        crowd.settle()
        del crowd.members[:10]  # they die
        crowd.settle()
        crowd.join(20)
        server.kill()
        crowd.restart()
        crowd.settle()
    finally:
        crowd.wire.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_clients_join_leave_and_die(own_korvet, tmp_path: Path, protocol: str) -> None:
    server = own_korvet(*SETTINGS)
    create_topic(server.bootstrap, TOPIC, PARTITIONS)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    processes: list[Child] = []

    def start(count: int) -> None:
        arguments = [server.bootstrap, GROUP, TOPIC, protocol, str(count), str(SESSION_MS)]
        log = tmp_path / f"members-{len(processes)}.log"
        processes.append(Child([sys.executable, "-c", MEMBERS, *arguments], log))

    def shared_by(count: int) -> bool:
        group = admin.describe_consumer_groups([GROUP])[GROUP].result(20)
        owned = [part.partition for member in group.members for part in member.assignment.topic_partitions]
        return len(group.members) == count and sorted(owned) == [*range(PARTITIONS)]

    try:
        for _ in range(5):
            start(10)
        until(lambda: shared_by(50), 90, "50 members share")
        processes[0].kill()
        until(lambda: shared_by(40), 90, "40 members share what the dead ones had")
        processes[1].terminate()
        start(10)
        until(lambda: shared_by(40), 90, "40 members share again")
    finally:
        for process in processes:
            process.kill()
