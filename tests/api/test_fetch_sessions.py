"""Fetch sessions (KIP-227) on the wire: what opens, continues and closes them, and what responses contain."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.api.asking import Client, connect, versions
from tests.api.batches import batch, read
from tests.api.test_produce import put
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

OUT_OF_RANGE, UNKNOWN_TOPIC, SESSION_NOT_FOUND, INVALID_EPOCH = 1, 3, 70, 71
UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID, TOPIC_ID_ERROR = 75, 100, 106
BY_NAME, BY_ID = 12, 17
ALL = 10**8
# Longer than a client waits for a response.
LONG_MS = 60_000


class Session:
    """The requests of one session. Partitions are (topic, partition, offset[, further fields])."""

    def __init__(self, ask: Client, version: int = BY_NAME, **fields: Any) -> None:
        self.ask = ask
        self.version = version
        self.id = 0
        self.epoch = 0
        self.fields = {"max_wait": 0, "min_bytes": 1, "max_bytes": ALL, "isolation_level": 0} | fields

    def send(self, *parts: Any, forget: Any = (), **more: Any) -> None:
        topics = [
            {
                "topic": part[0],
                "topic_id": part[0],
                "partitions": [
                    {
                        "partition": part[1],
                        "fetch_offset": part[2],
                        "partition_max_bytes": ALL,
                        "current_leader_epoch": -1,
                    }
                    | (part[3] if part[3:] else {})
                ],
            }
            for part in parts
        ]
        forgotten = [{"topic": name, "topic_id": name, "partitions": [index]} for name, index in forget]
        fields = self.fields | {
            "session_id": self.id,
            "session_epoch": self.epoch,
            "topics": topics,
            "forgotten_topics_data": forgotten,
        }
        self.ask.send("Fetch", self.version, **(fields | more))

    def receive(self) -> Any:
        """The response. Unless it is an error, the session continues with the next epoch."""
        answer = self.ask.receive("Fetch", self.version)
        if answer.error_code == 0 and self.epoch >= 0:
            self.id = answer.session_id
            self.epoch = self.epoch + 1 if self.id else 0
        return answer

    def answer(self, *parts: Any, **fields: Any) -> Any:
        self.send(*parts, **fields)
        return self.receive()

    def fetch(self, *parts: Any, **fields: Any) -> list[Any]:
        """The partitions in the response."""
        answer = self.answer(*parts, **fields)
        assert answer.error_code == 0
        return told(answer)


def told(answer: Any) -> list[Any]:
    return [part for topic in answer.responses for part in topic.partitions]


def found(parts: list[Any]) -> list[tuple[int, list[bytes]]]:
    """Partitions with their records' keys."""
    return [(part.partition_index, keys(part)) for part in parts]


def keys(part: Any) -> list[bytes]:
    return [key for _, key, _ in read(part.records)]


def fill(ask: Client, topic: str, *names: str, partition: int = 0) -> int:
    """Append a record per name. Returns the offset after the last one."""
    end = 0
    for name in names:
        result = put(ask, topic, batch([(name.encode(), b"v" * 1000)]), partition=partition)
        assert result.error_code == 0
        end = result.base_offset + 1
    return end


@versions("Fetch", since=7)
def test_a_session(ask, new_topic, topic_ids, version):
    topic = new_topic(2)
    name = topic_ids(topic) if version >= 13 else topic
    first = fill(ask, topic, "a", "b")
    session = Session(ask, version)
    parts = session.fetch((name, 0, 0), (name, 1, 0))
    assert session.id > 0
    assert found(parts) == [(0, [b"a", b"b"]), (1, [])]
    # Only the position has changed.
    assert session.fetch((name, 0, first)) == []
    assert session.fetch() == []
    second = fill(ask, topic, "c")
    other = fill(ask, topic, "x", partition=1)
    assert sorted(found(session.fetch())) == [(0, [b"c"]), (1, [b"x"])]
    # The position stays the same unless the request contains another one.
    assert sorted(found(session.fetch())) == [(0, [b"c"]), (1, [b"x"])]
    assert found(session.fetch((name, 0, second))) == [(1, [b"x"])]
    assert session.fetch(forget=[(name, 1)]) == []
    fill(ask, topic, "y", partition=1)
    assert session.fetch() == []
    assert found(session.fetch((name, 1, other))) == [(1, [b"y"])]
    session.epoch = -1
    assert found(session.fetch((name, 0, first))) == [(0, [b"c"])]
    session.epoch = 9
    assert session.answer().error_code == SESSION_NOT_FOUND


