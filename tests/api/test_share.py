"""ShareFetch and ShareAcknowledge (KIP-932): sessions, limits, waiting, acknowledgements, and errors."""

from __future__ import annotations

import itertools
import os
import signal
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.api.asking import Client, connect, versions
from tests.api.batches import batch, read
from tests.api.test_produce import put
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC, NOT_LEADER, INVALID_REQUEST = -1, 3, 6, 42
UNKNOWN_TOPIC_ID, INVALID_RECORD_STATE, NO_SESSION, INVALID_EPOCH = 100, 121, 122, 123
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
OPEN, CLOSE = 0, -1
MEMBER = "member"
_serial = itertools.count()


@pytest.fixture(scope="module")
def pages() -> Pages:
    """The server's admin endpoint."""
    return Pages(free_port())


@pytest.fixture(scope="module")
def server(pages: Pages) -> Iterator[KorvetServer]:
    """A server with share groups."""
    settings = (f"admin.listen=127.0.0.1:{pages.port}", "group.share.min.record.lock.duration.ms=1000")
    with KorvetServer(*(f"--set={setting}" for setting in settings)) as server:
        yield server


class Member:
    """A member of a share group, with a connection of its own."""

    def __init__(self, server: KorvetServer, group: str, name: str = MEMBER, version: int = 2) -> None:
        self.client = Client(server.host, server.port, {78: (1, 2), 79: (1, 2)})
        self.group, self.name, self.version = group, name, version
        self.epoch = OPEN

    def send(self, *parts: Any, forgotten: Any = (), **fields: Any) -> None:
        defaults = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "share_session_epoch": self.epoch,
        }
        self.client.send(
            "ShareFetch",
            self.version,
            group_id=self.group,
            member_id=self.name,
            topics=topics_of(parts),
            forgotten_topics_data=forgotten,
            **{**defaults, **fields},
        )

    def receive(self) -> Any:
        answer = self.client.receive("ShareFetch", self.version)
        if not answer.error_code:
            self.epoch += 1
        return answer

    def fetch(self, *parts: Any, **fields: Any) -> Any:
        self.send(*parts, **fields)
        return self.receive()

    def acknowledge(self, *parts: Any, **fields: Any) -> Any:
        answer = self.client(
            "ShareAcknowledge",
            self.version,
            **{
                "group_id": self.group,
                "member_id": self.name,
                "share_session_epoch": self.epoch,
                "topics": topics_of(parts),
                **fields,
            },
        )
        if not answer.error_code:
            self.epoch += 1
        return answer


def topics_of(parts: Any) -> list[dict[str, Any]]:
    """Parts are (topic id, partition[, (first, last, types) …])."""
    return [
        {
            "topic_id": topic_id,
            "partitions": [
                {
                    "partition_index": index,
                    "acknowledgement_batches": [
                        {"first_offset": first, "last_offset": last, "acknowledge_types": types}
                        for first, last, types in batches
                    ],
                }
            ],
        }
        for topic_id, index, *batches in parts
    ]


def configure(queue: Any, **configs: str) -> None:
    """Set configs of the group."""
    changed = [{"name": name, "config_operation": 0, "value": value} for name, value in configs.items()]
    resource = {"resource_type": 32, "resource_name": queue.group, "configs": changed}
    (done,) = queue.ask("IncrementalAlterConfigs", 1, resources=[resource]).responses
    assert not done.error_code


def partitions(answer: Any) -> list[Any]:
    assert not answer.error_code, answer
    return [partition for topic in answer.responses for partition in topic.partitions]


def runs(answer: Any) -> list[tuple[int, int, int]]:
    return [
        (run.first_offset, run.last_offset, run.delivery_count)
        for partition in partitions(answer)
        for run in partition.acquired_records
    ]


def values(answer: Any) -> list[Any]:
    return [
        value
        for partition in partitions(answer)
        if partition.records
        for _, _, value in read(partition.records)
    ]


