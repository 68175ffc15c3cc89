"""A keyspace written by hand in the documented layout: catalogue, streams, `__consumer_offsets`."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.packing import entry_id
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

OFFSETS_TOPIC = "__consumer_offsets"


class Keyspace:
    """Fills a Redis and opens its topics in Spark."""

    def __init__(self, client: Any, url: str) -> None:
        self.client = client
        self.url = url
        self.next_offset: dict[int, int] = {}

    def topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        topic_id: str | None = None,
    ) -> None:
        document = {
            "partitions": partitions,
            "configs": dict(configs or {}),
            "internal": name == OFFSETS_TOPIC,
            **({} if topic_id is None else {"topic_id": topic_id}),
        }
        self.client.hset("{korvet}:topics", name, json.dumps(document))

    def add(self, topic: str, partition: int, entry: str, *fields: bytes | str) -> None:
        """Send XADD with any fields, including repeated ones."""
        self.client.execute_command("XADD", f"korvet:{topic}:{partition}", entry, *fields)

    def begin(self, topic: str, partition: int, producer: int, first: int) -> None:
        """Note a producer's transaction as open if it isn't yet, as the leader does with each record."""
        opened = self._opened(topic, partition)
        opened.setdefault(producer, first)
        self._note_opened(topic, partition, opened)

    def end(self, topic: str, partition: int, producer: int, marker: int, outcome: str) -> None:
        """Note the end of a producer's open transaction, as the leader does with its marker."""
        opened = self._opened(topic, partition)
        first = opened.pop(producer, None)
        self._note_opened(topic, partition, opened)
        if first is not None and outcome == "abort":
            stable = min([marker + 1, *opened.values()])
            key = f"{{korvet:{topic}:{partition}}}:aborted"
            self.client.zadd(key, {f"{producer} {first} {stable}": marker})

    def _opened(self, topic: str, partition: int) -> dict[int, int]:
        noted = self.client.hget(f"{{korvet:{topic}:{partition}}}:meta", "open") or b""
        return {int(producer): int(first) for producer, first in struct.iter_unpack(">2d", noted)}

    def _note_opened(self, topic: str, partition: int, opened: Mapping[int, int]) -> None:
        noted = b"".join(struct.pack(">2d", *each) for each in opened.items())
        self.client.hset(f"{{korvet:{topic}:{partition}}}:meta", "open", noted)

    def record(
        self, topic: str, partition: int, offset: int, value: bytes, timestamp_ms: int | None = None
    ) -> None:
        """Add a record without a key to a clock topic. Its timestamp is the entry's time by default."""
        entry = entry_id(offset)
        relative = 0 if timestamp_ms is None else timestamp_ms - int(entry.partition("-")[0])
        self.add(topic, partition, entry, b"value", value, b"ts", str(relative))

    def offsets_topic(self) -> None:
        self.topic(OFFSETS_TOPIC, 50, {"offset.assignment": "dense", "cleanup.policy": "compact"})

    def raw_offset_record(self, partition: int, key: bytes | None, value: bytes | None, at_ms: int) -> None:
        """Add the next record of a partition of the offsets topic."""
        offset = self.next_offset.get(partition, 0)
        self.next_offset[partition] = offset + 1
        entry = entry_id(offset, bias=1)
        fields: list[bytes | str] = []
        if key is not None:
            fields += [b"key", key]
        if value is not None:
            fields += [b"value", value]
        self.add(OFFSETS_TOPIC, partition, entry, *fields, b"ts", str(at_ms - int(entry.partition("-")[0])))

    def commit(
        self, group: str, topic: str, partition: int, offset: int | None, *, at_ms: int, metadata: str = ""
    ) -> None:
        """Add an offset commit, or its tombstone (offset None)."""
        key = encode_key(OffsetCommitKey(group, topic, partition))
        value = None
        if offset is not None:
            value = encode_value(OffsetCommitValue(offset, metadata=metadata, commit_timestamp_ms=at_ms))
        self.raw_offset_record(partition_for(group), key, value, at_ms)

    def group(self, group: str, value: GroupMetadataValue | None, at_ms: int) -> None:
        """Add a group metadata record, or its tombstone."""
        encoded = None if value is None else encode_value(value)
        self.raw_offset_record(partition_for(group), encode_key(GroupMetadataKey(group)), encoded, at_ms)

    def read(self, spark: SparkSession, topics: Sequence[str] | str, **options: str) -> DataFrame:
        names = topics if isinstance(topics, str) else ",".join(topics)
        reader = spark.read.format("korvet").option("redis", self.url).option("topics", names)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()
