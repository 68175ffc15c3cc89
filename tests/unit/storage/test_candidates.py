"""What a failure can lose if another replica than those attached now may be promoted."""

from __future__ import annotations

import msgspec
import pytest

from korvet.storage.durability import Failure, Loss, Outlook, Setup, outlooks
from korvet.storage.link.barrier import Level
from korvet.storage.link.server_facts import ServerFacts, facts_of
from korvet.storage.link.slots import count_replicas

TWO, THREE = Level(1, False), Level(2, False)
REPLICA = "slave0:ip=10.0.0.1,port=6379,state=online,offset=5,lag=1\r\n"
PAIR = facts_of(f"connected_slaves:1\r\n{REPLICA}".encode(), {})
# A replica is attached, the other one is not.
CLUSTER = msgspec.structs.replace(PAIR, cluster=True, named_replicas=2)
TAKEOVERS = [Failure.PRIMARY, Failure.SPLIT]


def by_sentinels(level: Level, named_replicas: int) -> Setup:
    return Setup({level: 1}, sentinel=True, named_replicas=named_replicas)


def outlook(failure: Failure, facts: ServerFacts, setup: Setup) -> Outlook:
    (found,) = [found for found in outlooks(facts, setup) if found.failure is failure]
    return found


@pytest.mark.parametrize("failure", [*TAKEOVERS, Failure.PLANNED])
def test_a_replica_that_only_the_sentinels_know_may_take_over(failure: Failure) -> None:
    found = outlook(failure, PAIR, by_sentinels(TWO, 2))
    assert found.loss is Loss.SOME
    assert "set min.insync.replicas 3" in found.advice
    assert "after SENTINEL RESET of replicas that are gone for good" in found.advice
    kept = outlook(failure, PAIR, by_sentinels(THREE, 2))
    assert kept.loss is Loss.NOTHING
    assert "attached now" not in kept.text


@pytest.mark.parametrize("failure", TAKEOVERS)
def test_a_replica_that_only_the_cluster_knows_may_take_over(failure: Failure) -> None:
    found = outlook(failure, CLUSTER, Setup({TWO: 1}))
    assert found.loss is Loss.SOME
    assert "after CLUSTER FORGET of replicas that are gone for good" in found.advice
    assert outlook(failure, CLUSTER, Setup({THREE: 1})).loss is Loss.NOTHING


def test_a_replica_that_is_not_attached_is_a_replica() -> None:
    alone = facts_of(b"connected_slaves:0\r\n", {})
    assert outlook(Failure.PRIMARY, alone, by_sentinels(TWO, 0)).loss is Loss.EVERYTHING
    assert "what the replica that takes over has not received" in (
        outlook(Failure.PRIMARY, alone, by_sentinels(Level(0, False), 1)).text
    )


@pytest.mark.parametrize("failure", TAKEOVERS)
def test_without_names_the_replicas_that_are_attached_now_count(failure: Failure) -> None:
    found = outlook(failure, PAIR, Setup({TWO: 1}))
    assert found.loss is Loss.NOTHING
    assert found.condition == "if the replica attached now takes over"
    assert found.text.startswith(
        f"nothing that was acknowledged with acks=all is lost {found.condition}; with"
    )
    second = REPLICA.replace("slave0", "slave1")
    both = facts_of(f"connected_slaves:2\r\n{REPLICA}{second}".encode(), {})
    condition = outlook(failure, both, Setup({THREE: 1})).condition
    assert condition == "if one of the 2 replicas attached now takes over"


def test_replicas_that_the_cluster_names() -> None:
    nodes = (
        b"a1 10.0.0.1:1@2 myself,master - 0 0 1 connected 0-8191\n"
        b"b1 10.0.0.2:1@2,host master - 0 0 2 connected 8192-16383\n"
        b"a2 10.0.0.3:1@2 slave a1 0 0 1 connected\n"
        b"a3 10.0.0.4:1@2 slave,fail a1 0 0 1 disconnected\n"
        b"b2 10.0.0.5:1@2 slave b1 0 0 2 connected\n"
    )
    assert count_replicas(nodes) == 2
    assert count_replicas(b"") == 0
