"""Which partitions a connection's full fetches look at, read and return."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from korvet.api.common.context import HandlerState
from korvet.api.common.request_counts import RequestCounts
from korvet.api.fetching.deadlines import Deadlines
from korvet.api.fetching.full_fetch import FullFetch
from korvet.api.fetching.memory import FetchMemory
from korvet.api.fetching.params import FetchParams
from korvet.api.fetching.partition import FetchedPartition
from korvet.api.fetching.pending_fetch import PendingFetch
from korvet.api.fetching.response import encode_response
from korvet.log.values import Ends, Fetched
from korvet.protocol import registry
from korvet.protocol.fetch_request import FetchRequest, FetchTopic, requested_partition
from korvet.redis.errors import StorageFault
from tests.unit.api.test_deadlines import Clock
from tests.unit.api.test_pending_fetch import VERSION, Log

END = 10


def request(*asked: tuple[int, int], max_wait_ms: int = 1000) -> FetchRequest:
    """A full fetch of partitions of one topic: (index, offset)."""
    entries = [struct.pack(">iiqiqi", index, -1, offset, -1, -1, 1 << 16) for index, offset in asked]
    return FetchRequest(max_wait_ms, 1, 1 << 19, 0, 0, -1, (FetchTopic("t", entries),), ())


class Scene:
    """A client and the logs of one topic. Reads are answered at once."""

    def __init__(self, partitions: int = 3) -> None:
        self.clock = Clock()
        self.logs = [Log() for _ in range(partitions)]
        self.services: Any = SimpleNamespace(
            topics=SimpleNamespace(get=lambda name: name, log_of=lambda _, index: self.logs[index]),
            deadlines=Deadlines(self.clock),  # type: ignore[arg-type]
            fetch_memory=FetchMemory(1 << 24, self.clock),  # type: ignore[arg-type]
            native_watcher=SimpleNamespace(is_current=False),
        )
        self.client: Any = SimpleNamespace(
            session=SimpleNamespace(access=None), handler_state=HandlerState(), unsent_bytes=0
        )
        self.fetch: PendingFetch | None = None
        self.read: list[int] = []
        """The partitions that the last request read, in order."""

    def ask(self, asked: FetchRequest, version: int = VERSION, *, is_committed: bool = False) -> bytes:
        """The response body to a request, for which its time passes."""
        params = FetchParams.of(version, asked, 100)
        params = replace(params, is_committed=is_committed)
        if self.fetch is None or not self.fetch.continues(asked, params):
            if self.fetch is not None:
                self.fetch.release()
            strategy = FullFetch(self.services, self.client, asked, params)
            self.fetch = PendingFetch(self.services, self.client, strategy, params)
            self.client.handler_state.fetch = self.fetch
        self.read = []
        answers: list[list[bytes] | None] = []
        for log in self.logs:
            log.reads = Reads(self, log)
        self.fetch.start(params, answers.append)
        self.answer_reads()
        if not answers:
            assert params.max_wait_ms > 0
            self.clock.advance(self.clock.now_s + 2)
        (body,) = answers
        assert body is not None
        return b"".join(body)

    def answer_reads(self) -> None:
        for log in self.logs:
            while log.reads:
                log.reads.pop()(Fetched(b"", 0, -1, -1, log.log_end, log.ends))

    @property
    def looked_at(self) -> set[int]:
        """The partitions that the next request looks at, if it is the same again."""
        assert self.fetch is not None
        return {partition.index for partition in self.fetch._strategy.partitions}

    @property
    def listened(self) -> list[int]:
        return [index for index, log in enumerate(self.logs) if log.listeners]


class Reads(list[Any]):
    """The reads of a log under way, which notes them."""

    def __init__(self, scene: Scene, log: Log) -> None:
        self._scene, self._log = scene, log

    def append(self, done: Any) -> None:
        self._scene.read.append(self._scene.logs.index(self._log))
        super().append(done)


def expected(
    scene: Scene, asked: FetchRequest, version: int = VERSION, *, is_committed: bool = False
) -> bytes:
    """The response to a request that finds no records: the last entry of each partition counts."""
    partitions: dict[int, FetchedPartition] = {}
    for entry in asked.topics[0].entries:
        named = requested_partition(version, entry)
        partition = FetchedPartition("t", named.index, named.offset, named.max_bytes)
        partition.found_nothing(scene.logs[named.index].state)  # type: ignore[arg-type]
        partitions[named.index] = partition
    return b"".join(encode_response(version, partitions.values(), is_committed=is_committed))


@pytest.fixture
def scene() -> Scene:
    """All three partitions are settled."""
    scene = Scene()
    assert scene.ask(ALL) == expected(scene, ALL)
    assert scene.looked_at == set()
    return scene


ALL = request((0, END), (1, END), (2, END))


def test_a_settled_partition_is_looked_at_once_its_log_has_changed(scene: Scene) -> None:
    scene.logs[1].log_start = 4
    scene.logs[1].change()
    assert scene.looked_at == {1}
    assert scene.ask(ALL) == expected(scene, ALL)
    assert scene.looked_at == set()


def test_a_log_that_grows_is_read(scene: Scene) -> None:
    scene.logs[2].grow()
    scene.ask(ALL)
    assert scene.read == [2]
    # Whose records were not returned yet.
    assert scene.looked_at == {2}


@pytest.mark.parametrize(
    "asked",
    [
        request((2, END), (0, END), (1, END)),
        request((1, END)),
        request((1, END), max_wait_ms=500),
        request((0, END), (1, END), (2, END - 1)),
        request(),
    ],
)
def test_a_request_of_other_partitions_continues_the_last_one(scene: Scene, asked: FetchRequest) -> None:
    fetch = scene.fetch
    assert scene.ask(asked) == expected(scene, asked)
    assert scene.fetch is fetch
    indexes = {requested_partition(VERSION, entry).index for entry in asked.topics[0].entries}
    assert scene.listened == sorted(indexes)


def test_only_partitions_at_another_position_are_read(scene: Scene) -> None:
    scene.ask(request((0, END), (1, END - 1), (2, END)))
    assert scene.read == [1]
    scene.ask(request((0, END), (1, END), (2, END)))
    assert scene.read == []
    assert scene.looked_at == set()


def test_partitions_are_read_in_the_order_of_the_request(scene: Scene) -> None:
    for index in (1, 0, 2):
        scene.logs[index].grow()
    scene.ask(request((2, END), (0, END), (1, END)))
    assert scene.read == [2, 0, 1]


def test_a_log_that_was_closed_during_a_read_is_located_again() -> None:
    """Also if the read ends after the time of the request: nothing reports changes of a closed log."""
    scene = Scene(partitions=1)
    asked = request((0, END))
    assert scene.ask(asked) == expected(scene, asked)
    scene.logs[0].grow()
    fetch, answers = scene.fetch, []
    assert fetch is not None
    fetch.start(FetchParams.of(VERSION, asked, 100), answers.append)
    (done,) = scene.logs[0].reads
    scene.logs[0].log_end = END
    scene.logs[0].close()
    scene.clock.advance(scene.clock.now_s + 2)
    done(Fetched(b"", 0, -1, -1, END, Ends(0, 0, END, END, END)))
    assert len(answers) == 1
    successor = scene.logs[0] = Log()
    successor.grow()
    scene.ask(asked)
    assert scene.read == [0]


def test_a_partition_whose_read_fails_is_listened_to_no_more(scene: Scene) -> None:
    """As in a session: its key may fail the watcher's question for all logs."""
    scene.services.requests = RequestCounts(registry.registered())
    fetch, answers = scene.fetch, []
    assert fetch is not None
    fetch.start(FetchParams.of(VERSION, ALL, 100), answers.append)
    scene.logs[1].grow()
    (done,) = scene.logs[1].reads
    done(StorageFault("the key is no stream"))
    assert len(answers) == 1
    assert scene.listened == [0, 2]


