"""The topic catalogue: one JSON value per topic in a hash, changed by compare and set."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from korvet.storage.errors import TopicExists, TopicGone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from korvet.storage.store import Store

# Enough to keep Redis busy, and few enough that others' commands come in between.
_COMMANDS_AT_ONCE: Final = 256

OffsetAssignment = Literal["clock", "dense"]
StorageLayout = Literal["record", "batch"]

log = logging.getLogger(__name__)


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it stands in the catalogue. `configs` holds what was set, no defaults."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: dict[str, str] = {}
    internal: bool = False
    offset_assignment: OffsetAssignment = "clock"
    storage_layout: StorageLayout = "record"
    created_ms: int = 0
    deleting: bool = False

    @property
    def bias(self) -> int:
        """1 on dense topics, which store offset o under the entry ID of o + 1; else 0."""
        return 1 if self.offset_assignment == "dense" else 0

    @property
    def compacted(self) -> bool:
        """Whether the newest entry per key is kept track of (cleanup.policy)."""
        return "compact" in self.configs.get("cleanup.policy", "")

    @property
    def native_format(self) -> str:
        """How entries of native writers are served (native.format)."""
        return self.configs.get("native.format", "json")

    @property
    def log_append_time(self) -> bool:
        """Whether records carry the append time (message.timestamp.type)."""
        return self.configs.get("message.timestamp.type", "CreateTime") == "LogAppendTime"


class Catalogue:
    """All topics, as last read; every change goes to Redis first. Raises StorageError where Redis does not
    answer.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._topics: dict[str, Topic] = {}
        self._deleting: dict[str, Topic] = {}
        # As they are in Redis, byte for byte: what compare and set compares.
        self._encoded: dict[str, bytes] = {}

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Topics by name as they are now, those being deleted left out."""
        return dict(self._topics)

    def get(self, name: str) -> Topic | None:
        """The topic of that name, as last read; None where there is none, or it is being deleted."""
        return self._topics.get(name)

    def pending_deletes(self) -> list[Topic]:
        """Topics whose deletion was begun and not finished, say by a broker that died."""
        return list(self._deleting.values())

    async def load(self) -> Mapping[str, Topic]:
        """Read the catalogue (HGETALL)."""
        reply = await self._store.call("HGETALL", self._store.keyspace.topics)
        self._topics, self._deleting, self._encoded = {}, {}, {}
        for encoded in reply[1::2]:
            self._keep(msgspec.json.decode(encoded, type=Topic), encoded)
        return self.topics

    async def create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        *,
        internal: bool = False,
        offset_assignment: OffsetAssignment = "clock",
        storage_layout: StorageLayout = "record",
        topic_id: uuid.UUID | None = None,
    ) -> Topic:
        """Add a topic (HSETNX: of several creators one wins). Raises TopicExists, ValueError on a bad name or
        count.
        """
        if partitions < 1:
            raise ValueError(f"{partitions} partitions: at least one is needed")
        topic = Topic(
            name=name,
            topic_id=topic_id or uuid.uuid4(),
            partitions=partitions,
            configs=dict(configs or {}),
            internal=internal,
            offset_assignment=offset_assignment,
            storage_layout=storage_layout,
            created_ms=int(time.time() * 1000),
        )
        self._store.keyspace.stream(name, 0)
        encoded = msgspec.json.encode(topic)
        won = await self._store.call("HSETNX", self._store.keyspace.topics, name, encoded)
        if not won:
            await self.load()
            raise TopicExists(f"topic {name} exists already")
        self._keep(topic, encoded)
        await self._mark_dense(topic, 0)
        return topic

    async def add_partitions(self, name: str, partitions: int) -> Topic:
        """Let a topic have `partitions` in all. Raises TopicGone, CatalogueConflict, ValueError where it has
        more.
        """
        topic = self._existing(name)
        if partitions <= topic.partitions:
            raise ValueError(f"topic {name} has {topic.partitions} partitions already")
        grown = await self._replace(topic, msgspec.structs.replace(topic, partitions=partitions))
        await self._mark_dense(grown, topic.partitions)
        return grown

    async def set_configs(self, name: str, configs: Mapping[str, str]) -> Topic:
        """Replace all that is set of a topic's configuration. Raises TopicGone, CatalogueConflict."""
        topic = self._existing(name)
        return await self._replace(topic, msgspec.structs.replace(topic, configs=dict(configs)))

    async def delete(
        self, name: str, forget_offsets: Callable[[Topic], Awaitable[None]] | None = None
    ) -> None:
        """Delete a topic and all that it has in Redis.

        In this order, so that `finish_delete` can go on after a crash: mark it, let the coordinators write
        their tombstones (`forget_offsets`), drop the partitions, drop the entry. Raises TopicGone,
        CatalogueConflict.
        """
        topic = await self.mark_deleting(name)
        await self.finish_delete(topic, forget_offsets)

    async def mark_deleting(self, name: str) -> Topic:
        """First step of a deletion: from now on nobody can use the topic."""
        topic = self._existing(name)
        return await self._replace(topic, msgspec.structs.replace(topic, deleting=True))

    async def finish_delete(
        self, topic: Topic, forget_offsets: Callable[[Topic], Awaitable[None]] | None = None
    ) -> None:
        """The other steps of a deletion, also of one that was begun earlier (`pending_deletes`)."""
        self._store.close_logs(topic.name)
        if forget_offsets is not None:
            await forget_offsets(topic)
        keys = self._store.keyspace
        # On the write link, so behind every append that was under way.
        await self._each_partition(
            range(topic.partitions),
            lambda partition: ("UNLINK", *keys.partition_keys(topic.name, partition)),
        )
        await self._swap(topic.name, b"")
        self._deleting.pop(topic.name, None)
        self._encoded.pop(topic.name, None)
        log.info("deleted topic %s", topic.name)

    def _existing(self, name: str) -> Topic:
        topic = self.get(name)
        if topic is None:
            raise TopicGone(f"there is no topic {name}")
        return topic

    async def _replace(self, old: Topic, new: Topic) -> Topic:
        encoded = msgspec.json.encode(new)
        await self._swap(old.name, encoded)
        self._keep(new, encoded)
        if not new.deleting:
            self._store.update_logs(new)
        return new

    async def _mark_dense(self, topic: Topic, first: int) -> None:
        if not topic.bias:
            return
        meta = self._store.keyspace.meta
        # korvet_xadd, which native writers call, reads it there.
        await self._each_partition(
            range(first, topic.partitions),
            lambda partition: ("HSET", meta(topic.name, partition), "bias", topic.bias),
        )

    async def _each_partition(
        self, partitions: range, command: Callable[[int], tuple[bytes | str | int, ...]]
    ) -> None:
        """A command for each partition, many of them on their way at once."""
        for start in range(0, len(partitions), _COMMANDS_AT_ONCE):
            some = partitions[start : start + _COMMANDS_AT_ONCE]
            await asyncio.gather(*(self._store.call(*command(partition)) for partition in some))

    async def _swap(self, name: str, new: bytes) -> None:
        await self._store.fcall("korvet_swap", [self._store.keyspace.topics], name, self._encoded[name], new)

    def _keep(self, topic: Topic, encoded: bytes) -> None:
        if topic.deleting:
            self._topics.pop(topic.name, None)
            self._deleting[topic.name] = topic
        else:
            self._topics[topic.name] = topic
        self._encoded[topic.name] = encoded
