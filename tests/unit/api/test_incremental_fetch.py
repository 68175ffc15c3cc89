"""Which partitions an incremental fetch reads and returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from korvet.api.common.context import HandlerState
from korvet.api.fetching.deadlines import Deadlines
from korvet.api.fetching.incremental_fetch import continue_session
from korvet.api.fetching.memory import FetchMemory
from korvet.api.fetching.params import FetchParams
from korvet.api.fetching.partition import FetchedPartition
from korvet.api.fetching.response import encode_response
from korvet.api.fetching.sessions import FetchSessions
from korvet.log.values import Ends, Fetched
from tests.unit.api.test_deadlines import Clock
from tests.unit.api.test_pending_fetch import RECORDS, VERSION, Log, request

if TYPE_CHECKING:
    from korvet.protocol.fetch_request import PartitionKey


class Scene:
    """A client at the end of all partitions of its session."""

    def __init__(self, partitions: int) -> None:
        self.clock = Clock()
        self.logs = [Log() for _ in range(partitions)]
        self.services: Any = SimpleNamespace(
            topics=SimpleNamespace(get=lambda name: name, log_of=lambda _, index: self.logs[index]),
            deadlines=Deadlines(self.clock),  # type: ignore[arg-type]
            fetch_memory=FetchMemory(1 << 20, self.clock),  # type: ignore[arg-type]
            native_watcher=SimpleNamespace(is_current=False),
        )
        self.client: Any = SimpleNamespace(
            session=SimpleNamespace(access=None), handler_state=HandlerState(), unsent_bytes=0
        )
        self.params = FetchParams.of(VERSION, request(), 100)
        requested = [FetchedPartition("t", index, 10, 1 << 16) for index in range(partitions)]
        for partition in requested:
            partition.found((), Ends(0, 0, 10, 10, 10))
        session = FetchSessions(1).open(requested, 0, by_id=False)
        assert session is not None
        for partition in requested:
            partition.reset_for_next()
        self.session = session
        self.answers: list[list[bytes] | None] = []

    def fetch(self, *forgotten: PartitionKey) -> None:
        """Send a request that forgets these partitions."""
        state = self.client.handler_state.fetch = continue_session(
            self.services, self.client, self.session, self.params
        )
        self.session.update([], forgotten)
        state.start(self.params, self.answers.append)

    def idle_fetch(self, *forgotten: PartitionKey) -> list[bytes] | None:
        """The response to a request that waits until its deadline."""
        self.fetch(*forgotten)
        assert not self.answers
        self.clock.advance(self.clock.now_s + 2)
        return self.answers.pop()

    @property
    def nothing(self) -> list[bytes]:
        return encode_response(VERSION, (), session_id=self.session.id)


@pytest.fixture
def scene() -> Scene:
    scene = Scene(partitions=2)
    assert scene.idle_fetch() == scene.nothing
    return scene


def test_a_partition_that_changed_before_it_was_forgotten_is_not_returned(scene: Scene) -> None:
    scene.logs[0].grow()
    assert scene.idle_fetch(("t", 0)) == scene.nothing
    assert not scene.logs[0].listeners
    assert not scene.logs[0].reads


def test_a_forgotten_partition_is_not_read_when_its_log_grows(scene: Scene) -> None:
    scene.logs[0].grow()
    scene.fetch(("t", 0))
    scene.logs[0].grow()
    assert not scene.logs[0].reads


def test_a_forgotten_partition_does_not_return_after_a_throttled_response(scene: Scene) -> None:
    log = scene.logs[0]
    log.log_start = 5
    log.change()
    scene.fetch()
    scene.clock.advance(scene.clock.now_s + 2)
    told = scene.answers.pop()
    assert told != scene.nothing
    assert scene.idle_fetch(("t", 0)) == scene.nothing
    # The response without partitions is throttled, which takes nothing back.
    assert scene.client.handler_state.fetch.empty_throttled_response() == scene.nothing
    assert scene.idle_fetch() == scene.nothing


def test_a_log_that_was_closed_during_a_read_is_located_again(scene: Scene) -> None:
    """Also if the read ends after the time of the request: nothing reports changes of a closed log."""
    log = scene.logs[0]
    log.grow()
    scene.fetch()
    log.log_end -= 1
    (done,) = log.reads
    log.close()
    scene.clock.advance(scene.clock.now_s + 2)
    done(Fetched(b"", 0, -1, -1, log.log_end, log.ends))
    scene.answers.clear()
    successor = scene.logs[0] = Log()
    successor.grow()
    scene.fetch()
    (done,) = successor.reads
    done(Fetched(RECORDS, 1, -1, -1, successor.log_end, successor.ends))
    (body,) = scene.answers
    assert body is not None
    assert RECORDS in body


class CachedLog(Log):
    """A log with a tail cache, which holds one batch at its end."""

    def cached(self, offset: int, _: int, remaining_bytes: int | None, **__: Any) -> list[bytes]:
        fits = remaining_bytes is None or len(RECORDS) <= remaining_bytes
        return [RECORDS] if offset < self.log_end and fits else []


def test_the_first_batch_is_returned_after_partitions_without_records(scene: Scene) -> None:
    """However large it is (KIP-74)."""
    scene.logs[:] = CachedLog(), CachedLog()
    for partition in scene.session.partitions.values():
        partition.log = None
    scene.logs[1].log_end += 1
    # A request that does not wait reads all partitions.
    scene.params = msgspec.structs.replace(scene.params, max_bytes=1, max_wait_ms=0, reads_at_end=True)
    scene.fetch()
    (body,) = scene.answers
    assert body is not None
    assert RECORDS in body
