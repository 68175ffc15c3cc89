"""Produce (key 0), versions 3-13.

Checks every batch completely, and appends all its records or none. Batches of a connection reach the log in
their order, so several requests may be in flight. While a batch waits for decompression memory, its
connection accepts no other request. Version 0 is advertised as the minimum, as in Kafka, because librdkafka
looks for it. v3 adds record batches (magic 2), v5 returns the log start, v7 allows zstd (KIP-110), v8 adds
record errors (KIP-467), v9 is flexible, v10 may return new leaders (KIP-951; korvet returns none), v12 adds
KIP-890's transactions, v13 names topics by ID.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from kio.schema.errors import ErrorCode
from msgspec.structs import replace

from korvet.api.producing.batch import APPENDING, JOINING, UNPACKING, Batch
from korvet.api.producing.checks import MOST_NAMED, check_newest, check_records, locate, read_header
from korvet.api.producing.group_records import read_group_records
from korvet.api.producing.refused_batches import SENT_AGAIN, RefusedBatches
from korvet.api.producing.response import TOPIC_IDS_SINCE, PartitionAnswer, Refused, encode_response
from korvet.api.producing.transaction import add_request
from korvet.groups.shard import GroupShard
from korvet.protocol.produce_request import decode_produce
from korvet.protocol.registry import Respond, submit_api
from korvet.records.batch import BatchError
from korvet.redis.errors import OutOfOrderSequence, StorageError, StorageFault, UnknownProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from korvet.api.common.context import RequestContext
    from korvet.api.producing.response import Refusal
    from korvet.api.producing.unpacking import Unpacked
    from korvet.log.partition_log import PartitionLog
    from korvet.log.values import Appended
    from korvet.records.produce_request import ProducePartition, ProduceRequest, ProduceTopic
    from korvet.topics.directory import Place

log = logging.getLogger(__name__)

# acks: the answer waits for replicas, if the topic asks for some.
_ALL: Final = -1
# Limits the unanswered requests of one connection. A request that waits for replicas keeps no records, but it
# needs some memory.
_IN_FLIGHT: Final = 1000
# Batches of a request that begin in one turn of the event loop: it takes some 50 us to refuse one.
_AT_ONCE: Final = 500


def refuse(context: RequestContext, request: ProduceRequest, error: ErrorCode) -> Any:
    """Every partition with the error."""
    failed = {"error_code": error, "base_offset": -1, "log_append_time": None, "log_start_offset": -1}
    topics = [
        context.make(
            "TopicProduceResponse",
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=tuple(
                context.make("PartitionProduceResponse", index=data.index, record_errors=(), **failed)
                for data in topic.partitions
            ),
        )
        for topic in request.topics
    ]
    return context.make("ProduceResponse", responses=tuple(topics))


# Requests keep their order in the log, as the link to Redis does.
@submit_api(
    0,
    "Produce",
    (3, 13),
    refuse=refuse,
    advertised_min=0,
    in_flight_max=_IN_FLIGHT,
    writes_records=True,
    decode=decode_produce,
)
def produce(context: RequestContext, request: ProduceRequest, respond: Respond) -> None:
    """Append each partition's batch, and answer when all appends have ended."""
    _Produce(context, request, respond).start()


def _distinct(topics: tuple[ProduceTopic, ...]) -> tuple[ProduceTopic, ...]:
    """The topics with each partition once. The last records of a partition count, as in Kafka."""
    found: dict[tuple[str, UUID | None], tuple[ProduceTopic, dict[int, ProducePartition]]] = {}
    for topic in topics:
        _, partitions = found.setdefault((topic.name, topic.topic_id), (topic, {}))
        partitions.update([(each.index, each) for each in topic.partitions])
    return tuple([replace(topic, partitions=tuple(each.values())) for topic, each in found.values()])


