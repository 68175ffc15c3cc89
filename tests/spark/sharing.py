"""Share groups (KIP-932): their records, and a consumer at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.group_records import NamedTopicPartitions, ShareEpoch, SharePartitions
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import GroupRecordKey
from tests.support.polling import until

if TYPE_CHECKING:
    from tests.spark.keyspace import Keyspace

RECORDS = 20
MS = 1_700_000_000_000


def begin(keyspace: Keyspace, group: str, topic_id: bytes, topic: str, *partitions: int) -> None:
    """Write what the coordinator of a share group writes when the group begins with partitions of a topic."""
    parts = (NamedTopicPartitions(topic_id, topic, partitions),)
    for version, value in ((11, ShareEpoch(3, 7)), (15, SharePartitions((), parts, ()))):
        record = encode_key(GroupRecordKey(group, version)), encode_value(value)
        keyspace.raw_offset_record(partition_for(group), *record, MS)


def work(bootstrap: str) -> None:
    """Let a member of a share group take records of two partitions, and accept, reject or release them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("jobs", 3, 1)])["jobs"].result(30)
    first = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=[first])
    admin.incremental_alter_configs([resource])[resource].result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(2 * RECORDS):
        producer.produce("jobs", str(number).encode(), partition=number % 2)
    assert producer.flush(20) == 0
    worker = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "workers",
            "log_level": 0,
            "share.acknowledgement.mode": "explicit",
        }
    )
    worker.subscribe(["jobs"])
    seen: set[tuple[int, int]] = set()

    def took_all() -> bool:
        for message in worker.poll(0.1):
            at = int(message.value()) // 2
            verdict = AcknowledgeType.RELEASE
            if at < RECORDS // 2 and at % 5 != 4:
                verdict = AcknowledgeType.REJECT if at % 5 == 3 else AcknowledgeType.ACCEPT
            worker.acknowledge(message, verdict)
            seen.add((message.partition(), at))
        return len(seen) == 2 * RECORDS

    try:
        until(took_all, 60, "all records were delivered")
        worker.commit_sync(30)
    finally:
        worker.close()
