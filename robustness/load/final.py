"""The last reads of a run, after all faults have ended and all clients are closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from korvet.offsets.packing import offset_after, offset_of
from robustness.clients import Reader, Sender
from robustness.history import UNKNOWN, Place, ReadAll, ReadCommit, ReadNativeGroup, addressed
from robustness.load.administrator import bounds
from robustness.load.natives import NativeClient, stream, value_of
from robustness.load.worker import LIBRDKAFKA, REQUEST_TIMEOUT_S
from tests.support.polling import DeadlineMissed, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from robustness.clients import Recorder
    from robustness.plan import TopicPlan
    from robustness.site.topologies import Topology

# Limits the wait for brokers that have just started, and for open transactions, which time out.
SETTLE_TIMEOUT_S: Final = 20.0
MOST_PENDING: Final = 100_000


class FinalReader:
    """Reads all partitions, as Kafka and as Redis clients do, and all committed offsets."""

    def __init__(self, recorder: Recorder, bootstrap: str, topology: Topology) -> None:
        self._record = recorder
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **LIBRDKAFKA})
        self._redis = NativeClient(topology)
        self._visible: set[tuple[str, int]] = set()
        """The partitions all of whose records can be read."""

    def read(self, topics: Sequence[TopicPlan], groups: Iterable[str]) -> dict[str, int]:
        """Read everything. What can't be read in time stays incomplete in the history. Returns how many
        partitions each topic has.
        """
        partitions = {topic.name: self._partitions(topic.name) for topic in topics}
        self._send_last(partitions)
        for topic in topics:
            for partition in range(partitions[topic.name]):
                self._read_partition(topic, partition)
        for group in groups:
            self._read_group(group, topics, partitions)
        self._redis.close()
        return partitions

    def _partitions(self, topic: str) -> int:
        def count() -> int:
            try:
                return len(self._admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].partitions)
            except KafkaException:
                return 0

        return until(count, SETTLE_TIMEOUT_S, f"{topic} is in Metadata")

    def _send_last(self, partitions: Mapping[str, int]) -> None:
        """Send a record to each partition, with acks=all: readers see all records before it then."""
        sender = Sender(self._record, self._bootstrap, "last", timeout_s=SETTLE_TIMEOUT_S)
        for topic, count in partitions.items():
            for partition in range(count):
                sender.send(topic, partition, "last")
        sender.flush()
        self._visible = sender.acknowledged

    def _read_partition(self, topic: TopicPlan, partition: int) -> None:
        for isolation in ("read_uncommitted", "read_committed"):
            where = {"topic": topic.name, "partition": partition, "isolation": isolation}
            self._record.add(ReadAll, "final", "invoke", **where)
        if (topic.name, partition) not in self._visible:
            return
        try:
            until(
                lambda: self._is_settled(topic.name, partition), SETTLE_TIMEOUT_S, "transactions have ended"
            )
        except DeadlineMissed:
            return
        for isolation in ("read_uncommitted", "read_committed"):
            reader = Reader(self._record, self._bootstrap, "final", isolation)  # type: ignore[arg-type]
            records, is_complete = reader.read_to_end(topic.name, partition)
            where = {"topic": topic.name, "partition": partition, "isolation": isolation}
            self._record.add(ReadAll, "final", "ok", **where, records=records, complete=is_complete)
        if topic.is_native:
            self._read_stream(topic.name, partition)

    def _is_settled(self, topic: str, partition: int) -> bool:
        try:
            _, stable, end = bounds(self._admin, topic, partition)
        except KafkaException:
            return False
        return stable == end

    def _read_stream(self, topic: str, partition: int) -> None:
        key = stream(topic, partition)
        values = ((at, value_of(fields)) for at, fields in self._redis.of(key).xrange(key))
        records = tuple(addressed((at, value) for at, value in values if value is not None))
        where = {"topic": topic, "partition": partition, "reader": "native", "records": records}
        self._record.add(ReadAll, "native", "ok", **where, complete=True)

    def _read_group(self, group: str, topics: Sequence[TopicPlan], partitions: dict[str, int]) -> None:
        asked = [TopicPartition(topic, number) for topic in partitions for number in range(partitions[topic])]
        self._record.add(ReadCommit, "final", "invoke", group=group)
        try:
            found = until(lambda: self._committed(group, asked), SETTLE_TIMEOUT_S, f"offsets of {group}")
        except DeadlineMissed as error:
            self._record.add(ReadCommit, "final", "info", group=group, error=str(error))
            return
        places = tuple(Place(each.topic, each.partition, max(each.offset, UNKNOWN)) for each in found)
        self._record.add(ReadCommit, "final", "ok", group=group, offsets=places)
        for topic in topics:
            for partition in range(partitions[topic.name]) if topic.is_native else ():
                self._read_redis_group(group, topic.name, partition)

    def _committed(self, group: str, asked: list[TopicPartition]) -> list[TopicPartition]:
        request = [ConsumerGroupTopicPartitions(group, asked)]
        options: dict[str, Any] = {"require_stable": True, "request_timeout": REQUEST_TIMEOUT_S}
        try:
            answer = self._admin.list_consumer_group_offsets(request, **options)
            found = answer[group].result().topic_partitions
        except KafkaException:
            return []
        return [] if any(each.error is not None for each in found) else list(found)

    def _read_redis_group(self, group: str, topic: str, partition: int) -> None:
        key = stream(topic, partition)
        client = self._redis.of(key)
        groups = client.xinfo_groups(key) if client.exists(key) else []
        found = next((each for each in groups if each["name"] == group), None)
        where = {"group": group, "topic": topic, "partition": partition}
        if found is None:
            self._record.add(ReadNativeGroup, "final", "ok", **where)
            return
        pending = tuple(
            offset_of(each["message_id"])
            for each in client.xpending_range(key, group, "-", "+", MOST_PENDING)
        )
        after = offset_after(found["last-delivered-id"])
        self._record.add(
            ReadNativeGroup,
            "final",
            "ok",
            **where,
            offset=min((after, *pending)),
            pending=pending,
        )
