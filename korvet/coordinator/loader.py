"""Loads a partition of a coordinator's topic into its shard: the newest value of every key, in log order.

The work is done in pages, with a turn of the event loop between them, so that other partitions are served.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from korvet.offsets.codec import DecodeError, decode_key, decode_value, plain_commit_offset
from korvet.offsets.packing import entry_id, offset_of
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.offsets.transaction_log import decode_transaction_key, decode_transaction_value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from korvet.coordinator.projector import NewestCommits
    from korvet.coordinator.term import Positions
    from korvet.groups.offset_table import KeptValue
    from korvet.groups.shard import GroupShard
    from korvet.log.partition_log import PartitionLog
    from korvet.redis.keys import Keyspace
    from korvet.transactions.shard import TransactionShard

logger = logging.getLogger(__name__)

Entry: TypeAlias = "tuple[bytes, list[bytes]]"
Page: TypeAlias = dict[bytes, int]
"""Wanted entries that lie close together: entry ID -> offset."""

# Limits the keys of the `latest` hash in one request.
SCANNED_AT_ONCE: Final = 1_000
# Superseded entries between two wanted ones that are read along instead of a second request: a command costs
# as much as about this many entries.
READ_ALONG: Final = 8
# Bits of the offsets in a page. Limits the size of a reply, also with large group metadata, and the time of
# its replay to a few ms.
PAGE_BITS: Final = 8
# Limits the XRANGEs in flight.
RANGES_AT_ONCE: Final = 8
# Bytes of the partition at the end of an OffsetCommitKey.
_PARTITION_BYTES: Final = 4

_Shard = TypeVar("_Shard")


class Loader(ABC, Generic[_Shard]):
    """Reads one partition of a coordinator's topic."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._latest = log.keys[3]

    @abstractmethod
    def _replay_record(self, shard: _Shard, offset: int, raw_key: bytes, raw_value: bytes | None) -> None:
        """Let the shard replay a record. Raises DecodeError if it is not a record of this coordinator."""

    async def replay_into(self, shard: _Shard) -> None:
        """Replay the newest record of every key, in log order. Raises StorageError.

        An entry that is not a coordinator's record (a native application's, for example) is skipped with a
        log line.
        """
        pages = await self._newest()
        async for page, entries in self._read(pages):
            for name, fields in entries:
                offset = page.get(name)
                if offset is not None:
                    self._replay(shard, offset, fields)
            await asyncio.sleep(0)

    async def _newest(self) -> dict[int, Page]:
        """The entries with the newest record of every key, by page number."""
        pages: dict[int, Page] = {}
        async for found in self._scan(self._latest):
            self._add(found[1::2], pages)
        return pages

    async def _scan(self, key: bytes) -> AsyncIterator[list[bytes]]:
        """Yield some of the record keys of a hash at a time, each followed by its entry ID (HSCAN)."""
        cursor = b"0"
        while True:
            cursor, found = await self._log.links.read.call("HSCAN", key, cursor, "COUNT", SCANNED_AT_ONCE)
            yield found
            if cursor == b"0":
                return

    def _add(self, names: Sequence[bytes], pages: dict[int, Page]) -> list[int]:
        """Add entries to the pages. Returns their offsets."""
        bias = self._log.bias
        offsets = []
        for name in names:
            offset = offset_of(name, bias)
            page = pages.get(offset >> PAGE_BITS)
            if page is None:
                page = pages[offset >> PAGE_BITS] = {}
            page[name] = offset
            offsets.append(offset)
        return offsets

    async def _read(self, pages: dict[int, Page]) -> AsyncIterator[tuple[Page, list[Entry]]]:
        """Yield the entries of the pages in order, and some entries between them; consumes the pages."""
        calls: deque[tuple[Page, asyncio.Future[list[Entry]]]] = deque()
        try:
            for number in sorted(pages):
                page = pages.pop(number)
                for first, last in _ranges(sorted(page.values())):
                    calls.append((page, self._range(first, last)))
                    if len(calls) == RANGES_AT_ONCE:
                        wanted, call = calls.popleft()
                        yield wanted, await call
            while calls:
                wanted, call = calls.popleft()
                yield wanted, await call
        finally:
            await asyncio.gather(*(call for _, call in calls), return_exceptions=True)

    def _range(self, first: int, last: int) -> asyncio.Future[list[Entry]]:
        bias = self._log.bias
        return self._log.links.read.call(
            "XRANGE", self._log.stream, entry_id(first, bias), entry_id(last, bias)
        )

    def _replay(self, shard: _Shard, offset: int, fields: Sequence[bytes]) -> None:
        try:
            if len(fields) >= 4 and fields[0] == b"key" and fields[2] == b"value":
                self._replay_record(shard, offset, fields[1], fields[3])
            else:
                content = dict(zip(fields[::2], fields[1::2], strict=True))
                self._replay_record(shard, offset, content[b"key"], content.get(b"value"))
        except (KeyError, DecodeError) as error:
            logger.warning("%s, offset %d: not loaded: %r", self._log.stream.decode(), offset, error)


