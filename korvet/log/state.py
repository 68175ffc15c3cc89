"""What this broker knows of one partition's log: keys, epochs, ends, average sizes, the tail cache and the
transactions. Its only I/O is `read_bounds`: other replies of Redis come in as arguments.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from korvet.cluster.assignment import to_leader_epoch, writer_epochs
from korvet.log.counts import TopicCounts
from korvet.log.ends import KnownEnds
from korvet.log.listeners import Listeners
from korvet.log.release import Release
from korvet.log.tail_cache import TailCache
from korvet.log.transactions import Aborted, TransactionIndex
from korvet.log.values import BOUNDS_FRESH_S, DEFAULT_AVERAGE_BYTES, Bounds, Ends
from korvet.offsets.packing import SEQUENCE_BITS, unpack
from korvet.records.control import control_batch
from korvet.records.kernel import pack_command
from korvet.records.native import native_rule
from korvet.redis.barrier import Level
from korvet.redis.calls import parse_reply
from korvet.redis.errors import FencedEpoch, StorageError, StorageFault, domain_error
from korvet.redis.functions import named
from korvet.redis.replicas import Held

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.cluster.topic import Topic
    from korvet.log.tail_cache import TailBudget
    from korvet.log.values import Appended, Marked
    from korvet.records.batch import AppendArguments
    from korvet.records.control import ControlMarker
    from korvet.redis.calls import OnReply
    from korvet.redis.commands import Commands

log = logging.getLogger(__name__)

# How far the offsets of a topic with storage.layout=batch may run ahead of Redis's clock. No time is taken
# from its entry IDs, and a partition accepts more than the 1,024 records per ms that the clock has offsets
# for.
_BATCH_LEAD_CAP_MS: Final = 86_400_000
# The weight of the newest batch in the average entry size.
_AVERAGE_WEIGHT: Final = 0.25
_NEVER: Final = float("-inf")


def _ignore(*_: object) -> None:
    pass


class LogState:
    """The state of one partition's log. Its collaborators share one instance, in one event loop.

    `known` is what Redis and its replicas have proven of the log's bounds; `ends` are these bounds.
    """

    __slots__ = (
        "_bounds_call",
        "_bounds_read_at",
        "_dense_jump_logged",
        "_end_known_at",
        "_start_known_at",
        "_tails",
        "aborted_key",
        "average_bytes",
        "bias",
        "catalogue",
        "counts",
        "epoch",
        "held",
        "keys",
        "known",
        "largest_bytes",
        "lead_cap_ms",
        "leader_epoch",
        "links",
        "listeners",
        "meta",
        "name",
        "native",
        "next_position",
        "on_index_stale",
        "on_released",
        "partition",
        "refusal",
        "release",
        "stream",
        "tail",
        "topic",
        "transactions",
    )

    def __init__(
        self,
        commands: Commands,
        tails: TailBudget,
        topic: Topic,
        partition: int,
        epoch: int | None,
        lead_cap_ms: int,
        level: Level,
    ) -> None:
        """`epoch`: see PartitionLog; `lead_cap_ms` and `level`: see `configure`."""
        keyspace = commands.keyspace
        self.partition = partition
        self.keys = keyspace.partition_keys(topic.name, partition)
        self.stream, _, self.meta, _ = self.keys
        self.name = self.stream.decode()
        """The stream's key, for messages."""
        self.aborted_key = keyspace.aborted(topic.name, partition)
        self.links = commands.links(self.stream)
        self.held = Held(self.links, self.stream, keyspace.barrier(topic.name, partition))
        """The stream, as replicas are asked for it."""
        self.catalogue = Held(commands.links(keyspace.topics), keyspace.topics, keyspace.shared_barrier)
        """The topic catalogue, as replicas are asked for it."""
        self.bias = topic.bias
        self._bounds_call = pack_command("FCALL", named("korvet_bounds"), 3, *self.keys[:3], self.bias)
        self.epoch = epoch
        self.leader_epoch = epoch or 0
        self.counts = TopicCounts()
        """What is counted of the topic; its logs share it (LogCounts)."""
        self.refusal: StorageError | None = None
        """Why the log is closed; every use of it raises this. None while the log is open."""
        self.next_position = -1
        """The position after our last append; -1 before the first one."""
        self.average_bytes: float = DEFAULT_AVERAGE_BYTES
        self.largest_bytes = 0
        """The size of the largest known entry."""
        self._bounds_read_at = _NEVER
        # When a reply last stated the log start and the log end; replies to appends count.
        self._start_known_at = _NEVER
        self._end_known_at = _NEVER
        self._dense_jump_logged = False
        self.listeners = Listeners(self.name)
        """Called when the log end, the last stable offset or the log start grows, and when they are no longer
        known for certain.
        """
        self.on_index_stale: Callable[[], None] = _ignore
        """Called when the index lacks entries that native clients added."""
        self._tails = tails
        self.tail = TailCache(tails)
        self.transactions = TransactionIndex()
        self.known = KnownEnds(self.transactions)
        self.release: Release | None = None
        """The wait for replicas; None if the topic asks for nothing beyond the primary's memory."""
        self.on_released: Callable[[LogState], None] = _ignore
        """Called after the high watermark of a log that waits for replicas has grown."""
        self.configure(topic, lead_cap_ms, level)

    def configure(self, topic: Topic, lead_cap_ms: int, level: Level) -> None:
        """Take over the topic's configuration. `lead_cap_ms`: how far offsets may run ahead of Redis's clock
        before appends wait for it, on topics with storage.layout=record. `level`: what records need before
        readers see them.
        """
        self.topic = topic
        self.native = native_rule(topic.native_format)
        is_batch = topic.storage_layout == "batch"
        self.lead_cap_ms = max(lead_cap_ms, _BATCH_LEAD_CAP_MS) if is_batch else lead_cap_ms
        former = self.release
        if self.refusal is None and level != (former.level if former is not None else Level()):
            self.known.await_copies(waits=bool(level))
            self.release = self._release(level) if level else None
            if former is not None:
                former.hand_over(self.release)
            self.listeners.wake()

    def _release(self, level: Level) -> Release:
        return Release(
            self.known,
            level,
            self.held,
            self.catalogue,
            forget=self.forget,
            read_bounds=self.read_bounds,
            read_noted=self._read_noted,
            announce=self.announce,
        )

    def _read_noted(self, done: OnReply) -> None:
        self.links.read.send(pack_command("HGET", self.meta, "watermark"), done)

    def announce(self) -> None:
        """Take over that records were released."""
        self.listeners.wake()
        self.on_released(self)

    @property
    def ends(self) -> Ends:
        """The log's bounds, as far as they are known."""
        return self.known.ends

    @property
    def keeps_batches(self) -> bool:
        """Whether the tail cache accepts what is appended."""
        return self.refusal is None and self._tails.limit_bytes > 0

    @property
    def with_timestamps(self) -> bool:
        """Whether batches are encoded with timestamps.

        With LogAppendTime they are not: the entry ID is the time. But the entry IDs of dense topics are no
        times; there the append overwrites the timestamps.
        """
        return self.bias == 1 or not self.topic.log_append_time

    @property
    def reads_append_time(self) -> bool:
        """Whether records get their entry ID's ms as timestamp when they are read: with LogAppendTime, except
        on dense topics.
        """
        return self.bias == 0 and self.topic.log_append_time

    def append_time_ms(self, appended: Appended) -> int:
        """The timestamp that readers find in the first record of a batch, on a topic with LogAppendTime. A
        batch that takes more than the free offsets of this ms continues in the next ones.
        """
        if self.reads_append_time and self.topic.storage_layout == "record":
            return unpack(appended.base_offset)[0]
        return appended.append_ms

    def ahead_ms(self, position: int) -> int:
        """How far a position is ahead of Redis's clock, beyond the permitted lead (ms); 0 or less within it.
        Always 0 on dense topics.
        """
        if self.bias or position < 0:
            return 0
        return (position >> SEQUENCE_BITS) - self.links.clock.now_ms() - self.lead_cap_ms

    @property
    def highest_epoch(self) -> bytes:
        """The highest writers' epoch of our leader epoch, with which functions recognise a later leader.
        Empty if no other broker fences us.
        """
        return b"" if self.epoch is None else b"%d" % (writer_epochs(self.epoch).stop - 1)

    def check_open(self) -> None:
        """Raise the refusal if the log is closed."""
        if self.refusal is not None:
            raise self.refusal

    # What replies of Redis show.

    def note_appended(
        self,
        outcomes: Sequence[Appended],
        forms: Sequence[AppendArguments],
        batches: Sequence[bytes | None],
        *,
        index_stale: bool,
    ) -> None:
        """Take over what appends changed that took effect together.

        `batches`: the bytes to cache for readers; None if readers would get different bytes, or caching is
        off. `index_stale`: whether the index lacks entries of native clients.
        """
        previous_end, known = outcomes[0].previous_end, self.known
        if self.bias and known.loaded and previous_end > known.ends.log_end and not self._dense_jump_logged:
            self._dense_jump_logged = True
            log.warning("%s: a native writer moved the dense offsets on to %d", self.name, previous_end)
        if index_stale:
            self.on_index_stale()
        end = previous_end
        for outcome, form, batch in zip(outcomes, forms, batches, strict=True):
            count, entries = form.record_count, form.entry_count
            self.average_bytes += (form.payload_bytes / entries - self.average_bytes) * _AVERAGE_WEIGHT
            self.largest_bytes = max(self.largest_bytes, form.largest_bytes)
            if not outcome.duplicate:
                end = outcome.base_offset + count
                self.tail.extend(outcome.base_offset, count, outcome.previous_end, batch)
                self.transactions.appended(outcome.previous_end, end)
        self.note_ends(outcomes[0].log_start, end, min(outcomes[0].last_stable_offset, end))

    def note_read(self, size_bytes: int, entries: int) -> None:
        """Take over the size of the entries that a read returned."""
        self.average_bytes += (size_bytes / entries - self.average_bytes) * _AVERAGE_WEIGHT

    def note_marked(
        self, marker: ControlMarker, marked: Marked, log_start: int, *, index_stale: bool
    ) -> None:
        """Take over what a marker changed; `index_stale` as for `note_appended`."""
        if index_stale:
            self.on_index_stale()
        previous_end, last_stable_offset = marked.previous_end, marked.last_stable_offset
        if marked.offset < 0:
            self.note_ends(log_start, previous_end, last_stable_offset)
            return
        aborted = None
        if not marker.committed:
            aborted = Aborted(marked.offset, marked.first_offset, marker.producer_id, last_stable_offset)
        self.transactions.ended(previous_end, marked.offset, aborted)
        # On dense topics an entry's ID is no time; readers get the ID's ms all the same.
        entry_ms = (marked.offset + self.bias) >> SEQUENCE_BITS
        batch = None
        if self.keeps_batches:
            batch = control_batch(marker, entry_ms, self.leader_epoch, base_offset=marked.offset)
        self.counts.records_in += 1
        self.tail.extend(marked.offset, 1, previous_end, batch)
        self.note_ends(log_start, marked.offset + 1, last_stable_offset)

    def read_bounds(self, done: Callable[[Bounds], None], failed: Callable[[StorageError], None]) -> None:
        """Read both ends from Redis. Function korvet_bounds."""

        def arrived(reply: memoryview | StorageError) -> None:
            if isinstance(reply, StorageError):
                failed(domain_error(reply))
                return
            try:
                bounds = self.take_bounds(parse_reply(reply))
            except AssertionError as error:
                log.exception("%s: both ends contradict what is known", self.name)
                failed(StorageFault(f"{self.name}: {error}"))
            else:
                done(bounds)

        self.links.read_functions.send(self._bounds_call, arrived)

    def take_bounds(self, reply: list[Any]) -> Bounds:
        """Take over a parsed reply of korvet_bounds."""
        start, end, entries, payload_bytes, largest, epoch, _, last_id, index_stale, deleted_end, stable = (
            reply
        )
        self.largest_bytes = max(self.largest_bytes, largest)
        if entries and not self.known.loaded:
            self.average_bytes = payload_bytes / entries
        self._bounds_read_at = time.monotonic()
        if index_stale:
            self.on_index_stale()
        writer_epoch = int(epoch) if epoch else None
        if self.is_superseded(writer_epoch):
            # What the next leader appends is no part of the log in our epoch. Its markers may have ended
            # transactions of our epoch: only what was proven before remains proven.
            end = max(start, min(end, self.ends.log_end))
            stable = min(self.known.stable, end)
        if not entries or end < self.tail.start:
            self.tail.clear()
        self.tail.cut(deleted_end)
        self.note_ends(start, end, stable)
        return Bounds(start, end, entries, payload_bytes, writer_epoch, last_id, stable)

    def is_superseded(self, writer_epoch: int | None) -> bool:
        """Whether the writers' epoch of the meta hash is that of a later leader."""
        return (
            self.epoch is not None
            and writer_epoch is not None
            and to_leader_epoch(writer_epoch) > self.leader_epoch
        )

    def superseded(self) -> FencedEpoch:
        """The error for readers."""
        return FencedEpoch(f"another broker leads {self.name} now")

    def note_ends(self, start: int, end: int, last_stable_offset: int = -1) -> None:
        """Take over log start and log end of one reply, and its last stable offset unless that is -1."""
        known = self.known
        before, is_first = known.ends, not known.loaded
        try:
            known.take(start, end, last_stable_offset)
        except AssertionError:
            self.forget()
            raise
        self._start_known_at = self._end_known_at = time.monotonic()
        local_start = known.ends.local_log_start
        if local_start > before.local_log_start:
            self.tail.cut(local_start)
            self.transactions.cut(local_start)
        self._changed(before, is_first=is_first)

    def grow_to(self, end: int) -> None:
        """Take over that the log reaches at least to `end`."""
        before = self.ends
        self.known.grow(end)
        self._changed(before)

    def _changed(self, before: Ends, *, is_first: bool = False) -> None:
        after = self.known.ends
        if self.release is not None:
            if is_first:
                self.release.loaded()
            elif after.log_end > before.log_end:
                self.release.grown()
        if after.visible != before.visible:
            self.listeners.wake()

    def lost_track(self) -> None:
        """Take over that the outcome of an append is unknown: the cached batches may end before it."""
        self.tail.clear()
        self._end_known_at = _NEVER
        self.listeners.wake()

    def forget(self) -> None:
        """Take over that another server holds the log now, which may lack the last writes: both ends have to
        be read again.
        """
        self.known.forget()
        if self.release is not None:
            self.release.moved()
        self.lost_track()

    # How old that knowledge is.

    @property
    def has_fresh_bounds(self) -> bool:
        """Whether both ends were read so recently that records deleted at the log start can be missed."""
        return time.monotonic() - self._bounds_read_at <= BOUNDS_FRESH_S

    def note_end_read(self) -> None:
        """Take over that Redis confirmed the log end."""
        self._end_known_at = time.monotonic()

    def end_is_fresh(self, interval_s: float) -> bool:
        """Whether Redis stated the log end within the last `interval_s`."""
        return time.monotonic() <= self._end_known_at + interval_s

    def start_needs_reading(self) -> bool:
        """Whether the log start has been unread for so long that it should be read again. The next call
        returns False: the caller reads it.
        """
        now_s = time.monotonic()
        if now_s <= self._start_known_at + BOUNDS_FRESH_S:
            return False
        self._start_known_at = now_s
        return True
