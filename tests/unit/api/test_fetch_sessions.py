"""The broker's fetch sessions: which are found, which are evicted, and what counts as news."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from korvet.api.fetching import sessions
from korvet.api.fetching.partition import FetchedPartition
from korvet.api.fetching.sessions import EVICTION_MS, FetchSession, FetchSessions, SessionError, next_epoch
from korvet.log.values import Ends

if TYPE_CHECKING:
    from korvet.api.fetching.params import FetchParams
    from korvet.protocol.registry import Respond

LATER_MS = EVICTION_MS + 1


def part(topic: str, index: int = 0) -> FetchedPartition:
    return FetchedPartition(topic, index, 0, 100)


def counted(slots: int) -> FetchSessions:
    """Sessions with the IDs 1, 2, 3 …"""
    ids = itertools.count()
    return FetchSessions(slots, lambda _: next(ids))


def opened(sessions: FetchSessions, size: int, now_ms: float = 0) -> FetchSession | None:
    return sessions.open([part("t", index) for index in range(size)], now_ms, by_id=False)


def used(sessions: FetchSessions, session: FetchSession | None, now_ms: float) -> None:
    assert session is not None
    assert sessions.advance(sessions.find(session.id, session.epoch, by_id=False), now_ms)


def code_of(sessions: FetchSessions, session_id: int, epoch: int, *, by_id: bool = False) -> ErrorCode:
    with pytest.raises(SessionError) as raised:
        sessions.find(session_id, epoch, by_id=by_id)
    return raised.value.code


class Reader:
    """A reader that counts how often its session was closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def cancel(self, error: ErrorCode, session_id: int) -> None:
        raise NotImplementedError

    def start(self, params: FetchParams, respond: Respond) -> None:
        raise NotImplementedError

    def empty_throttled_response(self) -> list[bytes]:
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError


def test_epoch_1_follows_the_largest():
    assert [next_epoch(epoch) for epoch in (1, 2, 2**31 - 2, 2**31 - 1)] == [2, 3, 2**31 - 1, 1]


def test_errors_of_requests():
    sessions = counted(5)
    session = opened(sessions, 1)
    assert session is not None
    assert code_of(sessions, 99, 1) is ErrorCode.fetch_session_id_not_found
    assert code_of(sessions, session.id, 2) is ErrorCode.invalid_fetch_session_epoch
    assert code_of(sessions, session.id, 1, by_id=True) is ErrorCode.fetch_session_topic_id_error
    # A wrong epoch is reported before a wrong way of naming topics.
    assert code_of(sessions, session.id, 2, by_id=True) is ErrorCode.invalid_fetch_session_epoch


def test_ids_are_positive_and_unique():
    drawn = iter([7, 7, 7, 0, 2**31 - 2])
    sessions = FetchSessions(5, lambda below: next(drawn) % below)
    found = [opened(sessions, 1) for _ in range(3)]
    assert [session and session.id for session in found] == [8, 1, 2**31 - 1]


def test_a_full_cache_evicts_old_and_smaller_sessions():
    sessions = counted(2)
    first, second = opened(sessions, 1), opened(sessions, 1)
    assert opened(sessions, 9) is None
    assert len(sessions) == 2
    # A session that was used recently is not evicted, however old it is ...
    used(sessions, first, LATER_MS)
    used(sessions, second, LATER_MS)
    assert opened(sessions, 1, LATER_MS) is None
    # ... except for a larger one, if it is old.
    third = opened(sessions, 2, LATER_MS)
    assert third is not None
    assert code_of(sessions, 1, 2) is ErrorCode.fetch_session_id_not_found
    # The third session is new: it is not evicted.
    used(sessions, third, LATER_MS)
    used(sessions, second, LATER_MS)
    assert opened(sessions, 50, LATER_MS) is not None
    assert code_of(sessions, 2, 3) is ErrorCode.fetch_session_id_not_found
    assert opened(sessions, 99, LATER_MS) is None
    assert opened(FetchSessions(0), 1) is None


def test_an_unused_session_is_evicted_for_any_other():
    sessions = counted(2)
    first, second = opened(sessions, 9), opened(sessions, 9)
    reader = Reader()
    assert second is not None
    second.reader = reader
    used(sessions, first, 1000)
    assert opened(sessions, 1, EVICTION_MS) is None
    assert opened(sessions, 1, LATER_MS) is not None
    assert code_of(sessions, 2, 1) is ErrorCode.fetch_session_id_not_found
    assert (reader.closed, second.reader) == (1, None)


