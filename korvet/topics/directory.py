"""The directory of topics: what exists, its policy and logs, and how topics come and go."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID, uuid5

import msgspec

from korvet.storage.errors import CatalogueConflict, StorageError, TopicGone
from korvet.storage.errors import TopicExists as StoredTopicExists
from korvet.storage.keys import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from korvet.storage.topic import OffsetAssignment, StorageLayout, Topic
from korvet.topics.alterations import check_fixed, check_internal
from korvet.topics.configs import (
    CLEANUP_POLICY,
    DELETION_CONFIGS,
    OFFSET_ASSIGNMENT,
    STORAGE_LAYOUT,
    TOPIC_CONFIGS,
    InvalidConfig,
    TopicPolicy,
    check_together,
    check_topic_config,
    policy_of,
)
from korvet.topics.errors import (
    InternalTopic,
    InvalidPartitions,
    InvalidTopicConfig,
    TooManyPartitions,
    TopicExists,
    UnknownTopic,
)
from korvet.topics.internal import INTERNAL_TOPICS, create_internal
from korvet.topics.names import CollidingNames, check_topic_name

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from korvet.config.settings import Config
    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.store import Store
    from korvet.topics.alterations import Alteration

_ASSIGNMENT_SYNONYM: Final = TOPIC_CONFIGS[OFFSET_ASSIGNMENT].synonym or ""
_LAYOUT_SYNONYM: Final = TOPIC_CONFIGS[STORAGE_LAYOUT].synonym or ""
# Kafka's limit for one request; beyond it a typo would make a cluster that nobody can use.
MAX_PARTITIONS: Final = 10_000
TOO_MANY: Final = "Excessively large number of partitions per request."
# A broker that does not hear of a new topic for so long will when it is asked for it.
_SPREAD_S: Final = 1.0


class Place(msgspec.Struct, frozen=True):
    """A partition that exists, with what is to be known to write to it."""

    topic: Topic
    log: PartitionLog
    policy: TopicPolicy
    is_alias: bool
    """Whether the topic is another one's other name, which can be read and described only."""