@pytest.fixture
def queue(server: KorvetServer) -> Iterator[Any]:
    """A topic, a group that takes its records, and members."""
    number = next(_serial)
    members: list[Member] = []
    with connect(server) as ask:

        def new_topic(partitions: int = 1, **configs: str) -> tuple[str, uuid.UUID]:
            name = f"queue-{next(_serial)}"
            topic = {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": 1,
                "configs": [{"name": key, "value": value} for key, value in configs.items()],
            }
            (made,) = ask("CreateTopics", 7, topics=[topic], timeout=10_000).topics
            assert not made.error_code
            starts = [{"partition_index": index, "start_offset": 0} for index in range(partitions)]
            until(lambda: altered(name, starts) == 0, 20, "a coordinator")
            return name, made.topic_id

        def altered(name: str, starts: Any) -> Any:
            topics = [{"topic_name": name, "partitions": starts}]
            return ask("AlterShareGroupOffsets", 0, group_id=f"group-{number}", topics=topics).error_code

        def member(name: str = MEMBER, **fields: Any) -> Member:
            members.append(Member(server, f"group-{number}", name, **fields))
            return members[-1]

        def add(count: int = 1, value: bytes = b"v") -> list[int]:
            pairs = [(None, value) for _ in range(count)]
            first = put(ask, topic, batch(pairs)).base_offset
            return [*range(first, first + count)]

        topic, topic_id = new_topic()
        yield SimpleNamespace(
            ask=ask,
            topic=topic,
            id=topic_id,
            part=(topic_id, 0),
            group=f"group-{number}",
            member=member,
            add=add,
            new_topic=new_topic,
        )
    for each in members:
        each.client.raw.socket.close()


@pytest.fixture
def member(queue: Any) -> Member:
    """A member that has opened its session."""
    made: Member = queue.member()
    (found,) = partitions(made.fetch(queue.part))
    assert (found.partition_index, found.error_code, found.records) == (0, 0, b"")
    return made


def test_committed_records_of_an_empty_topic(queue: Any) -> None:
    configure(queue, **{"share.isolation.level": "read_committed"})
    member = queue.member()
    (found,) = partitions(member.fetch(queue.part))
    assert (found.error_code, found.error_message) == (0, None)
    (first,) = queue.add()
    assert runs(member.fetch()) == [(first, first, 1)]


@versions("ShareFetch")
def test_acquire_and_accept(queue: Any, version: int) -> None:
    member = queue.member(version=version)
    assert runs(member.fetch(queue.part)) == []
    first, *_, last = queue.add(3)
    found = member.fetch()
    assert runs(found) == [(first, last, 1)]
    assert values(found) == [b"v"] * 3
    assert found.acquisition_lock_timeout.total_seconds() == 30
    (done,) = partitions(member.acknowledge((*queue.part, (first, last, [ACCEPT]))))
    assert (done.error_code, done.error_message) == (0, None)
    assert partitions(member.fetch()) == []


def test_acknowledgements_in_a_fetch(queue: Any, member: Member) -> None:
    first, second, third, fourth = queue.add(4)
    member.fetch()
    again = member.fetch((*queue.part, (first, fourth, [ACCEPT, RELEASE, REJECT, RELEASE])))
    assert runs(again) == [(second, second, 2), (fourth, fourth, 2)]
    (found,) = partitions(again)
    assert found.acknowledge_error_code == 0
    (refused,) = partitions(member.fetch((*queue.part, (first, second, [ACCEPT]), (third, fourth, [ACCEPT]))))
    assert refused.acknowledge_error_code == INVALID_RECORD_STATE
    assert refused.error_code == 0
    assert partitions(member.acknowledge((*queue.part, (second, second, [ACCEPT]))))[0].error_code == 0


