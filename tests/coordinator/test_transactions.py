"""The transaction coordinator over a real server: its records, and what a crash leaves of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.backup.numbers import raised
from korvet.cluster.producer_ids import FIRST_ID
from korvet.coordinator import transaction_term
from korvet.coordinator.loader import OffsetsLoader
from korvet.coordinator.markers import LocalMarkers, MarkerWriter
from korvet.coordinator.service import CoordinatorService
from korvet.coordinator.transactions import TransactionService
from korvet.groups.config import GroupConfig
from korvet.groups.shard import GroupShard
from korvet.log.values import ProducerSequence
from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.offsets.transaction_log import (
    decode_transaction_key,
    decode_transaction_value,
    transaction_partition_for,
)
from korvet.records.control import ControlMarker
from korvet.records.kernel import encode_append_records, parse_batch
from korvet.redis.fields import pairs_of
from korvet.redis.keys import TRANSACTIONS_TOPIC
from korvet.transactions.config import TransactionConfig
from korvet.transactions.messages import (
    BUMPING_PROTOCOL,
    AddRequest,
    EndRequest,
    InitReply,
    InitRequest,
    ListRequest,
)
from korvet.transactions.shard import TransactionShard
from korvet.transactions.state import TransactionState
from tests.coordinator.conftest import lose_topic
from tests.support.logs import admit, append_own
from tests.support.polling import until_async
from tests.support.received import ReceivedBatch
from tests.support.stores import open_store
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from korvet.log.partition_log import PartitionLog
    from korvet.store import Store
    from tests.support.redis_server import Server

NAME = "payments"
PARTITIONS = 3


class Running:
    """A coordinator and its store; the partitions of one topic."""

    def __init__(self, store: Store, service: TransactionService) -> None:
        self.store = store
        self.service = service

    def log(self, partition: int) -> PartitionLog:
        topic = self.store.catalogue.get("t")
        assert topic is not None
        return self.store.logs.get(topic, partition)

    async def begun(self) -> tuple[int, int]:
        """A transaction with a record in each partition; returns its producer's id and epoch."""
        init = await until_async(self._init, 60, "a producer ID is there")
        assert init.error is ErrorCode.none
        identity = init.producer_id, init.producer_epoch
        partitions = frozenset(("t", number) for number in range(PARTITIONS))
        added = await self.service.call(
            NAME, TransactionShard.add_partitions, AddRequest(NAME, *identity, partitions)
        )
        assert added.error is ErrorCode.none
        for number in range(PARTITIONS):
            await self.write(number, ProducerSequence(*identity, 0, True))
        return identity

    async def _init(self) -> InitReply | None:
        request = InitRequest(NAME, 60_000)
        reply: InitReply = await self.service.call(NAME, TransactionShard.init_producer, request)
        return None if reply.error is ErrorCode.coordinator_load_in_progress else reply

    async def write(self, partition: int, stamp: ProducerSequence) -> None:
        data = forms.whole_batch(
            [forms.Record(b"k", b"v", forms.BASE_MS)],
            attributes=16,
            producer=(stamp.producer_id, stamp.producer_epoch, stamp.base_sequence),
        )
        log = self.log(partition)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        log.append(ReceivedBatch(data, parse_batch(data, 0), None), stamp, admit, done.set_result)
        assert not isinstance(await done, Exception)

    async def end(self, identity: tuple[int, int], committed: bool) -> ErrorCode:
        reply = await self.service.call(NAME, TransactionShard.end, EndRequest(NAME, *identity, committed))
        return ErrorCode(reply.error)

    async def markers(self) -> list[bytes]:
        """The markers of each partition."""
        found = []
        for number in range(PARTITIONS):
            entries = await self.store.commands.call("XRANGE", self.log(number).stream, "-", "+")
            found += [fields[1] for _, fields in entries if fields[0] == b"ctl"]
        return found

    async def states(self) -> list[TransactionState]:
        """The states in the log."""
        topic = self.store.catalogue.get(TRANSACTIONS_TOPIC)
        assert topic is not None
        number = transaction_partition_for(NAME, topic.partitions)
        stream = self.store.commands.keyspace.stream(topic.name, number)
        states = []
        for _, fields in await self.store.commands.call("XRANGE", stream, "-", "+"):
            assert decode_transaction_key(fields[1]) == NAME
            states.append(TransactionState(decode_transaction_value(fields[3]).transaction_status))
        return states


@contextlib.asynccontextmanager
async def running(server: Server, prefix: str) -> AsyncIterator[Running]:
    async with open_store(server.url, prefix) as store:
        if store.catalogue.get("t") is None:
            await store.catalogue.create("t", PARTITIONS)
        groups = CoordinatorService(store.commands, store.logs, store.catalogue, GroupConfig())
        await groups.start()
        markers = MarkerWriter(LocalMarkers(store.logs, store.catalogue, groups).write)
        config = TransactionConfig()
        service = TransactionService(store.logs, store.catalogue, store.producer_ids, config, markers)
        service.follow_assignment()
        await service.make_topic()
        try:
            async with asyncio.timeout(60):
                await service.wait_loaded()
            yield Running(store, service)
        finally:
            await service.close()
            await groups.close()


