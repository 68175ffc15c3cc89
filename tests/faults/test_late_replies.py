"""Replies to appends are late, replies to reads are not: read_committed returns no record of an open or
aborted transaction, and all records of committed ones.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from tests.storage.proxy import proxy_in_thread
from tests.support.admin import create_topic
from tests.support.confluent import as_read, consumer, producer
from tests.support.polling import until
from tests.support.redis_server import Server, server_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients]

# One topic of each kind; every transaction writes to all of them.
TOPICS = {
    f"{layout}-{assignment}": {"storage.layout": layout, "offset.assignment": assignment}
    for layout in ("record", "batch")
    for assignment in ("clock", "dense")
}
PRODUCERS = 5
RECORDS = 3
# One transaction in this many of each producer is committed.
COMMITTED_EACH = 5


class Reader:
    """A consumer of one topic from its first record on, in a thread; with `rereads` it begins again all
    the time.
    """

    def __init__(self, bootstrap: str, topic: str, isolation: str, *, rereads: bool = False) -> None:
        self.values: list[bytes] = []
        self.wrong: list[bytes] = []
        self._stop = threading.Event()
        self._is_committed = isolation == "read_committed"
        self.topic = topic
        self._client = consumer(bootstrap, str(uuid.uuid4()), isolation_level=isolation, fetch_wait_max_ms=50)
        self.rereads = rereads
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._client.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
            self.values = []
            while not self._stop.is_set():
                found = [as_read(message).record.value or b"" for message in self._client.consume(500, 0.1)]
                self.values += found
                self.wrong += [value for value in found if self._is_committed and value.startswith(b"no")]
                if self.rereads and not found:
                    break

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._client.close()


@pytest.fixture
def served(
    own_korvet: Callable[..., KorvetServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[float], tuple[Server, str]]]:
    """Starts a broker whose appends are answered late; returns its Redis and its bootstrap address."""
    folder: Path = tmp_path_factory.mktemp("redis")
    store = Server(server_programs()[0], folder)
    with proxy_in_thread(store.socket) as (proxy, url):

        def start(delay_s: float) -> tuple[Server, str]:
            proxy.write_delay_s = delay_s
            bootstrap = own_korvet(redis_url=url).bootstrap
            for topic, configs in TOPICS.items():
                create_topic(bootstrap, topic, 1, configs)
            return store, bootstrap

        yield start
    store.stop()


def run_transactions(bootstrap: str, number: int, count: int) -> list[bytes]:
    """Abort `count` transactions, and commit some; returns the committed values."""
    client = producer(bootstrap, transactional_id=f"late-{number}", linger_ms=0)
    client.init_transactions(60)
    committed = []
    for transaction in range(count + count // (COMMITTED_EACH - 1)):
        commits = transaction % COMMITTED_EACH == COMMITTED_EACH - 1
        values = [
            b"%s-%d-%d-%d" % (b"yes" if commits else b"no", number, transaction, each)
            for each in range(RECORDS)
        ]
        client.begin_transaction()
        for value in values:
            for topic in TOPICS:
                client.produce(topic, value, partition=0)
        assert client.flush(60) == 0
        if commits:
            client.commit_transaction(60)
            committed += values
        else:
            client.abort_transaction(60)
    return committed


def write_natively(store: Server, stop: threading.Event) -> int:
    """Add entries to all topics until the end; returns the number for each."""
    count = 0
    while not stop.wait(0.01):
        count += 1
        for topic in TOPICS:
            stream = f"korvet:{topic}:0"
            keys = [stream, f"{{{stream}}}:index", f"{{{stream}}}:meta"]
            if topic.endswith("dense"):
                store.client.fcall("korvet_xadd", 3, *keys, "value", b"native-%d" % count)
            else:
                store.client.xadd(stream, {"value": b"native-%d" % count})
    return count


def check(served: tuple[Server, str], aborted: int, *, natives: bool) -> None:
    store, bootstrap = served
    readers = [
        Reader(bootstrap, topic, isolation, rereads=rereads)
        for topic in TOPICS
        for isolation, rereads in (
            ("read_committed", False),
            ("read_committed", True),
            ("read_uncommitted", False),
        )
    ]
    stop = threading.Event()
    try:
        with ThreadPoolExecutor(PRODUCERS + 1) as pool:
            native = pool.submit(write_natively, store, stop) if natives else None
            try:
                work = [
                    pool.submit(run_transactions, bootstrap, number, aborted // PRODUCERS)
                    for number in range(PRODUCERS)
                ]
                wanted = {value for each in work for value in each.result()}
            finally:
                stop.set()
            native_count = 0 if native is None else native.result()
        wanted |= {b"native-%d" % number for number in range(1, native_count + 1)}
        for reader in readers[::3]:
            until(lambda reader=reader: wanted <= set(reader.values), 30, "all that is committed is read")
    finally:
        for reader in readers:
            reader.close()
    assert {f"{reader.topic} {reader.rereads}": reader.wrong for reader in readers if reader.wrong} == {}
    assert [len(reader.values) for reader in readers[::3]] == [len(wanted)] * len(TOPICS)


@pytest.mark.parametrize("natives", [False, True])
def test_no_aborted_record_is_read(served: Callable[[float], tuple[Server, str]], natives: bool) -> None:
    check(served(0.02), 20, natives=natives)


@pytest.mark.long
@pytest.mark.parametrize("natives", [False, True])
@pytest.mark.parametrize("delay_s", [0, 0.02, 0.2])
def test_none_of_many_aborted_records_is_read(
    served: Callable[[float], tuple[Server, str]], delay_s: float, natives: bool
) -> None:
    check(served(delay_s), 200, natives=natives)