def test_records_are_counted(queue: Any, member: Member, pages: Pages) -> None:
    def counts() -> dict[str, int]:
        lines = [line.split() for line in pages.read("/metrics").text.splitlines() if "share" in line]
        return {line[0]: int(line[1]) for line in lines if line[0] != "#" and "consumergroup" not in line[0]}

    partitions_of_sessions = "kafka_server_sharesessioncache_sharepartitionscount"
    until(lambda: counts()[partitions_of_sessions] == 1, 20, "sessions of other tests have ended")
    before = counts()
    first, second, third, fourth = queue.add(4)
    member.fetch()
    member.fetch((*queue.part, (first, third, [ACCEPT, RELEASE, REJECT])))
    member.acknowledge((*queue.part, (first, fourth, [ACCEPT])))
    member.acknowledge((*queue.part, (second, second, [RENEW])), is_renew_ack=True)
    member.fetch(share_session_epoch=CLOSE)
    grown = {name: value - before[name] for name, value in counts().items() if value != before[name]}
    assert grown == {
        'korvet_share_records_total{event="acquired"}': 4,
        'korvet_share_records_total{event="reacquired"}': 1,
        'korvet_share_records_total{event="accepted"}': 1,
        'korvet_share_records_total{event="released"}': 1 + 2,
        'korvet_share_records_total{event="rejected"}': 1,
        'korvet_share_records_total{event="renewed"}': 1,
        "korvet_share_refused_acknowledgements_total": 1,
        "kafka_server_sharesessioncache_sharesessionscount": -1,
        partitions_of_sessions: -1,
    }


def test_partitions_that_only_acknowledge_are_in_the_session(queue: Any) -> None:
    name, other = queue.new_topic()
    member, late = queue.member(), queue.member("late")
    member.fetch((other, 0))
    first = put(queue.ask, name, batch()).base_offset
    assert runs(member.fetch()) == [(first, first, 1)]
    # The session of the late member names the partition in no other way.
    late.fetch(queue.part)
    late.fetch((other, 0, (first, first, [ACCEPT])))
    second = put(queue.ask, name, batch()).base_offset
    assert runs(late.fetch()) == [(second, second, 1)]


def test_epochs(queue: Any, member: Member) -> None:
    for epoch in (1 << 30, 2, member.epoch + 1):
        assert member.fetch(share_session_epoch=epoch).error_code == (
            0 if epoch == member.epoch else INVALID_EPOCH
        )
    assert member.acknowledge(share_session_epoch=OPEN).error_code == INVALID_EPOCH
    assert member.fetch(share_session_epoch=OPEN).error_code == 0
    assert member.acknowledge(share_session_epoch=1).error_code == 0
    assert member.fetch(share_session_epoch=2).error_code == 0
    assert member.fetch(share_session_epoch=CLOSE).error_code == 0
    for ask in (member.fetch, member.acknowledge):
        assert ask(share_session_epoch=3).error_code == NO_SESSION
        assert ask(share_session_epoch=CLOSE).error_code == NO_SESSION


@pytest.mark.parametrize(("mode", "error"), [(0, 0), (1, 0), (2, INVALID_REQUEST), (-1, INVALID_REQUEST)])
def test_acquire_modes(queue: Any, mode: int, error: int) -> None:
    assert queue.member().fetch(queue.part, share_acquire_mode=mode).error_code == error


def test_opening_fetch_cannot_acknowledge(queue: Any) -> None:
    refused = queue.member().fetch((*queue.part, (1, 1, [ACCEPT])))
    assert refused.error_code == INVALID_REQUEST


@pytest.mark.parametrize("how", ["ShareFetch", "ShareAcknowledge"])
def test_closing_acknowledges_and_releases(queue: Any, member: Member, how: str) -> None:
    first, second = queue.add(2)
    member.fetch()
    close = member.fetch if how == "ShareFetch" else member.acknowledge
    (done,) = partitions(close((*queue.part, (first, first, [ACCEPT])), share_session_epoch=CLOSE))
    assert getattr(done, "acknowledge_error_code", done.error_code) == 0
    assert runs(queue.member("next").fetch(queue.part)) == [(second, second, 2)]


def test_lost_connection_releases(queue: Any, member: Member) -> None:
    first, last = queue.add(2)
    other = queue.member("other")
    other.fetch(queue.part, max_records=1)
    member.fetch()
    waiting = queue.member("waiting")
    assert runs(waiting.fetch(queue.part)) == []
    waiting.send(max_wait=20_000)
    member.client.raw.socket.close()
    assert runs(waiting.receive()) == [(last, last, 2)]
    assert partitions(other.acknowledge((*queue.part, (first, first, [ACCEPT]))))[0].error_code == 0