@versions("Fetch", since=7)
def test_a_session_that_nobody_began(ask, version):
    session = Session(ask, version)
    session.id, session.epoch = 77, 3
    answer = session.answer()
    assert (answer.error_code, answer.session_id, answer.responses) == (SESSION_NOT_FOUND, 0, ())


@versions("Fetch", since=4, until=6)
def test_versions_without_sessions(ask, topic, version):
    fill(ask, topic, "a")
    session = Session(ask, version)
    for _ in range(2):
        session.send((topic, 0, 0))
        assert found(told(ask.receive("Fetch", version))) == [(0, [b"a"])]


def test_epochs(ask, another, topic):
    session = Session(ask)
    session.fetch((topic, 0, 0))
    for epoch in (2, 3, -2, 2**31 - 1):
        session.epoch = epoch
        answer = session.answer()
        assert (answer.error_code, answer.session_id, answer.responses) == (INVALID_EPOCH, 0, ())
    session.epoch = 1
    assert session.fetch() == []
    # The same request once more, as from a client that did not receive the response.
    session.epoch = 1
    assert session.answer().error_code == INVALID_EPOCH
    session.epoch = 2
    assert session.fetch() == []


def test_a_full_fetch_closes_the_session_that_it_names(ask, topic):
    session = Session(ask)
    session.fetch((topic, 0, 0))
    first = session.id
    session.epoch = 0
    assert len(session.fetch((topic, 0, 0))) == 1
    assert session.id not in (0, first)
    session.id, session.epoch = first, 1
    assert session.answer().error_code == SESSION_NOT_FOUND


def test_a_final_fetch_opens_none(ask, topic):
    session = Session(ask)
    session.epoch = -1
    answer = session.answer((topic, 0, 0))
    assert (answer.error_code, answer.session_id, len(told(answer))) == (0, 0, 1)


def test_a_session_without_partitions_ends(ask, topic):
    session = Session(ask)
    session.fetch((topic, 0, 0))
    gone = session.id
    answer = session.answer(forget=[(topic, 0)])
    assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, ())
    session.id, session.epoch = gone, 2
    for _ in range(2):
        assert session.answer().error_code == SESSION_NOT_FOUND


def test_names_and_ids_do_not_mix(ask, topic, topic_ids):
    topic_id = topic_ids(topic)
    for opened, other in ((BY_NAME, BY_ID), (BY_ID, BY_NAME)):
        session = Session(ask, opened)
        session.fetch((topic_id if opened == BY_ID else topic, 0, 0))
        session.version = other
        answer = session.answer()
        assert (answer.error_code, answer.session_id) == (TOPIC_ID_ERROR, 0)
        session.version = opened
        assert session.fetch() == []


def test_errors_are_told_each_time_until_they_are_over(ask, topic, fresh, new_topic):
    later = fresh("later")
    session = Session(ask, max_wait=100)
    parts = session.fetch((later, 0, 0), (topic, 7, 0), (topic, 0, 0))
    assert [part.error_code for part in parts] == [UNKNOWN_TOPIC, UNKNOWN_TOPIC, 0]
    for _ in range(2):
        assert [part.error_code for part in session.fetch()] == [UNKNOWN_TOPIC] * 2
    session.fields["max_wait"] = LONG_MS
    (part,) = session.fetch((topic, 0, 10**15), forget=[(topic, 7), (later, 0)])
    assert part.error_code == OUT_OF_RANGE
    (part,) = session.fetch((topic, 0, 0, {"current_leader_epoch": 5}))
    assert part.error_code == UNKNOWN_LEADER_EPOCH
    # The end of the error is news.
    (part,) = session.fetch((topic, 0, 0), max_wait=0)
    assert (part.error_code, part.high_watermark) == (0, 0)
    assert session.fetch(max_wait=0) == []


def test_topics_that_are_made_and_deleted(ask, another, topic, topic_ids, new_topic):
    """By ID: a topic that is created again under the same name is another topic."""
    session = Session(ask, BY_ID)
    topic_id = topic_ids(topic)
    other = new_topic()
    parts = session.fetch((uuid.uuid4(), 0, 0), (topic_id, 0, 0), (topic_ids(other), 0, 0))
    assert [part.error_code for part in parts] == [UNKNOWN_TOPIC_ID, 0, 0]
    session = Session(ask, BY_ID, max_wait=LONG_MS)
    session.fetch((topic_id, 0, 0), (topic_ids(other), 0, 0), max_wait=0)
    session.send()
    states = [{"name": topic, "topic_id": None}]
    (deleted,) = another()("DeleteTopics", 6, topics=states, timeout=10_000).responses
    assert deleted.error_code == 0
    (part,) = told(session.receive())
    assert part.error_code in (UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID)
    assert [part.error_code for part in session.fetch(max_wait=0)] == [UNKNOWN_TOPIC_ID]


