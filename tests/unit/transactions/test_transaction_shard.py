"""The transaction coordinator, request by request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.transactions.config import TransactionConfig
from korvet.transactions.messages import EndRequest, InitRequest, ListRequest, Markers
from korvet.transactions.shard import NotLoaded, TransactionShard, unknown_states
from korvet.transactions.state import PREDECESSORS, IllegalTransition, TransactionState
from korvet.transactions.transaction import LAST_CLIENT_EPOCH, MAX_EPOCH, Transaction, completed
from tests.unit.transactions.driver import END_MS, PARTITION, START_MS, TIMEOUT_MS, Driver

NONE = ErrorCode.none
OTHER = ("orders", 1)


def begun(protocol: int = 0, epoch: int | None = None) -> tuple[Driver, int, int]:
    """A driver with an open transaction, its producer's id and epoch."""
    driver = Driver()
    reply = driver.init()
    if epoch is not None:
        value = driver.log[-1][1]
        assert value is not None
        driver.log[-1] = ("t", replace(value, producer_epoch=epoch))
        driver = driver.restarted()
    producer = reply.producer_id, reply.producer_epoch if epoch is None else epoch
    assert driver.add(*producer, protocol=protocol).error is NONE
    return driver, *producer


# InitProducerId


def test_a_new_id_and_its_next_producers() -> None:
    driver = Driver()
    replies = [driver.init() for _ in range(3)]
    assert [(each.error, each.producer_id, each.producer_epoch) for each in replies] == [
        (NONE, 100, epoch) for epoch in range(3)
    ]
    assert driver.init("other").producer_id == 101


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_that_is_not_allowed(timeout_ms: int) -> None:
    assert Driver().init(timeout_ms=timeout_ms).error is ErrorCode.invalid_transaction_timeout


def test_a_producer_that_goes_on_gets_the_next_epoch_once() -> None:
    driver = Driver()
    driver.init()
    first = driver.init(producer_id=100, epoch=0)
    assert (first.producer_id, first.producer_epoch) == (100, 1)
    assert driver.init(producer_id=100, epoch=0) == first  # the reply was lost
    assert driver.init().producer_epoch == 2
    assert driver.init(producer_id=100, epoch=1).error is ErrorCode.producer_fenced
    assert driver.init(producer_id=7, epoch=0).error is ErrorCode.producer_fenced


def test_after_a_restart_nobody_repeats_a_bump() -> None:
    driver = Driver()
    driver.init()
    driver.init(producer_id=100, epoch=0)
    assert driver.restarted().init(producer_id=100, epoch=0).error is ErrorCode.producer_fenced


def test_a_new_producer_aborts_what_is_open() -> None:
    driver, producer_id, epoch = begun()
    assert driver.init().error is ErrorCode.concurrent_transactions
    assert driver.state == "PrepareAbort"
    assert driver.init().error is ErrorCode.concurrent_transactions
    (markers,) = driver.write_markers()
    assert markers == Markers("t", producer_id, epoch + 1, False, frozenset({PARTITION}), END_MS)
    assert driver.state == "CompleteAbort"
    assert driver.init().producer_epoch == epoch + 2
    assert driver.end(producer_id, epoch).error is ErrorCode.producer_fenced


@pytest.mark.parametrize("protocol", [0, 2])
def test_a_producer_that_goes_on_aborts_its_own_transaction(protocol: int) -> None:
    driver, producer_id, epoch = begun(protocol)
    assert driver.init(producer_id=producer_id, epoch=epoch).error is ErrorCode.concurrent_transactions
    (markers,) = driver.write_markers()
    assert (markers.producer_epoch, markers.committed) == (epoch + 1, False)
    for _ in range(2):
        reply = driver.init(producer_id=producer_id, epoch=epoch)
        assert (reply.error, reply.producer_id, reply.producer_epoch) == (NONE, producer_id, epoch + 1)
    assert driver.add(producer_id, epoch + 1).error is NONE