@pytest.mark.parametrize("how", ["lost", "closed"])
def test_a_member_that_returns_keeps_what_it_acquires(server: KorvetServer, queue: Any, how: str) -> None:
    """Its new session begins after the records of its last one are released."""
    for _ in range(5):
        held, waiting = queue.add(2)
        former, following, other = queue.member(), queue.member(), queue.member("other")
        if how == "closed":
            following.client.raw.socket.close()
            following.client.raw = former.client.raw
        assert runs(former.fetch(queue.part, max_records=1)) == [(held, held, 1)]
        # What arrives meanwhile is handled at once then.
        os.kill(server.process.pid, signal.SIGSTOP)
        if how == "lost":
            former.client.raw.socket.close()
        else:
            former.send(share_session_epoch=CLOSE)
        following.send(queue.part, max_records=2)
        os.kill(server.process.pid, signal.SIGCONT)
        if how == "closed":
            assert former.receive().error_code == 0
        assert runs(following.receive()) == [(held, held, 2), (waiting, waiting, 1)]
        assert runs(other.fetch(queue.part)) == []
        (done,) = partitions(following.acknowledge((*queue.part, (held, waiting, [ACCEPT]))))
        assert done.error_code == 0


def test_session_that_moved_to_another_connection_stays(queue: Any, member: Member) -> None:
    (first,) = queue.add()
    moved = queue.member()
    assert runs(moved.fetch(queue.part)) == [(first, first, 1)]
    member.client.raw.socket.close()
    assert runs(queue.member("other").fetch(queue.part, max_wait=200)) == []
    assert partitions(moved.acknowledge((*queue.part, (first, first, [ACCEPT]))))[0].error_code == 0


def test_waiting_fetch_gets_new_records(queue: Any, member: Member) -> None:
    member.send(max_wait=20_000)
    (first,) = queue.add()
    assert runs(member.receive()) == [(first, first, 1)]


def test_waiting_fetch_gets_native_entries(queue: Any, member: Member, stream_client: Any) -> None:
    member.send(max_wait=20_000)
    stream_client.xadd(f"korvet:{queue.topic}:0", {"anything": "else"})
    answer = member.receive()
    assert values(answer) == [b'{"anything":"else"}']


def test_waiting_fetch_gets_released_records(queue: Any, member: Member) -> None:
    (first,) = queue.add()
    other = queue.member("other")
    assert runs(other.fetch(queue.part)) == [(first, first, 1)]
    member.send(max_wait=20_000)
    other.acknowledge((*queue.part, (first, first, [RELEASE])))
    assert runs(member.receive()) == [(first, first, 2)]


def test_waiting_fetch_ends_in_time(queue: Any, member: Member) -> None:
    assert partitions(member.fetch(max_wait=50)) == []
    assert partitions(member.fetch(max_wait=50, min_bytes=0)) == []


def test_limits(queue: Any, member: Member) -> None:
    first, *_, last = queue.add(100, b"x" * 100)
    assert runs(member.fetch(max_records=10, share_acquire_mode=1)) == [(first, first + 9, 1)]
    cut = runs(member.fetch(max_records=10, batch_size=4))
    assert cut == [(first + 10, first + 13, 1), (first + 14, first + 17, 1), (first + 18, first + 19, 1)]
    assert runs(member.fetch(max_bytes=1)) == [(first + 20, first + 20, 1)]
    assert runs(member.fetch(max_records=0)) == []
    assert runs(member.fetch()) == [(first + 21, last, 1)]


def test_limit_of_records_is_one_for_all_partitions(queue: Any) -> None:
    name, topic_id = queue.new_topic(3)
    member = queue.member()
    member.fetch(*((topic_id, index) for index in range(3)))
    for index in range(3):
        put(queue.ask, name, batch([(None, b"v")] * 4), partition=index)
    assert len(values(member.fetch(max_records=6))) == 6
    assert len(values(member.fetch(max_records=6))) == 6
    assert partitions(member.fetch()) == []


