"""The states of share groups' partitions, as far as the coordinator knows them: see `partitions`.

The coordinator makes and removes the states in Redis: an outcome lists what to initialise, and `initialised`
is told how that ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.groups.share.draft import Draft
from korvet.groups.share.group import ShareGroup
from korvet.groups.share.messages import Initialisation, SharePartition, StatesReply
from korvet.groups.share.partitions import PartitionStates, TopicStates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from korvet.groups.context import Context
    from korvet.groups.messages import Token
    from korvet.groups.share.messages import (
        EndStatesRequest,
        RemoveStatesRequest,
        RestartStatesRequest,
        StatesRequest,
    )


class States:
    """The states in all share groups of a shard."""

    __slots__ = ("_attempts", "_context")

    def __init__(self, context: Context) -> None:
        self._context = context
        # When the initialisation of a partition of a group began: by group, topic id and partition.
        self._attempts: dict[tuple[str, bytes, int], int] = {}

    def initialise(self, draft: Draft) -> None:
        """Begin to initialise what is not initialised, and what has not been for too long."""
        group = draft.group
        states = group.states or PartitionStates()
        missing: dict[bytes, TopicStates] = {}
        for name in sorted(group.subscribed_topics):
            topic = self._context.topics.get(name)
            if topic is None:
                continue
            known = states.initialised.get(topic.topic_id)
            begun = frozenset() if known is None else known.partitions
            if len(begun) == topic.partitions:
                continue
            numbers = frozenset(
                number
                for number in range(topic.partitions)
                if number not in begun and not self._is_begun(group, topic.topic_id, number)
            )
            if numbers:
                missing[topic.topic_id] = TopicStates(name, numbers)
        if missing:
            self._begin(group, states, missing)
            draft.states(states.with_initialising(missing))

    def _is_begun(self, group: ShareGroup, topic_id: bytes, partition: int) -> bool:
        """Whether the partition's initialisation will end soon."""
        if group.states is None or not group.states.is_initialising(topic_id, partition):
            return False
        begun_ms = self._attempts.get((group.group_id, topic_id, partition))
        interval_ms = self._context.config.share_initialize_retry_interval_ms
        return begun_ms is not None and 0 <= self._context.now_ms - begun_ms < interval_ms

    def _begin(self, group: ShareGroup, states: PartitionStates, missing: dict[bytes, TopicStates]) -> None:
        for topic_id, topic in missing.items():
            # The group shall not miss what is in a new partition already.
            is_added = _is_known(states, topic_id, topic.partitions)
            for number in sorted(topic.partitions):
                self._attempts[group.group_id, topic_id, number] = self._context.now_ms
                place = SharePartition(group.group_id, topic_id, topic.name, number)
                self._context.initialisations.append(Initialisation(place, is_added))

    def initialised(self, places: Collection[SharePartition], *, failed: bool = False) -> None:
        """Initialisations of one group have ended. Those that failed begin again with a later heartbeat."""
        for place in places:
            self._attempts.pop((place.group_id, place.topic_id, place.partition), None)
        group = self._context.groups.get(next(iter(places)).group_id)
        if not isinstance(group, ShareGroup) or group.states is None:
            return
        found = _by_topic(
            place for place in places if group.states.is_initialising(place.topic_id, place.partition)
        )
        after = group.states.with_failed(found) if failed else group.states.with_initialised(found)
        self._write(Draft(group), after)

    def show(self, request: StatesRequest, token: Token) -> None:
        """The initialised partitions of a group, see StatesRequest; none if it is not a share group."""
        group, asked = self._context.groups.get(request.group_id), request.place
        states = group.states if isinstance(group, ShareGroup) else None
        places: tuple[SharePartition, ...] = ()
        if states is not None and asked is None:
            places = tuple(SharePartition(request.group_id, *each) for each in states.initialised_places())
        elif states is not None and asked is not None:
            places = (asked,) if states.is_initialised(asked.topic_id, asked.partition) else ()
        self._context.reply(token, StatesReply(ErrorCode.none, None, places))

    def restart(self, request: RestartStatesRequest, token: Token) -> None:
        """The first step of AlterShareGroupOffsets, which also creates groups: afterwards the states can be
        made anew.
        """
        is_new = request.group_id not in self._context.groups
        group = ShareGroup(request.group_id) if is_new else self._changeable(request.group_id)
        if isinstance(group, StatesReply):
            self._context.reply(token, group)
            return
        for place in request.places:
            self._attempts[place.group_id, place.topic_id, place.partition] = self._context.now_ms
        if request.places:
            states = (group.states or PartitionStates()).with_initialising(_by_topic(request.places))
            self._write(Draft(group, [] if is_new else None), states)
        self._context.reply(token, StatesReply(ErrorCode.none, None, request.places))

    def remove(self, request: RemoveStatesRequest, token: Token) -> None:
        """The first step of DeleteGroups and DeleteShareGroupOffsets: then the states can be removed."""
        group = self._changeable(request.group_id)
        if isinstance(group, StatesReply):
            has_none = request.topics is None and group.error is ErrorCode.group_id_not_found
            self._context.reply(token, StatesReply(ErrorCode.none) if has_none else group)
            return
        places: list[SharePartition] = []
        if group.states is not None:
            places = [SharePartition(group.group_id, *each) for each in group.states.places(request.topics)]
            places += self._removed_before(group, group.states, request.topics)
            draft = Draft(group)
            # Also if it changes nothing, as in Kafka.
            draft.states(group.states.with_deleting(request.topics))
            self._context.records += draft.records
        self._context.reply(token, StatesReply(ErrorCode.none, None, tuple(places)))

    def _changeable(self, group_id: str) -> ShareGroup | StatesReply:
        """A share group without members, or the refusal to change its states."""
        group = self._context.groups.get(group_id)
        if group is None:
            return StatesReply(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        if not isinstance(group, ShareGroup):
            return StatesReply(ErrorCode.group_id_not_found, f"Group {group_id} is not a share group.")
        if not group.is_empty:
            return StatesReply(ErrorCode.non_empty_group, "The group is not empty.")
        return group

    def _write(self, draft: Draft, states: PartitionStates) -> None:
        if states != draft.group.states:
            draft.states(states)
            self._context.records += draft.records

    def _removed_before(
        self, group: ShareGroup, states: PartitionStates, names: frozenset[str] | None
    ) -> list[SharePartition]:
        """What an interrupted removal may have left: all partitions of its topics."""
        known = states.topics
        topics = (
            self._context.topics.by_id(topic_id) for topic_id in states.deleting if topic_id not in known
        )
        return [
            SharePartition(group.group_id, topic.topic_id, topic.name, number)
            for topic in topics
            if topic is not None and (names is None or topic.name in names)
            for number in range(topic.partitions)
        ]

    def end(self, request: EndStatesRequest, token: Token) -> None:
        """The last step of AlterShareGroupOffsets or DeleteShareGroupOffsets."""
        group = self._context.groups.get(request.group_id)
        if request.initialised:
            self.initialised(request.initialised)
        elif isinstance(group, ShareGroup) and group.states is not None:
            self._write(Draft(group), group.states.with_removed(request.removed))
        self._context.reply(token, StatesReply(ErrorCode.none))

    def of_topic(self, name: str) -> list[SharePartition]:
        """The partitions of a topic that have, or will have, states."""
        return [
            SharePartition(group.group_id, *each)
            for group in self._context.groups.values()
            if isinstance(group, ShareGroup) and group.states is not None
            for each in group.states.places((name,))
        ]

    def delete_topics(self, names: frozenset[str]) -> None:
        """Forget the states of deleted topics in all groups."""
        for group in self._context.groups.values():
            if isinstance(group, ShareGroup) and group.states is not None:
                self._write(Draft(group), group.states.without_topics(names))


def _by_topic(places: Iterable[SharePartition]) -> dict[bytes, TopicStates]:
    found: dict[bytes, tuple[str, set[int]]] = {}
    for place in places:
        found.setdefault(place.topic_id, (place.topic, set()))[1].add(place.partition)
    return {topic_id: TopicStates(name, frozenset(numbers)) for topic_id, (name, numbers) in found.items()}


def _is_known(states: PartitionStates, topic_id: bytes, partitions: frozenset[int]) -> bool:
    """Whether the group has other partitions of the topic, or is about to get them."""
    return any(
        topic is not None and topic.partitions - partitions
        for topic in (states.initialised.get(topic_id), states.initialising.get(topic_id))
    )
