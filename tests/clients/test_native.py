"""Redis applications and Kafka clients on one stream: native writers, native readers, native groups."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pytest
import redis
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from korvet.offsets.packing import entry_id, offset_of
from tests.clients.test_confluent import numbered
from tests.support.admin import create_topic
from tests.support.confluent import Read, as_read, consumer, producer, read_all, send, take
from tests.support.polling import until
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.clients


def stream(topic: str, partition: int = 0) -> str:
    return f"korvet:{topic}:{partition}"


def entry_ids(korvet, topic: str) -> list[str]:
    return [raw_id.decode() for raw_id, _ in korvet.raw("XRANGE", stream(topic), "-", "+")]


@pytest.mark.short
def test_native_entries_are_records(korvet, broker, topic):
    """korvet's field names make an ordinary record; other fields become a JSON object with a null key."""
    name = stream(topic)
    ids = [
        korvet.redis.xadd(name, {"key": "k", "value": "v", "header.h": "1"}),
        korvet.redis.xadd(name, {"temperature": "21.5", "unit": "C"}),
        korvet.redis.xadd(name, {"raw": b"\xff\x00"}),
        korvet.redis.xadd(name, {"key": "only a key"}),
    ]
    found = read_all(broker.bootstrap, topic)
    assert [read.offset for read in found] == [offset_of(found_id) for found_id in ids]
    assert [read.record.timestamp_ms for read in found] == [int(i.partition(b"-")[0]) for i in ids]
    ours, fields, binary, tombstone = (read.record for read in found)
    assert (ours.key, ours.value, ours.headers) == (b"k", b"v", (("h", b"1"),))
    assert (fields.key, json.loads(fields.value or b"")) == (None, {"temperature": "21.5", "unit": "C"})
    assert binary.key is None
    assert set(json.loads(binary.value or b"")) >= {"raw"}
    assert (tombstone.key, tombstone.value) == (b"only a key", None)


def test_no_native_entry_makes_a_fetch_fail(korvet, broker, topic):
    name = stream(topic)
    awkward: list[list[str | bytes]] = [
        ["", ""],
        ["ts", "not a number", "value", "v"],
        ["ts", "9" * 30, "value", "v"],
        ["value", "1", "value", "2"],
        ["header.", "", "nullheader.x", "not empty", "value", ""],
        [b"\xff\xfe", b"\x00"],
        ["key", "k", "value", "v", "other", "field"],
        ["value", "x" * 200_000],
    ]
    ids = [korvet.raw("XADD", name, "*", *fields).decode() for fields in awkward]
    send(producer(broker.bootstrap), topic, 0, numbered(1))
    found = read_all(broker.bootstrap, topic)
    assert [read.offset for read in found[:-1]] == [offset_of(found_id) for found_id in ids]
    assert found[-1].record == numbered(1)[0]


def test_a_stream_made_by_redis_applications_before_any_kafka_client(korvet, broker, new_topic):
    """Entries that precede the topic's first fetch are read, and the log's ends include them."""
    topic = new_topic(1)
    ids = [korvet.redis.xadd(stream(topic), {"value": str(n)}).decode() for n in range(50)]
    client = consumer(broker.bootstrap, "ends")
    low, high = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    client.close()
    assert low <= offset_of(ids[0])
    assert high == offset_of(ids[-1]) + 1
    assert [read.record.value for read in read_all(broker.bootstrap, topic)] == [b"%d" % n for n in range(50)]


class Tail:
    """A consumer at the end of a partition, on its own thread."""

    def __init__(self, client: Consumer, topic: str, offset: int) -> None:
        self.found: list[Read] = []
        self._client = client
        self._done = threading.Event()
        client.assign([TopicPartition(topic, 0, offset)])
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._done.is_set():
            self.found += [as_read(message) for message in self._client.consume(500, 0.05)]

    def close(self) -> None:
        self._done.set()
        self._thread.join(10)
        self._client.close()


@pytest.fixture
def tails(broker) -> Iterator[Callable[[str, int], Tail]]:
    made: list[Tail] = []

    def start(topic: str, offset: int) -> Tail:
        made.append(Tail(consumer(broker.bootstrap, "tail", enable_auto_commit=False), topic, offset))
        return made[-1]

    yield start
    for tail in made:
        tail.close()


