"""The directory of topics: which topics exist, their policies and logs, their creation and deletion."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from uuid import UUID, uuid5

import msgspec

from korvet.cluster.topic import OffsetAssignment, StorageLayout, Topic
from korvet.config.keys import settings
from korvet.config.kinds import ConfigSource
from korvet.log.release import level_of
from korvet.redis.errors import CatalogueConflict, StorageError, TopicGone
from korvet.redis.errors import TopicExists as StoredTopicExists
from korvet.redis.keys import OFFSETS_TOPIC, SHARE_STATES_TOPIC, TRANSACTIONS_TOPIC
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
from korvet.topics.levels import default_level
from korvet.topics.names import CollidingNames, check_topic_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from korvet.cluster.catalogue import Catalogue
    from korvet.config.live import LiveConfig
    from korvet.config.settings import Config
    from korvet.log.broker_logs import Logs
    from korvet.log.partition_log import PartitionLog
    from korvet.redis.barrier import Level
    from korvet.topics.alterations import Alteration
    from korvet.topics.configs import BrokerConfigs

_ASSIGNMENT_SYNONYM: Final = TOPIC_CONFIGS[OFFSET_ASSIGNMENT].synonym or ""
_LAYOUT_SYNONYM: Final = TOPIC_CONFIGS[STORAGE_LAYOUT].synonym or ""
_DEFAULTS: Final = {
    _ASSIGNMENT_SYNONYM: TOPIC_CONFIGS[OFFSET_ASSIGNMENT].default,
    _LAYOUT_SYNONYM: TOPIC_CONFIGS[STORAGE_LAYOUT].default,
}
# Limits the partitions of one request, as Kafka does: a typo could otherwise create an unusable cluster.
MAX_PARTITIONS: Final = 10_000
TOO_MANY: Final = "Excessively large number of partitions per request."
# Limits the wait for other brokers to learn of a new topic. A broker that is late learns of it with the first
# request for it.
_SPREAD_S: Final = 1.0
# Limits the attempts at a change of a topic that other brokers keep changing.
_MOST_CONFLICTS: Final = 20

T = TypeVar("T")


class Place(msgspec.Struct, frozen=True):
    """A partition that exists, with what a producer's request needs to write to it."""

    topic: Topic
    log: PartitionLog
    policy: TopicPolicy
    is_alias: bool
    """Whether the topic is an alias of another one, which can only be read and described."""