class _Topic:
    """The common key prefix of one group and topic, and the target of its offsets."""

    __slots__ = ("key", "partitions")

    def __init__(self, key: OffsetCommitKey, partitions: dict[int, KeptValue]) -> None:
        self.key = key
        self.partitions = partitions


class OffsetsLoader(Loader["GroupShard"]):
    """Reads a partition of `__consumer_offsets`: the newest offsets and metadata of every group, and the
    offsets of open transactions.

    After that, `commits` holds the newest commit of each group and topic partition, and `positions` the
    offsets of the records of open transactions.
    """

    def __init__(self, keyspace: Keyspace, log: PartitionLog) -> None:
        super().__init__(log)
        self._keyspace = keyspace
        # Offsets of records in open transactions, with the producer of each.
        self._open: dict[int, int] = {}
        # Groups with offsets in open transactions: the order of their commits counts when these end.
        self._unsettled: set[str] = set()
        # By the bytes of a key before its partition.
        self._topics: dict[bytes, _Topic] = {}
        self.commits: NewestCommits = {}
        self.positions: Positions = {}

    async def _newest(self) -> dict[int, Page]:
        pages = await super()._newest()
        topic, number = self._log.topic.name, self._log.partition
        keys: set[bytes] = set()
        for producer_id in await self._log.queries.open_producers():
            pending = self._keyspace.pending(topic, number, producer_id)
            async for found in self._scan(pending):
                keys.update(found[::2])
                self._open.update(dict.fromkeys(self._add(found[1::2], pages), producer_id))
        if self._open:
            await self._add_tombstones(keys, pages)
        return pages

    async def _add_tombstones(self, keys: set[bytes], pages: dict[int, Page]) -> None:
        """Add the tombstones of offsets of open transactions to the pages: `latest` does not name them."""
        bias = self._log.bias
        after = entry_id(min(self._open), bias).encode()
        while True:
            entries: list[Entry] = await self._log.links.read.call(
                "XRANGE", self._log.stream, b"(" + after, "+", "COUNT", 1 << PAGE_BITS
            )
            for name, fields in entries:
                if fields[0] == b"key" and fields[1] in keys and b"value" not in fields[2::2]:
                    offset = offset_of(name, bias)
                    pages.setdefault(offset >> PAGE_BITS, {})[name] = offset
            if len(entries) < 1 << PAGE_BITS:
                return
            after = entries[-1][0]
            await asyncio.sleep(0)

    def _replay_record(self, shard: GroupShard, offset: int, raw_key: bytes, raw_value: bytes | None) -> None:
        producer_id = self._open.get(offset)
        if producer_id is not None:
            key = decode_key(raw_key)
            shard.replay(key, decode_value(key, raw_value), producer_id)
            if isinstance(key, OffsetCommitKey):
                place = key.group, key.topic, key.partition
                self.positions.setdefault(producer_id, {})[place] = offset
                if key.group not in self._unsettled:
                    self._unsettled.add(key.group)
                    self._topics.clear()
            return
        topic = self._topics.get(raw_key[:-_PARTITION_BYTES])
        if topic is None:
            key = decode_key(raw_key)
            value = decode_value(key, raw_value)
        else:
            committed = None if raw_value is None else plain_commit_offset(raw_value)
            if raw_value is not None and committed is not None:
                partition = int.from_bytes(raw_key[-_PARTITION_BYTES:], "big", signed=True)
                topic.partitions[partition] = raw_value
                self._note_commit(topic.key, partition, offset, committed)
                return
            key = decode_key(raw_key)
            value = decode_value(key, raw_value)
        shard.replay(key, value)
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
            if key.group not in self._unsettled:
                partitions = shard.partitions_to_load(key.group, key.topic)
                self._topics[raw_key[:-_PARTITION_BYTES]] = _Topic(key, partitions)
            self._note_commit(key, key.partition, offset, value.offset)
        elif value is None:
            self._topics.clear()  # the tombstone may have removed the last offset of the group and topic

    def _note_commit(self, key: OffsetCommitKey, partition: int, position: int, offset: int) -> None:
        stream = key.topic, partition
        groups = self.commits.get(stream)
        if groups is None:
            groups = self.commits[stream] = {}
        groups[key.group] = (position, offset)


class TransactionsLoader(Loader["TransactionShard"]):
    """Reads a partition of `__transaction_state`: the newest value of every transactional id."""

    def _replay_record(
        self, shard: TransactionShard, offset: int, raw_key: bytes, raw_value: bytes | None
    ) -> None:
        transactional_id = decode_transaction_key(raw_key)
        if transactional_id is None:
            return
        value = None if raw_value is None else decode_transaction_value(raw_value)
        try:
            shard.replay(transactional_id, value)
        except ValueError as error:
            raise DecodeError(str(error)) from error


def _ranges(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as (first, last) ranges for reading."""
    first = last = -1
    for offset in offsets:
        if first >= 0 and offset - last <= READ_ALONG:
            last = offset
            continue
        if first >= 0:
            yield first, last
        first = last = offset
    if first >= 0:
        yield first, last
