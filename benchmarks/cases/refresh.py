"""Spark updates the stored tables of consumer groups: the first run, and refreshes after 1 % more commits.

A refresh in the same session is one of `korvet tables refresh --every`. A refresh in a new session and a
report from the tables are commands, and include the start of Spark, as an empty session does, which computes
one row. The first run does not include it.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import KORVET, Row
from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.packing import entry_id
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from korvet.spark.cli.stored_session import stored_session
from korvet.spark.export.all_tables import update_tables
from korvet.spark.session.session import build_session
from korvet.spark.source.address import Address
from korvet.spark.source.topics import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from benchmarks.rig.rig import Rig

SIZES = (100_000, 1_000_000)
KEYSPACE = "bench-refresh"
# 100 groups, each with 5 topics of 8 partitions.
GROUPS, TOPICS, READ, PARTITIONS = 100, 20, 5, 8
# One state of a group per number of commits.
COMMITS_PER_STATE = 1_000
# Records of each partition, and the number that the newest commits leave unread at most.
RECORDS, UNREAD = 200, 20
OFFSETS_PARTITIONS = 50
PIPELINE = 10_000
FIRST, EMPTY = "first run", "empty session"
SAME, NEW = "refresh, same session", "refresh, new session"
REPORT = "report from the tables"
# Largest part of the first run's time.
LARGEST = {SAME: 0.15, NEW: 0.3}
KORVET_MAIN = "from korvet.cli import main; main()"
EMPTY_SESSION = "from korvet.spark.session import build_session; build_session().range(1).collect()"


def measure(rig: Rig) -> Iterator[Row]:
    """Measure the time of each kind of update, for each number of commits."""
    for size in SIZES:
        commits, name = rig.scaled(size), title(size)
        if rig.wanted(name):
            rounds = [measured(rig.store.client, rig.store.url, commits) for _ in range(rig.repeat)]
            for figure in (*LARGEST, REPORT):
                sides = {KORVET: figure, FIRST: FIRST, EMPTY: EMPTY}
                values = {side: [took[key] for took in rounds] for side, key in sides.items()}
                yield Row(name, figure, "s", values)


def title(size: int) -> str:
    """Returns the benchmark's name for a number of commits."""
    return f"update all tables, {size:,} commits, then 1 % more"


GOALS = tuple(Goal(title(SIZES[-1]), figure, FIRST, largest) for figure, largest in LARGEST.items())


def measured(client: Any, url: str, commits: int) -> dict[str, float]:
    """Returns the seconds of each kind of update of new tables."""
    folder, address = Path(tempfile.mkdtemp(prefix="korvet-bench-tables-")), Address(url, KEYSPACE)
    location, took = str(folder / "tables"), {}
    work = Commits(client)
    try:
        work.add(commits)
        with session(location) as spark:
            took[FIRST] = timed(lambda: update_tables(spark, address, location))
            # The first refresh compiles the queries of small batches.
            for _ in range(2):
                work.add(commits // 100)
                took[SAME] = timed(lambda: update_tables(spark, address, location))
        redis = ("--redis", url, "--keyspace", KEYSPACE)
        # The first command may write the archive of classes.
        for _ in range(2):
            work.add(commits // 100)
            took[NEW] = timed(lambda: run("-c", KORVET_MAIN, "tables", "refresh", "--to", location, *redis))
        report = ("report", "--from", location, "--out", str(folder / "report"))
        took[REPORT] = timed(lambda: run("-c", KORVET_MAIN, *report))
        took[EMPTY] = timed(lambda: run("-c", EMPTY_SESSION))
    finally:
        shutil.rmtree(folder)
        work.remove()
    return took


@contextmanager
def session(location: str) -> Iterator[SparkSession]:
    """The session of `korvet tables refresh --every` for a folder, until the end of the block.

    Raises JarsMissing without Delta.
    """
    jars, settings = stored_session(location, "local[*]")
    spark = build_session("refresh", "local[*]", jars=jars, conf=settings)
    try:
        yield spark
    finally:
        spark.stop()


def run(*words: str) -> None:
    """Run Python with these arguments. Raises CalledProcessError with its output."""
    subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)


def timed(work: Any) -> float:
    """Returns the seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Commits:
    """Topics with records and the commits of their groups, written as korvet stores them."""

    def __init__(self, client: Any) -> None:
        """Add the topics. client: of Redis."""
        self._pipeline = client.pipeline(transaction=False)
        self._client = client
        self._chance = random.Random(0)
        self._ends = dict.fromkeys(range(OFFSETS_PARTITIONS), 0)
        self._done = 0
        self._began_ms = time.time_ns() // 1_000_000 - 3_600_000
        self._topic(OFFSETS_TOPIC, OFFSETS_PARTITIONS, {"offset.assignment": "dense"})
        for topic in range(TOPICS):
            self._topic(f"topic-{topic}", PARTITIONS, {})
            for partition in range(PARTITIONS):
                for number in range(RECORDS):
                    self._add(f"topic-{topic}", partition, f"{self._began_ms + number}-0", b"value", b"v")
        self._pipeline.execute()

    def add(self, count: int) -> None:
        """Add commits, each group and partition in turn, and states of groups."""
        for number in range(self._done, self._done + count):
            group = f"group-{number % GROUPS}"
            place = number // GROUPS % (READ * PARTITIONS)
            topic = f"topic-{(number % GROUPS + place // PARTITIONS) % TOPICS}"
            position = RECORDS - self._chance.randrange(UNREAD)
            key = OffsetCommitKey(group, topic, place % PARTITIONS)
            at_ms = self._began_ms + number
            value = OffsetCommitValue((self._began_ms + position) << 10, commit_timestamp_ms=at_ms)
            self._record(group, encode_key(key), encode_value(value), at_ms)
            if number % COMMITS_PER_STATE == 0:
                self._record(group, encode_key(GroupMetadataKey(group)), encode_value(state(number)), at_ms)
            if number % PIPELINE == 0:
                self._pipeline.execute()
        self._pipeline.execute()
        self._done += count

    def remove(self) -> None:
        """Delete everything that was added."""
        keys = [*self._client.scan_iter(f"{KEYSPACE}:*", count=1000), f"{{{KEYSPACE}}}:topics"]
        self._client.delete(*keys)

    def _topic(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        document = {"partitions": partitions, "configs": configs, "internal": name == OFFSETS_TOPIC}
        self._client.hset(f"{{{KEYSPACE}}}:topics", name, json.dumps(document))

    def _record(self, group: str, key: bytes, value: bytes, at_ms: int) -> None:
        partition = partition_for(group)
        entry = entry_id(self._ends[partition], bias=1)
        self._ends[partition] += 1
        late_ms = str(at_ms - int(entry.partition("-")[0]))
        self._add(OFFSETS_TOPIC, partition, entry, b"key", key, b"value", value, b"ts", late_ms)

    def _add(self, topic: str, partition: int, entry: str, *fields: bytes | str) -> None:
        self._pipeline.execute_command("XADD", f"{KEYSPACE}:{topic}:{partition}", entry, *fields)


def state(generation: int) -> GroupMetadataValue:
    """Returns a stable generation of three members."""
    members = tuple(
        MemberMetadata(f"member-{generation}-{number}", None, "client", "/10.0.0.1", 60_000, 10_000, b"", b"")
        for number in range(3)
    )
    return GroupMetadataValue("consumer", generation, "range", members[0].member_id, 0, members)
