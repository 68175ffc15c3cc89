"""A fetch at work: its partitions are read, and what is found waits for more until the time is over."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.api.fetching.deadlines import Deadline
from korvet.api.fetching.response import READ_COMMITTED
from korvet.api.list_offsets import check_leader_epoch
from korvet.protocol.durations import milliseconds
from korvet.records.batch import BatchError
from korvet.records.conversion import convertible, without_zstd
from korvet.security.acls import Operation, ResourceType
from korvet.storage.errors import OffsetOutOfRange, StorageError, StorageFault
from korvet.storage.log.committed import Committed, cached_committed, read_committed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from korvet.api.common.context import RequestContext
    from korvet.api.fetching.part import FetchedPart
    from korvet.protocol.registry import Respond
    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.log.values import Fetched

# Older versions may belong to clients that do not know the codec (KIP-110).
_ZSTD_SINCE: Final = 10
# Kafka's fetch.max.bytes of a broker: what one response holds at the most, whatever the client asks for.
_MAX_BYTES: Final = 55 * 1024 * 1024


def locate(context: RequestContext, part: FetchedPart) -> None:
    """Find the partition's log, or the error that the client gets for it."""
    topics = context.services.topics
    part.log = None
    name: str | None
    if isinstance(part.topic, str):
        found, name = topics.get(part.topic), part.topic
        unknown = ErrorCode.unknown_topic_or_partition
    else:
        found = None if part.topic is None else topics.by_id(part.topic)
        name = None if found is None else found.name
        unknown = ErrorCode.unknown_topic_id
    access = context.client.access
    denied = (
        access is not None
        and name is not None
        and not access.allows(Operation.READ, ResourceType.TOPIC, name)
    )
    if denied:
        part.error = ErrorCode.topic_authorization_failed
        return
    if found is None:
        topics.missed()
        part.error = unknown
        return
    part.log = topics.log_of(found, part.index)
    if part.log is None:
        part.error = ErrorCode.unknown_topic_or_partition
    else:
        part.error = check_leader_epoch(part.leader_epoch, part.log)


