"""Work of share groups that the leader of a partition does: this broker at once, another one by mail."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.redis.errors import StorageError
from korvet.redis.futures import awaited
from korvet.supervisor import end, once

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from korvet.cluster.leadership import Leadership
    from korvet.cluster.mailbox import Answer, Mailbox


class _Request(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    partition: int
    leader_epoch: int
    """The leader epoch in which the receiver leads the partition."""
    body: bytes


_encode = msgspec.msgpack.encode
_REQUESTS: Final = msgspec.msgpack.Decoder(_Request)
_REPLIES: Final = msgspec.msgpack.Decoder(str)


class LeaderMail:
    """Asks leaders of partitions to do one kind of work, and does it for those that this broker leads."""

    def __init__(
        self,
        leadership: Leadership,
        mailbox: Mailbox,
        kind: str,
        work: Callable[[str, int, bytes], Awaitable[None]],
    ) -> None:
        """work(topic, partition, body): what a leader does. Raises StorageError."""
        self._leadership = leadership
        self._mailbox = mailbox
        self._kind = kind
        self._work = work
        self._tasks: set[asyncio.Task[None]] = set()
        mailbox.handle(kind, self._asked)

    async def ask(self, topic: str, partition: int, body: bytes) -> None:
        """Let the leader of a partition do the work. Raises StorageError; it may have been done then."""
        leadership = self._leadership
        if leadership.alone or leadership.leader_epoch_of(topic, partition) is not None:
            await self._work(topic, partition, body)
            return
        leader = leadership.assignment.leader(topic, partition)
        request = _encode(_Request(topic, partition, leader.epoch, body))
        ask = partial(self._mailbox.ask, leader.node_id, self._kind, request)
        reply = _REPLIES.decode(await awaited(ask))
        if reply:
            raise StorageError(reply)

    async def close(self) -> None:
        """Stop working for others."""
        await end(*self._tasks)

    def _asked(self, body: bytes, answer: Answer) -> None:
        task = once(self._kind, self._serve(_REQUESTS.decode(body), answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: _Request, answer: Answer) -> None:
        if self._leadership.leader_epoch_of(request.topic, request.partition) != request.leader_epoch:
            answer(_encode(f"{request.topic}-{request.partition} has another leader"))
            return
        try:
            await self._work(request.topic, request.partition, request.body)
        except StorageError as error:
            answer(_encode(str(error)))
        else:
            answer(_encode(""))
