"""The states of a pending fetch: what each event does in each of them."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode
from msgspec.structs import replace

import korvet.api
from korvet.api.common.context import HandlerState
from korvet.api.common.request_counts import RequestCounts
from korvet.api.fetching.deadlines import Deadlines
from korvet.api.fetching.full_fetch import FullFetch
from korvet.api.fetching.memory import FetchMemory
from korvet.api.fetching.params import READ_COMMITTED, FetchParams
from korvet.api.fetching.pending_fetch import PendingFetch
from korvet.api.fetching.response import encode_response
from korvet.log.counts import TopicCounts
from korvet.log.values import Ends, Fetched
from korvet.protocol import registry
from korvet.protocol.fetch_request import FetchRequest, FetchTopic
from korvet.records.control import gap_batch
from korvet.redis.errors import FencedEpoch, StorageError
from tests.unit.api.test_deadlines import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

korvet.api.load_all()
VERSION = 12
READ_UNCOMMITTED = 0
RECORDS = gap_batch(10, 0)
"""A record batch from the log end of a new log on, to the next offset."""
SESSION_ID = 7


def request(*offsets: int, max_wait_ms: int = 1000, min_bytes: int = 1) -> FetchRequest:
    """A full fetch of a topic's first partitions from these offsets on."""
    entries = [
        struct.pack(">iiqiqi", index, -1, offset, -1, -1, 1 << 16) for index, offset in enumerate(offsets)
    ]
    topics = (FetchTopic("t", entries),)
    return FetchRequest(max_wait_ms, min_bytes, 1 << 16, 0, 0, -1, topics, ())


class Log:
    """A log without a tail cache. The test completes its reads."""

    leader_epoch = 0
    refusal: StorageError | None = None
    log_start = 0
    is_stable_current = True
    has_watermark = True
    counts = TopicCounts()

    def __init__(self) -> None:
        self.log_end = 10
        self.listeners: dict[Callable[[], None], None] = {}
        self.reads: list[Callable[[Fetched | StorageError], None]] = []

    @property
    def state(self) -> Log:
        return self

    known = state

    @property
    def ends(self) -> Ends:
        return Ends(self.log_start, self.log_start, self.stable, self.log_end, self.log_end)

    @property
    def closed(self) -> bool:
        return self.refusal is not None

    @property
    def stable(self) -> int:
        return self.log_end

    def cached(self, *_: Any, **__: Any) -> None:
        return None

    def read(self, offset: int, max_bytes: int, done: Callable[[Fetched | StorageError], None]) -> None:
        self.reads.append(done)

    def listen(self, callback: Callable[[], None]) -> None:
        self.listeners[callback] = None

    def unlisten(self, callback: Callable[[], None]) -> None:
        self.listeners.pop(callback, None)

    def change(self) -> None:
        for callback in list(self.listeners):
            callback()

    def grow(self) -> None:
        self.log_end += 1
        self.change()

    def close(self) -> None:
        self.refusal = FencedEpoch("another broker leads it")
        listeners, self.listeners = list(self.listeners), {}
        for callback in listeners:
            callback()


class OpenTransaction(Log):
    """A log of which only the first records are of no open transaction."""

    stable = 5
    transactions = SimpleNamespace(
        last_stable_offset=5, proven_end=10, generation=0, aborted_from=lambda offset: []
    )


class Unconfirmed(Log):
    """A log of which no replica and no earlier leader has confirmed anything yet."""

    has_watermark = False

    def await_watermark(self, done: Callable[[StorageError | None], None]) -> None:
        self.reads.append(lambda _: done(None))


class Seen(NamedTuple):
    """What can be seen of a fetch from outside."""

    answer: str | None = None
    is_reading: bool = False
    is_waiting: bool = False
    """Whether it listens to the log and is not reading."""
    is_kept: bool = True
    """Whether the client's next request can start from it."""