class Reading(Deadline):
    """A request at work. Its connection keeps it (`Client.kept`), as the next one is much like it."""

    __slots__ = (
        "_active",
        "_at_work",
        "_context",
        "_deadlines",
        "_ends_at",
        "_enough_bytes",
        "_has_read",
        "_held_bytes",
        "_is_committed",
        "_is_short",
        "_max_bytes",
        "_memory",
        "_patience",
        "_reading",
        "_respond",
        "_size_bytes",
        "_takes_zstd",
        "_unread",
        "_wait_s",
        "_woken",
        "request",
    )

    def __init__(self, context: RequestContext, request: Any) -> None:
        self._deadlines = context.services.deadlines
        self._memory = context.services.fetch_memory
        # Of the process's memory for fetches; while reading so much as may be read.
        self._held_bytes = 0
        self._size_bytes = 0
        # So many bytes are as good as what the client wants, as there is no memory for more.
        self._enough_bytes = _MAX_BYTES
        # The partitions that the request is about.
        self._active: Collection[FetchedPart] = ()
        self._respond: Respond | None = None
        self._ends_at = 0.0
        self._reading = 0
        self._has_read = False
        self._unread: list[FetchedPart] = []
        self._at_work = False
        self._woken = False
        self._patience: tuple[Any, int] = None, 0
        self._ask(context, request)

    def _ask(self, context: RequestContext, request: Any) -> None:
        """This is asked for from now on; nothing must be at work."""
        self.request = request
        self._context = context
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._takes_zstd = context.api_version >= _ZSTD_SINCE
        self._max_bytes = min(request.max_bytes, _MAX_BYTES)
        if (request.max_wait, request.min_bytes) == self._patience:
            return
        self._patience = request.max_wait, request.min_bytes
        wait_ms = milliseconds(request.max_wait)
        super().__init__(wait_ms)
        self._wait_s = wait_ms / 1000
        # What is known of a log's end is kept up to date only while somebody listens, so a fetch that can't
        # wait long enough to be told has to look, where nobody has looked just now.
        self._is_short = wait_ms <= context.services.config.native_poll_interval_ms or request.min_bytes <= 0

    def repeat(self, respond: Respond) -> bool:
        """Begin again with the same request; False where that is not as good as a new one."""
        return False

    def release(self) -> None:
        """The client is gone, or asks for something else: nobody waits any more."""
        raise NotImplementedError

    def withhold(self) -> list[bytes]:
        """The response that was just given does not go out: what the client, which has to wait, gets
        instead. No partitions at all, as Kafka answers (KIP-219).
        """
        raise NotImplementedError

    def _listen(self) -> None:
        """Have `_wake` called when logs grow."""
        raise NotImplementedError

    def _answer(self) -> list[bytes]:
        """The response body."""
        raise NotImplementedError

    def _begin(self, respond: Respond) -> None:
        self._respond = respond
        self._at_work = True
        self._woken = False
        self._has_read = False
        self._enough_bytes = _MAX_BYTES
        self._ends_at = self._deadlines.now() + self._wait_s

    def _read(self, parts: Sequence[FetchedPart], taken_bytes: int = 0) -> None:
        """Read all in one go once there is memory for it, within the response's limit."""
        self._has_read = True
        most_bytes = self._max_bytes - taken_bytes
        limits = parts[0].max_bytes if len(parts) == 1 else sum([part.max_bytes for part in parts])
        most_bytes = max(min(most_bytes, limits), 1)
        room_bytes = self._memory.take(most_bytes)
        self._held_bytes += room_bytes
        if room_bytes:
            self._read_within(parts, taken_bytes, room_bytes, most_bytes)
            return
        # Busy until then.
        self._reading = 1
        self._unread = []
        if taken_bytes:
            self._enough_bytes = 1
            self.read_done()
            return

        def ready(room_bytes: int) -> None:
            self._held_bytes += room_bytes
            if not self._at_work:
                self.read_done()
                return
            try:
                self._read_within(parts, taken_bytes, room_bytes, most_bytes)
            except Exception:
                self._abandon()
                raise

        self._memory.wait(most_bytes, ready)

    def _read_within(
        self, parts: Sequence[FetchedPart], taken_bytes: int, room_bytes: int, most_bytes: int
    ) -> None:
        """Read all in one go, with so much room; the first one even if it is too large.

        What the tail cache has is there at once. Of the others each read may take all of the partition's
        limit, and what is left of that goes to those that found no room.
        """
        if room_bytes < most_bytes:
            # Whole batches may fill no more than half of it.
            self._enough_bytes = taken_bytes + room_bytes // 2
        left = room_bytes
        started = taken_bytes > 0
        self._unread = []
        # One for this call itself, as a read may end before the next one begins.
        self._reading = 1
        for part in parts:
            if part.log is None or part.error is not ErrorCode.none:
                continue
            if started and left <= 0:
                self._unread.append(part)
                continue
            limit = max(min(part.max_bytes, left), 1)
            if self._take_cached(part, part.log, limit, left if started else None):
                left -= part.size_bytes
                started = True
                continue
            left -= limit
            started = True
            self._reading += 1
            taker = _Taker(self, part)
            if self._is_committed:
                read_committed(part.log, part.offset, limit, taker)
            else:
                part.log.read(part.offset, limit, taker)
        self.read_done()

    def _take_cached(self, part: FetchedPart, log: PartitionLog, limit: int, room_bytes: int | None) -> bool:
        """Whether no more is needed than is known here."""
        if self._is_committed:
            committed = cached_committed(log, part.offset, limit, room_bytes, zstd=self._takes_zstd)
            if committed is None:
                return False
            _take_committed(part, committed)
        else:
            batches = log.cached(part.offset, limit, room_bytes, zstd=self._takes_zstd)
            if batches is None:
                return False
            part.take(batches, log.log_end, log.log_start, log.last_stable_offset)
        if not part.batches and self._reading > 1 and not self._is_at_end(part, log):
            # Too large for the room left, some of which reads under way may give back.
            self._unread.append(part)
        return True

    def _is_at_end(self, part: FetchedPart, log: PartitionLog) -> bool:
        """Whether there is nothing for this reader to read there yet."""
        if not self._is_committed:
            return part.offset == log.log_end
        return log.last_stable_offset_is_current and log.last_stable_offset <= part.offset <= log.log_end

    def read_done(self) -> None:
        """One read is over; the last one decides."""
        self._reading -= 1
        if self._reading:
            return
        if not self._at_work:
            self._give_up_memory()
            return
        try:
            self._decide()
        except Exception:
            self._abandon()
            raise

    def _decide(self) -> None:
        """All reads are over: convert, read on, answer or wait."""
        size, failed = 0, False
        for part in self._active:
            size += part.size_bytes
            failed = failed or part.error is not ErrorCode.none
        self._size_bytes = size
        if not self._takes_zstd:
            self._hold(size)
            if self._converts():
                return
        if self._unread and size < self._max_bytes:
            self._hold(size)
            # After a failure as well: a damaged partition takes nothing from the others.
            self._read(self._unread, size)
            return
        enough = not self._active or size >= min(self.request.min_bytes, self._enough_bytes)
        if failed or enough or self._deadlines.now() >= self._ends_at:
            self._finish()
        else:
            self._hold(size)
            self._wait()

    def _hold(self, size_bytes: int) -> None:
        """Hold as much memory as what was read takes, and no more."""
        self._memory.resize(self._held_bytes, size_bytes)
        self._held_bytes = size_bytes

    def _converts(self) -> bool:
        """Whether a partition is being converted for a client that does not know zstd (KIP-110); `read_done`
        is called after that. Only the first one with records waits for memory, and holds none meanwhile: two
        that wait for what the other one holds would wait for ever.
        """
        services, size_bytes = self._context.services, 0
        for part in self._active:
            if not part.size_bytes:
                continue
            data = b"".join(part.batches)
            place = services.topics.place(part.topic, part.index)
            policy = None if place is None else place.policy
            most_bytes = (policy or services.config).max_decompressed_bytes
            left_bytes = min(part.max_bytes, self._max_bytes - size_bytes)
            end, plain_bytes = convertible(data, left_bytes, most_bytes)
            if not plain_bytes:
                size_bytes += len(data)
            elif self._memory.take_all(plain_bytes):
                self._held_bytes += plain_bytes
                self._convert(part, data[:end], most_bytes)
                return True
            elif size_bytes:
                part.replace([])
            else:
                self._convert_later(part, data[:end], plain_bytes, most_bytes)
                return True
        return False

    def _convert_later(self, part: FetchedPart, data: bytes, plain_bytes: int, most_bytes: int) -> None:
        self._give_up_memory()
        self._reading = 1

        def ready() -> None:
            self._held_bytes += plain_bytes
            self._convert(part, data, most_bytes)

        self._memory.wait_for_all(plain_bytes, ready)

    def _convert(self, part: FetchedPart, data: bytes, most_bytes: int) -> None:
        """Have a thread convert these batches."""
        self._reading = 1

        def converted(outcome: bytes | BatchError) -> None:
            if isinstance(outcome, BatchError):
                part.error = ErrorCode.unsupported_compression_type
                outcome = b""
            part.replace([outcome])
            self.read_done()

        self._context.services.unpacking.run(partial(without_zstd, data, most_bytes), converted)

    def _wait(self) -> None:
        """Until a log grows, the time is over or the client is gone."""
        if self._woken:
            self._woken = False
            self._read(self._grown())
            return
        self._deadlines.arm(self, self._ends_at)
        self._listen()

    def _wake(self) -> None:
        """A log has grown, or is closed."""
        if self._reading:
            self._woken = True
        elif self._at_work and (grown := self._grown()):
            self._read(grown)

    def _grown(self) -> list[FetchedPart]:
        """Partitions whose log does not end where they are to be read from, or is closed."""
        return [
            part
            for part in self._active
            if (log := part.log) is not None and (not self._is_at_end(part, log) or log.closed)
        ]

    def time_over(self) -> None:
        """Answer with what there is."""
        if not self._reading:
            self._finish()

    def _finish(self) -> None:
        self._at_work = False
        self._deadlines.disarm(self)
        # What cannot be answered must not keep the slot, which ends the connection.
        respond, self._respond = self._respond, None
        assert respond is not None
        if not self._has_read:
            respond(self._answer())
            return
        held_bytes, self._held_bytes = self._held_bytes, 0
        size_bytes = self._size_bytes
        try:
            respond(self._answer())
        finally:
            _forget_batches(self._active)
            self._memory.sent_by(self._context.client, held_bytes, size_bytes)

    def _abandon(self) -> None:
        """The request cannot be answered. Nobody holds its slot then, which ends the connection."""
        self._at_work = False
        self._respond = None

    def __del__(self) -> None:
        # Something may have failed before its memory was given back.
        if self._held_bytes:
            self._hold(0)

    def _give_up_memory(self) -> None:
        """Nobody is given what was read."""
        _forget_batches(self._active)
        self._hold(0)


