"""The domain errors of the storage. The API layer maps them to Kafka's error codes."""

from __future__ import annotations

from typing import Final


class StorageError(Exception):
    """A storage operation failed."""


class StoreError(StorageError):
    """The store cannot be opened; the message is meant for the terminal."""


class StorageFault(StorageError):
    """Redis refused a command for a reason without a class of its own. The message is the error reply."""


class LinkLost(StorageError):
    """The connection to Redis broke. A command that was in flight may or may not have taken effect."""


class KeyspaceLost(StorageError):
    """Redis does not hold the keyspace that this process opened: the keyspace was emptied or replaced, or its
    catalogue was lost. Nothing was written.
    """


class SlotUnavailable(StorageError):
    """No node of the cluster serves the key's slot now: the slot is being moved, or its primary failed. The
    command had no effect.
    """


class WritesRefused(StorageError):
    """Redis accepts no writes now, only reads. Nothing was written. The message is the error reply."""


class NotPersisted(WritesRefused):
    """Redis cannot write its append-only file or its snapshots (MISCONF). Nothing was written."""


class TooFewReplicas(WritesRefused):
    """Redis has fewer replicas than its own min-replicas-to-write. Nothing was written."""


class NoRoom(WritesRefused):
    """The disk of the embedded server has only the room left that groups and brokers need. Nothing was
    written.
    """


class NotEnoughReplicas(StorageError):
    """Fewer replicas follow the server than the topic asks for. Nothing was written."""


class NotEnoughReplicasAfterAppend(StorageError):
    """The records are in the log, but not on as many replicas as the topic asks for: a failover may lose
    them.
    """


class NotReplicated(StorageError):
    """A change is made, but it is not on as many replicas as the broker asks for: a failover may lose it."""


class HighWatermarkUnknown(StorageError):
    """No replica has confirmed yet what the log holds."""


class HistoryChanged(StorageError):
    """Another server has taken over since the records were appended, and may lack them."""


class NotPrimary(StorageError):
    """The server has become a replica, and its connections are opened again. Nothing was written."""


class Loading(StorageError):
    """The server still reads its files, or had lost our functions. The command had no effect."""


class Busy(StorageError):
    """A script or function has kept the server busy for seconds. The command had no effect."""


class AccessRefused(StorageError):
    """Redis does not permit the command to our user, or refuses the password. The command had no effect."""


class OutOfMemory(WritesRefused):
    """Redis is at maxmemory and refused the write. Nothing was written."""


class AllowanceSpent(OutOfMemory):
    """Redis is at maxmemory, and what groups may write beyond it is used up. Nothing was written."""


class WrongType(StorageError):
    """A Redis application uses one of our keys for another type. Nothing was written."""


class Throttled(StorageError):
    """Offsets are ahead of Redis's clock by the permitted maximum. Nothing was written."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__(f"offsets are ahead of the clock: try again in {wait_ms} ms")
        self.wait_ms = wait_ms


class OffsetsExhausted(StorageError):
    """No offset can address an entry after the last one. Nothing was written."""


class OutOfOrderSequence(StorageError):
    """An idempotent producer's batch does not follow its last batch (KIP-98). Nothing was written."""


class SequenceGap(StorageError):
    """Batches of an idempotent producer before this one may be lost, or on their way to the former leader.
    Nothing was written. The producer has to send the batch again, after those before it.
    """


class UnknownProducer(StorageError):
    """Batches of a transactional producer before this one may be lost, so its transaction cannot be
    committed. Nothing was written.
    """


class InvalidProducerEpoch(StorageError):
    """A newer incarnation of the producer has written (KIP-98). Nothing was written."""


class InvalidTransactionState(StorageError):
    """A batch outside of transactions came from a producer with an open transaction (KIP-98). Nothing was
    written.
    """


class FencedCoordinator(StorageError):
    """A newer coordinator has ended a transaction of this producer. Nothing was written."""


class FencedEpoch(StorageError):
    """Another broker leads the partition, or will lead it. Nothing was written."""

    def __init__(self, message: str, newest: int | None = None) -> None:
        """newest: the writers' epoch of the partition in Redis, if it is known."""
        super().__init__(message)
        self.newest = newest


class TopicGone(StorageError):
    """The topic is deleted, or is being deleted."""


class TopicExists(StorageError):
    """A topic of that name exists, or is being deleted."""


class CatalogueConflict(StorageError):
    """Another process changed the topic since it was read; read it again."""


class OffsetOutOfRange(StorageError):
    """The offset is outside of [log_start, log_end]."""

    def __init__(self, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(f"offset {offset} is not in {log_start}..{log_end}")
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end


class DamagedBatch(StorageError):
    """A stored record batch cannot be read: its CRC, its length or its base offset has changed."""


class RedisFault(StorageError):
    """An error reply. `code` is its first word, such as ERR, OOM or WRONGTYPE."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


PASSING: Final = (LinkLost, SlotUnavailable, WritesRefused, NotPrimary, Loading, Busy)
"""States of Redis that end by themselves or by an operator's action."""

_BY_CODE: Final[dict[str, type[StorageError]]] = {
    "OOM": OutOfMemory,
    "NOALLOWANCE": AllowanceSpent,
    "NOREPLICAS": TooFewReplicas,
    "MISCONF": NotPersisted,
    "READONLY": NotPrimary,
    "LOADING": Loading,
    "BUSY": Busy,
    "NOAUTH": AccessRefused,
    "NOPERM": AccessRefused,
    "WRONGPASS": AccessRefused,
    "MOVED": SlotUnavailable,
    "ASK": SlotUnavailable,
    "TRYAGAIN": SlotUnavailable,
    "CLUSTERDOWN": SlotUnavailable,
    "MASTERDOWN": SlotUnavailable,
    "WRONGTYPE": WrongType,
    "OUTOFORDERSEQUENCE": OutOfOrderSequence,
    "SEQUENCEGAP": SequenceGap,
    "UNKNOWNPRODUCER": UnknownProducer,
    "INVALIDPRODUCEREPOCH": InvalidProducerEpoch,
    "EXHAUSTED": OffsetsExhausted,
    "INVALIDTXNSTATE": InvalidTransactionState,
    "FENCEDCOORDINATOR": FencedCoordinator,
    "CONFLICT": CatalogueConflict,
    "KEYSPACELOST": KeyspaceLost,
}


# The reply to EXEC if the server's state has changed after the commands were queued.
_ABORTED: Final = "EXECABORT Transaction discarded because of: "


def domain_error(fault: StorageError) -> StorageError:
    """The domain error for an error reply of Redis or of our functions. Other errors are returned
    unchanged.
    """
    if not isinstance(fault, RedisFault):
        return fault
    cause = fault.message.removeprefix(_ABORTED)
    if cause != fault.message:
        return domain_error(RedisFault(cause, cause.partition(" ")[0]))
    if fault.code in {"THROTTLED", "FENCED"}:
        # Not every text has the number: the epoch that Redis holds may be damaged.
        last_word = fault.message.split()[-1]
        number = int(last_word) if last_word.isdecimal() else None
        if fault.code == "FENCED":
            return FencedEpoch(fault.message, number)
        if number is not None:
            return Throttled(number)
    return _BY_CODE.get(fault.code, StorageFault)(fault.message)
