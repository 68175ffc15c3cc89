"""One partition's log: appends, reads, ends, counts, timestamps and retention over its Redis stream.

Offsets are packed ones (korvet.offsets.packing); on dense topics they count 0, 1, 2 and are stored one
higher.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from korvet.offsets.packing import SEQUENCE_BITS, entry_id
from korvet.records.batch import AppendCommands
from korvet.records.control import ControlMarker, control_batch
from korvet.records.kernel import pack
from korvet.records.native import native_rule
from korvet.storage.brokers.assignment import to_leader_epoch
from korvet.storage.brokers.claims import claim
from korvet.storage.errors import (
    DamagedBatch,
    OffsetOutOfRange,
    StorageError,
    StorageFault,
)
from korvet.storage.link.calls import parse_reply
from korvet.storage.link.futures import awaited
from korvet.storage.log.appender import Appender, EncodedBatch
from korvet.storage.log.entries import first_record
from korvet.storage.log.readahead import ReadAhead
from korvet.storage.log.tail_cache import TailCache
from korvet.storage.log.transactions import (
    Aborted,
    KnownProducer,
    TransactionIndex,
    member_of,
    parse_aborted,
    parse_open,
    parse_producer,
)
from korvet.storage.log.values import (
    BOUNDS_FRESH_S,
    DEFAULT_AVERAGE_BYTES,
    Appended,
    Bounds,
    Fetched,
    Marked,
    ProducerSequence,
    ReceivedBatch,
)
from korvet.supervisor import once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.records.batch import AppendArguments
    from korvet.storage.log.resources import LogResources
    from korvet.storage.log.values import Form
    from korvet.storage.topic import Topic


log = logging.getLogger(__name__)

# Entries that one call of a counting function looks at: a few ms of Redis's time.
_COUNTED_AT_ONCE: Final = 1024
_POINTS_AT_ONCE: Final = 1000
_SCANNED_AT_ONCE: Final = 128
# Counting ends with an error where native clients change the stream faster than it can be counted.
_SETTLE_TIMEOUT_S: Final = 60.0
# Timestamps are int64.
_MAX_TIMESTAMP: Final = (1 << 63) - 1
# Listeners that are told of a new log end at once: half a ms of fetches to answer.
_WOKEN_AT_ONCE: Final = 16
# Where entries are batches no time is taken from an entry ID, and a partition takes more than the 1,024
# records per ms that the clock has offsets for.
_BATCH_LEAD_CAP_MS: Final = 86_400_000
# Damaged batches of one partition that are logged; more of them need no further lines.
_MOST_DAMAGED_TOLD: Final = 1_000
# Averages follow the newest batch by this share.
_AVERAGE_WEIGHT: Final = 0.25


class PartitionLog:
    """The log of one partition. Made by Store.log; use from one event loop only.

    `log_start` and `log_end` are what is known here; before the first answer of Redis they are 0 (`loaded`
    False). An append whose connection breaks ends with LinkLost and may or may not have taken effect:
    repeating it is safe for batches with a ProducerSequence, which are recognised; for others the outcome
    stays unknown.
    """

    __slots__ = (
        "_ahead",
        "_appender",
        "_bounds_read_at",
        "_damaged_told",
        "_deleting",
        "_dense_jump_told",
        "_end_known_at",
        "_folding",
        "_lead_cap_ms",
        "_listeners",
        "_resources",
        "_settling",
        "_start_known_at",
        "_topic",
        "_unaddressable_told",
        "_waking",
        "average_bytes",
        "bias",
        "compacting",
        "epoch",
        "keys",
        "largest_bytes",
        "leader_epoch",
        "links",
        "loaded",
        "log_end",
        "log_start",
        "meta",
        "native",
        "partition",
        "refusal",
        "stream",
        "tail",
        "transactions",
        "unaddressable",
    )

    def __init__(
        self, resources: LogResources, topic: Topic, partition: int, epoch: int | None = None
    ) -> None:
        """Use Store.log. `epoch` is our leader epoch; without one nobody fences us."""
        self._resources = resources
        commands = resources.commands
        self.partition = partition
        self.keys = commands.keyspace.partition_keys(topic.name, partition)
        self.stream, _, self.meta, _ = self.keys
        self.links = commands.links(self.stream)
        self.bias = topic.bias
        self._lead_cap_ms = resources.lead_cap_ms
        self.epoch = epoch
        self.leader_epoch = epoch or 0
        self.log_start = 0
        self.log_end = 0
        self.loaded = False
        self.refusal: StorageError | None = None
        """Why the log is closed, which is what everybody is told; None while it is open."""
        self.unaddressable = 0
        """Entries met by reads that no offset can name."""
        self.average_bytes: float = DEFAULT_AVERAGE_BYTES
        self.largest_bytes = 0
        self._bounds_read_at = float("-inf")
        # When the log start and the log end were last told, by an append too.
        self._start_known_at = float("-inf")
        self._end_known_at = float("-inf")
        self._listeners: dict[Callable[[], None], None] = {}
        # Listeners that have yet to be told of the log end.
        self._waking: dict[Callable[[], None], None] = {}
        self.compacting = False
        """Whether a compaction is under way; it has to begin anew when records are deleted meanwhile."""
        self._deleting = asyncio.Lock()
        self._settling = asyncio.Lock()
        self._folding: asyncio.Task[None] | None = None
        self._unaddressable_told = False
        self._dense_jump_told = False
        # Offsets of damaged batches that have been logged.
        self._damaged_told: set[int] = set()
        self.tail = TailCache(resources.tails)
        self.transactions = TransactionIndex()
        self._topic = topic
        self.native = native_rule(topic.native_format)
        self._appender = Appender(self, resources)
        self._ahead = ReadAhead(self, resources.readaheads)

    @property
    def closed(self) -> bool:
        """Whether the log refuses further use."""
        return self.refusal is not None

    @property
    def writes_refused(self) -> StorageError | None:
        """Why Redis takes no writes now, as far as is known; None if it takes them."""
        return self._resources.writes_refused()

    @property
    def keeps_batches(self) -> bool:
        """Whether the tail cache takes what is appended."""
        return self.refusal is None and self._resources.tails.limit_bytes > 0

    @property
    def topic(self) -> Topic:
        """The topic as last known; setting it takes over its configuration."""
        return self._topic

    @topic.setter
    def topic(self, topic: Topic) -> None:
        if topic.log_append_time != self._topic.log_append_time:
            # Other timestamps from now on, for the records that are there as well.
            self.tail.clear()
        self._topic = topic
        self._configure()

    @property
    def lead_cap_ms(self) -> int:
        """How far offsets may run ahead of Redis's clock before appends end with Throttled."""
        if self._topic.storage_layout == "batch":
            return max(self._lead_cap_ms, _BATCH_LEAD_CAP_MS)
        return self._lead_cap_ms

    @lead_cap_ms.setter
    def lead_cap_ms(self, cap_ms: int) -> None:
        self._lead_cap_ms = cap_ms
        self._configure()

    def _configure(self) -> None:
        self.native = native_rule(self._topic.native_format)
        self._appender.configure()

    @property
    def with_timestamps(self) -> bool:
        """Whether batches are to be encoded with timestamps.

        Not with LogAppendTime, where the entry's ID says it; but IDs of dense topics are no times: there the
        timestamps are overwritten on append.
        """
        return self.bias == 1 or not self._topic.log_append_time

    @property
    def reads_append_time(self) -> bool:
        """Whether records read get their entry ID's ms as timestamp (LogAppendTime, but not on
        dense topics).
        """
        return self.bias == 0 and self._topic.log_append_time

    # Appending

    def encode(self, received: ReceivedBatch) -> EncodedBatch:
        """A producer's batch, checked and ready for `append`, which has to follow at once.

        Its form says the timestamps (create times) and the number of records without a key. Raises
        BatchError.
        """
        return self._appender.encode(received)

    def append(
        self,
        batch: AppendArguments | EncodedBatch,
        producer: ProducerSequence | None,
        done: Callable[[Appended | StorageError], None],
        *,
        epoch: int | None = None,
        followed: bool = False,
    ) -> None:
        """Append one batch, all or nothing; the order of calls is the order of appends.

        `epoch` is one that `acquire_epoch` gave, the lowest of our leader epoch if there is none. `followed`
        says that more is about to come, which may go to Redis together with this one: it waits for that until
        the event loop's turn ends.

        `done` is called later with the result, or with Throttled, OutOfOrderSequence, InvalidProducerEpoch,
        FencedEpoch (`epoch` is older than the partition's newest, or another broker leads it), WritesRefused,
        WrongType, OffsetsExhausted, TopicGone, LinkLost or StorageFault. Functions korvet_guard,
        korvet_seal, korvet_append, korvet_append_batch.
        """
        refusal = self.refusal or (None if self._topic.internal else self._resources.no_room)
        if refusal is not None:
            asyncio.get_running_loop().call_soon(done, refusal)
            return
        self._appender.append(batch, producer, epoch, done, followed=followed)

    def mark(
        self,
        marker: ControlMarker,
        done: Callable[[Marked | StorageError], None],
        *,
        epoch: int | None = None,
    ) -> None:
        """End a producer's transaction, behind all appends before; no fault where none is open.

        `done` is called later with the result, or with FencedCoordinator (a newer coordinator has ended a
        transaction of this producer), InvalidProducerEpoch, and what `append` may end with. A marker whose
        connection breaks may be repeated. Function korvet_mark.
        """
        if self.refusal is not None:
            asyncio.get_running_loop().call_soon(done, self.refusal)
            return
        self._appender.mark(marker, epoch, done)

    def marked(self, marker: ControlMarker, marked: Marked, log_start: int, *, behind: bool) -> None:
        """Take over what a marker has changed; `behind` says that the index lacks entries."""
        if behind:
            self._fold_soon()
        previous_end, last_stable_offset = marked.previous_end, marked.last_stable_offset
        if marked.offset < 0:
            self._ends_known(log_start, previous_end, last_stable_offset)
            return
        aborted = None
        if not marker.committed:
            aborted = Aborted(marked.offset, marked.first_offset, marker.producer_id, last_stable_offset)
        self.transactions.ended(previous_end, marked.offset, aborted)
        # On dense topics an entry's ID is no time, and readers are told what it says.
        entry_ms = (marked.offset + self.bias) >> SEQUENCE_BITS
        batch = None
        if self.keeps_batches:
            batch = control_batch(marker, entry_ms, self.leader_epoch, base_offset=marked.offset)
        self.tail.extend(marked.offset, 1, previous_end, batch)
        self._ends_known(log_start, marked.offset + 1, last_stable_offset)

    def took_effect(self, outcome: Appended, form: Form, batch: bytes | None, *, behind: bool) -> None:
        """Take over what an append has changed; `behind` says that the index lacks entries.

        `batch` holds the records as readers get them; None where they don't, or it is not kept.
        """
        if self.bias and self.loaded and outcome.previous_end > self.log_end and not self._dense_jump_told:
            self._dense_jump_told = True
            log.warning(
                "%s: a native writer moved the dense offsets on to %d",
                self.stream.decode(),
                outcome.previous_end,
            )
        count, entries = form.record_count, form.entry_count
        self.average_bytes += (form.payload_bytes / entries - self.average_bytes) * _AVERAGE_WEIGHT
        if isinstance(form, AppendCommands):
            self.largest_bytes = max(self.largest_bytes, form.largest_bytes)
        elif entries == 1:
            self.largest_bytes = max(self.largest_bytes, form.payload_bytes)
        if behind:
            self._fold_soon()
        end = outcome.previous_end
        if not outcome.duplicate:
            end = outcome.base_offset + count
            self.tail.extend(outcome.base_offset, count, outcome.previous_end, batch)
            self.transactions.appended(outcome.previous_end, end)
        # The reply may be that of a whole group, which ends later.
        self._ends_known(outcome.log_start, end, min(outcome.last_stable_offset, end))

    def lost_track(self) -> None:
        """Nobody knows what became of an append: what is cached may end before it."""
        self.tail.clear()
        self._end_known_at = float("-inf")

    def moved(self) -> None:
        """Another server took over, which may lack what was written last: it has to tell both ends anew."""
        self.lost_track()
        self.transactions.forget()
        self._ahead.clear()
        self.loaded = False

    async def acquire_epoch(self) -> int:
        """Take the next writers' epoch; appends with an older one are refused from now on. Raises
        FencedEpoch where a later leader has one, and StorageError.
        """
        self._check_open()
        return await claim(
            self._resources.commands, self._topic, self.partition, self.leader_epoch, new_writer=True
        )

    async def append_wait(
        self,
        arguments: AppendArguments,
        producer: ProducerSequence | None = None,
        *,
        epoch: int | None = None,
    ) -> Appended:
        """As `append`, awaited; raises what `append` would give to `done`."""
        return await awaited(lambda done: self.append(arguments, producer, done, epoch=epoch))

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        done: Callable[[Fetched | StorageError], None],
    ) -> None:
        """Read record batches from `offset` on, about `max_bytes` of them and one record at least.

        The first may begin before the offset. At the log end the answer is empty. `done` is called, at once
        where it was read ahead, with the result, or with OffsetOutOfRange (both ends were read again before),
        DamagedBatch, WrongType, TopicGone, LinkLost or StorageFault. Redis command XRANGE.
        """
        if self.refusal is not None:
            asyncio.get_running_loop().call_soon(done, self.refusal)
            return
        self._ahead.read(offset, max_bytes, done)

    def cached(
        self, offset: int, max_bytes: int, room_bytes: int | None, *, zstd: bool
    ) -> list[bytes] | None:
        """Record batches from `offset` on out of the tail cache, at once; see TailCache.read. None of them
        at a log end that Redis told within `native.poll.interval.ms`.

        What native clients trim is noticed soon after, as by `read`.
        """
        if offset == self.log_end:
            is_fresh = time.monotonic() <= self._end_known_at + self._resources.watcher.interval_s
            return [] if is_fresh and not self.closed else None
        found = self.tail.read(offset, max_bytes, room_bytes, zstd=zstd)
        if found is not None and time.monotonic() > self._start_known_at + BOUNDS_FRESH_S:
            self._start_known_at = time.monotonic()
            self.links.read_functions.send(self.bounds_payload(), self._bounds_arrived)
        return found

    def _bounds_arrived(self, reply: memoryview | StorageError) -> None:
        if not isinstance(reply, StorageError):
            self.take_bounds(parse_reply(reply))

    async def read_wait(self, offset: int, max_bytes: int) -> Fetched:
        """As `read`, awaited; raises what `read` would give to `done`."""
        return await awaited(partial(self.read, offset, max_bytes))

    def note_unaddressable(self, entries: int) -> None:
        """Count entries that a read had to leave out; the first ones are logged."""
        self.unaddressable += entries
        if not self._unaddressable_told:
            self._unaddressable_told = True
            log.warning(
                "%s holds entries that Kafka clients cannot see: more than 1,024 in one millisecond. "
                "Native writers that need so many can use FCALL korvet_xadd",
                self.stream.decode(),
            )

    def found_damaged(self, offset: int) -> DamagedBatch:
        """The error for a record batch that cannot be read, in the entry at this offset; logged once."""
        entry = entry_id(offset, self.bias)
        error = DamagedBatch(
            f"{self.stream.decode()}: entry {entry} is a damaged record batch (wrong CRC, length or place). "
            f"Consumers get CORRUPT_MESSAGE there until they seek to offset {offset + 1}"
        )
        if offset not in self._damaged_told and len(self._damaged_told) < _MOST_DAMAGED_TOLD:
            self._damaged_told.add(offset)
            log.error("%s", error)
        return error

    # Both ends

    def listen(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever the log end grows, natively added entries included, the last stable
        offset or the log start does, until `unlisten`.
        """
        if not self._listeners and not self.closed:
            self._resources.watcher.watch(self)
        self._listeners[callback] = None

    def unlisten(self, callback: Callable[[], None]) -> None:
        """Take a callback back; no fault where it is not there."""
        self._listeners.pop(callback, None)
        if not self._listeners:
            self._resources.watcher.unwatch(self)

    async def bounds(self) -> Bounds:
        """Read both ends from Redis. Raises StorageError. Function korvet_bounds."""
        self._check_open()
        return self.take_bounds(await self._fcall("korvet_bounds", self.bias, read=True))

    def take_bounds(self, reply: list[Any]) -> Bounds:
        """Take over what korvet_bounds says."""
        start, end, entries, payload_bytes, largest, epoch, _, last_id, behind, deleted_end, stable = reply
        self.largest_bytes = max(self.largest_bytes, largest)
        if entries and not self.loaded:
            self.average_bytes = payload_bytes / entries
        self._bounds_read_at = time.monotonic()
        if behind:
            self._fold_soon()
        if not entries or end < self.tail.start:
            self.tail.clear()
        self.tail.cut(deleted_end)
        self._ends_known(start, end, stable)
        return Bounds(start, end, entries, payload_bytes, int(epoch) if epoch else None, last_id, stable)

    async def end_of_leader_epoch(self, epoch: int) -> tuple[int, int] | None:
        """The latest leader epoch up to this one, and where it ended: the log end of the present one, the
        offset where the next leader took over else. None of epochs to come. Raises StorageError.

        Offsets of the clock are not assigned twice, whatever was lost: all epochs end at the log end.
        """
        if epoch > self.leader_epoch:
            return None
        bounds = await self.bounds()
        if epoch == self.leader_epoch or not self.bias:
            return epoch, bounds.log_end
        told = await self.links.read.call("HGET", self.meta, "leaders")
        end = bounds.log_end
        for one in reversed(bytes(told or b"").split()):
            began, _, offset = one.partition(b":")
            if to_leader_epoch(int(began)) <= epoch:
                return to_leader_epoch(int(began)), end
            end = int(offset)
        return epoch, end

    def bounds_age_s(self) -> float:
        """Seconds since both ends were read; infinite where they never were."""
        return time.monotonic() - self._bounds_read_at

    def bounds_payload(self) -> bytes:
        """The packed call of korvet_bounds."""
        return pack("FCALL", "korvet_bounds", 3, *self.keys[:3], self.bias)

    def _ends_known(self, start: int, end: int, last_stable_offset: int = -1) -> None:
        """A reply stated log start and log end, and the last stable offset unless that is -1."""
        has_begun_later = start > self.log_start
        is_news = last_stable_offset >= 0 and self.transactions.proven(last_stable_offset, end)
        if not self.loaded:
            self.loaded = True
            self.log_start = start
            self.log_end = min(self.log_end, end)
        self._start_known_at = self._end_known_at = time.monotonic()
        if has_begun_later:
            self.log_start = start
            self.tail.cut(start)
            self.transactions.cut(start)
        if (has_begun_later or is_news) and end <= self.log_end:
            self._wake_listeners()
        self.grown_to(end)

    def end_told(self) -> None:
        """Redis told where the log ends."""
        self._end_known_at = time.monotonic()

    def grown_to(self, end: int) -> None:
        """The log reaches at least to `end`: tell the listeners where that is news."""
        if end > self.log_end:
            self.log_end = end
            if self._listeners:
                self._wake_listeners()

    def _wake_listeners(self) -> None:
        scheduled = bool(self._waking)
        self._waking.update(self._listeners)
        if not scheduled:
            self._wake_some()

    def _wake_some(self) -> None:
        """Wake listeners, the next in the loop's next turn: a thousand must not keep a producer waiting."""
        waking = self._waking
        for callback in list(itertools.islice(waking, _WOKEN_AT_ONCE)):
            del waking[callback]
            if callback not in self._listeners:
                continue
            try:
                callback()
            except Exception:
                # One listener's mistake must not cost the others their call.
                log.exception("%s: a listener failed", self.stream.decode())
        if waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

    # Counting and timestamps

    async def count(self, from_offset: int, to_offset: int) -> int:
        """Records in [from_offset, to_offset), exactly, in entry ID order. Raises StorageError.

        Entries that no offset names count as part of their millisecond.
        """
        return int((await self._settled("korvet_count", from_offset, to_offset))[1])

    async def offset_before_bytes(self, size_bytes: int) -> int:
        """The first offset with no more bytes of records from it on than so many, were all of the average
        size; 0 where the log has no more. Raises StorageError.
        """
        return int((await self._settled("korvet_before_bytes", size_bytes))[1])

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of the first record with that timestamp or a later one. Raises
        StorageError.
        """
        offset = 0
        while True:
            reply = await self._settled("korvet_find_time", timestamp_ms, offset, _POINTS_AT_ONCE)
            if reply[0] == b"none":
                return None
            if reply[0] == b"more":
                offset = reply[1]
                continue
            first, behind = reply[1:]
            found = await self._scan(max(first, offset), behind, timestamp_ms)
            if found is not None or behind < 0:
                return found
            offset = behind

    async def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of the first record with the largest timestamp. Raises StorageError."""
        await self._settled("korvet_count", 0, 0)
        reply = await self._fcall("korvet_bounds", self.bias, read=True)
        high = _MAX_TIMESTAMP + 1
        best = None
        if reply[6]:
            # The largest that the index has seen; it may have been deleted since, or be rounded.
            probe = min(int(reply[6]), _MAX_TIMESTAMP)
            best = await self.offset_for_timestamp(probe)
            high = high if best else probe
        if best is None:
            best = await self.offset_for_timestamp(-_MAX_TIMESTAMP - 1)
        if best is None:
            return None
        probe = best[1] + 1
        while probe < high:
            above = await self.offset_for_timestamp(probe)
            if above is None:
                high = probe
            else:
                best = above
            probe = (best[1] + high + 1) // 2
        return best

    async def _scan(self, first: int, behind: int, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with that timestamp or a later one in the entries from
        offset first to before behind, to the end where behind is -1.
        """
        start = entry_id(first, self.bias)
        end = "+" if behind < 0 else "(" + entry_id(behind, self.bias)
        while True:
            page = await self._call_read("XRANGE", self.stream, start, end, "COUNT", _SCANNED_AT_ONCE)
            for found_id, fields in page:
                found = first_record(found_id, fields, self.bias, timestamp_ms=timestamp_ms)
                if found is not None:
                    return found
            if len(page) < _SCANNED_AT_ONCE:
                return None
            start = "(" + page[-1][0].decode()

    # Retention

    async def trim(self, retention_ms: int | None, retention_bytes: int | None, now_ms: int) -> int:
        """Delete from the log's start what is older or more than is to be kept; None or -1 keeps all.

        Whole spans of the index go, once their newest record is older than retention_ms, or what is left
        without them is still retention_bytes. Returns the number of entries deleted. Raises StorageError.
        """
        cutoff = "" if retention_ms is None or retention_ms < 0 else now_ms - retention_ms
        keep = "" if retention_bytes is None or retention_bytes < 0 else retention_bytes
        dropped = 0
        async with self._deleting:
            while cutoff != "" or keep != "":
                _, now_dropped, more, start, end = await self._settled(
                    "korvet_trim", cutoff, keep, read=False
                )
                dropped += now_dropped
                self._ends_known(start, end)
                if not more:
                    break
            if dropped:
                await self._forget_aborted()
        return dropped

    async def _forget_aborted(self) -> None:
        """Forget transactions of which no record is left, not even the marker."""
        await self._resources.commands.call(
            "ZREMRANGEBYSCORE", self.aborted_key, "-inf", f"({self.log_start}"
        )

    async def delete_before(self, offset: int | None) -> int:
        """Delete the records before an offset, or all. Returns the log start, the first offset there is not
        before it; of an entry of several records all stay or none. Raises OffsetOutOfRange where it is not in
        the log, and StorageError.
        """
        bound: str | int = "" if offset is None else offset
        async with self._deleting:
            while True:
                outcome, dropped, start, end = await self._settled("korvet_delete_before", bound, read=False)
                self._ends_known(start, end)
                if outcome == b"range":
                    raise OffsetOutOfRange(-1 if offset is None else offset, start, end)
                # What is appended meanwhile is to stay.
                bound = end if bound == "" else bound
                if not dropped:
                    await self._forget_aborted()
                    return int(start)

    async def read_last_stable_offset(self) -> int:
        """The offset before which no transaction is open (the last stable offset), read from Redis, but for
        appends whose outcome may yet have to be read back. Raises StorageError.
        """
        end = (await self.bounds()).last_stable_offset
        unsettled = self._appender.unsettled_from
        return end if unsettled is None else min(end, unsettled - self.bias)

    def compacted(self, end: int) -> None:
        """Records before `end` were removed: none that were read before are given away any more."""
        self.tail.cut(end)
        self._ahead.clear()

    async def aborted_transactions(self) -> list[Aborted]:
        """The aborted transactions that have records in the log, or had, in the order of their markers.
        Raises StorageError.
        """
        found: list[Aborted] = []
        behind = "-inf"
        while True:
            page = await self._call_read(
                "ZRANGEBYSCORE", self.aborted_key, behind, "+inf", "WITHSCORES", "LIMIT", 0, _SCANNED_AT_ONCE
            )
            found += parse_aborted(page)
            if len(page) < 2 * _SCANNED_AT_ONCE:
                return found
            behind = f"({found[-1].last_offset}"

    async def forget_transactions(self, aborted: Sequence[Aborted], gone: Sequence[int]) -> None:
        """Forget aborted transactions: no record of theirs has been in the log for long, and their markers
        are about to go, with all else at these offsets, which are in order. Raises StorageError.
        """
        try:
            for at in range(0, len(aborted), _SCANNED_AT_ONCE):
                page = aborted[at : at + _SCANNED_AT_ONCE]
                await self._resources.commands.call("ZREM", self.aborted_key, *map(member_of, page))
        finally:
            # Not before, as readers learn of those that Redis still has.
            self.transactions.prune(gone)

    async def open_producers(self) -> dict[int, int]:
        """The producers that have a transaction open, and where these begin. Raises StorageError."""
        return parse_open(await self._call_read("HGET", self.meta, "open"))

    async def producers(self) -> list[KnownProducer]:
        """The producers that are remembered, by id. Raises StorageError."""
        opened = await self.open_producers()
        known: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            cursor, page = await self._call_read(
                "HSCAN", self.meta, cursor, "MATCH", "p:*", "COUNT", _SCANNED_AT_ONCE
            )
            known.update(zip(page[::2], page[1::2], strict=True))
            if cursor == b"0":
                break
        if not known:
            return []
        epochs = await self._call_read("HMGET", self.meta, *(b"c" + field[1:] for field in known))
        return sorted(
            parse_producer(field, packed, epoch, opened.get(int(field[2:]), -1))
            for (field, packed), epoch in zip(known.items(), epochs, strict=True)
        )

    @property
    def aborted_key(self) -> bytes:
        """Where the aborted transactions are kept: see Keyspace.aborted."""
        return self._resources.commands.keyspace.aborted(self._topic.name, self.partition)

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset as far as it is proven here."""
        return max(self.transactions.last_stable_offset, self.log_start)

    @property
    def last_stable_offset_is_current(self) -> bool:
        """Whether that is the last stable offset of all of the log that is known here; else Redis has to be
        asked (`bounds`).
        """
        return self.transactions.proven_end >= self.log_end

    async def expire_producers(self, seen_before_ms: int) -> int:
        """Forget producers that appended nothing since that time (Redis's clock); returns how many. Raises
        StorageError.
        """
        forgotten = 0
        cursor = b"0"
        while True:
            self._check_open()
            cursor, expired = await self._resources.commands.fcall(
                "korvet_expire_producers", [self.meta], seen_before_ms, cursor
            )
            forgotten += int(expired)
            if cursor == b"0":
                return forgotten

    # The index

    async def fold(self) -> None:
        """Bring the index up to what native clients added. Raises StorageError."""
        async with self._settling:
            await self._repeat("korvet_fold")

    def _fold_soon(self) -> None:
        if self._folding is None or self._folding.done():
            self._folding = once("index", self._fold_quietly())

    async def _fold_quietly(self) -> None:
        try:
            await self.fold()
        except StorageError as error:
            log.info("%s: native entries are not in the index yet: %s", self.stream.decode(), error)

    async def _repeat(self, function: str) -> None:
        deadline = asyncio.get_running_loop().time() + _SETTLE_TIMEOUT_S
        while await self._fcall(function, self.bias, _COUNTED_AT_ONCE) == 0:
            if asyncio.get_running_loop().time() > deadline:
                raise StorageFault(f"{self.stream.decode()} changes faster than it can be counted")

    async def _settled(self, function: str, *args: bytes | str | int, read: bool = True) -> list[Any]:
        """Call a function that needs a correct index, having corrected it where need be."""
        deadline = asyncio.get_running_loop().time() + _SETTLE_TIMEOUT_S
        while True:
            reply: list[Any] = await self._fcall(function, self.bias, *args, read=read)
            if reply[0] not in {b"fold", b"recount"}:
                return reply
            if asyncio.get_running_loop().time() > deadline:
                raise StorageFault(f"{self.stream.decode()} changes faster than it can be counted")
            async with self._settling:
                await self._repeat("korvet_fold" if reply[0] == b"fold" else "korvet_recount")

    async def _fcall(self, function: str, *args: bytes | str | int, read: bool = False) -> Any:
        self._check_open()
        return await self._resources.commands.fcall(function, self.keys[:3], *args, read=read)

    async def _call_read(self, *args: bytes | str | int) -> Any:
        self._check_open()
        return await self.links.read.call(*args)

    def _check_open(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def close(self, refusal: StorageError) -> None:
        """Refuse further use for that reason; listeners are told, so that nobody waits for what will not
        come.
        """
        self.refusal = refusal
        self.tail.clear()
        self._ahead.clear()
        self._resources.watcher.unwatch(self)
        self._appender.close(refusal)
        if self._folding is not None:
            self._folding.cancel()
        listeners = list(self._listeners)
        self._listeners.clear()
        self._waking.clear()
        for callback in listeners:
            callback()
