"""What the log tells of replicas, by what their primary reports."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from korvet.outlook.copies import ReplicaLog
from korvet.redis.replication import Replica, Replication

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLLOWS, GONE, SILENT = "follows Redis at P", "of Redis at P is gone", "of Redis at P does not report"


def replica(port: int, state: str = "online", lag_s: int = 0) -> Replica:
    return Replica("r", port, state, 0, lag_s)


def replication(replicas: Sequence[Replica]) -> Replication:
    return Replication(False, "h", "", -1, 0, len(replicas), tuple(replicas))


@pytest.mark.parametrize(
    ("reports", "lines"),
    [
        # One report a second.
        ([[replica(1)]] * 9, [f"I r:1 {FOLLOWS}"]),
        (
            [[replica(1)], *[[]] * 9, [replica(1)]],
            [f"I r:1 {FOLLOWS}", f"W r:1 {GONE}", "W r:1 of Redis at P is back after 10 s"],
        ),
        ([[replica(1)], [], [], [replica(1)]], [f"I r:1 {FOLLOWS}"]),
        ([[replica(1)], *[[replica(1, lag_s=11)]] * 9], [f"I r:1 {FOLLOWS}", f"W r:1 {SILENT}"]),
        (
            [[replica(1)], *[[]] * 5, *[[replica(1, "wait_bgsave")]] * 5, [replica(1)]],
            [f"I r:1 {FOLLOWS}", f"W r:1 {GONE}", "W r:1 of Redis at P is back after 11 s"],
        ),
        ([[replica(1, "wait_bgsave")]] * 5, []),
        # The primary is away longer than its replica.
        ([[replica(1)], *[None] * 9, [], [replica(1)]], [f"I r:1 {FOLLOWS}"]),
        ([[replica(1)], *[None] * 9, *[[]] * 5], [f"I r:1 {FOLLOWS}", f"W r:1 {GONE}"]),
        # A tool that copies the data, such as a backup.
        ([*[[replica(0, "send_bulk")]] * 5, [replica(0)], *[[]] * 5], []),
        (
            [[replica(1), replica(2)], *[[replica(2)]] * 5],
            [f"I r:1 {FOLLOWS}", f"I r:2 {FOLLOWS}", f"W r:1 {GONE}"],
        ),
    ],
)
def test_lines(
    reports: list[list[Replica] | None], lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    found = ReplicaLog()
    for now_s, replicas in enumerate(reports):
        found.note("P", None if replicas is None else replication(replicas), now_s)
    assert [
        f"{each.levelname[0]} {each.getMessage().removeprefix('the replica ')}" for each in caplog.records
    ] == lines


def test_another_primary_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    found = ReplicaLog()
    found.note("P", replication([replica(1)]), 0)
    found.keep(["Q"])
    found.note("Q", replication([]), 1)
    for now_s in range(2, 20):
        found.note("Q", replication([]), now_s)
        found.keep(["Q"])
    assert caplog.messages == [f"the replica r:1 {FOLLOWS}"]


def test_memory_is_bounded() -> None:
    found = ReplicaLog()
    for port in range(1, 1_000):
        found.note("P", replication([replica(port)]), port)
    assert sum(len(each) for each in found._known.values()) == 100
