"""A small container: the embedded server refuses writes before the kernel kills it, and starts again."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.admin import alter_broker, create_topic
from tests.support.confluent import producer, read_all, send
from tests.support.container import Container
from tests.support.polling import until
from tests.support.records import NOW_MS, Record
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import KafkaError, Message

pytestmark = [pytest.mark.faults, pytest.mark.clients, pytest.mark.timeout(1_500)]

LIMIT_BYTES = 150 << 20
TOPIC = "t"


@pytest.fixture
def container() -> Iterator[Container]:
    made = Container(LIMIT_BYTES)
    yield made
    made.remove()


@pytest.fixture
def started(container: Container) -> Iterator[Callable[..., KorvetServer]]:
    """Starts a broker with an embedded server in the container."""
    servers: list[KorvetServer] = []

    def start(*options: str) -> KorvetServer:
        servers.append(KorvetServer(*options, prefix=container.prefix))
        servers[-1].start()
        create_topic(servers[-1].bootstrap, TOPIC, 1)
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
        server.discard()


@pytest.fixture
def korvet(started: Callable[..., KorvetServer]) -> KorvetServer:
    return started()


class Filler:
    """Produces records of random bytes, which no compression shrinks, and counts those that are refused."""

    def __init__(self, bootstrap: str, record_bytes: int) -> None:
        self._client = producer(
            bootstrap, acks="all", message_timeout_ms=2_000, queue_buffering_max_messages=2_000
        )
        self._record_bytes = record_bytes
        self.acknowledged: dict[int, bytes] = {}
        self.refused = 0

    def send(self) -> None:
        value = os.urandom(self._record_bytes)

        def report(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self.refused += 1
            else:
                self.acknowledged[offset] = value

        try:
            self._client.produce(TOPIC, value, on_delivery=report)
        except BufferError:
            self._client.poll(0.1)
        self._client.poll(0)

    def finish(self) -> None:
        assert self._client.flush(60) == 0


def fill(korvet: KorvetServer, record_bytes: int, seconds: float) -> Filler:
    """Produce until records are refused, and at least for some time."""
    filler = Filler(korvet.bootstrap, record_bytes)
    ends_s = time.monotonic() + seconds

    def done() -> bool:
        for _ in range(1_000):
            filler.send()
        assert korvet.process.running
        return filler.refused > 0 and time.monotonic() > ends_s

    until(done, max(120, seconds), "records are refused")
    filler.finish()
    return filler


def check(korvet: KorvetServer, container: Container, filler: Filler) -> None:
    """All acknowledged records are there, also after a restart, and nothing was killed."""
    for restart in (False, True):
        if restart:
            korvet.stop()
            korvet.restart()
        found = {read.offset: read.record.value for read in read_all(korvet.bootstrap, TOPIC)}
        assert found.items() >= filler.acknowledged.items()
    assert container.kills == 0


@pytest.mark.parametrize("record_bytes", [100, 2_000])
def test_a_full_container_refuses_records_and_serves_all(
    korvet: KorvetServer, container: Container, record_bytes: int
) -> None:
    filler = fill(korvet, record_bytes, 0)
    assert sum(map(len, filler.acknowledged.values())) > 10 << 20
    check(korvet, container, filler)


@pytest.mark.long
@pytest.mark.parametrize("record_bytes", [100, 2_000])
def test_ten_minutes(korvet: KorvetServer, container: Container, record_bytes: int) -> None:
    check(korvet, container, fill(korvet, record_bytes, 600))


def test_the_append_only_file_is_rewritten_while_retention_makes_room(
    container: Container, started: Callable[..., KorvetServer]
) -> None:
    korvet = started("-s", f"log.retention.bytes={12 << 20}", "-s", "log.retention.check.interval.ms=200")
    korvet.redis.config_set("auto-aof-rewrite-min-size", "16mb")
    filler = Filler(korvet.bootstrap, 1_000)

    def rewritten() -> bool:
        for _ in range(1_000):
            filler.send()
        return int(korvet.redis.info("persistence")["aof_rewrites"]) > 2

    until(rewritten, 120, "the file is rewritten")
    filler.finish()
    assert (filler.refused, container.kills) == (0, 0)


def test_a_server_that_the_kernel_killed_is_said_to_be(korvet: KorvetServer, container: Container) -> None:
    send(producer(korvet.bootstrap), TOPIC, 0, [Record(None, b"kept", (), NOW_MS)])
    # The memory of scripts is not limited by maxmemory.
    with pytest.raises(RedisConnectionError):
        korvet.raw("EVAL", f"return #string.rep('x', {2 * LIMIT_BYTES})", 0)
    assert container.kills > 0
    reason = "was ended by SIGKILL (by the system: the memory of the machine or container was used up)"
    until(lambda: f"the embedded server {reason}; restarting it" in korvet.tail(20_000), 20, korvet.tail)
    until(lambda: "the embedded server runs again" in korvet.tail(20_000), 20, korvet.tail)
    assert [read.record.value for read in read_all(korvet.bootstrap, TOPIC)] == [b"kept"]


def test_maxmemory_can_be_changed(started: Callable[..., KorvetServer]) -> None:
    """A restarted embedded server gets the changed limit, too."""
    korvet = started()

    def limit_is(limit_bytes: int) -> bool:
        return korvet.redis.info("memory")["maxmemory"] == limit_bytes

    before = int(korvet.redis.info("memory")["maxmemory"])
    assert LIMIT_BYTES / 5 < before < LIMIT_BYTES / 2
    alter_broker(korvet.bootstrap, 1, {"embedded.maxmemory": str(30 << 20)})
    until(lambda: limit_is(30 << 20), 20, "the server has the limit")
    korvet.kill_store()
    korvet.drop_redis()
    until(lambda: b"PONG" if korvet.redis.ping() else None, 20, "the server runs again")
    until(lambda: limit_is(30 << 20), 20, "the restarted server has the limit")
    alter_broker(korvet.bootstrap, 1, {"embedded.maxmemory": None})
    until(lambda: limit_is(before), 20, "the server has the first limit again")
