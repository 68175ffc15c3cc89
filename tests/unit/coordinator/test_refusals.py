"""Errors in the replies to requests that no shard could handle."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from korvet.coordinator.refusals import refuse
from korvet.groups.messages import SyncReply, SyncRequest


@pytest.mark.parametrize(
    ("reason", "answered"),
    [
        (ErrorCode.coordinator_load_in_progress, ErrorCode.rebalance_in_progress),
        (ErrorCode.coordinator_not_available, ErrorCode.coordinator_not_available),
        (ErrorCode.not_coordinator, ErrorCode.not_coordinator),
    ],
)
def test_errors_of_a_sync_are_those_that_clients_expect(reason: ErrorCode, answered: ErrorCode) -> None:
    assert refuse(SyncRequest("g", 1, "m"), reason) == SyncReply(answered)
