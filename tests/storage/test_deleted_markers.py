"""Markers of aborted transactions that Redis clients delete (XDEL): consumers of committed records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from korvet.offsets.packing import entry_id
from tests.storage.transaction_log import READ_BYTES, Log

if TYPE_CHECKING:
    from tests.storage.conftest import Bench

ALL_BYTES = 1 << 20
layouts = pytest.mark.parametrize("layout", ["record", "batch"])


def delete(log: Log, *offsets: int) -> None:
    log.bench.client.xdel(log.log.stream, *(entry_id(one, log.log.bias) for one in offsets))


@layouts
@pytest.mark.parametrize("max_bytes", [READ_BYTES, ALL_BYTES])
@pytest.mark.parametrize("gone", ["marker", "transaction"])
@pytest.mark.parametrize("cached", [False, True])
def test_later_transactions_of_the_producer_are_read(
    bench: Bench, layout: str, max_bytes: int, gone: str, *, cached: bool
) -> None:
    """The aborted transaction does not reach beyond its deleted marker."""
    log = Log(bench, layout)
    first = log.append(-1, (b"a", b"1"))
    aborted = log.append(7, (b"b", b"2"))
    log.append(-1, (b"c", b"3"))
    marker = log.end(7, committed=False)
    delete(log, marker, *([aborted] if gone == "transaction" else []))
    log.append(7, (b"d", b"4"))
    log.append(8, (b"e", b"5"))
    log.end(7, committed=True)
    log.end(8, committed=True)
    log.append(7, (b"f", b"6"))
    log.append(-1, (b"g", b"7"))
    log.end(7, committed=False)
    log.append(7, (b"h", b"8"))
    log.end(7, committed=True)
    if not cached:
        log.log.state.tail.clear()
    read = log.committed(first, max_bytes)
    assert [value for _, value in read.values()] == [b"1", b"3", b"4", b"5", b"7", b"8"]
    assert log.committed(aborted, max_bytes) == {at: pair for at, pair in read.items() if at > aborted}
    assert log.committed(marker, max_bytes) == {at: pair for at, pair in read.items() if at > marker}


@layouts
def test_two_transactions_without_their_markers(bench: Bench, layout: str) -> None:
    log = Log(bench, layout)
    first = log.append(-1, (b"b", b"0"))
    for value in (b"1", b"2"):
        log.append(7, (b"a", value))
        log.append(-1, (b"b", value))
        delete(log, log.end(7, committed=False))
    log.append(7, (b"c", b"3"))
    log.end(7, committed=True)
    read = log.committed(first, ALL_BYTES)
    assert [value for _, value in read.values()] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("assignment", ["clock", "dense"])
@layouts
def test_transactions_that_follow_each_other_stay_apart(bench: Bench, layout: str, assignment: str) -> None:
    """Without the markers in between, records of several transactions of one producer are neighbours."""
    log = Log(bench, layout, assignment)
    first = log.append(7, (b"a", b"1"))
    delete(log, log.end(7, committed=False))
    log.append(7, (b"b", b"2"), (b"c", b"3"))
    delete(log, log.end(7, committed=True))
    log.append(7, (b"d", b"4"))
    delete(log, log.end(7, committed=False))
    log.append(7, (b"e", b"5"))
    delete(log, log.end(7, committed=True))
    log.append(7, (b"f", b"6"))
    log.log.state.tail.clear()
    assert [value for _, value in log.committed(first, ALL_BYTES).values()] == [b"2", b"3", b"5"]
