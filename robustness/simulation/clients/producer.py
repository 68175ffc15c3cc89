"""A producer without transactions: it sends the batches of each partition in order, some pipelined."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData

from robustness.history import UNKNOWN, Send
from robustness.simulation.clients import records
from robustness.simulation.clients.client import RETRIABLE, Client, Partition, Span, UnexpectedError
from robustness.simulation.clients.wire import Disconnected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from robustness.plan import ProducerPlan

# Batches of one partition that are sent before the first is answered.
IN_FLIGHT: Final = 3
# A batch that is not acknowledged in this time is given up.
DELIVERY_TIMEOUT_S: Final = 8.0
# Longer than two rounds of WAIT with the latest replica, or of WAITAOF.
PRODUCE_TIMEOUT: Final = timedelta(seconds=2.5)

# Errors that end an identity: the producer goes on with a new epoch and sequence 0.
LOST_IDENTITY: Final = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
    }
)


class Identity(NamedTuple):
    """A producer ID and its epoch."""

    producer_id: int = -1
    epoch: int = -1


class Batch:
    """Values that are sent as one batch."""

    def __init__(self, values: list[str], sequence: int, deadline_s: float) -> None:
        self.values = values
        self.sequence = sequence
        self.deadline_s = deadline_s
        self.unknown = 0
        """Attempts that may have written the batch."""


async def init_producer_id(client: Client, identity: Identity) -> Identity | None:
    """Returns a new identity of an idempotent producer; None if no broker gives one now."""
    request = InitProducerIdRequest(
        transactional_id=None,
        transaction_timeout=timedelta(seconds=60),  # type: ignore[arg-type]
        producer_id=identity.producer_id,  # type: ignore[arg-type]
        producer_epoch=identity.epoch,  # type: ignore[arg-type]
    )
    try:
        answer = await client.ask_anyone(request)
    except Disconnected:
        return None
    if answer.error_code is ErrorCode.none:
        return Identity(answer.producer_id, answer.producer_epoch)
    if answer.error_code not in RETRIABLE | LOST_IDENTITY:
        raise UnexpectedError(f"InitProducerId: {answer.error_code.name}")
    return None


def produce_request(
    partition: Partition, batch: bytes, acks: int, transactional_id: str | None = None
) -> ProduceRequest:
    """A request with one batch."""
    data = PartitionProduceData(index=partition[1], records=batch)  # type: ignore[arg-type]
    return ProduceRequest(
        transactional_id=transactional_id,  # type: ignore[arg-type]
        acks=acks,  # type: ignore[arg-type]
        timeout=PRODUCE_TIMEOUT,  # type: ignore[arg-type]
        topic_data=(TopicProduceData(name=partition[0], partition_data=(data,)),),  # type: ignore[arg-type]
    )


class Lane:
    """The batches of one partition, in order."""

    def __init__(self, producer: Producer, partition: Partition) -> None:
        self.partition = partition
        self.queue: deque[Batch] = deque()
        self.sequence = 0
        self.is_idle = True
        self._producer = producer
        self._client = producer.client

    async def work(self) -> None:
        """Send what is queued; returns when everything is acknowledged or given up."""
        self.is_idle = False
        while self.queue:
            if not await self._round():
                await self._client.pause()
        self.is_idle = True

    async def _round(self) -> bool:
        """Send the first batches. Returns whether all were acknowledged."""
        identity = await self._producer.identity_for(self)
        leader = self._client.leaders.get(self.partition)
        if identity is None or leader is None:
            await self._client.refresh([self.partition[0]])
            self._give_up_late()
            return False
        window = [self.queue[at] for at in range(min(IN_FLIGHT, len(self.queue)))]
        answers = await asyncio.gather(*(self._send(leader.host, batch, identity) for batch in window))
        taken = [self._take(batch, answer) for batch, answer in zip(window, answers, strict=True)]
        if all(taken):
            return True
        first = next(
            answer for answer in answers if answer is None or answer.error_code is not ErrorCode.none
        )
        if first is not None and first.error_code in LOST_IDENTITY:
            self._producer.give_up(self)
        else:
            await self._client.refresh([self.partition[0]])
            self._give_up_late()
        return False

    async def _send(self, host: str, batch: Batch, identity: Identity) -> Any:
        """Returns the answer for the partition; None without an answer."""
        sequence = batch.sequence if identity.producer_id >= 0 else -1
        producer = records.Producer(*identity, sequence)
        encoded = records.encode([value.encode() for value in batch.values], self._client.now_ms(), producer)
        batch.unknown += 1
        try:
            request = produce_request(self.partition, encoded, self._producer.plan.acks)
            answer = await self._client.ask(host, request)
        except Disconnected:
            return None
        return answer.responses[0].partition_responses[0]

    def _take(self, batch: Batch, answer: Any) -> bool:
        """Returns whether the batch is acknowledged, or was given up before."""
        if batch not in self.queue:
            return True
        error = None if answer is None else answer.error_code
        if error in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            self.queue.remove(batch)
            self._client.acknowledged()
            offset = answer.base_offset if error is ErrorCode.none else UNKNOWN
            for number, value in enumerate(batch.values):
                known = {} if offset < 0 else {"offset": offset + number}
                self._producer.note_send(self.partition, value, "ok", **known)
            return True
        if error is ErrorCode.not_enough_replicas:
            batch.unknown -= 1
        if error is not None and error not in RETRIABLE | LOST_IDENTITY:
            raise UnexpectedError(f"Produce to {self.partition}: {error.name}")
        return False

    def _give_up_late(self) -> None:
        if self.queue and self.queue[0].deadline_s < self._client.time():
            self._producer.give_up(self)

    def give_up(self) -> None:
        """Give up all batches that may have been sent."""
        for batch in self.queue:
            for value in batch.values:
                self._producer.note_send(self.partition, value, "info" if batch.unknown else "fail")
        self.queue.clear()
        self.sequence = 0


class Producer:
    """A plain or idempotent producer."""

    def __init__(self, client: Client, plan: ProducerPlan, partitions: Mapping[str, int]) -> None:
        self.client = client
        self.plan = plan
        self._lanes = [
            Lane(self, (topic, number)) for topic in plan.topics for number in range(partitions[topic])
        ]
        self._identity = Identity()
        self._needs_identity = plan.kind == "idempotent"
        self._numbers = 0

    async def run(self, span: Span) -> None:
        """Send for some time, then until everything is acknowledged or given up."""
        client, dice = self.client, self.client.dice
        await client.refresh(self.plan.topics)
        working: list[asyncio.Task[None]] = []
        while not client.is_over(span):
            lane = dice.one_of(self._lanes)
            self._queue(lane)
            if lane.is_idle:
                lane.is_idle = False
                working = [task for task in working if not task.done() or task.exception()]
                working.append(asyncio.create_task(lane.work()))
            await asyncio.sleep(dice.between(1, 2000) / 1000 / self.plan.rate_per_s)
        client.note_progress(span)
        await asyncio.gather(*working)
        client.close()

    def _queue(self, lane: Lane) -> None:
        values = []
        for _ in range(self.client.dice.between(1, 3)):
            self._numbers += 1
            values.append(f"{self.client.name}:{self._numbers}")
            self.note_send(lane.partition, values[-1], "invoke")
        lane.queue.append(Batch(values, lane.sequence, self.client.time() + DELIVERY_TIMEOUT_S))
        lane.sequence += len(values)

    def note_send(self, partition: Partition, value: str, type_: str, **known: int) -> None:
        """Write an event of a record."""
        topic, number = partition
        fields: dict[str, Any] = {"acks": self.plan.acks, "idempotent": self.plan.kind == "idempotent"}
        self.client.note(Send, type_, topic=topic, partition=number, value=value, **fields, **known)

    async def identity_for(self, lane: Lane) -> Identity | None:
        """Returns the identity to send with; None if there is none now."""
        if self._needs_identity:
            found = await init_producer_id(self.client, self._identity)
            if found is None:
                return None
            if self._needs_identity:
                self._identity, self._needs_identity = found, False
        return self._identity

    def give_up(self, lane: Lane) -> None:
        """Give up what may have been sent; an idempotent producer goes on with a new identity."""
        if self.plan.kind != "idempotent":
            lane.give_up()
            return
        for each in self._lanes:
            each.give_up()
        self._needs_identity = True
