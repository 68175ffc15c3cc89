"""Share sessions, acknowledgement batches and runs, without I/O."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from korvet.api.sharing.acknowledgements import InvalidAcknowledgement, acknowledged_ranges, is_repeated
from korvet.api.sharing.runs import cut_runs
from korvet.api.sharing.sessions import ShareSession, ShareSessionError, ShareSessions
from korvet.redis_groups.share import Range, Run

if TYPE_CHECKING:
    from collections.abc import Callable

NO_SESSION, INVALID_EPOCH = ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch
LARGEST_EPOCH = 2**31 - 1
KEYS = [(uuid.UUID(int=number), number) for number in range(4)]


def error_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ShareSessionError) as raised:
        call()
    return raised.value.code


def opened(sessions: ShareSessions, member: str = "m", connection: object = "c") -> ShareSession:
    return sessions.open("g", member, connection)[0]


def test_epochs_follow_each_other() -> None:
    sessions = ShareSessions(2)
    session = opened(sessions)
    assert session.epoch == 1
    assert sessions.advance("g", "m", 1, "c") is session
    assert error_of(lambda: sessions.advance("g", "m", 1, "c")) is INVALID_EPOCH
    assert error_of(lambda: sessions.advance("g", "m", 3, "c")) is INVALID_EPOCH
    assert error_of(lambda: sessions.advance("other", "m", 2, "c")) is NO_SESSION
    session.epoch = LARGEST_EPOCH
    sessions.advance("g", "m", LARGEST_EPOCH, "c")
    assert session.epoch == 1


def test_member_opens_again() -> None:
    sessions = ShareSessions(1)
    first = opened(sessions)
    second, former = sessions.open("g", "m", "d")
    assert former is first
    assert (first.is_open, second.is_open, len(sessions)) == (False, True, 1)
    assert sessions.lose("c") == []
    assert sessions.lose("d") == [second]
    assert error_of(lambda: sessions.find("g", "m")) is NO_SESSION


def test_sessions_are_limited() -> None:
    sessions = ShareSessions(1)
    opened(sessions)
    assert error_of(lambda: opened(sessions, "another")) is ErrorCode.share_session_limit_reached
    assert not sessions.close("g", "m").is_open
    assert error_of(lambda: sessions.close("g", "m")) is NO_SESSION
    opened(sessions, "another")


def test_session_ends_with_the_connection_that_used_it_last() -> None:
    sessions = ShareSessions(2)
    session, other = opened(sessions), opened(sessions, "other")
    sessions.advance("g", "m", 1, "d")
    assert sessions.lose("c") == [other]
    assert session.is_open
    assert sessions.lose("d") == [session]


def test_partitions_take_turns() -> None:
    session = opened(ShareSessions(1))
    session.update(KEYS[:3], [])
    session.move_to_end(KEYS[0])
    assert list(session.partitions) == [KEYS[1], KEYS[2], KEYS[0]]
    session.update([KEYS[3], KEYS[1]], [KEYS[2]])
    assert list(session.partitions) == [KEYS[1], KEYS[0], KEYS[3]]
    session.move_to_end(KEYS[2])
    assert KEYS[2] not in session.partitions


def batch(first: int, last: int, *types: int) -> SimpleNamespace:
    return SimpleNamespace(first_offset=first, last_offset=last, acknowledge_types=types)


def test_ranges() -> None:
    found = acknowledged_ranges([batch(1, 3, 1), batch(5, 6, 0, 4)], may_renew=True)
    assert found == [Range(1, 3, b"1"), Range(5, 6, b"04")]


@pytest.mark.parametrize(
    "batches",
    [
        [batch(2, 1, 1)],
        [batch(1, 3, 1), batch(2, 4, 1)],
        [batch(4, 5, 1), batch(1, 2, 1)],
        [batch(1, 2)],
        [batch(1, 3, 1, 1)],
        [batch(1, 1, 5)],
        [batch(1, 1, -1)],
        [batch(1, 1, 4)],
    ],
)
def test_invalid_batches(batches: list[SimpleNamespace]) -> None:
    with pytest.raises(InvalidAcknowledgement):
        acknowledged_ranges(batches, may_renew=False)


def test_one_offset_in_two_batches() -> None:
    """Kafka takes them one after the other, and finds no lock for the second one."""
    batches = [batch(1, 2, 1), batch(2, 3, 1)]
    assert is_repeated(acknowledged_ranges(batches, may_renew=False))
    assert not is_repeated(acknowledged_ranges(batches[:1], may_renew=False))


def test_offsets_below_zero_are_no_error_of_the_request() -> None:
    """They are before the start of every group, which takes no notice of them."""
    assert acknowledged_ranges([batch(-1, 1, 1)], may_renew=False) == [Range(-1, 1, b"1")]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=5), st.integers(-1, 30))
def test_cut_runs_have_the_same_offsets(sizes: list[tuple[int, int]], batch_size: int) -> None:
    runs, at = [], 0
    for gap, size in sizes:
        runs.append(Run(at + gap, at + gap + size, 1))
        at += gap + size + 2
    cut = list(cut_runs(runs, batch_size))
    offsets = [offset for run in runs for offset in range(run.first, run.last + 1)]
    assert [offset for run in cut for offset in range(run.first, run.last + 1)] == offsets
    assert batch_size <= 0 or all(run.last - run.first < batch_size for run in cut)
    assert batch_size > 0 or cut == runs