def take_ends(part: FetchedPart, log: PartitionLog) -> None:
    """Nothing was read: where the log begins and ends is what was found."""
    part.take((), log.log_end, log.log_start, log.last_stable_offset)


def _forget_batches(parts: Iterable[FetchedPart]) -> None:
    """Keep none: what remembers the request lives longer than the response."""
    for part in parts:
        part.batches = ()
        part.size_bytes = 0


class _Taker:
    """Takes over the outcome of a partition's read, once.

    The callback that gets the reply of Redis may fail: then nobody holds the taker any more, and the read has
    failed.
    """

    __slots__ = ("_part", "_pending")

    def __init__(self, pending: Reading, part: FetchedPart) -> None:
        self._pending: Reading | None = pending
        self._part = part

    def __call__(self, outcome: Fetched | Committed | StorageError) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None, "a read has ended twice"
        part = self._part
        if isinstance(outcome, StorageError):
            part.error = error_code_of(outcome, Asked.READ)
            if isinstance(outcome, OffsetOutOfRange):
                part.high_watermark, part.log_start = outcome.log_end, outcome.log_start
        elif isinstance(outcome, Committed):
            _take_committed(part, outcome)
        else:
            assert part.log is not None
            part.take([outcome.data], outcome.log_end, outcome.log_start, part.log.last_stable_offset)
        pending.read_done()

    def __del__(self) -> None:
        if self._pending is not None:
            self(StorageFault("the reply of Redis could not be handled"))


def _take_committed(part: FetchedPart, outcome: Committed) -> None:
    part.take(outcome.batches, outcome.log_end, outcome.log_start, outcome.last_stable_offset)
    part.aborted = outcome.aborted
