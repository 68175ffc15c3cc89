"""Produce (key 0), versions 3-13; 0 is advertised as the minimum, as Kafka does, because librdkafka looks for
it.

v3 has record batches (magic 2), v5 answers the log start, v7 allows zstd (KIP-110), v8 record errors
(KIP-467), v9 is flexible, v10 tells new leaders (KIP-951), v12 brings KIP-890's transactions, v13 names
topics by id. Every batch is checked whole, and all its records are appended or none. Batches of a connection
reach the log in the order they came in, so several requests may be at work.
"""

from __future__ import annotations

import struct
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from kio.schema.errors import ErrorCode

from korvet.api.errors import error_code_of
from korvet.api.put import read_put
from korvet.coordinator.service import OFFSETS_TOPIC
from korvet.groups.shard import GroupShard
from korvet.protocol.primitives import length, string, uuid_bytes
from korvet.protocol.registry import Respond, submit_api
from korvet.records import kernel
from korvet.records.batch import AppendArguments, AppendCommands, BatchError
from korvet.records.compression import decompress
from korvet.security.acls import Operation, ResourceType
from korvet.storage.errors import StorageError
from korvet.storage.log import Appended, PartitionLog, ProducerStamp, ReceivedBatch
from korvet.transactions.messages import BUMPING_PROTOCOL, AddRequest

if TYPE_CHECKING:
    from uuid import UUID

    from korvet.api.context import RequestContext
    from korvet.security.authorizer import Access
    from korvet.topics.configs import TopicPolicy
    from korvet.topics.directory import Place

_TOPIC_IDS_SINCE: Final = 13
_LOG_START_SINCE: Final = 5
_ZSTD_SINCE: Final = 7
_RECORD_ERRORS_SINCE: Final = 8
_FLEXIBLE_SINCE: Final = 9
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
# Index, error code, base offset, append time and log start, the last of which versions before 5 do not have.
_PARTITION: Final = struct.Struct(">ihqqq")
_BYTES_WITHOUT_START: Final = 22
# Of responses that are alike, one version and topic each.
_REMEMBERED_HEADS: Final = 1024
_NO_THROTTLE: Final = b"\x00\x00\x00\x00"
# Where the records of a batch begin (RecordBatch, magic 2).
_RECORDS_AT: Final = 61
_ACKS: Final = (-1, 0, 1)
_ZSTD: Final = 4
# A create time this far before 1970 or beyond has no exact place beside an entry's milliseconds in a script.
_TIMESTAMP_BOUND_MS: Final = 2**52


class _Refused(Exception):
    """A partition's data that is not appended, with the error and the text for the client."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class _Result(msgspec.Struct, gc=False):
    """One partition's answer, filled in when its append is over."""

    index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    base_offset: int = -1
    append_ms: int = -1
    log_start: int = -1

    def refuse(self, error: ErrorCode, message: str | None) -> None:
        self.error = error
        self.message = message or None


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = []
    for topic in request.topic_data:
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
            for data in topic.partition_data
        )
        topics.append(
            context.make(
                "TopicProduceResponse",
                name=getattr(topic, "name", ""),
                topic_id=getattr(topic, "topic_id", None),
                partition_responses=partitions,
            )
        )
    return context.make("ProduceResponse", responses=tuple(topics))


@submit_api(0, "Produce", (3, 13), refuse=refuse, advertised_min=0)
def produce(context: RequestContext, request: Any, respond: Respond) -> None:
    """Append each partition's batch and answer when all are decided."""
    _Produce(context, request, respond).start()


