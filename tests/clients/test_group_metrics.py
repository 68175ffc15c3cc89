"""Metrics of partitions and groups, compared with `korvet groups`, and with what a consumer finds unread."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from prometheus_client.parser import text_string_to_metric_families

from korvet.cli.app import korvet as korvet_command
from korvet.offsets.packing import entry_id
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, send
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.prometheus import page
from tests.support.records import NOW_MS, Record
from tests.support.servers import KAFKA_VARIABLE, KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.clients

KINDS = {
    "clock": {},
    "dense": {"offset.assignment": "dense"},
    "batch": {"storage.layout": "batch"},
    "dense batch": {"storage.layout": "batch", "offset.assignment": "dense"},
}
WAIT_S = 20


class Observed(NamedTuple):
    """A broker with an admin endpoint."""

    server: KorvetServer
    address: str

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """The samples of a family by the values of their labels, in the order of the labels' names."""
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page(self.address))
            for sample in family.samples
            if sample.name == name
        }

    def stream(self, topic: str) -> str:
        return f"korvet:{topic}:0"


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    if os.environ.get(KAFKA_VARIABLE):
        pytest.skip("needs korvet: reads its metrics")
    address = f"127.0.0.1:{free_port()}"
    settings = (f"admin.listen={address}", "metrics.lag.interval.ms=100", "log.cleaner.backoff.ms=200")
    server = KorvetServer(*(part for setting in settings for part in ("--set", setting)))
    yield Observed(server.start(), address)
    server.discard()


def records(count: int, age_ms: int = 600_000) -> list[Record]:
    """Records with keys and create times of their own."""
    return [Record(b"%d" % n, b"v%d" % n, (), NOW_MS - age_ms + n) for n in range(count)]


def commit(observed: Observed, group: str, topic: str, offset: int) -> None:
    client = consumer(observed.server.bootstrap, group)
    client.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    client.close()


def unread(observed: Observed, group: str, topic: str) -> int:
    """The records that a consumer of the group receives until the end, without committing them."""
    client = consumer(
        observed.server.bootstrap,
        group,
        enable_auto_commit=False,
        enable_partition_eof=True,
        auto_offset_reset="earliest",
    )
    (committed,) = client.committed([TopicPartition(topic, 0)], timeout=20)
    client.assign([committed])
    count = 0
    while (message := client.poll(20)) is not None and message.error() is None:
        count += 1
    client.close()
    return count


def described(observed: Observed, group: str) -> tuple[int, int]:
    """Unread records, and how long the first of them has been waiting (ms), by `korvet groups describe`."""
    done = CliRunner(env={}).invoke(
        korvet_command,
        [
            *("groups", "describe", group, "-b", observed.server.bootstrap),
            *("--data-dir", str(observed.server.data_dir), "--json"),
        ],
    )
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["offsets"]
    return row["record_lag"], row["lag_ms"]


@pytest.mark.parametrize(
    "kind",
    [
        "clock",
        pytest.param("dense", marks=pytest.mark.long),
        pytest.param("batch", marks=pytest.mark.long),
        "dense batch",
    ],
)
def test_lag_is_what_commands_and_consumers_count(observed: Observed, kind: str, fresh) -> None:
    topic, bootstrap = fresh("topic"), observed.server.bootstrap
    create_topic(bootstrap, topic, 1, KINDS[kind])
    client = producer(bootstrap, linger_ms=50)
    offsets = send(client, topic, 0, records(40))
    native = [observed.server.redis.xadd(observed.stream(topic), {"celsius": n}).decode() for n in range(3)]
    offsets += send(client, topic, 0, records(25, age_ms=300_000))
    expected = {}
    for place in (0, 1, 17, 39, 40, 64):
        group = fresh("group")
        commit(observed, group, topic, offsets[place])
        expected[group] = 68 - place - (3 if place >= 40 else 0)
    at_end = fresh("group")
    commit(observed, at_end, topic, offsets[-1] + 1)
    expected[at_end] = 0
    check(observed, topic, expected, appended=68, deleted=0)
    # Deletions and trims change what is unread, and nothing that was ever appended.
    if "batch" not in kind:
        observed.server.redis.xdel(observed.stream(topic), entry_id(offsets[20], "dense" in kind), native[1])
        expected = {group: lag - (lag > 47) - (lag > 26) for group, lag in expected.items()}
        check(observed, topic, expected, appended=68, deleted=2)
        observed.server.redis.xtrim(observed.stream(topic), maxlen=30, approximate=False)
        check(observed, topic, {group: min(lag, 30) for group, lag in expected.items()}, 68, 38)