class Groups(Protocol):
    """The group coordinator, whose topic and whose offsets change with topics."""

    async def forget_topic(self, name: str) -> None:
        """Tombstone a topic's committed offsets before the topic goes."""

    async def topic_is_unused(self) -> bool:
        """Whether `__consumer_offsets` may be made anew. Raises StorageError."""

    async def make_topic_anew(self, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Replace an unused `__consumer_offsets`. Raises TopicExists if it is used, and StorageError."""


class TopicDirectory:
    """All topics of the keyspace. Lookups are from memory, changes go to the catalogue in Redis first."""

    def __init__(self, store: Store, config: Config, groups: Groups) -> None:
        self._store = store
        self._config = config
        self._groups = groups
        self._policies: dict[str, tuple[Topic, TopicPolicy]] = {}
        # By a topic's name or id and a partition, and the catalogue's edition that they were looked up in.
        self._places: dict[tuple[str | UUID | None, int], Place] = {}
        self._places_of = -1
        self._alias_name = config.offsets_topic_alias
        # The aliased topic as it was last seen, and the alias made of it.
        self._aliased: tuple[Topic | None, Topic | None] = (None, None)
        # One change of a topic at a time: two clients that ask at once must not half-do each other's work.
        self._lock = asyncio.Lock()
        self._broker_configs: Mapping[str, str] = _broker_configs(config)
        self._names = CollidingNames()

    def all(self) -> list[Topic]:
        """All topics by name."""
        topics = self._store.catalogue.topics
        return [topics[name] for name in sorted(topics)]

    def listed(self) -> list[Topic]:
        """All that clients are told of, by name: the alias, too."""
        alias = None if self._alias_name is None else self.get(self._alias_name)
        if alias is None or not self.is_alias(alias):
            return self.all()
        return sorted([*self.all(), alias], key=lambda topic: topic.name)

    def get(self, name: str) -> Topic | None:
        """The topic of that name."""
        found = self._store.catalogue.get(name)
        return self._alias() if found is None and name == self._alias_name else found

    def by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of that id."""
        found = self._store.catalogue.by_id(topic_id)
        if found is None and self._alias_name is not None:
            alias = self.get(self._alias_name)
            return alias if alias is not None and alias.topic_id == topic_id else None
        return found

    def is_alias(self, topic: Topic) -> bool:
        """Whether it is another topic's other name, which can be read and described only."""
        return topic is self._aliased[1]

    def behind(self, topic: Topic) -> Topic:
        """The topic that an alias is of; any other one itself."""
        aliased, alias = self._aliased
        return aliased if topic is alias and aliased is not None else topic

    def _alias(self) -> Topic | None:
        """`__consumer_offsets` as a topic that is not internal, under the name that the settings give it."""
        name, source = self._alias_name, self._store.catalogue.get(OFFSETS_TOPIC)
        if source is None or name is None:
            return None
        if self._aliased[0] is not source:
            own_id = uuid5(source.topic_id, name)
            alias = msgspec.structs.replace(source, name=name, topic_id=own_id, internal=False)
            self._aliased = source, alias
        return self._aliased[1]

    def find(self, key: str | UUID | None) -> Topic | None:
        """The topic of that name, or of that id."""
        if isinstance(key, str):
            return self.get(key)
        return None if key is None else self.by_id(key)

    def place(self, key: str | UUID | None, partition: int) -> Place | None:
        """A partition of the topic of that name or id; None where there is none. Looked up once."""
        edition = self._store.catalogue.edition
        if edition != self._places_of:
            self._places.clear()
            self._places_of = edition
        known = self._places.get((key, partition))
        if known is not None and known.log.refusal is None:
            return known
        topic = self.find(key)
        log = None if topic is None else self.log_of(topic, partition)
        if topic is None or log is None:
            return None
        found = self._places[key, partition] = Place(topic, log, self.policy(topic), self.is_alias(topic))
        return found

    def log(self, name: str, partition: int) -> PartitionLog | None:
        """The log of a partition that exists."""
        topic = self.get(name)
        return None if topic is None else self.log_of(topic, partition)

    def log_of(self, topic: Topic, partition: int) -> PartitionLog | None:
        """The log of a topic's partition; None where it has no such partition."""
        if not 0 <= partition < topic.partitions:
            return None
        return self._store.log(self.behind(topic), partition)

    def policy(self, topic: Topic) -> TopicPolicy:
        """The topic's configs in force, parsed once."""
        known = self._policies.get(topic.name)
        if known is None or known[0] is not topic:
            known = self._policies[topic.name] = (topic, policy_of(topic.configs, self.broker_configs(topic)))
        return known[1]

    def keeps_all(self, topic: Topic) -> bool:
        """Whether none of a topic's records is to be deleted by retention or compaction: a config that cannot
        be read may have said that they stay.
        """
        return not DELETION_CONFIGS.isdisjoint(self._store.catalogue.bad_configs.get(topic.name, ()))

    def broker_configs(self, topic: Topic) -> Mapping[str, str]:
        """What stands behind the topic's own configs: the broker's, by their synonyms.

        Those that are fixed when a topic is made are the ones in force then.
        """
        fixed = {_ASSIGNMENT_SYNONYM: topic.offset_assignment, _LAYOUT_SYNONYM: topic.storage_layout}
        return {**self._broker_configs, **fixed}

    def check_name(self, name: str) -> None:
        """Raises InvalidTopicName unless a topic of that name may be made, and NameCollision."""
        check_topic_name(name)
        self._names.follow(self._store.catalogue.topics, self._store.catalogue.edition)
        self._names.check(name)

    async def get_or_create(self, name: str) -> Topic:
        """The topic, made with the broker's defaults if there is none (auto-creation). Raises TopicError."""
        try:
            if name in INTERNAL_TOPICS:
                return await self._create_internal(name)
            return await self.create(name, self._config.num_partitions, {})
        except TopicExists:
            topic = self.get(name)
            if topic is None:
                raise
            return topic

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        """Make a topic, or only check that it could be made. Raises TopicError and StorageError."""
        await self._catch_up()
        remade = name == OFFSETS_TOPIC and await self._groups.topic_is_unused()
        if self.get(name) is not None and not remade:
            raise TopicExists(f"Topic '{name}' already exists.")
        self.check_name(name)
        if partitions < 1:
            raise InvalidPartitions("Number of partitions must be larger than 0.")
        if partitions > MAX_PARTITIONS:
            raise TooManyPartitions(TOO_MANY)
        checked = _checked(configs)
        assignment = self._assignment(name, checked)
        layout = self._layout(name, checked)
        if validate_only:
            return Topic(
                name=name,
                topic_id=UUID(int=0),
                partitions=partitions,
                configs=checked,
                offset_assignment=assignment,
                storage_layout=layout,
            )
        if name == OFFSETS_TOPIC:
            return await self._made(self._groups.make_topic_anew(partitions, checked))
        if name in INTERNAL_TOPICS:
            return await self._made(create_internal(self._store.catalogue, name, partitions, checked))
        return await self._made(
            self._store.catalogue.create(
                name, partitions, checked, offset_assignment=assignment, storage_layout=layout
            )
        )

    async def _create_internal(self, name: str) -> Topic:
        """A coordinator's topic as the broker makes it itself."""
        counts = {
            OFFSETS_TOPIC: self._config.offsets_topic_num_partitions,
            TRANSACTIONS_TOPIC: self._config.transaction_state_log_num_partitions,
        }
        return await self._made(create_internal(self._store.catalogue, name, counts[name]))

    async def _made(self, making: Coroutine[None, None, Topic]) -> Topic:
        async with self._lock:
            try:
                topic = await making
            except StoredTopicExists as error:
                raise TopicExists(str(error)) from None
        await self._spread()
        return topic

    def _assignment(self, name: str, configs: Mapping[str, str]) -> OffsetAssignment:
        """How a new topic's offsets are assigned."""
        asked = configs.get(OFFSET_ASSIGNMENT)
        if name in INTERNAL_TOPICS:
            check_internal(name, configs)
            return "dense"
        if asked is None:
            return self._config.log_offset_assignment
        return "dense" if asked == "dense" else "clock"

    def _layout(self, name: str, configs: Mapping[str, str]) -> StorageLayout:
        """A new topic's layout."""
        asked = configs.get(STORAGE_LAYOUT)
        if name in INTERNAL_TOPICS:
            return "record"
        if asked is None:
            return self._config.log_storage_layout
        return "batch" if asked == "batch" else "record"

    async def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> Topic:
        """Let a topic have `count` partitions in all. Raises TopicError and StorageError."""
        await self._catch_up()
        topic = self._changeable(name)
        if count <= topic.partitions:
            raise InvalidPartitions(
                f"The topic {name} has {topic.partitions} partition(s); {count} would not be an increase."
            )
        if count - topic.partitions > MAX_PARTITIONS:
            raise TooManyPartitions(TOO_MANY)
        if validate_only:
            return topic
        async with self._lock:
            try:
                topic = await self._store.catalogue.add_partitions(name, count)
            except TopicGone:
                raise UnknownTopic(f"there is no topic {name}") from None
            except ValueError as error:
                raise InvalidPartitions(str(error)) from error
        await self._spread()
        return topic

    async def alter_configs(self, name: str, alteration: Alteration, *, validate_only: bool = False) -> None:
        """Change what is set of a topic's configs, or only check that it could be changed.

        The internal topics' too. In force when it returns. Raises TopicError and StorageError.
        """
        check_topic_name(name)
        await self._catch_up()
        async with self._lock:
            try:
                await self._alter(name, alteration, validate_only)
            except CatalogueConflict:
                # Something else than this broker changed the topic; its change is not to be lost.
                await self._store.catalogue.load()
                await self._alter(name, alteration, validate_only)

    async def _alter(self, name: str, alteration: Alteration, validate_only: bool) -> None:
        topic = self.get(name)
        try:
            if topic is None:
                alteration({}, self._broker_configs)
                raise UnknownTopic(f"The topic '{name}' does not exist.")
            if self.is_alias(topic):
                raise InvalidTopicConfig(f"{name} is an alias: alter {self.behind(topic).name}.")
            altered = alteration(topic.configs, self.broker_configs(topic))
        except InvalidConfig as error:
            raise InvalidTopicConfig(str(error)) from None
        if topic.internal:
            # It has no other default, as commits would be lost: a reset of all configs keeps it.
            altered.setdefault(CLEANUP_POLICY, "compact")
        check_fixed(topic, altered)
        if validate_only or altered == topic.configs:
            return
        try:
            await self._store.catalogue.set_configs(name, altered)
        except TopicGone:
            raise UnknownTopic(f"The topic '{name}' does not exist.") from None

    async def look_again(self, name: str | None, topic_id: UUID | None) -> Topic | None:
        """The topic of that name, or of that id, which another broker may have made a moment ago. Raises
        StorageError.
        """
        await self._catch_up()
        return self.find(topic_id if name is None else name)

    def missed(self) -> None:
        """A topic was asked for that is not known here: perhaps another broker has made it."""
        membership = self._store.membership
        if membership is not None and not membership.alone:
            membership.refresh_soon()

    async def _catch_up(self) -> None:
        """Hear of what other brokers have changed. Raises StorageError."""
        membership = self._store.membership
        if membership is not None and not membership.alone:
            await membership.refresh()

    async def delete(self, name: str) -> None:
        """Delete a topic, its records and its committed offsets. Raises TopicError and StorageError."""
        await self._catch_up()
        self._changeable(name)
        async with self._lock:
            try:
                topic = await self._store.catalogue.mark_deleting(name)
            except TopicGone:
                raise UnknownTopic(f"there is no topic {name}") from None
        self._policies.pop(name, None)
        await self._store.catalogue.finish_delete(topic, self._forget_everywhere)

    async def finish_deletes(self) -> None:
        """Go on with deletions that a broker that died left half done."""
        for topic in self._store.catalogue.pending_deletes():
            await self._store.catalogue.finish_delete(topic, self._forget_everywhere)

    @property
    def deletes_are_pending(self) -> bool:
        """Whether topics are being deleted."""
        return bool(self._store.catalogue.pending_deletes())

    async def forget_deleted(self) -> None:
        """Tombstone the offsets of topics that are being deleted, in the groups that we coordinate."""
        for topic in self._store.catalogue.pending_deletes():
            await self._groups.forget_topic(topic.name)

    async def _forget_everywhere(self, topic: Topic) -> None:
        """Our groups' offsets here; other brokers do the same when they hear of it."""
        await self._groups.forget_topic(topic.name)
        if self._store.membership is not None:
            await self._store.membership.all_settled(self._store.catalogue.latest)

    async def _spread(self) -> None:
        """Give other brokers time to hear of what was made: a client asks the next one right away."""
        membership = self._store.membership
        if membership is not None and not membership.alone:
            with contextlib.suppress(TimeoutError, StorageError):
                async with asyncio.timeout(_SPREAD_S):
                    await membership.all_settled(self._store.catalogue.latest)

    def _changeable(self, name: str) -> Topic:
        topic = self.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}")
        if topic.internal or self.is_alias(topic):
            raise InternalTopic(f"{name} is the broker's own: it can be read and described, not changed.")
        return topic


def _checked(configs: Mapping[str, str | None]) -> dict[str, str]:
    try:
        checked = {name: check_topic_config(name, value) for name, value in configs.items()}
        check_together(checked)
    except InvalidConfig as error:
        raise InvalidTopicConfig(str(error)) from None
    return checked


def _broker_configs(config: Config) -> dict[str, str]:
    """Broker settings under the names that topic configs know as their synonyms."""
    return {
        "log.retention.ms": str(config.log_retention_ms),
        "log.retention.bytes": str(config.log_retention_bytes),
        "message.max.bytes": str(config.message_max_bytes),
        "max.decompressed.message.bytes": str(config.max_decompressed_bytes),
        "log.message.timestamp.after.max.ms": str(config.message_timestamp_after_max_ms),
    }
