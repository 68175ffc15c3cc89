"""What clients get while the replica of Redis is late, stopped or gone, and topics ask for it."""

from __future__ import annotations

import re
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.api.asking import connect
from tests.api.batches import batch, read
from tests.api.test_groups import leave, stable
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, read_all, send, take
from tests.support.polling import until
from tests.support.proxy import CuttingProxy
from tests.support.records import NOW_MS, Record
from tests.support.redis_server import server_programs
from tests.support.sentinel import ReplicatedServer
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.api.asking import Client

pytestmark = [pytest.mark.faults]

TOPIC = "kept"
LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE = 5, 7, 15
NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, OFFSET_NOT_AVAILABLE = 19, 20, 78
ALL, LEADER = -1, 1
COMMIT_TIMEOUT_MS = 500
# The broker knows within this time that a replica is gone.
NOTICED_S = 5


@pytest.fixture
def pair(tmp_path: Any) -> Iterator[tuple[ReplicatedServer, ReplicatedServer]]:
    """A primary, and a replica that follows it."""
    made: list[ReplicatedServer] = []
    try:
        primary = ReplicatedServer(server_programs()[0], tmp_path / "primary", None, None)
        made.append(primary)
        replica = ReplicatedServer(server_programs()[0], tmp_path / "replica", None, None)
        made.append(replica)
        replica.client.replicaof("127.0.0.1", primary.port)
        until(lambda: replica.follows(primary), 20, "the replica follows")
        yield primary, replica
    finally:
        for one in made:
            one.stop()


def asking_for_two_copies(redis_port: int) -> KorvetServer:
    settings = {"min.insync.replicas": 2, "offsets.commit.timeout.ms": COMMIT_TIMEOUT_MS}
    settings |= {"offsets.topic.num.partitions": 1}
    options = [each for name, value in settings.items() for each in ("-s", f"{name}={value}")]
    return KorvetServer(*options, redis_url=f"redis://127.0.0.1:{redis_port}")


@pytest.fixture
def broker(pair: tuple[ReplicatedServer, ReplicatedServer]) -> Iterator[KorvetServer]:
    server = asking_for_two_copies(pair[0].port)
    try:
        server.start()
        create_topic(server.bootstrap, TOPIC, 1)
        yield server
    finally:
        server.discard()


@pytest.fixture
def ask(broker: KorvetServer) -> Iterator[Client]:
    with connect(broker) as client:
        yield client


def put(ask: Client, value: bytes, acks: int, timeout_ms: int = 10_000) -> Any:
    data = {"name": TOPIC, "partition_data": [{"index": 0, "records": batch([(b"k", value)])}]}
    answer = ask("Produce", 9, acks=acks, timeout=timeout_ms, topic_data=[data])
    return answer.responses[0].partition_responses[0]


def fetched(ask: Client, isolation: int = 0) -> tuple[list[bytes], int, int]:
    """The values from the beginning on, the high watermark and the last stable offset."""
    wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10**6}
    topics = [{"topic": TOPIC, "partitions": [wanted]}]
    answer = ask(
        "Fetch",
        11,
        max_wait=0,
        min_bytes=1,
        max_bytes=10**6,
        session_epoch=-1,
        topics=topics,
        isolation_level=isolation,
    )
    part = answer.responses[0].partitions[0]
    assert part.error_code == 0
    return [value for _, _, value in read(part.records)], part.high_watermark, part.last_stable_offset


