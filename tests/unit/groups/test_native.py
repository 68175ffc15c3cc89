"""What is done about a Redis group that has moved, case by case."""

from __future__ import annotations

import pytest

from korvet.groups.native import QUIET_MS, Decision, NativeGroup, Projected, decide, group_id_of
from korvet.offsets.schema import OffsetCommitValue

NOW_MS = 1_800_000_000_000
COMMIT, NOTHING, WAIT, PROJECT = Decision.COMMIT, Decision.NOTHING, Decision.WAIT, Decision.PROJECT


def decided(
    at: int,
    projected: Projected | None,
    committed: int | None,
    *,
    log_start: int = 0,
    age_ms: int = 0,
    contested: bool = False,
) -> Decision:
    native = NativeGroup("g", "orders", 0, at, log_start, projected, b"")
    value = None
    if committed is not None:
        value = OffsetCommitValue(offset=committed, commit_timestamp_ms=NOW_MS - age_ms)
    return decide(native, value, NOW_MS, contested=contested)


@pytest.mark.parametrize(
    ("projected", "committed", "decision"),
    [
        (None, None, COMMIT),
        (Projected(3, 5), 5, COMMIT),
        (Projected(3, 5, read_off=True), 5, COMMIT),
        # Deleted, and moved since.
        (Projected(3, None), None, COMMIT),
        # A commit, or a deletion, that the Redis group has yet to follow.
        (Projected(3, 5), 6, PROJECT),
        (Projected(3, 5), None, PROJECT),
        (Projected(3, None), 5, PROJECT),
        (None, 5, PROJECT),
        # A negative offset, which the Redis group follows as 0.
        (Projected(3, 0), -1, COMMIT),
        # The native consumer has reached the commit.
        (Projected(3, 9), 9, NOTHING),
    ],
)
def test_only_what_follows_the_newest_commit_is_one(
    projected: Projected | None, committed: int | None, decision: Decision
) -> None:
    assert decided(9, projected, committed) is decision


def test_commits_do_not_lie_before_the_log_start() -> None:
    assert NativeGroup("g", "orders", 0, 3, 10, None, b"").offset == 10
    assert decided(3, Projected(1, 10), 10, log_start=10) is NOTHING
    assert decided(3, Projected(1, 10), 10, log_start=11) is COMMIT


@pytest.mark.parametrize(
    ("age_ms", "read_off", "decision"),
    [(0, False, WAIT), (QUIET_MS - 1, False, WAIT), (QUIET_MS, False, COMMIT), (0, True, COMMIT)],
)
def test_consumers_at_work_lead(age_ms: int, read_off: bool, decision: Decision) -> None:
    projected = Projected(3, 5, read_off)
    assert decided(9, projected, 5, age_ms=age_ms, contested=True) is decision
    assert decided(9, projected, 5, age_ms=age_ms) is COMMIT


@pytest.mark.parametrize(
    ("name", "group"),
    [
        (b"g", "g"),
        ("grün".encode(), "grün"),
        (b"a\x00b", "a\x00b"),
        (b"x" * 32_767, "x" * 32_767),
        (b"", None),
        (b"x" * 32_768, None),
        (b"\xff", None),
        (b"\xed\xa0\x80", None),  # a lone surrogate
    ],
)
def test_names_of_kafka_groups(name: bytes, group: str | None) -> None:
    assert group_id_of(name) == group
