"""Offsets that are committed in transactions: tables of random histories equal plain Python."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.packing import entry_id
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.spark.export.all_tables import stored_table, update_tables
from korvet.spark.export.tables import batch_table
from korvet.spark.source.address import Address
from korvet.spark.tables.readers import RedisReader
from tests.spark.keyspace import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_rows")]

MS = 1_700_000_000_000
TOPIC, TOPIC_PARTITIONS = "orders", 2
# All groups share two partitions of `__consumer_offsets`, so that each is behind transactions of others.
GROUPS = [name for name in (f"group-{number}" for number in range(400)) if partition_for(name) < 2][:8]
PRODUCERS = range(1, 5)
Key = tuple[str, int]
"""Group and partition."""


@dataclass
class Coordinator:
    """`__consumer_offsets` as a coordinator writes it, and what it would answer: offsets by group."""

    keyspace: Keyspace
    chance: random.Random
    current: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """Position and committed offset."""
    pending: dict[int, dict[Key, tuple[int, int]]] = field(default_factory=dict)
    counted: int = 0
    """Commits that count, tombstones included."""
    written: dict[int, int] = field(default_factory=dict)
    """Commits in the open transaction of each producer."""

    def act(self) -> None:
        """One commit, tombstone or marker."""
        chance = self.chance
        key = chance.choice(GROUPS), chance.randrange(TOPIC_PARTITIONS)
        producer, dice = chance.choice(PRODUCERS), chance.random()
        if dice < 0.2:
            self.end(producer, committed=chance.random() < 0.6)
        elif dice < 0.3:
            self.remove(key)
        else:
            self.commit(key, None if dice < 0.5 else producer)

    def commit(self, key: Key, producer: int | None) -> None:
        position, offset = self._write(key, self.chance.randrange(1000), producer)
        if producer is None:
            self.current[key] = position, offset
            self.counted += 1
        else:
            self.pending.setdefault(producer, {})[key] = position, offset
            self.written[producer] = self.written.get(producer, 0) + 1

    def remove(self, key: Key) -> None:
        self._write(key, None, None)
        self.counted += 1
        for offsets in (self.current, *self.pending.values()):
            offsets.pop(key, None)

    def end(self, producer: int, *, committed: bool) -> None:
        """Write a marker into both partitions."""
        for partition in range(2):
            outcome = "commit" if committed else "abort"
            position = self._add(partition, b"ctl", outcome, b"pid", str(producer), b"epoch", b"0")
            self.keyspace.end(OFFSETS_TOPIC, partition, producer, position, outcome)
        offsets, commits = self.pending.pop(producer, {}), self.written.pop(producer, 0)
        if committed:
            self.counted += commits
            for key, (position, offset) in offsets.items():
                self.current[key] = max(self.current.get(key, (-1, 0)), (position, offset))

    def _write(self, key: Key, offset: int | None, producer: int | None) -> tuple[int, int]:
        fields: list[bytes | str] = [b"key", encode_key(OffsetCommitKey(key[0], TOPIC, key[1]))]
        if offset is not None:
            fields += [b"value", encode_value(OffsetCommitValue(offset, commit_timestamp_ms=MS))]
        if producer is not None:
            fields += [b"pid", str(producer), b"epoch", b"0"]
        partition = partition_for(key[0])
        position = self._add(partition, *fields, b"ts", str(MS))
        if producer is not None:
            self.keyspace.begin(OFFSETS_TOPIC, partition, producer, position)
        return position, offset or 0

    def _add(self, partition: int, *fields: bytes | str) -> int:
        position = self.keyspace.next_offset.get(partition, 0)
        self.keyspace.next_offset[partition] = position + 1
        self.keyspace.add(OFFSETS_TOPIC, partition, entry_id(position, bias=1), *fields)
        return position

    def check(self, current: DataFrame, pending: DataFrame) -> None:
        assert offsets_of(current.collect()) == {key: offset for key, (_, offset) in self.current.items()}
        newest: dict[Key, tuple[int, int]] = {}
        for offsets in self.pending.values():
            for key, found in offsets.items():
                newest[key] = max(newest.get(key, found), found)
        assert offsets_of(pending.collect()) == {key: offset for key, (_, offset) in newest.items()}


def offsets_of(rows: Iterable[Row]) -> dict[Key, int]:
    return {(row["group"], row["partition"]): row["committed_offset"] for row in rows}


@pytest.fixture
def coordinator(keyspace: Keyspace) -> Coordinator:
    keyspace.offsets_topic()
    keyspace.topic("__transaction_state")
    keyspace.topic(TOPIC, TOPIC_PARTITIONS)
    return Coordinator(keyspace, random.Random(5))


def test_tables_as_the_coordinator_answers(spark: SparkSession, coordinator: Coordinator) -> None:
    reader = RedisReader(Address(coordinator.keyspace.url))
    for _ in range(300):
        coordinator.act()
    assert any(coordinator.pending.values())
    coordinator.check(
        batch_table(spark, reader, "current_offsets", MS),
        batch_table(spark, reader, "pending_offsets", MS),
    )
    assert batch_table(spark, reader, "offset_commits", MS).count() == coordinator.counted


@pytest.mark.long
def test_stored_tables_carry_open_transactions_over(
    spark: SparkSession, coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = Address(coordinator.keyspace.url), str(tmp_path / "tables")
    for number in range(3):
        for _ in range(60):
            coordinator.act()
        monkeypatch.setattr("time.time_ns", lambda number=number: (MS + number) * 1_000_000)
        update_tables(spark, address, folder)
        pending = stored_table(spark, folder, "pending_offsets")
        coordinator.check(
            stored_table(spark, folder, "current_offsets"),
            pending.where(sf.unix_millis("as_of_ts") == MS + number),
        )
        assert stored_table(spark, folder, "offset_commits").count() == coordinator.counted