def check(observed: Observed, topic: str, expected: dict[str, int], appended: int, deleted: int) -> None:
    """Returns once the metrics show the expected lags; compares them with other ways of counting."""

    def shown() -> bool:
        lags = observed.series("kafka_consumergroup_lag")
        return {group: lags.get((group, "0", topic)) for group in expected} == expected

    until(shown, WAIT_S, f"the metrics show {expected}")
    assert observed.series("kafka_topic_partition_current_offset")["0", topic] == appended
    assert observed.series("kafka_topic_partition_oldest_offset")["0", topic] == deleted
    current = observed.series("kafka_consumergroup_current_offset")
    sums, seconds = observed.series("kafka_consumergroup_lag_sum"), by_group(observed, topic)
    for group, lag in expected.items():
        assert current[group, "0", topic] == appended - lag
        assert sums[group, topic] == lag
        assert unread(observed, group, topic) == lag
        records_left, waiting_ms = described(observed, group)
        assert records_left == lag
        # The command ran a little later. A batch counts from its first record: 40 ms at most.
        assert waiting_ms - 60_000 <= 1000 * seconds[group] <= waiting_ms + 100


def by_group(observed: Observed, topic: str) -> dict[str, float]:
    """The lag in seconds of each group of a topic without members."""
    found = observed.series("kafka_consumergroup_group_lag_seconds")
    # client_id, cluster_name, consumer_id, group, member_host, partition, topic
    return {labels[3]: value for labels, value in found.items() if labels[6] == topic}


def test_records_that_compaction_removes_stay_counted_as_appended(observed: Observed, fresh) -> None:
    topic, groups = fresh("topic"), [fresh("group"), fresh("group")]
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    create_topic(observed.server.bootstrap, topic, 1, configs)
    client = producer(observed.server.bootstrap)
    offsets = send(client, topic, 0, records(40))
    commit(observed, groups[0], topic, offsets[30])
    check(observed, topic, {groups[0]: 10}, appended=40, deleted=0)
    send(client, topic, 0, records(35))
    commit(observed, groups[1], topic, 0)
    # Records 35 to 39 have no successors.
    until(lambda: observed.server.redis.xlen(observed.stream(topic)) == 40, WAIT_S, "a compaction")
    check(observed, topic, {groups[0]: 40, groups[1]: 40}, appended=75, deleted=35)


def test_commits_that_go_back_and_forth(observed: Observed, fresh) -> None:
    topic, group = fresh("topic"), fresh("group")
    create_topic(observed.server.bootstrap, topic, 1)
    offsets = send(producer(observed.server.bootstrap), topic, 0, records(1000))
    for place in (500, 510, 999, 3, 0, 700, 699, 702):
        commit(observed, group, topic, offsets[place])

        def shown(place: int = place) -> bool:
            return observed.series("kafka_consumergroup_current_offset").get((group, "0", topic)) == place

        until(shown, WAIT_S, f"the metrics show ordinal {place}")
        assert observed.series("kafka_consumergroup_lag")[group, "0", topic] == 1000 - place
        raw = observed.series("korvet_consumergroup_raw_current_offset")
        assert raw[group, "0", topic] == offsets[place]


def test_assigned_partitions_without_a_commit_have_lag_minus_one(observed: Observed, fresh) -> None:
    topic, group = fresh("topic"), fresh("group")
    create_topic(observed.server.bootstrap, topic, 2)
    send(producer(observed.server.bootstrap), topic, 0, records(3))
    commit(observed, group, topic, 0)
    client = consumer(observed.server.bootstrap, group, enable_auto_commit=False)
    client.subscribe([topic])
    until(lambda: client.poll(0.05) or client.assignment(), WAIT_S, "the member has its partitions")
    wanted: dict[tuple[str, ...], float | None] = {(group, "0", topic): 3.0, (group, "1", topic): -1.0}

    def shown() -> bool:
        lags = observed.series("kafka_consumergroup_lag")
        return {key: lags.get(key) for key in wanted} == wanted

    until(shown, WAIT_S, "the metrics show a lag for each partition")
    assert observed.series("kafka_consumergroup_lag_sum")[group, topic] == 3
    assert observed.series("kafka_consumergroup_current_offset")[group, "1", topic] == -1
    client.close()
    wanted[group, "1", topic] = None
    until(shown, WAIT_S, "the metrics show the committed partition only")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_own_the_lag_of_their_partitions(observed: Observed, fresh, protocol: str) -> None:
    topic, group = fresh("topic"), fresh("group")
    create_topic(observed.server.bootstrap, topic, 1)
    send(producer(observed.server.bootstrap), topic, 0, records(3))
    commit(observed, group, topic, 0)
    client = consumer(
        observed.server.bootstrap,
        group,
        client_id="the-client",
        enable_auto_commit=False,
        group_protocol=protocol,
    )
    client.subscribe([topic])
    until(lambda: client.poll(0.05) or client.assignment(), WAIT_S, "the member has its partition")

    def shown() -> bool:
        lags = observed.series("kafka_consumergroup_group_lag")
        found = [(labels[0], value) for labels, value in lags.items() if labels[3] == group]
        return found == [("the-client", 3.0)]

    until(shown, WAIT_S, "the metrics name the member")
    assert observed.series("kafka_consumergroup_members")[group,] == 1
    (state,) = [labels[2] for labels in observed.series("korvet_consumergroup_info") if labels[0] == group]
    assert state == "Stable"
    assert observed.series("korvet_consumergroup_rebalances_total")[group,] >= 1
    client.close()
    until(lambda: observed.series("kafka_consumergroup_members")[group,] == 0, WAIT_S, "the member has left")


