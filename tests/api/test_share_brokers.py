"""Share groups of two brokers: the leader of a partition asks the coordinator of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from korvet.offsets.share_state import (
    AVAILABLE,
    ShareSnapshot,
    ShareStateKey,
    StateBatch,
    decode_share_value,
    encode_share_key,
    share_state_partition_for,
)
from tests.api.asking import Client, connect
from tests.api.batches import batch, read
from tests.api.test_fetch import fetch
from tests.api.test_produce import put
from tests.api.test_share import REJECT, RELEASE, UNKNOWN_SERVER_ERROR, Member, partitions, runs
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC, PARTITIONS = "orders", 8
GROUP_ID_NOT_FOUND = 69


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[int, KorvetServer]]:
    """Two brokers by their node IDs."""
    with KorvetServer() as one:
        other = KorvetServer("--node-id=2", redis_url=f"unix://{one.socket_path()}")
        try:
            other.start()
            with connect(one) as ask:
                until(lambda: len(ask("DescribeCluster", 0).brokers) == 2, 20, "both brokers")
                topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}
                assert ask("CreateTopics", 7, topics=[topic], timeout=10_000).topics[0].error_code == 0
            yield {1: one, 2: other}
        finally:
            other.stop()
            other.discard()


def leaders(ask: Client, topic: str = TOPIC) -> tuple[Any, dict[int, int]]:
    """The topic's ID, and the node that leads each partition."""
    (found,) = ask("Metadata", 12, topics=[{"name": topic, "topic_id": None}]).topics
    return found.topic_id, {part.partition_index: part.leader_id for part in found.partitions}


def coordinated(ask: Client, group: str, node: int) -> str:
    """The name of a group that the broker with this node ID coordinates."""

    def node_of(name: str) -> int:
        found = ask("FindCoordinator", 1, key=name, key_type=0)
        return -1 if found.error_code else int(found.node_id)

    until(lambda: node_of(group) > 0, 20, "coordinators")
    return next(each for each in (f"{group}-{number}" for number in range(200)) if node_of(each) == node)


@pytest.mark.parametrize("coordinator", [1, 2])
@pytest.mark.parametrize("leader", [1, 2])
def test_a_leader_asks_the_coordinator(
    servers: dict[int, KorvetServer], group: str, coordinator: int, leader: int
) -> None:
    with connect(servers[coordinator]) as ask, connect(servers[leader]) as produce:
        name = coordinated(ask, group, coordinator)
        until(lambda: leader in leaders(ask)[1].values(), 20, "the broker leads a partition")
        topic_id, by_partition = leaders(ask)
        index = next(index for index, node in by_partition.items() if node == leader)
        end = put(produce, TOPIC, batch(), partition=index).base_offset + 1
        topics = [{"topic_name": TOPIC, "partitions": [{"partition_index": index, "start_offset": end}]}]

        def altered() -> bool:
            return not ask("AlterShareGroupOffsets", 0, group_id=name, topics=topics).error_code

        until(altered, 20, "the coordinator has loaded")
        member, stranger = Member(servers[leader], name), Member(servers[leader], f"{name}-nobody")
        with member.client, stranger.client:
            assert runs(member.fetch((topic_id, index))) == []
            first = put(produce, TOPIC, batch(), partition=index).base_offset
            assert runs(member.fetch(max_wait=20_000)) == [(first, first, 1)]
            (refused,) = partitions(stranger.fetch((topic_id, index)))
            assert refused.error_code == UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("coordinator", [1, 2])
