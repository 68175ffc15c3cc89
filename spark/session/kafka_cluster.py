"""Topics of a Kafka cluster and their extents, from Kafka's admin client in Spark's JVM.

The connector can't report them: for a topic that doesn't exist it waits, then fails the job.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from korvet.spark.session.driver_calls import is_connect
from korvet.spark.session.failures import causes_of, root_kind
from korvet.spark.session.jars import JarsMissing
from korvet.spark.session.kafka_probe import likely_cause
from korvet.spark.session.redaction import redacted
from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

API_TIMEOUT_MS = 20_000
REQUEST_TIMEOUT_MS = 10_000
# Failures by which a topic is left out: it doesn't exist, or the login may not see it.
_NO_TOPIC = (
    "UnknownTopicOrPartitionException",
    "UnknownTopicIdException",
    "InvalidTopicException",
    "TopicAuthorizationException",
)
_ADVERTISED = (
    "the bootstrap servers answer; can this machine reach the brokers at the addresses that they advertise "
    "(advertised.listeners)?"
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets of one partition, first .. end - 1, up to the first open transaction."""

    first: int
    end: int


class Cluster:
    """Requests to one Kafka cluster. All raise SourceError if it does not answer."""

    def __init__(
        self, jvm: Any, admin: Any, settings: Any, bootstrap: str, properties: Mapping[str, str]
    ) -> None:
        self.jvm = jvm
        """The driver's."""
        self.admin = admin
        """Kafka's admin client."""
        self.settings = settings
        """Of Kafka's clients, as Java's Properties."""
        self._kafka = jvm.org.apache.kafka
        self._java = jvm.java.util
        self._bootstrap = bootstrap
        self._properties = properties

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of those topics that exist (Metadata). Creates no topic."""
        with self.failures():
            answers = self.admin.describeTopics(self.listed({*topics})).topicNameValues()
            return {
                topic.name(): sorted(part.partition() for part in topic.partitions())
                for topic in _existing(answers)
            }

    def topic_id(self, topic: str) -> str:
        """Return the ID of a topic (KIP-516). It must exist."""
        with self.failures():
            described = self.admin.describeTopics(self.listed([topic])).allTopicNames().get()
            return str(described[topic].topicId().toString())

    def topic_names(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the names of those topics that exist, by ID (Metadata)."""
        with self.failures():
            asked = self.listed(map(self._kafka.common.Uuid.fromString, ids))
            topics = self._kafka.common.TopicCollection.ofTopicIds(asked)
            answers = self.admin.describeTopics(topics).topicIdValues()
            return {topic.topicId().toString(): topic.name() for topic in _existing(answers)}

    def extents(self, topic_partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Extent]:
        """Return the extents of partitions (ListOffsets, read_committed). All must exist."""
        with self.failures():
            spec, committed = self._kafka.clients.admin.OffsetSpec, self._levels.READ_COMMITTED
            first = self._offsets(topic_partitions, spec.earliest(), committed)
            end = self._offsets(topic_partitions, spec.latest(), committed)
        return {
            topic_partition: Extent(first[topic_partition], end[topic_partition])
            for topic_partition in topic_partitions
        }

    def ends(self, topic_partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the log end offsets of partitions (ListOffsets, read_uncommitted). All must exist."""
        with self.failures():
            latest = self._kafka.clients.admin.OffsetSpec.latest()
            return self._offsets(topic_partitions, latest, self._levels.READ_UNCOMMITTED)

    def listed(self, items: Iterable[Any]) -> Any:
        """Return the items as a java.util.List, for arguments of Java methods."""
        made = self._java.ArrayList()
        for item in items:
            made.add(item)
        return made

    def failures(self) -> AbstractContextManager[None]:
        """Return a context in which failed requests raise SourceError."""
        return _failures(self._bootstrap, self._properties)

    @property
    def _levels(self) -> Any:
        return self._kafka.common.IsolationLevel

    def _offsets(
        self, topic_partitions: Sequence[tuple[str, int]], spec: Any, level: Any
    ) -> dict[tuple[str, int], int]:
        asked = self._java.HashMap()
        keys = {
            topic_partition: self._kafka.common.TopicPartition(*topic_partition)
            for topic_partition in topic_partitions
        }
        for key in keys.values():
            asked.put(key, spec)
        options = self._kafka.clients.admin.ListOffsetsOptions(level)
        answers = self.admin.listOffsets(asked, options)
        return {
            topic_partition: answers.partitionResult(key).get().offset()
            for topic_partition, key in keys.items()
        }


def _existing(answers: Any) -> Iterator[Any]:
    """The descriptions of topics that exist, as far as the login may see them. answers: futures."""
    for answer in answers.values():
        try:
            yield answer.get()
        except Py4JJavaError as error:
            if root_kind(error.java_exception) not in _NO_TOPIC:
                raise


@contextmanager
def cluster_of(spark: SparkSession, bootstrap: str, properties: Mapping[str, str]) -> Iterator[Cluster]:
    """Return the cluster at the bootstrap servers, until the end of the block.

    properties: of Kafka's clients, as of read_command_config. Raises JarsMissing if the session has no Kafka
    client, SourceError for unusable servers and for a session of Spark Connect, whose driver is not of this
    process.
    """
    if is_connect(spark):
        raise SourceError(
            f"Kafka at {bootstrap} can't be asked through Spark Connect: use a session with its own driver, "
            "or read korvet's topics from Redis"
        )
    jvm: Any = spark._jvm
    client = jvm.org.apache.kafka.clients.admin.AdminClient
    if isinstance(client, JavaPackage):
        raise JarsMissing("this Spark session has no Kafka client: start it with the jars of `korvet jars`")
    settings = jvm.java.util.Properties()
    for name, value in {
        "default.api.timeout.ms": str(API_TIMEOUT_MS),
        "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
        **properties,
        "bootstrap.servers": bootstrap,
    }.items():
        settings.setProperty(name, value)
    with _failures(bootstrap, properties):
        admin = client.create(settings)
    try:
        yield Cluster(jvm, admin, settings, bootstrap, properties)
    finally:
        admin.close()


@contextmanager
def _failures(bootstrap: str, properties: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        words = _words(causes_of(error.java_exception), bootstrap, properties)
        raise SourceError(f"no usable Kafka at {bootstrap}: {words}") from error
    except PySparkException as error:
        raise SourceError(f"no usable Kafka at {bootstrap}: {redacted(str(error))}") from error


def _words(causes: Sequence[tuple[str, str]], bootstrap: str, properties: Mapping[str, str]) -> str:
    """The root cause of a failure. causes: of causes_of."""
    name, message = causes[-1]
    kind = name.rpartition(".")[2]
    if any(each.endswith(("TimeoutException", "DisconnectException")) for each, _ in causes):
        return f"{message or kind}; {likely_cause(bootstrap, properties) or _ADVERTISED}"
    # The message of Java's exceptions about files is only the path.
    return redacted(f"{kind}: {message}" if "/" in message and " " not in message else message or kind)