@pytest.mark.parametrize("protocol", [0, 2])
def test_a_producer_goes_on_after_its_transaction_has_timed_out(protocol: int) -> None:
    driver, producer_id, epoch = begun(protocol)
    driver.advance(TIMEOUT_MS)
    driver.write_markers()
    reply = driver.init(producer_id=producer_id, epoch=epoch)
    assert (reply.error, reply.producer_id, reply.producer_epoch) == (NONE, producer_id, epoch + 1)


@pytest.mark.parametrize("protocol", [0, 2])
def test_a_transaction_can_time_out_before_its_time(protocol: int) -> None:
    driver, producer_id, epoch = begun(protocol)
    request = EndRequest("t", -1, -1, committed=False)

    def time_out() -> ErrorCode:
        return ErrorCode(driver.take(driver.shard.time_out(request, 0, driver.now_ms)).error)

    assert time_out() is NONE
    assert driver.state == "PrepareAbort"
    (markers,) = driver.write_markers()
    assert not markers.committed
    assert driver.state == "CompleteAbort"
    assert driver.end(producer_id, epoch, protocol=protocol).error is not NONE
    assert time_out() is ErrorCode.invalid_txn_state
    assert driver.init(producer_id=producer_id, epoch=epoch).error is NONE


@pytest.mark.parametrize("times_out", [False, True])
def test_a_producer_does_not_go_on_after_a_newer_one_has_come(times_out: bool) -> None:
    driver, producer_id, epoch = begun()
    if times_out:
        driver.advance(TIMEOUT_MS)
    else:
        assert driver.init().error is ErrorCode.concurrent_transactions
    driver.write_markers()
    if times_out:
        assert driver.init().error is NONE
    assert driver.init(producer_id=producer_id, epoch=epoch).error is ErrorCode.producer_fenced
    assert driver.init().error is NONE


@pytest.mark.parametrize("protocol", [0, 2])
@pytest.mark.parametrize("times_out", [False, True])
def test_a_producer_whose_id_is_exhausted_goes_on_with_another(protocol: int, times_out: bool) -> None:
    driver, producer_id, epoch = begun(protocol, epoch=LAST_CLIENT_EPOCH)
    if times_out:
        driver.advance(TIMEOUT_MS)
    else:
        driver.init(producer_id=producer_id, epoch=epoch)
    driver.write_markers()
    for _ in range(2):
        reply = driver.init(producer_id=producer_id, epoch=epoch)
        assert (reply.error, reply.producer_id, reply.producer_epoch) == (NONE, 101, 0)


def test_who_was_fenced_does_not_abort_what_is_open() -> None:
    driver = Driver()
    driver.init()
    driver.init()
    driver.add(100, 1)
    assert driver.init(producer_id=100, epoch=0).error is ErrorCode.producer_fenced
    assert driver.state == "Ongoing"


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_exhausted_producer_id_is_replaced(goes_on: bool) -> None:
    driver, producer_id, epoch = begun(epoch=LAST_CLIENT_EPOCH)
    driver.end(producer_id, epoch)
    driver.write_markers()
    expected = (producer_id, epoch) if goes_on else (-1, -1)
    reply = driver.init("t", *expected)
    assert (reply.producer_id, reply.producer_epoch) == (101, 0)
    assert driver.init("t", producer_id, epoch) == (
        reply if goes_on else type(reply)(ErrorCode.producer_fenced)
    )


def test_no_producer_id_at_hand() -> None:
    empty = Driver(take_producer_id=lambda: None)
    assert empty.init().error is ErrorCode.coordinator_load_in_progress
    assert empty.log == []
    driver, producer_id, epoch = begun(protocol=2, epoch=LAST_CLIENT_EPOCH)
    driver.take_producer_id = lambda: None
    assert driver.end(producer_id, epoch, protocol=2).error is ErrorCode.coordinator_load_in_progress
    assert driver.init().error is ErrorCode.coordinator_load_in_progress
    driver.advance(TIMEOUT_MS + 1_000)
    assert driver.state == "Ongoing"
    driver.take_producer_id = lambda: 555
    driver.advance(1_000)
    assert driver.state == "PrepareAbort"