class Scene:
    """A client's fetch of one partition, from the log end on."""

    def __init__(
        self, *, min_bytes: int = 1, kind: type[Log] = Log, isolation_level: int = READ_UNCOMMITTED
    ) -> None:
        self.clock = Clock()
        self.log = kind()
        self.memory = FetchMemory(1 << 20, self.clock)  # type: ignore[arg-type]
        self.answers: list[list[bytes] | None] = []
        topics = SimpleNamespace(get=lambda name: name, log_of=lambda _, index: self.log)
        self.services: Any = SimpleNamespace(
            topics=topics,
            deadlines=Deadlines(self.clock),  # type: ignore[arg-type]
            fetch_memory=self.memory,
            native_watcher=SimpleNamespace(is_current=False),
            requests=RequestCounts(registry.registered()),
        )
        self.client: Any = SimpleNamespace(
            session=SimpleNamespace(access=None), handler_state=HandlerState(), unsent_bytes=0
        )
        asked = request(self.log.stable, min_bytes=min_bytes)
        self.request = replace(asked, isolation_level=isolation_level)
        self.params = FetchParams.of(VERSION, self.request, 100)
        strategy = FullFetch(self.services, self.client, self.request, self.params)
        (self.partition,) = strategy.partitions
        self.fetch = PendingFetch(self.services, self.client, strategy, self.params)
        self.client.handler_state.fetch = self.fetch
        self.fetch.start(self.params, self.answers.append)

    def log_changes(self) -> None:
        self.log.grow()

    def records_arrive(self) -> None:
        self._read_ends(RECORDS)

    def nothing_arrives(self) -> None:
        self._read_ends(b"")

    def _read_ends(self, data: bytes) -> None:
        log = self.log
        log.reads.pop()(Fetched(data, 1, -1, -1, log.log_end, log.ends))

    def deadline_passes(self) -> None:
        self.clock.advance(self.clock.now_s + 2)

    def client_leaves(self) -> None:
        fetch, self.client.handler_state.fetch = self.client.handler_state.fetch, None
        if fetch is not None:
            fetch.release()

    def session_closes(self) -> None:
        self.fetch.close()

    def session_moves(self) -> None:
        self.fetch.cancel(ErrorCode.invalid_fetch_session_epoch, SESSION_ID)

    def seen(self) -> Seen:
        is_reading = bool(self.log.reads)
        is_waiting = self.fetch.due_ms != -1 and bool(self.log.listeners) and not is_reading
        is_kept = self.client.handler_state.fetch is self.fetch
        return Seen(self._answer(), is_reading, is_waiting, is_kept)

    def _answer(self) -> str | None:
        if not self.answers:
            return None
        (body,) = self.answers
        assert body is not None
        if RECORDS in body:
            return "records"
        error = ErrorCode.invalid_fetch_session_epoch
        if body == encode_response(VERSION, (), error, session_id=SESSION_ID):
            return "error"
        return "empty"


def waiting() -> Scene:
    return Scene()


def reading() -> Scene:
    scene = waiting()
    scene.log_changes()
    return scene


def idle() -> Scene:
    scene = waiting()
    scene.deadline_passes()
    scene.answers.clear()
    return scene


def released() -> Scene:
    scene = reading()
    scene.client_leaves()
    return scene


IDLE = Seen()
READING = Seen(is_reading=True)
WAITING = Seen(is_waiting=True)
RELEASED = Seen(is_reading=True, is_kept=False)
ENDED = Seen(is_kept=False)
STATES = {idle: IDLE, reading: READING, waiting: WAITING, released: RELEASED}
TABLE: dict[tuple[Callable[[], Scene], Callable[[Scene], None]], Seen] = {
    (idle, Scene.log_changes): IDLE,
    (idle, Scene.deadline_passes): IDLE,
    (idle, Scene.client_leaves): ENDED,
    (idle, Scene.session_closes): ENDED,
    (idle, Scene.session_moves): ENDED,
    (reading, Scene.log_changes): READING,
    (reading, Scene.records_arrive): IDLE._replace(answer="records"),
    (reading, Scene.nothing_arrives): WAITING,
    # The read under way decides.
    (reading, Scene.deadline_passes): READING,
    (reading, Scene.client_leaves): RELEASED,
    # The request at work is answered first.
    (reading, Scene.session_closes): READING,
    (reading, Scene.session_moves): RELEASED._replace(answer="error"),
    (waiting, Scene.log_changes): READING,
    (waiting, Scene.deadline_passes): IDLE._replace(answer="empty"),
    (waiting, Scene.client_leaves): ENDED,
    (waiting, Scene.session_closes): WAITING,
    (waiting, Scene.session_moves): ENDED._replace(answer="error"),
    (released, Scene.log_changes): RELEASED,
    (released, Scene.records_arrive): ENDED,
    (released, Scene.nothing_arrives): ENDED,
    (released, Scene.deadline_passes): RELEASED,
    (released, Scene.client_leaves): RELEASED,
    (released, Scene.session_closes): RELEASED,
    (released, Scene.session_moves): RELEASED,
}


