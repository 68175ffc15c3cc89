"""A client with a fetch session against a model of Kafka's broker: it gets the same partitions in the
same order, and always knows everything that full fetches would report.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kio.schema.errors import ErrorCode

from korvet.api.fetching.partition import FetchedPartition
from korvet.api.fetching.sessions import FetchSession, FetchSessions, SessionError
from korvet.log.values import Ends

TOPICS = 3
indexes = st.integers(0, TOPICS - 1)


@dataclass
class Partition:
    """The state of the broker."""

    start: int = 0
    end: int = 0
    failing: bool = False


@dataclass
class Cached:
    """Kafka's state of a partition in a session (FetchSession.CachedPartition)."""

    offset: int
    high_watermark: int = -1
    log_start: int = -1


class FetchSessionMachine(RuleBasedStateMachine):
    """One session of a cache with other sessions."""

    @initialize(slots=st.integers(1, 3))
    def begin(self, slots: int) -> None:
        self.now_ms = 0.0
        self.sessions = FetchSessions(slots)
        self.slots = slots
        self.logs = [Partition() for _ in range(TOPICS)]
        # The client: its last responses, and its positions.
        self.id = self.epoch = 0
        self.known: dict[int, tuple[bool, int, int]] = {}
        self.positions: dict[int, int] = {}
        self.model: dict[int, Cached] = {}

    @rule(index=indexes, count=st.integers(1, 3))
    def append(self, index: int, count: int) -> None:
        self.logs[index].end += count

    @rule(index=indexes)
    def trim(self, index: int) -> None:
        self.logs[index].start = self.logs[index].end

    @rule(index=indexes)
    def fail_or_mend(self, index: int) -> None:
        self.logs[index].failing = not self.logs[index].failing

    @rule(minutes=st.integers(0, 3), size=st.integers(1, 5))
    def others(self, minutes: int, size: int) -> None:
        """Another client's session, which may displace this one."""
        self.now_ms += minutes * 60_000
        self.sessions.open(
            [FetchedPartition("other", index, 0, 1) for index in range(size)], self.now_ms, by_id=False
        )

    @rule(asked=st.sets(indexes))
    def full(self, asked: set[int]) -> None:
        self.positions = {index: self.positions.get(index, 0) for index in sorted(asked)}
        parts = [FetchedPartition(str(index), 0, offset, 1) for index, offset in self.positions.items()]
        for part in parts:
            self._find(part)
        self.sessions.close(self.id)
        session = self.sessions.open(parts, self.now_ms, by_id=False)
        self.id, self.epoch = (0, 0) if session is None else (session.id, 1)
        self.model = {}
        for index, part in zip(self.positions, parts, strict=True):
            self.model[index] = Cached(part.offset, _told(part), part.log_start)
        self.known = {int(part.topic): _state(part) for part in parts if isinstance(part.topic, str)}
        for part in parts:
            part.reset_for_next()

    @rule(changed=st.sets(indexes), dropped=st.sets(indexes), room=st.integers(0, 4), throttled=st.booleans())
    def incremental(self, changed: set[int], dropped: set[int], room: int, throttled: bool) -> None:
        """The client moves some positions to the end, adds and forgets partitions; `room` records fit."""
        if not self.id:
            return
        session = self._session()
        if session is None:
            self.id = 0
            return
        for index in sorted(changed):
            self.positions[index] = self.logs[index].end
            part = session.partitions.get((str(index), 0))
            if part is None:
                session.add(FetchedPartition(str(index), 0, self.positions[index], 1))
            else:
                part.offset = self.positions[index]
            self.model.setdefault(index, Cached(0)).offset = self.positions[index]
        for index in sorted(dropped):
            forgotten = session.forget((str(index), 0))
            assert (forgotten is None) == (self.model.pop(index, None) is None)
            self.positions.pop(index, None)
            self.known.pop(index, None)
        if not self.sessions.advance(session, self.now_ms):
            assert not self.model
            self.id = 0
            return
        assert [key for key, _ in session.partitions] == [str(index) for index in self.model]
        assert [part.lru_sequence for part in session.partitions.values()] == sorted(
            part.lru_sequence for part in session.partitions.values()
        )
        self._answer(session, room, throttled)
        self.epoch += 1

    def _session(self) -> FetchSession | None:
        """The client's session, unless it was displaced."""
        try:
            return self.sessions.find(self.id, self.epoch, by_id=False)
        except SessionError as error:
            if error.code is not ErrorCode.fetch_session_id_not_found:
                raise
            return None

    def _answer(self, session: FetchSession, room: int, throttled: bool) -> None:
        """The broker's response equals the model's; the client does not get it when throttled."""
        expected: list[int] = []
        for index, cached in list(self.model.items()):
            log = self.logs[index]
            readable = not log.failing and cached.offset < log.end and room > 0
            room -= readable
            end, start = (-1, -1) if log.failing else (log.end, log.start)
            if readable or log.failing or (cached.high_watermark, cached.log_start) != (end, start):
                expected.append(index)
                if not throttled:
                    cached.high_watermark, cached.log_start = end, start
                    if readable:
                        self.model[index] = self.model.pop(index)
            self._found(session.partitions[str(index), 0], readable)
        parts = list(session.partitions.values())
        news = [part for part in parts if part.has_news]
        assert [int(part.topic) for part in news] == expected
        session.advertise(news)
        if throttled:
            session.open_partitions.clear()
            session.revert_advertised()
            assert list(session.open_partitions) == news
        else:
            self.known |= {int(part.topic): _state(part) for part in news}
            # The client knows everything that a full fetch would report now.
            assert self.known == {int(part.topic): _state(part) for part in parts}
        for part in parts:
            part.reset_for_next()

    def _find(self, part: FetchedPartition) -> None:
        assert isinstance(part.topic, str)
        self._found(part, part.offset < self.logs[int(part.topic)].end)

    def _found(self, part: FetchedPartition, readable: bool) -> None:
        assert isinstance(part.topic, str)
        log = self.logs[int(part.topic)]
        if log.failing:
            part.error = ErrorCode.kafka_storage_error
        else:
            part.found([b"record"] if readable else [], Ends(log.start, log.start, log.end, log.end, log.end))

    @invariant()
    def no_more_than_there_is_room_for(self) -> None:
        assert len(self.sessions) <= self.slots


def _told(part: FetchedPartition) -> int:
    return -1 if part.error is not ErrorCode.none else part.high_watermark


def _state(part: FetchedPartition) -> tuple[bool, int, int]:
    return part.error is not ErrorCode.none, part.high_watermark, part.log_start


TestFetchSessions = FetchSessionMachine.TestCase
