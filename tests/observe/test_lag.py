"""The lag that Prometheus shows: the same as Spark's, that of `korvet groups`, and the number of records that
the group then reads, for every kind of storage.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.observe.records import KINDS, PARTITIONS, fill, prepared, read
from tests.support.polling import patient, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.observe.cluster import ObservedCluster

pytestmark = pytest.mark.clients

GROUP = "readers"
FIRST_READ = 45
SHOWN_S = 20
EXPORT_S = 200
# Two clocks are compared, with a scrape and a refresh in between.
LAG_TOLERANCE_S = 5.0


class Behind(NamedTuple):
    """A group that has read a part of every topic: the topics by kind, and the records that are left."""

    topics: dict[str, str]
    unread: Counter[tuple[str, str]]


@pytest.fixture(scope="module")
def behind(observed: ObservedCluster) -> Behind:
    topics = {kind: prepared(observed, kind, "lag") for kind in KINDS}
    read(observed, GROUP, list(topics.values()), FIRST_READ)
    for kind, topic in topics.items():
        fill(observed, topic, kind)
    unread: Counter[tuple[str, str]] = Counter()
    for topic in topics.values():
        for row in read_with_another_group(observed, topic).items():
            unread[row[0]] = row[1] - FIRST_READ
    return Behind(topics, unread)


def read_with_another_group(cluster: ObservedCluster, topic: str) -> Counter[tuple[str, str]]:
    """Returns the number of all records, by topic and partition, as a consumer counts them."""
    found = read(cluster, f"counter-of-{topic}", [topic])
    return Counter({(name, str(partition)): count for (name, partition), count in found.items()})


def shown(cluster: ObservedCluster, group: str = GROUP) -> dict[tuple[str, ...], float]:
    return cluster.prometheus.by(f"kafka_consumergroup_lag{{consumergroup='{group}'}}", "topic", "partition")


def test_lag_equals_the_number_of_unread_records(observed: ObservedCluster, behind: Behind) -> None:
    assert len(behind.unread) == len(KINDS) * PARTITIONS
    assert min(behind.unread.values()) > 0
    until(lambda: shown(observed) == behind.unread, SHOWN_S, f"{behind.unread} in Prometheus")
    sums = observed.prometheus.by(f"kafka_consumergroup_lag_sum{{consumergroup='{GROUP}'}}", "topic")
    totals: Counter[str] = Counter()
    for (topic, _), count in behind.unread.items():
        totals[topic] += count
    assert {topic: value for (topic,), value in sums.items()} == totals


def test_lag_equals_that_of_the_commands(observed: ObservedCluster, behind: Behind) -> None:
    until(lambda: shown(observed) == behind.unread, SHOWN_S, "the lag in Prometheus")
    rows = observed.described(GROUP)["offsets"]
    assert {(row["topic"], str(row["partition"])): row["record_lag"] for row in rows} == behind.unread
    seconds = observed.prometheus.by(
        f"kafka_consumergroup_group_lag_seconds{{group='{GROUP}'}}", "topic", "partition"
    )
    described = {(row["topic"], str(row["partition"])): row["lag_ms"] / 1000 for row in rows}
    assert seconds.keys() == described.keys()
    for place, value in seconds.items():
        assert value == pytest.approx(described[place], abs=LAG_TOLERANCE_S), place


@pytest.mark.spark
def test_lag_equals_sparks(observed: ObservedCluster, behind: Behind, tmp_path: Path) -> None:
    target = tmp_path / "lag.json"
    command = [sys.executable, "-m", "korvet", "export", "--table", "record_lag", "--format", "json"]
    command += ["--to", str(target), "--redis", observed.store.url, "--master", "local[1]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(EXPORT_S), check=False)
    assert done.returncode == 0, done.stderr
    files = target.rglob("*.json") if target.is_dir() else [target]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    lag = {(row["topic"], str(row["partition"])): row["record_lag"] for row in rows if row["group"] == GROUP}
    assert lag == behind.unread
    assert shown(observed) == behind.unread


def test_the_group_reads_exactly_its_lag(observed: ObservedCluster, behind: Behind) -> None:
    """Runs last: the group keeps up from now on."""
    before = until(
        lambda: found if (found := shown(observed)) == behind.unread else None,
        SHOWN_S,
        "the lag in Prometheus",
    )
    counted = read(observed, GROUP, list(behind.topics.values()))
    assert {(topic, str(partition)): count for (topic, partition), count in counted.items()} == before
    until(lambda: set(shown(observed).values()) == {0.0}, SHOWN_S, "no lag in Prometheus")


def test_offsets_are_ordinals_of_records(observed: ObservedCluster, behind: Behind) -> None:
    """The distance of two ordinals is a number of existing records, on clock offsets too."""
    topics = "{topic=~'lag-.*'}"

    def right() -> bool:
        kept = f"kafka_topic_partition_current_offset{topics} - kafka_topic_partition_oldest_offset{topics}"
        found = observed.prometheus.by(kept, "topic", "partition")
        return found == {place: count + FIRST_READ for place, count in behind.unread.items()}

    until(right, SHOWN_S, "the number of existing records of each partition")
