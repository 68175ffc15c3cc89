"""Batches of idempotent producers after one of the same connection that was refused for a passing reason."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from korvet.log.appender import Appender
from korvet.log.partition_log import PartitionLog
from korvet.redis.errors import LinkLost, NotEnoughReplicasAfterAppend, SlotUnavailable, WritesRefused
from tests.api.asking import Client, connect
from tests.api.test_produce import OUT_OF_ORDER, everything, pipelined, producer_id, put, stamped
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.redis.errors import StorageError

NOT_LEADER, TIMED_OUT, NOT_ENOUGH_REPLICAS = 6, 7, 19


class Logs:
    """Decides which batches the logs of a broker in this process refuse, and when replicas answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusals: dict[str, StorageError] = {}
        """By topic: the refusal of the next batch."""
        self.held: dict[str, list[Callable[[], object]]] = {}
        """By topic whose batches wait for replicas: calls that answer them with an error."""
        self.last: PartitionLog
        """The log that refused a batch."""
        append = PartitionLog.append

        def refuse_once(log: PartitionLog, *arguments: Any, **options: Any) -> bool:
            refusal = self.refusals.pop(log.topic.name, None)
            if refusal is None:
                return append(log, *arguments, **options)
            self.last = log
            asyncio.get_running_loop().call_soon(arguments[-1], refusal)
            return False

        def hold(log: PartitionLog, _: int, __: int, done: Callable[[StorageError | None], None]) -> None:
            held, loop = self.held.get(log.topic.name), asyncio.get_running_loop()
            if held is None:
                done(None)
            else:
                error = NotEnoughReplicasAfterAppend("too few replicas")
                held.append(lambda: loop.call_soon_threadsafe(done, error))

        monkeypatch.setattr(PartitionLog, "append", refuse_once)
        monkeypatch.setattr(PartitionLog, "waits_for_replicas", True)
        monkeypatch.setattr(PartitionLog, "await_released", hold)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    return Logs(monkeypatch)


@pytest.fixture
def client(in_process: SimpleNamespace) -> Iterator[Client]:
    made = connect(in_process)
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("a", "b")]
    made("CreateTopics", 7, topics=topics, timeout=10_000, validate_only=False)
    with made.raw:
        yield made


def idempotent_producer(broker: SimpleNamespace) -> Producer:
    return Producer(
        {"bootstrap.servers": f"{broker.host}:{broker.port}", "enable.idempotence": True, "linger.ms": 0}
    )


def values(client: Client, topic: str) -> list[bytes | None]:
    return [value for _, _, value in everything(client, topic)]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [(WritesRefused("not now"), NOT_ENOUGH_REPLICAS), (LinkLost("no answer"), TIMED_OUT)],
    ids=["not enough replicas", "timed out"],
)
def test_batches_after_a_refused_one_have_its_error(
    client: Client, logs: Logs, refusal: StorageError, error: int
) -> None:
    """Those that are on their way to Redis when it fails, and those that come later."""
    pid = producer_id(client)
    first, *later = (stamped(pid, 2 * number, count=2) for number in range(5))
    assert put(client, "a", first).error_code == 0
    logs.refusals["a"] = refusal
    assert [part.error_code for part in pipelined(client, "a", later[:3])] == [error] * 3
    assert put(client, "a", later[3]).error_code == error
    assert [part.error_code for part in pipelined(client, "a", later)] == [0] * 4
    assert values(client, "a") == [b"%d" % number for number in range(10)]


def test_a_client_that_gives_a_batch_up_learns_that_it_lacks(client: Client, logs: Logs) -> None:
    pid = producer_id(client)
    assert put(client, "a", stamped(pid, 0)).error_code == 0
    logs.refusals["a"] = WritesRefused("not now")
    found = pipelined(client, "a", [stamped(pid, 1), stamped(pid, 2)])
    assert [part.error_code for part in found] == [NOT_ENOUGH_REPLICAS] * 2
    assert put(client, "a", stamped(pid, 2)).error_code == OUT_OF_ORDER
    assert put(client, "a", stamped(pid, 0, epoch=1)).error_code == 0


