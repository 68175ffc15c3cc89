"""What a whole session of a client has to have seen, whatever its language.

A program creates a topic of four partitions, produces `count` records with each codec, consumes them as the
only member of a group, is joined and left by a second member, commits, seeks, describes and deletes. It
answers with one JSON object: `produced` and `consumed` records (partition, offset, key, value, trace), who
owned which partitions (`first`, `second`, `last`), `state`, `committed`, `ends`, `lag`, `sought`, `config`,
`gone`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

COUNT = 40
PARTITIONS = [0, 1, 2, 3]


def check_session(answer: dict[str, Any], codecs: Collection[str]) -> None:
    """Check the whole session."""
    produced, consumed = _by_place(answer["produced"]), _by_place(answer["consumed"])
    assert len(produced) == COUNT * len(codecs)
    assert consumed == produced
    assert {record["value"].split()[0] for record in produced.values()} == set(codecs)
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
    assert answer["state"].title() == "Stable"

    ends = {str(n): max(place[1] for place in produced if place[0] == n) + 1 for n in PARTITIONS}
    assert answer["committed"] == answer["ends"] == ends
    assert answer["lag"] == 0
    assert answer["sought"] == answer["consumed"][len(answer["consumed"]) // 2]
    assert answer["config"]["retention.ms"] == "7200000"
    assert answer["config"]["cleanup.policy"] == "delete"
    assert answer["gone"] is True


def _by_place(records: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, Any]]:
    return {(record["partition"], record["offset"]): record for record in records}
