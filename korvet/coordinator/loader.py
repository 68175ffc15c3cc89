"""Loads a partition of `__consumer_offsets` into a group shard: the newest value of every key, in the log's
order.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeAlias

from korvet.offsets.codec import DecodeError, decode_key, decode_value
from korvet.offsets.packing import AddressError, entry_id, offset_of
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.storage.errors import StorageError, domain_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from korvet.coordinator.projector import NewestCommits
    from korvet.groups.shard import GroupShard
    from korvet.storage.log import PartitionLog
    from korvet.storage.store import Store

logger = logging.getLogger(__name__)

Entry: TypeAlias = "tuple[bytes, list[bytes]]"

# Keys of the `latest` hash asked for at once.
SCANNED_AT_ONCE: Final = 1_000
# Superseded entries between two wanted ones that are read along rather than asking twice: a command costs
# as much as about this many entries.
READ_ALONG: Final = 8
# Offsets that one XRANGE covers; bounds the size of a reply, also where group metadata is large.
RANGE_OFFSETS: Final = 256
# XRANGEs under way at once; together at most some 16,000 entries.
RANGES_AT_ONCE: Final = 64


class OffsetsLoader:
    """Reads one partition. `commits` then holds the newest commit of each group and topic's partition."""

    def __init__(self, store: Store, log: PartitionLog) -> None:
        self._store = store
        self._log = log
        self._latest = store.keyspace.latest(log.topic.name, log.partition)
        self.commits: NewestCommits = {}

    async def replay_into(self, shard: GroupShard) -> None:
        """Replay the newest record of every key, in the order of the log. Raises StorageError.

        An entry that is no record of a coordinator (a native application's, say) is left out with a log line.
        """
        offsets = await self._newest_offsets()
        wanted = frozenset(offsets)
        async for entries in self._read(offsets):
            for entry in entries:
                self._replay(shard, entry, wanted)

    async def _newest_offsets(self) -> list[int]:
        """Where the newest record of every key is, ascending."""
        ids: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            try:
                cursor, fields = await self._store.read.call(
                    "HSCAN", self._latest, cursor, "COUNT", SCANNED_AT_ONCE
                )
            except StorageError as error:
                raise domain_error(error) from error
            # A field may come twice while the hash is resized.
            ids.update(zip(fields[::2], fields[1::2], strict=True))
            if cursor == b"0":
                break
        return sorted(offset_of(entry, self._log.bias) for entry in ids.values())

    async def _read(self, offsets: Sequence[int]) -> AsyncIterator[list[Entry]]:
        """The entries at these offsets in order, and some between them."""
        ranges = list(_ranges(offsets))
        for at in range(0, len(ranges), RANGES_AT_ONCE):
            calls = [self._range(first, last) for first, last in ranges[at : at + RANGES_AT_ONCE]]
            try:
                replies = await asyncio.gather(*calls)
            except StorageError as error:
                await asyncio.gather(*calls, return_exceptions=True)
                raise domain_error(error) from error
            for reply in replies:
                yield reply

    def _range(self, first: int, last: int) -> asyncio.Future[list[Entry]]:
        bias = self._log.bias
        return self._store.read.call("XRANGE", self._log.stream, entry_id(first, bias), entry_id(last, bias))

    def _replay(self, shard: GroupShard, entry: Entry, wanted: frozenset[int]) -> None:
        name, fields = entry
        try:
            offset = offset_of(name, self._log.bias)
        except AddressError:
            return  # a native entry between ours: no key of `latest` leads to it
        if offset not in wanted:
            return
        content = dict(zip(fields[::2], fields[1::2], strict=True))
        try:
            key = decode_key(content[b"key"])
            value = decode_value(key, content.get(b"value"))
        except (KeyError, DecodeError) as error:
            logger.warning("%s, offset %d: not loaded: %r", self._log.stream.decode(), offset, error)
            return
        shard.replay(key, value)
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
            groups = self.commits.setdefault((key.topic, key.partition), {})
            groups[key.group] = (offset, value.offset)


def _ranges(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as (first, last) ranges to read."""
    first = last = -1
    for offset in offsets:
        if first >= 0 and offset - last <= READ_ALONG and offset - first < RANGE_OFFSETS:
            last = offset
            continue
        if first >= 0:
            yield first, last
        first = last = offset
    if first >= 0:
        yield first, last
