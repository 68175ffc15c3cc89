"""The topic catalogue: one JSON value per topic in a hash, changed by compare and set."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from korvet.cluster.ids import random_uuid
from korvet.cluster.topic import CLEANUP_POLICY, Topic
from korvet.redis.barrier import Level
from korvet.redis.errors import CatalogueConflict, TopicExists, TopicGone
from korvet.redis.fields import DamageLog, counter_of, pairs_of, read_fields
from korvet.redis.keys import MAX_NAME_LENGTH, is_topic_name
from korvet.redis.replicas import CHANGE_TIMEOUT_S, Held, replicated
from korvet.redis.server_facts import named_replicas

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Mapping

    from korvet.cluster.topic import OffsetAssignment, StorageLayout
    from korvet.redis.commands import Commands
    from korvet.redis.server import Links

# Limits the commands of one pass over partitions: enough to keep Redis busy, few enough that the commands of
# other callers run in between.
_COMMANDS_AT_ONCE: Final = 256
# Limits the partitions of one topic. A damaged count above the limit would stop every loop over partitions.
_MOST_PARTITIONS: Final = 1_000_000

ConfigProblem: TypeAlias = "Callable[[str, str], str | None]"
"""(name, value): why a topic cannot have that config; None if it can."""

log = logging.getLogger(__name__)


def parse_topic(field: bytes, value: bytes) -> Topic:
    """The topic of a field of the topics' hash. Raises ValueError."""
    topic = msgspec.json.decode(value, type=Topic)
    if topic.name.encode() != field:
        raise ValueError(f"it holds a topic of another name, {topic.name[:MAX_NAME_LENGTH]!r}")
    if not is_topic_name(topic.name):
        raise ValueError("no topic can have that name")
    if not 1 <= topic.partitions <= _MOST_PARTITIONS:
        raise ValueError(f"{topic.partitions} partitions: it has to be from 1 to {_MOST_PARTITIONS}")
    return topic


def without_bad_configs(topic: Topic, problem: ConfigProblem) -> tuple[Topic, dict[str, str]]:
    """The topic with its valid configs, and the reason for each invalid config. An internal topic with an
    invalid cleanup.policy gets compact.
    """
    bad = {name: why for name, value in topic.configs.items() if (why := problem(name, value)) is not None}
    if not bad:
        return topic, bad
    configs = {name: value for name, value in topic.configs.items() if name not in bad}
    if topic.internal and CLEANUP_POLICY in bad:
        configs[CLEANUP_POLICY] = "compact"
    return msgspec.structs.replace(topic, configs=configs), bad