@pytest.mark.parametrize("committed", [True, False])
async def test_a_transaction_and_its_records(server: Server, prefix: str, committed: bool) -> None:
    async with running(server, prefix) as one:
        identity = await one.begun()
        assert await one.end(identity, committed) is ErrorCode.none
        outcome = b"commit" if committed else b"abort"
        await until_async(lambda: _has(one, [outcome] * PARTITIONS), 60, "the markers")
        decided = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        done = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
        expected = [TransactionState.EMPTY, TransactionState.ONGOING, decided, done]
        await until_async(lambda: _is_at(one, expected), 60, "the end")


async def test_transactions_go_on_after_a_failover_that_lost_their_topic(server: Server, prefix: str) -> None:
    async with running(server, prefix) as one:
        assert await one.end(await one.begun(), committed=True) is ErrorCode.none
        await lose_topic(one.store, TRANSACTIONS_TOPIC)
        one.service.follow_assignment()
        refused = await one.service.call(NAME, TransactionShard.init_producer, InitRequest(NAME, 60_000))
        assert refused.error is ErrorCode.coordinator_not_available
        await one.service.make_topic()
        await one.service.wait_loaded()
        assert one.store.catalogue.get(TRANSACTIONS_TOPIC) is not None
        assert await one.end(await one.begun(), committed=True) is ErrorCode.none


async def test_new_producers_get_new_ids_after_a_restore(server: Server, prefix: str) -> None:
    """Producers with IDs from before the restore are fenced, and a broker takes IDs in advance."""
    async with running(server, prefix) as one:
        cluster = one.store.commands.keyspace.cluster
        taken, _ = await one.begun()
        now_ms = time.time_ns() // 1_000_000
        numbers = raised(dict(pairs_of(await one.store.commands.call("HGETALL", cluster))), now_ms, now_ms, 0)
        first_id = numbers[FIRST_ID]
        assert taken < first_id
        await one.store.commands.call("HSET", cluster, FIRST_ID, first_id, "next_producer_id", first_id)
        await lose_topic(one.store, TRANSACTIONS_TOPIC)
        one.service.follow_assignment()
        await one.service.make_topic()
        await one.service.wait_loaded()
        identity = await one.begun()
        assert identity[0] >= first_id
        assert await one.end(identity, committed=True) is ErrorCode.none


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("marked", [0, 1, PARTITIONS])
async def test_what_was_decided_is_completed_after_a_crash(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch, committed: bool, marked: int
) -> None:
    written = 0
    write = MarkerWriter._write

    async def stop(self: MarkerWriter, partition: tuple[str, int], *arguments: Any) -> bool:
        nonlocal written
        if written < marked:
            written += 1
            await write(self, partition, *arguments)
        await asyncio.Event().wait()  # never reported, as in a crash
        return False

    monkeypatch.setattr(MarkerWriter, "_write", stop)
    outcome = b"commit" if committed else b"abort"
    async with running(server, prefix) as one:
        identity = await one.begun()
        assert await one.end(identity, committed) is ErrorCode.none
        await until_async(lambda: _has(one, [outcome] * marked), 60, "the first markers")
        assert await one.end(identity, committed) is ErrorCode.concurrent_transactions
    monkeypatch.undo()
    async with running(server, prefix) as one:
        await until_async(lambda: _has(one, [outcome] * PARTITIONS), 60, "the markers")
        done = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
        await until_async(lambda: _ends_with(one, done), 60, "the end")
        assert await one.end(identity, committed) is ErrorCode.none
        for number in range(PARTITIONS):
            bounds = await one.log(number).bounds()
            assert bounds.last_stable_offset == bounds.log_end


