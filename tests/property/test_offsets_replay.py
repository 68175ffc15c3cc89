"""Replay of `__consumer_offsets` against its rules in one sentence, and in any order of its partitions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from tests.support.offsets_replay import CommitTarget, OffsetsReplay
from tests.unit.offsets.golden import CAPTURES, records, replayed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.unit.offsets.golden import GoldenRecord

COMMIT, ABORT = b"\0\0\0\x01", b"\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Written:
    """A record of one partition: a commit of `committed`, a tombstone (None), or with `marker` the end of the
    producer's transaction.
    """

    topic: str
    producer_id: int
    committed: int | None
    marker: bytes | None = None


PRODUCERS = st.sampled_from((-1, -1, 7, 8))
TOPICS = st.sampled_from("ab")
WRITTEN = st.builds(Written, TOPICS, PRODUCERS, st.none() | st.integers(0, 1 << 53)) | st.builds(
    Written, TOPICS, st.sampled_from((7, 8)), st.none(), st.sampled_from((COMMIT, ABORT))
)
LOGS = st.lists(WRITTEN, max_size=20)


def apply(replay: OffsetsReplay, partition: int, offset: int, one: Written) -> None:
    transactional = one.producer_id >= 0
    if one.marker is not None:
        replay.apply(
            partition, offset, one.marker, b"", producer_id=one.producer_id, transactional=True, control=True
        )
        return
    key = encode_key(OffsetCommitKey(f"group-{partition}", one.topic, 0))
    value = None if one.committed is None else encode_value(OffsetCommitValue(one.committed))
    replay.apply(partition, offset, key, value, producer_id=one.producer_id, transactional=transactional)


def by_the_rules(partition: int, log: Sequence[Written]) -> dict[CommitTarget, tuple[int, int]]:
    """For each key, the last record counts that is a tombstone or a valid commit: one outside of any
    transaction, or one whose producer's next marker commits.
    """
    found: dict[CommitTarget, tuple[int, int]] = {}
    for offset, one in enumerate(log):
        target = CommitTarget(f"group-{partition}", one.topic, 0)
        if one.marker is not None:
            continue
        later = (each.marker for each in log[offset:] if each.producer_id == one.producer_id and each.marker)
        if one.committed is None:
            found.pop(target, None)
        elif one.producer_id < 0 or next(later, ABORT) == COMMIT:
            found[target] = (one.committed, offset)
    return found


def state(replay: OffsetsReplay) -> dict[CommitTarget, tuple[int, int]]:
    return {target: (one.value.offset, one.record_offset) for target, one in replay.offsets.items()}


@given(st.lists(LOGS, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_replay_is_what_the_rules_say(logs: list[list[Written]], chance: random.Random) -> None:
    replay = OffsetsReplay()
    for partition, offset in interleaved([len(log) for log in logs], chance):
        apply(replay, partition, offset, logs[partition][offset])
    expected = {}
    for partition, log in enumerate(logs):
        expected |= by_the_rules(partition, log)
    assert state(replay) == expected


def interleaved(lengths: Sequence[int], chance: random.Random) -> Iterable[tuple[int, int]]:
    """The records of several logs in any order that keeps each log's own order."""
    turns = [partition for partition, length in enumerate(lengths) for _ in range(length)]
    chance.shuffle(turns)
    nexts = [0] * len(lengths)
    for partition in turns:
        yield partition, nexts[partition]
        nexts[partition] += 1


@given(st.sampled_from(CAPTURES), st.integers(0, 1 << 32))
@settings(max_examples=10)
def test_partitions_may_come_in_any_order(capture: str, seed: int) -> None:
    logs: dict[int, list[GoldenRecord]] = {}
    for one in records(capture):
        logs.setdefault(one.partition, []).append(one)
    each = list(logs.values())
    mixed = replayed(
        each[at][offset] for at, offset in interleaved([len(log) for log in each], random.Random(seed))
    )
    plain = replayed(records(capture))
    assert (mixed.offsets, mixed.groups, mixed.newer_groups, mixed.pending, mixed.skipped) == (
        plain.offsets,
        plain.groups,
        plain.newer_groups,
        plain.pending,
        plain.skipped,
    )
