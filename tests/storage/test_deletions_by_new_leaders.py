"""DeleteRecords after a change of leader, before replicas have confirmed what the log holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from korvet.redis.errors import HighWatermarkUnknown
from korvet.redis.keys import Keyspace
from korvet.store import Store
from tests.storage.test_release import (
    LONG_MS,
    ONE_REPLICA,
    SOON_S,
    batch,
    opened,
    released,
    sees,
    stopped,
)
from tests.support.logs import append_own
from tests.support.polling import until_async

if TYPE_CHECKING:
    from tests.support.redis_server import Server


@pytest.mark.parametrize("names_offset", [True, False])
async def test_deletions_reach_what_readers_of_the_last_leader_have_seen(
    pair: tuple[Server, Server], prefix: str, names_offset: bool
) -> None:
    """The next leader finds an older high watermark. Kafka Streams deletes up to what it has committed."""
    async with opened(pair[0], prefix) as log:
        noted = (await append_own(log, batch(b"1"))).base_offset + 1
        await released(log, noted)
        seen = (await append_own(log, batch(b"2"))).base_offset + 1
        await released(log, seen)
        meta = log.state.meta
    pair[0].client.hset(meta, "watermark", noted)
    with stopped(pair[1]):
        store = await Store.open(pair[0].url, Keyspace(prefix), level=ONE_REPLICA)
        await store.catalogue.load()
        topic = store.catalogue.get("t")
        assert topic is not None
        log = store.logs.get(topic, 0)
        await log.bounds()
        await until_async(lambda: sees(log, noted), SOON_S, "the noted watermark is known")
        with pytest.raises(HighWatermarkUnknown):
            await log.delete_before(seen if names_offset else None, LONG_MS)
    try:
        assert await log.delete_before(seen if names_offset else None, LONG_MS) == seen
    finally:
        await store.close()
