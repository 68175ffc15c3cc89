"""What clients are told of Redis's own errors: what passes is retriable for whoever asked."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from korvet import api
from korvet.api.common.errors import Asked, asked_by, error_code_of
from korvet.protocol import registry
from korvet.redis.errors import (
    PASSING,
    FencedEpoch,
    HistoryChanged,
    LinkLost,
    RedisFault,
    StorageError,
    StorageFault,
    TopicExists,
    domain_error,
)

PASSING_REPLIES = [
    "NOREPLICAS Not enough good replicas to write.",
    "READONLY You can't write against a read only replica.",
    "MISCONF Errors writing to the AOF file: No space left on device",
    "LOADING Redis is loading the dataset in memory",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
]
LASTING_REPLIES = [
    "NOAUTH Authentication required.",
    "NOPERM User default has no permissions to run the 'fcall' command",
    "WRONGPASS invalid username-password pair or user is disabled.",
]
# Others end Java's consumer with an exception, but for those that are about the offset or rights.
OF_FETCHES = {
    ErrorCode.not_leader_or_follower,
    ErrorCode.replica_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.offset_not_available,
}
# On these Java's producer asks again for its id, whatever its release. On COORDINATOR_NOT_AVAILABLE one
# without transactions looks for a coordinator that it does not have, and fails for good.
OF_COORDINATORS = {ErrorCode.coordinator_load_in_progress}


def of(reply: str) -> StorageError:
    return domain_error(RedisFault(reply, reply.split(maxsplit=1)[0]))


@pytest.mark.parametrize("error", [*map(of, PASSING_REPLIES), LinkLost("gone")], ids=str)
def test_what_passes_is_retriable_for_all_who_asked(error: StorageError) -> None:
    assert isinstance(error, PASSING)
    assert error_code_of(error, Asked.WRITE).retriable
    assert error_code_of(error, Asked.READ) in OF_FETCHES
    assert error_code_of(error, Asked.COORDINATOR) in OF_COORDINATORS


@pytest.mark.parametrize("reply", PASSING_REPLIES)
def test_what_wrote_nothing_says_so(reply: str) -> None:
    """REQUEST_TIMED_OUT would mean that the batch may be in the log."""
    refused = {ErrorCode.not_enough_replicas, ErrorCode.not_leader_or_follower}
    assert error_code_of(of(reply)) in refused


@pytest.mark.parametrize("reply", LASTING_REPLIES)
def test_what_an_operator_has_to_mend_is_no_fault_of_the_client(reply: str) -> None:
    assert error_code_of(of(reply)) is ErrorCode.kafka_storage_error
    assert error_code_of(of(reply), Asked.READ) in OF_FETCHES
    assert error_code_of(of(reply), Asked.COORDINATOR) in OF_COORDINATORS


@pytest.mark.parametrize(
    "error",
    [
        of("KEYSPACELOST the cluster id is another one"),
        of("WRONGTYPE Operation against a key holding the wrong kind of value"),
        of("ERR something else"),
        TopicExists("another broker deletes the topic of the coordinators"),
    ],
    ids=str,
)
def test_a_producer_asks_again_for_its_id_whatever_the_reason(error: StorageError) -> None:
    assert error_code_of(error, Asked.COORDINATOR) in OF_COORDINATORS


def test_records_that_a_failover_may_have_lost_are_sent_again() -> None:
    assert error_code_of(HistoryChanged("")) is ErrorCode.not_enough_replicas_after_append


def test_every_api_is_one_of_these() -> None:
    api.load_all()
    asked = {entry.name: asked_by(entry.key) for entry in registry.registered()}
    assert asked["Fetch"] is asked["ListOffsets"] is Asked.READ
    assert asked["Produce"] is asked["CreateTopics"] is asked["Metadata"] is Asked.WRITE
    named = ("Group", "Txn", "Offset", "InitProducerId", "Heartbeat", "Transactions")
    aside = {"OffsetForLeaderEpoch", "ListOffsets", "WriteTxnMarkers"}
    coordinators = {name for name in asked if any(word in name for word in named)} - aside
    assert coordinators - {"FindCoordinator"} == {
        name for name, kind in asked.items() if kind is Asked.COORDINATOR
    } - {"FindCoordinator"}


def test_every_error_reply_becomes_an_error() -> None:
    """An exception instead would leave its command without a reply, for example after the epoch in Redis was
    damaged.
    """
    fenced = of("FENCED epoch 1048576 is older than 2097152")
    assert isinstance(fenced, FencedEpoch)
    assert fenced.newest == 2097152
    damaged = of("FENCED epoch 1048576 is older than 1e9")
    assert isinstance(damaged, FencedEpoch)
    assert damaged.newest is None
    for reply in ("THROTTLED", "THROTTLED soon"):
        assert type(of(reply)) is StorageFault


@pytest.mark.parametrize("reply", PASSING_REPLIES)
def test_a_transaction_is_aborted_for_the_reason_that_its_reply_names(reply: str) -> None:
    aborted = RedisFault(f"EXECABORT Transaction discarded because of: {reply}", "EXECABORT")
    found = domain_error(aborted)
    assert type(found) is type(domain_error(RedisFault(reply, reply.partition(" ")[0])))
    assert str(found) == reply