# Adding partitions


def test_partitions_are_added_and_verified() -> None:
    driver, producer_id, epoch = begun()
    before = len(driver.log)
    assert driver.add(producer_id, epoch).error is NONE
    assert len(driver.log) == before  # it is there already
    verified = driver.add(producer_id, epoch, PARTITION, OTHER, verify_only=True)
    assert (verified.error, verified.absent) == (NONE, frozenset({OTHER}))
    driver.now_ms += 5
    driver.add(producer_id, epoch, OTHER)
    described = driver.describe()
    assert (described.partitions, described.start_ms) == (frozenset({PARTITION, OTHER}), START_MS)
    assert driver.add(producer_id, epoch + 1).error is ErrorCode.producer_fenced
    assert driver.add(producer_id + 1, epoch).error is ErrorCode.invalid_producer_id_mapping
    driver.end(producer_id, epoch)
    assert driver.add(producer_id, epoch).error is ErrorCode.concurrent_transactions


# EndTxn


@pytest.mark.parametrize("committed", [True, False])
def test_the_first_protocol(committed: bool) -> None:
    driver, producer_id, epoch = begun()
    assert driver.end(producer_id, epoch, committed=committed).error is NONE
    assert driver.end(producer_id, epoch, committed=committed).error is ErrorCode.concurrent_transactions
    (markers,) = driver.write_markers()
    assert markers == Markers("t", producer_id, epoch, committed, frozenset({PARTITION}), END_MS)
    assert driver.state == ("CompleteCommit" if committed else "CompleteAbort")
    reply = driver.end(producer_id, epoch, committed=committed)
    assert (reply.error, reply.producer_id) == (NONE, -1)
    assert driver.end(producer_id, epoch, committed=not committed).error is ErrorCode.invalid_txn_state
    assert driver.end(producer_id, epoch + 1).error is ErrorCode.producer_fenced
    assert driver.end(producer_id + 1, epoch).error is ErrorCode.invalid_producer_id_mapping


@pytest.mark.parametrize("committed", [True, False])
def test_the_second_protocol_bumps_the_epoch(committed: bool) -> None:
    driver, producer_id, epoch = begun(protocol=2)

    def end(at: int, *, opposite: bool = False) -> tuple[ErrorCode, int]:
        reply = driver.end(producer_id, at, committed=committed is not opposite, protocol=2)
        return reply.error, reply.producer_epoch

    assert end(epoch) == (NONE, epoch + 1)
    assert end(epoch)[0] is ErrorCode.concurrent_transactions
    (markers,) = driver.write_markers()
    assert markers.producer_epoch == epoch + 1
    assert end(epoch) == (NONE, epoch + 1)  # the reply was lost
    assert end(epoch, opposite=True)[0] is ErrorCode.invalid_txn_state
    assert driver.add(producer_id, epoch, protocol=2).error is ErrorCode.producer_fenced
    assert driver.add(producer_id, epoch + 1, protocol=2).error is NONE


