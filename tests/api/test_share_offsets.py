"""The APIs about offsets of share groups (KIP-932), as Kafka 4.4 answers them; `korvet groups`."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.api.asking import Client, connect, versions
from tests.api.batches import batch
from tests.api.test_produce import put
from tests.api.test_records_commands import run
from tests.api.test_share import ACCEPT, INVALID_RECORD_STATE, RELEASE, Member, partitions, runs
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator
    from pathlib import Path

UNKNOWN_TOPIC, INVALID_GROUP_ID, INVALID_REQUEST, NON_EMPTY_GROUP, NOT_FOUND = 3, 24, 42, 68, 69
NOTHING = "There is no offset information to delete."
_serial = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    """A server with share groups."""
    with KorvetServer() as server:
        yield server


@pytest.fixture
def ask(server: KorvetServer) -> Iterator[Client]:
    with connect(server) as client:
        until(lambda: client("FindCoordinator", 1, key="any").error_code == 0, 20, "coordinators")
        yield client


class Orders:
    """A topic of two partitions with five records in the first one, and a share group."""

    def __init__(self, ask: Client, group: str, **configs: str) -> None:
        self.ask, self.group = ask, group
        self.name = f"orders-{next(_serial)}"
        topic = {
            "name": self.name,
            "num_partitions": 2,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        (made,) = ask("CreateTopics", 7, topics=[topic], timeout=10_000).topics
        self.id: uuid.UUID = made.topic_id
        first = put(ask, self.name, batch([(None, b"v")] * 5)).base_offset
        self.offsets = [*range(first, first + 5)]

    def alter(self, *starts: tuple[int, int], name: str | None = None, group: str | None = None) -> Any:
        wanted = [{"partition_index": index, "start_offset": offset} for index, offset in starts]
        return self.ask(
            "AlterShareGroupOffsets",
            0,
            group_id=self.group if group is None else group,
            topics=[{"topic_name": name or self.name, "partitions": wanted}],
        )

    def altered(self, *starts: tuple[int, int], **names: str) -> list[int]:
        """The errors of partitions."""
        answer = self.alter(*starts, **names)
        assert (answer.error_code, answer.error_message) == (0, None)
        return [each.error_code for topic in answer.responses for each in topic.partitions]

    def described(self, *indexes: int, version: int = 1) -> dict[int, tuple[int, int]]:
        """Start and lag of the named partitions, or of all."""
        topics = [{"topic_name": self.name, "partitions": indexes}] if indexes else None
        asked = [{"group_id": self.group, "topics": topics}]
        (found,) = self.ask("DescribeShareGroupOffsets", version, groups=asked).groups
        assert (found.group_id, found.error_code) == (self.group, 0)
        assert {(topic.topic_name, topic.topic_id) for topic in found.topics} <= {(self.name, self.id)}
        return {
            each.partition_index: (each.start_offset, getattr(each, "lag", -1))
            for topic in found.topics
            for each in topic.partitions
        }

    def delete(self, *names: str, group: str | None = None) -> Any:
        return self.ask(
            "DeleteShareGroupOffsets",
            0,
            group_id=self.group if group is None else group,
            topics=[{"topic_name": name} for name in names or [self.name]],
        )

    def beat(self, epoch: int) -> Any:
        names = [self.name] if epoch == 0 else None
        fields = {"group_id": self.group, "member_id": "m", "subscribed_topic_names": names}
        return self.ask("ShareGroupHeartbeat", 1, member_epoch=epoch, **fields)


@pytest.fixture
def orders(ask: Client, group: str) -> Orders:
    return Orders(ask, group)


@pytest.fixture
def member(server: KorvetServer, group: str) -> Iterator[Member]:
    made = Member(server, group)
    yield made
    made.client.raw.socket.close()


@versions("DescribeShareGroupOffsets")
def test_start_and_lag(orders: Orders, member: Member, version: int) -> None:
    def described() -> dict[int, tuple[int, int]]:
        return orders.described(version=version)

    lag = (lambda number: number) if version else lambda _: -1
    assert described() == {}
    assert orders.altered((0, orders.offsets[1])) == [0]
    assert described() == {0: (orders.offsets[1], lag(4))}
    assert runs(member.fetch((orders.id, 0), max_records=3)) == [(orders.offsets[1], orders.offsets[3], 1)]
    assert described() == {0: (orders.offsets[1], lag(4))}
    part = orders.id, 0, (orders.offsets[1], orders.offsets[1], [ACCEPT])
    assert partitions(member.acknowledge(part))[0].error_code == 0
    assert described() == {0: (orders.offsets[2], lag(3))}
    assert orders.described(0, 1, 7, version=version) == {
        0: (orders.offsets[2], lag(3)),
        1: (-1, -1),
        7: (-1, -1),
    }


def test_a_members_partitions_are_described(orders: Orders) -> None:
    assert orders.beat(0).error_code == 0
    until(lambda: orders.described().keys() == {0, 1}, 20, "the partitions are initialised")
    assert orders.described()[0] == (orders.offsets[-1] + 1, 0)
    assert orders.alter((0, 0)).error_code == NON_EMPTY_GROUP
    refused = orders.delete()
    assert (refused.error_code, refused.error_message) == (NON_EMPTY_GROUP, "The group is not empty.")
    assert orders.beat(-1).error_code == 0
    assert orders.altered((0, orders.offsets[0])) == [0]
    assert orders.described()[0] == (orders.offsets[0], 5)


def test_groups_of_other_types_have_no_start(ask: Client, orders: Orders) -> None:
    committed = [{"partition_index": 0, "committed_offset": orders.offsets[1], "committed_metadata": ""}]
    topics = [{"name": orders.name, "partitions": committed}]
    answer = ask("OffsetCommit", 9, group_id=orders.group, generation_id_or_member_epoch=-1, topics=topics)
    assert answer.topics[0].partitions[0].error_code == 0
    assert orders.described(0) == {0: (-1, -1)}
    what = f"Group {orders.group} is not a share group."
    for refused in (orders.alter((0, 0)), orders.delete()):
        assert (refused.error_code, refused.error_message, refused.responses) == (NOT_FOUND, what, ())


def test_altering_creates_a_group(ask: Client, orders: Orders) -> None:
    def groups() -> list[tuple[str, str]]:
        listed = ask("ListGroups", 5, states_filter=[], types_filter=[]).groups
        return [(each.group_type, each.group_state) for each in listed if each.group_id == orders.group]

    assert orders.altered((0, 5), name="nothing") == [UNKNOWN_TOPIC]
    assert groups() == []
    assert orders.altered((0, 5), (2, 5), (-1, 5)) == [0, UNKNOWN_TOPIC, UNKNOWN_TOPIC]
    assert groups() == [("share", "Empty")]
    assert orders.described().keys() == {0}
    assert orders.alter((0, 5), group="").error_code == INVALID_GROUP_ID


def test_offsets_that_the_log_does_not_have(orders: Orders) -> None:
    after = orders.offsets[-1] + 100
    assert orders.altered((0, -5), (1, after)) == [0, 0]
    assert orders.described() == {0: (0, 5), 1: (after, 0)}


def test_locks_end_when_a_group_begins_anew(orders: Orders, member: Member) -> None:
    assert orders.altered((0, orders.offsets[0])) == [0]
    every = (orders.offsets[0], orders.offsets[-1])
    assert runs(member.fetch((orders.id, 0))) == [(*every, 1)]
    assert orders.altered((0, orders.offsets[0])) == [0]
    (refused,) = partitions(member.acknowledge((orders.id, 0, (*every, [ACCEPT]))))
    assert refused.error_code == INVALID_RECORD_STATE
    assert runs(member.fetch(max_wait=20_000)) == [(*every, 1)]


def test_topics_with_whole_batches_are_refused(ask: Client, group: str) -> None:
    whole = Orders(ask, group, **{"storage.layout": "batch"})
    (topic,) = whole.alter((0, 0)).responses
    (found,) = topic.partitions
    assert found.error_code == INVALID_REQUEST
    assert "storage.layout=batch" in found.error_message
    assert whole.described() == {}
    refused = whole.beat(0)
    assert (refused.error_code, refused.assignment) == (INVALID_REQUEST, None)
    assert refused.error_message == f"{whole.name}: {found.error_message}."
    (missing,) = ask("ShareGroupDescribe", 1, group_ids=[group]).groups
    assert missing.error_code == NOT_FOUND


def test_topics_are_forgotten(ask: Client, orders: Orders, server: KorvetServer) -> None:
    other = Orders(ask, orders.group)
    refused = orders.delete()
    assert (refused.error_code, refused.error_message) == (NOT_FOUND, f"Group {orders.group} not found.")
    assert orders.delete(group="").error_code == INVALID_GROUP_ID
    assert orders.altered((0, orders.offsets[0]), (1, 0)) == [0, 0]
    assert other.altered((0, other.offsets[0])) == [0]
    deleted = orders.delete("nothing", orders.name)
    assert (deleted.error_code, deleted.error_message) == (0, None)
    assert [(each.topic_name, each.topic_id, each.error_code) for each in deleted.responses] == [
        ("nothing", None, UNKNOWN_TOPIC),
        (orders.name, orders.id, 0),
    ]
    redis = server.redis
    assert not any(redis.xinfo_groups(f"korvet:{orders.name}:{index}") for index in (0, 1))
    assert redis.xinfo_groups(f"korvet:{other.name}:0")
    assert other.described() == {0: (other.offsets[0], 5)}
    (again,) = orders.delete().responses
    assert (again.error_code, again.error_message) == (UNKNOWN_TOPIC, NOTHING)


# korvet groups


def test_a_described_group(ask: Client, orders: Orders, member: Member, server: KorvetServer) -> None:
    assert orders.beat(0).error_code == 0
    until(lambda: orders.described().keys() == {0, 1}, 20, "the partitions are initialised")
    assert orders.beat(-1).error_code == 0
    assert orders.altered((0, orders.offsets[0])) == [0]
    assert runs(member.fetch((orders.id, 0), max_records=2)) == [(orders.offsets[0], orders.offsets[1], 1)]
    part = orders.id, 0, (orders.offsets[0], orders.offsets[0], [RELEASE])
    assert partitions(member.acknowledge(part))[0].error_code == 0
    epoch = orders.beat(0).member_epoch

    def assigned() -> list[str]:
        nonlocal epoch
        epoch = orders.beat(epoch).member_epoch
        found = json.loads(run(server, "groups", "describe", orders.group, "--json"))
        return sorted(found["members"][0]["assigned"])

    both = [f"{orders.name}-0", f"{orders.name}-1"]
    until(lambda: assigned() == both, 20, "the member has the partitions")
    end = orders.described()[1][0]
    found = json.loads(run(server, "groups", "describe", orders.group, "--json"))
    names = "start", "depth", "in_flight", "released", "dead"
    rows = [
        dict(zip(names, row, strict=True)) for row in ((orders.offsets[0], 5, 1, 1, 0), (end, 0, 0, 0, 0))
    ]
    ages = [row.pop("lag_ms") for row in found["partitions"]]
    assert (ages[0] > 0, ages[1]) == (True, 0)
    assert found == {
        "group": orders.group,
        "state": "Stable",
        "protocol": "simple",
        "depth": 5,
        "in_flight": 1,
        "dead": 0,
        "members": [{"member": "m", "client": "api", "host": "/127.0.0.1", "assigned": both}],
        "native_consumers": [],
        "partitions": [{"topic": orders.name, "partition": index, **row} for index, row in enumerate(rows)],
    }
    shown = [line.split() for line in run(server, "groups", "describe", orders.group).splitlines()]
    assert [orders.group, "Stable", "simple"] in shown
    assert [orders.name, "1", str(end), "0", "0", "0", "0", "0"] in shown
    listed = json.loads(run(server, "groups", "list", "--json"))
    assert {
        "group": orders.group,
        "state": "Stable",
        "protocol_type": "share",
        "status": None,
        "record_lag": 5,
        "lag_ms": None,
    } in listed


def test_commands_reset_and_delete(orders: Orders, server: KorvetServer) -> None:
    first, second, *_ = orders.offsets

    def begins() -> list[tuple[int, int]]:
        rows = json.loads(run(server, "groups", "offsets", orders.group, "--json", redis=False))
        assert {row["topic"] for row in rows} <= {orders.name}
        return [(row["start"], row["depth"]) for row in rows]

    def delete(*options: str, status: int = 0) -> str:
        arguments = "groups", "delete", orders.group, "-y", *options
        return run(server, *arguments, status=status, redis=False)

    assert orders.altered((0, first)) == [0]
    assert begins() == [(first, 5)]
    shown = run(server, "groups", "offsets", orders.group, redis=False).splitlines()
    assert [orders.name, "0", str(first), "5"] in [line.split() for line in shown]
    reset = ("groups", "reset-offsets", orders.group, "--all-topics", "--to-offset", str(second), "--json")
    (preview,) = json.loads(run(server, *reset))["offsets"]
    assert (preview["current"], preview["new"], preview["records"]) == (first, second, 1)
    assert begins() == [(first, 5)]
    done = json.loads(run(server, *reset, "--execute"))
    assert (done["executed"], done["offsets"]) == (True, [preview])
    assert begins() == [(second, 4)]
    latest = ("--topic", orders.name, "--to-latest", "--execute")
    run(server, "groups", "reset-offsets", orders.group, *latest)
    assert [depth for _, depth in begins()] == [0, 0]
    assert orders.beat(0).error_code == 0
    assert "with 1 member:" in run(server, *reset, "--execute", status=1)
    assert "NON_EMPTY_GROUP" in delete("-t", orders.name, status=1)
    assert orders.beat(-1).error_code == 0
    delete("-t", orders.name)
    assert begins() == []
    assert NOTHING in delete("-t", orders.name, status=1)
    delete()
    assert "there is no group" in run(server, "groups", "describe", orders.group, status=1)


def test_without_redis_nothing_is_known_in_flight(
    orders: Orders, server: KorvetServer, tmp_path: Path
) -> None:
    assert orders.altered((0, orders.offsets[0])) == [0]
    found = run(server, "groups", "describe", orders.group, "--data-dir", str(tmp_path), redis=False)
    assert [orders.name, "0", str(orders.offsets[0]), "5", "-", "-", "-", "-"] in [
        line.split() for line in found.splitlines()
    ]
    assert "there is no group nobody" in run(server, "groups", "describe", "nobody", status=1)
