"""What a write asks of a Kafka cluster, by librdkafka (confluent-kafka)."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from korvet.spark.source.sink.kafka_cluster import KafkaCluster

try:
    import confluent_kafka as kafka
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic
except ImportError:
    kafka = None  # type: ignore[assignment]

# If all connections break, librdkafka would look for brokers anew (KIP-899), and forget the coordinator of
# the transaction: with 2.16, the call that asks it never returns. The property exists from 2.11 on.
_KEEP_BROKERS = (
    {"metadata.recovery.strategy": "none"}
    if kafka is not None and kafka.libversion()[1] >= 0x020B0000
    else {}
)
# librdkafka's largest value. By default it refuses records of 1 MB that a topic accepts (max.message.bytes).
_LARGEST_RECORD = {"message.max.bytes": 1_000_000_000}
# Only what is critical: exceptions report the rest.
_LOG_LEVEL = 2
# Wait for room in the client's queue.
_QUEUE_WAIT_S = 0.1
# The longest wait for the end of a transaction that fails. The next attempt ends it, too.
_ABORT_S = 10.0
# Between two looks for a refused record.
_FLUSH_S = 0.1
# Between two looks at a topic that was created.
_PAUSE_S = 0.02
# Until it is reported that records have timed out.
_REPORT_S = 5.0
log = logging.getLogger(__name__)


class KafkaRecord(NamedTuple):
    """A record; `row` is its number in the task, for messages."""

    row: int
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None


class Note(NamedTuple):
    """What a group commits: a text, as metadata of offset 0 of a topic without records: there is no lag."""

    group: Any
    topic: str
    text: str


class KafkaTopics:
    """The topics of the cluster, and what a group has committed for them. All methods raise SourceError."""

    def __init__(self, cluster: KafkaCluster, group: str, timeout_s: float) -> None:
        self._calls = _Calls(cluster)
        self._timeout_s = timeout_s
        # Committed offsets of an open transaction are waited for.
        own = {"group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False}
        with self._calls.failures(timeout_s):
            self._consumer = kafka.Consumer(self._calls.config(own), logger=log)
        self._calls.poll = self._poll

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        self._consumer.close()

    def _poll(self) -> None:
        message = self._consumer.poll(0)
        if message is not None and message.error() is not None:
            self._calls.note(message.error())

    @property
    def group(self) -> Any:
        """The group, for a note."""
        return self._consumer.consumer_group_metadata()

    def partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions. Creates no topic."""
        found = self._described(topic)
        if found.error is None:
            return len(found.partitions)
        if found.error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise SourceError(f"no topic {topic} in Kafka at {self._calls.bootstrap}")
        raise SourceError(f"{self._calls}: topic {topic}: {found.error.str()}")

    def create_if_missing(self, topic: str) -> None:
        """Create a topic with one partition, and wait until brokers show it."""
        deadline_s = time.monotonic() + self._timeout_s
        while (error := self._described(topic).error) is not None:
            if error.code() != kafka.KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline_s:
                raise SourceError(f"{self._calls}: topic {topic}: {error.str()}")
            self._create(topic)
            time.sleep(_PAUSE_S)

    def _create(self, topic: str) -> None:
        with self._calls.failures(self._timeout_s):
            admin = AdminClient(self._calls.config({}), logger=log)
            try:
                admin.create_topics([NewTopic(topic, 1)], request_timeout=self._timeout_s)[topic].result()
            except kafka.KafkaException as error:
                reason = error.args[0]
                if reason.code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise SourceError(
                        f"{self._calls} has no topic {topic}, and it can't be created: {reason.str()}. "
                        "Create it with one partition; it gets no records"
                    ) from error

    def _described(self, topic: str) -> Any:
        with self._calls.failures(self._timeout_s):
            return self._consumer.list_topics(topic, timeout=self._timeout_s).topics[topic]

    def noted(self, topic: str) -> str:
        """Return the text of the group's note; empty without a commit."""
        with self._calls.failures(self._timeout_s):
            found = self._consumer.committed([kafka.TopicPartition(topic, 0)], self._timeout_s)[0]
        if found.error is not None:
            raise SourceError(f"{self._calls}: group of the task: {found.error.str()}")
        # librdkafka ends metadata with a zero byte.
        return (found.metadata or "").rstrip("\0")

    def note(self, topic: str, text: str) -> None:
        """Commit a note of the group, outside of any transaction."""
        with self._calls.failures(self._timeout_s):
            self._consumer.commit(offsets=[kafka.TopicPartition(topic, 0, 0, text)], asynchronous=False)


