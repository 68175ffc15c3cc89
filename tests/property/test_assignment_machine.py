"""Brokers that join, leave, return, and yield partitions: every version agrees with the history of each
partition.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from korvet.cluster.assignment import Assignment, Broker, Leader

PLACES = [(topic, partition) for topic in ("a", "b") for partition in range(6)]
YIELDED = PLACES[0]
KINDS = ["come", "leave", "replace", "yield"]
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 5)), max_size=30)


class _History(NamedTuple):
    """The content of a registry: live brokers with the version of their join, and the brokers that left
    in each version.
    """

    joined: dict[int, int]
    left: dict[int, int]
    yields: dict[int, tuple[tuple[str, int], ...]]

    def assignment(self, version: int) -> Assignment:
        first = min(self.joined.values())
        brokers = [
            Broker(node_id, "h", node_id, since, yields=self.yields.get(node_id, ()))
            for node_id, since in self.joined.items()
        ]
        # As the registry does, forget brokers that left before any live broker joined.
        return Assignment(version, brokers, [each for each in self.left.items() if each[1] > first])


@given(EVENTS)
def test_leaders_change_only_where_they_must_and_epochs_say_when(events: list[tuple[str, int]]) -> None:
    history = _History({3: 1}, {}, {})
    version = 1
    known = {place: history.assignment(version).leader(*place) for place in PLACES}
    assert set(known.values()) == {Leader(3, 1)}
    for kind, node_id in events:
        there = node_id in history.joined
        if there == (kind == "come") or (kind == "leave" and len(history.joined) == 1):
            continue
        version += 1
        yielded = YIELDED if kind == "yield" and known[YIELDED].node_id == node_id else None
        if yielded is not None:
            history.yields[node_id] = history.assignment(version).yields_of(node_id, *yielded)
        elif kind != "yield":
            history.yields.pop(node_id, None)
        if kind == "leave":
            del history.joined[node_id]
            history.left[node_id] = version
        else:
            history.joined[node_id] = version
            history.left.pop(node_id, None)
        now = history.assignment(version)
        again = history.assignment(version)
        for place in PLACES:
            leader = now.leader(*place)
            assert leader == again.leader(*place)
            before = known[place]
            if place == yielded and len(history.joined) > 1:
                assert leader.node_id != node_id
            returned = kind in ("replace", "yield") and node_id == leader.node_id
            if leader.node_id == before.node_id and not returned:
                # Brokers that have yielded a partition are between its epochs.
                assert leader == before or (place == YIELDED and before.epoch <= leader.epoch <= version)
            else:
                assert leader.epoch == version
                assert node_id in (leader.node_id, before.node_id)
            known[place] = leader
