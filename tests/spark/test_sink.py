"""The sink's tasks on a real Valkey: attempts of a task, refusals, and what is in the streams then."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from kafka.partitioner.default import murmur2 as kafka_murmur2  # type: ignore[import-untyped]
from redis.exceptions import MovedError

from korvet.spark.source import connection
from korvet.spark.source.connection import Connection
from korvet.spark.source.errors import RedisAway, SourceError
from korvet.spark.source.sink import sorting
from korvet.spark.source.sink.link import Link
from korvet.spark.source.sink.options import RedisOptions
from korvet.spark.source.sink.pace import SharedPace
from korvet.spark.source.sink.partitioner import murmur2
from korvet.spark.source.sink.task import Written
from tests.spark.sinking import load_functions, random_rows, row, sink_options, values, write
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.spark.source.sink.columns import SinkRow
    from tests.spark.keyspace import Keyspace

SEED = int(os.environ.get("KORVET_TEST_SEED", "20261125"))
ROWS, PARTITIONS = 2000, 3


class Killed(Exception):
    """The attempt ends here."""


@pytest.fixture(autouse=True)
def topic(keyspace: Keyspace) -> None:
    load_functions(keyspace.client)
    keyspace.topic("t", PARTITIONS)


def cut(rows: list[SinkRow], at: int) -> Iterator[SinkRow]:
    yield from rows[:at]
    raise Killed


def in_order(rows: list[SinkRow], streams: list[list[bytes]]) -> None:
    """Each row is there once, and the rows of a partition are in their order."""
    assert sorted(value for stream in streams for value in stream) == sorted(one.value or b"" for one in rows)
    numbers = [list(map(int, stream)) for stream in streams]
    assert numbers == [sorted(stream) for stream in numbers]


def test_attempts_continue_after_each_other(keyspace: Keyspace) -> None:
    rows, chance = random_rows(SEED, ROWS, PARTITIONS), random.Random(SEED)
    for _ in range(5):
        with pytest.raises(Killed):
            write(keyspace, cut(rows, chance.randrange(ROWS)), maxRecordsPerSecond="1000000")
    write(keyspace, rows)
    in_order(rows, values(keyspace, PARTITIONS))
    # The whole job again.
    assert write(keyspace, rows) == Written(0, ROWS)
    in_order(rows, values(keyspace, PARTITIONS))
    # Another task, another batch: other rows.
    assert write(keyspace, rows[:10], task=1) == Written(10, 0)
    assert write(keyspace, rows[:10], batch=1) == Written(10, 0)


def test_two_attempts_at_once(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculative execution: one attempt overtakes the other one, at a point within its chunk."""
    sizes = {120_000: 110, 60_000: 70}
    monkeypatch.setattr(RedisOptions, "chunk_records", property(lambda options: sizes[options.delivery_ms]))
    rows = random_rows(SEED, ROWS, PARTITIONS)

    def overtaken() -> Iterator[SinkRow]:
        for number, one in enumerate(rows):
            if number in {ROWS // 3, ROWS // 2}:
                with pytest.raises(Killed):
                    write(keyspace, cut(rows, number + 500), deliveryTimeout="60s")
            yield one

    write(keyspace, overtaken())
    in_order(rows, values(keyspace, PARTITIONS))


def test_killed_processes(keyspace: Keyspace) -> None:
    chance = random.Random(SEED)
    command = [sys.executable, "-m", "tests.spark.sink_child", keyspace.url]
    command += [str(SEED), str(ROWS), str(PARTITIONS)]
    seen = 0
    for _ in range(3):
        with subprocess.Popen(command) as child:
            until(
                lambda child=child, seen=seen: count(keyspace) > seen or child.poll() is not None, 20, "rows"
            )
            time.sleep(chance.uniform(0, 0.2))
            child.send_signal(signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
        seen = count(keyspace)
    assert 0 < seen < ROWS
    rows = random_rows(SEED, ROWS, PARTITIONS)
    assert write(keyspace, rows) == Written(ROWS - seen, seen)
    in_order(rows, values(keyspace, PARTITIONS))


def count(keyspace: Keyspace) -> int:
    return sum(keyspace.client.xlen(f"korvet:t:{number}") for number in range(PARTITIONS))


def test_a_lost_reply(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection fails after Redis has appended: the records aren't appended again."""
    plain, calls = Connection.call, 0

    def lossy(self: Connection, *arguments: Any) -> Any:
        nonlocal calls
        reply = plain(self, *arguments)
        calls += arguments[0] == "FCALL"
        if arguments[0] == "FCALL" and calls in {1, 3}:
            raise RedisAway("cut")
        return reply

    monkeypatch.setattr(Connection, "call", lossy)
    rows = random_rows(SEED, ROWS, PARTITIONS)
    write(keyspace, rows)
    assert calls > 3
    in_order(rows, values(keyspace, PARTITIONS))


def test_connections_that_are_cut(keyspace: Keyspace) -> None:
    rows = random_rows(SEED, ROWS, PARTITIONS)

    def with_cuts() -> Iterator[SinkRow]:
        for number, one in enumerate(rows):
            if number % 300 == 299:
                keyspace.client.client_kill_filter(_type="normal", skipme=True)
            yield one

    write(keyspace, with_cuts())
    in_order(rows, values(keyspace, PARTITIONS))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://127.0.0.1:1", "no usable Redis at redis://127.0.0.1:1: "),
        ("redis+sentinel://127.0.0.1:1/main", "the sentinel at redis://127.0.0.1:1: "),
    ],
)
def test_a_server_that_stays_away(keyspace: Keyspace, url: str, message: str) -> None:
    keyspace.url = url
    with pytest.raises(RedisAway, match=rf"row 1 of task 0 .*: {re.escape(message)}.*tried"):
        write(keyspace, [row(b"v")], deliveryTimeout="100ms")


def test_rows_that_differ(keyspace: Keyspace) -> None:
    rows = [row(b"%d" % number, partition=0) for number in range(1000)]
    with pytest.raises(Killed):
        write(keyspace, cut(rows, 700))
    with pytest.raises(SourceError, match=r"row 500 of task 0 .*first 500 records for t-0 are not those"):
        write(keyspace, [rows[1], rows[0], *rows[2:]])
    with pytest.raises(SourceError, match=r"t-0 has 500 records .* this attempt has 499"):
        write(keyspace, rows[:499])
    for others in ([row(b"v", partition=1)], []):
        with pytest.raises(SourceError, match=r"t-0 has 500 records .* this attempt has none"):
            write(keyspace, others)
    write(keyspace, rows)
    assert values(keyspace, 2) == [[one.value for one in rows], []]


def test_sorted_rows_may_come_in_any_order(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "RUN_BYTES", 100_000)
    rows, chance = random_rows(SEED, ROWS, PARTITIONS), random.Random(SEED)
    with pytest.raises(SourceError, match=f"row {ROWS + 1} .* no partition 9"):
        write(keyspace, [row(b"bad", partition=9), *rows], sortRows="true")
    written = count(keyspace)
    assert 0 < written < ROWS
    chance.shuffle(rows)
    assert write(keyspace, rows, sortRows="true") == Written(ROWS - written, written)
    found = values(keyspace, PARTITIONS)
    assert sorted(value for stream in found for value in stream) == sorted(one.value or b"" for one in rows)


def test_sorting_counts_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of large headers go to temporary files, too."""
    monkeypatch.setattr(sorting, "RUN_BYTES", 100_000)
    files: list[Any] = []
    monkeypatch.setattr(sorting, "TemporaryFile", lambda: files.append(BytesIO()) or files[-1])
    rows = [row(b"%d" % number, headers=(("h", b"x" * 10_000),)) for number in range(50)]
    assert len(list(sorting.sorted_rows(reversed(rows)))) == 50
    assert len(files) == 5


def test_a_batch_that_was_replaced(keyspace: Keyspace) -> None:
    rows = [row(b"%d" % number, partition=0) for number in range(10)]
    write(keyspace, rows, batch=7)
    with pytest.raises(SourceError, match="task 0 of job j, batch 6 was replaced: batch 7 has begun"):
        write(keyspace, rows, batch=6)
    assert len(values(keyspace, 1)[0]) == 10


def test_a_topic_that_grows_between_attempts(keyspace: Keyspace) -> None:
    rows = [row(b"%d" % number, b"%d" % number) for number in range(1000)]
    with pytest.raises(Killed):
        write(keyspace, cut(rows, 700), maxRecordsPerSecond="1000")
    keyspace.topic("t", 7)
    write(keyspace, rows)
    in_order(rows, values(keyspace, PARTITIONS))
    # The next batch uses all partitions.
    write(keyspace, rows, batch=1)
    assert all(values(keyspace, 7))


def test_a_topic_that_was_created_again(keyspace: Keyspace) -> None:
    def create(topic_id: str) -> None:
        keyspace.client.hset("{korvet}:topics", "t", f'{{"partitions": 1, "topic_id": "{topic_id}"}}')

    create("a")
    rows = [row(b"v")]
    assert write(keyspace, rows) == Written(1, 0)
    create("b")
    assert write(keyspace, rows) == Written(1, 0)
    keyspace.client.hset("{korvet:t:0}:meta", "topic", "a")
    with pytest.raises(SourceError, match="TOPICCHANGED the topic has the ID a"):
        write(keyspace, rows, batch=1)


def test_a_topic_that_is_deleted(keyspace: Keyspace) -> None:
    def create(topic_id: str) -> None:
        keyspace.client.hset("{korvet}:topics", "t", f'{{"partitions": 1, "topic_id": "{topic_id}"}}')

    def delete() -> None:
        keyspace.client.hdel("{korvet}:topics", "t")
        # As brokers do it: the notes about what was written expire by themselves.
        keyspace.client.delete("korvet:t:0", "{korvet:t:0}:index", "{korvet:t:0}:meta")

    def during(rows: list[SinkRow], change: Callable[[], None]) -> Iterator[SinkRow]:
        yield from rows[:600]
        change()
        yield from rows[600:]

    rows = [row(b"%d" % number) for number in range(1100)]
    create("a")
    with pytest.raises(SourceError, match=r"row 1000 .*TOPICGONE the topic was deleted"):
        write(keyspace, during(rows, delete))
    assert not keyspace.client.exists("korvet:t:0")
    create("b")
    with pytest.raises(SourceError, match=r"task 0 of .*topic t was deleted and created again"):
        write(keyspace, during(rows[:700], lambda: create("c")))
    # After the last chunk.
    with pytest.raises(SourceError, match=r"task 0 of .*no topic t in keyspace"):
        write(keyspace, during(rows[:500], delete))


def test_progress_expires(keyspace: Keyspace) -> None:
    write(keyspace, [row(b"v", partition=0)], progressRetention="1h")
    assert 3_000_000 < keyspace.client.pttl("{korvet:t:0}:written:j:") <= 3_600_000


def test_tasks_share_a_limit_on_the_rate(keyspace: Keyspace) -> None:
    """Tasks that don't sleep get places one after another; the clock is that of Redis."""
    address = sink_options(keyspace.url).address
    with closing(Link(address, 1000)) as link:
        waits: list[float] = []
        tasks = [SharedPace(link, address.pace_key("j"), 1000, waits.append) for _ in range(3)]
        began = time.monotonic()
        for task in [*tasks, *tasks]:
            task.wait_for(500)
        passed_s = time.monotonic() - began
        for place, wait_s in enumerate(waits):
            assert place * 0.5 - passed_s - 0.001 <= wait_s <= place * 0.5 + 0.001
        # The key lasts as long as the last place.
        assert 0 < keyspace.client.pttl("{korvet}:pace:j") <= 3000
        SharedPace(link, address.pace_key("other"), 1000, waits.append).wait_for(1)
        assert waits[-1] == 0
        with pytest.raises(SourceError, match="korvet_pace: 1 key"):
            tasks[0].wait_for(0)


def test_a_limit_on_the_rate(keyspace: Keyspace) -> None:
    began = time.monotonic()
    for task in range(2):
        write(keyspace, [row(b"v") for _ in range(100)], task=task, maxRecordsPerSecond="400")
    # All but the last 40 records have used their time.
    assert time.monotonic() - began >= 0.4


def test_fields_are_those_of_brokers(keyspace: Keyspace) -> None:
    keyspace.topic("d", 1, {"offset.assignment": "dense"})
    keyspace.client.hset("{korvet:d:0}:meta", "bias", 1)
    now_ms = time.time_ns() // 1_000_000
    headers = (("h", b"1"), ("h", None))
    given = [row(b"v", b"k", headers=headers, timestamp_ms=5), row(None, b"k"), row(None), row(b"v")]
    write(keyspace, [one._replace(partition=0) for one in given])
    write(keyspace, [one._replace(partition=0, topic="d") for one in given], topic="d")
    clock, dense = (raw(keyspace, name) for name in ("korvet:t:0", "korvet:d:0"))
    first_ms = int(clock[0][0].partition(b"-")[0])
    times = [b"ts", b"%d" % (5 - first_ms)]
    assert clock[0][1] == [b"key", b"k", b"value", b"v", *times, b"header.h", b"1", b"nullheader.h", b""]
    assert [fields for _, fields in clock[1:]] == [[b"key", b"k"], [b"ts", b"0"], [b"value", b"v"]]
    assert [entry for entry, _ in dense] == [b"0-1", b"0-2", b"0-3", b"0-4"]
    assert dense[0][1][4:6] == [b"ts", b"5"]
    # On dense topics the entry ID is no time, so the record has one.
    assert all(now_ms <= int(fields[-1]) < now_ms + 60_000 for _, fields in dense[1:])


def raw(keyspace: Keyspace, key: str) -> list[Any]:
    connection = keyspace.client.connection_pool.get_connection()
    try:
        connection.send_command("XRANGE", key, "-", "+")
        found: list[Any] = connection.read_response()
        return found
    finally:
        keyspace.client.connection_pool.release(connection)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"topic": "nowhere"}, "no topic nowhere in keyspace 'korvet' of unix://"),
        ({"topic": "__consumer_offsets"}, "topic __consumer_offsets is internal"),
        ({"topic": None}, "the column topic is null, and there is no option topic"),
        ({"partition": 3}, "topic t has no partition 3; it has 0 to 2"),
        ({"partition": -1}, "topic t has no partition -1"),
        ({"value": b"x" * 1_048_588}, r"the record of about 10\d+ bytes exceeds max.message.bytes 1048588"),
        ({"headers": ((None, b"v"),)}, "a header has no key"),
        ({"headers": (("h", b""),) * 2000}, "2000 headers are too many for one entry"),
        ({"timestamp_ms": 2**45}, "further in the future than the topic's message.timestamp.after.max.ms"),
        (
            {"topic": "recent", "timestamp_ms": 1_700_000_000_000},
            "further in the past than the topic's message.timestamp.before.max.ms 60000",
        ),
        ({"topic": "compacted"}, "a compacted topic takes no records without a key"),
    ],
)
def test_rows_that_are_refused(keyspace: Keyspace, bad: dict[str, Any], message: str) -> None:
    keyspace.offsets_topic()
    keyspace.topic("compacted", 1, {"cleanup.policy": "compact"})
    keyspace.topic("recent", 1, {"message.timestamp.before.max.ms": "60000"})
    good = row(b"v", partition=0, topic="t")
    with pytest.raises(
        SourceError, match=rf"row 3 of task 0 of job j, batch 0: .*{message}.* It had written"
    ):
        write(keyspace, [good, good, good._replace(**bad)], topic=None)


