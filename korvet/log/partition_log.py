"""One partition's log over its Redis stream: the facade of appends, reads, queries and deletions.

Offsets are packed ones (korvet.offsets.packing). On dense topics they count 0, 1, 2 and are stored one
higher.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from korvet.cluster.assignment import writer_epochs
from korvet.cluster.claims import claim
from korvet.log.appender import Appender
from korvet.log.index import LogIndex
from korvet.log.queries import Queries
from korvet.log.readahead import ReadAhead
from korvet.log.release import level_of
from korvet.log.state import LogState
from korvet.log.trimming import Trimming
from korvet.log.values import LAST_OFFSET
from korvet.redis.errors import (
    HighWatermarkUnknown,
    NotEnoughReplicas,
    OffsetOutOfRange,
    StorageError,
)
from korvet.redis.futures import awaited
from korvet.redis.replicas import replicated

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.cluster.topic import Topic
    from korvet.log.resources import LogResources
    from korvet.log.values import (
        Appended,
        Bounds,
        Ends,
        Fetched,
        Marked,
        Producer,
        ReceivedBatch,
    )
    from korvet.records.batch import AppendArguments
    from korvet.records.control import ControlMarker

# Longest wait for the replicas' first answer about a log. It usually takes a millisecond.
_FIRST_RELEASE_MS: Final = 1000


def _always() -> bool:
    return True


def _ignore(_: object) -> None:
    pass


def _unless_lost(
    stale: StorageError, done: Callable[[Fetched | StorageError], None], outcome: Fetched | StorageError
) -> None:
    """The outcome of a read while Redis may have lost writes. Readers beyond the log end wait for the next
    leader epoch, which tells them where to continue.
    """
    lost = isinstance(outcome, OffsetOutOfRange) and outcome.offset > outcome.log_end
    done(stale if lost else outcome)


class PartitionLog:
    """The log of one partition. Logs.get opens it; use it from one event loop only.

    An append whose connection breaks ends with LinkLost if Redis does not come back within ten seconds, and
    may or may not have taken effect then. Repeating it is safe for batches with a ProducerSequence, which are
    recognised.
    """

    __slots__ = (
        "_appender",
        "_claim_again",
        "_held_reads",
        "_index",
        "_readahead",
        "_resources",
        "_unclaimed",
        "bias",
        "compacting",
        "counts",
        "epoch",
        "keys",
        "leader_epoch",
        "links",
        "meta",
        "partition",
        "queries",
        "state",
        "stream",
        "trimming",
    )

    def __init__(
        self, resources: LogResources, topic: Topic, partition: int, epoch: int | None = None
    ) -> None:
        """Use Logs.get. `epoch` is our leader epoch; without it no other broker fences us."""
        commands = resources.commands
        level = level_of(topic, resources.level)
        state = LogState(commands, resources.tails, topic, partition, epoch, resources.lead_cap_ms, level)
        self.counts = state.counts = resources.counts.topics[topic.name]
        """The traffic of the topic, as this broker counts it."""
        self._resources = resources
        self.state = state
        self.partition = partition
        self.keys = state.keys
        self.stream = state.stream
        self.meta = state.meta
        self.links = state.links
        self.bias = state.bias
        self.epoch = state.epoch
        self.leader_epoch = state.leader_epoch
        self.compacting = False
        """Whether a compaction is under way. It starts over if records are deleted during it."""
        self._index = LogIndex(state, commands)
        state.on_index_stale = self._index.fold_soon
        state.on_released = resources.watermarks.changed
        self.queries = Queries(state, self._index)
        self.trimming = Trimming(state, commands, self._index)
        self._appender = Appender(state, resources)
        self._readahead = ReadAhead(state, resources.readaheads)
        # Why Redis refused to claim the partition, and what claims it again.
        self._unclaimed: StorageError | None = None
        self._claim_again: Callable[[], None] | None = None
        # Reads that wait until the partition is claimed; None once it is.
        self._held_reads: list[Callable[[], None]] | None = None

    @property
    def topic(self) -> Topic:
        """The topic as last known. Setting it takes over its configuration."""
        return self.state.topic

    @topic.setter
    def topic(self, topic: Topic) -> None:
        if topic.log_append_time != self.state.topic.log_append_time:
            # Readers get other timestamps from now on, for existing records too.
            self.state.tail.clear()
        level = level_of(topic, self._resources.level)
        self.state.configure(topic, self._resources.lead_cap_ms, level)
        self._appender.configure()

    @property
    def ends(self) -> Ends:
        """The log's bounds, as far as they are known."""
        return self.state.ends

    @property
    def waits_for_replicas(self) -> bool:
        """Whether records are released only after replicas, or disks, have them."""
        return self.state.release is not None

    @property
    def refusal(self) -> StorageError | None:
        """Why the log is closed; None while it is open."""
        return self.state.refusal

    @property
    def closed(self) -> bool:
        """Whether the log refuses further use."""
        return self.state.refusal is not None

    @property
    def writes_refused(self) -> bool:
        """Whether Redis accepts no commits and changes of groups now, as far as is known."""
        refusals = self._resources.refusals
        return bool(refusals) and refusals.of_groups(self._place)

    @property
    def _place(self) -> str:
        return str(self.links.server.address)

    def count_refusal(self, error: StorageError) -> None:
        """Count that a batch of a client was refused with this error."""
        self._resources.refusals.count(error, self._place)

    # Appending

    def append(
        self,
        received: ReceivedBatch,
        producer: Producer | None,
        admit: Callable[[AppendArguments], None],
        done: Callable[[Appended | StorageError], None],
        *,
        epoch: int | None = None,
        followed: bool = False,
        is_wanted: Callable[[], bool] = _always,
    ) -> bool:
        """Append a producer's batch, all its records or none. The order of calls is the order of appends.
        Returns whether the append waits, for earlier ones or for the clock (see `throttle_ms`).

        `admit` is called once with the checked records and raises if they must not be appended; that error
        and BatchError leave this call, and nothing is appended. `epoch` is one of `acquire_epoch`; without it
        the lowest of our leader epoch applies. `followed`: more batches are about to come, which may go to
        Redis together with this one. It waits for them until the event loop's iteration ends.

        `is_wanted`: whether the producer still waits for the result; if not, an append that waited is given
        up.

        `done` is called later with the result, or with OutOfOrderSequence, InvalidProducerEpoch, FencedEpoch
        (`epoch` is older than the partition's newest, or another broker leads it), WritesRefused, WrongType,
        OffsetsExhausted, TopicGone, LinkLost or StorageFault (also after it was given up). Functions
        korvet_append, korvet_begin; KORVET.PUT of the server module.
        """
        refusal = self._refusal_of_records()
        if refusal is not None:
            asyncio.get_running_loop().call_soon(done, refusal)
            return False
        return self._appender.append(
            received, producer, admit, done, epoch=epoch, followed=followed, is_wanted=is_wanted
        )

    def append_own(
        self,
        arguments: AppendArguments,
        producer: Producer | None,
        done: Callable[[Appended | StorageError], None],
        *,
        epoch: int | None = None,
    ) -> None:
        """Append records of the broker's own, which are encoded already. Otherwise as `append`."""
        refusal = self._refusal_of_records()
        if refusal is not None:
            asyncio.get_running_loop().call_soon(done, refusal)
            return
        self._appender.append_own(arguments, producer, done, epoch=epoch)

    def mark(
        self,
        marker: ControlMarker,
        done: Callable[[Marked | StorageError], None],
        *,
        epoch: int | None = None,
    ) -> None:
        """End a producer's transaction after all earlier appends. It is no error if none is open.

        `done` is called later with the result, or with FencedCoordinator (a newer coordinator has ended a
        transaction of this producer), InvalidProducerEpoch, or an error of `append`. A marker whose
        connection breaks may be repeated. Function korvet_mark.
        """
        refusal = self.state.refusal or self._resources.stale or self._refusal_of_claim()
        if refusal is not None:
            asyncio.get_running_loop().call_soon(done, refusal)
            return
        self._appender.mark(marker, epoch, done)

    def await_claim(self, refusal: StorageError, claim_again: Callable[[], None]) -> None:
        """Append nothing until `claimed`: the claim, which Redis refused, notes where the log of earlier
        leaders ends. `claim_again()` is called when a caller wants to append.
        """
        self._unclaimed, self._claim_again = refusal, claim_again

    def claimed(self) -> None:
        """Append from now on."""
        self._unclaimed = self._claim_again = None

    def _refusal_of_claim(self) -> StorageError | None:
        """Why the partition could not be claimed; it is claimed again. None if it is claimed."""
        claim_again, self._claim_again = self._claim_again, None
        if claim_again is not None:
            claim_again()
        return self._unclaimed

    def _refusal_of_records(self) -> StorageError | None:
        """Why no records are appended now; None if they are."""
        resources = self._resources
        refusal = self.state.refusal or resources.stale or self._refusal_of_claim()
        return refusal or (None if self.state.topic.internal else resources.refusals.no_room)

    @property
    def missing_replicas(self) -> NotEnoughReplicas | None:
        """Why records cannot become as safe now as the topic asks for; None if nothing speaks against it."""
        release = self.state.release
        return None if release is None else release.missing_replicas

    def await_released(self, end: int, timeout_ms: int, done: Callable[[StorageError | None], None]) -> None:
        """Call done(None), now or later, once all records before the offset `end` have the copies that the
        topic asks for. These records must have been appended.

        Otherwise `done` is called with NotEnoughReplicasAfterAppend, after `timeout_ms` or when replicas are
        known to be missing, or with HistoryChanged after another server took over. Redis commands WAIT and
        WAITAOF.
        """
        release = self.state.release
        if release is None:
            done(None)
        else:
            release.wait(end, timeout_ms, done)

    @property
    def throttle_ms(self) -> int:
        """How long a producer should wait before its next append, because the offsets are ahead of Redis's
        clock by the permitted lead (ms).
        """
        return self._appender.throttle_ms

    async def acquire_epoch(self) -> int:
        """Take the next writers' epoch: appends with an older one are refused from now on. Raises FencedEpoch
        if a later leader has one, and StorageError.
        """
        state = self.state
        state.check_open()
        commands = self._resources.commands
        epoch = await claim(commands, state.topic, self.partition, self.leader_epoch, new_writer=True)
        assert epoch in writer_epochs(self.leader_epoch), f"epoch {epoch} of {self.leader_epoch} was claimed"
        self.claimed()
        return epoch

    # Reading

    def read(self, offset: int, max_bytes: int, done: Callable[[Fetched | StorageError], None]) -> None:
        """Read record batches from `offset` on: about `max_bytes` of them, and one record at least.

        The first batch may begin before the offset. At the log end the result is empty. `done` is called, at
        once if the result was read ahead, with the result or with OffsetOutOfRange (after both ends were read
        again), HighWatermarkUnknown, DamagedBatch, WrongType, TopicGone, LinkLost or StorageFault. Redis
        command XRANGE.
        """
        if self.state.refusal is not None:
            asyncio.get_running_loop().call_soon(done, self.state.refusal)
        elif self._held_reads is not None:
            self._held_reads.append(partial(self.read, offset, max_bytes, done))
        elif (stale := self._resources.stale) is not None:
            self._read(offset, max_bytes, partial(_unless_lost, stale, done))
        else:
            self._read(offset, max_bytes, done)

    def _read(self, offset: int, max_bytes: int, done: Callable[[Fetched | StorageError], None]) -> None:
        if self.state.known.has_watermark:
            self._readahead.read(offset, max_bytes, done)
        else:
            self._read_later(offset, max_bytes, done)

    def _read_later(
        self, offset: int, max_bytes: int, done: Callable[[Fetched | StorageError], None]
    ) -> None:
        def known(error: StorageError | None) -> None:
            if error is None:
                self.read(offset, max_bytes, done)
            else:
                done(error)

        self.await_watermark(known)

    def hold_reads(self) -> None:
        """Read nothing until `release_reads`: records of a later leader epoch would be returned as records of
        this one.
        """
        self._held_reads = []

    def release_reads(self) -> None:
        """Read what was held. The partition is claimed: a later leader's claim finds this epoch."""
        held, self._held_reads = self._held_reads, None
        for read in held or ():
            read()

    def await_watermark(self, done: Callable[[StorageError | None], None]) -> None:
        """Call done(None) once the high watermark is known, `done` with HighWatermarkUnknown if no replica
        confirms soon what the log holds, or `done` with another StorageError.
        """
        self.state.read_bounds(lambda _: self._await_confirmed(0, done), done)

    def _await_confirmed(self, end: int, done: Callable[[StorageError | None], None]) -> None:
        """Call done(None) once the high watermark is known to be `end` or more, or `done` with
        HighWatermarkUnknown if no replica confirms that soon.
        """

        def confirmed(error: StorageError | None) -> None:
            done(None if error is None else HighWatermarkUnknown(str(error)))

        self.await_released(end, _FIRST_RELEASE_MS, confirmed)

    def cached(
        self, offset: int, max_bytes: int, remaining_bytes: int | None, *, zstd: bool
    ) -> list[bytes] | None:
        """Record batches from `offset` on out of the tail cache, at once; see TailCache.read. At the high
        watermark the list is empty if Redis stated the log end within `native.poll.interval.ms`.

        Deletions by native clients are noticed soon after, as by `read`.
        """
        state = self.state
        if not state.known.has_watermark:
            return None
        ends = state.ends
        if ends.high_watermark <= offset <= ends.log_end:
            is_fresh = state.end_is_fresh(self._resources.watcher.interval_s)
            return [] if is_fresh and state.refusal is None else None
        found = state.tail.read(offset, max_bytes, remaining_bytes, zstd=zstd, to_offset=ends.high_watermark)
        if found is not None and state.start_needs_reading():
            state.read_bounds(_ignore, _ignore)
        return found

    async def bounds(self) -> Bounds:
        """Read both ends from Redis; see Queries.bounds. Raises StorageError."""
        return await self.queries.bounds()

    async def read_watermark(self) -> int:
        """The high watermark of the log as Redis has it now. Raises as `await_watermark`."""
        if not self.state.known.has_watermark:
            await awaited(self.await_watermark)
        await self.bounds()
        return self.ends.high_watermark

    async def readable_end(self, *, is_committed: bool, after: int = LAST_OFFSET) -> int:
        """What ListOffsets returns as the latest offset: the high watermark, or the last stable offset if
        `is_committed`, of the log as Redis has it now.

        After a change of leader, it is not before the end that the last leader may have returned (KIP-207),
        unless it is after the offset `after`: that suffices then. Raises HighWatermarkUnknown if no replica
        confirms soon what the log holds, and StorageError.
        """
        await self.read_watermark()
        release = self.state.release
        if release is not None and self._readable_end(is_committed) <= after:
            await awaited(partial(self._await_confirmed, release.found_end))
        return self._readable_end(is_committed)

    def _readable_end(self, is_committed: bool) -> int:
        return self.ends.last_stable_offset if is_committed else self.ends.high_watermark

    async def read_last_stable_offset(self) -> int:
        """The last stable offset, read from Redis. It is not after the high watermark. Raises
        StorageError.
        """
        await self.bounds()
        return self.ends.last_stable_offset

    # Changes

    async def delete_before(self, offset: int | None, timeout_ms: int) -> int:
        """Delete the records before an offset, or all that readers see. Returns the log start; see
        Trimming.delete_before.

        Raises OffsetOutOfRange, HighWatermarkUnknown, NotReplicated if the replicas that the topic asks for
        don't have the deletion within `timeout_ms`, and StorageError.
        """
        if (release := self.state.release) is None:
            return await self.trimming.delete_before(offset)
        held = self.state.held
        history = held.history
        # Readers of the last leader may have asked for the offset.
        after = LAST_OFFSET if offset is None else offset - 1
        end = await self.readable_end(is_committed=False, after=after)
        if offset is not None and offset > end:
            raise OffsetOutOfRange(offset, self.ends.log_start, end)
        start = await self.trimming.delete_before(end if offset is None else offset)
        await replicated(held, release.level, history, timeout_ms / 1000)
        return start

    def listen(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the log end (entries of native clients included), the last stable offset
        or the log start grows, until `unlisten`.
        """
        state = self.state
        if not state.listeners and state.refusal is None:
            self._resources.watcher.watch(state, self.queries.bounds)
        state.listeners.add(callback)

    def unlisten(self, callback: Callable[[], None]) -> None:
        """Cease to call `callback`. It is no error if it is not called."""
        self.state.listeners.remove(callback)
        if not self.state.listeners:
            self._resources.watcher.unwatch(self.state)

    def compacted(self, end: int) -> None:
        """Take over that records before `end` were removed: what was read of them is not delivered."""
        self.state.tail.cut(end)
        self._readahead.clear()

    def moved(self) -> None:
        """Take over that another server holds the log now; see LogState.forget."""
        self.state.forget()
        self._readahead.clear()

    def close(self, refusal: StorageError) -> None:
        """Refuse further use for that reason. Listeners are called a last time, so that none waits for
        changes that will not come.
        """
        state = self.state
        self._resources.watermarks.end(state)
        state.refusal = refusal
        if state.release is not None:
            state.release.close(refusal)
        state.tail.clear()
        self._readahead.clear()
        self._resources.watcher.unwatch(state)
        self._appender.close(refusal)
        self._index.close()
        self.release_reads()
        state.listeners.close()
