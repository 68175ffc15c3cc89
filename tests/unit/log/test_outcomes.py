"""Which markers compaction removes, and what it remembers of the markers that stay without records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from korvet.log.compaction.outcomes import Emptied, Outcomes, decode_emptied, encode_emptied
from korvet.log.compaction.survivors import Checkpoint
from korvet.log.transactions import Aborted

RETENTION_MS = 1600
LATEST_BY_MS = RETENTION_MS // 16


@given(
    st.lists(
        st.builds(
            Emptied,
            st.integers(0, 2**50),
            st.lists(st.integers(0, 2**53), min_size=1, unique=True).map(lambda found: tuple(sorted(found))),
        )
    )
)
def test_what_is_remembered_survives_as_bytes(emptied: list[Emptied]) -> None:
    assert decode_emptied(encode_emptied(emptied)) == emptied
    assert decode_emptied(None) == []


def test_a_record_is_aborted_between_first_record_and_marker_of_its_producer() -> None:
    outcomes = Outcomes([Aborted(20, 10, 1, 21), Aborted(25, 12, 2, 26), Aborted(40, 30, 1, 41)])
    found = {
        (producer, offset)
        for producer in (1, 2, 3)
        for offset in range(50)
        if outcomes.is_aborted(producer, offset)
    }
    ranges = {1: (*range(10, 21), *range(30, 41)), 2: range(12, 26)}
    assert found == {(producer, offset) for producer, offsets in ranges.items() for offset in offsets}
    assert outcomes.ended([5, 20, 25]) == [Aborted(20, 10, 1, 21), Aborted(25, 12, 2, 26)]


def test_a_marker_in_the_dirty_section_stays() -> None:
    outcomes = Outcomes(last_ms=0, now_ms=10 * RETENTION_MS, delete_retention_ms=RETENTION_MS)
    assert not outcomes.marker(1, 7, clean=False)
    assert outcomes.emptied() == []
    assert outcomes.markers_ms([], removed=False) == 10 * RETENTION_MS
    assert outcomes.marker(1, 5, clean=True)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=60))
def test_no_marker_is_removed_early_or_much_too_late(waits_ms: list[int]) -> None:
    """One marker loses its last record at each step."""
    checkpoint = Checkpoint()
    emptied: list[Emptied] = []
    now_ms, lost_ms, there = 0, [], set[int]()
    for step, wait_ms in enumerate(waits_ms):
        now_ms += wait_ms
        outcomes = Outcomes(
            (),
            emptied,
            last_ms=checkpoint.last_ms,
            now_ms=now_ms,
            delete_retention_ms=RETENTION_MS,
        )
        gone = {number for number in sorted(there) if outcomes.marker(number, number, clean=True)}
        assert all(now_ms - lost_ms[number] >= RETENTION_MS for number in gone)
        there -= gone
        emptied = decode_emptied(encode_emptied(outcomes.emptied()))
        assert len(emptied) <= 2 * 16 + 3
        for number in there:
            next_ms = next((later for later in lost_ms[number + 1 :]), lost_ms[number])
            assert now_ms - lost_ms[number] < RETENTION_MS + LATEST_BY_MS + next_ms - lost_ms[number]
        checkpoint = checkpoint.after(
            0, 0, 0, now_ms, RETENTION_MS, outcomes.markers_ms(emptied, removed=False)
        )
        assert Checkpoint.decode(checkpoint.encode()) == checkpoint
        assert checkpoint.sweep_is_due(now_ms + RETENTION_MS, RETENTION_MS) or not emptied
        lost_ms.append(now_ms)
        there.add(step)