def test_a_failed_task_says_what_it_has_written(keyspace: Keyspace) -> None:
    rows = [*[row(b"v", partition=1)] * 700, row(b"v", partition=9)]
    with pytest.raises(SourceError, match=r"row 701 of task 0 .*It had written 500 records \(t-1: 500\)"):
        write(keyspace, rows)
    with pytest.raises(SourceError, match=r"row 1 of task 1 .*It had written no records"):
        write(keyspace, rows[-1:], task=1)


@pytest.mark.parametrize(
    ("command", "undo", "message"),
    [
        ("CONFIG SET maxmemory 1mb", "CONFIG SET maxmemory 0", "is out of memory"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY|read only replica"),
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
            "NOREPLICAS .*tried for 0.1 s",
        ),
    ],
)
def test_redis_refuses_writes(keyspace: Keyspace, command: str, undo: str, message: str) -> None:
    """In the middle of a task: the message says what is written, and the next attempt continues."""
    rows = [row(b"%d" % number, partition=0) for number in range(1100)]

    def refused_meanwhile() -> Iterator[SinkRow]:
        yield from rows[:600]
        keyspace.client.execute_command(*command.split(" "))
        yield from rows[600:]

    try:
        with pytest.raises(
            SourceError, match=rf"row 1000 of task 0 .*{message}.* had written 500 records \(t-0: 500\)"
        ):
            write(keyspace, refused_meanwhile(), deliveryTimeout="100ms")
    finally:
        keyspace.client.execute_command(*undo.split(" "))
    assert write(keyspace, rows) == Written(600, 500)
    assert values(keyspace, 1)[0] == [one.value for one in rows]


