"""Partitions whose newest records are gone: each client's position reaches the log end.

Applications that restore their state wait for that before they begin to work.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import aiokafka
import kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, send
from tests.support.go import BUILD_TIMEOUT_S, GoPrograms
from tests.support.polling import until
from tests.support.records import NOW_MS, Record
from tests.support.servers import KAFKA_VARIABLE, KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.clients

LEVELS = ["read_uncommitted", "read_committed"]
WAIT_S = 30
RECORDS = [Record(b"key %d" % number, b"%d" % number, (), NOW_MS) for number in range(6)]
VALUES = [record.value for record in RECORDS]
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    """A broker that compacts and trims often."""
    if os.environ.get(KAFKA_VARIABLE):
        pytest.skip("needs korvet: deletes entries in Redis")
    often = ("log.cleaner.backoff.ms=50", "log.retention.check.interval.ms=50")
    with KorvetServer(*(word for setting in often for word in ("--set", setting))) as own:
        yield own


class Tail:
    """A partition of which native clients, retention or a compaction have removed the newest records."""

    def __init__(self, server: KorvetServer, topic: str, removal: str, layout: str) -> None:
        self.server, self.topic, self.stream = server, topic, f"korvet:{topic}:0"
        configs = {"compaction": COMPACTED, "retention": {"retention.ms": "600000"}}.get(removal, {})
        create_topic(server.bootstrap, topic, 1, {"storage.layout": layout, **configs})
        client = producer(server.bootstrap, linger_ms=0)
        records = RECORDS
        if removal == "compaction":
            records = [*RECORDS[:3], *(Record(record.key, None, (), NOW_MS) for record in RECORDS[:3])]
        elif removal == "retention":
            records = [Record(record.key, record.value, (), NOW_MS - 3_600_000) for record in RECORDS]
        self.offsets = [send(client, topic, 0, [record])[0] for record in records]
        left: list[bytes | None] = []
        redis = server.redis
        entries = [name for name, _ in redis.xrange(self.stream)]
        if removal == "newest":
            redis.xdel(self.stream, *entries[3:])
            left = VALUES[:3]
        elif removal == "all":
            redis.xdel(self.stream, *entries)
        elif removal == "trim":
            redis.xtrim(self.stream, maxlen=0)
        elif removal == "key":
            redis.delete(self.stream)
        elif removal == "retention":
            until(lambda: redis.xlen(self.stream) == 0, WAIT_S, "retention trims everything")
        else:
            # The newest tombstone stays. A client may still see the others, which are removed now.
            until(lambda: redis.xlen(self.stream) == 1, WAIT_S, "all but the newest tombstone are removed")
            left = [None]
        # A broker notices deletions when somebody asks for the ends.
        asking = consumer(server.bootstrap, "asks")
        asking.get_watermark_offsets(TopicPartition(topic, 0), 20)
        asking.close()
        self.left = left
        """The values that are left."""
        self.newest_is_left = removal == "compaction"


REMOVALS = ["newest", "all", "trim", "key", "retention", "compaction"]


@pytest.fixture(scope="module", params=REMOVALS)
def removal(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["record", "batch"])
def tail(request: pytest.FixtureRequest, server: KorvetServer, removal: str) -> Tail:
    return Tail(server, f"tail-{removal}-{request.param}", removal, str(request.param))


def wait_for(reached: Callable[[], bool], what: str) -> None:
    until(reached, WAIT_S, what)


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("start", ["earliest", "first record", "in the gap"])
def test_librdkafka(tail: Tail, isolation: str, start: str) -> None:
    client = consumer(
        tail.server.bootstrap,
        "tail",
        isolation_level=isolation,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        enable_partition_eof=True,
    )
    place = TopicPartition(tail.topic, 0)
    low, high = client.get_watermark_offsets(place, 20)
    first = {"earliest": low, "first record": tail.offsets[0], "in the gap": tail.offsets[4]}[start]
    client.assign([TopicPartition(tail.topic, 0, first)])
    values, ends = [], 0
    deadline = time.monotonic() + WAIT_S
    while not ends:
        assert time.monotonic() < deadline, f"no end after {values}"
        for message in client.consume(10, 0.05):
            error = message.error()
            if error is None:
                values.append(message.value())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends += 1
    # A position is unknown until something was read: there is nothing to wait for if the start is the end.
    if low < high:
        wait_for(lambda: client.position([place])[0].offset == high, "the position is the log end")
    client.close()
    assert values == (tail.left if start != "in the gap" or tail.newest_is_left else [])


@pytest.mark.parametrize("isolation", LEVELS)
def test_kafka_python(tail: Tail, isolation: str) -> None:
    client = kafka.KafkaConsumer(
        bootstrap_servers=tail.server.bootstrap,
        isolation_level=isolation,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    place = kafka.TopicPartition(tail.topic, 0)
    client.assign([place])
    client.seek(place, tail.offsets[0])
    end, values = client.end_offsets([place])[place], []

    def reached() -> bool:
        for records in client.poll(100).values():
            values.extend(record.value for record in records)
        return bool(client.position(place) == end)

    wait_for(reached, "the position is the log end")
    client.close()
    assert values == tail.left


@pytest.mark.parametrize("isolation", LEVELS)
def test_aiokafka(tail: Tail, isolation: str) -> None:
    async def read() -> list[bytes | None]:
        client = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=tail.server.bootstrap,
            isolation_level=isolation,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await client.start()
        place = aiokafka.TopicPartition(tail.topic, 0)
        client.assign([place])
        client.seek(place, tail.offsets[0])
        end, values = (await client.end_offsets([place]))[place], []
        deadline = time.monotonic() + WAIT_S
        while await client.position(place) != end:
            assert time.monotonic() < deadline, f"the position is before the log end after {values}"
            for records in (await client.getmany(timeout_ms=100)).values():
                values.extend(record.value for record in records)
        await client.stop()
        return values

    assert asyncio.run(read()) == tail.left


@pytest.mark.parametrize("isolation", LEVELS)
def test_java(tail: Tail, java, isolation: str) -> None:
    """The program ends when its position is the log end."""
    read = java.run("ReadBack", tail.server.bootstrap, tail.topic, "0", isolation)
    assert len(read.splitlines()) == len(tail.left)


EVERYTHING = [*(value.decode() for value in VALUES[:3] if value), "later"]
"""What clients read that show no position: the records before the gap, and one that is appended after it."""


@pytest.mark.parametrize("layout", ["record", "batch"])
def test_kafkajs(server: KorvetServer, node, fresh, layout: str) -> None:
    tail = Tail(server, fresh(f"js-{layout}"), "newest", layout)
    asked = {"bootstrap": server.bootstrap, "topic": tail.topic, "group": fresh("js"), "count": 3}
    assert node.run("tail.js", asked) == EVERYTHING


@pytest.mark.long
@pytest.mark.timeout(2 * BUILD_TIMEOUT_S + 120)
@pytest.mark.parametrize("client", ["franz", "sarama"])
@pytest.mark.parametrize("layout", ["record", "batch"])
def test_go(server: KorvetServer, fresh, client: str, layout: str) -> None:
    programs = GoPrograms.build()
    tail = Tail(server, fresh(f"{client}-{layout}"), "newest", layout)
    asked = {"bootstrap": server.bootstrap, "topic": tail.topic, "group": client, "count": 3}
    assert programs.run("tail", asked) == EVERYTHING
