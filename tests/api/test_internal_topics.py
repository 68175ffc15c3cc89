"""`__consumer_offsets` and `__transaction_state` as topics: before their first use, and their configs."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from korvet.offsets.partition import partition_for
from tests.api.asking import connect
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.api.asking import Client
    from tests.support.servers import KorvetServer

pytestmark = pytest.mark.clients

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
NONE, UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_EXISTS, INVALID_CONFIG = 0, 3, 17, 36, 40
WAIT_S = 20
TOPIC_RESOURCE, SET, DELETE = 2, 0, 1
GROUP = "testgroup"

Start = "Callable[..., tuple[KorvetServer, Client]]"


@pytest.fixture
def start(own_korvet: Callable[..., KorvetServer]) -> Iterator[Start]:
    """Starts a server with unused internal topics, and a client."""
    clients: list[Client] = []

    def begin(*options: str) -> tuple[KorvetServer, Client]:
        server = own_korvet(*options)
        clients.append(connect(server))
        return server, clients[-1]

    yield begin
    for client in clients:
        client.raw.socket.close()


def metadata(client: Client, name: str, *, create: bool = False) -> tuple[int, bool, int]:
    """Returns error code, whether the topic is internal, and its number of partitions."""
    found = client("Metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=create).topics[0]
    return int(found.error_code), found.is_internal, len(found.partitions)


def configs(client: Client, name: str) -> dict[str, str]:
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
    found = client("DescribeConfigs", 4, resources=[resource]).results[0]
    assert found.error_code == NONE
    return {each.name: each.value for each in found.configs}


def create(client: Client, name: str, partitions: int, *, validate_only: bool = False, **options: str) -> int:
    """Send CreateTopics with configs (underscores instead of dots). Returns the error code."""
    own = [{"name": key.replace("_", "."), "value": value} for key, value in options.items()]
    asked = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": own}
    return int(
        client("CreateTopics", 7, topics=[asked], timeout=20_000, validate_only=validate_only)
        .topics[0]
        .error_code
    )


def commit(client: Client, offset: int) -> None:
    part = {"partition_index": 0, "committed_offset": offset}
    fields: dict[str, Any] = {"group_id": GROUP, "topics": [{"name": "orders", "partitions": [part]}]}

    def committed() -> bool:
        answer = client("OffsetCommit", 8, generation_id=-1, **fields)
        return answer.topics[0].partitions[0].error_code == NONE

    until(committed, WAIT_S, "the group's coordinator takes a commit")


def fetched(client: Client) -> int:
    answer = client("OffsetFetch", 7, group_id=GROUP, topics=None, require_stable=False)
    return int(answer.topics[0].partitions[0].committed_offset)


def batches(client: Client, name: str, partition: int) -> list[tuple[int, int, int]]:
    """Returns producer ID, epoch and base sequence of each batch."""
    asked = {"partition": partition, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    topics = [{"topic": name, "partitions": [asked]}]
    answer = client("Fetch", 12, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    data, at, found = bytes(answer.responses[0].partitions[0].records), 0, []
    while at < len(data):
        found.append(struct.unpack_from(">qhi", data, at + 43))
        at += 12 + int(struct.unpack_from(">i", data, at + 8)[0])
    return found


def alter(client: Client, name: str, key: str, value: str, operation: int = SET) -> int:
    config = {"name": key, "config_operation": operation, "value": value}
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": [config]}
    return int(client("IncrementalAlterConfigs", 1, resources=[resource]).responses[0].error_code)


def test_the_setting_gives_the_partitions_that_a_coordinators_topic_is_made_with(start: Start) -> None:
    options = ("--set", "offsets.topic.num.partitions=7", "--set", "transaction.state.log.num.partitions=3")
    server, client = start(*options)
    assert metadata(client, OFFSETS) == (NONE, True, 7)
    assert metadata(client, TRANSACTIONS) == (UNKNOWN_TOPIC, True, 0), "it is internal before it exists"
    assert metadata(client, TRANSACTIONS, create=True) == (NONE, True, 3)
    assert create(client, "orders", 1) == NONE
    commit(client, 5)
    assert server.stop() == 0
    server.restart()
    again = connect(server)
    assert fetched(again) == 5
    again.raw.socket.close()


def test_an_unused_offsets_topic_is_created_as_a_client_asks(start: Start) -> None:
    server, client = start()
    assert create(client, OFFSETS, 9, validate_only=True) == NONE
    assert metadata(client, OFFSETS) == (NONE, True, 50)
    assert create(client, OFFSETS, 9, segment_bytes="2000000", cleanup_policy="delete") == INVALID_CONFIG
    assert create(client, OFFSETS, 9, segment_bytes="2000000") == NONE
    assert metadata(client, OFFSETS) == (NONE, True, 9)
    shown = configs(client, OFFSETS)
    assert (shown["segment.bytes"], shown["cleanup.policy"]) == ("2000000", "compact")
    assert create(client, OFFSETS, 4) == NONE, "it is still unused"

    assert create(client, "orders", 1) == NONE
    commit(client, 5)
    assert create(client, OFFSETS, 9) == TOPIC_EXISTS
    assert metadata(client, OFFSETS) == (NONE, True, 4)
    commit(client, 6)
    assert fetched(client) == 6
    assert server.stop() == 0
    server.restart()
    again = connect(server)
    assert metadata(again, OFFSETS) == (NONE, True, 4)
    assert fetched(again) == 6
    again.raw.socket.close()


def test_a_transactions_topic_that_a_client_makes_is_the_coordinators(start: Start) -> None:
    _, client = start()
    assert create(client, TRANSACTIONS, 3) == NONE
    assert metadata(client, TRANSACTIONS) == (NONE, True, 3)
    assert configs(client, TRANSACTIONS)["cleanup.policy"] == "compact"

    def given() -> bool:
        answer = client("InitProducerId", 4, transactional_id="t", transaction_timeout=60_000, producer_id=-1)
        return answer.error_code == NONE

    until(given, WAIT_S, "the transaction's coordinator gives a producer id")


def test_configs_of_an_internal_topic_are_kafkas(start: Start) -> None:
    _, client = start()
    assert metadata(client, TRANSACTIONS, create=True)[0] == NONE
    for name, compression in ((OFFSETS, "producer"), (TRANSACTIONS, "uncompressed")):
        shown = configs(client, name)
        assert shown["segment.bytes"] == "104857600"
        assert shown["cleanup.policy"] == "compact"
        assert shown["compression.type"] == compression
    assert alter(client, OFFSETS, "segment.bytes", "1048575") == INVALID_CONFIG
    assert alter(client, OFFSETS, "segment.bytes", "1048576") == NONE
    assert alter(client, OFFSETS, "cleanup.policy", "delete") == INVALID_CONFIG

    # AlterConfigs resets configs that it doesn't name, but the topic always stays compacted.
    resource = {
        "resource_type": TOPIC_RESOURCE,
        "resource_name": OFFSETS,
        "configs": [{"name": "retention.ms", "value": "8888"}],
    }
    assert client("AlterConfigs", 1, resources=[resource]).responses[0].error_code == NONE
    shown = configs(client, OFFSETS)
    assert (shown["retention.ms"], shown["segment.bytes"]) == ("8888", "1073741824")
    assert shown["cleanup.policy"] == "compact"


def test_batches_of_the_group_coordinator_have_the_base_sequence_of_kafkas(start: Start) -> None:
    _, client = start()
    assert create(client, "orders", 1) == NONE
    commit(client, 5)
    assert set(batches(client, OFFSETS, partition_for(GROUP))) == {(-1, -1, 0)}

    def given() -> bool:
        answer = client("InitProducerId", 4, transactional_id="t", transaction_timeout=60_000, producer_id=-1)
        return answer.error_code == NONE

    until(given, WAIT_S, "a producer id")
    states = [batch for number in range(50) for batch in batches(client, TRANSACTIONS, number)]
    assert set(states) == {(-1, -1, -1)}


def test_records_of_an_internal_topic_cannot_be_deleted(start: Start) -> None:
    _, client = start()
    assert metadata(client, TRANSACTIONS, create=True)[0] == NONE
    partition = {"partition_index": 0, "offset": -1}
    topics = [{"name": name, "partitions": [partition]} for name in (OFFSETS, TRANSACTIONS)]
    answer = client("DeleteRecords", 2, topics=topics, timeout=5000)
    assert [each.partitions[0].error_code for each in answer.topics] == [INVALID_TOPIC, INVALID_TOPIC]