def test_the_current_size_of_a_session_counts():
    sessions = counted(2)
    first, second = opened(sessions, 1), opened(sessions, 3)
    assert first is not None
    used(sessions, first, LATER_MS)
    used(sessions, second, LATER_MS)
    for index in range(1, 200):
        first.add(part("t", index))
        used(sessions, first, LATER_MS)
    assert opened(sessions, 3, LATER_MS) is None
    assert opened(sessions, 4, LATER_MS) is not None
    assert sessions.find(first.id, first.epoch, by_id=False) is first


def test_news():
    sessions = counted(1)
    one = part("t")
    one.found([], Ends(0, 0, 5, 5, 5))
    session = sessions.open([one], 0, by_id=False)
    assert session is not None
    assert not one.has_news
    one.found([b"records"], Ends(0, 0, 5, 5, 5))
    assert one.has_news
    for end, start in ((6, 0), (5, 1)):
        one.found([], Ends(start, start, end, end, end))
        assert one.has_news, (end, start)
    one.found([], Ends(0, 0, 5, 5, 5))
    one.error = ErrorCode.offset_out_of_range
    assert one.has_news
    session.advertise([one])
    one.reset_for_next()
    one.found([], Ends(0, 0, 5, 5, 5))
    assert one.has_news, "the end of the error"
    session.advertise([one])
    assert not one.has_news


def test_a_withheld_response_changes_nothing():
    sessions = counted(1)
    parts = [part("t", index) for index in range(3)]
    session = sessions.open(parts, 0, by_id=False)
    assert session is not None
    before = list(session.partitions)
    for one in parts[:2]:
        one.found([b"records"], Ends(1, 1, 9, 9, 9))
    session.advertise(parts[:2])
    assert list(session.partitions) == [before[2], before[0], before[1]]
    assert not any(one.lru_sequence == 1 for one in parts)
    session.open_partitions.clear()
    session.revert_advertised()
    assert list(session.open_partitions) == parts[:2]
    assert list(session.partitions) == before
    assert [one.lru_sequence for one in parts] == [1, 2, 3]
    assert all(one.has_news for one in parts[:2])
    session.open_partitions.clear()
    session.revert_advertised()
    assert not session.open_partitions


def test_renewed_partitions_are_copies_without_results():
    sessions = counted(1)
    one = part("t")
    one.found([b"late"], Ends(1, 1, 9, 9, 9))
    session = sessions.open([one], 0, by_id=False)
    assert session is not None
    session.renew()
    (fresh,) = session.partitions.values()
    assert fresh is not one
    assert fresh.lru_sequence == one.lru_sequence
    assert (fresh.size_bytes, fresh.log, fresh.listened_log) == (0, None, None)
    assert (fresh.advertised_high_watermark, fresh.advertised_log_start) == (9, 1)


@pytest.fixture
def ten_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits all sessions together to ten partitions."""
    monkeypatch.setattr(sessions, "MOST_PARTITIONS", 10)


@pytest.mark.usefixtures("ten_partitions")
def test_partitions_of_all_sessions_are_bounded() -> None:
    sessions = counted(5)
    first = opened(sessions, 6)
    assert first is not None
    assert opened(sessions, 5) is None
    assert opened(sessions, 4) is not None
    assert opened(sessions, 1) is None
    sessions.close(first.id)
    assert opened(sessions, 6) is not None


@pytest.mark.usefixtures("ten_partitions")
def test_unused_sessions_are_evicted_for_partitions() -> None:
    sessions = counted(5)
    opened(sessions, 6)
    opened(sessions, 4, LATER_MS)
    assert opened(sessions, 7, LATER_MS) is None
    assert opened(sessions, 6, LATER_MS) is not None


@pytest.mark.usefixtures("ten_partitions")
def test_a_session_that_grows_too_large_is_closed() -> None:
    sessions = counted(5)
    session = opened(sessions, 6)
    assert session is not None
    for index in range(6, 10):
        session.add(part("t", index))
    used(sessions, session, 1)
    session.add(part("t", 10))
    assert not sessions.advance(session, 2)
    assert len(sessions) == 0
    assert opened(sessions, 10) is not None


@pytest.mark.usefixtures("ten_partitions")
def test_forgotten_partitions_leave_room() -> None:
    sessions = counted(5)
    session = opened(sessions, 10)
    assert session is not None
    for index in range(4):
        session.forget(("t", index))
    used(sessions, session, 1)
    assert opened(sessions, 4) is not None
