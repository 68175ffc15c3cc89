"""Kafka Streams with exactly_once_v2 counts words in a store with a changelog, after a repartition topic.

It writes each count of a word, so that duplicate and lost records are visible.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from tests.support.confluent import consumer, producer
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.java import JavaTools
    from tests.support.processes import Child

pytestmark = [pytest.mark.clients]

PARTITIONS = 2
WAIT_S = 60
WORDS = ("to", "be", "or", "not", "that", "is", "the", "question", "слово")

# Only settings that distinguish applications, that write each count, and that keep a transaction open for a
# while.
PROPERTIES = """
bootstrap.servers={bootstrap}
application.id={name}
state.dir={state}
processing.guarantee=exactly_once_v2
replication.factor=1
default.key.serde=org.apache.kafka.common.serialization.Serdes$StringSerde
default.value.serde=org.apache.kafka.common.serialization.Serdes$StringSerde
statestore.cache.max.bytes=0
commit.interval.ms=1000
auto.offset.reset=earliest
"""


class Application:
    """Instances of one application between two topics."""

    def __init__(
        self, java: JavaTools, bootstrap: str, name: str, folder: Path, topics: tuple[str, str]
    ) -> None:
        self.name = name
        self.lines, self.counts = topics
        self.expected: Counter[bytes] = Counter()
        self._java = java
        self._bootstrap = bootstrap
        self._folder = folder
        self._started: list[Child] = []
        self._sent = 0

    def start(self, instance: str, **settings: Any) -> Child:
        """Start an instance, or restart it with its state."""
        text = PROPERTIES.format(bootstrap=self._bootstrap, name=self.name, state=self._folder / instance)
        text += "".join(f"{key.replace('_', '.')}={value}\n" for key, value in settings.items())
        file = self._folder / f"{instance}.properties"
        file.write_text(text)
        log = self._folder / f"{instance}.log"
        child = self._java.start("WordCount", str(file), self.lines, self.counts, log=log)
        self._started.append(child)
        return child

    def kill(self) -> None:
        """Returns the running instances."""
        for child in self._started:
            child.kill()

    def say(self, lines: int) -> None:
        """Produce lines of words, cycling through the partitions."""
        client = producer(self._bootstrap)
        for number in range(self._sent, self._sent + lines):
            words = [WORDS[(number * 7 + each * each) % len(WORDS)].encode() for each in range(5)]
            self.expected.update(words)
            client.produce(self.lines, b" ".join(words), partition=number % PARTITIONS)
        assert client.flush(60) == 0
        self._sent += lines

    def written(self, isolation: str = "read_committed") -> list[list[tuple[bytes, int]]]:
        """Returns the counts in each partition up to the ends that the consumer sees."""
        client = consumer(
            self._bootstrap,
            "words-read",
            isolation_level=isolation,
            enable_auto_commit=False,
            enable_partition_eof=True,
        )
        found: list[list[tuple[bytes, int]]] = [[] for _ in range(PARTITIONS)]
        try:
            client.assign([TopicPartition(self.counts, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
            at_work = set(range(PARTITIONS))
            while at_work:
                message = client.poll(30)
                assert message is not None, found
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    at_work.discard(message.partition())
                else:
                    (count,) = struct.unpack(">q", message.value())
                    found[message.partition()].append((message.key(), count))
        finally:
            client.close()
        return found

    def say_until_a_transaction_is_open(self) -> None:
        """Produce lines until there are written counts that aren't committed yet."""

        def is_open() -> bool:
            self.say(100)
            return self._ends("read_uncommitted") != self._ends("read_committed")

        until(is_open, WAIT_S, f"a transaction is open\n{self.output()}")

    def _ends(self, isolation: str) -> list[int]:
        client = consumer(self._bootstrap, "words-ends", isolation_level=isolation)
        try:
            places = (TopicPartition(self.counts, each) for each in range(PARTITIONS))
            return [client.get_watermark_offsets(place, 30)[1] for place in places]
        finally:
            client.close()

    def total(self, isolation: str = "read_committed") -> int:
        return sum(map(len, self.written(isolation)))

    def check(self) -> None:
        """Every word was counted up to its total, each number once and in order."""
        everything = sum(self.expected.values())
        until(lambda: self.total() >= everything, WAIT_S, f"all counts\n{self.output()}")
        counts: dict[bytes, list[int]] = {}
        for partition in self.written():
            for word, count in partition:
                counts.setdefault(word, []).append(count)
        assert counts == {word: list(range(1, many + 1)) for word, many in self.expected.items()}

    def output(self) -> str:
        return "\n".join(child.output()[-3000:] for child in self._started)


@pytest.fixture
def application(java, broker, new_topic, fresh, tmp_path) -> Iterator[Application]:
    """A new application."""
    topics = new_topic(PARTITIONS), new_topic(PARTITIONS)
    made = Application(java, broker.bootstrap, fresh("words"), tmp_path, topics)
    yield made
    made.kill()


def test_word_count_is_exact_though_the_application_is_killed(application, broker):
    """It returns as the same static member, and rebuilds its store from the changelog."""
    first = application.start("one", group_instance_id="one")
    application.say(200)
    until(lambda: application.total() >= 50, WAIT_S, f"counts are committed\n{application.output()}")
    application.say_until_a_transaction_is_open()
    first.kill()
    application.start("one", group_instance_id="one", repartition_purge_interval_ms=100)
    application.check()

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    changelog, repartition = (f"{application.name}-counts-{each}" for each in ("changelog", "repartition"))
    (configs,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, changelog)]).values()
    assert configs.result(30)["cleanup.policy"].value == "compact"

    def is_purged() -> bool:
        starts = {TopicPartition(repartition, each): OffsetSpec.earliest() for each in range(PARTITIONS)}
        found = admin.list_offsets(starts)
        return any(each.result(30).offset > 0 for each in found.values())

    until(is_purged, WAIT_S, "records that were read are deleted from the repartition topic")


@pytest.mark.long
def test_word_count_is_exact_though_members_come_and_die(application):
    """Independent instances, each with a thread per partition, are killed in turn."""
    settings = {"session_timeout_ms": 6000, "num_stream_threads": 2}
    at_work = [application.start("a", **settings), application.start("b", **settings)]
    for name in ("c", "d", "a"):
        before = application.total()
        application.say(200)
        until(lambda before=before: application.total() > before, WAIT_S, application.output())
        application.say_until_a_transaction_is_open()
        at_work.pop(0).kill()
        at_work.append(application.start(name, **settings))
    application.check()


@pytest.mark.long
def test_the_streams_protocol_is_refused(application):
    """The streams protocol isn't advertised: the application ends with that reason."""
    child = application.start("one", group_protocol="streams")
    until(lambda: not child.running, WAIT_S, "it ends")
    assert "does not support the STREAMS group protocol" in child.output()
    assert "UnsupportedVersionException" in child.output()
