"""Failed handling of a Redis reply: a defect of the broker costs one request, without lasting effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.api.fetching.full_fetch import FullFetch
from korvet.api.fetching.memory import FetchMemory
from korvet.api.fetching.pending_fetch import PendingFetch
from korvet.coordinator.term import Term
from korvet.groups.shard import GroupShard
from korvet.log import appender
from korvet.log.ends import KnownEnds
from korvet.log.partition_log import PartitionLog
from korvet.log.reader import Read
from korvet.log.state import LogState
from korvet.log.tail_cache import TailCache
from korvet.transactions.shard import TransactionShard
from tests.api.asking import Client, connect
from tests.api.batches import batch
from tests.api.test_fetch import BY_NAME, fetch
from tests.api.test_produce import put
from tests.api.test_transactions import FIRST_PROTOCOL, SECOND_PROTOCOL, Producer
from tests.api.test_txn_offsets import Mover
from tests.support.polling import until
from tests.support.wire import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import SimpleNamespace

    from tests.support.servers import KorvetServer


@pytest.fixture
def client(in_process: SimpleNamespace) -> Iterator[Client]:
    made = connect(in_process)
    wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1}
    made("CreateTopics", 7, topics=[wanted], timeout=10_000, validate_only=False)
    with made.raw:
        yield made


def fails_once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, kind: type[Exception] = ZeroDivisionError
) -> list[str]:
    """Makes the next call of a method raise. The returned list then has an item."""
    method = getattr(owner, name)
    failed: list[str] = []

    def fail(*arguments: Any, **options: Any) -> Any:
        if not failed:
            failed.append(name)
            raise kind("a defect")
        return method(*arguments, **options)

    monkeypatch.setattr(owner, name, fail)
    return failed


@pytest.mark.parametrize("protocol", [FIRST_PROTOCOL, SECOND_PROTOCOL])
@pytest.mark.parametrize(("owner", "name"), [(PartitionLog, "append"), (TransactionShard, "add_partitions")])
def test_a_batch_of_a_transaction_that_fails_is_answered(
    client: Client, monkeypatch: pytest.MonkeyPatch, protocol: int, owner: Any, name: str
) -> None:
    producer = Producer(client, "t", protocol)
    producer.init()
    producer.write(b"first")
    failed = fails_once(monkeypatch, owner, name)
    assert producer.put(b"second").error_code == ErrorCode.unknown_server_error
    assert failed
    assert producer.put(b"second").error_code == ErrorCode.none
    assert producer.end() == ErrorCode.none


def test_offsets_of_a_transaction_that_fail_are_answered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Mover(client, "t", SECOND_PROTOCOL)
    producer.init()
    failed = fails_once(monkeypatch, GroupShard, "commit")
    assert producer.commit(5) == [ErrorCode.unknown_server_error]
    assert failed
    assert producer.commit(5) == [ErrorCode.none]
    assert producer.end() == ErrorCode.none


def test_an_append_that_took_effect_is_acknowledged_all_the_same(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "t", batch([(b"k", b"first")]))
    failed = fails_once(monkeypatch, LogState, "note_appended")
    offsets = [put(client, "t", batch([(b"k", b"v%d" % number)])).base_offset for number in range(3)]
    assert failed
    assert offsets == sorted(set(offsets))
    (found,) = fetch(client, BY_NAME, ("t", 0, offsets[0]))
    assert b"v0" in found.records


def test_an_append_that_contradicts_what_is_known_is_not_acknowledged(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(client, "t", batch([(b"k", b"first")])).base_offset
    failed = fails_once(monkeypatch, TailCache, "extend", AssertionError)
    sent = batch([(b"k", b"second")], producer=(7, 0, 0))
    assert put(client, "t", sent).error_code is ErrorCode.request_timed_out
    assert failed
    assert put(client, "t", sent).error_code is ErrorCode.none
    (found,) = fetch(client, BY_NAME, ("t", 0, first))
    assert found.records.count(b"second") == 1


def test_a_marker_that_contradicts_what_is_known_is_written_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(client, "t", SECOND_PROTOCOL)
    producer.init()
    first = producer.write(b"v").base_offset
    failed = fails_once(monkeypatch, LogState, "note_marked", AssertionError)
    assert producer.end() == ErrorCode.none
    until(lambda: fetch(client, BY_NAME, ("t", 0, first))[0].last_stable_offset > first + 1, 20, "the marker")
    assert failed


def test_a_read_of_ends_that_contradict_what_is_known_is_answered_with_an_error(
    client: Client, in_process: SimpleNamespace, korvet: KorvetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    korvet.redis.xadd(f"{in_process.keyspace}:t:0", {"key": b"k", "value": b"v"})

    def contradict(*_: Any) -> None:
        raise AssertionError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(KnownEnds, "take", contradict)
        (found,) = fetch(client, BY_NAME, ("t", 0, 0))
        assert found.error_code is ErrorCode.kafka_storage_error
    (found,) = fetch(client, BY_NAME, ("t", 0, 0))
    assert b"v" in found.records


@pytest.mark.parametrize("kind", [ValueError, AssertionError, ZeroDivisionError])
def test_an_append_whose_reply_cannot_be_read_is_over_all_the_same(
    client: Client, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """It may have taken effect."""
    failed = fails_once(monkeypatch, appender, "read_decisions", kind)
    sent = batch([(b"k", b"v")], producer=(7, 0, 0))
    assert put(client, "t", sent).error_code is ErrorCode.request_timed_out
    assert failed
    again = put(client, "t", sent)
    assert again.error_code is ErrorCode.none
    (found,) = fetch(client, BY_NAME, ("t", 0, 0))
    assert found.high_watermark == again.base_offset + 1


def test_a_read_whose_reply_cannot_be_handled_is_answered_with_an_error(
    client: Client, in_process: SimpleNamespace, korvet: KorvetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Entries of another writer aren't in the tail cache.
    korvet.redis.xadd(f"{in_process.keyspace}:t:0", {"key": b"k", "value": b"v"})
    failed = fails_once(monkeypatch, Read, "_range_arrived")
    (found,) = fetch(client, BY_NAME, ("t", 0, 0))
    assert failed
    assert found.error_code is ErrorCode.kafka_storage_error
    (found,) = fetch(client, BY_NAME, ("t", 0, 0))
    assert found.error_code is ErrorCode.none
    assert b"v" in found.records


def test_a_waiting_fetch_that_cannot_be_answered_ends_its_connection(
    client: Client, in_process: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = put(client, "t", batch([(b"k", b"v")])).base_offset + 1
    failed = fails_once(monkeypatch, FullFetch, "answer")
    with pytest.raises(ConnectionClosed):
        fetch(client, BY_NAME, ("t", 0, end), wait_ms=200)
    assert failed
    with connect(in_process) as other:
        (found,) = fetch(other, BY_NAME, ("t", 0, end))
        assert found.error_code is ErrorCode.none


def test_a_fetch_that_fails_after_its_wait_for_memory_ends_its_connection(
    client: Client, in_process: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "t", batch([(b"k", b"v")]))
    has_room = FetchMemory.take
    refused: list[FetchMemory] = []

    def refuse_once(memory: FetchMemory, most_bytes: int) -> int:
        if refused:
            return has_room(memory, most_bytes)
        refused.append(memory)
        return 0

    monkeypatch.setattr(FetchMemory, "take", refuse_once)
    failed = fails_once(monkeypatch, PendingFetch, "_read_within")
    with pytest.raises(ConnectionClosed):
        fetch(client, BY_NAME, ("t", 0, 0))
    assert failed
    until(lambda: refused[0].held_bytes == 0, 20, "its memory is given back")
    with connect(in_process) as other:
        (found,) = fetch(other, BY_NAME, ("t", 0, 0))
        assert b"v" in found.records


def test_a_fetch_whose_reads_cannot_be_taken_over_ends_its_connection(
    client: Client, in_process: SimpleNamespace, korvet: KorvetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    korvet.redis.xadd(f"{in_process.keyspace}:t:0", {"key": b"k", "value": b"v"})
    failed = fails_once(monkeypatch, PendingFetch, "_hold")
    with pytest.raises(ConnectionClosed):
        fetch(client, 9, ("t", 0, 0))
    assert failed


def test_a_commit_whose_append_cannot_be_taken_over_is_answered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition is loaded again, so no commit waits forever."""
    failed = fails_once(monkeypatch, Term, "_placed")

    def commit() -> ErrorCode:
        partition = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}
        topics = [{"name": "t", "partitions": [partition]}]
        answer = client(
            "OffsetCommit", 8, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    assert commit() is ErrorCode.coordinator_not_available
    assert failed
    until(lambda: commit() is ErrorCode.none, 20, "the group's partition is loaded again")