ITS, PF, BUSY = ErrorCode.invalid_txn_state, ErrorCode.producer_fenced, ErrorCode.concurrent_transactions
# Kafka's answers to EndTxn by protocol and state. The columns are epoch by epoch: abort and commit with the
# epoch before the present one, with the present one, and with the one after it.
END_TABLE = {
    0: {
        "Empty": (PF, PF, ITS, ITS, PF, PF),
        "Ongoing": (PF, PF, NONE, NONE, PF, PF),
        "PrepareCommit": (PF, PF, BUSY, BUSY, PF, PF),
        "PrepareAbort": (PF, PF, BUSY, BUSY, PF, PF),
        "CompleteCommit": (PF, PF, ITS, NONE, PF, PF),
        "CompleteAbort": (PF, PF, NONE, ITS, PF, PF),
    },
    2: {
        "Empty": (PF, PF, NONE, ITS, PF, PF),
        "Ongoing": (PF, PF, NONE, NONE, PF, PF),
        "PrepareCommit": (BUSY,) * 6,
        "PrepareAbort": (BUSY,) * 6,
        "CompleteCommit": (ITS, NONE, NONE, ITS, PF, PF),
        "CompleteAbort": (NONE, ITS, NONE, ITS, PF, PF),
    },
}


def in_state(state: str, protocol: int) -> Driver:
    """A driver whose id is in this state, after an earlier producer."""
    driver = Driver()
    driver.init()
    driver.init()
    if state != "Empty":
        driver.add(100, 1, protocol=protocol)
    if state not in {"Empty", "Ongoing"}:
        driver.end(100, 1, committed=state.endswith("Commit"), protocol=protocol)
    if state.startswith("Complete"):
        driver.write_markers()
    assert driver.state == state
    return driver


@pytest.mark.parametrize("state", END_TABLE[0])
@pytest.mark.parametrize("protocol", END_TABLE)
def test_how_a_transaction_may_be_ended_in_each_state(protocol: int, state: str) -> None:
    answers = []
    for by in (-1, 0, 1):
        for committed in (False, True):
            driver = in_state(state, protocol)
            epoch = driver.describe().producer_epoch
            answers.append(driver.end(100, epoch + by, committed=committed, protocol=protocol).error)
    assert tuple(answers) == END_TABLE[protocol][state]


@pytest.mark.parametrize("committed", [True, False])
def test_an_empty_transaction_is_aborted_once_the_markers_of_the_last_one_are_written(
    committed: bool,
) -> None:
    driver, producer_id, epoch = begun(protocol=2)
    ended = driver.end(producer_id, epoch, committed=committed, protocol=2)
    for _ in range(2):
        early = driver.end(producer_id, ended.producer_epoch, committed=False, protocol=2)
        assert early.error is ErrorCode.concurrent_transactions
    driver.write_markers()
    reply = driver.end(producer_id, ended.producer_epoch, committed=False, protocol=2)
    assert (reply.error, reply.producer_epoch) == (NONE, epoch + 2)


def test_the_next_producer_id_waits_for_the_markers_of_the_one_before() -> None:
    driver, producer_id, epoch = begun(protocol=2, epoch=LAST_CLIENT_EPOCH)
    ended = driver.end(producer_id, epoch, protocol=2)
    name = ended.producer_id, ended.producer_epoch
    assert driver.add(*name, protocol=2).error is ErrorCode.concurrent_transactions
    assert driver.end(*name, committed=False, protocol=2).error is ErrorCode.concurrent_transactions
    assert driver.init("t", *name).error is ErrorCode.concurrent_transactions
    driver.write_markers()
    assert driver.add(*name, protocol=2).error is NONE
    assert driver.end(*name, protocol=2).error is NONE


def test_a_foreign_producer_id_ends_nothing() -> None:
    driver, producer_id, epoch = begun(protocol=2)
    driver.end(producer_id, epoch, protocol=2)
    for number in (producer_id + 1, -1):
        foreign = driver.end(number, epoch + 1, protocol=2)
        assert foreign.error is ErrorCode.invalid_producer_id_mapping