def test_pending_entries_and_consumers_of_redis_groups(observed: Observed, fresh) -> None:
    topic, group = fresh("topic"), fresh("group")
    create_topic(observed.server.bootstrap, topic, 1)
    send(producer(observed.server.bootstrap), topic, 0, records(5))
    redis, stream, place = observed.server.redis, observed.stream(topic), (group, "0", topic)
    redis.xgroup_create(stream, group, "0")
    read = redis.xreadgroup(group, "me", {stream: ">"}, count=3)
    redis.xreadgroup(group, "other", {stream: ">"}, count=1)

    def shown() -> tuple[float | None, float | None]:
        consumers = observed.series("korvet_redis_group_consumers").get(place)
        return consumers, observed.series("korvet_redis_group_pending_entries").get(place)

    until(lambda: shown() == (2, 4), WAIT_S, "two consumers have four entries")
    idle = "korvet_redis_group_oldest_pending_idle_seconds"
    until(lambda: observed.series(idle)[place] > 0.1, WAIT_S, "the oldest entry waits")
    # The Kafka group of that name is at the oldest pending entry.
    until(lambda: observed.series("kafka_consumergroup_lag").get(place) == 5, WAIT_S, "the group's lag")
    redis.xack(stream, group, *(found_id for found_id, _ in read[0][1]))
    until(lambda: shown() == (2, 1), WAIT_S, "one entry is pending")
    until(lambda: observed.series("kafka_consumergroup_lag").get(place) == 2, WAIT_S, "the group's lag")
    redis.xgroup_destroy(stream, group)
    until(lambda: shown() == (None, None), WAIT_S, "the Redis group is gone")


def test_what_settings_leave_out_is_counted(own_korvet, fresh) -> None:
    address = f"127.0.0.1:{free_port()}"
    server = own_korvet(
        *("--set", f"admin.listen={address}", "--set", "metrics.lag.interval.ms=100"),
        *("--set", "metrics.topics=[ab].*", "--set", "metrics.groups=g.*", "--set", "metrics.max.rows=3"),
    )
    observed = Observed(server, address)
    for name, partitions in (("a", 3), ("b", 2), ("c", 1)):
        create_topic(server.bootstrap, name, partitions)
        send(producer(server.bootstrap), name, 0, records(2))
    # Topic c does not match.
    for group, topic in (("g1", "a"), ("g2", "b"), ("other", "a"), ("g3", "a"), ("g3", "c")):
        commit(observed, group, topic, 0)

    def shown() -> tuple[set[str], set[str]]:
        topics = {labels[1] for labels in observed.series("kafka_topic_partition_current_offset")}
        return topics, {labels[0] for labels in observed.series("kafka_consumergroup_lag")}

    until(lambda: shown() == ({"a"}, {"g1", "g2", "g3"}), WAIT_S, "one topic and three groups are shown")
    commit(observed, "g4", "a", 0)
    left_out = "korvet_metrics_groups_left_out"
    # The fourth group has no room, and another one has a name that does not match.
    until(lambda: observed.series(left_out) == {(): 2}, WAIT_S, "two groups are left out")
    # Topics b, c and __consumer_offsets.
    assert observed.series("korvet_metrics_topics_left_out") == {(): 3}
    assert shown() == ({"a"}, {"g1", "g2", "g3"})
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.delete_consumer_groups(["g1"])["g1"].result(20)
    until(lambda: shown()[1] == {"g2", "g3", "g4"}, WAIT_S, "the fourth group has the room of the first")
    # The settings are in force at once, also for groups that do not move.
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    for name, value in (("metrics.groups", "o.*"), ("metrics.topics", "a")):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
    admin.incremental_alter_configs([resource])[resource].result(20)
    until(lambda: shown()[1] == {"other"}, WAIT_S, "another group is shown")
