"""Loading a partition equals replaying every record, and other work runs between its pages."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.coordinator.loader import PAGE_BITS, READ_ALONG, OffsetsLoader, _ranges
from korvet.groups.config import GroupConfig
from korvet.groups.messages import FetchRequest
from korvet.groups.shard import GroupShard
from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.schema import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from korvet.records.kernel import encode_append_records
from tests.support.logs import append_own
from tests.support.offsets_replay import OffsetsReplay
from tests.support.stores import open_store

if TYPE_CHECKING:
    from korvet.coordinator.projector import NewestCommits
    from korvet.log.partition_log import PartitionLog
    from korvet.store import Store
    from tests.support.redis_server import Server

pytestmark = pytest.mark.each_server

GROUPS = ("a", "b", "group-with-a-longer-name", "")
TOPICS = ("orders", "bestellungen-ä")

Raw = tuple[bytes, bytes | None]
Places = dict[tuple[str, str, int], tuple[int, int, str]]


@given(st.lists(st.integers(0, 3_000), unique=True).map(sorted))
def test_ranges_cover_what_is_wanted_and_little_more(offsets: list[int]) -> None:
    ranges = list(_ranges(offsets))
    covered = [offset for first, last in ranges for offset in range(first, last + 1)]
    assert covered == sorted(set(covered))
    assert set(offsets) <= set(covered)
    assert len(covered) <= READ_ALONG * max(1, len(offsets))
    assert all({first, last} <= set(offsets) for first, last in ranges)


def some_record(chance: random.Random) -> Raw:
    """Mostly commits, some deletions, some group metadata."""
    if chance.random() < 0.1:
        group_key = GroupMetadataKey(chance.choice(GROUPS))
        if chance.random() < 0.3:
            return encode_key(group_key), None
        return encode_key(group_key), encode_value(GroupMetadataValue("consumer", 1, None, None, 5, ()))
    key = OffsetCommitKey(
        chance.choice(GROUPS), chance.choice(TOPICS), chance.choice((0, 1, 300, 2**31 - 1, -1)), 1
    )
    if chance.random() < 0.2:
        return encode_key(key), None
    value = OffsetCommitValue(
        chance.randrange(2**63), -1, chance.choice(("", "m", "ß")), 9, version=chance.choice((0, 1, 2, 3, 4))
    )
    return encode_key(key), encode_value(value)


async def offsets_log(store: Store) -> PartitionLog:
    config = {"cleanup.policy": "compact", "offset.assignment": "dense"}
    topic = await store.catalogue.create("offsets", 1, config, internal=True, offset_assignment="dense")
    return store.logs.get(topic, 0)


async def write(log: PartitionLog, records: list[Raw]) -> None:
    for at in range(0, len(records), 1_000):
        await append_own(
            log, encode_append_records([(key, value, 7) for key, value in records[at : at + 1_000]])
        )


async def load(store: Store, log: PartitionLog) -> tuple[Places, set[str], NewestCommits]:
    """The shard's answers about all groups after loading."""
    shard = GroupShard(GroupConfig(), lambda: "x")
    loader = OffsetsLoader(store.commands.keyspace, log)
    await loader.replay_into(shard)
    shard.loaded(0)
    found: Places = {}
    for group in GROUPS:
        (_, reply), *_ = shard.fetch(FetchRequest(group), 1, 0).replies
        for topic in reply.topics:  # type: ignore[union-attr]
            for each in topic.partitions:
                found[group, topic.name, each.partition] = (each.offset, each.leader_epoch, each.metadata)
    listed = {group for group, state in ((g, shard._context.groups.get(g)) for g in GROUPS) if state}
    return found, listed, loader.commits


async def test_loading_is_replaying_everything(server: Server, prefix: str) -> None:
    async with open_store(server.url, prefix) as store:
        log = await offsets_log(store)
        chance = random.Random(4)
        records: list[Raw] = []
        for _ in range(5):
            more = [some_record(chance) for _ in range(chance.choice((1, 40, 700)))]
            await write(log, more)
            records += more
            replay = OffsetsReplay()
            for offset, (key, value) in enumerate(records):
                replay.apply(0, offset, key, value)
            found, listed, commits = await load(store, log)
            assert found == {
                tuple(target): (stored.value.offset, stored.value.leader_epoch, stored.value.metadata)
                for target, stored in replay.offsets.items()
            }
            assert listed == {target.group for target in replay.offsets} | set(replay.groups)
            assert {
                (group, *stream): newest
                for stream, groups in commits.items()
                for group, newest in groups.items()
            } == {
                tuple(target): (stored.record_offset, stored.value.offset)
                for target, stored in replay.offsets.items()
            }


async def test_others_are_served_while_a_partition_is_loaded(server: Server, prefix: str) -> None:
    async with open_store(server.url, prefix) as store:
        log = await offsets_log(store)
        pages = 40
        value = encode_value(OffsetCommitValue(1))
        keys = [encode_key(OffsetCommitKey("a", "orders", number)) for number in range(pages << PAGE_BITS)]
        await write(log, [(key, value) for key in keys])
        turns = 0
        work = asyncio.ensure_future(load(store, log))
        while not work.done():
            await asyncio.sleep(0)
            turns += 1
        found, _, _ = await work
        assert len(found) == len(keys)
        assert turns > pages
