"""Errors in the replies to requests that no shard could handle."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from korvet.coordinator.refusals import refuse
from korvet.groups.messages import FetchReply, FetchRequest, SyncReply, SyncRequest


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


@pytest.mark.parametrize(
    ("reason", "answered"),
    [
        (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_load_in_progress),
        (ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress),
        (ErrorCode.not_coordinator, ErrorCode.not_coordinator),
    ],
)
def test_a_fetch_of_offsets_is_repeated_by_all_clients(reason: ErrorCode, answered: ErrorCode) -> None:
    assert refuse(FetchRequest("g"), reason) == FetchReply("g", answered)
