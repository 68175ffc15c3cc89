"""The simple assignor of share groups: every partition has members, evenly, and few of them change."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from korvet.groups.share.assignor import Sharer, assign_simple

if TYPE_CHECKING:
    from korvet.groups.consumer.assignors import Target

TOPICS = (b"a" * 16, b"b" * 16, b"c" * 16)
COUNTS = st.fixed_dictionaries(dict.fromkeys(TOPICS, st.integers(0, 7)))
NAMES = st.lists(st.text("mnop", min_size=1, max_size=3), unique=True, max_size=12)


def assign(
    names: list[str], counts: dict[bytes, int], before: dict[str, Target] | None = None
) -> dict[str, Target]:
    members = [Sharer(name, frozenset(TOPICS), (before or {}).get(name, {})) for name in names]
    return assign_simple(members, {topic: range(count) for topic, count in counts.items()})


def users(targets: dict[str, Target]) -> Counter[tuple[bytes, int]]:
    return Counter(
        (topic, number)
        for target in targets.values()
        for topic, numbers in target.items()
        for number in numbers
    )


def sizes(targets: dict[str, Target]) -> list[int]:
    return [sum(map(len, target.values())) for target in targets.values()]


@given(NAMES, COUNTS)
def test_new_members_share_all_partitions_evenly(names: list[str], counts: dict[bytes, int]) -> None:
    targets = assign(names, counts)
    assert targets.keys() == set(names)
    total = sum(counts.values())
    found = users(targets)
    assert len(found) == (total if names else 0)
    if names and total:
        assert max(found.values()) <= -(-len(names) // total)
        assert max(sizes(targets)) - min(sizes(targets)) <= 1


@given(NAMES, NAMES, COUNTS, COUNTS)
def test_every_partition_has_a_member_after_changes(
    names: list[str], later: list[str], counts: dict[bytes, int], grown: dict[bytes, int]
) -> None:
    before = assign(names, counts)
    targets = assign(later, grown, before)
    total = sum(grown.values())
    found = users(targets)
    assert len(found) == (total if later else 0)
    if later and total:
        assert max(found.values()) <= -(-len(later) // total)
    if 0 < len(later) <= total:
        assert max(sizes(targets)) - min(sizes(targets)) <= 1


@given(NAMES, COUNTS)
def test_nothing_changes_without_a_reason(names: list[str], counts: dict[bytes, int]) -> None:
    before = assign(names, counts)
    assert assign(names, counts, before) == before
    assert assign(names[::-1], counts, before) == before


@given(
    st.dictionaries(st.text("mnop", min_size=1, max_size=3), st.frozensets(st.sampled_from(TOPICS))), COUNTS
)
def test_members_get_partitions_of_their_own_topics(
    subscriptions: dict[str, frozenset[bytes]], counts: dict[bytes, int]
) -> None:
    members = [Sharer(name, topics, {}) for name, topics in subscriptions.items()]
    targets = assign_simple(members, {topic: range(count) for topic, count in counts.items()})
    assert all(target.keys() <= subscriptions[name] for name, target in targets.items())
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert users(targets).keys() == {(topic, number) for topic in wanted for number in range(counts[topic])}


def test_a_second_member_takes_half_of_the_first() -> None:
    topic = TOPICS[0]
    first = assign(["m"], {topic: 6})
    both = assign(["m", "n"], {topic: 6}, first)
    assert both == {"m": {topic: frozenset({0, 1, 2})}, "n": {topic: frozenset({3, 4, 5})}}


def test_more_members_than_partitions_share_them() -> None:
    topic = TOPICS[0]
    targets = assign(["m", "n", "o"], {topic: 2})
    assert users(targets) == {(topic, 0): 2, (topic, 1): 2}
    assert sizes(targets) == [2, 1, 1]
