"""Produce (key 0), versions 3-13.

Checks every batch completely, and appends all its records or none. Batches of a connection reach the log in
their order, so several requests may be in flight. While a batch waits for decompression memory, its
connection accepts no other request. Version 0 is advertised as the minimum, as in Kafka, because librdkafka
looks for it. v3 adds record batches (magic 2), v5 returns the log start, v7 allows zstd (KIP-110), v8 adds
record errors (KIP-467), v9 is flexible, v10 may return new leaders (KIP-951; korvet returns none), v12 adds
KIP-890's transactions, v13 names topics by ID.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.api.producing.checks import MOST_NAMED, Refused, check_newest, check_records, read_header
from korvet.api.producing.destination import distinct, locate
from korvet.api.producing.group_records import read_group_records
from korvet.api.producing.refused_batches import SENT_AGAIN, RefusedBatches
from korvet.api.producing.response import PartitionAnswer, encode_response
from korvet.api.producing.transaction import add_request, check_reply
from korvet.groups.shard import GroupShard
from korvet.protocol.produce_request import decode_produce
from korvet.protocol.registry import Respond, submit_api
from korvet.records.batch import BatchError
from korvet.storage.errors import OutOfOrderSequence, StorageError, StorageFault, UnknownProducer
from korvet.storage.log.values import Appended, ProducerSequence, ReceivedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from korvet.api.common.context import RequestContext
    from korvet.api.producing.unpacking import Unpacked
    from korvet.records.batch import BatchHeader, BytesLike
    from korvet.records.produce_request import ProduceRequest, ProduceTopic
    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.log.values import Summary
    from korvet.topics.configs import TopicPolicy
    from korvet.topics.directory import Place
    from korvet.transactions.messages import AddRequest

log = logging.getLogger(__name__)

# acks: the answer waits for replicas, if the topic asks for some.
_ALL: Final = -1
# Limits the unanswered requests of one connection. A request that waits for replicas keeps no records, but it
# needs some memory.
_IN_FLIGHT: Final = 1000


class _PartitionAppend(PartitionAnswer):
    """The append of one partition's batch, and its answer, which is filled in when the append has ended."""

    records: BytesLike | None = None
    place: Place | None = None
    header: BatchHeader | None = None
    unpacked: Unpacked | None = None
    """The decompressed records of a compressed batch, until the append has ended."""

    def refuse(self, refusal: Refused | BatchError | StorageError) -> None:
        """End the append with an error."""
        if isinstance(refusal, Refused):
            self.error = refusal.error
            self.record_errors = refusal.records
        else:
            self.error = error_code_of(refusal)
        self.message = str(refusal) or None
        self.release()

    def release(self) -> None:
        """Give back the memory of the decompressed records."""
        if self.unpacked is not None:
            self.unpacked.release()
            self.unpacked = None


