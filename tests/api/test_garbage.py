"""Requests leave nothing for the cyclic garbage collector, whose runs would stall every client."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.api.asking import connect
from tests.api.batches import batch
from tests.api.test_fetch import BY_NAME, fetch, fetch_fields
from tests.api.test_produce import put

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 50


@contextmanager
def collected() -> Iterator[list[str]]:
    """Returns the classes of korvet's objects that only a collection would free."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        types = {type(each) for each in gc.garbage}
        found += sorted(each.__qualname__ for each in types if each.__module__.startswith("korvet."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def commit(client: Any, offset: int) -> None:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
    fields = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": [partition]}],
    }
    client("OffsetCommit", 8, **fields)


def test_requests_leave_no_cycles(in_process):
    client, waiting = connect(in_process), connect(in_process)
    with client.raw, waiting.raw:
        wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        client("CreateTopics", 7, topics=[wanted], timeout=10_000, validate_only=False)
        end = put(client, "t", batch([(b"0", b"v")])).base_offset + 1
        commit(client, end)
        with collected() as found:
            for number in range(ROUNDS):
                waiting.send("Fetch", BY_NAME, **fetch_fields([("t", 0, end, {})], wait_ms=10_000))
                end = put(client, "t", batch([(b"%d" % number, b"v")])).base_offset + 1
                waiting.receive("Fetch", BY_NAME)
                fetch(client, BY_NAME, ("t", 0, 0))
                commit(client, end)
                client("Heartbeat", 4, group_id="g", generation_id=1, member_id="m")
        assert found == []