def looked_up(ask: Client, timestamp: int, isolation: int = 0) -> Any:
    partitions = [{"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}]
    topics = [{"name": TOPIC, "partitions": partitions}]
    answer = ask("ListOffsets", 6, replica_id=-1, isolation_level=isolation, topics=topics)
    return answer.topics[0].partitions[0]


def latest(ask: Client, isolation: int = 0) -> int:
    found = looked_up(ask, -1, isolation)
    assert found.error_code == 0
    return int(found.offset)


def commit(ask: Client, group: str) -> int:
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    topics = [{"name": TOPIC, "partitions": [partition]}]
    answer = ask("OffsetCommit", 8, group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.short
def test_clients_work_while_the_replica_follows(broker: KorvetServer) -> None:
    records = [Record(b"k", b"%d" % number, (), NOW_MS) for number in range(100)]
    send(producer(broker.bootstrap, acks="all", enable_idempotence=True), TOPIC, 0, records)
    reader = consumer(broker.bootstrap, "readers", auto_offset_reset="earliest")
    reader.subscribe([TOPIC])
    assert [each.record.value for each in take(reader, 100)] == [record.value for record in records]
    reader.commit(asynchronous=False)
    reader.close()


@pytest.mark.short
def test_nobody_sees_what_the_replica_lacks(
    broker: KorvetServer, ask: Client, pair: tuple[ReplicatedServer, ReplicatedServer]
) -> None:
    first = put(ask, b"1", ALL)
    end = first.base_offset + 1
    pair[1].pause()
    assert put(ask, b"2", ALL, 300).error_code == NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert put(ask, b"3", LEADER).error_code == 0
    for isolation in (0, 1):
        assert fetched(ask, isolation) == ([b"1"], end, end)
        assert latest(ask, isolation) == end
    began = time.monotonic()
    assert commit(ask, "late") == COORDINATOR_NOT_AVAILABLE
    assert time.monotonic() - began >= COMMIT_TIMEOUT_MS / 1000
    waiting = connect(broker)
    data = {"name": TOPIC, "partition_data": [{"index": 0, "records": batch([(b"k", b"4")])}]}
    waiting.send("Produce", 9, acks=ALL, timeout=60_000, topic_data=[data])
    until(lambda: pair[0].client.xlen(f"korvet:{TOPIC}:0") == 4, 10, "the record is appended")
    pair[1].resume()
    with waiting.raw:
        answer = waiting.receive("Produce", 9).responses[0].partition_responses[0]
    assert answer.error_code == 0
    after = answer.base_offset + 1
    assert fetched(ask) == ([b"1", b"2", b"3", b"4"], after, after)
    assert latest(ask) == after
    assert commit(ask, "late") == 0


@pytest.mark.parametrize("leave", [False, True], ids=["they stay", "they leave"])
def test_producers_that_wait_for_replicas_hold_up_no_others(
    broker: KorvetServer, pair: tuple[ReplicatedServer, ReplicatedServer], leave: bool
) -> None:
    create_topic(broker.bootstrap, "careless", 1, {"min.insync.replicas": "1"})
    other, waiting = connect(broker), [connect(broker) for _ in range(5)]
    pair[1].pause()
    partition = {"index": 0, "records": batch([(b"k", b"x" * 500_000)])}
    for client in waiting:
        data = [{"name": TOPIC, "partition_data": [partition]}]
        client.send("Produce", 9, acks=ALL, timeout=60_000, topic_data=data)
    until(lambda: pair[0].client.xlen(f"korvet:{TOPIC}:0") == 5, 10, "the records are appended")
    if leave:
        for client in waiting:
            client.raw.socket.close()
    with other.raw:
        data = [{"name": "careless", "partition_data": [partition]}]
        answer = other("Produce", 9, acks=LEADER, timeout=1_000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code == 0
    pair[1].resume()
    for client in () if leave else waiting:
        with client.raw:
            answer = client.receive("Produce", 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def test_requests_are_refused_at_once_without_the_replica(
    ask: Client, pair: tuple[ReplicatedServer, ReplicatedServer]
) -> None:
    end = put(ask, b"1", ALL).base_offset + 1
    pair[1].kill()
    answers: list[int] = []

    def is_known() -> bool:
        answers.append(put(ask, b"2", ALL).error_code)
        return answers[-1] == NOT_ENOUGH_REPLICAS

    until(is_known, NOTICED_S, "the broker knows that the replica is gone")
    assert set(answers[:-1]) <= {NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    length = pair[0].client.xlen(f"korvet:{TOPIC}:0")
    refused = put(ask, b"never", ALL)
    assert refused.error_code == NOT_ENOUGH_REPLICAS
    assert "min.insync.replicas" in refused.error_message
    assert pair[0].client.xlen(f"korvet:{TOPIC}:0") == length, "nothing was written"
    assert commit(ask, "refused") == COORDINATOR_NOT_AVAILABLE
    created = ask(
        "CreateTopics",
        7,
        timeout_ms=1000,
        topics=[{"name": "other", "num_partitions": 1, "replication_factor": -1}],
    )
    assert created.topics[0].error_code == REQUEST_TIMED_OUT
    assert fetched(ask)[:2] == ([b"1"], end)


def test_the_log_names_a_replica_that_is_gone_and_back(
    broker: KorvetServer, pair: tuple[ReplicatedServer, ReplicatedServer], ask: Client
) -> None:
    primary, replica = pair

    def told(what: str) -> bool:
        line = rf"WARNING .*: the replica 127\.0\.0\.1:{replica.port} of Redis at \S*:{primary.port} {what}"
        return re.search(line, broker.tail(100_000), re.MULTILINE) is not None

    replica.client.replicaof("NO", "ONE")
    until(lambda: told("is gone$"), 20, "it is gone")
    assert put(ask, b"1", ALL).error_code == NOT_ENOUGH_REPLICAS
    replica.client.replicaof("127.0.0.1", primary.port)
    until(lambda: told(r"is back after \d+ s$"), 20, "it is back")

    def ended() -> bool:
        assert put(ask, b"2", ALL).error_code == 0
        return re.search(r"over after \d+ s: records with acks=all", broker.tail(100_000)) is not None

    until(ended, 20, "the refusal has ended")


@pytest.mark.parametrize("is_known", [True, False])
def test_deletions_are_answered_without_the_replica(
    ask: Client, pair: tuple[ReplicatedServer, ReplicatedServer], is_known: bool
) -> None:
    """A group has committed an offset of the topic, which the deletion deletes, too."""
    put(ask, b"1", ALL)
    assert commit(ask, "readers") == 0
    pair[1].pause()
    if is_known:
        pair[1].kill()
        gone = NOT_ENOUGH_REPLICAS
        until(lambda: put(ask, b"2", ALL, 300).error_code == gone, NOTICED_S, "the broker knows it")
    (deleted,) = ask("DeleteTopics", 5, topic_names=[TOPIC], timeout=5_000).responses
    assert deleted.error_code == REQUEST_TIMED_OUT
    if is_known:
        pair[1].start("--replicaof", "127.0.0.1", str(pair[0].port))
    else:
        pair[1].resume()

    def is_gone() -> bool:
        groups = ask("OffsetFetch", 7, group_id="readers", topics=None)
        exists = pair[0].client.exists(f"korvet:{TOPIC}:0")
        return groups.error_code == 0 and not groups.topics and not exists

    until(is_gone, 30, "the deletion ends by itself")


def test_markers_are_answered_without_the_replica(
    ask: Client, pair: tuple[ReplicatedServer, ReplicatedServer]
) -> None:
    assert commit(ask, "readers") == 0
    pair[1].pause()
    assert commit(ask, "readers") == COORDINATOR_NOT_AVAILABLE
    marker = {
        "producer_id": 7,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": "__consumer_offsets", "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    (written,) = ask("WriteTxnMarkers", 1, markers=[marker]).markers
    assert written.topics[0].partitions[0].error_code


@pytest.mark.parametrize("event", ["a member dies", "a commit of another group", "a commit of the group"])
def test_groups_go_on_without_the_replica(
    ask: Client, pair: tuple[ReplicatedServer, ReplicatedServer], event: str
) -> None:
    """Records of a group that replicas lack concern that group only, and commits no membership."""
    put(ask, b"1", ALL)
    assert commit(ask, "others") == 0
    living = stable(ask, "living", session_ms=30_000)
    own = {"group_id": "living", "member_id": living.member_id}
    if event == "a member dies":
        stable(ask, "dying", session_ms=6_000)
    else:
        pair[1].pause()
        partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        fields = {"topics": [{"name": TOPIC, "partitions": [partition]}]}
        if event == "a commit of the group":
            fields |= {**own, "generation_id_or_member_epoch": living.generation_id}
        else:
            fields |= {"group_id": "unlucky", "generation_id_or_member_epoch": -1}
        refused = ask("OffsetCommit", 7, **fields).topics[0].partitions[0].error_code
        assert refused == COORDINATOR_NOT_AVAILABLE
    pair[1].kill()
    gone = NOT_ENOUGH_REPLICAS
    until(lambda: put(ask, b"2", ALL, 300).error_code == gone, NOTICED_S, "the broker knows it")

    def is_alone() -> bool:
        (described,) = ask("DescribeGroups", 5, groups=["dying"]).groups
        return described.error_code != 0 or described.group_state == "Empty"

    if event == "a member dies":
        until(is_alone, 15, "the member's session ends")
        assert ask("OffsetFetch", 7, group_id="dying", topics=None).error_code == 0
    assert ask("Heartbeat", 3, **own, generation_id=living.generation_id).error_code == 0
    assert ask("OffsetFetch", 7, group_id="others", topics=None).error_code == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("is_known", [True, False])
def test_new_groups_read_without_the_replica(
    broker: KorvetServer,
    ask: Client,
    pair: tuple[ReplicatedServer, ReplicatedServer],
    protocol: str,
    is_known: bool,
) -> None:
    """They start and rebalance, and only their commits are refused."""
    put(ask, b"1", ALL)
    assert commit(ask, "others") == 0
    pair[1].pause()
    assert commit(ask, "others") == COORDINATOR_NOT_AVAILABLE
    if is_known:
        pair[1].kill()
        gone = NOT_ENOUGH_REPLICAS
        until(lambda: put(ask, b"2", ALL, 300).error_code == gone, NOTICED_S, "the broker knows it")
    for group in ("first", "second"):
        reader = consumer(
            broker.bootstrap,
            group,
            auto_offset_reset="earliest",
            group_protocol=protocol,
            enable_auto_commit=False,
        )
        reader.subscribe([TOPIC])
        assert [each.record.value for each in take(reader, 1)] == [b"1"]
        with pytest.raises(KafkaException) as refused:
            reader.commit(asynchronous=False)
        assert refused.value.args[0].code() == COORDINATOR_NOT_AVAILABLE
        reader.close()

    for _ in range(2):
        member = stable(ask, "third")
        assert leave(ask, "third", member.member_id, 3) == [0]
    assert {each.error_code for each in ask("DescribeGroups", 5, groups=["first", "third"]).groups} == {0}
    assert {each.group_id for each in ask("ListGroups", 4).groups} >= {"first", "second", "third"}


def test_the_high_watermark_survives_a_failover(pair: tuple[ReplicatedServer, ReplicatedServer]) -> None:
    """The former primary is gone for good, and what was noted last in Redis has not reached the replica."""
    primary, replica = pair
    with closing(CuttingProxy(primary.port)) as replication, closing(CuttingProxy(primary.port)) as door:
        replica.client.replicaof("127.0.0.1", replication.port)
        until(lambda: replica.replication().get("master_link_status") == "up", 20, "the replica follows")
        server = asking_for_two_copies(door.port)
        try:
            server.start()
            create_topic(server.bootstrap, TOPIC, 1)
            with connect(server) as ask:
                seen = put(ask, b"1", ALL).base_offset + 1
                replication.freeze()
                watermark = f"{{korvet:{TOPIC}:0}}:meta", "watermark"
                until(lambda: primary.client.hget(*watermark) == str(seen), 10, "the high watermark is noted")
            assert replica.client.hget(*watermark) is None
            primary.kill()
            replica.client.replicaof("NO", "ONE")
            door.target_port = replica.port
            door.cut()
            with connect(server) as ask:
                until(lambda: looked_up(ask, -1).error_code == 0, 10, "the latest offset is known")
                assert latest(ask) == seen
                assert fetched(ask) == ([b"1"], seen, seen)
        finally:
            server.discard()


def test_a_topic_is_auto_created_when_the_replica_has_it(
    ask: Client, pair: tuple[ReplicatedServer, ReplicatedServer]
) -> None:
    pair[1].pause()
    asked = {"topics": [{"name": "automatic"}], "allow_auto_topic_creation": True}
    assert ask("Metadata", 8, **asked).topics[0].error_code == LEADER_NOT_AVAILABLE
    pair[1].resume()
    (topic,) = ask("Metadata", 8, **asked).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 1)


def test_a_broker_that_starts_without_the_replica_serves_what_was_seen(
    broker: KorvetServer, pair: tuple[ReplicatedServer, ReplicatedServer]
) -> None:
    records = [Record(b"k", b"%d" % number, (), NOW_MS) for number in range(10)]
    send(producer(broker.bootstrap, acks="all"), TOPIC, 0, records)
    pair[1].kill()
    broker.stop()
    broker.start()
    assert [each.record.value for each in read_all(broker.bootstrap, TOPIC)] == [
        each.value for each in records
    ]


def test_a_broker_starts_while_a_deletion_waits_for_the_replica(
    broker: KorvetServer, pair: tuple[ReplicatedServer, ReplicatedServer]
) -> None:
    pair[1].kill()
    with connect(broker) as client:
        (deleted,) = client("DeleteTopics", 5, topic_names=[TOPIC], timeout=5_000).responses
        assert deleted.error_code == REQUEST_TIMED_OUT
    broker.stop()
    broker.start()
    pair[1].start("--replicaof", "127.0.0.1", str(pair[0].port))
    until(lambda: not pair[0].client.hexists("{korvet}:topics", TOPIC), 30, "the deletion ends by itself")


def test_the_latest_offset_does_not_go_back_when_the_leader_changes(
    broker: KorvetServer, pair: tuple[ReplicatedServer, ReplicatedServer]
) -> None:
    """The next leader finds an older high watermark in Redis (KIP-207)."""
    with connect(broker) as ask:
        put(ask, b"1", ALL)
        meta = f"{{korvet:{TOPIC}:0}}:meta"
        until(lambda: pair[0].client.hget(meta, "watermark"), 10, "the high watermark is noted")
        put(ask, b"2", ALL)
        seen = latest(ask)
    broker.kill()
    pair[1].pause()
    broker.start()
    with connect(broker) as ask:
        for _ in range(3):
            assert looked_up(ask, -1).error_code == OFFSET_NOT_AVAILABLE
        assert looked_up(ask, 0).offset < seen - 1, "the first record is known to be visible"
        pair[1].resume()
        until(lambda: looked_up(ask, -1).error_code == 0, 10, "the replica has the records")
        assert latest(ask) == seen


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_consumer_does_not_take_an_unknown_high_watermark_for_the_end(
    broker: KorvetServer, pair: tuple[ReplicatedServer, ReplicatedServer], isolation: str
) -> None:
    """Readers that stop at the end read all records, although nobody has read the log since the start."""
    records = [Record(b"k", b"%d" % number, (), NOW_MS) for number in range(10)]
    send(producer(broker.bootstrap, acks="all"), TOPIC, 0, records)
    broker.kill()
    pair[0].client.hdel(f"{{korvet:{TOPIC}:0}}:meta", "watermark")
    pair[1].pause()
    broker.start()
    reader = consumer(broker.bootstrap, "readers", enable_partition_eof=True, isolation_level=isolation)
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    assert reader.poll(3.0) is None, "neither a record nor the end"
    pair[1].resume()
    assert [each.record.value for each in take(reader, 10)] == [each.value for each in records]
    reader.close()
