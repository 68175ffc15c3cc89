"""A request that does not fit Kafka's records is refused; the partition's other groups notice nothing."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.consumer.messages import ConsumerHeartbeatRequest
from korvet.groups.messages import (
    CommitPartition,
    CommitRequest,
    CommitTopic,
    HeartbeatRequest,
    JoinProtocol,
    JoinRequest,
    Outcome,
    SyncReply,
)
from korvet.groups.native import NativeGroup
from korvet.groups.shard import GroupShard
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import GroupMetadataKey, GroupMetadataValue
from korvet.redis.keys import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from korvet.transactions.messages import AddRequest, InitRequest
from korvet.transactions.shard import TransactionShard
from korvet.transactions.state import TransactionState
from tests.coordinator.conftest import CONFIG, TOPIC, Running, running
from tests.coordinator.test_transactions import NAME
from tests.coordinator.test_transactions import running as running_transactions
from tests.support.polling import until_async

if TYPE_CHECKING:
    from tests.support.redis_server import Server

LONG = "x" * 40_000
# Few characters, but 33,000 bytes.
WIDE = "\N{SNOWMAN}" * 11_000
ANY_METADATA = msgspec.structs.replace(CONFIG, offset_metadata_max_units=1_000_000)

COMMIT = CommitRequest("attacker", (CommitTopic(TOPIC, (CommitPartition(0, 1),)),))
JOIN = JoinRequest("attacker", "", "consumer", (JoinProtocol("range", b"s"),), 30_000, 30_000)
HEARTBEAT = ConsumerHeartbeatRequest(
    "attacker", "m", 0, rebalance_timeout_ms=30_000, subscribed_topic_names=(TOPIC,), owned=()
)


def committing(metadata: str) -> CommitRequest:
    return CommitRequest("attacker", (CommitTopic(TOPIC, (CommitPartition(0, 1, metadata=metadata),)),))


def changed(request: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(request, **fields)


INVALID = ErrorCode.invalid_request
CASES: dict[str, tuple[Any, Any, ErrorCode]] = {
    "commit: group": (GroupShard.commit, changed(COMMIT, group_id=LONG), ErrorCode.invalid_group_id),
    "commit: wide group": (GroupShard.commit, changed(COMMIT, group_id=WIDE), ErrorCode.invalid_group_id),
    "commit: group in a transaction": (
        GroupShard.commit,
        changed(COMMIT, group_id=LONG, producer=(1, 0)),
        ErrorCode.invalid_group_id,
    ),
    "commit: metadata": (GroupShard.commit, committing(LONG), ErrorCode.offset_metadata_too_large),
    "commit: wide metadata": (GroupShard.commit, committing(WIDE), ErrorCode.offset_metadata_too_large),
    "commit: retention": (
        GroupShard.commit,
        changed(COMMIT, retention_time_ms=2**63 - 1),
        ErrorCode.none,
    ),
    "join: group": (GroupShard.join, changed(JOIN, group_id=LONG), ErrorCode.invalid_group_id),
    "join: member": (GroupShard.join, changed(JOIN, member_id=LONG), ErrorCode.unknown_member_id),
    "join: instance": (GroupShard.join, changed(JOIN, group_instance_id=LONG), INVALID),
    # The member id is derived from it, and does not fit.
    "join: client": (GroupShard.join, changed(JOIN, client_id="x" * 32_767), INVALID),
    "join: protocol type": (GroupShard.join, changed(JOIN, protocol_type=LONG), INVALID),
    "join: protocol": (GroupShard.join, changed(JOIN, protocols=(JoinProtocol(LONG, b"s"),)), INVALID),
    "heartbeat: group": (GroupShard.consumer_heartbeat, changed(HEARTBEAT, group_id=LONG), INVALID),
    "heartbeat: member": (GroupShard.consumer_heartbeat, changed(HEARTBEAT, member_id=LONG), INVALID),
    "heartbeat: instance": (GroupShard.consumer_heartbeat, changed(HEARTBEAT, instance_id=LONG), INVALID),
    "heartbeat: rack": (GroupShard.consumer_heartbeat, changed(HEARTBEAT, rack_id=LONG), INVALID),
    "heartbeat: wide rack": (GroupShard.consumer_heartbeat, changed(HEARTBEAT, rack_id=WIDE), INVALID),
    "heartbeat: client": (GroupShard.consumer_heartbeat, changed(HEARTBEAT, client_id=LONG), INVALID),
    "heartbeat: topic": (
        GroupShard.consumer_heartbeat,
        changed(HEARTBEAT, subscribed_topic_names=(TOPIC, LONG)),
        INVALID,
    ),
    "heartbeat: expression": (
        GroupShard.consumer_heartbeat,
        changed(HEARTBEAT, subscribed_topic_names=None, subscribed_topic_regex=LONG),
        INVALID,
    ),
}


def neighbour_of(group: str) -> str:
    """Another group of the same partition of `__consumer_offsets`."""
    names = (f"innocent{number}" for number in count())
    return next(name for name in names if partition_for(name) == partition_for(group))


def error_of(reply: Any) -> ErrorCode:
    topics = getattr(reply, "topics", None)
    return ErrorCode(topics[0].partitions[0].error if topics else reply.error)


@pytest.mark.parametrize("case", CASES)
async def test_what_no_record_holds_is_refused_to_its_sender(server: Server, prefix: str, case: str) -> None:
    handler, request, expected = CASES[case]
    innocent = neighbour_of(request.group_id)
    async with running(server, prefix, config=ANY_METADATA) as run:
        for offset in range(10):
            reply, error = await asyncio.gather(
                run.service.call(request.group_id, handler, request), run.commit(innocent, offset)
            )
            assert error == ErrorCode.none
            assert error_of(reply) is expected
        assert (await run.committed(innocent)).offset == 9
        assert run.service.reloads == 0
    async with running(server, prefix) as run:
        assert (await run.committed(innocent)).offset == 9


async def test_an_oversized_transactional_id_is_refused(server: Server, prefix: str) -> None:
    async with running_transactions(server, prefix) as run:
        for name, expected in ((LONG, INVALID), (WIDE, INVALID), ("x" * 32_767, ErrorCode.none)):
            reply = await run.service.call(name, TransactionShard.init_producer, InitRequest(name, 60_000))
            assert reply.error is expected
            # The transactional id whose records are being written belongs to another client.
        identity = await run.begun()
        refused = run.service.call(LONG, TransactionShard.init_producer, InitRequest(LONG, 60_000))
        assert (await refused).error is INVALID
        assert await run.end(identity, committed=True) is ErrorCode.none


async def test_a_transaction_larger_than_the_topic_takes_now_times_out(server: Server, prefix: str) -> None:
    """The limit was lowered while the transaction was open: no client must wait for it for ever."""
    async with running_transactions(server, prefix) as run:
        init = await run.service.call(NAME, TransactionShard.init_producer, InitRequest(NAME, 3000))
        partitions = frozenset(("absent", number) for number in range(100_000))
        request = AddRequest(NAME, init.producer_id, init.producer_epoch, partitions)
        added = await run.service.call(NAME, TransactionShard.add_partitions, request)
        assert added.error is ErrorCode.none
        topic = run.store.catalogue.get(TRANSACTIONS_TOPIC)
        assert topic is not None
        configs = {**topic.configs, "max.message.bytes": "1000"}
        await run.store.catalogue.set_configs(TRANSACTIONS_TOPIC, configs)

        async def aborts() -> bool:
            return TransactionState.PREPARE_ABORT in await run.states()

        await until_async(aborts, 30, "the transaction is aborted")


async def test_a_record_that_does_not_fit_refuses_its_own_group_only(
    server: Server, prefix: str, group: str
) -> None:
    """A request that passes the checks: a sync whose record cannot be written."""

    def with_long_name(shard: GroupShard, request: Any, token: Any, now_ms: int) -> Outcome:
        value = GroupMetadataValue(LONG, 1, None, None, now_ms, ())
        return Outcome([(GroupMetadataKey(group), value)], [(token, SyncReply(ErrorCode.none))])

    innocent = neighbour_of(group)
    async with running(server, prefix) as run:
        joined = await run.join(group)
        await run.sync(group, joined)
        request = HeartbeatRequest(group, joined.generation_id, joined.member_id)
        for offset in range(10):
            reply, error = await asyncio.gather(
                run.service.call(group, with_long_name, request), run.commit(innocent, offset)
            )
            assert (reply.error, error) == (ErrorCode.unknown_server_error, ErrorCode.none)
        assert await run.heartbeat(group, joined) == ErrorCode.none
        assert run.service.reloads == 0


@pytest.mark.parametrize("size", [2_000_000, 60_000_000])
async def test_a_record_larger_than_the_topic_takes_is_refused_to_its_sender(
    server: Server, prefix: str, group: str, size: int
) -> None:
    """A sync whose assignment makes the group's record too large; Kafka gives the same answer."""
    innocent = neighbour_of(group)
    async with running(server, prefix) as run:
        joined = await run.join(group)
        reply, error = await asyncio.gather(
            run.sync(group, joined, assignment=b"x" * size), run.commit(innocent, 7)
        )
        assert (reply.error, error) == (ErrorCode.unknown_server_error, ErrorCode.none)
        # The same member may try again with less.
        assert (await run.sync(group, joined)).error == ErrorCode.none
        assert await run.heartbeat(group, joined) == ErrorCode.none
        assert run.service.reloads == 0
    async with running(server, prefix) as run:
        assert (await run.committed(innocent)).offset == 7
        assert await run.heartbeat(group, joined) == ErrorCode.none