class _Produce(msgspec.Struct, eq=False):
    """One request at work."""

    _context: RequestContext
    _request: Any
    _respond: Respond
    _results: list[tuple[Any, list[_Result]]] = []
    _pending: int = 1
    """Appends on their way, and one for the request itself, so that nothing is answered before all of them
    are.
    """

    def start(self) -> None:
        """Begin all appends, in the request's order."""
        for topic in self._request.topic_data:
            results = []
            for data in topic.partition_data:
                result = _Result(data.index)
                results.append(result)
                self._begin(topic, data, result)
            self._results.append((topic, results))
        self._finished()

    def _begin(self, topic: Any, data: Any, result: _Result) -> None:
        try:
            place = self._locate(topic, data.index)
            received = self._read_batch(data.records, place.policy)
            if place.topic.internal:
                self._put(place.log, received, result)
                return
            if not received.header.transactional:
                self._append(place, received, result)
                return
            asked = self._transaction_of(place.log, received)
        except _Refused as refused:
            result.refuse(refused.error, str(refused))
            return
        except BatchError as bad:
            result.refuse(error_code_of(bad), str(bad))
            return
        # Appends keep the order of their requests, since these replies do.
        self._pending += 1
        self._context.services.transactions.add(
            asked, lambda reply: self._in_transaction(reply, place, received, result)
        )

    def _append(self, place: Place, received: ReceivedBatch, result: _Result) -> None:
        """Begin the append of a batch. Raises BatchError and _Refused."""
        log, policy = place.log, place.policy
        batch = log.encode(received)
        if not policy.log_append_time:
            self._check_timestamps(batch.form, policy)
        if policy.compacts and batch.form.keyless_count:
            raise _Refused(ErrorCode.invalid_record, "a compacted topic takes no records without a key")
        header = received.header
        stamp = None
        if header.producer_id >= 0:
            stamp = ProducerStamp(
                header.producer_id, header.producer_epoch, header.base_sequence, header.transactional
            )
        self._pending += 1
        done = partial(self._appended, result, policy)
        log.append(batch, stamp, done, followed=self._context.client.pipelines)

    def _transaction_of(self, log: PartitionLog, received: ReceivedBatch) -> AddRequest:
        """What the coordinator is asked: whether the partition is in the transaction, or from v12 on to add
        it (KIP-890). Raises _Refused.
        """
        header, transactional_id = received.header, self._request.transactional_id
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

    def _in_transaction(self, reply: Any, place: Place, received: ReceivedBatch, result: _Result) -> None:
        """The coordinator's answer is there: go on, or not."""
        error = reply.error
        if error is ErrorCode.none and reply.absent:
            error = ErrorCode.transaction_abortable
        try:
            if error is not ErrorCode.none:
                raise _Refused(
                    _transaction_error(error, self._context.api_version),
                    "the partition is in no transaction of this producer",
                )
            self._append(place, received, result)
        except _Refused as refused:
            result.refuse(refused.error, str(refused))
        except BatchError as bad:
            result.refuse(error_code_of(bad), str(bad))
        self._finished()

    def _put(self, log: PartitionLog, received: ReceivedBatch, result: _Result) -> None:
        """Have the groups' coordinator apply records of its own log. Raises BatchError."""
        group_id, put = read_put(received, log.partition, log.topic.partitions)
        self._pending += 1

        def done(reply: Any) -> None:
            result.base_offset = reply.base_offset
            if reply.error is ErrorCode.non_empty_group:
                result.refuse(ErrorCode.invalid_record, f"group {group_id!r} speaks the consumer protocol")
            elif reply.error is not ErrorCode.none:
                result.refuse(ErrorCode.not_leader_or_follower, f"the coordinator says {reply.error.name}")
            self._finished()

        self._context.services.coordinator.submit(group_id, GroupShard.put, put, done)

    def _appended(self, result: _Result, policy: TopicPolicy, outcome: Appended | StorageError) -> None:
        if isinstance(outcome, StorageError):
            result.refuse(error_code_of(outcome), str(outcome))
        else:
            result.base_offset = outcome.base_offset
            result.log_start = outcome.log_start
            if policy.log_append_time and not outcome.duplicate:
                result.append_ms = outcome.append_ms
        self._finished()

    def _locate(self, topic: Any, index: int) -> Place:
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

    def _read_batch(self, records: bytes | memoryview | None, policy: TopicPolicy) -> ReceivedBatch:
        """The one batch of a partition. Raises BatchError and _Refused."""
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
        if header.codec == _ZSTD and self._context.api_version < _ZSTD_SINCE:
            raise _Refused(
                ErrorCode.unsupported_compression_type, f"zstd needs Produce v{_ZSTD_SINCE} (KIP-110)"
            )
        plain = None
        if header.codec:
            plain = decompress(header.codec, memoryview(records)[_RECORDS_AT:], policy.max_decompressed_bytes)
        return ReceivedBatch(records, header, plain)

    def _check_timestamps(self, form: AppendArguments | AppendCommands, policy: TopicPolicy) -> None:
        now_ms = self._context.services.clock_ns() // 1_000_000
        earliest = max(now_ms - policy.timestamp_before_max_ms, -_TIMESTAMP_BOUND_MS)
        latest = min(now_ms + policy.timestamp_after_max_ms, _TIMESTAMP_BOUND_MS)
        # -1 is "no timestamp", which Kafka lets pass.
        low = form.min_timestamp_ms
        if (low < earliest and low != -1) or form.max_timestamp_ms > latest:
            raise _Refused(
                ErrorCode.invalid_timestamp,
                f"timestamps from {low} to {form.max_timestamp_ms} are outside {earliest} to {latest}",
            )

    def _finished(self) -> None:
        self._pending -= 1
        if self._pending:
            return
        if self._request.acks == 0:
            self._respond(None)
            failed = [result for _, results in self._results for result in results if result.error]
            if failed:
                # Without a response this is all that makes the client ask for metadata again.
                self._context.client.close(f"Produce with acks=0 failed: {failed[0].error.name}")
        else:
            self._respond([_encode(self._context.api_version, self._results)])