def test_fetch_waits_for_min_bytes(queue: Any, member: Member) -> None:
    member.send(max_wait=20_000, min_bytes=300)
    queue.add(1, b"x" * 100)
    queue.add(1, b"x" * 300)
    assert len(values(member.receive())) == 2


def test_forgotten_partitions(queue: Any, member: Member) -> None:
    assert partitions(member.fetch(forgotten=[{"topic_id": queue.id, "partitions": [0]}])) == []
    (first,) = queue.add()
    assert partitions(member.fetch()) == []
    assert runs(member.fetch(queue.part)) == [(first, first, 1)]


def test_renewal(queue: Any, member: Member) -> None:
    (first,) = queue.add()
    member.fetch()
    part = (*queue.part, (first, first, [RENEW]))
    limits = dict.fromkeys(("max_wait", "min_bytes", "max_bytes", "max_records"), 0)
    (done,) = partitions(member.fetch(part, is_renew_ack=True, **limits))
    assert done.acknowledge_error_code == 0
    assert partitions(member.fetch((queue.id, 7), is_renew_ack=True, **limits)) == []
    assert member.fetch(part, is_renew_ack=True).error_code == INVALID_REQUEST
    assert partitions(member.acknowledge(part, is_renew_ack=True))[0].error_code == 0
    assert partitions(member.acknowledge(part))[0].error_code == INVALID_REQUEST


def test_locks_end_although_nobody_asks_for_records(queue: Any, member: Member) -> None:
    """After the last delivery of a record, it is no lag any more."""
    configure(queue, **{"share.record.lock.duration.ms": "1000", "share.delivery.count.limit": "2"})
    offsets = queue.add(2)
    part = (*queue.part, (offsets[0], offsets[0], [RELEASE]))
    assert runs(member.fetch(max_records=1)) == [(offsets[0], offsets[0], 1)]
    assert runs(member.fetch(part)) == [(offsets[0], offsets[0], 2), (offsets[1], offsets[1], 1)]

    def described() -> tuple[int, int]:
        asked = [{"group_id": queue.group, "topics": None}]
        (group,) = queue.ask("DescribeShareGroupOffsets", 1, groups=asked).groups
        ((partition,),) = [topic.partitions for topic in group.topics]
        return partition.start_offset, partition.lag

    assert described() == (offsets[0], 2)
    until(lambda: described() == (offsets[1], 1), 30, lambda: str(described()))
    assert runs(member.fetch()) == [(offsets[1], offsets[1], 2)]


def test_one_record_does_not_use_up_the_deliveries_of_others(queue: Any, member: Member) -> None:
    """As in Kafka 4.4 (KAFKA-17541). The worker fails at one record, so all that it has are released."""
    offsets = queue.add(8)
    fatal, accepted, sizes = offsets[5], list[int](), list[int]()
    found = runs(member.fetch(max_wait=0))
    while found:
        got = [offset for first, last, _ in found for offset in range(first, last + 1)]
        verdict = RELEASE if fatal in got else ACCEPT
        accepted += got if verdict == ACCEPT else []
        sizes.append(len(got))
        ranges = ((first, last, [verdict]) for first, last, _ in found)
        found = runs(member.fetch((*queue.part, *ranges), max_wait=0))
    assert accepted == [offset for offset in offsets if offset != fatal]
    assert sizes == [8, 8, 8, 4, 2, 1, 1, 1, 1]


def test_acknowledgement_past_the_acquired_records(queue: Any, member: Member) -> None:
    """Kafka calls it invalid, but knows no such record if none is acquired."""
    first, last = queue.add(2)
    beyond = (*queue.part, (first, last + 1, [ACCEPT]))
    assert partitions(member.acknowledge(beyond))[0].error_code == INVALID_RECORD_STATE
    member.fetch()
    assert partitions(member.acknowledge(beyond))[0].error_code == INVALID_REQUEST
    assert partitions(member.acknowledge((*queue.part, (first, last, [ACCEPT]))))[0].error_code == 0


