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