def test_a_config_counts_at_once(servers: dict[int, KorvetServer], group: str, coordinator: int) -> None:
    """A group begins as its config says, also if the other broker has changed it just now."""
    with connect(servers[coordinator]) as ask, connect(servers[3 - coordinator]) as other:
        name = coordinated(ask, group, coordinator)
        leader = leaders(ask)[1][0]
        with connect(servers[leader]) as produce:
            first = put(produce, TOPIC, batch(), partition=0).base_offset
        absent = {"group_id": name, "member_id": "nobody", "member_epoch": 1}
        until(
            lambda: ask("ShareGroupHeartbeat", 1, **absent).error_code == GROUP_ID_NOT_FOUND,
            20,
            "the coordinator has loaded",
        )
        changed = [{"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}]
        resource = {"resource_type": 32, "resource_name": name, "configs": changed}
        assert not other("IncrementalAlterConfigs", 1, resources=[resource]).responses[0].error_code
        fields = {"group_id": name, "member_id": "m"}
        joined = ask("ShareGroupHeartbeat", 1, subscribed_topic_names=[TOPIC], member_epoch=0, **fields)
        assert joined.error_code == 0

        def start() -> int | None:
            (found,) = ask("DescribeShareGroupOffsets", 1, groups=[{"group_id": name}]).groups
            offsets = [part.start_offset for topic in found.topics for part in topic.partitions]
            return offsets[0] if len(offsets) == PARTITIONS else None

        assert until(lambda: (found := start()) is not None and (found,), 20, "states")[0] <= first
        ask("ShareGroupHeartbeat", 1, member_epoch=-1, **fields)


@pytest.mark.parametrize("leader", [1, 2])
def test_dead_letters_of_another_leader(servers: dict[int, KorvetServer], group: str, leader: int) -> None:
    """The partition of a record and that of its dead letter have different leaders."""
    name, kept = f"{group}-{leader}", [f"dlq.{group}-{leader}-{number}" for number in range(24)]
    with connect(servers[leader]) as ask:
        enable = [{"name": "errors.deadletterqueue.group.enable", "value": "true"}]
        common = {"num_partitions": 1, "replication_factor": 1, "configs": enable}
        topics: list[dict[str, Any]] = [{"name": each, **common} for each in kept]
        made = ask("CreateTopics", 7, topics=topics, timeout=10_000).topics
        assert not any(each.error_code for each in made)

        def apart() -> list[str]:
            return [each for each in kept if leaders(ask, each)[1][0] == 3 - leader]

        letters = until(apart, 20, "a topic of the other leader")[0]
        until(lambda: leader in leaders(ask)[1].values(), 20, "the broker leads a partition")
        index = next(index for index, node in leaders(ask)[1].items() if node == leader)
        topic_id, _ = leaders(ask)
        changed = [{"name": "errors.deadletterqueue.topic.name", "config_operation": 0, "value": letters}]
        resource = {"resource_type": 32, "resource_name": name, "configs": changed}
        assert not ask("IncrementalAlterConfigs", 1, resources=[resource]).responses[0].error_code
        end = put(ask, TOPIC, batch(), partition=index).base_offset + 1
        topics = [{"topic_name": TOPIC, "partitions": [{"partition_index": index, "start_offset": end}]}]

        def altered() -> bool:
            for server in servers.values():
                with connect(server) as coordinator:
                    if not coordinator("AlterShareGroupOffsets", 0, group_id=name, topics=topics).error_code:
                        return True
            return False

        until(altered, 20, "the coordinator has loaded")
        member = Member(servers[leader], name)
        with member.client, connect(servers[3 - leader]) as other:
            assert runs(member.fetch((topic_id, index))) == []
            first = put(ask, TOPIC, batch(), partition=index).base_offset
            assert runs(member.fetch(max_wait=20_000)) == [(first, first, 1)]
            member.fetch((topic_id, index, (first, first, [REJECT])))

            def written() -> bool:
                part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
                asked = [{"name": letters, "partitions": [part]}]
                (found,) = other("ListOffsets", 4, replica_id=-1, isolation_level=0, topics=asked).topics
                return bool(found.partitions[0].offset > 0)

            until(written, 20, "the dead letter")


@pytest.mark.parametrize("leader", [1, 2])
def test_states_are_written_by_another_leader(
    servers: dict[int, KorvetServer], group: str, leader: int
) -> None:
    """The partition of the records and that of the group's state have different leaders."""
    states = "__share_group_state"
    with connect(servers[leader]) as ask, connect(servers[3 - leader]) as other:
        until(lambda: leader in leaders(ask)[1].values(), 20, "the broker leads a partition")
        topic_id, by_partition = leaders(ask)
        index = next(index for index, node in by_partition.items() if node == leader)
        end = put(ask, TOPIC, batch(), partition=index).base_offset + 1
        topics = [{"topic_name": TOPIC, "partitions": [{"partition_index": index, "start_offset": end}]}]

        def altered(name: str) -> bool:
            for server in servers.values():
                with connect(server) as coordinator:
                    if not coordinator("AlterShareGroupOffsets", 0, group_id=name, topics=topics).error_code:
                        return True
            return False

        # The first state creates the topic.
        until(lambda: altered(f"{group}-{leader}-first"), 20, "the coordinator has loaded")
        until(lambda: len(leaders(other, states)[1]) == 50, 20, "the topic of states")

        def place(name: str) -> tuple[ShareStateKey, int]:
            key = ShareStateKey(name, topic_id.bytes, index)
            return key, share_state_partition_for(key)

        names = (f"{group}-{leader}-{number}" for number in range(200))
        name = next(each for each in names if leaders(ask, states)[1][place(each)[1]] == 3 - leader)
        until(lambda: altered(name), 20, "the coordinator has loaded")
        key, number = place(name)
        member = Member(servers[leader], name)
        with member.client:
            assert runs(member.fetch((topic_id, index))) == []
            first = put(ask, TOPIC, batch(), partition=index).base_offset
            assert runs(member.fetch(max_wait=20_000)) == [(first, first, 1)]
            (done,) = partitions(member.acknowledge((topic_id, index, (first, first, [RELEASE]))))
            assert not done.error_code

        encoded, wanted = encode_share_key(key), StateBatch(first, first, AVAILABLE, 1)

        def written() -> bool:
            (part,) = fetch(other, 12, (states, number, 0))
            values = [value for _, raw_key, value in read(part.records) if raw_key == encoded]
            snapshot = decode_share_value(key, values[-1]) if values else None
            return isinstance(snapshot, ShareSnapshot) and wanted in snapshot.state_batches

        until(written, 30, "the snapshot")