def test_a_waiting_fetch_is_woken(ask, another, new_topic):
    topic = new_topic(50)
    session = Session(ask, max_wait=LONG_MS)
    session.fetch(*((topic, index, 0) for index in range(50)), max_wait=0)
    writer = another()
    for index in (3, 44, 3):
        session.send()
        fill(writer, topic, "new", partition=index)
        parts = told(session.receive())
        assert {part.partition_index for part in parts} == {index}
        session.fetch((topic, index, parts[0].high_watermark), max_wait=0)


def test_what_the_full_fetch_gave_is_not_given_again(ask, topic, fresh):
    """With requests that wait, which skip partitions that are known to have no news."""
    end = fill(ask, topic, "a", "b")
    session = Session(ask, max_wait=200)
    assert found(session.fetch((topic, 0, 0))) == [(0, [b"a", b"b"])]
    for parts in ([(topic, 0, end)], [], []):
        assert session.fetch(*parts) == []
    session = Session(ask, max_wait=200)
    later = fresh("later")
    assert [part.error_code for part in session.fetch((topic, 0, 0), (later, 0, 0))] == [0, UNKNOWN_TOPIC]
    wanted = {"name": later, "num_partitions": 1, "replication_factor": 1}
    made = ask("CreateTopics", 7, topics=[wanted], timeout=10_000, validate_only=False).topics
    assert made[0].error_code == 0
    assert put(ask, later, batch([(b"made", b"v")])).error_code == 0
    parts = until(
        lambda: [part for part in session.fetch((topic, 0, end)) if not part.error_code], 20, "made"
    )
    assert [keys(part) for part in parts] == [[b"made"]]


def test_an_idle_fetch_waits_its_time(ask, topic):
    session = Session(ask, max_wait=200)
    session.fetch((topic, 0, 0), max_wait=0)
    for _ in range(3):
        started = time.monotonic()
        assert session.fetch() == []
        assert time.monotonic() - started >= 0.199


def test_entries_of_native_writers(ask, topic, korvet):
    session = Session(ask, max_wait=LONG_MS)
    session.fetch((topic, 0, 0), max_wait=0)
    for _ in range(2):
        assert session.fetch(max_wait=100) == []
    session.send()
    korvet.redis.xadd(f"korvet:{topic}:0", {"key": "native", "value": "v"})
    (part,) = told(session.receive())
    assert keys(part) == [b"native"]


def test_entries_of_native_writers_beside_a_failing_partition(ask, new_topic, korvet):
    """The error is answered at once, so no fetch waits for changes of the other partitions."""
    topic = new_topic(2)
    session = Session(ask, max_wait=LONG_MS)
    session.fetch((topic, 1, 10**15), (topic, 0, 0))
    korvet.redis.xadd(f"korvet:{topic}:0", {"key": "native", "value": "v"})

    def arrived() -> bool:
        failed, *others = sorted(session.fetch(), key=lambda part: -part.error_code)
        assert failed.error_code == OUT_OF_RANGE
        return any(keys(part) == [b"native"] for part in others)

    until(arrived, 10, "the native entry")


def test_a_session_waits_for_its_other_partitions_if_one_is_unknown(ask, another, new_topic, fresh, korvet):
    topic, never = new_topic(2), fresh("never")
    session = Session(ask, max_wait=300)
    session.fetch((topic, 0, 0), (never, 0, 0), (topic, 1, 0), max_wait=0)
    for _ in range(2):
        started = time.monotonic()
        assert [part.error_code for part in session.fetch()] == [UNKNOWN_TOPIC]
        assert time.monotonic() - started >= 0.299
    session.fields["max_wait"] = LONG_MS
    session.send()
    fill(another(), topic, "new", partition=1)
    failed, part = sorted(told(session.receive()), key=lambda part: -part.error_code)
    assert failed.error_code == UNKNOWN_TOPIC
    end = part.high_watermark
    assert keys(part) == [b"new"]
    session.send((topic, 1, end))
    korvet.redis.xadd(f"korvet:{topic}:0", {"key": "native", "value": "v"})
    failed, part = sorted(told(session.receive()), key=lambda part: -part.error_code)
    assert failed.error_code == UNKNOWN_TOPIC
    assert keys(part) == [b"native"]
    # Nothing is left to wait for.
    for _ in range(2):
        (failed,) = session.fetch(forget=[(topic, 0), (topic, 1)])
        assert failed.error_code == UNKNOWN_TOPIC


