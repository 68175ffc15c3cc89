"""kill -9 of korvet, its embedded server, or both while a partition is compacted under load."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import redis

from tests.faults.brokers import Brokers
from tests.faults.test_kill import KILLS
from tests.support.admin import create_topic
from tests.support.confluent import producer, read_all, send
from tests.support.polling import until
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients]

TOPIC = "compacted"
STREAM = b"korvet:compacted:0"
SHADOW = b"{korvet:compacted:0}:compact"
KEYS = 400
# However few records an interrupted compaction has left.
CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
# So slow that a compaction of one round's records takes half a second.
OPTIONS = ("--set", "log.cleaner.backoff.ms=50", "--set", "log.cleaner.io.max.bytes.per.second=300000")


class Updates:
    """Writes new values of the same keys, and records the acknowledged ones."""

    def __init__(self, server: KorvetServer, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.client: Producer = producer(server.bootstrap, enable_idempotence=True)
        self.written = 0
        self.acknowledged: dict[bytes, int] = {}

    def write(self, count: int) -> None:
        """Wait until the producer has sent `count` more."""
        for _ in range(count):
            key, number = b"key %d" % self.random.randrange(KEYS), self.written
            self.written += 1
            while True:
                try:
                    self.client.produce(TOPIC, b"%d" % number, key, 0, on_delivery=self.done(key, number))
                    break
                except BufferError:
                    self.client.poll(0.05)
            self.client.poll(0)

    def done(self, key: bytes, number: int):
        def report(error, message) -> None:
            assert error is None, error
            self.acknowledged[key] = max(number, self.acknowledged.get(key, -1))

        return report

    def flush(self) -> None:
        assert self.client.flush(60) == 0, self.server.tail()

    def check(self) -> None:
        """All acknowledged records are there, in order, except for superseded ones."""
        found = [
            (read.record.key, int(read.record.value or b""))
            for read in read_all(self.server.bootstrap, TOPIC)
        ]
        newest = dict(found)
        assert newest == self.acknowledged
        for key in newest:
            numbers = [number for one, number in found if one == key]
            assert numbers == sorted(set(numbers)), "each once, in order"


def compacting(server: KorvetServer) -> bool:
    try:
        return server.redis.exists(SHADOW) == 1
    except (redis.ConnectionError, redis.BusyLoadingError):
        server.drop_redis()
        return False


def compacted(server: KorvetServer) -> bool:
    return server.redis.xlen(STREAM) == KEYS and server.redis.keys(SHADOW + b"*") == []


def run(server: KorvetServer, seed: int, kills: list[str]) -> None:
    create_topic(server.bootstrap, TOPIC, 1, CONFIGS)
    updates = Updates(server, seed)
    server.redis.xgroup_create(STREAM, "native", "0", mkstream=True)
    for what in kills:
        updates.write(3000)
        updates.flush()
        updates.write(1500)
        until(lambda: compacting(server), 60, f"a compaction is under way; {server.tail()}")
        KILLS[what](server)
        updates.flush()
        updates.check()
    until(lambda: compacted(server), 60, f"the log is compacted; {server.tail()}")
    updates.check()
    assert [group["name"] for group in server.redis.xinfo_groups(STREAM)] == [b"native"]
    [[_, entries]] = server.redis.xreadgroup("native", "c", {STREAM: ">"}, count=10_000)
    assert len(entries) == KEYS


def test_kills_while_a_partition_is_compacted(own_korvet):
    run(own_korvet(*OPTIONS), 1, ["store", "korvet"])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_many_kills_while_a_partition_is_compacted(own_korvet, seed):
    chosen = random.Random(seed)
    run(own_korvet(*OPTIONS), seed, [chosen.choice(list(KILLS)) for _ in range(6)])


class CompactingBrokers(Brokers):
    """Two brokers that compact slowly."""

    def make(self, node_id: int) -> KorvetServer:
        made = super().make(node_id)
        made.options += OPTIONS
        return made


@pytest.mark.long
def test_another_broker_takes_a_compaction_over(tmp_path_factory):
    brokers = CompactingBrokers(tmp_path_factory.mktemp("redis"), 2)
    try:
        create_topic(brokers.bootstrap, TOPIC, 4, CONFIGS)
        client = producer(brokers.bootstrap)
        led = brokers.led_by(TOPIC, 1)
        for partition in range(4):
            updates = [Record(b"%d" % (n % KEYS), b"%d" % n, (), NOW_MS) for n in range(3000)]
            send(client, TOPIC, partition, updates)
        stream = b"korvet:compacted:%d" % led
        native = brokers.store.client
        until(lambda: native.exists(b"{%b}:compact" % stream), 60, "a compaction is under way")
        brokers.node(1).kill()
        brokers.wait_for(2)
        streams = [b"korvet:compacted:%d" % partition for partition in range(4)]
        until(lambda: {native.xlen(one) for one in streams} == {KEYS}, 60, "all are compacted")
        until(lambda: native.keys("{korvet:*:compact*") == [], 60, "nothing is left behind")
        for partition in range(4):
            found = [read.record.value for read in read_all(brokers.node(2).bootstrap, TOPIC, partition)]
            assert found == [b"%d" % number for number in range(3000 - KEYS, 3000)]
    finally:
        brokers.discard()