@pytest.mark.parametrize(
    "batches",
    [
        [(2, 1, [ACCEPT])],
        [(1, 3, [ACCEPT]), (2, 4, [ACCEPT])],
        [(1, 3, [ACCEPT, ACCEPT])],
        [(1, 1, [])],
        [(1, 1, [5])],
        [(1, 1, [-1])],
    ],
)
def test_invalid_acknowledgements(queue: Any, member: Member, batches: Any) -> None:
    (done,) = partitions(member.acknowledge((*queue.part, *batches)))
    assert done.error_code == INVALID_REQUEST


def test_unknown_places(queue: Any, member: Member) -> None:
    unknown = uuid.uuid4()
    found = partitions(member.fetch((unknown, 0), (queue.id, 7)))
    assert sorted(one.error_code for one in found) == [UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID]
    done = partitions(member.acknowledge((unknown, 0, (1, 1, [ACCEPT])), (queue.id, 7, (1, 1, [ACCEPT]))))
    assert sorted(one.error_code for one in done) == [UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID]


@pytest.mark.parametrize("batches", [[(2, 1, [ACCEPT])], [(1, 1, [])], [(1, 1, [RENEW])]])
def test_an_unknown_topic_counts_more_than_a_wrong_batch(queue: Any, member: Member, batches: Any) -> None:
    """As Kafka has it; a wrong batch counts more than an unknown partition."""
    unknown = uuid.uuid4()
    done = partitions(member.acknowledge((unknown, 0, *batches), (queue.id, 7, *batches)))
    assert [one.error_code for one in done] == [UNKNOWN_TOPIC_ID, INVALID_REQUEST]
    found = partitions(member.fetch((unknown, 0, *batches), (queue.id, 7, *batches)))
    assert [one.acknowledge_error_code for one in found] == [UNKNOWN_TOPIC_ID, INVALID_REQUEST]


def test_acknowledgements_before_the_start_do_nothing(queue: Any, member: Member) -> None:
    first, last = queue.add(2)
    member.fetch()
    part = (*queue.part, (-1, -1, [ACCEPT]), (first, first, [ACCEPT]))
    assert partitions(member.acknowledge(part))[0].error_code == 0
    part = (*queue.part, (-1, -1, [RELEASE]), (first, last, [ACCEPT]))
    assert partitions(member.acknowledge(part))[0].error_code == 0


def test_one_offset_in_two_batches(queue: Any, member: Member) -> None:
    first, last = queue.add(2)
    member.fetch()
    twice = (*queue.part, (first, last, [ACCEPT]), (last, last, [ACCEPT]))
    assert partitions(member.acknowledge(twice))[0].error_code == INVALID_RECORD_STATE
    assert partitions(member.acknowledge((*queue.part, (first, last, [ACCEPT]))))[0].error_code == 0


@pytest.mark.parametrize("limit", ["max_records", "max_bytes"])
def test_a_fetch_of_nothing_tells_of_unknown_places(queue: Any, limit: str) -> None:
    parts = ((uuid.uuid4(), 0), (queue.id, 7))
    found = partitions(queue.member().fetch(*parts, **{limit: 0}))
    assert [one.error_code for one in found] == [UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC]


def test_opening_fetch_forgets_nothing(queue: Any) -> None:
    (first,) = queue.add()
    forgotten = [{"topic_id": queue.id, "partitions": [0]}]
    assert runs(queue.member().fetch(queue.part, forgotten=forgotten)) == [(first, first, 1)]


def test_ids_of_members_are_no_longer_than_a_uuid(queue: Any) -> None:
    for length, refused in ((36, 0), (37, INVALID_REQUEST)):
        member = queue.member("m" * length)
        assert member.fetch(queue.part).error_code == refused
        assert member.acknowledge(share_session_epoch=1).error_code == refused


def test_configs_of_the_group(queue: Any) -> None:
    configs = {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": "2",
        "share.renew.acknowledge.enable": "false",
        "share.record.lock.duration.ms": "15000",
    }
    configure(queue, **configs)
    first, last = queue.add(2)
    member = queue.member()
    found = member.fetch(queue.part)
    assert runs(found) == [(first, last, 1)]
    assert found.acquisition_lock_timeout.total_seconds() == 15
    part = (*queue.part, (first, last, [RENEW]))
    assert partitions(member.acknowledge(part, is_renew_ack=True))[0].error_code == INVALID_RECORD_STATE
    assert partitions(member.acknowledge(part))[0].error_code == INVALID_REQUEST
    assert runs(member.fetch((*queue.part, (first, last, [RELEASE])))) == [(first, last, 2)]
    assert partitions(member.fetch((*queue.part, (first, last, [RELEASE]))))[0].acquired_records == ()


