"""The state of what is refused: when causes begin and end, what is counted, and what is logged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from korvet.redis.errors import (
    AllowanceSpent,
    Busy,
    NoRoom,
    NotEnoughReplicas,
    NotPersisted,
    NotPrimary,
    OutOfMemory,
    TooFewReplicas,
)
from korvet.redis.refusals import EFFECTS, REFUSING, SETTLE_S, Cause, Refusals

if TYPE_CHECKING:
    from korvet.redis.errors import StorageError

PLACE, OTHER = "127.0.0.1:6379", "127.0.0.1:6380"
ANSWERED = [
    (OutOfMemory("OOM"), Cause.MEMORY),
    (AllowanceSpent("NOALLOWANCE"), Cause.ALLOWANCE),
    (NotPersisted("MISCONF"), Cause.PERSISTENCE),
    (TooFewReplicas("NOREPLICAS"), Cause.MIN_REPLICAS),
    (NotPrimary("READONLY"), Cause.DEMOTED),
]
FOUND = [cause for cause in Cause if cause not in {cause for _, cause in ANSWERED}]


def causes(refusals: Refusals) -> list[tuple[Cause, str]]:
    return [(row.cause, row.place) for row in refusals]


@pytest.mark.parametrize(("error", "cause"), ANSWERED)
def test_a_cause_ends_after_writes_were_accepted_for_a_while(error: StorageError, cause: Cause) -> None:
    """One acceptance is not enough: at its limit of memory a server refuses and accepts in turn."""
    refusals = Refusals()
    refusals.refuse_for(error, 10.0, PLACE)
    refusals.accept_writes(11.0, PLACE)
    refusals.refuse_for(error, 11.5, PLACE)
    refusals.accept_writes(12.0, PLACE)
    assert causes(refusals) == [(cause, PLACE)]
    assert next(iter(refusals)).since_s == 10.0
    refusals.accept_writes(12.0 + SETTLE_S, PLACE)
    assert not refusals


@pytest.mark.parametrize("cause", FOUND)
def test_a_cause_that_the_broker_finds_ends_at_once(cause: Cause) -> None:
    refusals = Refusals()
    refusals.refuse(cause, "why", 1.0, PLACE)
    assert refusals.has(cause)
    assert refusals.has(cause, PLACE)
    assert not refusals.has(cause, OTHER)
    refusals.accept_writes(100.0, PLACE)
    refusals.accept(cause, 2.0, OTHER)
    assert causes(refusals) == [(cause, PLACE)]
    refusals.accept(cause, 2.0, PLACE)
    assert not refusals


def test_each_server_has_causes_of_its_own() -> None:
    refusals = Refusals()
    for place in (PLACE, OTHER):
        refusals.refuse_for(OutOfMemory("OOM"), 1.0, place)
    refusals.keep_only({OTHER}, 2.0)
    assert causes(refusals) == [(Cause.MEMORY, OTHER)]


def test_other_errors_are_no_refusals() -> None:
    refusals = Refusals()
    refusals.refuse_for(Busy("BUSY"), 1.0, PLACE)
    refusals.refuse_for(NotEnoughReplicas("an append asks for more than the probe found"), 1.0, PLACE)
    assert not refusals


def test_groups_are_refused_only_when_their_allowance_is_used_up() -> None:
    refusals = Refusals()
    assert not refusals.of_groups(PLACE)
    refusals.refuse_for(OutOfMemory("OOM"), 1.0, PLACE)
    assert not refusals.of_groups(PLACE)
    refusals.refuse_for(AllowanceSpent("NOALLOWANCE"), 1.0, PLACE)
    assert refusals.of_groups(PLACE)
    assert not refusals.of_groups(OTHER)
    refusals.accept_writes(2.0, PLACE)
    assert not refusals.of_groups(PLACE)
    assert refusals.has(Cause.ALLOWANCE, PLACE)
    refusals.refuse_for(AllowanceSpent("NOALLOWANCE"), 3.0, PLACE)
    assert refusals.of_groups(PLACE)


def test_the_log_has_one_line_at_the_beginning_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for number in range(5):
        refusals.refuse_for(OutOfMemory("OOM it is full"), 10.0 + number, PLACE)
        refusals.count(OutOfMemory("OOM it is full"), PLACE)
    refusals.accept_writes(60.0, PLACE)
    refusals.accept_writes(60.0 + SETTLE_S, PLACE)
    begin, end = (record.getMessage() for record in caplog.records)
    assert begin == f"{EFFECTS[Cause.MEMORY]}: Redis at {PLACE}: OOM it is full"
    assert end == f"over after 53 s: {begin}; 5 batches of clients were refused"
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert refusals.batches[Cause.MEMORY] == 5


def test_a_short_disk_refuses_records_before_they_are_sent() -> None:
    refusals = Refusals()
    refusals.short_disk(NoRoom("3 bytes are left"), 1.0)
    assert refusals.no_room is not None
    refusals.count(refusals.no_room, PLACE)
    assert [(row.cause, row.batches) for row in refusals] == [(Cause.DISK, 1)]
    # The embedded server then asks for replicas that it never has.
    refusals.refuse_for(TooFewReplicas("NOREPLICAS"), 2.0, PLACE)
    assert causes(refusals) == [(Cause.DISK, ""), (Cause.PERSISTENCE, PLACE)]
    refusals.short_disk(None, 3.0)
    assert refusals.no_room is None
    assert causes(refusals) == [(Cause.PERSISTENCE, PLACE)]


def test_memory_is_nearly_full_from_90_percent_until_88() -> None:
    refusals = Refusals()
    seen = []
    for used in (89, 90, 89, 88, 87, 90):
        refusals.used_memory(used, 100, 1.0, PLACE)
        seen.append(refusals.has(Cause.NEARLY_FULL))
    assert seen == [False, True, True, True, False, True]
    refusals.used_memory(90, 0, 1.0, PLACE)
    assert not refusals


def test_readiness_counts_what_is_refused_and_notes_the_rest() -> None:
    refusals = Refusals()
    refusals.refuse(Cause.KEYSPACE, "it is gone", 1.0)
    refusals.refuse(Cause.LEASE, "it has expired", 1.0)
    assert refusals.of_writes(partial=False) == refusals.of_writes(partial=True) == ""
    assert refusals.of_keyspace() == "it is gone"
    refusals.used_memory(95, 100, 1.0, PLACE)
    refusals.refuse(Cause.ACKS_ALL, "one topic asks for more", 1.0, PLACE, partial=True)
    assert refusals.of_writes(partial=False) == ""
    assert "95 %" in refusals.of_writes(partial=True)
    assert "one topic asks for more" in refusals.of_writes(partial=True)
    refusals.refuse_for(OutOfMemory("OOM"), 1.0, PLACE)
    assert refusals.of_writes(partial=False).endswith("OOM")


def test_every_cause_says_what_it_means() -> None:
    assert set(EFFECTS) == set(Cause)
    assert set(REFUSING) == set(Cause) - {Cause.NEARLY_FULL}