def test_without_the_function(keyspace: Keyspace) -> None:
    keyspace.client.function_flush()
    with pytest.raises(SourceError, match=r"lacks a function of the sink .*: brokers load them"):
        write(keyspace, [row(b"v")])


def test_the_documented_permissions(keyspace: Keyspace) -> None:
    rules = "on >secret ~korvet:* ~{korvet* +@read +@write +@connection +fcall +time"
    keyspace.client.execute_command("ACL", "SETUSER", "sink", "reset", *rules.split())
    try:
        options = {"redis.user": "sink", "redis.password": "secret"}
        assert write(keyspace, [row(b"v", b"k")], maxRecordsPerSecond="9", **options) == Written(1, 0)
        with pytest.raises(SourceError, match="0 replicas"):
            write(keyspace, [row(b"v", b"k")], minReplicas="1", deliveryTimeout="50ms", **options)
        keyspace.client.execute_command("ACL", "SETUSER", "sink", "-xadd")
        with pytest.raises(SourceError, match=r"refuses the records: .*xadd"):
            write(keyspace, [row(b"v", b"k")], batch=1, **options)
    finally:
        keyspace.client.execute_command("ACL", "DELUSER", "sink")


def test_missing_replicas(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match=r"0 replicas have the records of t-\d after 50 ms, not 1"):
        write(keyspace, [row(b"v")], minReplicas="1", deliveryTimeout="50ms")
    # Longer than replies may take.
    monkeypatch.setattr(connection, "REPLY_TIMEOUT_S", 0.2)
    with pytest.raises(SourceError, match=r"0 replicas have the records of t-\d after 700 ms, not 1"):
        write(keyspace, [row(b"v")], minReplicas="1", deliveryTimeout="700ms")


def test_replicas_of_a_node_that_has_lost_its_slot(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write before WAIT must not be sent to another node than WAIT."""

    class Moved:
        def send_command(self, *command: Any) -> None:
            assert command[0] == "PEXPIRE"

        def read_response(self, **_: Any) -> None:
            raise MovedError("1 127.0.0.1:1")

    monkeypatch.setattr(Connection, "_raw_for", lambda self, key: Moved())
    address = sink_options(keyspace.url).address
    with closing(Connection(address)) as opened, pytest.raises(RedisAway, match="has moved"):
        opened.wait_for_replicas("key", 1000, 1, 1)


def test_hashes_are_those_of_kafka() -> None:
    chance = random.Random(SEED)
    for size in range(40):
        key = chance.randbytes(size)
        assert murmur2(key) == kafka_murmur2(key) & 0xFFFFFFFF
