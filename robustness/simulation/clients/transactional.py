"""A transactional producer: its transactions have records, and offsets of a group."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.add_offsets_to_txn.v3.request import AddOffsetsToTxnRequest
from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kio.schema.end_txn.v3.request import EndTxnRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.txn_offset_commit.v3.request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

from robustness.history import Send, Txn
from robustness.simulation.clients import records
from robustness.simulation.clients.client import RETRIABLE, Client, Partition, Span, UnexpectedError
from robustness.simulation.clients.producer import (
    DELIVERY_TIMEOUT_S,
    LOST_IDENTITY,
    Identity,
    produce_request,
)
from robustness.simulation.clients.wire import Disconnected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kio.static.protocol import RequestPayload

    from robustness.history import Place
    from robustness.plan import ProducerPlan

# Longer than a transaction takes whose steps wait for the disk.
_TRANSACTION_TIMEOUT: Final = timedelta(seconds=10)
_COORDINATES_TRANSACTIONS: Final = 1
# Errors after which a transaction cannot go on, and the producer gets a new epoch.
_NO_MEMBER: Final = {
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
    ErrorCode.fenced_member_epoch,
    ErrorCode.stale_member_epoch,
    ErrorCode.rebalance_in_progress,
}
_FATAL: Final = LOST_IDENTITY | {
    ErrorCode.producer_fenced,
    ErrorCode.invalid_txn_state,
    ErrorCode.transaction_abortable,
    ErrorCode.operation_not_attempted,
}


class Aborted(Exception):
    """The transaction cannot go on."""


class Offsets(NamedTuple):
    """What a member of a group commits with a transaction."""

    group: str
    member_id: str
    epoch: int
    places: tuple[Place, ...]


class TransactionalProducer:
    """Sends transactions, one after the other."""

    def __init__(self, client: Client, plan: ProducerPlan, partitions: Mapping[str, int]) -> None:
        self.client = client
        self.plan = plan
        self.has_committed = False
        """Whether the last transaction was committed for certain."""
        self._partitions = [(topic, number) for topic in plan.topics for number in range(partitions[topic])]
        self._identity = Identity()
        self._sequences: dict[Partition, int] = {}
        self._numbers = 0
        self._txn = ""

    async def run(self, span: Span) -> None:
        """Send transactions for some time."""
        await self.client.refresh(self.plan.topics)
        is_ready = False
        while not self.client.is_over(span):
            if not is_ready:
                is_ready = await self.initialise()
                if not is_ready:
                    await self.client.pause()
                continue
            is_ready = await self._transaction()
            await asyncio.sleep(self.client.dice.between(1, 2000) / 1000 / self.plan.rate_per_s)
        self.client.note_progress(span)
        self.client.close()

    async def initialise(self) -> bool:
        """Get a new epoch, which ends what an earlier one has begun. Returns whether that is done."""
        request = InitProducerIdRequest(
            transactional_id=self.client.name,  # type: ignore[arg-type]
            transaction_timeout=_TRANSACTION_TIMEOUT,  # type: ignore[arg-type]
            producer_id=-1,  # type: ignore[arg-type]
            producer_epoch=-1,  # type: ignore[arg-type]
        )
        try:
            answer = await self._ask(request)
        except Disconnected:
            return False
        if answer.error_code is ErrorCode.none:
            self._identity = Identity(answer.producer_id, answer.producer_epoch)
            self._sequences.clear()
            return True
        with contextlib.suppress(Aborted):
            self._check(answer.error_code, "InitProducerId")
        return False

    async def _ask(self, request: RequestPayload) -> Any:
        return await self.client.ask_coordinator(self.client.name, request, _COORDINATES_TRANSACTIONS)

    def _check(self, error: ErrorCode, what: str) -> bool:
        """Returns whether there is no error. Raises Aborted after errors that end the transaction."""
        if error is ErrorCode.none:
            return True
        if error in _FATAL:
            raise Aborted(f"{what}: {error.name}")
        if error not in RETRIABLE:
            raise UnexpectedError(f"{what}: {error.name}")
        self.client.forget_coordinator(self.client.name, _COORDINATES_TRANSACTIONS)
        return False

    async def _transaction(self) -> bool:
        """One transaction. Returns whether the next one can begin without a new epoch."""
        dice = self.client.dice
        chosen = sorted({dice.one_of(self._partitions) for _ in range(dice.between(1, 2))})
        originals = {partition: [None] * dice.between(1, 3) for partition in chosen}
        action = "abort" if dice.chance(self.plan.abort_percent / 100) else "commit"
        return await self.transact(originals, action)

    async def transact(
        self, originals: Mapping[Partition, Sequence[str | None]], action: str, offsets: Offsets | None = None
    ) -> bool:
        """Send records to each partition, and offsets, in one transaction. `originals`: for each record the
        value of which it is a copy, or None.

        Returns whether the next one can begin without a new epoch.
        """
        self._numbers += 1
        self._txn = f"{self.client.name}/{self._numbers}"
        self.has_committed = False
        self._note("begin", "ok")
        deadline_s = self.client.time() + DELIVERY_TIMEOUT_S
        try:
            if originals:
                await self._add(sorted(originals), deadline_s)
            for partition, copied in originals.items():
                await self._send(partition, copied, deadline_s)
            if offsets is not None:
                await self._send_offsets(offsets, deadline_s)
        except Aborted:
            return await self._end("abort", offsets)
        return await self._end(action, offsets)

    def _note(self, action: str, type_: str, offsets: Offsets | None = None) -> None:
        fields: dict[str, Any] = {"txn": self._txn, "transactional_id": self.client.name, "action": action}
        if offsets is not None:
            fields |= {"group": offsets.group, "offsets": offsets.places}
        self.client.note(Txn, type_, **fields)

    async def _until(self, deadline_s: float) -> None:
        """Wait before a repetition. Raises Aborted after the deadline."""
        if self.client.time() > deadline_s:
            raise Aborted("too late")
        await self.client.pause()

    async def _add(self, partitions: Sequence[Partition], deadline_s: float) -> None:
        topics = tuple(
            AddPartitionsToTxnTopic(name=topic, partitions=(number,))  # type: ignore[arg-type]
            for topic, number in partitions
        )
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.client.name,  # type: ignore[arg-type]
            v3_and_below_producer_id=self._identity.producer_id,  # type: ignore[arg-type]
            v3_and_below_producer_epoch=self._identity.epoch,  # type: ignore[arg-type]
            v3_and_below_topics=topics,
        )
        while True:
            try:
                answer = await self._ask(request)
            except Disconnected:
                await self._until(deadline_s)
                continue
            errors = {
                one.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            }
            if self._check_all(errors, "AddPartitionsToTxn"):
                return
            await self._until(deadline_s)

    def _check_all(self, errors: set[ErrorCode], what: str) -> bool:
        """Checks the errors of several partitions; see `_check`."""
        checked = [self._check(error, what) for error in sorted(errors)]
        return all(checked)

    async def _send_offsets(self, offsets: Offsets, deadline_s: float) -> None:
        """Add the group to the transaction, and its offsets. Raises Aborted."""
        adding = AddOffsetsToTxnRequest(
            transactional_id=self.client.name,  # type: ignore[arg-type]
            producer_id=self._identity.producer_id,  # type: ignore[arg-type]
            producer_epoch=self._identity.epoch,  # type: ignore[arg-type]
            group_id=offsets.group,  # type: ignore[arg-type]
        )
        while not await self._asked(adding, "AddOffsetsToTxn"):
            await self._until(deadline_s)
        committing = self._offsets_request(offsets)
        while True:
            try:
                answer = await self.client.ask_coordinator(offsets.group, committing)
            except Disconnected:
                await self._until(deadline_s)
                continue
            errors = {one.error_code for topic in answer.topics for one in topic.partitions}
            if errors & _NO_MEMBER:
                raise Aborted("TxnOffsetCommit: no member")
            if self._check_all(errors, "TxnOffsetCommit"):
                return
            self.client.forget_coordinator(offsets.group)
            await self._until(deadline_s)

    async def _asked(self, request: RequestPayload, what: str) -> bool:
        """Returns whether the coordinator has done what was asked for. Raises Aborted."""
        try:
            return self._check((await self._ask(request)).error_code, what)
        except Disconnected:
            return False

    def _offsets_request(self, offsets: Offsets) -> TxnOffsetCommitRequest:
        topics = tuple(
            TxnOffsetCommitRequestTopic(
                name=place.topic,  # type: ignore[arg-type]
                partitions=(
                    TxnOffsetCommitRequestPartition(
                        partition_index=place.partition,  # type: ignore[arg-type]
                        committed_offset=place.offset,  # type: ignore[arg-type]
                        committed_leader_epoch=place.epoch,  # type: ignore[arg-type]
                        committed_metadata="",
                    ),
                ),
            )
            for place in offsets.places
        )
        return TxnOffsetCommitRequest(
            transactional_id=self.client.name,  # type: ignore[arg-type]
            group_id=offsets.group,  # type: ignore[arg-type]
            producer_id=self._identity.producer_id,  # type: ignore[arg-type]
            producer_epoch=self._identity.epoch,  # type: ignore[arg-type]
            generation_id=offsets.epoch,  # type: ignore[arg-type]
            member_id=offsets.member_id,
            topics=topics,
        )

    async def _send(self, partition: Partition, originals: Sequence[str | None], deadline_s: float) -> None:
        """Send one batch until it is acknowledged. Raises Aborted."""
        values = []
        for number, original in enumerate(originals):
            values.append(f"{self._txn}/{partition[0]}-{partition[1]}/{number}")
            self._note_send(partition, values[-1], "invoke", copy_of=original)
        producer = records.Producer(*self._identity, self._sequences.get(partition, 0))
        now_ms = self.client.now_ms()
        encoded = records.encode([each.encode() for each in values], now_ms, producer, transactional=True)
        request = produce_request(partition, encoded, -1, self.client.name)
        while True:
            try:
                offset = await self._produce(partition, request)
            except Aborted:
                for value in values:
                    self._note_send(partition, value, "info")
                raise
            if offset is not None:
                break
            await self.client.refresh([partition[0]])
            if self.client.time() > deadline_s:
                for value in values:
                    self._note_send(partition, value, "info")
            await self._until(deadline_s)
        self._sequences[partition] = self._sequences.get(partition, 0) + len(values)
        for number, value in enumerate(values):
            self._note_send(partition, value, "ok", **({"offset": offset + number} if offset >= 0 else {}))

    async def _produce(self, partition: Partition, request: RequestPayload) -> int | None:
        """Returns the base offset, -1 if it is unknown; None if the batch must be sent again."""
        leader = self.client.leaders.get(partition)
        if leader is None:
            return None
        try:
            answer = (await self.client.ask(leader.host, request)).responses[0].partition_responses[0]
        except Disconnected:
            return None
        if answer.error_code is ErrorCode.duplicate_sequence_number:
            return -1
        return int(answer.base_offset) if self._check(answer.error_code, "Produce") else None

    def _note_send(self, partition: Partition, value: str, type_: str, **known: Any) -> None:
        topic, number = partition
        fields: dict[str, Any] = {"acks": -1, "idempotent": True, "txn": self._txn}
        self.client.note(Send, type_, topic=topic, partition=number, value=value, **fields, **known)

    async def _end(self, action: str, offsets: Offsets | None) -> bool:
        """Commit or abort. Returns whether the result is known, so that this epoch can go on."""
        self._note(action, "invoke", offsets)
        request = EndTxnRequest(
            transactional_id=self.client.name,  # type: ignore[arg-type]
            producer_id=self._identity.producer_id,  # type: ignore[arg-type]
            producer_epoch=self._identity.epoch,  # type: ignore[arg-type]
            committed=action == "commit",
        )
        deadline_s = self.client.time() + DELIVERY_TIMEOUT_S
        is_refused = True
        while self.client.time() < deadline_s:
            try:
                error = (await self._ask(request)).error_code
                if self._check(error, "EndTxn"):
                    self._note(action, "ok", offsets)
                    self.client.acknowledged()
                    self.has_committed = action == "commit"
                    return True
                is_refused &= error in (ErrorCode.not_coordinator, ErrorCode.concurrent_transactions)
            except Disconnected:
                is_refused = False
            except Aborted:
                break
            await self.client.pause()
        else:
            is_refused = False
        self._note(action, "fail" if is_refused else "info", offsets)
        return False