@pytest.mark.parametrize("before", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_the_second_protocol_aborts_what_was_not_begun(before: str) -> None:
    driver = Driver()
    driver.init()
    epoch = 0
    if before != "Empty":
        driver.add(100, 0, protocol=2)
        epoch = driver.end(100, 0, committed=before == "CompleteCommit", protocol=2).producer_epoch
        driver.write_markers()
    assert driver.state == before
    assert driver.end(100, epoch, protocol=2).error is ErrorCode.invalid_txn_state
    reply = driver.end(100, epoch, committed=False, protocol=2)
    assert (reply.error, reply.producer_epoch) == (NONE, epoch + 1)
    assert (driver.state, driver.markers) == ("CompleteAbort", [])


def test_the_second_protocol_replaces_an_exhausted_id() -> None:
    driver, producer_id, epoch = begun(protocol=2, epoch=LAST_CLIENT_EPOCH)
    reply = driver.end(producer_id, epoch, protocol=2)
    assert (reply.error, reply.producer_id, reply.producer_epoch) == (NONE, 101, 0)
    driver = driver.restarted()
    (markers,) = driver.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (producer_id, LAST_CLIENT_EPOCH + 1)
    assert driver.end(producer_id, epoch, protocol=2) == reply
    assert driver.add(101, 0, protocol=2).error is NONE
    assert driver.end(producer_id, epoch, protocol=2).error is ErrorCode.producer_fenced


def test_a_newer_producers_commit_is_not_taken_for_an_older_ones() -> None:
    driver = Driver()
    older = driver.init()
    newer = driver.init()
    assert newer.producer_epoch == older.producer_epoch + 1
    assert driver.add(newer.producer_id, newer.producer_epoch, PARTITION).error is NONE
    assert driver.end(newer.producer_id, newer.producer_epoch).error is NONE
    driver.write_markers()
    assert driver.state == "CompleteCommit"
    late = driver.end(older.producer_id, older.producer_epoch, protocol=2)
    assert late.error is ErrorCode.producer_fenced


def test_what_ends_nothing() -> None:
    driver = Driver()
    assert driver.end(1, 0).error is ErrorCode.invalid_producer_id_mapping
    driver.init()
    assert driver.end(100, 0).error is ErrorCode.invalid_txn_state
    assert driver.end(100, 0, committed=False).error is ErrorCode.invalid_txn_state


# Markers


def test_the_last_marker_completes() -> None:
    driver, producer_id, epoch = begun()
    driver.add(producer_id, epoch, OTHER)
    driver.end(producer_id, epoch)
    (markers,) = driver.markers
    one = Markers("t", producer_id, epoch, True, frozenset({OTHER}), END_MS)
    driver.written(one)
    driver.written(one)
    assert driver.state == "PrepareCommit"
    for other in (
        Markers("t", producer_id, epoch, False, markers.partitions, END_MS),
        Markers("t", producer_id, epoch + 1, True, markers.partitions, END_MS),
        Markers("u", producer_id, epoch, True, markers.partitions, END_MS),
    ):
        driver.written(other)
    assert driver.state == "PrepareCommit"
    driver.written(Markers("t", producer_id, epoch, True, frozenset({PARTITION}), END_MS))
    assert driver.state == "CompleteCommit"


def test_a_restart_asks_for_all_markers_again() -> None:
    driver, producer_id, epoch = begun()
    driver.add(producer_id, epoch, OTHER)
    driver.end(producer_id, epoch)
    driver.written(Markers("t", producer_id, epoch, True, frozenset({OTHER}), END_MS))
    driver = driver.restarted()
    assert driver.markers == [Markers("t", producer_id, epoch, True, frozenset({PARTITION, OTHER}), END_MS)]
    driver.write_markers()
    assert driver.state == "CompleteCommit"
    assert driver.restarted().markers == []


def test_a_decision_without_partitions_is_completed_after_a_restart() -> None:
    driver = Driver()
    driver.init()
    driver.end(100, 0, committed=False, protocol=2)
    del driver.log[-1]
    driver = driver.restarted()
    assert (driver.state, driver.markers) == ("CompleteAbort", [])
    assert driver.init().error is NONE


# Time


@pytest.mark.parametrize("protocol", [0, 2])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_transaction_that_lasts_too_long_is_aborted(protocol: int, restarts: bool) -> None:
    driver, producer_id, epoch = begun(protocol)
    driver.advance(TIMEOUT_MS - 1)
    assert driver.state == "Ongoing"
    if restarts:
        driver = driver.restarted()
    driver.advance(1)
    (markers,) = driver.write_markers()
    assert (markers.producer_epoch, markers.committed) == (epoch + 1, False)
    assert driver.state == "CompleteAbort"
    reply = driver.end(producer_id, epoch, protocol=protocol)
    assert reply.error is (ErrorCode.invalid_txn_state if protocol else ErrorCode.producer_fenced)
    if protocol:
        again = driver.end(producer_id, epoch, committed=False, protocol=protocol)
        assert (again.error, again.producer_epoch) == (NONE, epoch + 1)


def test_ids_that_nobody_uses_are_forgotten() -> None:
    config = TransactionConfig(id_expiration_ms=10_000, expiration_check_interval_ms=1_000)
    driver = Driver(config)
    driver.init()
    driver.init("u", timeout_ms=900_000)
    driver.take_producer_id = lambda: 7
    driver.advance(9_000)
    driver.init("u", 101, 0, timeout_ms=900_000)
    driver.advance(2_000)
    assert driver.describe().error is ErrorCode.transactional_id_not_found
    assert driver.describe("u").error is NONE
    assert driver.log[-1] == ("t", None)
    assert driver.restarted().describe().error is ErrorCode.transactional_id_not_found
    assert driver.init().producer_id == 7


# Descriptions


def test_listing() -> None:
    driver, producer_id, _ = begun()
    driver.init("u")
    driver.now_ms += 100

    def names(**fields: Any) -> set[str]:
        reply = driver.take(driver.shard.list_transactions(ListRequest(**fields), 0, driver.now_ms))
        return {each.transactional_id for each in reply.transactions}

    assert names() == {"t", "u"}
    assert names(states=frozenset({"Ongoing"})) == {"t"}
    assert names(producer_ids=frozenset({producer_id})) == {"t"}
    assert names(min_duration_ms=99, states=frozenset({"Ongoing"})) == {"t"}
    assert names(min_duration_ms=100, states=frozenset({"Ongoing"})) == set()
    assert unknown_states(("Ongoing", "ongoing", "CompleteAbort", "PrepareEpochFence")) == ("ongoing",)


# Misuse


def test_an_open_transaction_with_the_largest_epoch_is_aborted() -> None:
    """Only another writer writes it. The records of other timeouts of the same tick are lost with its own."""
    value = begun()[0].log[-1][1]
    assert value is not None
    driver = Driver(log=[("t", replace(value, producer_epoch=MAX_EPOCH)), ("u", value)])
    driver.advance(TIMEOUT_MS)
    assert [(each.transactional_id, each.committed) for each in driver.markers] == [
        ("t", False),
        ("u", False),
    ]


def test_nothing_is_served_before_the_log_is_loaded() -> None:
    shard = TransactionShard(TransactionConfig(), lambda: 1)
    with pytest.raises(NotLoaded):
        shard.init_producer(InitRequest("t", 1), 0, START_MS)


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("committed", [True, False])
def test_decisions_follow_the_table(state: TransactionState, committed: bool) -> None:
    driver, *_ = begun()
    value = driver.log[-1][1]
    assert value is not None
    transaction = Transaction("t", replace(value, transaction_status=state), lambda _: None)
    wanted = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    if state in PREDECESSORS[wanted]:
        decided = transaction.decided(1, -1, START_MS, committed=committed, protocol=0)
        assert TransactionState(decided.transaction_status) is wanted
        assert TransactionState(completed(decided, START_MS).transaction_status).title.startswith("Complete")
    else:
        with pytest.raises(IllegalTransition):
            transaction.decided(1, -1, START_MS, committed=committed, protocol=0)
