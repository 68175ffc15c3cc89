"""The server-side assignors: everything is assigned once, to a reader, evenly, and little of it moves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.groups.consumer.assignors import ASSIGNORS, AssignedMember, assign_range, assign_uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.groups.consumer.assignors import Target

TOPICS = [bytes([number]) * 16 for number in range(4)]
A, B, C, _ = TOPICS


def member(
    name: str,
    *topics: bytes,
    instance: str | None = None,
    target: Mapping[bytes, frozenset[int]] | None = None,
) -> AssignedMember:
    return AssignedMember(name, instance, frozenset(topics), target or {})


def sizes(targets: dict[str, Target]) -> dict[str, int]:
    return {name: sum(map(len, target.values())) for name, target in targets.items()}


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[AssignedMember], dict[bytes, int]]:
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7), max_size=4))
    targets = st.dictionaries(
        st.sampled_from(TOPICS), st.frozensets(st.integers(0, 8), min_size=1), max_size=3
    )
    members = []
    taken: set[tuple[bytes, int]] = set()
    for number in range(draw(st.integers(0, 6))):
        target = {}
        for topic, numbers in draw(targets).items():
            free = frozenset(each for each in numbers if (topic, each) not in taken)
            taken |= {(topic, each) for each in free}
            target[topic] = free
        topics = draw(st.frozensets(st.sampled_from(TOPICS)))
        instance = draw(st.sampled_from([None, f"i{9 - number}"]))
        members.append(AssignedMember(f"m{number}", instance, topics, target))
    return members, {topic: counts[topic] for topic in counts if any(topic in m.topics for m in members)}


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=50)
@given(group=groups())
def test_all_is_assigned_once_and_to_readers(
    name: str, group: tuple[list[AssignedMember], dict[bytes, int]]
) -> None:
    members, counts = group
    targets = ASSIGNORS[name](members, counts)
    assert targets.keys() == {each.member_id for each in members}
    given_out = Counter(
        (topic, number)
        for target in targets.values()
        for topic, numbers in target.items()
        for number in numbers
    )
    assert given_out == Counter((topic, number) for topic in counts for number in range(counts[topic]))
    assert all(set(targets[each.member_id]) <= each.topics for each in members)


@settings(max_examples=50)
@given(group=groups())
def test_uniform_leaves_nobody_two_behind_one_that_could_give(
    group: tuple[list[AssignedMember], dict[bytes, int]],
) -> None:
    members, counts = group
    targets = assign_uniform(members, counts)
    loads = sizes(targets)
    for rich in members:
        for poor in members:
            if set(targets[rich.member_id]) & poor.topics:
                assert loads[rich.member_id] <= loads[poor.member_id] + 1


@settings(max_examples=50)
@given(group=groups())
def test_uniform_changes_nothing_when_asked_again(
    group: tuple[list[AssignedMember], dict[bytes, int]],
) -> None:
    members, counts = group
    targets = assign_uniform(members, counts)
    again = [
        AssignedMember(each.member_id, each.instance_id, each.topics, targets[each.member_id])
        for each in members
    ]
    assert assign_uniform(again, counts) == targets


def test_uniform_moves_no_more_than_it_must():
    before = {A: frozenset(range(6))}
    targets = assign_uniform([member("one", A, target=before), member("two", A)], {A: 6})
    assert targets == {"one": {A: frozenset({0, 1, 2})}, "two": {A: frozenset({3, 4, 5})}}
    unlike = assign_uniform([member("one", A, B, target=before), member("two", A)], {A: 6, B: 2})
    assert sizes(unlike) == {"one": 4, "two": 4}
    assert unlike["one"][A] < before[A]


def test_range_is_the_same_for_topics_with_alike_counts():
    members = [member("z", A, B, instance="1"), member("a", A, B), member("b", A)]
    targets = assign_range(members, {A: 7, B: 7})
    assert targets["z"] == {A: frozenset({0, 1, 2}), B: frozenset({0, 1, 2, 3})}
    assert targets["a"] == {A: frozenset({3, 4}), B: frozenset({4, 5, 6})}
    assert targets["b"] == {A: frozenset({5, 6})}
