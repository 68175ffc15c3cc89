"""Go's clients, franz-go, sarama and segmentio's kafka-go: one whole session of each.

Each creates a topic, produces with every codec, consumes as one of a group that a second member joins and
leaves, commits, describes, seeks, tells the lag, and deletes all of it.
"""

from __future__ import annotations

import itertools

import pytest

from tests.support.go import BUILD_TIMEOUT_S, GoPrograms
from tests.support.records import CODECS

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.timeout(2 * BUILD_TIMEOUT_S + 120)]

COUNT = 40
PARTITIONS = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def go() -> GoPrograms:
    """The programs; skips where Go or the way to its modules is missing."""
    return GoPrograms.build()


@pytest.mark.parametrize(
    ("program", "newest"), [("franz", False), ("sarama", False), ("sarama", True), ("segmentio", False)]
)
def test_a_whole_session(broker, go, fresh, program, newest):
    names = {"topic": fresh(program), "group": fresh(program)}
    answer = go.run(program, {"bootstrap": broker.bootstrap, "count": COUNT, "newest": newest, **names})

    produced, consumed = by_place(answer["produced"]), by_place(answer["consumed"])
    assert len(produced) == COUNT * len(CODECS)
    assert consumed == produced
    assert {record["value"].split()[0] for record in produced.values()} == set(CODECS)
    assert all(
        record["key"] == record["value"] and record["trace"] == f"of {record['value']}"
        for record in produced.values()
    )
    for partition in PARTITIONS:
        read = [record["offset"] for record in answer["consumed"] if record["partition"] == partition]
        assert read == sorted(read)

    assert [len(answer[stage]) for stage in ("first", "second", "last")] == [1, 2, 1]
    for stage in ("first", "second", "last"):
        assert sorted(itertools.chain(*answer[stage].values())) == PARTITIONS
    assert [len(owned) for owned in answer["second"].values()] == [2, 2]
    assert set(answer["first"]) == set(answer["last"]) < set(answer["second"])
    assert answer["state"] == "Stable"

    ends = {str(n): max(place[1] for place in produced if place[0] == n) + 1 for n in PARTITIONS}
    assert answer["committed"] == answer["ends"] == ends
    assert answer["lag"] == 0
    assert answer["sought"] == answer["consumed"][len(answer["consumed"]) // 2]
    assert answer["config"]["retention.ms"] == "7200000"
    assert answer["config"]["cleanup.policy"] == "delete"
    assert answer["gone"] is True


def by_place(records: list[dict]) -> dict[tuple[int, int], dict]:
    """Records by partition and offset."""
    return {(record["partition"], record["offset"]): record for record in records}
