"""Transactions when the clock of their coordinator is set."""

from __future__ import annotations

import pytest

from tests.unit.transactions.driver import TIMEOUT_MS
from tests.unit.transactions.test_transaction_shard import NONE, begun


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
def test_a_transaction_has_its_time_when_the_clock_is_set(by_ms: int) -> None:
    driver, producer_id, epoch = begun()
    driver.advance(1_000)
    driver.now_ms += by_ms
    driver.shard.shift(by_ms)
    assert driver.add(producer_id, epoch, ("payments", 0)).error is NONE
    driver.advance(TIMEOUT_MS - 1_001)
    assert driver.state == "Ongoing"
    driver.advance(1)
    assert driver.state == "PrepareAbort"


def test_a_transaction_that_began_in_the_future_times_out() -> None:
    """The clock was an hour ahead when it began, and another coordinator has the right time."""
    driver, _, _ = begun()
    driver.now_ms -= 3_600_000
    other = driver.restarted()
    other.advance(TIMEOUT_MS - 1)
    assert other.state == "Ongoing"
    other.advance(1)
    assert other.state == "PrepareAbort"


@pytest.mark.parametrize("by_ms", [0, -3_600_000])
def test_each_decision_is_later_than_the_one_before(by_ms: int) -> None:
    """So a delayed marker differs from those of the next transaction, on another coordinator too."""
    driver, producer_id, epoch = begun()
    decided = []
    for _ in range(3):
        driver.add(producer_id, epoch)
        driver.end(producer_id, epoch)
        decided += [markers.decided_ms for markers in driver.write_markers()]
        driver = driver.restarted()
        driver.now_ms += by_ms
    assert decided == sorted(set(decided))
    assert len(decided) == 3
