"""`__share_group_state`: what is in it after acknowledgements, changes of the group, and deletions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from korvet.offsets.share_state import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    ShareSnapshot,
    ShareStateKey,
    StateBatch,
    decode_share_key,
    decode_share_value,
    share_state_partition_for,
)
from tests.api.asking import Client, connect
from tests.api.batches import batch, read
from tests.api.test_fetch import fetch
from tests.api.test_produce import put
from tests.api.test_share import ACCEPT, REJECT, RELEASE, Member, partitions, runs
from tests.api.test_share_offsets import Orders
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC, PARTITIONS = "__share_group_state", 7
INVALID_TOPIC = 17
WAIT_S = 30


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    """A server with share groups."""
    settings = (f"share.coordinator.state.topic.num.partitions={PARTITIONS}", "log.cleaner.backoff.ms=200")
    with KorvetServer(*(f"--set={setting}" for setting in settings)) as server:
        yield server


@pytest.fixture
def ask(server: KorvetServer) -> Iterator[Client]:
    with connect(server) as client:
        until(lambda: client("FindCoordinator", 1, key="any").error_code == 0, 20, "coordinators")
        yield client


@pytest.fixture
def orders(ask: Client, group: str) -> Orders:
    return Orders(ask, group, **{"offset.assignment": "dense"})


@pytest.fixture
def member(server: KorvetServer, group: str) -> Iterator[Member]:
    made = Member(server, group)
    yield made
    made.client.raw.socket.close()


def states(ask: Client, orders: Orders, index: int = 0) -> list[ShareSnapshot | None]:
    """The snapshots and tombstones of a group's partition, in order."""
    key = ShareStateKey(orders.group, orders.id.bytes, index)
    (found,) = ask("Metadata", 12, topics=[{"name": TOPIC, "topic_id": None}]).topics
    if found.error_code:
        return []
    assert len(found.partitions) == PARTITIONS
    number = share_state_partition_for(key, PARTITIONS)
    (part,) = fetch(ask, 12, (TOPIC, number, 0))
    found = []
    for _, raw_key, value in read(part.records):
        if decode_share_key(raw_key or b"") == key:
            snapshot = decode_share_value(key, value)
            assert snapshot is None or isinstance(snapshot, ShareSnapshot)
            found.append(snapshot)
    return found


def last(ask: Client, orders: Orders, index: int = 0) -> ShareSnapshot | None:
    found = states(ask, orders, index)
    return found[-1] if found else None


def wait_for(ask: Client, orders: Orders, start: int, *batches: StateBatch, complete: int) -> ShareSnapshot:
    """Wait until the last snapshot has this start, these batches and this number of ended records."""

    def arrived() -> ShareSnapshot | None:
        found = last(ask, orders)
        wanted = start, batches, complete
        got = found and (found.start_offset, found.state_batches, found.delivery_complete_count)
        return found if got == wanted else None

    try:
        return until(arrived, WAIT_S, "the snapshot")
    except AssertionError as error:
        raise AssertionError(f"{states(ask, orders)} does not end as expected") from error


def acknowledge(member: Member, orders: Orders, *batches: tuple[int, int, list[int]]) -> None:
    (done,) = partitions(member.acknowledge((orders.id, 0, *batches)))
    assert done.error_code == 0


def test_snapshots_follow_acknowledgements(ask: Client, orders: Orders, member: Member) -> None:
    assert orders.altered((0, 0)) == [0]
    first = wait_for(ask, orders, 0, complete=0)
    assert first.create_timestamp == first.write_timestamp > 0
    put(ask, orders.name, batch([(None, b"v")] * 5))
    assert runs(member.fetch((orders.id, 0))) == [(0, 9, 1)]
    types = [ACCEPT, RELEASE, ACCEPT, REJECT, REJECT, ACCEPT, RELEASE, RELEASE, ACCEPT, ACCEPT]
    acknowledge(member, orders, (0, 9, types))
    second = wait_for(
        ask,
        orders,
        1,
        StateBatch(1, 1, AVAILABLE, 1),
        StateBatch(2, 2, ACKNOWLEDGED, 1),
        StateBatch(3, 4, ARCHIVED, 1),
        StateBatch(5, 5, ACKNOWLEDGED, 1),
        StateBatch(6, 7, AVAILABLE, 1),
        StateBatch(8, 9, ACKNOWLEDGED, 1),
        complete=6,
    )
    assert second.snapshot_epoch > first.snapshot_epoch
    assert (second.create_timestamp, second.state_epoch) == (first.create_timestamp, first.state_epoch)
    assert second.write_timestamp > first.write_timestamp
    # A lock is not shown, what was written of ended records stays.
    assert runs(member.fetch((orders.id, 0))) == [(1, 1, 2), (6, 7, 2)]
    acknowledge(member, orders, (1, 1, [ACCEPT]), (6, 6, [REJECT]))
    wait_for(
        ask,
        orders,
        7,
        StateBatch(7, 7, AVAILABLE, 1),
        StateBatch(8, 9, ACKNOWLEDGED, 1),
        complete=2,
    )
    acknowledge(member, orders, (7, 7, [RELEASE]))
    wait_for(
        ask,
        orders,
        7,
        StateBatch(7, 7, AVAILABLE, 2),
        StateBatch(8, 9, ACKNOWLEDGED, 1),
        complete=2,
    )
    # Compaction begins when more than half of the records are new.
    until(lambda: len(states(ask, orders)) <= 2, WAIT_S, "no history")


