"""`delete.accepted.records`: topics whose records go when all groups are done with them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition

from tests.faults.share_load import share
from tests.support.admin import create_topic
from tests.support.confluent import producer
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.clients

DELETES = {"delete.accepted.records": "true"}
SERIALS = itertools.count()
# One call examines 1,000 groups without pending entries.
GROUPS = 2_500


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    """A server that applies retention continuously."""
    with KorvetServer("--set", "log.retention.check.interval.ms=50") as server:
        yield server


class Topic:
    """A topic of one partition, and its Redis groups."""

    def __init__(self, server: KorvetServer, name: str, configs: dict[str, str]) -> None:
        create_topic(server.bootstrap, name, 1, configs)
        self._server, self.name = server, name
        self.stream = f"korvet:{name}:0"
        self.redis: Any = server.redis

    def write(self, count: int) -> None:
        client = producer(self._server.bootstrap)
        for number in range(count):
            client.produce(self.name, str(number).encode())
        assert client.flush(30) == 0

    def take(self, group: str, count: int) -> list[bytes]:
        """The entry IDs that a Redis consumer gets."""
        reply = until(
            lambda: self.redis.xreadgroup(group, "native", {self.stream: ">"}, count), 30, "there are records"
        )
        return [entry_id for entry_id, _ in reply[0][1]]

    def accept(self, group: str, entry_ids: Sequence[bytes]) -> None:
        assert self.redis.xack(self.stream, group, *entry_ids) == len(entry_ids)

    def shrinks_to(self, count: int) -> None:
        until(lambda: self.redis.xlen(self.stream) <= count, 30, f"{count} records are left")
        self.stays(count)

    def stays(self, count: int) -> None:
        """Nothing more is deleted: another topic's record was deleted meanwhile, and then one more."""
        for _ in range(2):
            witness = Topic(self._server, f"{self.name}-{next(SERIALS)}", DELETES)
            witness.redis.xgroup_create(witness.stream, "g", "0", mkstream=True)
            witness.write(1)
            witness.accept("g", witness.take("g", 1))
            until(lambda witness=witness: witness.redis.xlen(witness.stream) == 0, 30, "a check was made")
        assert self.redis.xlen(self.stream) == count


@pytest.fixture
def new(server: KorvetServer, fresh: Callable[[str], str]) -> Callable[..., Topic]:
    def make(**configs: str) -> Topic:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        return Topic(server, fresh("accepted"), DELETES | named)

    return make


def test_records_go_when_all_redis_groups_have_acknowledged_them(new: Callable[..., Topic]) -> None:
    topic = new()
    topic.write(10)
    topic.stays(10)
    for group in ("one", "other"):
        topic.redis.xgroup_create(topic.stream, group, "0")
    topic.accept("one", topic.take("one", 10))
    topic.stays(10)
    ids = topic.take("other", 6)
    topic.accept("other", [*ids[:3], ids[4]])
    topic.shrinks_to(7)
    topic.accept("other", [ids[3]])
    topic.shrinks_to(5)
    topic.accept("other", [ids[5], *topic.take("other", 9)])
    topic.shrinks_to(0)
    for value in ("native", "entries"):
        topic.redis.xadd(topic.stream, {"value": value})
    topic.accept("one", topic.take("one", 2))
    topic.stays(2)
    topic.redis.xgroup_destroy(topic.stream, "other")
    topic.shrinks_to(0)


def test_one_group_of_thousands_keeps_what_it_has_not_read(new: Callable[..., Topic]) -> None:
    topic = new()
    topic.write(4)
    topic.redis.xgroup_create(topic.stream, "z", "0")
    topic.accept("z", topic.take("z", 1))
    with topic.redis.pipeline(transaction=False) as pipeline:
        for number in range(GROUPS):
            pipeline.xgroup_create(topic.stream, f"g{number}", "$")
        pipeline.execute()
    topic.shrinks_to(3)
    topic.redis.xgroup_destroy(topic.stream, "z")
    topic.shrinks_to(0)


@pytest.mark.parametrize("layout", ["record", "batch"])
def test_records_go_when_a_consumer_group_has_committed_them(
    server: KorvetServer, new: Callable[..., Topic], group: str, layout: str
) -> None:
    topic = new(storage_layout=layout)
    config = {"bootstrap.servers": server.bootstrap, "group.id": group, "enable.auto.commit": False}
    client = Consumer(config | {"auto.offset.reset": "earliest"})
    client.subscribe([topic.name])
    topic.write(5)
    found = client.consume(5, 30)
    assert [message.value() for message in found] == [b"0", b"1", b"2", b"3", b"4"]
    left = topic.redis.xlen(topic.stream)
    topic.stays(left)
    client.commit(message=found[2], asynchronous=False)
    place = TopicPartition(topic.name, 0)
    next_one = found[3].offset()
    until(lambda: client.get_watermark_offsets(place)[0] == next_one, 30, "the log starts at the commit")
    client.commit(asynchronous=False)
    topic.shrinks_to(0)
    low, high = client.get_watermark_offsets(place)
    assert low == high
    client.close()


def test_records_go_when_a_share_group_has_accepted_them(
    server: KorvetServer, new: Callable[..., Topic], group: str
) -> None:
    topic = new()
    share(server, group=group)
    topic.write(20)
    config = {"bootstrap.servers": server.bootstrap, "group.id": group}
    client = ShareConsumer(config | {"share.acknowledgement.mode": "explicit"})
    client.subscribe([topic.name])
    found: list[Any] = []

    def took_all() -> bool:
        found.extend(message for message in client.poll(0.2) if message.error() is None)
        return len(found) >= 20

    until(took_all, 30, "all records are taken")
    topic.stays(20)
    for message in found:
        client.acknowledge(message)
    assert not any(client.commit_sync(30).values())
    topic.shrinks_to(0)
    client.close()


def test_records_of_open_transactions_stay(server: KorvetServer, new: Callable[..., Topic]) -> None:
    topic = new()
    topic.redis.xgroup_create(topic.stream, "g", "0", mkstream=True)
    topic.write(3)
    client = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": topic.name})
    client.init_transactions(30)
    client.begin_transaction()
    client.produce(topic.name, b"open")
    assert client.flush(30) == 0
    topic.accept("g", topic.take("g", 10))
    topic.shrinks_to(1)
    client.commit_transaction(30)
    topic.accept("g", topic.take("g", 10))
    topic.shrinks_to(0)


def test_a_topic_without_the_config_or_that_is_compacted_keeps_its_records(
    server: KorvetServer, new: Callable[..., Topic]
) -> None:
    kept = [new(delete_accepted_records="false"), new(cleanup_policy="compact")]
    for topic in kept:
        topic.redis.xgroup_create(topic.stream, "g", "0", mkstream=True)
        client = producer(server.bootstrap)
        client.produce(topic.name, b"value", b"key")
        assert client.flush(30) == 0
        topic.accept("g", topic.take("g", 10))
        topic.stays(1)