WRITES = 1_500


def write_natively(korvet, topic: str, writer: int) -> None:
    """Adds entries with `XADD *`, one command each, like an ordinary Redis application."""
    for number in range(WRITES):
        korvet.redis.xadd(stream(topic), {"value": f"native{writer}-{number}"})


def write_kafka(broker, topic: str, writer: int, idempotent: bool = False) -> None:
    records = [Record(None, b"kafka%d-%d" % (writer, number), (), NOW_MS) for number in range(WRITES)]
    config = {"linger_ms": 1, "batch_num_messages": 20, "enable_idempotence": idempotent}
    send(producer(broker.bootstrap, **config), topic, 0, records)


def by_writer(values: list[bytes]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for value in values:
        writer, _, number = value.partition(b"-")
        found.setdefault(writer, []).append(int(number))
    return found


def test_interleaved_writers(korvet, broker, topic, tails):
    """Every consumer, at the end and from the start, receives every record once, in the stream's order."""
    early = tails(topic, OFFSET_BEGINNING)
    parked = tails(topic, OFFSET_END)
    send(producer(broker.bootstrap), topic, 0, [Record(None, b"begin-0", (), NOW_MS)])
    until(lambda: early.found, 10, "the early consumer reads")
    writers = [
        threading.Thread(target=write_natively, args=(korvet, topic, 1), daemon=True),
        threading.Thread(target=write_natively, args=(korvet, topic, 2), daemon=True),
        threading.Thread(target=write_kafka, args=(broker, topic, 1), daemon=True),
        threading.Thread(target=write_kafka, args=(broker, topic, 2, True), daemon=True),
    ]
    for thread in writers:
        thread.start()
    late = tails(topic, OFFSET_BEGINNING)
    for thread in writers:
        thread.join(60)
    total = 4 * WRITES + 1
    for tail in (early, late):
        until(lambda tail=tail: len(tail.found) >= total, 30, "a consumer has everything")
    expected = [offset_of(found) for found in entry_ids(korvet, topic)]
    assert len(expected) == total
    afterwards = read_all(broker.bootstrap, topic)
    for name, found in (("early", early.found), ("late", late.found), ("afterwards", afterwards)):
        assert [read.offset for read in found] == expected, name
        numbers = by_writer([read.record.value or b"" for read in found])
        assert {writer: len(each) for writer, each in numbers.items()} == {
            b"begin": 1, b"native1": WRITES, b"native2": WRITES, b"kafka1": WRITES, b"kafka2": WRITES
        }  # fmt: skip
        assert all(each == sorted(each) for each in numbers.values()), name
    until(lambda: parked.found and parked.found[-1].offset == expected[-1], 20, "the parked one has the last")
    assert [read.offset for read in parked.found] == expected[-len(parked.found) :]


def test_a_tail_consumer_gets_native_entries_soon(korvet, broker, topic, tails):
    tail = tails(topic, OFFSET_BEGINNING)
    send(producer(broker.bootstrap), topic, 0, numbered(1))
    until(lambda: tail.found, 10, "the consumer reads")
    waited = []
    for number in range(10):
        start = time.monotonic()
        korvet.redis.xadd(stream(topic), {"value": str(number)})
        until(lambda count=number + 2: len(tail.found) == count, 20, "the native entry came")
        waited.append(time.monotonic() - start)
    assert sorted(waited)[5] < 0.3, waited


def test_a_latest_consumer_parked_on_an_empty_partition_gets_a_native_first_entry(
    korvet, broker, topic, tails
):
    tail = tails(topic, OFFSET_END)
    client = consumer(broker.bootstrap, "watch")
    client.assign([TopicPartition(topic, 0, OFFSET_END)])

    def parked() -> bool:
        assert client.poll(0.05) is None
        return client.get_watermark_offsets(TopicPartition(topic, 0), cached=True)[1] >= 0

    until(parked, 10, "a consumer is parked")
    first = korvet.redis.xadd(stream(topic), {"value": "first"})
    (read,) = take(client, 1, timeout_s=20)
    assert (read.offset, read.record.value) == (offset_of(first), b"first")
    until(lambda: tail.found, 20, "the other parked consumer has it too")
    client.close()


def test_deleted_entries_leave_a_gap(korvet, broker, topic):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(30))
    for number in [0, 5, 6, 7, 29]:
        assert korvet.redis.xdel(stream(topic), entry_id(offsets[number])) == 1
    left = [offset for number, offset in enumerate(offsets) if number not in (0, 5, 6, 7, 29)]
    assert [read.offset for read in read_all(broker.bootstrap, topic)] == left
    client = consumer(broker.bootstrap, "gap", auto_offset_reset="earliest")
    _, high = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    assert high == offsets[-1] + 1, "the log's end never goes back"
    client.assign([TopicPartition(topic, 0, offsets[5])])
    assert take(client, 1)[0].offset == offsets[8]
    client.seek(TopicPartition(topic, 0, offsets[29]))
    (new,) = send(producer(broker.bootstrap), topic, 0, numbered(1, 100))
    assert take(client, 1)[0].offset == new
    client.close()