def test_beside_a_failing_partition_the_others_are_listened_to() -> None:
    """Nothing waits for them while the error is returned at once. The failing one may fail the watcher's
    question for all of them.
    """
    scene = Scene()
    scene.services.requests = RequestCounts(registry.registered())
    scene.logs[1].close()
    scene.ask(ALL)
    assert scene.read == []
    assert scene.listened == [0, 2]
    assert scene.looked_at == {1}


@pytest.mark.parametrize(
    ("asked", "version", "is_committed"),
    [
        (request((0, END), (1, END), (0, END)), VERSION, False),
        (request((1, END - 1), (1, END - 2)), VERSION, False),
        (ALL, VERSION, True),
        (ALL, 15, False),
    ],
)
def test_another_kind_of_request_starts_from_nothing(
    scene: Scene, asked: FetchRequest, version: int, is_committed: bool
) -> None:
    """Also one that names a partition twice."""
    fetch = scene.fetch
    if version > VERSION:
        asked = replace(asked, topics=(FetchTopic(UUID(int=1), asked.topics[0].entries),))
        scene.services.topics.by_id = lambda _: SimpleNamespace(name="t")
    scene.ask(asked, version, is_committed=is_committed)
    assert scene.fetch is not fetch


def test_a_client_that_does_not_wait_reads_until_the_watcher_knows_the_ends() -> None:
    scene = Scene()
    asked = replace(ALL, max_wait_ms=0)
    # A single request is not worth the listening.
    assert scene.ask(asked) == expected(scene, asked)
    assert scene.read == [0, 1, 2]
    assert scene.listened == []
    for _ in range(2):
        scene.ask(asked)
        assert scene.read == [0, 1, 2]
        assert scene.listened == [0, 1, 2]
    scene.services.native_watcher.is_current = True
    assert scene.ask(asked) == expected(scene, asked)
    assert scene.read == []
    scene.logs[1].grow()
    scene.ask(asked)
    assert scene.read == [1]
    scene.services.native_watcher.is_current = False
    scene.ask(asked)
    assert scene.read == [0, 1, 2]


@given(data=st.data())
def test_responses_are_those_of_a_client_that_starts_from_nothing(data: st.DataObject) -> None:
    """Whatever changes between the requests."""
    scene = Scene()
    offsets = st.sampled_from([END - 1, END, END + 1])
    requests = st.lists(st.tuples(st.integers(0, 2), offsets), max_size=4).map(lambda asked: request(*asked))
    for _ in range(data.draw(st.integers(1, 5))):
        asked = data.draw(requests)
        assert scene.ask(asked) == expected(scene, asked)
        assert scene.ask(asked) == expected(scene, asked)
        for index in data.draw(st.sets(st.integers(0, 2))):
            scene.logs[index].log_start += 1
            scene.logs[index].change()
        for index in data.draw(st.sets(st.integers(0, 2), max_size=1)):
            scene.logs[index].grow()
            scene.answer_reads()
