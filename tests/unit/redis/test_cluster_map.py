"""Which node's map of the cluster counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from korvet.redis import cluster
from korvet.redis.address import parse_url
from korvet.redis.cluster import Cluster
from korvet.redis.errors import AccessRefused, LinkLost, StorageError
from korvet.supervisor import failures

if TYPE_CHECKING:
    from korvet.redis.slots import SlotRange

OLD, NEW = 7001, 7002


class Node:
    """A node that knows a map and reports its state."""

    silent, connected = False, True

    def __init__(self, primary: int, state: bytes | StorageError) -> None:
        self.read = self
        self.address = SimpleNamespace(host="h")
        info = b"cluster_state:%b\r\ncluster_size:3\r\n" % state if isinstance(state, bytes) else state
        self.replies: dict[str, Any] = {"SLOTS": [[0, 16383, [b"h", primary]]], "INFO": info}

    def call(self, _: str, question: str) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        found = self.replies[question]
        if isinstance(found, Exception):
            reply.set_exception(found)
        else:
            reply.set_result(found)
        return reply


@pytest.mark.parametrize(
    ("nodes", "primary"),
    [
        ([(OLD, b"fail"), (NEW, b"ok")], NEW),
        ([(NEW, b"ok"), (OLD, b"fail")], NEW),
        ([(OLD, b"fail"), (NEW, b"fail")], OLD),
        ([(NEW, AccessRefused("no CLUSTER INFO")), (OLD, b"ok")], NEW),
    ],
    ids=["cut off", "others first", "all down", "unknown"],
)
async def test_the_map_of_a_node_that_is_cut_off_counts_last(
    monkeypatch: pytest.MonkeyPatch, nodes: list[tuple[int, Any]], primary: int
) -> None:
    """An old map would lead to a former primary, whose appends are lost."""
    monkeypatch.setattr(cluster.random, "sample", lambda servers, _: servers)
    applied: list[int] = []

    async def apply(_: Cluster, ranges: list[SlotRange]) -> None:
        applied.extend(each.primary[1] for each in ranges)

    monkeypatch.setattr(Cluster, "_apply", apply)
    read = Cluster([])
    servers: Any = {("h", number): Node(*each) for number, each in enumerate(nodes)}
    read._servers = servers
    await read.refresh()
    assert applied == [primary]


async def test_a_cluster_that_does_not_answer_is_no_failure_of_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The map is read several times a second, so a traceback for each time would fill the disk."""
    before = dict(failures)
    read = Cluster(parse_url("redis://127.0.0.1:1"))
    with pytest.raises(LinkLost, match=r"no node of the cluster answers: .* cannot be reached"):
        await read.refresh()
    await read.close()
    assert not caplog.records
    assert dict(failures) == before