def test_a_native_trim_moves_the_log_start(korvet, broker, topic):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(300))
    korvet.redis.xtrim(stream(topic), minid=entry_id(offsets[200]), approximate=False)
    client = consumer(broker.bootstrap, "trim", auto_offset_reset="earliest")

    def moved() -> bool:
        low, high = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        return (low, high) == (offsets[200], offsets[-1] + 1)

    until(moved, 10, "the log starts at the first entry left")
    client.assign([TopicPartition(topic, 0, offsets[3])])
    assert take(client, 1)[0].offset == offsets[200]
    client.close()


def commit(broker, group: str, topic: str, offset: int) -> None:
    client = consumer(broker.bootstrap, group)
    client.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    client.close()


def next_native(korvet, group: str, topic: str, count: int = 1) -> list[str]:
    """Returns the entry IDs of XREADGROUP >."""
    reply = korvet.raw("XREADGROUP", "GROUP", group, "native", "COUNT", count, "STREAMS", stream(topic), ">")
    if reply is None:
        return []
    if isinstance(reply, dict):
        ((_, entries),) = reply.items()
    else:
        ((_, entries),) = reply
    return [raw_id.decode() for raw_id, _ in entries]


def pending(korvet, group: str, topic: str) -> list[str]:
    found = korvet.raw("XPENDING", stream(topic), group, "-", "+", 10_000)
    return [row[0].decode() for row in found]


def has_group(korvet, group: str, topic: str) -> bool:
    return any(found["name"] == group.encode() for found in korvet.redis.xinfo_groups(stream(topic)))


@pytest.mark.short
def test_a_native_reader_continues_at_the_commit(korvet, broker, topic, group):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    commit(broker, group, topic, offsets[4])
    assert next_native(korvet, group, topic) == [entry_id(offsets[4])]
    assert pending(korvet, group, topic) == [entry_id(offsets[4])]
    assert next_native(korvet, group, topic, 100) == [entry_id(offset) for offset in offsets[5:]]


@pytest.mark.short
def test_a_commit_acknowledges_everything_below(korvet, broker, topic, group):
    """XACK isn't cumulative, but no entry before the commit may stay pending."""
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(500))
    commit(broker, group, topic, offsets[0])
    assert len(next_native(korvet, group, topic, 300)) == 300
    commit(broker, group, topic, offsets[250])
    assert pending(korvet, group, topic) == [entry_id(offset) for offset in offsets[250:300]]
    assert next_native(korvet, group, topic) == [entry_id(offsets[300])], "the native reader was further on"


@pytest.mark.parametrize("consuming", [True, False])
def test_committing_the_end(korvet, broker, topic, group, consuming):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    if consuming:
        client = consumer(broker.bootstrap, group, auto_offset_reset="earliest")
        client.subscribe([topic])
        take(client, 10)
        client.close()
    else:
        commit(broker, group, topic, offsets[-1] + 1)
    assert next_native(korvet, group, topic) == []
    assert pending(korvet, group, topic) == []
    (new,) = send(producer(broker.bootstrap), topic, 0, numbered(1, 10))
    assert next_native(korvet, group, topic, 100) == [entry_id(new)]


