"""The input and output of a transaction shard: requests, replies, and the outcome of handling one.

Fields have the meaning of Kafka's message schemas of the same APIs. What depends on a request's version is in
`protocol`: 0, or 2 if each transaction bumps the producer's epoch (KIP-890).
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
"""The caller's name for a waiting request; unique among waiting requests."""

TopicPartition: TypeAlias = tuple[str, int]

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
BUMPING_PROTOCOL: Final = 2


class InitRequest(msgspec.Struct, frozen=True):
    """InitProducerId with a transactional id; with the producer's id and epoch if it continues after an
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
    """The answer to an AddRequest; `absent` are the partitions that verification did not find."""

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
    """One transactional id; start_ms is -1 if no transaction is open, 0 with an error."""

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
    """ListTransactions; empty filters match everything. min_duration_ms -1: any duration."""

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
    """Markers to write: at the end of a transaction, one in each of its partitions (WriteTxnMarkers).

    decided_ms is when the outcome was decided; it increases with each transaction of the id.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: frozenset[TopicPartition]
    decided_ms: int


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a call: records to append, in order, and the effects that may follow once they are
    safe.
    """

    records: list[Record]
    replies: list[tuple[Token, Reply]]
    markers: list[Markers]