def test_new_offsets_begin_a_new_state(ask: Client, orders: Orders, member: Member) -> None:
    assert orders.altered((0, 0), (1, 0)) == [0, 0]
    first = wait_for(ask, orders, 0, complete=0)
    assert runs(member.fetch((orders.id, 0))) == [(0, 4, 1)]
    acknowledge(member, orders, (0, 4, [REJECT]))
    wait_for(ask, orders, 5, complete=0)
    assert orders.altered((0, 2)) == [0]
    again = wait_for(ask, orders, 2, complete=0)
    assert again.state_epoch > first.state_epoch
    assert again.create_timestamp > first.create_timestamp
    assert runs(member.fetch((orders.id, 0))) == [(2, 4, 1)]
    acknowledge(member, orders, (2, 2, [RELEASE]), (3, 3, [ACCEPT]))
    wait_for(ask, orders, 2, StateBatch(2, 2, AVAILABLE, 1), StateBatch(3, 3, ACKNOWLEDGED, 1), complete=1)
    assert (snapshot := last(ask, orders, 1)) is not None
    assert (snapshot.start_offset, snapshot.state_batches) == (0, ())


def test_what_native_workers_accept_is_acknowledged(
    ask: Client, orders: Orders, member: Member, stream_client: Any
) -> None:
    assert orders.altered((0, 0)) == [0]
    stream = f"korvet:{orders.name}:0"
    for _, entries in stream_client.xreadgroup(orders.group, "worker", {stream: ">"}, count=4):
        stream_client.xack(stream, orders.group, entries[1][0], entries[3][0])
    assert runs(member.fetch((orders.id, 0))) == [(4, 4, 1)]
    acknowledge(member, orders, (4, 4, [RELEASE]))
    wait_for(
        ask,
        orders,
        0,
        StateBatch(1, 1, ACKNOWLEDGED, 1),
        StateBatch(3, 3, ACKNOWLEDGED, 1),
        StateBatch(4, 4, AVAILABLE, 1),
        complete=2,
    )


@pytest.mark.parametrize("what", ["offsets", "group", "topic"])
def test_deletions_write_tombstones(ask: Client, orders: Orders, what: str) -> None:
    assert orders.altered((0, 1), (1, 0)) == [0, 0]
    until(lambda: last(ask, orders) and last(ask, orders, 1), WAIT_S, "snapshots")
    if what == "offsets":
        assert not orders.delete().error_code
    elif what == "group":
        (deleted,) = ask("DeleteGroups", 2, groups_names=[orders.group]).results
        assert not deleted.error_code
    else:
        topic = {"name": orders.name, "topic_id": None}
        (gone,) = ask("DeleteTopics", 6, topics=[topic], timeout=10_000).responses
        assert not gone.error_code
    for index in (0, 1):
        until(lambda index=index: states(ask, orders, index)[-1] is None, WAIT_S, "a tombstone")


def test_the_topic_is_internal(ask: Client, orders: Orders) -> None:
    assert orders.altered((0, 0)) == [0]
    until(lambda: last(ask, orders), WAIT_S, "a snapshot")
    (found,) = ask("Metadata", 9, topics=[{"name": TOPIC}]).topics
    assert (found.error_code, found.is_internal, len(found.partitions)) == (0, True, PARTITIONS)
    resource = {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}
    (described,) = ask("DescribeConfigs", 4, resources=[resource]).results
    configs = {each.name: each.value for each in described.configs}
    assert (configs["cleanup.policy"], configs["segment.bytes"]) == ("compact", "104857600")
    assert put(ask, TOPIC, batch([(b"k", b"v")])).error_code == INVALID_TOPIC


def test_the_last_changes_are_written_before_the_end(
    own_korvet: Callable[..., KorvetServer], group: str
) -> None:
    server = own_korvet(f"--set=share.coordinator.state.topic.num.partitions={PARTITIONS}")
    with connect(server) as ask:
        until(lambda: ask("FindCoordinator", 1, key="any").error_code == 0, 20, "coordinators")
        orders = Orders(ask, group, **{"offset.assignment": "dense"})
        assert orders.altered((0, 1)) == [0]
        wait_for(ask, orders, 1, complete=0)
        assert orders.altered((0, 2)) == [0]
    server.stop()
    server.start()
    with connect(server) as ask:
        until(lambda: last(ask, orders) is not None, WAIT_S, "the topic is served")
        assert (found := last(ask, orders)) is not None
        assert found.start_offset == 2