def test_librdkafka_repeats_no_record_of_another_partition(
    client: Client, logs: Logs, in_process: SimpleNamespace
) -> None:
    """OUT_OF_ORDER_SEQUENCE_NUMBER would make it take a new epoch, in which nobody recognises its batches."""
    producer = idempotent_producer(in_process)
    for topic in "ab":
        producer.produce(topic, b"0")
    assert producer.flush(20) == 0
    logs.held["a"] = held = []
    producer.produce("a", b"1")
    until(lambda: held, 10, "the batch waits for replicas")
    logs.refusals["b"] = WritesRefused("not now")
    producer.produce("b", b"1")
    until(lambda: not logs.refusals, 10, "the batch is refused")
    producer.produce("b", b"2")
    until(lambda: logs.last.counts.failed_produces == 2, 10, "so is the one after it")
    del logs.held["a"]
    for give_up in held:
        give_up()
    assert producer.flush(20) == 0
    assert values(client, "a") == [b"0", b"1"]
    assert values(client, "b") == [b"0", b"1", b"2"]


class BrokenLink:
    """Loses the first append to topic `a` on its way to Redis."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.appender: Appender | None = None
        self.notice: Callable[[StorageError], object]
        """Lets the broker notice it by this error."""
        send = Appender._send

        def lose(appender: Appender, *arguments: Any) -> None:
            state = appender._state
            if self.appender is not None or state.topic.name != "a":
                send(appender, *arguments)
                return
            self.appender = appender
            links = state.links
            state.links = SimpleNamespace(write_functions=self)  # type: ignore[assignment]
            send(appender, *arguments)
            state.links = links

        monkeypatch.setattr(Appender, "_send", lose)

    def send(self, _: Any, arrived: Callable[[StorageError], None]) -> None:
        self.notice = partial(asyncio.get_running_loop().call_soon_threadsafe, arrived)

    @property
    def holds_others(self) -> bool:
        """Whether other appends wait for it."""
        return self.appender is not None and len(self.appender._queue) > 0


@pytest.fixture
def broken_link(monkeypatch: pytest.MonkeyPatch) -> BrokenLink:
    return BrokenLink(monkeypatch)


# In a cluster, an append is given up if no node serves its slot in time.
NOTICES = pytest.mark.parametrize(
    ("notice", "error"),
    [(LinkLost("broken"), 0), (SlotUnavailable("not served"), NOT_LEADER)],
    ids=["the connection is lost", "the slot is not served"],
)


@NOTICES
def test_no_batch_overtakes_the_producers_first_one(
    client: Client, broken_link: BrokenLink, notice: StorageError, error: int
) -> None:
    """A producer that the log does not know may begin anywhere, also with the batch after a lost one.

    Redis knows whether a lost one took effect. If it is refused, so are those after it, until it comes again.
    """
    pid = producer_id(client)
    batches = [stamped(pid, number) for number in range(3)]
    with ThreadPoolExecutor() as pool:
        answers = pool.submit(pipelined, client, "a", batches)
        until(lambda: broken_link.holds_others, 10, "the batches after it wait")
        broken_link.notice(notice)
        assert [part.error_code for part in answers.result()] == [error] * 3
    assert [part.error_code for part in pipelined(client, "a", batches)] == [0] * 3
    assert values(client, "a") == [b"0", b"1", b"2"]


@NOTICES
def test_librdkafka_loses_no_first_record(
    client: Client, broken_link: BrokenLink, in_process: SimpleNamespace, notice: StorageError, error: int
) -> None:
    """It takes all batches before an acknowledged one for acknowledged."""
    del error
    producer = idempotent_producer(in_process)
    producer.produce("b", b"")
    assert producer.flush(20) == 0
    producer.produce("a", b"0")
    until(lambda: broken_link.appender, 10, "the batch is on its way")
    producer.produce("a", b"1")
    until(lambda: broken_link.holds_others, 10, "the next batch waits")
    broken_link.notice(notice)
    assert producer.flush(20) == 0
    assert values(client, "a") == [b"0", b"1"]
