"""Requests to a coordinator that loads its groups or transactions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from kio.schema.errors import ErrorCode

from korvet.api import offset_fetch
from korvet.coordinator.refusals import refuse
from korvet.coordinator.service import CoordinatorService
from korvet.coordinator.transactions import TransactionService
from korvet.groups.messages import FetchRequest
from korvet.transactions.messages import InitReply
from tests.api.asking import connect
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import SimpleNamespace

    from tests.api.asking import Client

NONE, LOADING = 0, 14
GROUP, TOPIC = "g", "t"
DEADLINE_S = 30


class Loads:
    """How long groups are being loaded, from the first request for their offsets on."""

    def __init__(self) -> None:
        self.duration_s = 0.0
        self.began_s: float | None = None

    def refuse(self) -> bool:
        """Whether to refuse a request now. The first request begins the load."""
        if self.began_s is None:
            self.began_s = time.monotonic()
        return time.monotonic() < self.began_s + self.duration_s


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Makes coordinators refuse to read offsets, as they do while they load a group."""
    made, call = Loads(), CoordinatorService.call

    async def refused(self: CoordinatorService, group_id: str, handler: Any, request: Any) -> Any:
        if isinstance(request, FetchRequest) and made.refuse():
            return refuse(request, ErrorCode.coordinator_load_in_progress)
        return await call(self, group_id, handler, request)

    monkeypatch.setattr(CoordinatorService, "call", refused)
    return made


@pytest.fixture
def client(in_process: SimpleNamespace) -> Iterator[Client]:
    with connect(in_process) as made:
        topic = {"name": TOPIC, "num_partitions": 2, "replication_factor": 1}
        assert made("CreateTopics", 7, topics=[topic], timeout=10_000).topics[0].error_code == NONE
        until(lambda: find(made) == NONE, DEADLINE_S, "a coordinator")
        yield made


def find(client: Client) -> int:
    return int(client("FindCoordinator", 1, key=GROUP, key_type=0).error_code)


def fetched(client: Client, *groups: str) -> list[tuple[int, list[int]]]:
    """The error and the committed offsets of each group."""
    asked = [{"group_id": each, "topics": [{"name": TOPIC, "partition_indexes": [0]}]} for each in groups]
    answered = client("OffsetFetch", 8, groups=asked).groups
    return [
        (
            int(group.error_code),
            [each.committed_offset for topic in group.topics for each in topic.partitions],
        )
        for group in answered
    ]


def test_offsets_are_returned_when_the_group_is_loaded(client: Client, loads: Loads) -> None:
    place = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    topics = [{"name": TOPIC, "partitions": [place]}]
    client("OffsetCommit", 8, group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics)
    loads.duration_s = 0.5
    assert fetched(client, GROUP) == [(NONE, [7])]
    assert loads.began_s is not None
    assert time.monotonic() >= loads.began_s + loads.duration_s


def test_a_load_that_takes_long_is_reported_once_for_all_groups(
    client: Client, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits one after the other would take longer than a client waits for a response."""
    monkeypatch.setattr(offset_fetch, "LOAD_WAIT_S", 1)
    loads.duration_s = 1_000
    groups = [f"g{number}" for number in range(100)]
    assert fetched(client, *groups) == [(LOADING, [])] * len(groups)


def test_members_of_the_consumer_protocol_wait_longer(
    client: Client, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of a classic member may end while its heartbeats wait."""
    monkeypatch.setattr(offset_fetch, "LOAD_WAIT_S", 0.3)
    loads.duration_s = 1.5
    asked = {"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    (classic,) = client("OffsetFetch", 9, groups=[asked]).groups
    (member,) = client("OffsetFetch", 9, groups=[{**asked, "member_id": "m", "member_epoch": 1}]).groups
    assert (classic.error_code, member.error_code) == (LOADING, NONE)


def test_a_broker_that_stops_does_not_wait_for_a_load(
    in_process: SimpleNamespace, client: Client, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_fetch, "LOAD_WAIT_S", 1_000)
    loads.duration_s = 1_000
    group = {"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    client.send("OffsetFetch", 8, groups=[group])
    until(lambda: loads.began_s is not None, DEADLINE_S, "the request")
    in_process.stop()
    assert [each.error_code for each in client.receive("OffsetFetch", 8).groups] == [LOADING]


def test_librdkafka_reads_although_its_assignment_grows_meanwhile(
    in_process: SimpleNamespace, client: Client, loads: Loads
) -> None:
    loads.duration_s = 2
    bootstrap = {"bootstrap.servers": f"{in_process.host}:{in_process.port}"}
    consumer = Consumer(
        {
            **bootstrap,
            "group.id": GROUP,
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 200,
        }
    )
    read: set[int] = set()

    def has_read_all() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            read.add(message.partition())
        return len(read) == 4

    try:
        consumer.subscribe([TOPIC])
        until(lambda: consumer.poll(0.1) is None and loads.began_s is not None, DEADLINE_S, "a member")
        admin = AdminClient(bootstrap)
        admin.create_partitions([NewPartitions(TOPIC, 4)])[TOPIC].result()
        producer = Producer(bootstrap)
        for partition in range(4):
            producer.produce(TOPIC, b"value", partition=partition)
        producer.flush()
        until(has_read_all, DEADLINE_S, "all partitions")
    finally:
        consumer.close()


def test_an_empty_transactional_id_is_refused_before_transactions_are_loaded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def loading(self: TransactionService, key: str, handler: Any, request: Any) -> Any:
        del self, key, handler, request
        return InitReply(ErrorCode.coordinator_load_in_progress)

    monkeypatch.setattr(TransactionService, "call", loading)
    assert [initialised(client, name) for name in ("t", "")] == [LOADING, ErrorCode.invalid_request.value]


def initialised(client: Client, transactional_id: str) -> int:
    made = client("InitProducerId", 4, transactional_id=transactional_id, transaction_timeout=60_000)
    return int(made.error_code)
