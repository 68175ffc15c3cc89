"""Rolling upgrades from the last release and back, under load: nothing is lost or doubled, service goes on,
and groups keep their members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet as korvet_command
from robustness.campaign import check_file
from robustness.history import load
from tests.support.polling import patient
from tests.upgrades.releases import THIS, last
from tests.upgrades.rolling import Rolling
from tests.upgrades.service import service_of

if TYPE_CHECKING:
    from pathlib import Path

# How long a partition may be without service. The last release hands over with less care.
MOST_MS = 1_000
MOST_OF_LAST_MS = 3_000
STEPS = 4
STARTS = 3


def check(brokers: Rolling, folder: Path, most_ms: int) -> None:
    """Check a history: no violation, no rebalance, no long delay.

    On a busy machine each of a few steps is late by as much as this process, and brokers start slowly at the
    same time. Without its handover a partition waits for 20 s, until the lease of its broker ends.
    """
    found = check_file(brokers.history, folder)
    assert found.has_passed, found.text
    service = service_of(load(brokers.history))
    assert not service.rebalances, service
    stalled_ms = brokers.stalls.longest_ms
    limit_ms = max(patient(most_ms), STARTS * brokers.longest_start_ms) + STEPS * stalled_ms
    assert service.longest_ms <= limit_ms, (service, stalled_ms, brokers.longest_start_ms)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_brokers_are_upgraded_one_by_one(tmp_path: Path) -> None:
    """After the last broker, the upgrade is finalised; then the last release is refused."""
    before = last()
    with Rolling(tmp_path, before) as brokers:
        brokers.start()
        brokers.replace(THIS, settle_s=0.5)
        done = CliRunner(env={}).invoke(korvet_command, ["upgrade", "--redis", brokers.redis_url])
        assert (done.exit_code, done.output) == (0, "the keyspace korvet has format 4 now; it had format 3\n")
        brokers.finish()
        broker = brokers.brokers[0]
        broker.stop()
        broker.use(before.environ)
        broker.spawn()
        assert "has format 4; this korvet works with format 3 only" in broker.last_words()
    check(brokers, tmp_path, MOST_MS)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_upgrade_is_taken_back(tmp_path: Path) -> None:
    """Until it is finalised, brokers go back to the last release one by one."""
    before = last()
    with Rolling(tmp_path, before) as brokers:
        brokers.start()
        for _ in range(2):
            brokers.replace(THIS, settle_s=3)
            brokers.replace(before, settle_s=3)
        brokers.finish()
    check(brokers, tmp_path, MOST_OF_LAST_MS)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_brokers_restart_one_by_one(tmp_path: Path) -> None:
    with Rolling(tmp_path, THIS) as brokers:
        brokers.start()
        for _ in range(3):
            brokers.replace(THIS, settle_s=2)
        brokers.finish()
    check(brokers, tmp_path, MOST_MS)
