"""The sink's tasks on a real Valkey: attempts of a task, refusals, and what is in the streams then."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from kafka.partitioner.default import murmur2 as kafka_murmur2  # type: ignore[import-untyped]

from korvet.spark.source.connection import Connection
from korvet.spark.source.errors import RedisAway, SourceError
from korvet.spark.source.sink import sorting
from korvet.spark.source.sink.options import SinkOptions
from korvet.spark.source.sink.partitioner import murmur2
from korvet.spark.source.sink.task import Written
from tests.spark.sinking import load_functions, random_rows, row, values, write
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    monkeypatch.setattr(SinkOptions, "chunk_records", property(lambda options: sizes[options.delivery_ms]))
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


def test_a_server_that_stays_away(keyspace: Keyspace) -> None:
    keyspace.url = "redis://127.0.0.1:1"
    with pytest.raises(
        RedisAway, match=r"row 1 of task 0 .*: no usable Redis at redis://127.0.0.1:1: .*tried"
    ):
        write(keyspace, [row(b"v")], deliveryTimeout="100ms")


def test_rows_that_differ(keyspace: Keyspace) -> None:
    rows = [row(b"%d" % number, partition=0) for number in range(1000)]
    with pytest.raises(Killed):
        write(keyspace, cut(rows, 700))
    with pytest.raises(SourceError, match=r"row 500 of task 0 .*first 500 records for t-0 are not those"):
        write(keyspace, [rows[1], rows[0], *rows[2:]])
    with pytest.raises(SourceError, match=r"t-0 has 500 records .* this attempt has 499"):
        write(keyspace, rows[:499])
    with pytest.raises(SourceError, match=r"t-0 has 500 records .* this attempt has none"):
        write(keyspace, [row(b"v", partition=1)])
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


def test_progress_expires(keyspace: Keyspace) -> None:
    write(keyspace, [row(b"v", partition=0)], progressRetention="1h")
    assert 3_000_000 < keyspace.client.pttl("{korvet:t:0}:written:j:") <= 3_600_000


def test_a_limit_on_the_rate(keyspace: Keyspace) -> None:
    began = time.monotonic()
    write(keyspace, [row(b"v") for _ in range(200)], maxRecordsPerSecond="400")
    assert time.monotonic() - began >= 0.5 * 0.99


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
        ({"topic": "compacted"}, "a compacted topic takes no records without a key"),
    ],
)
def test_rows_that_are_refused(keyspace: Keyspace, bad: dict[str, Any], message: str) -> None:
    keyspace.offsets_topic()
    keyspace.topic("compacted", 1, {"cleanup.policy": "compact"})
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


def test_redis_out_of_memory(keyspace: Keyspace) -> None:
    keyspace.client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(SourceError, match="is out of memory"):
            write(keyspace, [row(b"v")])
    finally:
        keyspace.client.config_set("maxmemory", "0")
    assert count(keyspace) == 0


def test_without_the_function(keyspace: Keyspace) -> None:
    keyspace.client.function_flush()
    with pytest.raises(SourceError, match="no function korvet_xadd_once: brokers load it"):
        write(keyspace, [row(b"v")])


def test_the_documented_permissions(keyspace: Keyspace) -> None:
    rules = "on >secret ~korvet:* ~{korvet* +@read +@write +@connection +fcall +time"
    keyspace.client.execute_command("ACL", "SETUSER", "sink", "reset", *rules.split())
    try:
        options = {"redis.user": "sink", "redis.password": "secret"}
        assert write(keyspace, [row(b"v", b"k")], **options) == Written(1, 0)
        with pytest.raises(SourceError, match="0 replicas"):
            write(keyspace, [row(b"v", b"k")], minReplicas="1", deliveryTimeout="50ms", **options)
        keyspace.client.execute_command("ACL", "SETUSER", "sink", "-xadd")
        with pytest.raises(SourceError, match=r"refuses the records: .*xadd"):
            write(keyspace, [row(b"v", b"k")], batch=1, **options)
    finally:
        keyspace.client.execute_command("ACL", "DELUSER", "sink")


def test_missing_replicas(keyspace: Keyspace) -> None:
    with pytest.raises(SourceError, match=r"0 replicas have the records of t-\d after 50 ms, not 1"):
        write(keyspace, [row(b"v")], minReplicas="1", deliveryTimeout="50ms")


def test_hashes_are_those_of_kafka() -> None:
    chance = random.Random(SEED)
    for size in range(40):
        key = chance.randbytes(size)
        assert murmur2(key) == kafka_murmur2(key) & 0xFFFFFFFF
