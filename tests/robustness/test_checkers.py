"""Checkers on random histories: those of a correct model pass, and every kind of change to them is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustness import history
from robustness.checkers import check
from robustness.dice import Dice
from robustness.model_log import Model
from robustness.mutants import MUTATIONS

STEPS = 80
# Histories that each mutation must change, and the most that are made for it.
CHANGED = 30
TRIED = 2_000


def random_history(seed: int, steps: int = STEPS) -> list[history.Event]:
    model = Model(Dice(seed))
    for _ in range(steps):
        model.step()
    return model.history()


@given(seed=st.integers(0, 1 << 32), steps=st.integers(0, 200))
def test_correct_histories_pass(seed: int, steps: int) -> None:
    found = [violation for violation in check(random_history(seed, steps)) if not violation.is_note]
    assert found == []


@given(seed=st.integers(0, 1 << 32))
def test_a_history_is_the_same_after_it_was_written(seed: int) -> None:
    events = random_history(seed)
    assert [history.decode(history.encode(event)) for event in events] == events


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_is_found(name: str) -> None:
    mutation, kinds = MUTATIONS[name]
    changed = 0
    for seed in range(TRIED):
        events = mutation(random_history(seed), Dice(seed, name))
        if events is None:
            continue
        found = {violation.kind for violation in check(events) if not violation.is_note}
        assert found & kinds, f"seed {seed}: {found}"
        changed += 1
        if changed == CHANGED:
            return
    pytest.fail(f"only {changed} of {TRIED} histories could be changed")
