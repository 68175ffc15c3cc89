"""A Fetch request from its arrival to its response: reads partitions within limits, and waits for records.

`FetchStrategy` chooses the partitions and makes the response. PendingFetch itself is in one of four states:

    respond  reads  state
    None     0      idle: the request is answered, the next one may start
    set      > 0    reading: logs are read, or memory or a conversion is waited for
    set      0      waiting: until a log changes or the deadline passes
    None     > 0    released: there will be no response; when the reads under way end, their memory is freed
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.api.fetching.deadlines import Deadline
from korvet.api.fetching.params import API_KEY
from korvet.api.fetching.partition import allowed_bytes
from korvet.api.fetching.partition_read import PartitionRead, found_committed
from korvet.api.fetching.response import encode_response
from korvet.log.committed import cached_committed, read_committed
from korvet.records.batch import BatchError
from korvet.records.conversion import convertible, without_zstd

if TYPE_CHECKING:
    from korvet.api.common.context import Client
    from korvet.api.common.services import Services
    from korvet.api.fetching.params import FetchParams
    from korvet.api.fetching.partition import FetchedPartition
    from korvet.api.fetching.strategy import FetchStrategy
    from korvet.log.partition_log import PartitionLog
    from korvet.protocol.fetch_request import FetchRequest, TopicKey
    from korvet.protocol.registry import Respond
    from korvet.request_log.trace import Trace


class PendingFetch(Deadline):
    """Answers a connection's fetches with one strategy. HandlerState keeps it."""

    __slots__ = (
        "_client",
        "_ends_at",
        "_has_errors",
        "_has_read",
        "_held_bytes",
        "_min_bytes",
        "_params",
        "_reads",
        "_respond",
        "_round",
        "_services",
        "_size_bytes",
        "_strategy",
        "_unread",
        "_was_answered",
        "_woken",
        "trace",
    )

    def __init__(
        self, services: Services, client: Client, strategy: FetchStrategy, params: FetchParams
    ) -> None:
        super().__init__(params.max_wait_ms)
        self._services = services
        self._client = client
        self._strategy = strategy
        self._params = params
        self._respond: Respond | None = None
        self.trace: Trace | None = None
        """See FetchState."""
        # Reads under way. `_read_within` counts as one of them.
        self._reads = 0
        self._ends_at = 0.0
        # Memory taken from FetchMemory: during reads their limit, then the size of the records.
        self._held_bytes = 0
        self._size_bytes = 0
        # A response of this size is sent at once: the client's min_bytes, or less if there is no memory.
        self._min_bytes = params.min_bytes
        self._has_read = False
        # Whether a partition may have an error; the first read that ends finds it out.
        self._has_errors = True
        # Partitions that this round of reads looked at, and those that found no room in it.
        self._round: list[FetchedPartition] = []
        self._unread: deque[FetchedPartition] = deque()
        # Whether a log changed while reading.
        self._woken = False
        # Whether an earlier request was answered.
        self._was_answered = False

    def start(self, params: FetchParams, respond: Respond) -> None:
        """Answer a request, now or later, after the one before is answered."""
        if params is not self._params:
            if params.max_wait_ms != self._params.max_wait_ms:
                self.set_wait(params.max_wait_ms)
            self._params = params
        self._respond = respond
        self._woken = self._has_read = False
        self._has_errors = True
        self._size_bytes = 0
        self._min_bytes = params.min_bytes
        self._ends_at = self._services.deadlines.now() + params.max_wait_ms / 1000
        try:
            unread = self._strategy.select(params)
            if params.reads_at_end and self._was_answered:
                # A client that asks again without waiting: from now on the broker knows the ends of its logs.
                self._listen()
            if unread:
                self._read(deque(unread))
            elif unread is not None:
                self._finish_early()
            elif params.max_wait_ms <= 0 or params.min_bytes <= 0:
                self._finish()
            else:
                self._wait()
        except Exception:
            self._drop()
            raise

    def continues(self, request: FetchRequest, params: FetchParams) -> bool:
        """See FetchState."""
        return self._strategy.continues(request, params)

    def empty_throttled_response(self) -> list[bytes]:
        """See FetchState."""
        return self._strategy.empty_throttled_response(self._params)

    def release(self) -> None:
        """End: the client is gone, or fetches something else."""
        self._respond = None
        self._services.deadlines.disarm(self)
        self._strategy.release()
        if self._held_bytes and not self._reads:
            self._discard()

    def close(self) -> None:
        """End once the request at work is answered."""
        if self._respond is None:
            self._drop()

    def cancel(self, error: ErrorCode, session_id: int) -> None:
        """End, and answer the request at work, if any, with this error."""
        respond, version = self._respond, self._params.version
        self._drop()
        if respond is not None:
            self._note_error(error)
            respond(encode_response(version, (), error, session_id=session_id))

    def _drop(self) -> None:
        """End, and let the client's next request start without this one's state.

        If the request at work is not answered, its slot is released, which ends the connection.
        """
        self.release()
        if self._client.handler_state.fetch is self:
            self._client.handler_state.fetch = None

    # Reading

    def _read(self, partitions: deque[FetchedPartition], taken_bytes: int = 0) -> None:
        """Read the partitions once there is memory. `taken_bytes` of the response are used already.

        The time grows with those that find room, not with all: there may be as many rounds as partitions.
        """
        self._has_read = True
        room_bytes, limits_bytes = self._params.max_bytes - taken_bytes, 0
        for partition in partitions:
            limits_bytes += partition.max_bytes
            if limits_bytes >= room_bytes:
                break
        most_bytes = max(min(room_bytes, limits_bytes), 1)
        memory = self._services.fetch_memory
        remaining_bytes = memory.take(most_bytes)
        self._held_bytes += remaining_bytes
        if remaining_bytes:
            self._read_within(partitions, taken_bytes, remaining_bytes, most_bytes)
            return
        # Waiting for memory counts as a read.
        self._reads = 1
        self._unread = deque()
        if taken_bytes:
            self._min_bytes = min(self._params.min_bytes, 1)
            self.read_done()
            return

        def ready(remaining_bytes: int) -> None:
            self._held_bytes += remaining_bytes
            if self._respond is None:
                self.read_done()
                return
            try:
                self._read_within(partitions, taken_bytes, remaining_bytes, most_bytes)
            except Exception:
                self._drop()
                raise

        memory.wait(most_bytes, ready)

    def _read_within(
        self,
        partitions: deque[FetchedPartition],
        taken_bytes: int,
        remaining_bytes: int,
        most_bytes: int,
    ) -> None:
        """Start the reads of all partitions. The first batch is returned even if it exceeds
        `remaining_bytes`.

        What the tail cache holds is there at once. Each other read may take the partition's whole limit.
        Bytes that such reads leave go to the partitions that found no room.
        """
        if remaining_bytes < most_bytes:
            # Whole batches may fill no more than half of it.
            self._min_bytes = min(self._params.min_bytes, taken_bytes + remaining_bytes // 2)
        is_committed = self._params.is_committed
        started = taken_bytes > 0
        too_large = []
        # One for this call itself, as a read may end before the next one begins.
        self._reads = 1
        while partitions and not (started and remaining_bytes <= 0):
            partition = partitions.popleft()
            log = partition.log
            if log is None or partition.error is not ErrorCode.none:
                continue
            self._round.append(partition)
            self._size_bytes -= partition.size_bytes
            log.counts.fetched()
            limit = max(min(partition.max_bytes, remaining_bytes), 1)
            if self._min_bytes > 1:
                partition.begin_read(log.state)
            if self._take_cached(partition, log, limit, remaining_bytes if started else None):
                remaining_bytes -= partition.size_bytes
                started = started or partition.size_bytes > 0
                if self._found_no_room(partition, log):
                    too_large.append(partition)
                continue
            remaining_bytes -= limit
            started = True
            self._reads += 1
            done = PartitionRead(self, partition)
            if is_committed:
                read_committed(log, partition.offset, limit, done)
            else:
                log.read(partition.offset, limit, done)
        partitions.extendleft(reversed(too_large))
        self._unread = partitions
        self.read_done()

    def _take_cached(
        self, partition: FetchedPartition, log: PartitionLog, limit: int, remaining_bytes: int | None
    ) -> bool:
        """Read from the tail cache. Returns False if only Redis can answer."""
        params = self._params
        zstd = params.takes_zstd
        if params.is_committed:
            committed = cached_committed(log, partition.offset, limit, remaining_bytes, zstd=zstd)
            if committed is None:
                return False
            found_committed(partition, committed)
        else:
            batches = log.cached(partition.offset, limit, remaining_bytes, zstd=zstd)
            if batches is None:
                return False
            partition.found(batches, log.ends)
        return True

    def _found_no_room(self, partition: FetchedPartition, log: PartitionLog) -> bool:
        """Whether the next batch was too large for what remained, and reads under way may leave more."""
        is_committed = self._params.is_committed
        left_out = not partition.batches and not partition.is_at_end(log.state, is_committed=is_committed)
        return self._reads > 1 and left_out

    def read_done(self) -> None:
        """A read has ended. The last one decides."""
        self._reads -= 1
        if self._reads:
            return
        if self._respond is None:
            self._discard()
            return
        try:
            self._decide()
        except Exception:
            self._drop()
            raise

    def _decide(self) -> None:
        """All reads have ended: convert records, read more, answer or wait."""
        params = self._params
        self._size_bytes += sum([partition.size_bytes for partition in self._round])
        self._round = []
        if params.takes_zstd and self._read_on():
            return
        size_bytes, has_errors, failed = 0, False, False
        for partition in self._strategy.partitions:
            size_bytes += partition.size_bytes
            if partition.error is not ErrorCode.none:
                has_errors = True
                failed = failed or partition.log is not None
        self._size_bytes, self._has_errors = size_bytes, has_errors
        if not params.takes_zstd:
            self._hold(size_bytes)
            if self._convert_next() or self._read_on():
                return
        enough = size_bytes >= self._min_bytes
        if failed:
            self._finish_early()
        elif enough or self._services.deadlines.now() >= self._ends_at or self._is_limited():
            self._finish()
        else:
            self._hold(size_bytes)
            self._wait()

    def _read_on(self) -> bool:
        """Read the partitions that found no room, if there is some now. After an error, too: they are read
        although one partition is damaged.
        """
        if not self._unread or self._size_bytes >= self._params.max_bytes:
            return False
        self._hold(self._size_bytes)
        self._read(self._unread, self._size_bytes)
        return True

    def _is_limited(self) -> bool:
        """Whether the response has too few bytes only because batches are whole."""
        partitions, is_committed = self._strategy.partitions, self._params.is_committed
        enough = self._min_bytes
        return self._size_bytes > 0 and allowed_bytes(partitions, is_committed=is_committed) >= enough

    # Converting (KIP-110)

    def _convert_next(self) -> bool:
        """Start converting the next partition with records in zstd, which this client does not know. Returns
        False if there is none; else `read_done` is called when it is converted.

        Only the first partition with records waits for memory, and holds none while it waits. Two fetches
        that each wait for memory that the other one holds would wait forever.
        """
        services, size_bytes = self._services, 0
        for partition in self._strategy.partitions:
            if not partition.size_bytes:
                continue
            data = b"".join(partition.batches)
            place = services.topics.place(partition.topic, partition.index)
            policy = None if place is None else place.policy
            most_bytes = (policy or services.config).max_decompressed_message_bytes
            remaining_bytes = min(partition.max_bytes, self._params.max_bytes - size_bytes)
            end, plain_bytes = convertible(data, remaining_bytes, most_bytes)
            if not plain_bytes:
                size_bytes += len(data)
            elif services.fetch_memory.take_all(plain_bytes):
                self._held_bytes += plain_bytes
                self._convert(partition, data[:end], most_bytes)
                return True
            elif size_bytes:
                partition.replace([])
            else:
                self._convert_later(partition, data[:end], plain_bytes, most_bytes)
                return True
        return False

    def _convert_later(
        self, partition: FetchedPartition, data: bytes, plain_bytes: int, most_bytes: int
    ) -> None:
        """Convert these batches once there is memory."""
        self._discard()
        self._reads = 1

        def ready() -> None:
            self._held_bytes += plain_bytes
            self._convert(partition, data, most_bytes)

        self._services.fetch_memory.wait_for_all(plain_bytes, ready)

    def _convert(self, partition: FetchedPartition, data: bytes, most_bytes: int) -> None:
        """Have a thread convert these batches."""
        self._reads = 1

        def converted(outcome: bytes | BatchError) -> None:
            if isinstance(outcome, BatchError):
                partition.error = ErrorCode.unsupported_compression_type
                outcome = b""
            partition.replace([outcome])
            self.read_done()

        self._services.unpacking.run(partial(without_zstd, data, most_bytes), converted)

    # Waiting

    def _wait(self) -> None:
        """Wait until a log changes, the deadline passes or the client is gone."""
        if self._woken:
            self._woken = False
            self._read(deque(self._changed()))
            return
        self._services.deadlines.arm(self, self._ends_at)
        self._listen()

    def _listen(self) -> None:
        """Have the logs that can be read report their changes from now on, also between requests."""
        listener = self._on_log_changed
        for partition in self._strategy.partitions:
            if partition.listened_log is not partition.log and partition.error is ErrorCode.none:
                partition.listen(listener)

    def _on_log_changed(self, partition: FetchedPartition) -> None:
        """The log of a partition has grown, changed its ends or is closed."""
        self._strategy.on_log_changed(partition)
        if self._reads:
            self._woken = True
        elif self._respond is not None and (changed := self._changed()):
            self._read(deque(changed))

    def _changed(self) -> list[FetchedPartition]:
        """Partitions whose log does not end at their offset, or is closed."""
        is_committed = self._params.is_committed
        return [
            partition
            for partition in self._strategy.partitions
            if (log := partition.log) is not None
            and not partition.is_at_end(log.state, is_committed=is_committed)
        ]

    def time_over(self) -> None:
        """The deadline has passed: answer with what was found."""
        if not self._reads:
            self._finish()

    # Answering

    def _finish_early(self) -> None:
        """Answer with errors that the client gets at once. A client that does so again and again has to see
        entries of native writers in its other partitions, too: from now on the broker knows their ends.
        """
        self._listen()
        self._finish()

    def _finish(self) -> None:
        self._services.deadlines.disarm(self)
        # If the request cannot be answered, its slot has no holder any more: that ends the connection.
        respond, self._respond = self._respond, None
        assert respond is not None
        strategy = self._strategy
        self._was_answered = True
        if self._has_errors:
            self._count_errors()
        if self._has_read:
            held_bytes, self._held_bytes = self._held_bytes, 0
            size_bytes = self._size_bytes
            try:
                respond(strategy.answer(self._params))
            finally:
                self._services.fetch_memory.sent_by(self._client, held_bytes, size_bytes)
        else:
            respond(strategy.answer(self._params))
        if strategy.is_over:
            self._drop()

    def _note_error(self, error: ErrorCode, topic: TopicKey = None) -> None:
        self._services.requests[API_KEY].failed(error)
        if self.trace is not None:
            self.trace.failed(error, topic)

    def _count_errors(self) -> None:
        for partition in self._strategy.partitions:
            if partition.error is not ErrorCode.none:
                self._note_error(partition.error, partition.topic)
                if partition.log is not None:
                    partition.log.counts.fetch_failed()

    # Memory

    def _hold(self, size_bytes: int) -> None:
        """Hold exactly as much memory as what was read takes."""
        self._services.fetch_memory.resize(self._held_bytes, size_bytes)
        self._held_bytes = size_bytes

    def _discard(self) -> None:
        """Free the records that were read; they are not returned."""
        for partition in self._strategy.partitions:
            partition.replace(())
        self._hold(0)

    def __del__(self) -> None:
        # An exception may have kept the memory from being freed.
        if self._held_bytes:
            self._hold(0)
