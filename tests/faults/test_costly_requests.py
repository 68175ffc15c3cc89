"""Requests that name many things: their client waits, and no other; the broker's memory stays small."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from korvet.protocol import registry
from korvet.protocol.schemas import request_class
from korvet.protocol.shape import without_null
from tests.api.asking import KEYS, connect, frame, newest
from tests.faults.costly_requests import CASES, TOPIC, commit_of, name_of, new_topic
from tests.support.bystander import Bystander, peak_bytes, pids_of
from tests.support.servers import KorvetServer
from tests.support.stopwatch import Stopwatch
from tests.support.wire import RawConnection, decode_response

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.faults


MOST_BYTES = 10**9
LONGEST_S = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    server = KorvetServer()
    server.start()
    ask = connect(server, timeout_s=120)
    ask("CreateTopics", 7, topics=[new_topic(TOPIC, 10_000)], timeout=60_000)
    ask("CreateTopics", 7, topics=[new_topic(name_of(number), 1) for number in range(3_000)], timeout=60_000)
    ask("OffsetCommit", 9, group_id="g", generation_id_or_member_epoch=-1, topics=[commit_of(range(10_000))])
    for number in range(500):
        ask("InitProducerId", 4, transactional_id=name_of(number), transaction_timeout=60_000)
    ask.raw.socket.close()
    yield server
    server.discard()


# The newest version that names topics, and that clients send instead of brokers.
OLDER = {"OffsetFetch": 9, "OffsetCommit": 9, "Produce": 12, "Fetch": 12}
# Requests that take long to encode or to answer; there is a cheaper one of their kind.
LONG = {
    "AddPartitionsToTxn: many transactions",
    "AlterClientQuotas",
    "AlterConfigs",
    "AlterPartitionReassignments",
    "AlterUserScramCredentials",
    "ConsumerGroupHeartbeat: many topics",
    "CreateAcls",
    "CreatePartitions",
    "CreateTopics: configs",
    "CreateTopics: names that may collide",
    "DeleteAcls",
    "DeleteRecords",
    "DeleteTopics",
    "DescribeClientQuotas",
    "DescribeConfigs: groups",
    "DescribeQuorum",
    "DescribeShareGroupOffsets: many groups",
    "DescribeTopicPartitions",
    "DescribeUserScramCredentials",
    "Fetch",
    "Fetch: a session",
    "IncrementalAlterConfigs",
    "IncrementalAlterConfigs: one resource",
    "JoinGroup",
    "LeaveGroup",
    "ListOffsets",
    "Metadata: a topic under many IDs",
    "Metadata: unknown topics",
    "OffsetCommit",
    "OffsetDelete",
    "OffsetFetch: many groups",
    "OffsetForLeaderEpoch",
    "SyncGroup",
    "TxnOffsetCommit",
    "UpdateFeatures",
}
assert CASES.keys() >= LONG


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in CASES]
)
def test_nobody_else_waits(server: KorvetServer, case: str) -> None:
    name = case.partition(":")[0]
    version = 3 if case == "AddPartitionsToTxn" else min(newest(name), OLDER.get(name, 99))
    request = frame(name, version, 1, **CASES[case]())
    with RawConnection(server.host, server.port, 120) as attacker:
        with Bystander(server) as other:
            answer = attacker.ask(request)
        assert attacker.works()
    assert other.longest_s < LONGEST_S, case
    assert peak_bytes(server) < MOST_BYTES, case
    response = decode_response(KEYS[name], version, answer).message
    if "an expression" in case:
        assert response.error_code is ErrorCode.invalid_regular_expression


def test_many_clients_ask_for_much_at_once(server: KorvetServer) -> None:
    """Each request takes some 30 ms; all of them in one turn of the event loop would take 3 s."""
    partitions = [{"index": index, "records": None} for index in range(10_000)]
    request = frame(
        "Produce", 9, 1, acks=-1, timeout=1000, topic_data=[{"name": "none", "partition_data": partitions}]
    )
    attackers = [RawConnection(server.host, server.port, 120) for _ in range(100)]
    with Bystander(server) as other:
        for each in attackers:
            each.send(request)
        for each in attackers:
            each.receive()
    for each in attackers:
        each.socket.close()
    assert other.longest_s < LONGEST_S


def test_every_api_that_takes_a_list_has_a_case() -> None:
    taking = {entry.name for entry in registry.registered() if _takes_a_list(entry)}
    assert taking - {case.partition(":")[0] for case in CASES} == set()


def _takes_a_list(entry: registry.Api) -> bool:
    hints = typing.get_type_hints(request_class(entry.key, entry.max_version))
    return any(typing.get_origin(without_null(hint)) is tuple for hint in hints.values())


def test_commits_beside_many_redis_groups(server: KorvetServer) -> None:
    """A partition whose stream has 20,000 Redis groups: a commit must not list all of them."""
    ask = connect(server)
    topic = name_of(1)
    pipeline = server.redis.pipeline(transaction=False)
    for number in range(20_000):
        pipeline.xgroup_create(f"korvet:{topic}:0", f"native{number}", "0", mkstream=True)
    pipeline.execute()
    offset = {"partition_index": 0, "committed_offset": 1}
    commit = {"name": topic, "partitions": [offset]}
    with Bystander(server) as other:
        watch = Stopwatch(*pids_of(server), pace=other.pace)
        for number in range(200):
            group = f"g{number}"
            ask("OffsetCommit", 9, group_id=group, generation_id_or_member_epoch=-1, topics=[commit])
        took_s = watch.elapsed_s
    ask.raw.socket.close()
    assert other.longest_s < LONGEST_S
    assert took_s < 200 * 0.025, "less than one listing of all groups for each commit"
    assert peak_bytes(server) < MOST_BYTES
