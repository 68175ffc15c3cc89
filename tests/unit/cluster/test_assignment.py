"""The leaders of partitions: determinism, few moves, and epochs that grow exactly when the leader changes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from korvet.cluster.assignment import Assignment, Broker, Leader

TOPICS = [("orders", 40), ("payments", 7), ("__consumer_offsets", 50)]
PLACES = [(topic, partition) for topic, count in TOPICS for partition in range(count)]


def broker(node_id: int, joined: int = 1) -> Broker:
    return Broker(node_id, "host", 9092 + node_id, joined)


def leaders(assignment: Assignment) -> dict[tuple[str, int], Leader]:
    return {place: assignment.leader(*place) for place in PLACES}


def test_one_broker_leads_all_since_it_came() -> None:
    alone = Assignment(4, [broker(3, joined=4)], left=[(1, 2), (2, 4)])
    assert alone.sole_leader == Leader(3, 4)
    assert set(leaders(alone).values()) == {Leader(3, 4)}
    assert alone.controller.node_id == 3


def test_the_choice_never_changes() -> None:
    # Brokers of two releases serve one keyspace during an upgrade: these must never change.
    three = Assignment(3, [broker(3, 3), broker(1), broker(2, 2)])
    chosen = [three.leader("orders", partition).node_id for partition in range(12)]
    assert chosen == [3, 1, 2, 2, 1, 1, 2, 3, 1, 1, 3, 1]
    assert [b.node_id for b in three.brokers] == [1, 2, 3]


def test_each_of_several_brokers_leads_some() -> None:
    counts = [0, 0, 0, 0]
    three = Assignment(1, [broker(1), broker(2), broker(3)])
    for leader in leaders(three).values():
        counts[leader.node_id] += 1
    assert min(counts[1:]) > len(PLACES) / 6


def test_when_a_broker_leaves_only_its_partitions_move() -> None:
    before = leaders(Assignment(3, [broker(1), broker(2, 2), broker(3, 3)]))
    after = leaders(Assignment(4, [broker(1), broker(3, 3)], left=[(2, 4)]))
    for place in PLACES:
        if before[place].node_id == 2:
            assert after[place].epoch == 4
        else:
            assert after[place] == before[place]


def test_a_joining_broker_takes_only_its_share() -> None:
    before = leaders(Assignment(2, [broker(1), broker(2, 2)]))
    after = leaders(Assignment(3, [broker(1), broker(2, 2), broker(7, 3)]))
    taken = [place for place in PLACES if after[place].node_id == 7]
    assert 0 < len(taken) < len(PLACES) * 2 / 3
    for place in PLACES:
        assert after[place] == (Leader(7, 3) if place in taken else before[place])


def test_a_returning_broker_leads_in_a_new_epoch() -> None:
    before = leaders(Assignment(2, [broker(1), broker(2, 2)]))
    between = leaders(Assignment(3, [broker(1)], left=[(2, 3)]))
    after = leaders(Assignment(4, [broker(1), broker(2, 4)]))
    for place in PLACES:
        assert after[place].node_id == before[place].node_id
        if before[place].node_id == 2:
            assert [between[place], after[place]] == [Leader(1, 3), Leader(2, 4)]
        else:
            assert after[place] == between[place] == before[place]


def test_a_partition_that_is_yielded_goes_round_and_no_other_moves() -> None:
    brokers = {node_id: broker(node_id, node_id) for node_id in (1, 2, 3)}
    before = leaders(Assignment(3, brokers.values()))
    place = PLACES[0]
    led = []
    for version in range(4, 10):
        former = brokers[before[place].node_id]
        led.append(former.node_id)
        yields = Assignment(version - 1, brokers.values()).yields_of(former.node_id, *place)
        brokers[former.node_id] = replace(former, joined=version, yields=yields)
        after = leaders(Assignment(version, brokers.values()))
        assert after.pop(place).epoch == version
        for each, leader in after.items():
            moved = leader.node_id == former.node_id
            assert leader == (Leader(former.node_id, version) if moved else before[each])
        before = leaders(Assignment(version, brokers.values()))
    assert sorted(led[:3]) == [1, 2, 3]
    assert led[3:] == led[:3]


def test_the_only_broker_yields_nothing() -> None:
    assert Assignment(1, [broker(1)]).yields_of(1, *PLACES[0]) == ()


def test_no_broker_is_no_assignment() -> None:
    with pytest.raises(ValueError, match="needs a broker"):
        Assignment(1, [])