async def test_the_topics_own_limit_is_what_counts(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        topic = run.store.catalogue.get(OFFSETS_TOPIC)
        assert topic is not None
        await run.store.catalogue.set_configs(
            OFFSETS_TOPIC, {**topic.configs, "max.message.bytes": "3000000"}
        )
        joined = await run.join(group)
        reply = await run.sync(group, joined, assignment=b"x" * 2_000_000)
        assert reply.error == ErrorCode.none
        assert run.service.reloads == 0


async def test_a_handler_that_raises_ends_its_own_request_only(
    server: Server, prefix: str, group: str
) -> None:
    class Defect(Exception):
        pass

    def defective(shard: GroupShard, request: Any, token: Any, now_ms: int) -> Outcome:
        # Its partial outcome must not go with the next request's records.
        shard.commit(msgspec.structs.replace(COMMIT, group_id=group), token, now_ms)
        shard._context.records.append((GroupMetadataKey(group), None))
        raise Defect

    async with running(server, prefix) as run:
        assert await run.commit(group, 5) == ErrorCode.none
        with pytest.raises(Defect):
            await run.service.call(group, defective, COMMIT)
        assert await run.commit(group, 6) == ErrorCode.none
        assert (await run.committed(group)).offset == 6
        assert run.service.reloads == 0
    async with running(server, prefix) as run:
        assert (await run.committed(group)).offset == 6


async def _exported(run: Running, groups: list[NativeGroup]) -> bool:
    with run.service.watch() as watch:
        if watch is not None:
            run.service.export(groups, watch)
        return watch is not None


@pytest.mark.parametrize("at", [2**63, 2**64 * 1024])
async def test_a_native_group_beyond_the_last_offset(
    server: Server, prefix: str, group: str, at: int
) -> None:
    async with running(server, prefix) as run:
        topic = run.store.catalogue.get(TOPIC)
        assert topic is not None
        native = NativeGroup(group, TOPIC, 0, at, 0, None, topic.topic_id.bytes)
        other = NativeGroup(neighbour_of(group), TOPIC, 0, 7, 0, None, topic.topic_id.bytes)
        await until_async(lambda: _exported(run, [native, other]), 20, "a round")
        assert (await run.committed(other.group)).offset == 7
        assert (await run.committed(group)).offset == 2**63 - 1
        assert run.service.reloads == 0
