"""The partitions that a broker leads, with several brokers and replicas."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

from korvet.cluster.assignment import Assignment, Broker
from korvet.cluster.topic import Topic
from korvet.observe import led_partitions
from korvet.observe.led_partitions import LedPartitions, LogSizes
from korvet.outlook.copies import Copies
from korvet.redis.errors import StorageFault
from tests.unit.observe.pages import page_of

MANAGER = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"


def topic(name: str, partitions: int) -> Topic:
    return Topic(name=name, topic_id=uuid.uuid4(), partitions=partitions)


class Cluster:
    """Two brokers with two topics, seen by one of the brokers."""

    def __init__(self, node_id: int = 1) -> None:
        brokers = [Broker(1, "one", 9092, 0), Broker(2, "two", 9092, 1)]
        self.member: Any = SimpleNamespace(
            node_id=node_id, assignment=Assignment(1, brokers), is_controller=node_id == 1
        )
        self.catalogue: Any = SimpleNamespace(
            topics={each.name: each for each in (topic("b", 20), topic("a", 3))}, local_change=1
        )
        self.shown = list(self.catalogue.topics.values())
        self.led = LedPartitions(self.member, self.catalogue, lambda: self.shown)

    @property
    def numbers(self) -> dict[str, list[int]]:
        return {each.topic.name: each.numbers for each in self.led.look()}


def test_each_partition_is_led_by_one_broker() -> None:
    one, two = Cluster(1).numbers, Cluster(2).numbers
    for name, count in (("a", 3), ("b", 20)):
        assert sorted(one.get(name, []) + two.get(name, [])) == list(range(count))
    assert one["b"]
    assert two["b"]


def test_it_looks_again_after_changes_only() -> None:
    cluster = Cluster()
    before = cluster.led.look()
    assert cluster.led.look() is before
    cluster.catalogue.topics["c"] = topic("c", 20)
    assert cluster.led.look() is before
    cluster.catalogue.local_change += 1
    assert "c" in cluster.numbers
    cluster.member.assignment = Assignment(2, [Broker(1, "one", 9092, 0)])
    assert cluster.numbers["b"] == list(range(20))


def test_the_controller_counts_the_cluster() -> None:
    for node_id in (1, 2):
        cluster = Cluster(node_id)
        page = page_of(led_partitions.collect_controller(cluster.member, cluster.catalogue, cluster.led))
        expected = (1, 0, 2, 23) if node_id == 1 else (0, 0, 0, 0)
        names = (
            "activecontrollercount",
            "offlinepartitionscount",
            "globaltopiccount",
            "globalpartitioncount",
        )
        assert tuple(page[f"{CONTROLLER}{name}"] for name in names) == expected


def test_partitions_of_a_suspended_broker_are_offline() -> None:
    cluster = Cluster()
    led = sum(map(len, cluster.numbers.values()))
    cluster.member.assignment = cluster.member.assignment.suspending(1)
    page = page_of(led_partitions.collect_controller(cluster.member, cluster.catalogue, cluster.led))
    assert page[f"{CONTROLLER}offlinepartitionscount"] == led > 0
    assert cluster.numbers == {}


def replicas(cluster: Cluster, copies: Any, wanted: int) -> dict[str, float]:
    topics: Any = SimpleNamespace(level=lambda _: SimpleNamespace(replicas=wanted))
    found: Any = SimpleNamespace(of_topic=copies)
    return page_of(led_partitions.collect_replicas(cluster.led, topics, found))


def test_replicas_of_one_server() -> None:
    cluster = Cluster()
    count = sum(map(len, cluster.numbers.values()))
    for copies, wanted, under, under_min, at_min in (
        (Copies(), 0, 0, 0, count),
        (Copies(2, 2, 2), 1, 0, 0, 0),
        (Copies(2, 2, 1), 1, count, 0, count),
        (Copies(2, 0, 0), 1, count, count, 0),
        # Nobody has ever seen the replica that the topic asks for.
        (Copies(), 1, count, count, 0),
    ):
        page = replicas(cluster, lambda name, number, wanted, same=copies: same.expecting(wanted), wanted)
        assert page[f"{MANAGER}leadercount"] == page[f"{MANAGER}partitioncount"] == count
        assert page[f"{MANAGER}underreplicatedpartitions"] == under
        assert page[f"{MANAGER}underminisrpartitioncount"] == under_min
        assert page[f"{MANAGER}atminisrpartitioncount"] == at_min
        for name, total in (("underminisr", under_min), ("atminisr", at_min)):
            rows = [value for key, value in page.items() if key.startswith(f"kafka_cluster_partition_{name}")]
            assert (len(rows), sum(rows)) == (count, total)


def test_replicas_of_several_servers() -> None:
    cluster = Cluster()
    first = cluster.numbers["b"][0]

    def copies(name: str, number: int, wanted: int) -> list[Copies]:
        return [Copies(1, 1, 0 if (name, index) == ("b", first) else 1) for index in range(number)]

    page = replicas(cluster, copies, 1)
    under = {key for key, value in page.items() if key.startswith("kafka_cluster_partition_under") and value}
    assert under == {f"kafka_cluster_partition_underminisr{{partition={first},topic=b}}"}
    assert page[f"{MANAGER}underreplicatedpartitions"] == 1


def test_sizes_of_led_partitions() -> None:
    cluster = Cluster()

    class Logs:
        fails = False

        async def payload_bytes(self, topic: Topic, numbers: list[int]) -> list[int]:
            if self.fails and topic.name == "b":
                raise StorageFault("no")
            return [1000 + number for number in numbers]

    logs: Any = Logs()
    sizes = LogSizes(cluster.led, logs)
    assert page_of(sizes.collect()) == {}
    asyncio.run(sizes.look())
    expected = {
        f"kafka_log_log_size{{partition={number},topic={name}}}": 1000 + number
        for name, numbers in cluster.numbers.items()
        for number in numbers
    }
    assert page_of(sizes.collect()) == expected
    logs.fails = True
    asyncio.run(sizes.look())
    assert page_of(sizes.collect()) == {key: size for key, size in expected.items() if "topic=a" in key}


def test_sizes_of_partitions_that_have_gone_are_not_shown_until_the_next_look() -> None:
    cluster = Cluster()

    async def payload_bytes(topic: Topic, numbers: list[int]) -> list[int]:
        return [1000] * len(numbers)

    logs: Any = SimpleNamespace(payload_bytes=payload_bytes)
    sizes = LogSizes(cluster.led, logs)
    asyncio.run(sizes.look())
    count = len(page_of(sizes.collect()))
    assert count == sum(map(len, cluster.numbers.values()))
    del cluster.catalogue.topics["b"]
    cluster.catalogue.local_change += 1
    left = page_of(sizes.collect())
    assert 0 < len(left) < count
    assert not [key for key in left if "topic=b" in key]
    cluster.member.assignment = cluster.member.assignment.suspending(1)
    assert page_of(sizes.collect()) == {}


def test_topics_that_the_settings_leave_out_have_no_rows() -> None:
    cluster = Cluster()
    cluster.shown = [each for each in cluster.shown if each.name == "b"]
    page = replicas(cluster, lambda name, number, wanted: Copies(), 0)
    assert page[f"{MANAGER}leadercount"] == sum(map(len, cluster.numbers.values()))
    rows = {key for key in page if key.startswith("kafka_cluster_partition")}
    assert len(rows) == 2 * len(cluster.numbers["b"])
    assert not [key for key in rows if "topic=a" in key]
