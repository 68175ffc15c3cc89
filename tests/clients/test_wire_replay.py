"""Every request frame captured from real clients receives a response in Kafka's schema of that version."""

from __future__ import annotations

import json
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from kio.serial import entity_reader

from korvet.protocol.schemas import request_class
from tests.support.admin import create_topic
from tests.support.polling import until
from tests.support.wire import RawConnection, advertised, decode_response, header

pytestmark = [pytest.mark.clients, pytest.mark.short]

FOLDER = Path(__file__).resolve().parents[1] / "data" / "wire"
CLIENTS = sorted(path.name.removesuffix(".requests.jsonl") for path in FOLDER.glob("*.requests.jsonl"))
PRODUCE = 0
FETCH = 1
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46

# Keys of the APIs that every ordinary client needs. Each captured version of them must be supported.
SERVED = {
    0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 8: "OffsetCommit", 9: "OffsetFetch",
    10: "FindCoordinator", 11: "JoinGroup", 12: "Heartbeat", 13: "LeaveGroup", 14: "SyncGroup",
    15: "DescribeGroups", 16: "ListGroups", 18: "ApiVersions", 19: "CreateTopics", 20: "DeleteTopics",
    22: "InitProducerId", 32: "DescribeConfigs", 37: "CreatePartitions", 42: "DeleteGroups",
    47: "OffsetDelete", 60: "DescribeCluster", 68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe",
}  # fmt: skip

# Clients request a transactional producer ID with the same API, which needn't succeed here.
TRANSACTIONAL = "librdkafka-txn"

# Requests of the captured broker to itself, for which kio has no schema.
BROKERS_OWN = (18, 5)


@dataclass(frozen=True, slots=True)
class Captured:
    connection: int
    api_key: int
    api_version: int
    frame: bytes


def captured(client: str) -> list[Captured]:
    lines = (FOLDER / f"{client}.requests.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        Captured(row["conn"], row["api_key"], row["api_version"], bytes.fromhex(row["hex"])) for row in rows
    ]


def is_served(versions: dict[int, tuple[int, int]], request: Captured) -> bool:
    if (request.api_key, request.api_version) == BROKERS_OWN:
        return False
    low, high = versions.get(request.api_key, (0, -1))
    return low <= request.api_version <= high


def decoded(request: Captured) -> Any:
    """Decodes the request with kio."""
    schema = request_class(request.api_key, request.api_version)
    (client_id_size,) = struct.unpack_from(">h", request.frame, 8)
    position = 10 + max(client_id_size, 0)
    if schema.__flexible__:
        assert request.frame[position] == 0, "a captured header with tagged fields"
        position += 1
    message, _ = entity_reader(schema)(memoryview(request.frame), position)
    return message


def wants_no_answer(request: Captured) -> bool:
    """Produce with acks=0 is the one request without a response."""
    return request.api_key == PRODUCE and decoded(request).acks == 0


def create_named_topics(bootstrap: str, requests: list[Captured]) -> None:
    """Create the topics of Produce requests: Kafka closes the connection after a failed one with acks=0."""
    wanted: dict[str, int] = {}
    for request in requests:
        if request.api_key == PRODUCE and request.api_version < 13:
            for topic in decoded(request).topic_data:
                highest = max(partition.index for partition in topic.partition_data)
                wanted[topic.name] = max(wanted.get(topic.name, 0), highest + 1)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    present = admin.list_topics(timeout=10).topics
    for name, partitions in wanted.items():
        if name not in present:
            create_topic(bootstrap, name, partitions)
        elif len(present[name].partitions) < partitions:
            grow_topic(admin, name, partitions)


def grow_topic(admin: AdminClient, name: str, partitions: int) -> None:
    """A captured Metadata request has created the topic, with one partition."""
    admin.create_partitions([NewPartitions(name, partitions)])[name].result(20)
    until(lambda: len(admin.list_topics(name, 10).topics[name].partitions) == partitions, 10, "partitions")


