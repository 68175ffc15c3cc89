"""Whether a group takes records from a partition, for the leader of the partition: the group's coordinator
knows, on this broker or another one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from kio.schema.errors import ErrorCode

from korvet.groups.shard import GroupShard
from korvet.groups.share.messages import SharePartition, StatesReply, StatesRequest
from korvet.redis.errors import StorageError
from korvet.redis.futures import awaited

if TYPE_CHECKING:
    from korvet.cluster.leadership import Leadership
    from korvet.cluster.mailbox import Answer, Mailbox
    from korvet.coordinator.service import CoordinatorService

_SHOW: Final = "show share states"
_encode = msgspec.msgpack.encode
_REQUESTS: Final = msgspec.msgpack.Decoder(StatesRequest)
_REPLIES: Final = msgspec.msgpack.Decoder(StatesReply)


class SharePeers:
    """Asks the coordinator of a group: this broker directly, others by the mailbox."""

    def __init__(self, coordinator: CoordinatorService, mailbox: Mailbox, leadership: Leadership) -> None:
        self._coordinator = coordinator
        self._mailbox = mailbox
        self._leadership = leadership
        mailbox.handle(_SHOW, self._asked)

    async def is_initialised(self, place: SharePartition) -> bool:
        """Whether the partition is initialised for the group. Raises StorageError if nobody can tell."""
        reply = await self._coordinator.sharing.of(place.group_id, place)
        if reply.error is ErrorCode.not_coordinator:
            leader = self._leadership.assignment.leader(*self._coordinator.partition_of(place.group_id))
            body = _encode(StatesRequest(place.group_id, place))
            reply = _REPLIES.decode(await awaited(partial(self._mailbox.ask, leader.node_id, _SHOW, body)))
        if reply.error is not ErrorCode.none:
            raise StorageError(f"the coordinator of {place.group_id} answers {reply.error.name}")
        return place in reply.places

    def _asked(self, body: bytes, answer: Answer) -> None:
        request = _REQUESTS.decode(body)
        self._coordinator.submit(
            request.group_id, GroupShard.show_states, request, lambda reply: answer(_encode(reply))
        )
