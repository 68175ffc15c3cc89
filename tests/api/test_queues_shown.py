"""What metrics show of the queues of share groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.api.test_dead_letters import create
from tests.api.test_records_commands import run
from tests.api.test_share import ACCEPT, REJECT, RELEASE, Member, configure, member, queue
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.servers import KorvetServer
from tests.unit.observe.pages import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["member", "queue"]

SHOWN_S = 20
TOPIC = "errors.deadletterqueue.topic.name"
LEFT_OUT = "korvet_metrics_groups_left_out"


@pytest.fixture(scope="module")
def pages() -> Pages:
    """The server's admin endpoint."""
    return Pages(free_port())


@pytest.fixture(scope="module")
def server(pages: Pages) -> Iterator[KorvetServer]:
    """A server with share groups and dead letters that often looks at them."""
    settings = (f"admin.listen=127.0.0.1:{pages.port}", "metrics.lag.interval.ms=100", "metrics.max.rows=8")
    with KorvetServer(*(f"--set={setting}" for setting in settings)) as server:
        yield server


def shown(pages: Pages, queue: Any, partition: int = 0) -> dict[str, float]:
    """The samples of a queue, by the end of their names."""
    place = f"{{consumergroup={queue.group},partition={partition},topic={queue.topic}}}"
    found = parsed(pages.read("/metrics").text)
    return {
        name.removeprefix("korvet_share_group_").removesuffix(place): value
        for name, value in found.items()
        if name.startswith("korvet_share_group_") and name.endswith(place)
    }


def test_a_queue(queue: Any, member: Member, pages: Pages, stream_client: Any) -> None:
    def is_shown(**expected: float) -> bool:
        found = shown(pages, queue)
        return found.pop("lag_seconds", -1) >= 0 and found == {**dict.fromkeys(found, 0), **expected}

    until(lambda: is_shown(lag=0), SHOWN_S, "an empty queue")
    assert len(shown(pages, queue)) == 7
    create(queue, f"dlq.{queue.group}")
    configure(queue, **{TOPIC: f"dlq.{queue.group}"})
    first, _, third, *_ = queue.add(6)
    stream = f"korvet:{queue.topic}:0"
    member.fetch(max_records=4)
    # Released, rejected and accepted, for a topic that takes no dead letters.
    member.acknowledge((*queue.part, (first, third, [RELEASE, REJECT, ACCEPT])))
    stream_client.xreadgroup(queue.group, "worker", {stream: ">"}, count=1)
    until(
        lambda: is_shown(lag=4, member_records=1, native_records=1, released_records=1, dead_records=1),
        SHOWN_S,
        "what members, native consumers and nobody have",
    )
    assert shown(pages, queue)["lag_seconds"] > 0


def test_workers_of_both_kinds(queue: Any, member: Member, server: KorvetServer, stream_client: Any) -> None:
    """`korvet groups describe` names the native ones, also those that wait."""
    create(queue, f"dlq.{queue.group}")
    configure(queue, **{TOPIC: f"dlq.{queue.group}"})
    first, *_ = queue.add(4)
    member.fetch(max_records=1)
    member.acknowledge((*queue.part, (first, first, [REJECT])))
    stream = f"korvet:{queue.topic}:0"
    for name, count in (("busy", 2), ("idle", 0)):
        stream_client.xgroup_createconsumer(stream, queue.group, name)
        if count:
            stream_client.xreadgroup(queue.group, name, {stream: ">"}, count=count)
    found = json.loads(run(server, "groups", "describe", queue.group, "--json"))
    assert all(row.pop("idle_ms") >= 0 for row in found["native_consumers"])
    assert found["native_consumers"] == [
        {"consumer": "busy", "in_flight": 2, "partitions": [f"{queue.topic}-0"]},
        {"consumer": "idle", "in_flight": 0, "partitions": []},
    ]
    assert (found["depth"], found["in_flight"], found["dead"]) == (3, 2, 1)
    lines = [line.split() for line in run(server, "groups", "describe", queue.group).splitlines()]
    assert ["busy", "2", f"{queue.topic}-0"] in [line[:2] + line[-1:] for line in lines]


def test_limit_of_series(queue: Any, pages: Pages) -> None:
    """Groups that are left out are left out as a whole."""

    def left_out() -> float:
        return parsed(pages.read("/metrics").text)[LEFT_OUT]

    before = left_out()
    queue.new_topic(8)
    until(lambda: left_out() == before + 1, SHOWN_S, "the group has no room")
    assert shown(pages, queue) == {}
