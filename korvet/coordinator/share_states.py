"""The states of share groups' partitions between the coordinator's records and Redis: each change is noted in
a record before it is made, and its end in another.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.causes import Causes
from korvet.groups.shard import GroupShard
from korvet.groups.share.messages import RemoveStatesReply, RemoveStatesRequest
from korvet.redis.errors import StorageError
from korvet.slices import gathered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from korvet.coordinator.projector import Stream
    from korvet.coordinator.share_partitions import SharePartitions
    from korvet.coordinator.term import Handler, Term
    from korvet.groups.share.messages import Initialisation, SharePartition

causes = Causes(logging.getLogger(__name__))


class ShareStates:
    """Makes and removes states. `call` asks the coordinator of a group, `is_changing` tells whether the Redis
    group of a deleted group may still exist.
    """

    __slots__ = ("_call", "_is_changing", "_partitions")

    def __init__(
        self,
        call: Callable[[str, Handler, Any], Awaitable[Any]],
        partitions: SharePartitions,
        is_changing: Callable[[str, Stream], bool],
    ) -> None:
        self._call = call
        self._partitions = partitions
        self._is_changing = is_changing

    async def initialise(self, term: Term, initialisations: Sequence[Initialisation]) -> None:
        """Make the states of a share group's partitions: all of them, or none counts."""
        resets = {each.place: each.reset for each in initialisations}
        group_id = initialisations[0].place.group_id

        async def initialise(place: SharePartition) -> None:
            self._check(place)
            await self._partitions.initialise(place, resets[place])

        try:
            await gathered(map(initialise, resets))
        except StorageError as error:
            causes.warn(
                error, "partitions of the share group %r wait: %s", group_id, error, work=("share", group_id)
            )
            term.initialised(tuple(resets), failed=True)
            return
        causes.ended(("share", group_id))
        term.initialised(tuple(resets), failed=False)

    async def remove(self, group_id: str) -> ErrorCode:
        """Remove the states of a group that is about to be deleted. Returns the error."""
        found: RemoveStatesReply = await self._call(
            group_id, GroupShard.remove_states, RemoveStatesRequest(group_id)
        )
        if found.error is not ErrorCode.none:
            return found.error
        try:
            await gathered(map(self._partitions.remove, found.places))
        except StorageError as error:
            causes.warn(error, "the share group %r cannot be deleted: %s", group_id, error, work=group_id)
            return ErrorCode.coordinator_not_available
        causes.ended(group_id)
        return ErrorCode.none

    def _check(self, place: SharePartition) -> None:
        if self._is_changing(place.group_id, (place.topic, place.partition)):
            raise StorageError("the Redis group of a deleted group is not removed yet")