class Transactions:
    """A producer that writes records and the note about them in one transaction.

    The start of another one with the same ID ends its open transaction and fences it. All methods raise
    SourceError.
    """

    def __init__(self, cluster: KafkaCluster, transactional_id: str, delivery_ms: int) -> None:
        self._calls = _Calls(cluster)
        self._timeout_s = delivery_ms / 1000
        self._refusal = ""
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": delivery_ms,
            "message.timeout.ms": delivery_ms,
            "delivery.report.only.error": True,
        }
        with self._calls.failures(self._timeout_s):
            self._producer = kafka.Producer(self._calls.config(own), logger=log)
            self._calls.poll = partial(self._producer.poll, 0)
            self._producer.init_transactions(self._timeout_s)

    def close(self) -> None:
        """Close the connections. The producer is part of a cycle, which may last without this."""
        self._calls.poll = None
        del self._producer

    def write(self, records: Sequence[KafkaRecord], note: Note) -> None:
        """Write the records and the note. After an error neither is written, unless an answer was lost."""
        with self._calls.failures(self._timeout_s):
            self._producer.begin_transaction()
            try:
                for record in records:
                    self._produce(record)
                self._deliver()
                offset = kafka.TopicPartition(note.topic, 0, 0, note.text)
                self._producer.send_offsets_to_transaction([offset], note.group, self._timeout_s)
                self._producer.commit_transaction()
            except kafka.KafkaException as error:
                if not error.args[0].fatal():
                    self._abort()
                if error.args[0].code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    topics = ", ".join(sorted({record.topic for record in records}))
                    raise SourceError(f"{self._calls}: {_named(error.args[0])} for {topics}") from error
                raise
            except SourceError:
                self._abort()
                raise

    def _produce(self, record: KafkaRecord) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    on_delivery=partial(self._note_failure, record.row),
                    timestamp=record.timestamp_ms or 0,
                    headers=list(record.headers),
                )
            except BufferError:
                self._producer.poll(_QUEUE_WAIT_S)
            except kafka.KafkaException as error:
                raise SourceError(
                    _refused(record.row, record.topic, record.partition, error.args[0])
                ) from error
            else:
                return

    def _note_failure(self, row: int, error: Any, message: Any) -> None:
        # Records that were not sent: the transaction has the cause.
        unsent = {kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT, kafka.KafkaError._FATAL}
        if not self._refusal and error is not None and error.code() not in unsent:
            self._refusal = _refused(row, message.topic(), message.partition(), error)

    def _deliver(self) -> None:
        """Wait until all records are acknowledged, but not for those after a refused one.

        The brokers can't take these, as their sequence numbers follow those of the refused batch.
        """
        deadline_s = time.monotonic() + self._timeout_s + _REPORT_S
        while self._producer.flush(_FLUSH_S) and not self._refusal and time.monotonic() < deadline_s:
            continue
        if self._refusal:
            raise SourceError(self._refusal)

    def _abort(self) -> None:
        """End the transaction. If that fails, the next attempt of the task does it, or its timeout."""
        try:
            self._producer.abort_transaction(min(self._timeout_s, _ABORT_S))
        except kafka.KafkaException as error:
            log.warning("%s: the transaction could not be aborted: %s", self._calls, error.args[0].str())


def _refused(row: int, topic: str, partition: int, error: Any) -> str:
    return f"{topic}-{partition} refuses the record of row {row}: {_named(error)}"


def _named(error: Any) -> str:
    return f"{error.name()} ({error.str()})"


class _Calls:
    """Calls to a cluster: the configuration of clients, and errors as SourceError."""

    def __init__(self, cluster: KafkaCluster) -> None:
        if kafka is None:
            raise SourceError(
                "the korvet sink needs confluent-kafka on the driver and on all executors: "
                "pip install 'korvet[kafka]'"
            )
        self.bootstrap = cluster.bootstrap
        self._cluster = cluster
        self._last = ""
        self.poll: Callable[[], object] | None = None
        """Calls back with errors of connections."""

    def __str__(self) -> str:
        return f"Kafka at {self.bootstrap}"

    def config(self, own: dict[str, Any]) -> dict[str, Any]:
        """The configuration of a client. Raises SourceError."""
        return {
            "log_level": _LOG_LEVEL,
            **_KEEP_BROKERS,
            **_LARGEST_RECORD,
            **self._cluster.config(),
            **own,
            "error_cb": self.note,
        }

    def note(self, error: Any) -> None:
        """Keep an error, unless it is a consequence of others."""
        if error.code() != kafka.KafkaError._ALL_BROKERS_DOWN:
            self._last = error.str()

    @contextmanager
    def failures(self, timeout_s: float) -> Iterator[None]:
        """Raise SourceError for an error of librdkafka."""
        try:
            yield
        except kafka.KafkaException as raised:
            error = raised.args[0]
            if error.code() in {kafka.KafkaError._FENCED, kafka.KafkaError.PRODUCER_FENCED}:
                raise SourceError("another attempt of this task has begun since") from raised
            away = {kafka.KafkaError._TIMED_OUT, kafka.KafkaError._TRANSPORT}
            if error.code() in away or error.retriable():
                if self.poll is not None:
                    self.poll()
                reason = f": {self._last}" if self._last else ""
                raise SourceError(
                    f"no usable {self}: {error.str()}{reason} (tried for {timeout_s:g} s, deliveryTimeout)"
                ) from raised
            raise SourceError(f"{self}: {_named(error)}") from raised