@pytest.mark.parametrize(
    ("state", "event"), TABLE, ids=[f"{state.__name__}-{event.__name__}" for state, event in TABLE]
)
def test_every_event_in_every_state(state: Callable[[], Scene], event: Callable[[Scene], None]) -> None:
    scene = state()
    assert scene.seen() == STATES[state]
    event(scene)
    seen = scene.seen()
    assert seen == TABLE[state, event]
    # Memory is held during reads only, and a fetch that has ended listens to no log.
    assert bool(scene.memory.held_bytes) == seen.is_reading
    assert bool(scene.log.listeners) == seen.is_kept


def test_the_table_is_complete() -> None:
    events = {event for _, event in TABLE}
    arrivals = {Scene.records_arrive, Scene.nothing_arrives}
    expected = {
        (state, event)
        for state in STATES
        for event in events
        if event not in arrivals or STATES[state].is_reading
    }
    assert set(TABLE) == expected


def test_a_log_that_changes_during_a_read_is_read_again() -> None:
    scene = reading()
    scene.log_changes()
    scene.nothing_arrives()
    assert scene.seen() == READING
    scene.records_arrive()
    assert scene.seen() == IDLE._replace(answer="records")


def test_a_deadline_that_passes_during_a_read_is_met_when_the_read_ends() -> None:
    scene = reading()
    scene.deadline_passes()
    scene.nothing_arrives()
    assert scene.seen() == IDLE._replace(answer="empty")


def test_too_few_bytes_are_kept_until_the_deadline() -> None:
    scene = Scene(min_bytes=1000)
    scene.log_changes()
    scene.records_arrive()
    assert scene.seen() == WAITING
    assert scene.memory.held_bytes == len(RECORDS)
    scene.deadline_passes()
    assert scene.seen() == IDLE._replace(answer="records")
    assert scene.memory.held_bytes == 0


def test_too_few_bytes_are_answered_at_once_if_the_log_held_more_than_one_read_returns() -> None:
    """A read ends after some thousand records, even if these are smaller than the limits allow."""
    scene = Scene(min_bytes=1000)
    scene.log.log_end += 1
    scene.log_changes()
    scene.records_arrive()
    assert scene.seen() == IDLE._replace(answer="records")


def test_records_that_are_appended_during_a_read_do_not_end_the_wait_for_more() -> None:
    scene = Scene(min_bytes=1000)
    scene.log_changes()
    scene.log_changes()
    scene.records_arrive()
    assert scene.seen() == READING
    scene.records_arrive()
    assert scene.seen() == IDLE._replace(answer="records")


def test_a_request_that_cannot_start_leaves_nothing() -> None:
    scene = idle()
    scene.services.topics.get = None
    scene.log.change()
    scene.partition.log = None
    with pytest.raises(TypeError):
        scene.fetch.start(scene.params, scene.answers.append)
    assert scene.seen() == ENDED


def test_a_log_with_an_open_transaction_that_is_closed_is_no_longer_waited_for() -> None:
    scene = Scene(kind=OpenTransaction, isolation_level=READ_COMMITTED)
    assert scene.seen() == WAITING
    scene.log.close()
    assert scene.seen() == READING
    assert scene.log.refusal is not None
    scene.log.reads.pop()(scene.log.refusal)
    ((body,),) = scene.answers  # type: ignore[misc]
    assert struct.pack(">ih", 0, ErrorCode.not_leader_or_follower) in body


@pytest.mark.parametrize("isolation_level", [READ_UNCOMMITTED, READ_COMMITTED])
def test_the_end_of_a_log_whose_high_watermark_is_unknown_is_not_waited_at(isolation_level: int) -> None:
    """Until it is known, the high watermark is the log start, and a read waits for it."""
    assert Scene(isolation_level=isolation_level).seen() == WAITING
    assert Scene(kind=Unconfirmed, isolation_level=isolation_level).seen() == READING


def test_an_error_is_returned_without_the_records_that_were_read_before_it() -> None:
    """Some clients would move on after these records, and yet drop them because of the error."""
    scene = Scene(min_bytes=1000)
    scene.log_changes()
    scene.records_arrive()
    scene.log.close()
    assert scene.log.refusal is not None
    scene.log.reads.pop()(scene.log.refusal)
    ((body,),) = scene.answers  # type: ignore[misc]
    assert struct.pack(">ihqqq", 0, ErrorCode.not_leader_or_follower, -1, -1, -1) in body
    assert scene.memory.held_bytes == 0