class Catalogue:
    """All topics, as last read. Each change is written to Redis first. Raises StorageError if Redis fails."""

    def __init__(
        self,
        commands: Commands,
        config_problem: ConfigProblem,
        changed: Callable[[Topic], None],
        gone: Callable[[str], None],
        level: Callable[[Topic], Level],
    ) -> None:
        """`changed` is called with a topic after its configuration has changed, `gone` with a topic's name
        before its keys are deleted and after another broker has deleted it. level(topic): the
        copies that the deletion of the topic's keys needs before its name is free.
        """
        self._commands = commands
        self._changed = changed
        self._gone = gone
        self._level = level
        self.damage = DamageLog()
        self._config_problem = config_problem
        self._topics: dict[str, Topic] = {}
        self._deleting: dict[str, Topic] = {}
        # Names of the topics that are not being deleted.
        self._names: dict[uuid.UUID, str] = {}
        # The bytes of each topic in Redis, for compare and set.
        self._encoded: dict[str, bytes] = {}
        self.bad_configs: dict[str, frozenset[str]] = {}
        """By topic: the names of its stored configs that are invalid."""
        self.local_change = 0
        """A number that changes with each change of the topics that this process knows."""
        self.applied_version = 0
        """The version of the catalogue in Redis that this process has applied, its own changes included."""
        self.known_version = 0
        """The newest version that this process has heard of; changes of other brokers in it may not be
        applied yet.
        """

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Topics by name, without those that are being deleted."""
        return dict(self._topics)

    def get(self, name: str) -> Topic | None:
        """The topic of that name, as last read; None if it does not exist or is being deleted."""
        return self._topics.get(name)

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """The topic of that id, as last read; None if it does not exist or is being deleted."""
        name = self._names.get(topic_id)
        return None if name is None else self._topics.get(name)

    def pending_deletes(self) -> list[Topic]:
        """Topics whose deletion is not finished, for example because the broker that began it has crashed."""
        return list(self._deleting.values())

    def is_pending(self, deleting: Topic) -> bool:
        """Whether the deletion of this topic is not finished, as last read."""
        return self._deleting.get(deleting.name) == deleting

    async def catch_up(self) -> None:
        """Read the catalogue if another process has changed it (HGET). Raises StorageError."""
        changed = counter_of(await self._commands.call("HGET", self._commands.keyspace.cluster, "catalogue"))
        if changed != self.applied_version:
            await self.load()

    async def load(self) -> Mapping[str, Topic]:
        """Read the catalogue (HGETALL), and report the changes of other brokers. Topics that cannot be read,
        and invalid configs, are left out.
        """
        keys = self._commands.keyspace
        # The version first: a change between the two reads is read again later.
        version = counter_of(await self._commands.call("HGET", keys.cluster, "catalogue"))
        reply = await self._commands.call("HGETALL", keys.topics)
        pairs = dict(pairs_of(reply))
        topics, damaged = read_fields(pairs.items(), parse_topic)
        self.applied_version = version
        self.known_version = max(self.known_version, version)
        before = self._topics
        self._topics, self._deleting, self._encoded, self._names = {}, {}, {}, {}
        self.local_change += 1
        self.bad_configs = {}
        for stored in topics:
            topic, bad = without_bad_configs(stored, self._config_problem)
            field = stored.name.encode()
            self._keep(topic, pairs[field])
            if bad:
                damaged[field] = "; ".join(bad.values())
                self.bad_configs[stored.name] = frozenset(bad)
        self.damage.note(keys.topics, damaged)
        for known in before.values():
            now = self._topics.get(known.name)
            if now is None or now.topic_id != known.topic_id:
                self._gone(known.name)
            elif now != known:
                self._changed(now)
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
        """Create a topic; of several concurrent creators one succeeds. Raises TopicExists, and ValueError for
        an invalid name or count.
        """
        if partitions < 1:
            raise ValueError(f"{partitions} partitions: at least one is needed")
        topic = Topic(
            name=name,
            topic_id=topic_id or random_uuid(),
            partitions=partitions,
            configs=dict(configs or {}),
            internal=internal,
            offset_assignment=offset_assignment,
            storage_layout=storage_layout,
            created_ms=int(time.time() * 1000),
        )
        self._commands.keyspace.stream(name, 0)
        encoded = msgspec.json.encode(topic)
        try:
            await self._swap(name, b"", encoded, grows=True)
        except CatalogueConflict:
            await self.load()
            raise TopicExists(f"topic {name} exists already") from None
        self._keep(topic, encoded)
        await self._mark_dense(topic, 0)
        return topic

    async def add_partitions(self, name: str, partitions: int) -> Topic:
        """Extend a topic to `partitions` partitions in all. Raises TopicGone, CatalogueConflict, and
        ValueError if it has as many already.
        """
        topic = self._existing(name)
        if partitions <= topic.partitions:
            raise ValueError(f"topic {name} has {topic.partitions} partitions already")
        grown = await self._replace(topic, msgspec.structs.replace(topic, partitions=partitions))
        await self._mark_dense(grown, topic.partitions)
        return grown

    async def set_configs(self, name: str, configs: Mapping[str, str]) -> Topic:
        """Replace all configs of a topic. Raises TopicGone and CatalogueConflict."""
        topic = self._existing(name)
        return await self._replace(topic, msgspec.structs.replace(topic, configs=dict(configs)))

    async def delete(
        self, name: str, forget_offsets: Callable[[Topic], Awaitable[None]] | None = None
    ) -> None:
        """Delete a topic and all its keys in Redis.

        The steps have this order, so that `finish_delete` can continue after a crash: mark the topic, let the
        coordinators write their tombstones (`forget_offsets`), delete the partitions, delete the field.
        Raises TopicGone and CatalogueConflict, and NotReplicated if replicas still have partitions.
        """
        topic = await self.mark_deleting(name)
        await self.finish_delete(topic, forget_offsets)

    async def mark_deleting(self, name: str) -> Topic:
        """The first step of a deletion: from now on no client can use the topic."""
        topic = self._existing(name)
        return await self._replace(topic, msgspec.structs.replace(topic, deleting=True))

    async def finish_delete(
        self, topic: Topic, forget_offsets: Callable[[Topic], Awaitable[None]] | None = None
    ) -> None:
        """The other steps of a deletion, also of an earlier one that was not finished (`pending_deletes`).

        Ends early if another broker has finished it: a new topic may have the name.
        """
        if not self.is_pending(topic):
            return
        self._gone(topic.name)
        if forget_offsets is not None:
            await forget_offsets(topic)
            if not self.is_pending(topic):
                return
        await self._each_partition(
            range(topic.partitions), lambda partition: self._drop_partition(topic, partition)
        )
        if not self.is_pending(topic):
            return
        try:
            await self._swap(topic.name, self._encoded[topic.name], b"")
        except CatalogueConflict:
            await self.load()
            return
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
        grows = new.partitions > old.partitions
        await self._swap(old.name, self._encoded[old.name], encoded, grows=grows)
        self._keep(new, encoded)
        if not new.deleting:
            self._changed(new)
        return new

    async def _mark_dense(self, topic: Topic, first: int) -> None:
        if not topic.bias:
            return
        meta = self._commands.keyspace.meta
        # korvet_xadd, which native writers call, reads the bias there.
        await self._each_partition(
            range(first, topic.partitions),
            lambda partition: self._commands.call("HSET", meta(topic.name, partition), "bias", topic.bias),
        )

    async def _drop_partition(self, topic: Topic, partition: int) -> None:
        """Delete the keys of a partition of a deleted topic, unless a new topic of that name owns them.

        In a cluster, the replicas delete them, too, before this returns: a failover that brings the keys back
        would fill the next topic of that name. Replicas of a server that has all keys delete these before
        the name. Raises StorageError. Function korvet_drop.
        """
        keyspace = self._commands.keyspace
        stream, index, meta, latest = keyspace.partition_keys(topic.name, partition)
        aborted = keyspace.aborted(topic.name, partition)
        keys = [meta, stream, index, latest, aborted, *keyspace.shadow_keys(topic.name, partition)]
        held = Held(self._commands.links(stream), stream, keyspace.barrier(topic.name, partition))
        level, history = self._level(topic), held.history
        # On the write link, so after every append in flight.
        await self._commands.fcall("korvet_drop", keys, str(topic.topic_id))
        # Internal topics are only deleted while they are empty.
        if level and not topic.internal and (within_reach := await _within_reach(level, held.links)):
            await replicated(held, within_reach, history, CHANGE_TIMEOUT_S)

    async def _each_partition(self, partitions: range, command: Callable[[int], Awaitable[Any]]) -> None:
        """Run a command for each partition, _COMMANDS_AT_ONCE at a time."""
        for start in range(0, len(partitions), _COMMANDS_AT_ONCE):
            some = partitions[start : start + _COMMANDS_AT_ONCE]
            await asyncio.gather(*map(command, some))

    async def _swap(self, name: str, old: bytes, new: bytes, *, grows: bool = False) -> None:
        """`grows`: there are more partitions than before, which Redis refuses at maxmemory."""
        keys = self._commands.keyspace
        function = "korvet_swap" if grows else "korvet_change"
        version = await self._commands.fcall(
            function, [keys.topics, keys.cluster], self._commands.cluster_id, name, old, new
        )
        self.known_version = max(self.known_version, version)
        if version == self.applied_version + 1:
            # No change of another process is in between.
            self.applied_version = version

    def _keep(self, topic: Topic, encoded: bytes) -> None:
        self.local_change += 1
        if topic.deleting:
            self._topics.pop(topic.name, None)
            self._names.pop(topic.topic_id, None)
            self._deleting[topic.name] = topic
        else:
            self._topics[topic.name] = topic
            self._names[topic.topic_id] = topic.name
        self.bad_configs.pop(topic.name, None)
        self._encoded[topic.name] = encoded


async def _within_reach(level: Level, links: Links) -> Level:
    """The part of a level that a node can give with all replicas that the cluster names, so that a topic can
    be deleted that asks for more. Nothing outside of clusters.
    """
    return Level(min(level.replicas, await named_replicas(links.server.read)))
