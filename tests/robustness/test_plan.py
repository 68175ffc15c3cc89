"""Plans: the same on every machine, and every fault fits its servers and its time."""

from __future__ import annotations

import pytest

from robustness import plan
from robustness.dice import Dice
from robustness.plan import COPIES, FAULT_KINDS, KINDS, LAST_FAULT_BEFORE_END_MS, TOPOLOGIES, Focus

SEEDS = range(300)
DURATION_MS = 60_000
PLANS = [plan.make(seed, DURATION_MS) for seed in SEEDS]


def test_a_seed_stands_for_one_plan() -> None:
    assert [plan.make(seed, DURATION_MS) for seed in SEEDS] == PLANS
    assert len({plan.describe(one) for one in PLANS}) == len(PLANS)


def test_choices_are_the_same_on_every_machine() -> None:
    dice = Dice(7, "faults")
    assert [dice.between(1, 1_000_000) for _ in range(4)] == [899570, 748298, 787677, 584981]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shorter_run_has_the_first_faults(seed: int) -> None:
    short = plan.make(seed, DURATION_MS // 2).faults
    assert PLANS[seed].faults[: len(short)] == short


def test_faults_fit_their_topology_and_end_before_the_run() -> None:
    for one in PLANS:
        for fault in one.faults:
            assert one.topology in KINDS[fault.kind].topologies
            assert fault.end_ms <= DURATION_MS - LAST_FAULT_BEFORE_END_MS


def test_all_kinds_of_faults_and_topologies_occur() -> None:
    assert {fault.kind for one in PLANS for fault in one.faults} == {kind.name for kind in FAULT_KINDS}
    assert {one.topology for one in PLANS} == set(TOPOLOGIES)


def test_every_run_has_acknowledgements_that_no_fault_may_break() -> None:
    for one in PLANS:
        kept = [topic for topic in one.topics if -1 in one.kept_acks(topic)]
        assert any(producer.acks == -1 and kept[0].name in producer.topics for producer in one.producers)
        lossy = [topic for topic in one.topics if one.kept_acks(topic) == ()]
        assert all(topic.min_insync_replicas < COPIES[one.topology] for topic in lossy)


def test_runs_that_lose_nothing_keep_acks_of_the_primary_alone() -> None:
    for one in PLANS:
        if one.topology == "alone":
            assert not one.may_lose
        if not one.may_lose:
            assert {one.kept_acks(topic) for topic in one.topics} == {(1, -1)}


def test_a_focus_limits_topology_faults_and_lag() -> None:
    focus = Focus("sentinel", ("failover_lossy", "pause_primary"), 1_500)
    plans = [plan.make(seed, DURATION_MS, focus) for seed in SEEDS]
    assert {(one.topology, one.replica_lag_ms) for one in plans} == {("sentinel", 1_500)}
    assert {fault.kind for one in plans for fault in one.faults} == set(focus.faults)


def test_a_focus_on_faults_takes_the_topologies_that_have_them() -> None:
    plans = [plan.make(seed, DURATION_MS, Focus(faults=("split_brain", "disk_full"))) for seed in SEEDS]
    assert {one.topology for one in plans} == {"alone", "pair", "sentinel"}
    assert all(one.faults for one in plans)
    assert all(one.replica_lag_ms == 0 for one in plans if one.topology == "alone")


def test_faults_that_a_topology_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="no split_brain on cluster"):
        Focus("cluster", ("split_brain",))
