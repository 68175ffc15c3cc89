"""What goes into and comes out of a transaction shard: requests, replies and the outcome of handling one.

Field meanings are those of Kafka's message schemas of the same APIs. What depends on a request's version is
in `protocol`: 0, or 2 where the producer's epoch is to be bumped with each transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeAlias

import msgspec
from kio.schema.errors import ErrorCode

from korvet.offsets.transaction_log import TransactionLogValue

Record: TypeAlias = tuple[str, TransactionLogValue | None]
"""A record to append: the transactional id, and its state or None for a tombstone."""

Token: TypeAlias = Hashable
"""The caller's name for one request that waits for a reply; unique among those that wait."""

TopicPartition: TypeAlias = tuple[str, int]

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
BUMPING_PROTOCOL: Final = 2


class InitRequest(msgspec.Struct, frozen=True):
    """InitProducerId with a transactional id; with the producer's id and epoch where it goes on after an
    error (KIP-360).
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class InitReply(msgspec.Struct, frozen=True):
    """The answer to an InitRequest."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class AddRequest(msgspec.Struct, frozen=True):
    """AddPartitionsToTxn of one transactional id, or AddOffsetsToTxn with a partition of
    `__consumer_offsets`.

    verify_only asks whether the partitions are in the transaction (KIP-890).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    protocol: int = 0
    verify_only: bool = False


class AddReply(msgspec.Struct, frozen=True):
    """The answer to an AddRequest; `absent` are those partitions that verification did not find."""

    error: ErrorCode
    absent: frozenset[TopicPartition] = frozenset()


class EndRequest(msgspec.Struct, frozen=True):
    """EndTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    protocol: int = 0


class EndReply(msgspec.Struct, frozen=True):
    """The answer to an EndRequest: with id and epoch of the next transaction in protocol version 2."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class DescribeRequest(msgspec.Struct, frozen=True):
    """DescribeTransactions, of ids of one shard."""

    transactional_ids: tuple[str, ...]


class DescribedTransaction(msgspec.Struct, frozen=True):
    """One transactional id; start_ms is -1 where no transaction is at work, 0 with an error."""

    transactional_id: str
    error: ErrorCode
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: frozenset[TopicPartition] = frozenset()


class DescribeReply(msgspec.Struct, frozen=True):
    """The answer to a DescribeRequest, in its order."""

    transactions: tuple[DescribedTransaction, ...]


class ListRequest(msgspec.Struct, frozen=True):
    """ListTransactions; empty filters let all pass. min_duration_ms -1: however long they run."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    min_duration_ms: int = -1


class ListedTransaction(msgspec.Struct, frozen=True):
    """A transactional id in a ListReply."""

    transactional_id: str
    producer_id: int
    state: str


class ListReply(msgspec.Struct, frozen=True):
    """The answer to a ListRequest."""

    transactions: tuple[ListedTransaction, ...]
    error: ErrorCode = ErrorCode.none


Reply: TypeAlias = InitReply | AddReply | EndReply | DescribeReply | ListReply


class Markers(msgspec.Struct, frozen=True):
    """Markers to write: at the end of a transaction, one in each of its partitions (WriteTxnMarkers)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: frozenset[TopicPartition]


class Outcome(msgspec.Struct, frozen=True):
    """What a call has brought: records to append, in order, and what may happen once they are safe."""

    records: list[Record]
    replies: list[tuple[Token, Reply]]
    markers: list[Markers]