async def test_what_comes_next_waits_for_the_markers(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer of protocol version 2 continues at once, and in order."""
    go_on = asyncio.Event()
    write = MarkerWriter._write

    async def wait(self: MarkerWriter, *arguments: Any) -> bool:
        await go_on.wait()
        return await write(self, *arguments)

    monkeypatch.setattr(MarkerWriter, "_write", wait)
    monkeypatch.setattr(transaction_term, "_LONGEST_HOLD_S", 60)
    async with running(server, prefix) as one:
        producer_id, epoch = await one.begun()
        ended = await one.service.call(
            NAME, TransactionShard.end, EndRequest(NAME, producer_id, epoch, True, BUMPING_PROTOCOL)
        )
        assert (ended.error, ended.producer_epoch) == (ErrorCode.none, epoch + 1)
        answered: list[tuple[int, ErrorCode]] = []

        def add(number: int, epoch: int = epoch + 1) -> None:
            places = frozenset({("t", number)})
            asked = AddRequest(NAME, producer_id, epoch, places, BUMPING_PROTOCOL)
            one.service.add(asked, lambda reply: answered.append((number, reply.error)))

        for number in range(PARTITIONS):
            add(number)
        add(PARTITIONS, epoch)
        await one.markers()
        assert answered == []
        # No client of version 1 waits.
        first = AddRequest(NAME, producer_id, epoch + 1, frozenset({("t", 0)}))
        reply = await one.service.call(NAME, TransactionShard.add_partitions, first)
        assert reply.error is ErrorCode.concurrent_transactions
        go_on.set()
        done = [(number, ErrorCode.none) for number in range(PARTITIONS)]
        done.append((PARTITIONS, ErrorCode.producer_fenced))
        await until_async(lambda: _is(answered, done), 60, "the replies, in order")
        assert (await one.states())[-1] is TransactionState.ONGOING


async def test_what_comes_next_does_not_wait_for_ever(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> bool:
        await asyncio.Event().wait()
        return False

    monkeypatch.setattr(MarkerWriter, "_write", never)
    async with running(server, prefix) as one:
        producer_id, epoch = await one.begun()
        await one.service.call(
            NAME, TransactionShard.end, EndRequest(NAME, producer_id, epoch, True, BUMPING_PROTOCOL)
        )
        places = frozenset({("t", 0)})
        asked = AddRequest(NAME, producer_id, epoch + 1, places, BUMPING_PROTOCOL)
        reply = await one.service.call(NAME, TransactionShard.add_partitions, asked)
        assert reply.error is ErrorCode.concurrent_transactions
        # It does not keep the coordinator from closing either.
        monkeypatch.setattr(transaction_term, "_LONGEST_HOLD_S", 60)
        waiting = asyncio.create_task(one.service.call(NAME, TransactionShard.add_partitions, asked))
        await one.markers()
    assert (await waiting).error is not ErrorCode.none


async def _is(found: list[tuple[int, ErrorCode]], wanted: list[tuple[int, ErrorCode]]) -> bool:
    return found == wanted


async def test_an_open_transaction_outlives_its_coordinator(server: Server, prefix: str) -> None:
    async with running(server, prefix) as one:
        identity = await one.begun()
    async with running(server, prefix) as one:
        assert await one.markers() == []
        assert await one.end(identity, True) is ErrorCode.none
        await until_async(lambda: _has(one, [b"commit"] * PARTITIONS), 60, "the markers")


async def test_a_list_is_not_whole_if_a_partition_fails_before_its_reply(server: Server, prefix: str) -> None:
    async with running(server, prefix) as one:
        request = InitRequest(NAME, 60_000)
        await one.service.call(NAME, TransactionShard.init_producer, request)
        topic = one.store.catalogue.get(TRANSACTIONS_TOPIC)
        assert topic is not None
        stream = one.store.logs.get(topic, transaction_partition_for(NAME, topic.partitions)).stream
        server.client.rename(stream, f"{prefix}-aside")
        server.client.set(stream, "no stream")
        # The list waits for records in flight.
        one.service.submit(NAME, TransactionShard.init_producer, request, lambda reply: None)
        listing = asyncio.create_task(one.service.list_transactions(ListRequest()))
        await asyncio.sleep(0)
        assert await listing == (ErrorCode.coordinator_not_available, [])
        server.client.rename(f"{prefix}-aside", stream)
        await one.service.wait_loaded()
        error, (listed,) = await one.service.list_transactions(ListRequest())
        assert (error, listed.transactional_id) == (ErrorCode.none, NAME)


async def _has(one: Running, markers: list[bytes]) -> bool:
    return await one.markers() == markers


async def _is_at(one: Running, states: list[TransactionState]) -> bool:
    return await one.states() == states


async def _ends_with(one: Running, state: TransactionState) -> bool:
    return (await one.states())[-1] is state


@pytest.mark.parametrize("outcome", [None, True, False])
async def test_offsets_of_open_transactions_are_loaded_as_pending(
    server: Server, prefix: str, outcome: bool | None
) -> None:
    async with open_store(server.url, prefix) as store:
        topic = await store.catalogue.create(
            "__consumer_offsets", 1, {"cleanup.policy": "compact"}, internal=True, offset_assignment="dense"
        )
        log = store.logs.get(topic, 0)

        async def commit(offset: int, producer_id: int | None = None) -> None:
            record = (
                encode_key(OffsetCommitKey("g", "t", 0)),
                encode_value(OffsetCommitValue(offset, commit_timestamp_ms=forms.BASE_MS)),
                forms.BASE_MS,
            )
            producer = None if producer_id is None else (producer_id, 0)
            stamp = None if producer is None else ProducerSequence(*producer, -1, True)
            await append_own(log, encode_append_records([record], producer), stamp)

        await commit(1)
        await commit(2, 7)
        if outcome is not None:
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            log.mark(ControlMarker(7, 0, outcome, 1), done.set_result)
            assert not isinstance(await done, Exception)
        shard = GroupShard(GroupConfig(), lambda: "0")
        await OffsetsLoader(store.commands.keyspace, log).replay_into(shard)
        shard.loaded(forms.BASE_MS)

        def committed() -> int:
            value = shard.committed("g", "t", 0)
            assert value is not None
            return value.offset

        assert committed() == (2 if outcome else 1)
        shard.end_transaction(7, committed=True)
        assert committed() == (1 if outcome is False else 2)
