"""Readiness by facts: what each problem says, and that one is enough."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.admin.health import CHECKS, Facts, Server, is_ready, readiness
from korvet.observe.lifecycle import Phase

ANSWERS, SILENT, GONE = Server("one", True, 3000), Server("two", True, 3001), Server("three", False, 0)


@pytest.mark.parametrize(
    ("change", "check", "problem"),
    [
        ({"phase": Phase.STARTING}, "serving", "the broker is starting"),
        ({"phase": Phase.LOADING}, "serving", "the broker is loading"),
        ({"phase": Phase.DRAINING}, "serving", "the broker is draining"),
        ({"phase": Phase.STOPPING}, "serving", "the broker is stopping"),
        ({"holds_lease": False}, "lease", "the lease has expired, or a new one is being taken"),
        ({"servers": [ANSWERS, SILENT]}, "redis", "two has sent nothing for 3001 ms"),
        ({"servers": [GONE, SILENT]}, "redis", "no connection to three; two has sent nothing for 3001 ms"),
        ({"loading_groups": 7}, "groups", "7 partitions of __consumer_offsets are being read"),
        ({"loading_transactions": 1}, "transactions", "1 partitions of __transaction_state are being read"),
        ({"keyspace_lost": "another id"}, "keyspace", "another id"),
        ({"writes_refused": "MISCONF"}, "writes", "MISCONF"),
        ({"keys_missing": "no keys"}, "keys", "no keys"),
    ],
)
def test_one_problem_is_enough(change: dict[str, Any], check: str, problem: str) -> None:
    checks = readiness(Facts(Phase.SERVING)._replace(**change))
    assert not is_ready(checks)
    assert [str(each) for each in checks if each.problem] == [f"{check}: {problem}"]


def test_a_broker_with_older_keys_is_ready_but_says_so() -> None:
    checks = readiness(Facts(Phase.SERVING, keys_stale="older keys"))
    assert is_ready(checks)
    assert "keys: ok, but older keys" in map(str, checks)


def test_a_broker_without_problems_is_ready() -> None:
    checks = readiness(Facts(Phase.SERVING, servers=[ANSWERS]))
    assert is_ready(checks)
    assert [str(each) for each in checks] == [f"{name}: ok" for name in CHECKS]
