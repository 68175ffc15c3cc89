"""Produce (key 0), versions 3-13.

Checks every batch completely, and appends all its records or none. Batches of a connection reach the log in
their order, so several requests may be in flight. While a batch waits for decompression memory, its
connection accepts no other request. Version 0 is advertised as the minimum, as in Kafka, because librdkafka
looks for it. v3 adds record batches (magic 2), v5 returns the log start, v7 allows zstd (KIP-110), v8 adds
record errors (KIP-467), v9 is flexible, v10 returns new leaders (KIP-951), v12 adds KIP-890's transactions,
v13 names topics by ID.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.api.common.produced_offsets import read_put
from korvet.api.producing.response import PartitionAnswer, RecordError, encode_response
from korvet.groups.shard import GroupShard
from korvet.offsets.record_batch import NO_TIMESTAMP, ZSTD
from korvet.protocol.produce_request import decode_produce
from korvet.protocol.registry import Respond, submit_api
from korvet.records import kernel
from korvet.records.batch import BatchError
from korvet.security.acls import Operation, ResourceType
from korvet.storage.errors import StorageError
from korvet.storage.keys import OFFSETS_TOPIC
from korvet.storage.log.values import Appended, ProducerSequence, ReceivedBatch
from korvet.transactions.messages import BUMPING_PROTOCOL, AddRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from korvet.api.common.context import RequestContext
    from korvet.api.producing.unpacking import Unpacked
    from korvet.protocol.produce_request import ProduceRequest, ProduceTopic
    from korvet.records.batch import BatchHeader, BytesLike
    from korvet.security.authorizer import Access
    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.log.values import Summary
    from korvet.topics.configs import TopicPolicy
    from korvet.topics.directory import Place

log = logging.getLogger(__name__)

_TOPIC_IDS_SINCE: Final = 13
_ZSTD_SINCE: Final = 7
_ABORTABLE_SINCE: Final = 11
_ADDS_SINCE: Final = 12
# The coordinator will answer soon, or another one.
_PASSING: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
_ACKS: Final = (-1, 0, 1)
# A create time this far before 1970 or beyond has no exact place beside an entry's milliseconds in a script.
_TIMESTAMP_BOUND_MS: Final = 2**52
# Redis adds a batch's entries in one go, 1 to 4 us each, and serves nobody else meanwhile. Producers hardly
# ever have so many records in a batch: librdkafka 10,000, most others 1 MB before compression.
_MOST_COMPRESSED_RECORDS: Final = 75_000
# The most bad records that a refusal names. If a client leaves these out, the next refusal names others.
_MOST_NAMED: Final = 1000


class _Refused(Exception):
    """A partition's data that is not appended, with the error and the text for the client."""

    def __init__(self, error: ErrorCode, message: str, records: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.error = error
        self.records = records
        """The bad ones; empty if the whole batch is bad."""


class _Part(PartitionAnswer):
    """One partition's batch and its answer, which is filled in when the append is over."""

    records: BytesLike | None = None
    place: Place | None = None
    header: BatchHeader | None = None
    unpacked: Unpacked | None = None
    """The decompressed records of a compressed batch, until the append is over."""

    def refuse(self, refusal: _Refused | BatchError | StorageError) -> None:
        """It is not appended."""
        if isinstance(refusal, _Refused):
            self.error = refusal.error
            self.record_errors = refusal.records
        else:
            self.error = error_code_of(refusal)
        self.message = str(refusal) or None
        self.release()

    def release(self) -> None:
        """The records are not needed any more."""
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


# Requests keep their order in the log, as the link to Redis does. Their bytes, not their number, are limited.
@submit_api(
    0,
    "Produce",
    (3, 13),
    refuse=refuse,
    advertised_min=0,
    in_flight_max=sys.maxsize,
    writes_records=True,
    decode=decode_produce,
)
def produce(context: RequestContext, request: ProduceRequest, respond: Respond) -> None:
    """Append each partition's batch and answer when all are decided."""
    _Produce(context, request, respond).start()


class _Produce(msgspec.Struct, eq=False):
    """One request at work."""

    _context: RequestContext
    _request: ProduceRequest
    _respond: Respond
    _answers: list[tuple[ProduceTopic, list[_Part]]] = []
    _pending: int = 1
    """Appends on their way, and one for the request itself, so that nothing is answered before all of them
    are.
    """
    _parts: Iterator[tuple[ProduceTopic, _Part]] = iter(())
    """Topic and partition of what is yet to be begun."""
    _let_go: Callable[[], None] | None = None
    """Has the connection take requests again."""

    def start(self) -> None:
        """Begin all appends, in the request's order."""
        self._parts = self._each_part()
        self._go_on()

    def _each_part(self) -> Iterator[tuple[ProduceTopic, _Part]]:
        for topic in self._request.topics:
            parts: list[_Part] = []
            self._answers.append((topic, parts))
            for data in topic.partitions:
                part = _Part(data.index, records=data.records)
                parts.append(part)
                yield topic, part

    def _go_on(self) -> None:
        """Begin appends up to the first one whose batch has to wait for memory."""
        for topic, part in self._parts:
            try:
                if not self._begin(topic, part):
                    return
            except (_Refused, BatchError) as refusal:
                part.refuse(refusal)
            except Exception:
                part.release()
                if self._let_go is None:
                    raise
                self._failed(part)
        if self._let_go is not None:
            self._let_go()
        self._finished()

    def _begin(self, topic: ProduceTopic, part: _Part) -> bool:
        """Begin one append; False if it has to wait: `_go_on` is called after that. Raises BatchError and
        _Refused.
        """
        place = part.place = self._locate(topic, part.index)
        header = part.header = self._read_header(part.records, place)
        asked = None
        if header.transactional and not place.topic.internal:
            asked = self._transaction_of(place.log, header)
        if header.codec and not self._unpack_at_once(part, place, header):
            self._begin_later(part, asked)
            return False
        if asked is None:
            self._append(part)
            return True
        # Appends keep the order of their requests, since these replies do.
        self._pending += 1
        self._context.services.transactions.add(asked, lambda reply: self._in_transaction(reply, part))
        return True

    def _unpack_at_once(self, part: _Part, place: Place, header: BatchHeader) -> bool:
        """Whether a compressed batch is decompressed now. Raises BatchError and _Refused."""
        assert part.records is not None
        self._check_newest(header, place.policy)
        most_bytes = place.policy.max_decompressed_bytes
        part.unpacked = self._context.services.unpacking.at_once(part.records, header, most_bytes)
        return part.unpacked is not None

    def _begin_later(self, part: _Part, asked: AddRequest | None) -> None:
        """Have a batch decompressed and appended once there is room for it, and its transaction is known.

        The connection takes no requests meanwhile, as they would get into the log before this.
        """
        if self._let_go is None:
            self._let_go = self._context.client.hold_back()
        if asked is None:
            self._unpack(part)
            return

        def answered(reply: Any) -> None:
            self._continue(part, lambda: self._check_transaction(reply), lambda: self._unpack(part))

        self._context.services.transactions.add(asked, answered)

    def _unpack(self, part: _Part) -> None:
        place, header, records = part.place, part.header, part.records
        assert place is not None
        assert header is not None
        assert records is not None

        def unpacked(outcome: Unpacked | BatchError) -> None:
            def append() -> None:
                if isinstance(outcome, BatchError):
                    raise outcome
                part.unpacked = outcome
                self._append(part)

            self._continue(part, append, self._go_on)

        if self._context.client.closed and self._request.acks:
            # Nobody waits for the answer, and the producer sends the batch again.
            self._continue(part, _gone, self._go_on)
            return
        most_bytes = place.policy.max_decompressed_bytes
        self._context.services.unpacking.soon(records, header, most_bytes, unpacked)

    def _continue(self, part: _Part, step: Callable[[], None], then: Callable[[], None]) -> None:
        """Go on with a batch that has waited, or with the next one if this one is refused."""
        try:
            step()
        except (_Refused, BatchError) as refusal:
            part.refuse(refusal)
            self._go_on()
        except Exception:  # noqa: BLE001 - answered and logged
            self._failed(part)
            self._go_on()
        else:
            then()

    def _failed(self, part: _Part) -> None:
        """A defect of the broker, after which no caller is left that could log it."""
        log.exception("Produce v%d of client %r failed", self._context.api_version, self._context.client_id)
        part.refuse(_Refused(ErrorCode.unknown_server_error, ""))

    def _append(self, part: _Part) -> None:
        """Begin the append of a batch. Raises BatchError and _Refused."""
        place, header, unpacked = part.place, part.header, part.unpacked
        assert place is not None
        assert header is not None
        assert part.records is not None
        received = ReceivedBatch(part.records, header, None if unpacked is None else unpacked.plain)
        if unpacked is not None:
            self._context.unpacked_bytes += len(unpacked.plain)
        if place.topic.internal:
            self._put(place.log, received, part)
            return
        producer = None
        if header.producer_id >= 0:
            producer = ProducerSequence(
                header.producer_id, header.producer_epoch, header.base_sequence, header.transactional
            )
        place.log.append(
            received,
            producer,
            partial(self._check_records, place, received),
            partial(self._appended, part, place.policy),
            followed=self._context.client.pipelines,
        )
        self._pending += 1

    def _transaction_of(self, log: PartitionLog, header: BatchHeader) -> AddRequest:
        """What the coordinator is asked: whether the partition is in the transaction, or from v12 on to add
        it (KIP-890). Raises _Refused.
        """
        transactional_id = self._request.transactional_id
        if transactional_id is None:
            raise _Refused(
                ErrorCode.transactional_id_authorization_failed, "the batch is of no transactional producer"
            )
        if header.producer_id < 0:
            raise _Refused(ErrorCode.invalid_record, "a transaction needs a producer id")
        adds = self._context.api_version >= _ADDS_SINCE
        return AddRequest(
            transactional_id,
            header.producer_id,
            header.producer_epoch,
            frozenset({(log.topic.name, log.partition)}),
            BUMPING_PROTOCOL if adds else 0,
            verify_only=not adds,
        )

    def _check_transaction(self, reply: Any) -> None:
        """Take the coordinator's answer. Raises _Refused if the partition is in no transaction."""
        error = reply.error
        if error is ErrorCode.none and reply.absent:
            error = ErrorCode.transaction_abortable
        if error is not ErrorCode.none:
            raise _Refused(
                _transaction_error(error, self._context.api_version),
                "the partition is in no transaction of this producer",
            )

    def _in_transaction(self, reply: Any, part: _Part) -> None:
        """The coordinator's answer is there: go on, or not."""
        try:
            self._check_transaction(reply)
            self._append(part)
        except (_Refused, BatchError) as refusal:
            part.refuse(refusal)
        self._finished()

    def _put(self, log: PartitionLog, received: ReceivedBatch, part: _Part) -> None:
        """Have the groups' coordinator apply records of its own log. Raises BatchError."""
        group_id, put = read_put(received, log.partition, log.topic.partitions)
        self._pending += 1

        def done(reply: Any) -> None:
            part.base_offset = reply.base_offset
            if reply.error is ErrorCode.non_empty_group:
                part.refuse(
                    _Refused(ErrorCode.invalid_record, f"group {group_id!r} speaks the consumer protocol")
                )
            elif reply.error is not ErrorCode.none:
                part.refuse(
                    _Refused(ErrorCode.not_leader_or_follower, f"the coordinator says {reply.error.name}")
                )
            part.release()
            self._finished()

        self._context.services.coordinator.submit(group_id, GroupShard.put, put, done)

    def _appended(self, part: _Part, policy: TopicPolicy, outcome: Appended | StorageError) -> None:
        if isinstance(outcome, StorageError):
            part.refuse(outcome)
        else:
            part.base_offset = outcome.base_offset
            part.log_start = outcome.log_start
            if policy.log_append_time and not outcome.duplicate:
                part.append_ms = outcome.append_ms
            if part.unpacked is not None:
                part.release()
        self._finished()

    def _locate(self, topic: ProduceTopic, index: int) -> Place:
        """Where the batch of a partition goes. Raises _Refused."""
        context, acks = self._context, self._request.acks
        if acks not in _ACKS:
            raise _Refused(ErrorCode.invalid_required_acks, f"acks of {acks} is none of -1, 0 and 1")
        key = topic.topic_id if context.api_version >= _TOPIC_IDS_SINCE else topic.name
        topics = context.services.topics
        place = topics.place(key, index)
        if context.client.access is not None:
            found = topics.find(key) if place is None else place.topic
            self._authorize(context.client.access, key if found is None else found.name)
        if place is None:
            raise self._absent(key)
        name = place.topic.name
        writable = name == OFFSETS_TOPIC and context.services.config.offsets_topic_writable
        if (place.topic.internal and not writable) or place.is_alias:
            raise _Refused(ErrorCode.invalid_topic_exception, f"{name} is written by the broker only")
        return place

    def _authorize(self, access: Access, name: str | UUID | None) -> None:
        """Raises _Refused unless the client may write to the topic, where that has a name, and in the
        request's transaction.
        """
        transactional_id, kind = self._request.transactional_id, ResourceType.TRANSACTIONAL_ID
        if transactional_id is not None and not access.allows(Operation.WRITE, kind, transactional_id):
            raise _Refused(ErrorCode.transactional_id_authorization_failed, "")
        if isinstance(name, str) and not access.allows(Operation.WRITE, ResourceType.TOPIC, name):
            raise _Refused(ErrorCode.topic_authorization_failed, "")

    def _absent(self, key: str | UUID | None) -> _Refused:
        """What a partition that does not exist is refused with."""
        topics = self._context.services.topics
        found = topics.find(key)
        if found is None:
            topics.missed()
            by_name = isinstance(key, str)
            error = ErrorCode.unknown_topic_or_partition if by_name else ErrorCode.unknown_topic_id
            return _Refused(error, "this server does not host this topic")
        return _Refused(
            ErrorCode.unknown_topic_or_partition, f"{found.name} has {found.partitions} partition(s)"
        )

    def _read_header(self, records: BytesLike | None, place: Place) -> BatchHeader:
        """The header of a partition's one batch. Raises BatchError and _Refused for a bad one."""
        policy = place.policy
        if not records:
            raise _Refused(ErrorCode.invalid_record, "the partition has no record batch")
        if len(records) > policy.max_message_bytes:
            raise _Refused(
                ErrorCode.message_too_large,
                f"a batch of {len(records)} bytes exceeds max.message.bytes {policy.max_message_bytes}",
            )
        header = kernel.parse_batch(records, 0)
        if header.size != len(records):
            raise _Refused(ErrorCode.invalid_record, "a partition has to have exactly one record batch")
        if header.control:
            raise _Refused(ErrorCode.invalid_record, "clients must not write control records")
        if header.codec == ZSTD and self._context.api_version < _ZSTD_SINCE:
            raise _Refused(
                ErrorCode.unsupported_compression_type, f"zstd needs Produce v{_ZSTD_SINCE} (KIP-110)"
            )
        if header.codec and header.record_count > _MOST_COMPRESSED_RECORDS:
            raise _Refused(
                ErrorCode.message_too_large,
                f"a compressed batch of {header.record_count} records exceeds {_MOST_COMPRESSED_RECORDS}",
            )
        return header

    def _times(self, policy: TopicPolicy) -> tuple[int, int]:
        """The earliest and the latest create time (ms) that a record may have."""
        now_ms = self._context.services.clock_ns() // 1_000_000
        return (
            max(now_ms - policy.timestamp_before_max_ms, -_TIMESTAMP_BOUND_MS),
            min(now_ms + policy.timestamp_after_max_ms, _TIMESTAMP_BOUND_MS),
        )

    def _check_newest(self, header: BatchHeader, policy: TopicPolicy) -> None:
        """Raises _Refused if the header shows that all records are too old."""
        newest_ms = header.max_timestamp_ms
        if policy.log_append_time or newest_ms == NO_TIMESTAMP:
            return
        earliest, _ = self._times(policy)
        if newest_ms < earliest:
            named = range(min(header.record_count, _MOST_NAMED))
            message = f"{newest_ms}, the newest timestamp of the batch, is before {earliest}"
            raise _Refused(
                ErrorCode.invalid_timestamp, message, [RecordError(index, message) for index in named]
            )

    def _check_records(self, place: Place, received: ReceivedBatch, summary: Summary) -> None:
        """Raises _Refused if a record has a timestamp out of range or lacks its key; it names the bad
        records.
        """
        policy = place.policy
        earliest, latest = -(2**63), 2**63 - 1
        oldest_ms = summary.min_timestamp_ms
        in_time = True
        if not policy.log_append_time:
            earliest, latest = self._times(policy)
            # -1 is "no timestamp", which Kafka lets pass.
            in_time = summary.max_timestamp_ms <= latest and (
                oldest_ms >= earliest or oldest_ms == NO_TIMESTAMP
            )
        keyed = policy.compacts
        if in_time and not (keyed and summary.keyless_count):
            return
        bad = kernel.find_invalid(
            received.data, 0, received.header, received.plain, earliest, latest, keyed, _MOST_NAMED
        )
        errors = [
            RecordError(index, "a compacted topic takes no records without a key")
            if keyless
            else RecordError(index, _out_of_range(timestamp_ms, earliest, latest))
            for index, timestamp_ms, keyless in bad
        ]
        if in_time:
            raise _Refused(
                ErrorCode.invalid_record, "a compacted topic takes no records without a key", errors
            )
        raise _Refused(
            ErrorCode.invalid_timestamp,
            f"timestamps from {oldest_ms} to {summary.max_timestamp_ms} are outside {earliest} to {latest}",
            errors,
        )

    def _finished(self) -> None:
        self._pending -= 1
        if self._pending:
            return
        if self._request.acks == 0:
            self._respond(None)
            failed = [part for _, parts in self._answers for part in parts if part.error]
            if failed:
                # Without a response this is all that makes the client ask for metadata again.
                self._context.client.close(f"Produce with acks=0 failed: {failed[0].error.name}")
        else:
            self._respond([encode_response(self._context.api_version, self._answers)])


def _transaction_error(error: ErrorCode, version: int) -> ErrorCode:
    """What producers of a version make the right thing of, as Kafka has it: those before v12 are told
    NOT_ENOUGH_REPLICAS where they are to try again.
    """
    if error in _PASSING or (error is ErrorCode.concurrent_transactions and version < _ADDS_SINCE):
        return ErrorCode.not_enough_replicas
    if error is ErrorCode.transaction_abortable and version < _ABORTABLE_SINCE:
        return ErrorCode.invalid_txn_state
    return ErrorCode.invalid_producer_epoch if error is ErrorCode.producer_fenced else error


def _out_of_range(timestamp_ms: int, earliest_ms: int, latest_ms: int) -> str:
    return f"the timestamp {timestamp_ms} is outside {earliest_ms} to {latest_ms}"


def _gone() -> None:
    raise _Refused(ErrorCode.network_exception, "the client has gone")