def test_the_captured_versions_are_advertised(broker):
    versions = advertised(broker.host, broker.port)
    missing = {
        (SERVED[request.api_key], request.api_version)
        for client in CLIENTS
        for request in captured(client)
        # A client that doesn't know the broker yet uses its newest version.
        if request.api_key in SERVED and request.api_key != 18 and not is_served(versions, request)
    }
    assert missing == set()
    assert set(SERVED) - set(versions) == set()


@pytest.mark.parametrize("client", CLIENTS)
def test_captured_requests_get_valid_answers(broker, client):
    versions = advertised(broker.host, broker.port)
    requests = [
        request
        for request in captured(client)
        if is_served(versions, request) and not (client == TRANSACTIONAL and request.api_key not in SERVED)
    ]
    create_named_topics(broker.bootstrap, requests)
    with ExitStack() as opened:
        connections: dict[int, RawConnection] = {}
        sessions: dict[int, int] = {}
        for request in requests:
            if request.connection not in connections:
                connection = RawConnection(broker.host, broker.port, timeout_s=30)
                connections[request.connection] = opened.enter_context(connection)
            replay(connections[request.connection], request, sessions)
        assert connections
        assert all(connection.works() for connection in connections.values())


def in_session(request: Captured, session_id: int) -> bytes:
    """Returns the frame, with the ID of our fetch session if it continues one."""
    if request.api_key != FETCH or request.api_version < 7 or not decoded(request).session_id:
        return request.frame
    assert session_id, "the full fetch before has opened a session"
    captured_id = struct.pack(">i", decoded(request).session_id)
    before, found, behind = request.frame.partition(captured_id)
    assert found
    return before + struct.pack(">i", session_id) + behind


def replay(connection: RawConnection, request: Captured, sessions: dict[int, int]) -> None:
    """`sessions` maps each captured connection to its last fetch session here."""
    frame = in_session(request, sessions.get(request.connection, 0))
    connection.send(frame)
    if wants_no_answer(request):
        return
    response = decode_response(request.api_key, request.api_version, connection.receive())
    assert response.correlation_id == struct.unpack_from(">i", request.frame, 4)[0]
    assert response.left_bytes == 0, f"{type(response.message).__name__} has bytes behind its end"
    if request.api_key == PRODUCE and request.api_version < 13 and decoded(request).transactional_id is None:
        check_produced(request, response.message)
    if request.api_key == FETCH and request.api_version >= 7:
        assert response.message.error_code == 0
        sessions[request.connection] = response.message.session_id


def check_produced(request: Captured, message: Any) -> None:
    """Batches of all codecs from several writers are accepted; idempotent ones may be duplicates."""
    accepted = {0, DUPLICATE_SEQUENCE_NUMBER, OUT_OF_ORDER_SEQUENCE_NUMBER}
    for topic in message.responses:
        for partition in topic.partition_responses:
            assert partition.error_code in accepted, (request.api_version, topic.name, partition)


@pytest.mark.parametrize("client", ["librdkafka-producer", "java-console-producer", "kafkajs"])
def test_pipelined_requests_are_answered_in_order(broker, client):
    """All requests of a connection are sent in one write: the responses arrive in the same order."""
    versions = advertised(broker.host, broker.port)
    requests = [r for r in captured(client) if is_served(versions, r) and not wants_no_answer(r)]
    requests = [request for request in requests if request.api_key in (0, 3, 10, 18)]
    assert len(requests) >= 3
    create_named_topics(broker.bootstrap, requests)
    with RawConnection(broker.host, broker.port, timeout_s=30) as connection:
        frames = (struct.pack(">i", len(request.frame)) + request.frame for request in requests)
        connection.socket.sendall(b"".join(frames))
        for request in requests:
            response = decode_response(request.api_key, request.api_version, connection.receive())
            assert response.correlation_id == struct.unpack_from(">i", request.frame, 4)[0]


@pytest.mark.parametrize("min_bytes", [0, 1])
def test_a_fetch_of_no_partition_is_answered(broker, min_bytes):
    """Java consumers send one when they close, and wait for the response."""
    body = struct.pack(">iiiibi", -1, 500, min_bytes, 1_000, 0, 0)
    with RawConnection(broker.host, broker.port) as connection:
        response = decode_response(1, 4, connection.ask(header(1, 4, 11) + body))
    assert (response.correlation_id, response.message.responses) == (11, ())
