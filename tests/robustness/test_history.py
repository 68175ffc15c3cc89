"""Histories: every event survives its line, and a damaged line is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from robustness import history
from robustness.history import (
    Admin,
    Assign,
    Commit,
    Fault,
    HistoryError,
    NativeRead,
    NativeSend,
    OffsetForEpoch,
    Place,
    Poll,
    ReadAll,
    ReadCommit,
    ReadNativeGroup,
    Record,
    Run,
    Send,
    Topic,
    Truncated,
    Txn,
    Writer,
)

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = [
    Run(at=0, process="runner", type="info", seed=7, topology="pair", topics=(Topic(name="t"),)),
    Send(at=1, process="p", type="invoke", topic="t", partition=0, value="é\n1", txn="x"),
    Send(at=2, process="p", type="info", topic="t", partition=0, value="é\n1", error="timed out"),
    Poll(at=3, process="c", type="ok", records=(Record("t", 0, 5, "a"),), positions=(Place("t", 0, 6, 2),)),
    Assign(at=4, process="c", type="info", places=(Place("t", 0),), why="rebalance"),
    Truncated(at=5, process="c", type="info", topic="t", partition=0, offset=4),
    Commit(at=6, process="c", type="ok", group="g", offsets=(Place("t", 0, 6),)),
    ReadCommit(at=7, process="a", type="ok", group="g", offsets=(Place("t", 0, 6),)),
    ReadNativeGroup(at=8, process="a", type="ok", group="g", topic="t", partition=0, offset=6, pending=(3,)),
    Txn(at=9, process="p", type="ok", txn="x", transactional_id="i", action="commit"),
    OffsetForEpoch(at=10, process="c", type="ok", topic="t", partition=0, epoch=3, answered=3, end=9),
    NativeSend(at=11, process="n", type="ok", topic="t", partition=0, value="b", entry_id="5-0"),
    NativeRead(at=12, process="n", type="ok", topic="t", partition=0, entries=(("5-0", "b"),)),
    ReadAll(at=13, process="r", type="ok", topic="t", partition=0, records=((5, "a"),), complete=True),
    Admin(at=14, process="a", type="ok", action="delete_records", topic="t", partition=0, offset=2),
    Fault(at=15, process="runner", type="info", kind="kill", target="primary", phase="begin"),
]


def test_every_event_survives_its_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history.write(path, EVENTS)
    assert list(history.read(path)) == EVENTS


def test_files_of_several_processes_become_one_history(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, events in zip(paths, (EVENTS[::2], EVENTS[1::2]), strict=True):
        history.write(path, events)
    assert history.load(*paths) == EVENTS


def test_writers_may_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Writer(path) as one, Writer(path) as other:
        for event in EVENTS:
            one.write(event)
            other.write(event)
    assert sorted(history.load(path), key=lambda event: event.at) == [e for e in EVENTS for _ in "ab"]


def test_a_cut_line_is_reported_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(history.encode(EVENTS[0]) + history.encode(EVENTS[1])[:-9])
    with pytest.raises(HistoryError, match=r"history\.jsonl:2"):
        list(history.read(path))


def test_unknown_operations_are_reported() -> None:
    with pytest.raises(HistoryError):
        history.decode(b'{"op":"guess","at":0,"process":"p","type":"ok"}')