def _transaction_error(error: ErrorCode, version: int) -> ErrorCode:
    """What producers of a version make the right thing of, as Kafka has it: those before v12 are told
    NOT_ENOUGH_REPLICAS where they are to try again.
    """
    if error in _PASSING or (error is ErrorCode.concurrent_transactions and version < _ADDS_SINCE):
        return ErrorCode.not_enough_replicas
    if error is ErrorCode.transaction_abortable and version < _ABORTABLE_SINCE:
        return ErrorCode.invalid_txn_state
    return ErrorCode.invalid_producer_epoch if error is ErrorCode.producer_fenced else error


def _encode(version: int, topics: list[tuple[Any, list[_Result]]]) -> bytes:
    """The response body (ProduceResponse.json), by hand: it is written for every batch."""
    flexible = version >= _FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    no_fault = _no_fault(version)
    size = _PARTITION.size if version >= _LOG_START_SINCE else _BYTES_WITHOUT_START
    parts = [_topics_head(version, len(topics))]
    for topic, results in topics:
        key = topic.topic_id if version >= _TOPIC_IDS_SINCE else topic.name
        parts.append(_topic_head(version, key, len(results)))
        for result in results:
            numbers = _PARTITION.pack(
                result.index, result.error, result.base_offset, result.append_ms, result.log_start
            )
            fault = no_fault if result.message is None else _fault(version, result.message)
            parts += (numbers[:size], fault)
        parts.append(tags)
    parts += (_NO_THROTTLE, tags)
    return b"".join(parts)


@lru_cache(maxsize=_REMEMBERED_HEADS)
def _topics_head(version: int, topics: int) -> bytes:
    """What stands before the topics in a response."""
    return length(topics, version >= _FLEXIBLE_SINCE)


@lru_cache(maxsize=_REMEMBERED_HEADS)
def _topic_head(version: int, key: str | UUID | None, partitions: int) -> bytes:
    """What stands before a topic's partitions in a response."""
    flexible = version >= _FLEXIBLE_SINCE
    name = string(key, flexible) if isinstance(key, str) else uuid_bytes(key)
    return name + length(partitions, flexible)


@lru_cache(maxsize=_REMEMBERED_HEADS)
def _no_fault(version: int) -> bytes:
    return _fault(version, None)


def _fault(version: int, message: str | None) -> bytes:
    """What stands behind a partition's numbers: no record errors, a text, and no tagged fields."""
    if version < _RECORD_ERRORS_SINCE:
        return b""
    flexible = version >= _FLEXIBLE_SINCE
    return length(0, flexible) + string(message, flexible) + (b"\x00" if flexible else b"")