def test_committing_zero(korvet, broker, topic, group):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(3))
    commit(broker, group, topic, 0)
    assert next_native(korvet, group, topic, 10) == [entry_id(offset) for offset in offsets]


def test_committing_on_an_empty_partition(korvet, broker, topic, group):
    commit(broker, group, topic, 0)
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(3))
    assert next_native(korvet, group, topic, 10) == [entry_id(offset) for offset in offsets]


def test_committing_across_a_gap(korvet, broker, topic, group):
    """N-1, N and N+1 are deleted: the next read returns the first remaining entry after N."""
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    for number in (3, 4, 5):
        korvet.redis.xdel(stream(topic), entry_id(offsets[number]))
    commit(broker, group, topic, offsets[4])
    assert next_native(korvet, group, topic) == [entry_id(offsets[6])]
    assert pending(korvet, group, topic) == [entry_id(offsets[6])]


def test_committing_between_two_records(korvet, broker, topic, group):
    first = send(producer(broker.bootstrap), topic, 0, numbered(2))[-1]
    until(lambda: time.time_ns() // 1_000_000 > first >> 10, 5, "another millisecond")
    second = send(producer(broker.bootstrap), topic, 0, numbered(1, 2))[0]
    assert second > first + 1
    commit(broker, group, topic, first + (second - first) // 2 + 1)
    assert next_native(korvet, group, topic) == [entry_id(second)]


def test_a_rewind_takes_the_native_reader_back(korvet, broker, topic, group):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    commit(broker, group, topic, offsets[2])
    assert next_native(korvet, group, topic, 5) == [entry_id(offset) for offset in offsets[2:7]]
    commit(broker, group, topic, offsets[5])
    assert pending(korvet, group, topic) == [entry_id(offsets[5]), entry_id(offsets[6])]
    commit(broker, group, topic, offsets[1])
    assert pending(korvet, group, topic) == [], "what lies at or above a rewind is released"
    assert next_native(korvet, group, topic, 100) == [entry_id(offset) for offset in offsets[1:]]


def test_a_later_commit_does_not_throw_a_faster_native_reader_back(korvet, broker, topic, group):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    commit(broker, group, topic, offsets[1])
    next_native(korvet, group, topic, 8)
    commit(broker, group, topic, offsets[3])
    assert next_native(korvet, group, topic, 100) == [entry_id(offsets[9])]
    assert pending(korvet, group, topic) == [entry_id(offset) for offset in offsets[3:]]


def test_committing_past_the_end(korvet, broker, topic, group):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(3))
    commit(broker, group, topic, offsets[-1] + 5)
    assert next_native(korvet, group, topic) == []
    assert pending(korvet, group, topic) == []


def test_the_redis_group_goes_with_the_kafka_group(korvet, broker, topic, group):
    send(producer(broker.bootstrap), topic, 0, numbered(3))
    commit(broker, group, topic, 1)
    assert has_group(korvet, group, topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_consumer_groups([group])[group].result(20)
    until(lambda: not has_group(korvet, group, topic), 10, "the Redis group is gone")


def committed(broker, group: str, topic: str) -> int | None:
    """Returns the committed offset of partition 0 from Kafka's admin client."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
    return next((place.offset for place in answer.topic_partitions if place.topic == topic), None)


def wait_committed(broker, group: str, topic: str, offset: int) -> None:
    def arrived() -> bool:
        return committed(broker, group, topic) == offset

    until(arrived, 30, f"{offset} is committed; it is {committed(broker, group, topic)}")


def acknowledge(korvet, group: str, topic: str, *ids: str) -> None:
    assert korvet.redis.xack(stream(topic), group, *ids) == len(ids)


def test_a_redis_group_is_a_kafka_group(korvet, broker, topic, group):
    """A Redis group is created, used and deleted: Kafka's tools see each step."""
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    korvet.redis.xgroup_create(stream(topic), group, "0")
    wait_committed(broker, group, topic, 0)
    ids = next_native(korvet, group, topic, 4)
    acknowledge(korvet, group, topic, *ids[:2])
    wait_committed(broker, group, topic, offsets[2])
    acknowledge(korvet, group, topic, *ids[2:])
    wait_committed(broker, group, topic, offsets[3] + 1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert group in {found.group_id for found in admin.list_consumer_groups().result(20).valid}
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert (described.state, described.members) == (ConsumerGroupState.EMPTY, [])
    client = consumer(broker.bootstrap, group, auto_offset_reset="error")
    client.subscribe([topic])
    assert [read.offset for read in take(client, 6)] == offsets[4:]
    client.close()
    admin.delete_consumer_groups([group])[group].result(20)
    with pytest.raises(redis.ResponseError, match="NOGROUP"):
        korvet.redis.xreadgroup(group, "native", {stream(topic): ">"})


@pytest.mark.short
def test_native_and_kafka_members_of_a_group_take_turns(korvet, broker, topic, group):
    """Neither side receives again what the other one has processed, and both have one position."""
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(40))
    seen: list[int] = []
    for done in range(0, 40, 10):
        client = consumer(broker.bootstrap, group, auto_offset_reset="earliest", enable_auto_commit=False)
        client.subscribe([topic])
        seen += [read.offset for read in take(client, 5)][:5]
        client.commit(offsets=[TopicPartition(topic, 0, offsets[done + 4] + 1)], asynchronous=False)
        client.close()
        assert committed(broker, group, topic) == offsets[done + 4] + 1
        ids = next_native(korvet, group, topic, 5)
        acknowledge(korvet, group, topic, *ids)
        seen += [offset_of(one) for one in ids]
        wait_committed(broker, group, topic, offsets[done + 9] + 1)
        (info,) = korvet.redis.xinfo_groups(stream(topic))
        assert (info["last-delivered-id"].decode(), info["pending"]) == (ids[-1], 0)
    assert seen == offsets


def test_native_and_kafka_members_at_the_same_time(korvet, broker, topic, group):
    """Commits of present consumers have priority until the consumers pause; then there is one position."""
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(20))
    client = consumer(broker.bootstrap, group, auto_offset_reset="earliest", enable_auto_commit=False)
    client.subscribe([topic])
    take(client, 20)
    for number in (3, 6, 9):
        client.commit(offsets=[TopicPartition(topic, 0, offsets[number])], asynchronous=False)
        ids = next_native(korvet, group, topic, 5)
        acknowledge(korvet, group, topic, *ids)
    assert ids[-1] == entry_id(offsets[17]), "no commit has taken the faster reader back"
    assert committed(broker, group, topic) == offsets[9]
    wait_committed(broker, group, topic, offsets[17] + 1)
    client.commit(offsets=[TopicPartition(topic, 0, offsets[-1] + 1)], asynchronous=False)
    client.close()
    assert next_native(korvet, group, topic) == []


def test_redis_groups_are_left_alone_where_that_is_turned_off(own_korvet, fresh):
    server = own_korvet("-s", "native.groups.enable=false", "-s", "native.groups.interval.ms=1")
    create_topic(server.bootstrap, "t", 1)
    server.redis.xgroup_create(stream("t"), "native", "0", mkstream=True)
    client = consumer(server.bootstrap, "kafka")
    for offset in range(100):
        client.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    client.close()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    assert {found.group_id for found in admin.list_consumer_groups().result(20).valid} == {"kafka"}


def test_deleting_a_topic_leaves_no_key_behind(korvet, broker, new_topic, group):
    topic = new_topic(2)
    send(producer(broker.bootstrap, enable_idempotence=True), topic, 0, numbered(600))
    send(producer(broker.bootstrap), topic, 1, numbered(3))
    commit(broker, group, topic, 1)
    assert any(topic.encode() in key for key in korvet.redis.scan_iter(count=1000))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    left = [key for key in korvet.redis.scan_iter(count=1000) if topic.encode() in key]
    assert left == []
    assert topic.encode() not in korvet.redis.hkeys("{korvet}:topics")