def test_a_log_start_that_moves_is_news(ask, another, topic):
    end = fill(ask, topic, "a", "b")
    session = Session(ask, max_wait=300)
    assert len(session.fetch((topic, 0, end))) == 1
    assert session.fetch() == []
    wanted = {"name": topic, "partitions": [{"partition_index": 0, "offset": end}]}
    (deleted,) = another()("DeleteRecords", 2, topics=[wanted], timeout=10_000).topics
    assert deleted.partitions[0].error_code == 0
    (part,) = session.fetch()
    assert (part.log_start_offset, part.high_watermark, part.records) == (end, end, b"")
    assert session.fetch() == []


def test_everybody_gets_a_turn(ask, new_topic):
    """A response that cannot hold everything begins with the partitions that the last ones left out."""
    topic = new_topic(5)
    for index in range(5):
        fill(ask, topic, str(index), partition=index)
    session = Session(ask, max_bytes=2_500)
    seen = found(session.fetch(*((topic, index, 0) for index in range(5))))
    turns = [[index for index, records in seen if records]]
    turns += [[index for index, records in found(session.fetch()) if records] for _ in range(4)]
    # The full fetch opened the session, in the order of its partitions.
    assert turns == [[0, 1], [0, 1], [2, 3], [4, 0], [1, 2]]


@pytest.mark.parametrize("isolation", [0, 1])
def test_both_isolation_levels(ask, topic, isolation):
    session = Session(ask, isolation_level=isolation)
    session.fetch((topic, 0, 0))
    end = fill(ask, topic, "a")
    assert found(session.fetch()) == [(0, [b"a"])]
    assert session.fetch((topic, 0, end)) == []
    fill(ask, topic, "b")
    # The other isolation level in the same session.
    assert found(session.fetch(isolation_level=1 - isolation)) == [(0, [b"b"])]


def test_a_session_outlives_its_connection(ask, another, topic, broker):
    session = Session(another())
    session.fetch((topic, 0, 0))
    session.fetch(max_wait=100)
    session.ask.raw.socket.close()
    fill(ask, topic, "a")
    session.ask = ask
    assert found(session.fetch()) == [(0, [b"a"])]


def test_who_waits_gives_way_to_the_session_on_another_connection(ask, another, topic):
    session = Session(another(), max_wait=LONG_MS)
    session.fetch((topic, 0, 0), max_wait=0)
    session.send()
    late = session.ask
    session.ask, session.epoch = ask, 2
    assert session_goes_on(session)
    answer = late.receive("Fetch", BY_NAME)
    assert (answer.error_code, answer.session_id) == (INVALID_EPOCH, session.id)
    # The first connection may send another request at once.
    assert len(Session(late).fetch((topic, 0, 0))) == 1
    fill(late, topic, "a")
    assert found(session.fetch()) == [(0, [b"a"])]


def session_goes_on(session: Session) -> bool:
    """Send requests until one continues the session, after the waiting one has arrived."""

    def goes_on() -> bool:
        answer = session.answer(max_wait=0)
        assert answer.error_code in (0, INVALID_EPOCH)
        return answer.error_code == 0

    until(goes_on, 10, "the request that waits has arrived")
    return True


@pytest.fixture(scope="module")
def small() -> Iterator[KorvetServer]:
    """A server with room for two sessions."""
    with KorvetServer("--set", "max.incremental.fetch.session.cache.slots=2") as server:
        yield server


def test_full_caches_and_restarts(small):
    """Without room no session opens, and fetches work without one. A restart forgets all sessions."""
    with connect(small) as client:
        wanted = {"name": "t", "num_partitions": 3, "replication_factor": 1}
        made = client("CreateTopics", 7, topics=[wanted], timeout=10_000, validate_only=False).topics
        assert made[0].error_code == 0
        sessions = [Session(client) for _ in range(3)]
        for session in sessions:
            session.fetch(("t", 0, 0), ("t", 1, 0))
        assert [session.id > 0 for session in sessions] == [True, True, False]
        sessions[2].epoch = 0
        assert len(sessions[2].fetch(("t", 0, 0))) == 1
        sessions[0].epoch = -1
        sessions[0].fetch()
        sessions[2].epoch = 0
        sessions[2].fetch(("t", 0, 0))
        assert sessions[2].id > 0
        assert sessions[2].fetch() == []
    small.kill()
    small.start()
    with connect(small) as client:
        again = sessions[2]
        again.ask = client
        assert again.answer().error_code == SESSION_NOT_FOUND
        again.id = again.epoch = 0
        assert len(again.fetch(("t", 0, 0))) == 1
        assert again.fetch() == []
