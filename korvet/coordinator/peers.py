"""Requests between brokers for transactions: whether a partition is in a transaction, and markers to write.

Both arrive in the order in which they were sent, so that a marker follows what was admitted before it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from kio.schema.errors import ErrorCode

from korvet.causes import Causes
from korvet.records.control import ControlMarker  # noqa: TC001 - decoded
from korvet.redis.errors import StorageError
from korvet.redis.futures import awaited
from korvet.supervisor import end, once
from korvet.transactions.messages import AddReply, AddRequest, TopicPartition

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from korvet.cluster.mailbox import Answer, Mailbox
    from korvet.coordinator.markers import LocalMarkers
    from korvet.log.broker_logs import Logs

logger = logging.getLogger(__name__)
causes = Causes(logger)

_ADD: Final = "add to transaction"
_MARK: Final = "mark"


class _MarkRequest(msgspec.Struct, frozen=True, array_like=True):
    partition: TopicPartition
    leader_epoch: int
    """The leader epoch in which the receiver leads the partition: in a later epoch it leads another log."""
    marker: ControlMarker


_encode = msgspec.msgpack.encode
_ADD_REQUESTS: Final = msgspec.msgpack.Decoder(AddRequest)
_ADD_REPLIES: Final = msgspec.msgpack.Decoder(AddReply)
_MARK_REQUESTS: Final = msgspec.msgpack.Decoder(_MarkRequest)
_ERRORS: Final = msgspec.msgpack.Decoder(ErrorCode)


class Peers:
    """Asks the leader of a partition: this broker directly, others by the mailbox."""

    def __init__(self, logs: Logs, mailbox: Mailbox, markers: LocalMarkers) -> None:
        self._logs = logs
        self._mailbox = mailbox
        self._markers = markers
        self._tasks: set[asyncio.Task[None]] = set()
        mailbox.handle(_MARK, self._mark_asked)

    def serve_adds(self, submit: Callable[[AddRequest, Callable[[AddReply], None]], None]) -> None:
        """Let other brokers ask this coordinator, by submit(request, done)."""

        def asked(body: bytes, answer: Answer) -> None:
            submit(_ADD_REQUESTS.decode(body), lambda reply: answer(_encode(reply)))

        self._mailbox.handle(_ADD, asked)

    def add(self, coordinated: TopicPartition, request: AddRequest, done: Callable[[AddReply], None]) -> None:
        """Ask the broker that leads a partition of `__transaction_state`; done(reply) is called later."""

        node_id, _ = self._leader(coordinated)

        def answered(answer: bytes | StorageError) -> None:
            if isinstance(answer, StorageError):
                named = request.transactional_id, answer
                causes.warn(answer, "the coordinator of %s: %s", *named, work=node_id)
                done(AddReply(ErrorCode.coordinator_not_available))
            else:
                causes.ended(node_id)
                done(_ADD_REPLIES.decode(answer))

        self._mailbox.ask(node_id, _ADD, _encode(request), answered)

    async def mark(self, partition: TopicPartition, marker: ControlMarker) -> ErrorCode:
        """LocalMarkers.write on the broker that leads the partition."""
        member = self._logs.membership
        if member is None or member.leadership.alone or self._logs.leader_epoch_of(*partition) is not None:
            return await self._markers.write(partition, marker)
        node_id, epoch = self._leader(partition)
        request = _encode(_MarkRequest(partition, epoch, marker))
        try:
            return _ERRORS.decode(await awaited(partial(self._mailbox.ask, node_id, _MARK, request)))
        except StorageError as error:
            logger.info("a marker for %s-%d is not written yet: %s", *partition, error)
            return ErrorCode.request_timed_out

    def _leader(self, partition: TopicPartition) -> tuple[int, int]:
        assert self._logs.membership is not None
        leader = self._logs.membership.leadership.assignment.leader(*partition)
        return leader.node_id, leader.epoch

    def _mark_asked(self, body: bytes, answer: Answer) -> None:
        request = _MARK_REQUESTS.decode(body)
        if self._logs.leader_epoch_of(*request.partition) != request.leader_epoch:
            answer(_encode(ErrorCode.not_leader_or_follower))
            return
        task = once("markers for a coordinator", self._write(request, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, request: _MarkRequest, answer: Answer) -> None:
        answer(_encode(await self._markers.write(request.partition, request.marker)))

    async def close(self) -> None:
        """Stop answering."""
        await end(*self._tasks)