def refuse(context: RequestContext, request: ProduceRequest, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = []
    for topic in request.topics:
        partitions = tuple(
            context.make(
                "PartitionProduceResponse",
                index=data.index,
                error_code=error,
                base_offset=-1,
                log_append_time=None,
                log_start_offset=-1,
                record_errors=(),
            )
            for data in topic.partitions
        )
        topics.append(
            context.make(
                "TopicProduceResponse",
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=partitions,
            )
        )
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


class _Produce(msgspec.Struct, eq=False):
    """One request in progress."""

    _context: RequestContext
    _request: ProduceRequest
    _respond: Respond
    _answers: list[tuple[ProduceTopic, list[_PartitionAppend]]] = []
    _pending: int = 1
    """Appends in progress, and one for the request itself, so that nothing is answered before all appends
    have begun.
    """
    _awaiting: int = 0
    """Of these, the appends that Redis has answered, and replicas have not."""
    _left: Iterator[tuple[ProduceTopic, _PartitionAppend]] = iter(())
    """The appends that have not begun."""
    _throttle_ms: int = 0
    """How long the client has to wait after the response."""
    _resume_client: Callable[[], None] | None = None
    """Makes the connection take requests again. None if it was not held back."""
    _unnamed: int = MOST_NAMED
    """How many bad records the next refusal may name: a batch of 61 bytes may claim 1,000 of them."""

    def start(self) -> None:
        """Begin all appends, in the order of the request."""
        left = []
        topics = self._request.topics
        if len(topics) > 1 or (topics and len(topics[0].partitions) > 1):
            topics = distinct(topics)
        for topic in topics:
            appends = []
            for data in topic.partitions:
                append = _PartitionAppend(data.index, records=data.records)
                appends.append(append)
                left.append((topic, append))
            self._answers.append((topic, appends))
        self._left = iter(left)
        self._begin_next()

    def _begin_next(self) -> None:
        """Begin appends up to the first one whose batch has to wait for memory."""
        for topic, append in self._left:
            try:
                if not self._begin(topic, append):
                    return
            except (Refused, BatchError) as refusal:
                self._refuse(append, refusal)
            except Exception:
                append.release()
                if self._resume_client is None:
                    raise
                self._fail(append)
        if self._resume_client is not None:
            self._resume_client()
        self._end_one()

    def _begin(self, topic: ProduceTopic, append: _PartitionAppend) -> bool:
        """Begin one append. Returns False if it has to wait; `_begin_next` is called after that. Raises
        BatchError and Refused.
        """
        context = self._context
        place = append.place = locate(context, self._request, topic, append.index)
        header = append.header = read_header(append.records, place.policy, context.api_version)
        added = None
        if header.transactional and not place.topic.internal:
            added = add_request(self._request.transactional_id, place.log, header, context.api_version)
        if header.codec and not self._unpack_at_once(append, place, header):
            self._begin_later(append, added)
            return False
        if added is None:
            self._append(append)
            return True
        # Appends keep the order of their requests, because the coordinator's replies do.
        self._pending += 1
        try:
            context.services.transactions.add(added, lambda reply: self._in_transaction(reply, append))
        except Exception:
            self._pending -= 1
            raise
        return True

    def _now_ms(self) -> int:
        return self._context.services.clock_ns() // 1_000_000

    def _unpack_at_once(self, append: _PartitionAppend, place: Place, header: BatchHeader) -> bool:
        """Whether a compressed batch was decompressed now. Raises BatchError and Refused."""
        assert append.records is not None
        check_newest(header, place.policy, self._now_ms(), self._unnamed)
        most_bytes = place.policy.max_decompressed_message_bytes
        append.unpacked = self._context.services.unpacking.at_once(append.records, header, most_bytes)
        return append.unpacked is not None

    def _begin_later(self, append: _PartitionAppend, added: AddRequest | None) -> None:
        """Decompress a batch once there is memory for it, and append it if it is in its transaction.

        The connection takes no requests until then, because these would reach the log before this one.
        """
        if self._resume_client is None:
            self._resume_client = self._context.client.hold_back()
        place, header, records = append.place, append.header, append.records
        assert place is not None
        assert header is not None
        assert records is not None

        def unpacked(outcome: Unpacked | BatchError) -> None:
            def append_unpacked() -> None:
                if isinstance(outcome, BatchError):
                    raise outcome
                append.unpacked = outcome
                if added is None:
                    self._append(append)
                else:
                    self._context.services.transactions.add(added, partial(self._added_unpacked, append))

            self._continue(append, append_unpacked, self._begin_next if added is None else _wait)

        if self._context.client.closed and self._request.acks:
            # No client waits for the answer, and the producer sends the batch again.
            self._refuse(append, Refused(ErrorCode.network_exception, "the client has gone"))
            self._begin_next()
            return
        most_bytes = place.policy.max_decompressed_message_bytes
        self._context.services.unpacking.soon(records, header, most_bytes, unpacked)

    def _added_unpacked(self, append: _PartitionAppend, reply: Any) -> None:
        """The transaction coordinator has replied: append a decompressed batch, or refuse it. Later the
        transaction could have ended, and the batch would open another one that nobody ends.
        """

        def append_added() -> None:
            check_reply(reply, self._context.api_version)
            self._append(append)

        self._continue(append, append_added, self._begin_next)

    def _continue(self, append: _PartitionAppend, step: Callable[[], None], then: Callable[[], None]) -> None:
        """Continue with a batch that has waited: `step`, and `then` if that succeeds. If `step` fails, the
        batch is refused and the next one begins.
        """
        try:
            step()
        except (Refused, BatchError) as refusal:
            self._refuse(append, refusal)
            self._begin_next()
        except Exception:  # noqa: BLE001 - answered and logged
            self._fail(append)
            self._begin_next()
        else:
            then()

    def _fail(self, append: _PartitionAppend) -> None:
        """Refuse a batch because of a defect of the broker, which no caller is left to log."""
        log.exception("Produce v%d of client %r failed", self._context.api_version, self._context.client_id)
        self._refuse(append, Refused(ErrorCode.unknown_server_error, ""))

    def _append(self, append: _PartitionAppend) -> None:
        """Begin the append of a batch to its log. Raises BatchError and Refused."""
        place, header, unpacked = append.place, append.header, append.unpacked
        assert place is not None
        assert header is not None
        assert append.records is not None
        received = ReceivedBatch(append.records, header, None if unpacked is None else unpacked.plain)
        if unpacked is not None:
            self._context.unpacked_bytes += len(unpacked.plain)
        if place.topic.internal:
            self._apply_group_records(place.log, received, append)
            return
        if (refused := self._context.client.refused_batches) is not None:
            if (earlier := self._after_refused(append)) is not None:
                self._refuse(append, earlier)
                return
            refused.begins(place.log.state.name, header)
        if self._request.acks == _ALL and (refusal := place.log.missing_replicas) is not None:
            self._refuse(append, refusal)
            return
        producer = None
        if header.producer_id >= 0:
            producer = ProducerSequence(
                header.producer_id, header.producer_epoch, header.base_sequence, header.transactional
            )
        waits = place.log.append(
            received,
            producer,
            partial(self._check_records, place.policy, received),
            partial(self._appended, append, place.policy),
            followed=self._context.client.pipelines,
            is_wanted=partial(self._is_wanted, append),
        )
        self._pending += 1
        if waits:
            self._throttle(place.log)

    def _is_wanted(self, append: _PartitionAppend) -> bool:
        """Whether an append that waited is still due: a producer that has gone sends its batch again, and so
        does one whose batch before this one was refused.
        """
        client = self._context.client
        return (not client.closed or self._request.acks == 0) and self._after_refused(append) is None

    def _throttle(self, log: PartitionLog) -> int:
        """Take no requests of a client that appends more to a log than Redis's clock has offsets for, until
        the clock has caught up. Returns that time (ms).
        """
        wait_ms = log.throttle_ms
        if wait_ms:
            self._context.client.mute(wait_ms / 1000)
        return wait_ms

    def _check_records(self, policy: TopicPolicy, received: ReceivedBatch, summary: Summary) -> None:
        check_records(policy, received, summary, self._now_ms(), self._unnamed)

    def _in_transaction(self, reply: Any, append: _PartitionAppend) -> None:
        """The transaction coordinator has replied: append the batch, or refuse it."""
        try:
            check_reply(reply, self._context.api_version)
            self._append(append)
        except (Refused, BatchError) as refusal:
            self._refuse(append, refusal)
        except Exception:  # noqa: BLE001 - answered and logged
            self._fail(append)
        self._end_one()

    def _apply_group_records(
        self, log: PartitionLog, received: ReceivedBatch, append: _PartitionAppend
    ) -> None:
        """Have the group coordinator apply records produced to `__consumer_offsets`. Raises BatchError."""
        group_id, records = read_group_records(received, log.partition, log.topic.partitions)
        self._pending += 1

        def done(reply: Any) -> None:
            append.base_offset = reply.base_offset
            if reply.error is ErrorCode.non_empty_group:
                message = f"group {group_id!r} speaks the consumer protocol"
                self._refuse(append, Refused(ErrorCode.invalid_record, message))
            elif reply.error is not ErrorCode.none:
                message = f"the coordinator says {reply.error.name}"
                self._refuse(append, Refused(ErrorCode.not_leader_or_follower, message))
            append.release()
            self._end_one()

        self._context.services.coordinator.submit(group_id, GroupShard.put, records, done)

    def _appended(
        self, append: _PartitionAppend, policy: TopicPolicy, outcome: Appended | StorageError
    ) -> None:
        if isinstance(outcome, StorageError):
            self._refuse(append, outcome)
            if isinstance(outcome, UnknownProducer):
                # Java producers compare it with the offsets of their batches.
                assert append.place is not None
                append.log_start = append.place.log.log_start
        else:
            append.base_offset = outcome.base_offset
            append.log_start = outcome.log_start
            assert append.place is not None
            appended_to = append.place.log
            if policy.log_append_time and not outcome.duplicate:
                append.append_ms = appended_to.state.append_time_ms(outcome)
            if append.unpacked is not None:
                append.release()
            if outcome.lead_ms:
                self._throttle_ms = max(self._throttle_ms, self._throttle(appended_to))
            if self._request.acks == _ALL and appended_to.waits_for_replicas:
                assert append.header is not None
                end = outcome.base_offset + append.header.record_count
                append.records = None
                self._awaiting += 1
                self._look_stored()
                appended_to.await_released(end, self._request.timeout_ms, partial(self._released, append))
                return
        self._end_one()

    def _released(self, append: _PartitionAppend, error: StorageError | None) -> None:
        """The replicas have the records, or may lack them."""
        self._awaiting -= 1
        if error is not None:
            self._refuse(append, error)
        self._end_one()

    def _look_stored(self) -> None:
        """If the request waits for replicas only, drop its records, and let clients send others."""
        if self._awaiting < self._pending or not self._request.topics:
            return
        replace = msgspec.structs.replace
        self._request = replace(self._request, topics=())
        self._answers = [(replace(topic, partitions=()), appends) for topic, appends in self._answers]
        if self._context.stored is not None:
            self._context.stored()

    def _after_refused(self, append: _PartitionAppend) -> Refused | None:
        """The refusal of a batch whose producer has to send the batch before it again; None for others."""
        refused = self._context.client.refused_batches
        if refused is None or append.place is None or append.header is None:
            return None
        error = refused.error_before(append.place.log.state.name, append.header)
        return None if error is None else Refused(error, "the batch before this one was refused")

    def _refuse(self, append: _PartitionAppend, refusal: Refused | BatchError | StorageError) -> None:
        if isinstance(refusal, OutOfOrderSequence | StorageFault):
            # The batch before this one may have failed when this one was already on its way, or waited.
            refusal = self._after_refused(append) or refusal
        append.refuse(refusal)
        self._unnamed = max(self._unnamed - len(append.record_errors), 1)
        if append.error in SENT_AGAIN:
            self._note_refused(append)
        self._context.failed(append.error, None if self._context.trace is None else self._topic_of(append))
        if append.place is not None:
            append.place.log.state.counts.refused()
            if isinstance(refusal, StorageError):
                append.place.log.count_refusal(refusal)

    def _note_refused(self, append: _PartitionAppend) -> None:
        """Note a refused batch that the client will send again, if it has an idempotent producer."""
        client, place, header = self._context.client, append.place, append.header
        if place is None or header is None or header.producer_id < 0:
            return
        if client.refused_batches is None:
            client.refused_batches = RefusedBatches()
        client.refused_batches.note(place.log.state.name, header, append.error)

    def _topic_of(self, append: _PartitionAppend) -> str | UUID | None:
        """The topic of an append, as the request names it."""
        topics = (topic for topic, appends in self._answers if any(each is append for each in appends))
        return next((topic.name or topic.topic_id for topic in topics), None)

    def _end_one(self) -> None:
        """One append has ended, or the request has begun all of them. Answer after the last one."""
        self._pending -= 1
        if self._pending:
            if self._awaiting:
                self._look_stored()
            return
        if self._request.acks == 0:
            self._respond(None)
            failed = [append for _, appends in self._answers for append in appends if append.error]
            if failed:
                # Without a response, only a closed connection makes the client ask for metadata again.
                self._context.client.close(f"Produce with acks=0 failed: {failed[0].error.name}")
        else:
            self._respond([encode_response(self._context.api_version, self._answers, self._throttle_ms)])


def _wait() -> None:
    """Begin nothing: `_added_unpacked` goes on when the coordinator has replied."""