def test_topics_of_batches_are_refused(queue: Any) -> None:
    _, topic_id = queue.new_topic(**{"storage.layout": "batch"})
    (found,) = partitions(queue.member().fetch((topic_id, 0)))
    assert found.error_code == INVALID_REQUEST
    assert "storage.layout=batch" in found.error_message


def test_destroyed_group_is_made_again(queue: Any, member: Member, stream_client: Any) -> None:
    stream_client.xgroup_destroy(f"korvet:{queue.topic}:0", queue.group)
    queue.add()
    assert partitions(member.fetch()) == []
    (first,) = queue.add()
    assert runs(member.fetch()) == [(first, first, 1)]


def test_waiting_fetch_sees_a_group_that_was_set_back(queue: Any, stream_client: Any) -> None:
    """Also long after the last lock has ended."""
    configure(queue, **{"share.record.lock.duration.ms": "1000"})
    member = queue.member()
    member.fetch(queue.part)
    first, last = queue.add(2)
    assert runs(member.fetch()) == [(first, last, 1)]
    assert partitions(member.acknowledge((*queue.part, (first, last, [ACCEPT]))))[0].error_code == 0
    assert runs(member.fetch(max_wait=2_500)) == []
    stream_client.xgroup_setid(f"korvet:{queue.topic}:0", queue.group, "0")
    assert runs(member.fetch(max_wait=15_000)) == [(first, last, 1)]


def test_only_share_groups_take_records(server: KorvetServer, queue: Any, stream_client: Any) -> None:
    def redis_groups() -> dict[bytes, bytes]:
        found = stream_client.xinfo_groups(f"korvet:{queue.topic}:0")
        return {each["name"]: each["last-delivered-id"] for each in found}

    first, *_ = queue.add(3)
    committed = {"partition_index": 0, "committed_offset": first + 1, "committed_metadata": ""}
    fields = {
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": queue.topic, "partitions": [committed]}],
    }
    answer = queue.ask("OffsetCommit", 9, group_id=f"readers-{queue.group}", **fields)
    assert answer.topics[0].partitions[0].error_code == 0
    before = until(lambda: len(found := redis_groups()) == 2 and found, 20, "the commit's Redis group")
    for name in (f"readers-{queue.group}", f"nobody-{queue.group}"):
        stranger = Member(server, name)
        with stranger.client:
            for _ in range(2):
                (refused,) = partitions(stranger.fetch(queue.part))
                assert (refused.error_code, refused.acquired_records) == (UNKNOWN_SERVER_ERROR, ())
    assert redis_groups() == before


def test_a_deleted_group_is_not_made_again(queue: Any, member: Member, stream_client: Any) -> None:
    queue.add(2)
    (deleted,) = queue.ask("DeleteGroups", 2, groups_names=[queue.group]).results
    assert deleted.error_code == 0
    (refused,) = partitions(member.fetch())
    assert refused.error_code == UNKNOWN_SERVER_ERROR
    assert stream_client.xinfo_groups(f"korvet:{queue.topic}:0") == []


def test_native_workers_take_from_the_same_queue(queue: Any, member: Member, stream_client: Any) -> None:
    stream = f"korvet:{queue.topic}:0"
    first, _, third = queue.add(3)
    assert runs(member.fetch(max_records=1)) == [(first, first, 1)]
    ((_, entries),) = stream_client.xreadgroup(queue.group, "native", {stream: ">"}, count=1)
    assert runs(member.fetch()) == [(third, third, 1)]
    stream_client.xack(stream, queue.group, entries[0][0])
    member.acknowledge((*queue.part, (first, first, [ACCEPT]), (third, third, [ACCEPT])))
    until(lambda: stream_client.xpending(stream, queue.group)["pending"] == 0, 5, "all are accepted")
