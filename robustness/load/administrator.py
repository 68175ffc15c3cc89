"""Requests of an administrator during a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from robustness.history import UNKNOWN, Admin
from robustness.load.worker import LIBRDKAFKA, REQUEST_TIMEOUT_S, Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from robustness.clients import Recorder
    from robustness.plan import AdminPlan, TopicPlan

# More partitions would only make the last read longer.
MOST_PARTITIONS: Final = 5


def create_topics(bootstrap: str, topics: Sequence[TopicPlan]) -> None:
    """Create the topics of a plan. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **LIBRDKAFKA})
    wanted = {
        topic.name: NewTopic(
            topic.name,
            num_partitions=topic.partitions,
            replication_factor=1,
            config={
                "offset.assignment": topic.offsets,
                "storage.layout": topic.layout,
                "cleanup.policy": "compact" if topic.compacted else "delete",
                "min.insync.replicas": str(topic.min_insync_replicas),
            },
        )
        for topic in topics
    }
    while wanted:
        for name, future in admin.create_topics(list(wanted.values())).items():
            try:
                future.result(REQUEST_TIMEOUT_S)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError._DESTROY_BROKER:
                    # When the brokers are known, the connections to the first addresses end, and with them
                    # the requests on them, although the broker may have carried them out.
                    continue
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            del wanted[name]


def bounds(admin: AdminClient, topic: str, partition: int) -> tuple[int, int, int]:
    """Returns the log start, the last stable offset and the high watermark. Raises KafkaException."""
    return tuple(  # type: ignore[return-value]
        _offset(admin, topic, partition, spec, level)
        for spec, level in (
            (OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
            (OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
            (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
        )
    )


def _offset(admin: AdminClient, topic: str, partition: int, spec: OffsetSpec, level: IsolationLevel) -> int:
    asked = {TopicPartition(topic, partition): spec}
    answer = admin.list_offsets(asked, isolation_level=level, request_timeout=REQUEST_TIMEOUT_S)
    return int(next(iter(answer.values())).result().offset)


class Administrator(Worker):
    """Makes the planned requests at their times."""

    def __init__(self, recorder: Recorder, bootstrap: str, plans: Sequence[AdminPlan]) -> None:
        super().__init__("administrator")
        self._record = recorder
        self._plans = plans
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **LIBRDKAFKA})

    def work(self) -> None:
        began = time.monotonic()
        for plan in self._plans:
            if self.closing.wait(max(began + plan.at_ms / 1000 - time.monotonic(), 0)):
                return
            try:
                getattr(self, f"_{plan.action}")(plan.topic)
            except KafkaException as error:
                # What the request needs to know could not be asked for.
                self._record.add(Admin, self.name, "info", action=f"prepare {plan.action}", error=str(error))

    def _ask(self, request: Any, **fields: Any) -> None:
        """Record a request, which returns futures by subject, and its result."""
        self._record.add(Admin, self.name, "invoke", **fields)
        try:
            next(iter(request(request_timeout=REQUEST_TIMEOUT_S).values())).result()
        except KafkaException as error:
            refused = (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.UNKNOWN_TOPIC_OR_PART)
            type_ = "fail" if error.args[0].code() in refused else "info"
            self._record.add(Admin, self.name, type_, **fields, error=str(error))
        else:
            self._record.add(Admin, self.name, "ok", **fields)

    def _create_topic(self, topic: str) -> None:
        new = NewTopic(topic, num_partitions=2, replication_factor=1)
        self._ask(lambda **o: self._admin.create_topics([new], **o), action="create_topic", topic=topic)

    def _delete_topic(self, topic: str) -> None:
        self._ask(lambda **o: self._admin.delete_topics([topic], **o), action="delete_topic", topic=topic)

    def _create_partitions(self, topic: str) -> None:
        count = len(self._admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].partitions)
        if 0 < count < MOST_PARTITIONS:
            new = NewPartitions(topic, count + 1)
            self._ask(
                lambda **o: self._admin.create_partitions([new], **o),
                action="create_partitions",
                topic=topic,
                detail=str(count + 1),
            )

    def _delete_records(self, topic: str) -> None:
        start, _, end = bounds(self._admin, topic, 0)
        until = TopicPartition(topic, 0, start + (end - start) // 4)
        if start < until.offset:
            self._ask(
                lambda **o: self._admin.delete_records([until], **o),
                action="delete_records",
                topic=topic,
                partition=0,
                offset=until.offset,
            )

    def _describe(self, topic: str) -> None:
        found = self._admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
        leaders = [(number, each.leader) for number, each in sorted(found.partitions.items())]
        self._record.add(
            Admin, self.name, "ok", action="describe", topic=topic, partition=UNKNOWN, detail=str(leaders)
        )