def _refusal(context: RequestContext, error: Exception, *, raises: bool) -> Refusal:
    """What a batch is refused with. A defect of the broker is logged, unless a caller does that: then it is
    raised.
    """
    if isinstance(error, Refused | BatchError | StorageError):
        return error
    if raises:
        raise error
    log.error("Produce v%d of client %r failed", context.api_version, context.client_id, exc_info=error)
    return Refused(ErrorCode.unknown_server_error, "")


class _Produce(msgspec.Struct, eq=False):
    """One request: does what its batches wait for, see Batch, and answers when all of them have ended."""

    _context: RequestContext
    _request: ProduceRequest
    _respond: Respond
    _answers: list[tuple[str, UUID | None, list[PartitionAnswer]]] = []
    """By topic: its name or ID, and the answers of the batches that have begun."""
    _left: Iterator[tuple[ProduceTopic, ProducePartition, list[PartitionAnswer]]] = iter(())
    """The partitions whose batches have not begun."""
    _unended: int = 0
    """Partitions whose batches have not ended."""
    _replicating: int = 0
    """Of these, batches that Redis has, and replicas may lack."""
    _throttle_ms: int = 0
    """How long the client has to wait after the response."""
    _resume_client: Callable[[], None] | None = None
    """Makes the connection take requests again. None if it was not held back."""
    _unnamed: int = MOST_NAMED
    """Record errors (KIP-467) that the response may still list: a batch of 61 bytes may claim 1,000 bad
    records.
    """

    def start(self) -> None:
        """Begin all batches, in the order of the request."""
        topics = self._request.topics
        if len(topics) != 1 or len(topics[0].partitions) != 1:
            topics = _distinct(topics)
        left = []
        for topic in topics:
            answers: list[PartitionAnswer] = []
            self._answers.append((topic.name, topic.topic_id, answers))
            left += [(topic, partition, answers) for partition in topic.partitions]
        self._left, self._unended = iter(left), len(left)
        self._begin_next()
        if not left:
            self._answer()

    def _begin_next(self) -> None:
        """Begin batches up to the first one that has to wait for memory. After some of them, others have the
        event loop for one turn.
        """
        for begun, (topic, partition, answers) in enumerate(self._left, 1):
            batch = self._locate(topic, partition, answers)
            if batch is not None:
                try:
                    self._proceed(batch)
                except Exception as error:  # noqa: BLE001 - raised, or answered and logged
                    raises = self._resume_client is None
                    self._refuse(batch, _refusal(self._context, error, raises=raises))
                if batch.step is UNPACKING:
                    return
            if begun == _AT_ONCE:
                self._hold_back()
                asyncio.get_running_loop().call_soon(self._begin_next)
                return
        if self._resume_client is not None:
            self._resume_client()

    def _hold_back(self) -> None:
        """Let the connection take no requests until all batches have begun: these would reach the log before
        the batches that have not.
        """
        if self._resume_client is None:
            self._resume_client = self._context.client.hold_back()

    def _locate(
        self, topic: ProduceTopic, partition: ProducePartition, answers: list[PartitionAnswer]
    ) -> Batch | None:
        """The batch of a partition. None if it is refused."""
        context, request, index = self._context, self._request, partition.index
        key = topic.topic_id if context.api_version >= TOPIC_IDS_SINCE else topic.name
        place = joins = None
        try:
            place = locate(context, request, key, index)
            header = read_header(partition.records, place.policy, context.api_version)
            if header.transactional and not place.topic.internal:
                joins = add_request(request.transactional_id, place.log, header, context.api_version)
        except Exception as error:  # noqa: BLE001 - raised, or answered and logged
            answer = PartitionAnswer(index)
            answer.refuse(_refusal(context, error, raises=self._resume_client is None))
            answers.append(answer)
            self._refused(answer, key, place)
            return None
        assert partition.records is not None
        batch = Batch(index, data=partition.records, header=header, place=place, topic=key, joins=joins)
        answers.append(batch)
        return batch

    def _proceed(self, batch: Batch) -> None:
        """Do what a batch waits for. Raises what refuses it."""
        if batch.step is UNPACKING:
            self._unpack(batch)
        if batch.step is APPENDING:
            self._append(batch)
        elif batch.step is JOINING:
            assert batch.joins is not None
            # Appends keep the order of their requests, because the coordinator's replies do. A batch is
            # unpacked before: its transaction could end meanwhile, and it would open another one.
            joined = partial(self._follow, batch, batch.join, self._context.api_version)
            self._context.services.transactions.add(batch.joins, joined)

    def _follow(self, batch: Batch, event: Callable[..., None], *outcome: Any) -> None:
        """A batch that has waited may proceed, or is refused."""
        try:
            event(*outcome)
            self._proceed(batch)
        except Exception as error:  # noqa: BLE001 - answered and logged
            self._refuse(batch, _refusal(self._context, error, raises=False))

    def _unpack(self, batch: Batch) -> None:
        """Decompress a batch, at once or when there is memory for it. Raises BatchError and Refused."""
        client, services, policy = self._context.client, self._context.services, batch.place.policy
        check_newest(batch.header, policy, services.clock_ns() // 1_000_000, self._unnamed)
        most_bytes = policy.max_decompressed_message_bytes
        unpacked = services.unpacking.at_once(batch.data, batch.header, most_bytes)
        if unpacked is not None:
            batch.unpack(unpacked)
            return
        self._hold_back()
        if client.closed and self._request.acks:
            # No client waits for the answer, and the producer sends the batch again.
            raise Refused(ErrorCode.network_exception, "the client has gone")
        services.unpacking.soon(batch.data, batch.header, most_bytes, partial(self._unpacked, batch))

    def _unpacked(self, batch: Batch, outcome: Unpacked | BatchError) -> None:
        """A batch that has waited for memory is decompressed."""
        if isinstance(outcome, BatchError):
            self._refuse(batch, outcome)
        else:
            self._follow(batch, batch.unpack, outcome)
        self._begin_next()

    def _append(self, batch: Batch) -> None:
        """Append a batch to its log. Raises BatchError, Refused and StorageError."""
        context, client, header = self._context, self._context.client, batch.header
        place, refused = batch.place, client.handler_state.refused_batches
        if batch.plain is not None:
            context.unpacked_bytes += len(batch.plain)
        if place.topic.internal:
            self._apply_group_records(batch)
            return
        if refused is not None:
            if (earlier := self._after_refused(batch)) is not None:
                raise earlier
            refused.begins(place.log.state.name, header)
        if self._request.acks == _ALL and (missing := place.log.missing_replicas) is not None:
            raise missing
        now_ms = context.services.clock_ns() // 1_000_000
        waits = place.log.append(
            batch,
            header if header.producer_id >= 0 else None,
            partial(check_records, place.policy, batch, now_ms, self._unnamed),
            partial(self._appended, batch),
            followed=client.pipelines,
            is_wanted=partial(self._is_wanted, batch),
        )
        if waits:
            self._throttle(place.log)

    def _is_wanted(self, batch: Batch) -> bool:
        """False if the result of an append that waited no longer matters: the client has gone, or will send
        the batch again because an earlier one was refused.
        """
        client = self._context.client
        if client.closed and self._request.acks:
            return False
        return client.handler_state.refused_batches is None or self._after_refused(batch) is None

    def _throttle(self, log: PartitionLog) -> int:
        """Mute a client that appends more to a log than Redis's clock has offsets for, until the clock has
        caught up. Returns that time (ms).
        """
        wait_ms = log.throttle_ms
        if wait_ms:
            self._context.client.mute(wait_ms / 1000)
        return wait_ms

    def _apply_group_records(self, batch: Batch) -> None:
        """Have the group coordinator apply records produced to `__consumer_offsets`. Raises BatchError."""
        log = batch.place.log
        group_id, records = read_group_records(batch, log.partition, log.topic.partitions)

        def done(reply: Any) -> None:
            if reply.error is ErrorCode.none:
                batch.append(reply.base_offset, waits=False)
                self._end_one()
            elif reply.error is ErrorCode.non_empty_group:
                message = f"group {group_id!r} speaks the consumer protocol"
                self._refuse(batch, Refused(ErrorCode.invalid_record, message))
            else:
                message = f"the coordinator says {reply.error.name}"
                self._refuse(batch, Refused(ErrorCode.not_leader_or_follower, message))

        self._context.services.coordinator.submit(group_id, GroupShard.put, records, done)

    def _appended(self, batch: Batch, outcome: Appended | StorageError) -> None:
        """The log has the records of a batch, or none of them."""
        log = batch.place.log
        if isinstance(outcome, StorageError):
            if isinstance(outcome, UnknownProducer):
                # Java producers compare it with the offsets of their batches.
                batch.log_start = log.ends.log_start
            self._refuse(batch, outcome)
            return
        append_ms = -1
        if batch.place.policy.log_append_time and not outcome.duplicate:
            append_ms = log.state.append_time_ms(outcome)
        if outcome.lead_ms:
            self._throttle_ms = max(self._throttle_ms, self._throttle(log))
        waits = self._request.acks == _ALL and log.waits_for_replicas
        batch.append(outcome.base_offset, outcome.log_start, append_ms, waits=waits)
        if not waits:
            self._end_one()
            return
        self._replicating += 1
        self._free_stored()
        end = outcome.base_offset + batch.header.record_count
        log.await_released(end, self._request.timeout_ms, partial(self._released, batch))

    def _released(self, batch: Batch, error: StorageError | None) -> None:
        """The replicas have the records of a batch, or may lack them."""
        self._replicating -= 1
        assert 0 <= self._replicating < self._unended, f"{self._replicating} of {self._unended} replicate"
        if error is None:
            batch.release()
            self._end_one()
        else:
            self._refuse(batch, error)

    def _free_stored(self) -> None:
        """If the request waits for replicas only, drop its records, and let clients send others."""
        if self._replicating == self._unended and self._request.topics:
            self._request = replace(self._request, topics=())
            if self._context.stored is not None:
                self._context.stored()

    def _after_refused(self, batch: Batch) -> Refused | None:
        """The refusal of a batch whose producer has to send the batch before it again; None for others."""
        refused = self._context.client.handler_state.refused_batches
        if refused is None:
            return None
        error = refused.error_before(batch.place.log.state.name, batch.header)
        return None if error is None else Refused(error, "the batch before this one was refused")

    def _refuse(self, batch: Batch, refusal: Refusal) -> None:
        if isinstance(refusal, OutOfOrderSequence | StorageFault):
            # The batch before this one may have failed when this one was already on its way, or waited.
            refusal = self._after_refused(batch) or refusal
        batch.refuse(refusal)
        place, header, state = batch.place, batch.header, self._context.client.handler_state
        if batch.error in SENT_AGAIN and header.producer_id >= 0:
            if state.refused_batches is None:
                state.refused_batches = RefusedBatches()
            state.refused_batches.note(place.log.state.name, header, batch.error)
        if isinstance(refusal, StorageError):
            place.log.count_refusal(refusal)
        self._refused(batch, batch.topic, place)

    def _refused(self, answer: PartitionAnswer, topic: str | UUID | None, place: Place | None) -> None:
        """A batch has ended with an error."""
        self._unnamed = max(self._unnamed - len(answer.record_errors), 1)
        self._context.failed(answer.error, topic)
        if place is not None:
            place.log.counts.refused()
        self._end_one()

    def _end_one(self) -> None:
        """A batch has ended. Answer after the last one."""
        self._unended -= 1
        assert self._unended >= 0, f"{self._unended} batches have not ended"
        if not self._unended:
            self._answer()
        elif self._replicating:
            self._free_stored()

    def _answer(self) -> None:
        if self._request.acks:
            self._respond([encode_response(self._context.api_version, self._answers, self._throttle_ms)])
            return
        self._respond(None)
        failed = [answer for _, _, answers in self._answers for answer in answers if answer.error]
        if failed:
            # Without a response, only a closed connection makes the client ask for metadata again.
            self._context.client.close(f"Produce with acks=0 failed: {failed[0].error.name}")
