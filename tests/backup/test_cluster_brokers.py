"""Backups of a Redis Cluster while a broker serves clients, restored into another cluster."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from korvet.backup import snapshots
from tests.backup.contents import success
from tests.backup.test_brokers import alarms
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer
from tests.support.load import LoadProducer
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from korvet.backup.connection import RedisConnection
    from tests.support.cluster import RedisCluster
    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients]

CHAIN, PAIRS, LOAD = "chain", "pairs", "load"
PARTITIONS = 4


class Writer:
    """Repeats a step on a thread, with the number of the repetition, until the block ends."""

    def __init__(self, step: Callable[[int], None]) -> None:
        self.done = 0
        self.failure: Exception | None = None
        self._step = step
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._step(self.done)
                self.done += 1
        except (KafkaException, AssertionError) as error:
            self.failure = error

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ending.set()
        self._thread.join()
        assert self.failure is None, self.failure


@contextlib.contextmanager
def chain(bootstrap: str) -> Iterator[Callable[[int], None]]:
    """Each record is sent after the one before it is acknowledged, to another partition, and its offset is
    committed before the next one is sent.
    """
    client = producer(bootstrap, linger_ms=0)
    group = consumer(bootstrap, CHAIN, enable_auto_commit=False)

    def step(number: int) -> None:
        offsets: list[Any] = []
        partition = number % PARTITIONS
        client.produce(
            CHAIN,
            b"%d" % number,
            partition=partition,
            on_delivery=lambda error, message: offsets.append(error or message.offset()),
        )
        assert client.flush(30) == 0
        group.commit(offsets=[TopicPartition(CHAIN, partition, offsets[0] + 1)], asynchronous=False)

    yield step
    group.close()


@contextlib.contextmanager
def pairs(bootstrap: str) -> Iterator[Callable[[int], None]]:
    """Each transaction writes its number to every partition, and commits it as the offset of a group."""
    client = producer(bootstrap, transactional_id=PAIRS, linger_ms=0)
    client.init_transactions(30)
    group = consumer(bootstrap, PAIRS, enable_auto_commit=False)

    def step(number: int) -> None:
        client.begin_transaction()
        for partition in range(PARTITIONS):
            client.produce(PAIRS, b"%d" % number, partition=partition)
        offsets = [TopicPartition(PAIRS, 0, number + 1)]
        client.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), 30)
        client.commit_transaction(30)

    yield step
    group.close()


def committed(bootstrap: str, name: str, partitions: int = PARTITIONS) -> list[int]:
    client = consumer(bootstrap, name, enable_auto_commit=False)
    found = client.committed([TopicPartition(name, each) for each in range(partitions)], 30)
    client.close()
    return [each.offset for each in found]


def logs(bootstrap: str, topic: str) -> list[dict[int, bytes]]:
    """The committed records of all partitions: offset → value."""
    client = consumer(
        bootstrap, "reader", enable_partition_eof=True, enable_auto_commit=False, fetch_wait_max_ms=10
    )
    client.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
    found: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
    open_ = set(range(PARTITIONS))

    def read() -> bool:
        for message in client.consume(10_000, 0.05):
            error = message.error()
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            if error is None:
                assert offset is not None
                found[partition][offset] = message.value() or b""
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_.discard(partition)
        return not open_

    until(read, 60, f"{topic} is read")
    client.close()
    return found


def numbers(bootstrap: str, topic: str) -> list[list[int]]:
    return [[int(value) for value in log.values()] for log in logs(bootstrap, topic)]


@pytest.fixture
def slow_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers fork one after the other, as if each fork took long."""
    begin, turns = snapshots._begin, itertools.count()

    def one_by_one(receiver: RedisConnection) -> tuple[str, int] | None:
        threading.Event().wait(0.2 * next(turns))
        return begin(receiver)

    monkeypatch.setattr(snapshots, "_begin", one_by_one)


def check_chain(bootstrap: str, acknowledged: int) -> None:
    """Everything up to one record is there, and the commits of all but that."""
    restored = logs(bootstrap, CHAIN)
    found = sorted(int(value) for log in restored for value in log.values())
    assert found == [*range(len(found))]
    assert len(found) >= acknowledged
    for partition, commit in enumerate(committed(bootstrap, CHAIN)):
        ends = [offset + 1 for offset in restored[partition]]
        assert commit in ends[-2 if partition == found[-1] % PARTITIONS else -1 :]


def check_pairs(bootstrap: str, acknowledged: int) -> None:
    """Transactions are there as a whole, with their offsets, and the next one follows. The new producer waits
    until one whose end was begun is complete, and aborts one that was open.
    """
    with pairs(bootstrap) as pair:
        (whole,) = committed(bootstrap, PAIRS, 1)
        assert whole >= acknowledged
        assert numbers(bootstrap, PAIRS) == [[*range(whole)]] * PARTITIONS
        pair(whole)
    assert numbers(bootstrap, PAIRS) == [[*range(whole + 1)]] * PARTITIONS
    assert committed(bootstrap, PAIRS, 1) == [whole + 1]


def test_a_backup_under_load_is_of_one_moment(
    own_korvet: Callable[..., KorvetServer],
    clusters: tuple[RedisCluster, RedisCluster],
    slow_forks: None,
    tmp_path: Path,
) -> None:
    source, target = clusters
    server = own_korvet(redis_url=source.url)
    for topic in (CHAIN, PAIRS, LOAD):
        create_topic(server.bootstrap, topic, PARTITIONS)
    load = LoadProducer(server.bootstrap, LOAD, LOAD, idempotent=True, in_flight=100)
    with (
        chain(server.bootstrap) as link,
        pairs(server.bootstrap) as pair,
        Writer(link) as chained,
        Writer(pair) as paired,
    ):

        def progress() -> tuple[int, int, int]:
            return chained.done, paired.done, len(load.acknowledged)

        def continues(since: tuple[int, int, int]) -> bool:
            return all(now > then + 5 for now, then in zip(progress(), since, strict=True))

        until(lambda: continues((50, 5, 1000)), 60, "records are acknowledged")
        chained_before, paired_before, _ = progress()
        loaded_before, alarmed_before = dict(load.acknowledged), alarms(server)
        success("backup", tmp_path / "backup", "--redis", source.nodes[0].url)
        after = progress()
        until(lambda: continues(after), 60, "clients continue")
        assert alarms(server) == alarmed_before
    load.finish()
    assert not load.failed
    server.stop()
    success("restore", tmp_path / "backup", "--redis", target.url)
    server = own_korvet(redis_url=target.nodes[1].url)
    check_chain(server.bootstrap, chained_before)
    check_pairs(server.bootstrap, paired_before)
    kept = logs(server.bootstrap, LOAD)[0]
    assert {offset: load.value(number) for number, offset in loaded_before.items()}.items() <= kept.items()
    assert sorted(kept.values()) == sorted(load.value(number) for number in range(len(kept)))