class Groups(Protocol):
    """The group coordinator, whose topic and committed offsets change with topics."""

    async def forget_topic(self, name: str) -> None:
        """Tombstone a topic's committed offsets before the topic is deleted."""

    async def topic_is_unused(self) -> bool:
        """Whether `__consumer_offsets` may be created again. Raises StorageError."""

    async def make_topic_anew(self, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Replace an unused `__consumer_offsets`. Raises TopicExists if it is used, and StorageError."""


class TopicDirectory:
    """All topics of the keyspace. Lookups use memory; changes go to the catalogue in Redis first."""

    def __init__(self, catalogue: Catalogue, logs: Logs, live: LiveConfig, groups: Groups) -> None:
        self._catalogue = catalogue
        self._logs = logs
        self._live = live
        self._groups = groups
        self._policies: dict[str, tuple[Topic, TopicPolicy]] = {}
        # Partitions by topic name or id, and the catalogue version in which they were looked up.
        self._places: dict[tuple[str | UUID | None, int], Place] = {}
        self._places_of = -1
        self._alias_name = live.static.offsets_topic_alias
        # The aliased topic when it was last seen, and the alias made of it.
        self._aliased: tuple[Topic | None, Topic | None] = (None, None)
        # Serialises changes of topics: two clients that create a topic at once must not interleave.
        self._lock = asyncio.Lock()
        self._names = CollidingNames()
        live.follow(self._follow)
        self._follow(live.now)

    def _follow(self, config: Config) -> None:
        """Apply changed settings to all topics that have no configs of their own."""
        self._broker_configs = broker_configs_of(self._live)
        self._level = default_level(config)
        self._policies.clear()
        self._places.clear()
        self._logs.set_level(self._level)

    def all(self) -> list[Topic]:
        """All topics by name."""
        topics = self._catalogue.topics
        return [topics[name] for name in sorted(topics)]

    def listed(self) -> list[Topic]:
        """All topics that clients see, by name, including the alias."""
        alias = None if self._alias_name is None else self.get(self._alias_name)
        if alias is None or not self.is_alias(alias):
            return self.all()
        return sorted([*self.all(), alias], key=lambda topic: topic.name)

    def get(self, name: str) -> Topic | None:
        """The topic of that name."""
        found = self._catalogue.get(name)
        return self._alias() if found is None and name == self._alias_name else found

    def by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of that id."""
        found = self._catalogue.by_id(topic_id)
        if found is None and self._alias_name is not None:
            alias = self.get(self._alias_name)
            return alias if alias is not None and alias.topic_id == topic_id else None
        return found

    def is_alias(self, topic: Topic) -> bool:
        """Whether the topic is an alias of another one, which can only be read and described."""
        return topic is self._aliased[1]

    def target(self, topic: Topic) -> Topic:
        """The topic that an alias refers to; any other topic itself."""
        aliased, alias = self._aliased
        return aliased if topic is alias and aliased is not None else topic

    def _alias(self) -> Topic | None:
        """`__consumer_offsets` as a topic that is not internal, under the name that the settings give it."""
        name, source = self._alias_name, self._catalogue.get(OFFSETS_TOPIC)
        if source is None or name is None:
            return None
        if self._aliased[0] is not source:
            own_id = uuid5(source.topic_id, name)
            alias = msgspec.structs.replace(source, name=name, topic_id=own_id, internal=False)
            self._aliased = source, alias
        return self._aliased[1]

    def find(self, key: str | UUID | None) -> Topic | None:
        """The topic with that name or id."""
        if isinstance(key, str):
            return self.get(key)
        return None if key is None else self.by_id(key)

    def place(self, key: str | UUID | None, partition: int) -> Place | None:
        """A partition of the topic with that name or id; None if it does not exist. Cached."""
        edition = self._catalogue.local_change
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
        """The log of an existing partition."""
        topic = self.get(name)
        return None if topic is None else self.log_of(topic, partition)

    def log_of(self, topic: Topic, partition: int) -> PartitionLog | None:
        """The log of a topic's partition; None if the topic has no such partition."""
        if not 0 <= partition < topic.partitions:
            return None
        return self._logs.get(self.target(topic), partition)

    def policy(self, topic: Topic) -> TopicPolicy:
        """The topic's configs in force, parsed once."""
        known = self._policies.get(topic.name)
        if known is None or known[0] is not topic:
            known = self._policies[topic.name] = (topic, policy_of(topic.configs, self.broker_configs(topic)))
        return known[1]

    def level(self, topic: Topic) -> Level:
        """What the records of a topic need before they are released."""
        return level_of(self.target(topic), self._level)

    def keeps_all(self, topic: Topic) -> bool:
        """Whether retention and compaction must keep all of a topic's records: one of its configs cannot be
        read, and may have said that they stay.
        """
        return not DELETION_CONFIGS.isdisjoint(self._catalogue.bad_configs.get(topic.name, ()))

    def broker_configs(self, topic: Topic) -> BrokerConfigs:
        """The broker's configs that apply if a topic has none of its own, by synonym.

        Configs that are fixed when a topic is created have the values of that time.
        """
        fixed: dict[str, str] = {
            _ASSIGNMENT_SYNONYM: topic.offset_assignment,
            _LAYOUT_SYNONYM: topic.storage_layout,
        }
        static = {
            key: () if value == _DEFAULTS[key] else ((value, ConfigSource.STATIC_BROKER),)
            for key, value in fixed.items()
        }
        return {**self._broker_configs, **static}

    def check_name(self, name: str) -> None:
        """Raises InvalidTopicName unless a topic of that name may be created, and NameCollision."""
        check_topic_name(name)
        self._names.follow(self._catalogue.topics, self._catalogue.local_change)
        self._names.check(name)

    async def get_or_create(self, name: str) -> Topic:
        """The topic, created with the broker's defaults if it does not exist (auto-creation). Raises
        TopicError.
        """
        try:
            if name in INTERNAL_TOPICS:
                return await self._create_internal(name)
            return await self.create(name, self._live.now.num_partitions, {})
        except TopicExists:
            topic = self.get(name)
            if topic is None:
                raise
            return topic

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        """Create a topic, or only check that it could be created. Raises TopicError and StorageError."""
        await self.check_new(name)
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
            return await self._made(create_internal(self._catalogue, name, partitions, checked))
        return await self._made(
            self._catalogue.create(
                name, partitions, checked, offset_assignment=assignment, storage_layout=layout
            )
        )

    async def check_new(self, name: str) -> None:
        """Raises TopicExists, StorageError, and as `check_name` unless a topic of the name may be created."""
        await self._catch_up()
        remade = name == OFFSETS_TOPIC and await self._groups.topic_is_unused()
        if self.get(name) is not None and not remade:
            raise TopicExists(f"Topic '{name}' already exists.")
        self.check_name(name)

    async def _create_internal(self, name: str) -> Topic:
        """Create a coordinator's topic as the broker itself creates it."""
        counts = {
            OFFSETS_TOPIC: self._live.now.offsets_topic_num_partitions,
            TRANSACTIONS_TOPIC: self._live.now.transaction_state_log_num_partitions,
            SHARE_STATES_TOPIC: self._live.now.share_coordinator_state_topic_num_partitions,
        }
        return await self._made(create_internal(self._catalogue, name, counts[name]))

    async def _made(self, making: Coroutine[None, None, Topic]) -> Topic:
        async with self._lock:
            try:
                topic = await making
            except StoredTopicExists as error:
                raise TopicExists(str(error)) from None
        await self._spread()
        return topic

    def _assignment(self, name: str, configs: Mapping[str, str]) -> OffsetAssignment:
        """The offset assignment of a new topic."""
        asked = configs.get(OFFSET_ASSIGNMENT)
        if name in INTERNAL_TOPICS:
            check_internal(name, configs)
            return "dense"
        if asked is None:
            return self._live.now.log_offset_assignment
        return "dense" if asked == "dense" else "clock"

    def _layout(self, name: str, configs: Mapping[str, str]) -> StorageLayout:
        """The storage layout of a new topic."""
        asked = configs.get(STORAGE_LAYOUT)
        if name in INTERNAL_TOPICS:
            return "record"
        if asked is None:
            return self._live.now.log_storage_layout
        return "batch" if asked == "batch" else "record"

    async def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> Topic:
        """Raise a topic's number of partitions to `count`. Raises TopicError and StorageError."""

        async def extend() -> Topic:
            topic = self._changeable(name)
            if count <= topic.partitions:
                raise InvalidPartitions(
                    f"The topic {name} has {topic.partitions} partition(s); {count} would not be an increase."
                )
            if count - topic.partitions > MAX_PARTITIONS:
                raise TooManyPartitions(TOO_MANY)
            if validate_only:
                return topic
            try:
                return await self._catalogue.add_partitions(name, count)
            except ValueError as error:
                raise InvalidPartitions(str(error)) from error

        await self._catch_up()
        topic = await self._change(name, extend)
        if not validate_only:
            await self._spread()
        return topic

    async def alter_configs(self, name: str, alteration: Alteration, *, validate_only: bool = False) -> None:
        """Change a topic's own configs, or only check that they could be changed.

        Internal topics are allowed. The change is in force when this returns. Raises TopicError and
        StorageError.
        """
        check_topic_name(name)
        await self._catch_up()
        await self._change(name, lambda: self._alter(name, alteration, validate_only))

    async def _alter(self, name: str, alteration: Alteration, validate_only: bool) -> None:
        topic = self.get(name)
        try:
            if topic is None:
                alteration({}, self._broker_configs)
                raise UnknownTopic(f"The topic '{name}' does not exist.")
            if self.is_alias(topic):
                raise InvalidTopicConfig(f"{name} is an alias: alter {self.target(topic).name}.")
            altered = alteration(topic.configs, self.broker_configs(topic))
        except InvalidConfig as error:
            raise InvalidTopicConfig(str(error)) from None
        if topic.internal:
            # This topic has no other default, because commits would be lost: a reset of all configs keeps it.
            altered.setdefault(CLEANUP_POLICY, "compact")
        check_fixed(topic, altered)
        if validate_only or altered == topic.configs:
            return
        await self._catalogue.set_configs(name, altered)

    async def _change(self, name: str, change: Callable[[], Awaitable[T]]) -> T:
        """Check and make a change of a topic; again if another broker has changed the topic meanwhile, so
        that neither change is lost. Raises as `change`, and UnknownTopic.
        """
        async with self._lock:
            try:
                for _ in range(_MOST_CONFLICTS):
                    try:
                        return await change()
                    except CatalogueConflict:
                        await self._catalogue.load()
                return await change()
            except TopicGone:
                raise UnknownTopic(f"The topic '{name}' does not exist.") from None

    async def look_again(self, name: str | None, topic_id: UUID | None) -> Topic | None:
        """The topic with that name or id, which another broker may have created a moment ago. Raises
        StorageError.
        """
        await self._catch_up()
        return self.find(topic_id if name is None else name)

    def missed(self) -> None:
        """Note a request for a topic that is unknown here: another broker may have created it."""
        membership = self._logs.membership
        if membership is not None and not membership.leadership.alone:
            membership.refresh_soon()

    async def _catch_up(self) -> None:
        """Apply the changes of other brokers. Raises StorageError."""
        membership = self._logs.membership
        if membership is not None and not membership.leadership.alone:
            await membership.refresh()

    async def delete(self, name: str, deadline_s: float) -> None:
        """Delete a topic, its records and its committed offsets. Raises TopicError and StorageError; and
        TimeoutError at `deadline_s` (the event loop's time): the brokers go on with the deletion.
        """

        async def mark() -> Topic:
            self._changeable(name)
            return await self._catalogue.mark_deleting(name)

        await self._catch_up()
        topic = await self._change(name, mark)
        async with asyncio.timeout_at(deadline_s):
            await self._catalogue.finish_delete(topic, self._forget_everywhere)

    async def finish_deletes(self) -> None:
        """Finish deletions that a broker began before it died, all at once; then raise the first error."""
        pending = self._catalogue.pending_deletes()
        work = (self._catalogue.finish_delete(topic, self._forget_everywhere) for topic in pending)
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if outcome is not None:
                raise outcome

    @property
    def deletes_are_pending(self) -> bool:
        """Whether deletions of topics are unfinished."""
        return bool(self._catalogue.pending_deletes())

    async def forget_deleted(self) -> None:
        """Forget the topics in deletion, and their offsets in the groups that this broker coordinates."""
        for topic in self._catalogue.pending_deletes():
            # A new topic may have the name by now.
            if self._catalogue.is_pending(topic):
                await self._forget(topic)

    async def _forget(self, topic: Topic) -> None:
        """Free the topic's policy, and tombstone its offsets in this broker's groups."""
        self._policies.pop(topic.name, None)
        await self._groups.forget_topic(topic.name)

    async def _forget_everywhere(self, topic: Topic) -> None:
        """Forget the topic, and wait until the other brokers have done the same; again if a broker has left
        meanwhile, whose groups this broker may have taken over.
        """
        membership = self._logs.membership
        if membership is None:
            await self._forget(topic)
            return
        version = None
        while version != membership.leadership.assignment.version and self._catalogue.is_pending(topic):
            version = membership.leadership.assignment.version
            await self._forget(topic)
            await membership.wait_acknowledged(self._catalogue.known_version)

    async def _spread(self) -> None:
        """Wait a moment until other brokers know of a new topic: its client asks the next broker at once."""
        membership = self._logs.membership
        if membership is not None and not membership.leadership.alone:
            with contextlib.suppress(TimeoutError, StorageError):
                async with asyncio.timeout(_SPREAD_S):
                    await membership.wait_acknowledged(self._catalogue.known_version)

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


def broker_configs_of(live: LiveConfig) -> BrokerConfigs:
    """The values of the broker's settings that are synonyms of topic configs."""
    synonyms = {config.synonym for config in TOPIC_CONFIGS.values()}
    return {each.key: live.layers(each) for each in settings() if each.key in synonyms}
