"""The states of share groups' partitions between the coordinator's records and Redis: each change is noted in
a record before it is made, and its end in another.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.causes import Causes
from korvet.coordinator.share_changes import ShareChanges
from korvet.groups.own_configs import EARLIEST
from korvet.groups.shard import GroupShard
from korvet.groups.share.group import ShareGroup
from korvet.groups.share.messages import (
    EndStatesRequest,
    RemoveStatesRequest,
    RestartStatesRequest,
    StatesReply,
    StatesRequest,
)
from korvet.redis.errors import StorageError
from korvet.slices import gathered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from korvet.coordinator.projector import Stream
    from korvet.coordinator.share_partitions import SharePartitions
    from korvet.coordinator.term import Handler, Term
    from korvet.groups.share.messages import Initialisation, SharePartition
    from korvet.redis_groups.share import QueueView

causes = Causes(logging.getLogger(__name__))

_UNAVAILABLE: Final = StatesReply(ErrorCode.coordinator_not_available)


class ShareStates:
    """Shows, makes and removes states. `call` asks the coordinator of a group, `is_changing` tells whether
    the Redis group of a deleted group may still exist, `reset` what share.auto.offset.reset of a group is in
    Redis: another broker may have changed it just now.
    """

    __slots__ = ("_call", "_is_changing", "_partitions", "_reset", "changes")

    def __init__(
        self,
        call: Callable[[str, Handler, Any], Awaitable[Any]],
        partitions: SharePartitions,
        is_changing: Callable[[str, Stream], bool],
        reset: Callable[[str], Awaitable[str]],
    ) -> None:
        self._call = call
        self._reset = reset
        self._partitions = partitions
        self._is_changing = is_changing
        self.changes = ShareChanges()
        """The states that were made or removed, and what else is noted."""

    async def initialise(self, term: Term, initialisations: Sequence[Initialisation]) -> None:
        """Make the states of a share group's partitions: all of them, or none counts."""
        places = tuple(each.place for each in initialisations)
        group_id = places[0].group_id

        async def initialise(each: Initialisation) -> None:
            self._check(each.place)
            await self._partitions.initialise(each.place, EARLIEST if each.is_added else reset)

        try:
            reset = await self._reset(group_id)
            await gathered(map(initialise, initialisations))
        except StorageError as error:
            causes.warn(
                error, "partitions of the share group %r wait: %s", group_id, error, work=("share", group_id)
            )
            term.initialised(places, failed=True)
            return
        causes.ended(("share", group_id))
        group = term.shard.groups.get(group_id)
        for place in places:
            self.changes.begun(place, group.epoch if isinstance(group, ShareGroup) else 0)
        term.initialised(places, failed=False)

    async def of(self, group_id: str, place: SharePartition | None = None) -> StatesReply:
        """The initialised partitions of a share group: all, or this one if it is."""
        request = StatesRequest(group_id, place)
        reply: StatesReply = await self._call(group_id, GroupShard.show_states, request)
        return reply

    async def view(self, place: SharePartition) -> QueueView | None:
        """The state of an initialised partition; None if Redis has lost it. Raises StorageError."""
        return await self._partitions.view(place)

    async def restart(self, group_id: str, offsets: Mapping[SharePartition, int]) -> StatesReply:
        """Let a group without members, also a new one, begin with these offsets. All locks end."""

        async def restart(place: SharePartition) -> None:
            self._check(place)
            await self._partitions.restart(place, offsets[place])

        places = tuple(offsets)
        reply: StatesReply = await self._call(
            group_id, GroupShard.restart_states, RestartStatesRequest(group_id, places)
        )
        if reply.error is not ErrorCode.none or not places:
            return reply
        if not await self._change(group_id, restart, places):
            return _UNAVAILABLE
        for place in places:
            self.changes.begun(place)
        return await self._end(EndStatesRequest(group_id, initialised=places))

    async def remove(self, group_id: str, topics: frozenset[str] | None = None) -> StatesReply:
        """Remove the states of a group without members: those of some topics, or those of a group that is
        about to be deleted. The reply has the partitions that had a state.
        """
        found: StatesReply = await self._call(
            group_id, GroupShard.remove_states, RemoveStatesRequest(group_id, topics)
        )
        if found.error is not ErrorCode.none or not found.places:
            return found
        if not await self._change(group_id, self._partitions.remove, found.places):
            return _UNAVAILABLE
        for place in found.places:
            self.changes.removed(place)
        if topics is None:
            return found
        removed = frozenset(place.topic_id for place in found.places)
        reply = await self._end(EndStatesRequest(group_id, removed=removed))
        return reply if reply.error is not ErrorCode.none else found

    async def _change(
        self,
        group_id: str,
        change: Callable[[SharePartition], Coroutine[Any, Any, None]],
        places: Sequence[SharePartition],
    ) -> bool:
        try:
            await gathered(map(change, places))
        except StorageError as error:
            causes.warn(error, "the share group %r cannot be changed: %s", group_id, error, work=group_id)
            return False
        causes.ended(group_id)
        return True

    async def _end(self, request: EndStatesRequest) -> StatesReply:
        reply: StatesReply = await self._call(request.group_id, GroupShard.end_states, request)
        return reply

    def _check(self, place: SharePartition) -> None:
        if self._is_changing(place.group_id, (place.topic, place.partition)):
            raise StorageError("the Redis group of a deleted group is not removed yet")
