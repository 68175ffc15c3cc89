"""The one table of Kafka errors for domain errors.

A temporary fault is answered with an error after which clients retry. That error depends on the request: for
Java's consumer REQUEST_TIMED_OUT in a Fetch is a defect, and for its producer it is fatal in InitProducerId.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.config.dynamic import NotAList
from korvet.config.errors import ConfigError
from korvet.coordinator.service import CoordinatorError
from korvet.quotas.throttle import MutationsExceeded
from korvet.records.batch import BatchError
from korvet.redis import errors as redis
from korvet.topics import errors as topics


class Asked(Enum):
    """The subject of a request, as far as errors depend on it."""

    WRITE = auto()
    """Includes all requests about the cluster."""
    READ = auto()
    COORDINATOR = auto()


_BY_TYPE: Final[dict[type[Exception], ErrorCode]] = {
    # After NOT_ENOUGH_REPLICAS every client retries; it means that no record was written.
    redis.Throttled: ErrorCode.not_enough_replicas,
    redis.WritesRefused: ErrorCode.not_enough_replicas,
    redis.NotEnoughReplicas: ErrorCode.not_enough_replicas,
    redis.NotReplicated: ErrorCode.request_timed_out,
    redis.NotEnoughReplicasAfterAppend: ErrorCode.not_enough_replicas_after_append,
    # The records may be lost, or not. Clients send them again.
    redis.HistoryChanged: ErrorCode.not_enough_replicas_after_append,
    # The batch may be in the log. Producers treat this as a timeout; for idempotent ones the retry is a
    # duplicate.
    redis.LinkLost: ErrorCode.request_timed_out,
    redis.WrongType: ErrorCode.kafka_storage_error,
    redis.KeyspaceLost: ErrorCode.kafka_storage_error,
    redis.OffsetsExhausted: ErrorCode.kafka_storage_error,
    redis.StorageFault: ErrorCode.kafka_storage_error,
    redis.DamagedBatch: ErrorCode.corrupt_message,
    redis.OutOfOrderSequence: ErrorCode.out_of_order_sequence_number,
    # Producers send the batch again, and those in flight after it, in order.
    redis.SequenceGap: ErrorCode.not_leader_or_follower,
    # Producers abort the transaction and continue with another epoch (KIP-360).
    redis.UnknownProducer: ErrorCode.unknown_producer_id,
    redis.InvalidProducerEpoch: ErrorCode.invalid_producer_epoch,
    redis.InvalidTransactionState: ErrorCode.invalid_txn_state,
    redis.FencedCoordinator: ErrorCode.transaction_coordinator_fenced,
    redis.FencedEpoch: ErrorCode.not_leader_or_follower,
    # The error of Kafka after a change of leader: clients retry, and no record was written.
    redis.SlotUnavailable: ErrorCode.not_leader_or_follower,
    redis.NotPrimary: ErrorCode.not_leader_or_follower,
    redis.HighWatermarkUnknown: ErrorCode.not_leader_or_follower,
    redis.Loading: ErrorCode.not_leader_or_follower,
    redis.Busy: ErrorCode.not_leader_or_follower,
    # The error of Kafka if it may not read its own files.
    redis.AccessRefused: ErrorCode.kafka_storage_error,
    redis.TopicGone: ErrorCode.unknown_topic_or_partition,
    redis.TopicExists: ErrorCode.topic_already_exists,
    redis.CatalogueConflict: ErrorCode.request_timed_out,
    redis.OffsetOutOfRange: ErrorCode.offset_out_of_range,
    topics.InvalidTopicName: ErrorCode.invalid_topic_exception,
    topics.UnknownTopic: ErrorCode.unknown_topic_or_partition,
    topics.TopicExists: ErrorCode.topic_already_exists,
    topics.InternalTopic: ErrorCode.invalid_topic_exception,
    topics.InvalidPartitions: ErrorCode.invalid_partitions,
    topics.InvalidReplication: ErrorCode.invalid_replication_factor,
    topics.InvalidAssignment: ErrorCode.invalid_replica_assignment,
    topics.InvalidTopicConfig: ErrorCode.invalid_config,
    topics.InvalidTopicRequest: ErrorCode.invalid_request,
    topics.TooManyPartitions: ErrorCode.policy_violation,
    ConfigError: ErrorCode.invalid_request,
    NotAList: ErrorCode.invalid_config,
    MutationsExceeded: ErrorCode.throttling_quota_exceeded,
}

_OF_READS: Final[dict[type[Exception], ErrorCode]] = {
    redis.LinkLost: ErrorCode.not_leader_or_follower,
    redis.WritesRefused: ErrorCode.not_leader_or_follower,
}

_OF_COORDINATORS: Final[dict[type[Exception], ErrorCode]] = {
    # The error of Kafka if it gets no producer IDs: clients retry with the same broker. Java's producers
    # without transactions fail for good after others, COORDINATOR_NOT_AVAILABLE included.
    redis.LinkLost: ErrorCode.coordinator_load_in_progress,
    redis.WritesRefused: ErrorCode.coordinator_load_in_progress,
    redis.Loading: ErrorCode.coordinator_load_in_progress,
    redis.Busy: ErrorCode.coordinator_load_in_progress,
    redis.SlotUnavailable: ErrorCode.coordinator_load_in_progress,
    redis.NotPrimary: ErrorCode.coordinator_load_in_progress,
    redis.AccessRefused: ErrorCode.coordinator_load_in_progress,
    redis.StorageFault: ErrorCode.coordinator_load_in_progress,
    redis.WrongType: ErrorCode.coordinator_load_in_progress,
    redis.KeyspaceLost: ErrorCode.coordinator_load_in_progress,
    redis.TopicExists: ErrorCode.coordinator_load_in_progress,
    redis.FencedEpoch: ErrorCode.not_coordinator,
}

_OF: Final = {Asked.WRITE: {}, Asked.READ: _OF_READS, Asked.COORDINATOR: _OF_COORDINATORS}

# Fetch, ListOffsets, OffsetForLeaderEpoch, DescribeProducers, ShareFetch, ShareAcknowledge.
_READS: Final = frozenset((1, 2, 23, 61, 78, 79))
# All requests about groups and transactions: OffsetCommit to ListGroups, InitProducerId, AddPartitionsToTxn,
# AddOffsetsToTxn, EndTxn, TxnOffsetCommit, DeleteGroups, OffsetDelete, DescribeTransactions,
# ListTransactions, ConsumerGroupHeartbeat, ConsumerGroupDescribe, ShareGroupHeartbeat, ShareGroupDescribe,
# DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets.
_COORDINATORS: Final = frozenset(
    (*range(8, 17), 22, 24, 25, 26, 28, 42, 47, 65, 66, 68, 69, 76, 77, 90, 91, 92)
)

_BY_FAULT: Final = {
    "corrupt": ErrorCode.corrupt_message,
    # As in Kafka: after UNSUPPORTED_FOR_MESSAGE_FORMAT a producer would try another format.
    "unsupported_magic": ErrorCode.invalid_record,
    "unsupported_codec": ErrorCode.unsupported_compression_type,
    "invalid_record": ErrorCode.invalid_record,
    "too_large": ErrorCode.message_too_large,
}


def asked_by(api_key: int) -> Asked:
    """The subject of an API's requests."""
    if api_key in _READS:
        return Asked.READ
    return Asked.COORDINATOR if api_key in _COORDINATORS else Asked.WRITE


def error_code_of(error: Exception, asked: Asked = Asked.WRITE) -> ErrorCode:
    """The Kafka error for a domain error; UNKNOWN_SERVER_ERROR for an unexpected exception."""
    if isinstance(error, BatchError):
        return _BY_FAULT[error.kind]
    if isinstance(error, CoordinatorError):
        return error.code
    of_asked = _OF[asked]
    for cls in type(error).__mro__:
        code = of_asked.get(cls) or _BY_TYPE.get(cls)
        if code is not None:
            return code
    return ErrorCode.unknown_server_error
