"""What can go wrong between the broker and Redis, as domain errors; the protocol rim maps them to Kafka's
codes.
"""

from __future__ import annotations

from typing import Final


class StorageError(Exception):
    """Anything that keeps a storage operation from its result."""


class StoreError(StorageError):
    """The store cannot be opened; the message is fit for the terminal."""


class StorageFault(StorageError):
    """Redis refused a command for a reason that has no class of its own; the message is Redis's."""


class LinkLost(StorageError):
    """The connection to Redis is gone. A command that was in flight may or may not have taken effect."""


class KeyspaceLost(StorageError):
    """Redis does not hold the keyspace that this process opened: it was emptied or replaced, or its catalogue
    is gone. Nothing was written.
    """


class SlotUnavailable(StorageError):
    """No node of the cluster serves the key's slot now (it is on its way, or its primary failed); nothing was
    done.
    """


class WritesRefused(StorageError):
    """Redis takes no writes now, and can be read from; nothing was written. The message is Redis's."""


class NoRoom(WritesRefused):
    """The disk of the embedded server has no more room than what groups and brokers need; nothing was
    written.
    """


class NotPrimary(StorageError):
    """The server is a replica now, and its connections are made anew; nothing was written."""


class Loading(StorageError):
    """The server still reads its files; nothing was done."""


class Busy(StorageError):
    """A script or function has kept the server busy for seconds; nothing was done."""


class AccessRefused(StorageError):
    """Redis does not permit that to our user, or refuses the password; nothing was done."""


class OutOfMemory(WritesRefused):
    """Redis is at maxmemory and refused the write; nothing was written."""


class WrongType(StorageError):
    """A native application uses one of our keys for something else; nothing was written."""


class Throttled(StorageError):
    """Offsets have run ahead of Redis's clock as far as they may; nothing was written."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__(f"offsets are ahead of the clock: try again in {wait_ms} ms")
        self.wait_ms = wait_ms


class OffsetsExhausted(StorageError):
    """The last entry's ID lies where no offset can name the next one; nothing was written."""


class OutOfOrderSequence(StorageError):
    """An idempotent producer's batch does not follow its last one (KIP-98); nothing was written."""


class InvalidProducerEpoch(StorageError):
    """A newer incarnation of the producer has written (KIP-98); nothing was written."""


class InvalidTransactionState(StorageError):
    """A batch in no transaction comes from a producer that has one open (KIP-98); nothing was written."""


class FencedCoordinator(StorageError):
    """A newer coordinator has ended a transaction of this producer; nothing was written."""


class FencedEpoch(StorageError):
    """Another broker leads the partition, or is to; nothing was written."""

    def __init__(self, message: str, newest: int | None = None) -> None:
        """newest: the partition's writers' epoch, where it was met."""
        super().__init__(message)
        self.newest = newest


class TopicGone(StorageError):
    """The topic is deleted, or being deleted."""


class TopicExists(StorageError):
    """A topic of that name is there already, or still being deleted."""


class CatalogueConflict(StorageError):
    """Somebody else changed the topic in between; read it again."""


class OffsetOutOfRange(StorageError):
    """No record can be read at `offset`: it is not in [log_start, log_end]."""

    def __init__(self, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(f"offset {offset} is not in {log_start}..{log_end}")
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end


class DamagedBatch(StorageError):
    """A stored record batch cannot be read: its CRC, its length or its place is not as it was written."""


class RedisFault(StorageError):
    """An error reply. `code` is its first word, such as ERR, OOM or WRONGTYPE."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


PASSING: Final = (LinkLost, SlotUnavailable, WritesRefused, NotPrimary, Loading, Busy)
"""States of Redis that end by themselves, or when somebody sees to it."""

_BY_CODE: Final[dict[str, type[StorageError]]] = {
    "OOM": OutOfMemory,
    # Fewer replicas than min-replicas-to-write.
    "NOREPLICAS": WritesRefused,
    # An append-only file or a snapshot that cannot be written.
    "MISCONF": WritesRefused,
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
    "INVALIDPRODUCEREPOCH": InvalidProducerEpoch,
    "EXHAUSTED": OffsetsExhausted,
    "INVALIDTXNSTATE": InvalidTransactionState,
    "FENCEDCOORDINATOR": FencedCoordinator,
    "CONFLICT": CatalogueConflict,
    "KEYSPACELOST": KeyspaceLost,
}


def domain_error(fault: StorageError) -> StorageError:
    """The domain error that an error reply of Redis or of our functions stands for; others stay as
    they are.
    """
    if not isinstance(fault, RedisFault):
        return fault
    if fault.code == "THROTTLED":
        return Throttled(int(fault.message.split()[1]))
    if fault.code == "FENCED":
        return FencedEpoch(fault.message, int(fault.message.split()[-1]))
    return _BY_CODE.get(fault.code, StorageFault)(fault.message)
