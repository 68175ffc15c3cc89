"""Requests between brokers through Redis."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from korvet.cluster import lease, mailbox
from korvet.cluster.assignment import NO_NODE
from korvet.cluster.mailbox import Mailbox
from korvet.cluster.versions import FIRST_PROTOCOLS
from korvet.config.address import Address
from korvet.coordinator.markers import LocalMarkers
from korvet.coordinator.peers import Peers
from korvet.coordinator.service import CoordinatorService
from korvet.groups.config import GroupConfig
from korvet.redis.clock import steady_s
from korvet.redis.errors import LinkLost, StorageError
from korvet.redis.keys import TRANSACTIONS_TOPIC, Keyspace
from korvet.store import Store
from korvet.transactions.messages import AddReply, AddRequest
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.support.redis_server import Server


class BrokerMailbox(Mailbox):
    """The mailbox of a live broker, with the broker's store."""

    def __init__(self, store: Store) -> None:
        assert store.membership is not None
        super().__init__(store.commands, store.membership)
        self.store = store
        self.member = store.membership


@contextlib.asynccontextmanager
async def broker(server: Server, prefix: str, node_id: int) -> AsyncIterator[BrokerMailbox]:
    """A live broker that reads its mailbox."""
    store = await Store.open(
        server.url, Keyspace(prefix), node_id=node_id, endpoint=Address("127.0.0.1", node_id), lease_ms=60_000
    )
    made = BrokerMailbox(store)
    made.member.changes.attach(made)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


@contextlib.asynccontextmanager
async def two(server: Server, prefix: str) -> AsyncIterator[tuple[BrokerMailbox, BrokerMailbox]]:
    async with broker(server, prefix, 1) as first, broker(server, prefix, 2) as second:
        member = first.member

        async def knows() -> bool:
            await member.refresh()
            return not member.leadership.alone

        await until_async(knows, 20, "the other broker")
        yield first, second


async def asked(box: Mailbox, node_id: int, kind: str, body: bytes) -> bytes:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def done(told: bytes | StorageError) -> None:
        if isinstance(told, StorageError):
            answer.set_exception(told)
        else:
            answer.set_result(told)

    box.ask(node_id, kind, body, done)
    return await answer


async def test_requests_are_answered_in_their_order(server: Server, prefix: str) -> None:
    async with two(server, prefix) as (first, second):
        came: list[bytes] = []

        def handle(body: bytes, answer: mailbox.Answer) -> None:
            came.append(body)
            answer(body.upper())

        second.handle("shout", handle)
        bodies = [b"a%d" % number for number in range(300)]
        answers = await asyncio.gather(*(asked(first, 2, "shout", body) for body in bodies))
        assert (came, answers) == (bodies, [body.upper() for body in bodies])


def peers_of(box: BrokerMailbox) -> Peers:
    store = box.store
    groups = CoordinatorService(store.commands, store.logs, store.catalogue, GroupConfig())
    return Peers(store.logs, box, LocalMarkers(store.logs, store.catalogue, groups))


async def test_ids_that_no_record_holds_arrive_whole(server: Server, prefix: str) -> None:
    """The coordinator refuses these requests; requests before and after them are answered."""
    async with two(server, prefix) as (first, second):
        came: list[str] = []

        def add(request: AddRequest, done: Callable[[AddReply], None]) -> None:
            came.append(request.transactional_id)
            long = len(request.transactional_id) >= 40_000
            done(AddReply(ErrorCode.invalid_request if long else ErrorCode.none))

        peers_of(second).serve_adds(add)
        leader = first.member.leadership.assignment.leader
        led = next(number for number in range(50) if leader(TRANSACTIONS_TOPIC, number).node_id == 2)
        asking = peers_of(first)

        async def error_for(name: str) -> ErrorCode:
            reply: asyncio.Future[AddReply] = asyncio.get_running_loop().create_future()
            request = AddRequest(name, 1, 0, frozenset({("t", 0)}))
            asking.add((TRANSACTIONS_TOPIC, led), request, reply.set_result)
            return (await reply).error

        names = ["a", "x" * 40_000, "b", "\N{SNOWMAN}" * 1_000_000, "c"]
        errors = await asyncio.gather(*map(error_for, names))
        assert came == names
        fine, refused = ErrorCode.none, ErrorCode.invalid_request
        assert errors == [fine, refused, fine, refused, fine]


async def test_who_gets_no_answer_hears_so(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "ANSWER_TIMEOUT_S", 0.2)
    async with two(server, prefix) as (first, second):

        def fail(body: bytes, answer: mailbox.Answer) -> None:
            raise RuntimeError("a defect")

        second.handle("fail", fail)
        for kind in ("fail", "unknown"):
            with pytest.raises(LinkLost):
                await asked(first, 2, kind, b"")
        second.handle("work", lambda body, answer: answer(body))
        assert await asked(first, 2, "work", b"on") == b"on"


async def test_a_broker_that_is_not_live_is_not_waited_for(server: Server, prefix: str) -> None:
    """The leader of a partition that has none at the moment, for example."""
    async with two(server, prefix) as (first, _), asyncio.timeout(mailbox.ANSWER_TIMEOUT_S / 2):
        for node_id in (3, NO_NODE):
            with pytest.raises(LinkLost):
                await asked(first, node_id, "work", b"")


async def test_one_who_fails_at_the_answer_keeps_nobody_from_theirs(
    server: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(server, prefix) as (first, second):
        second.handle("work", lambda body, answer: answer(body))

        def fail(told: bytes | StorageError) -> None:
            raise RuntimeError("a defect")

        first.ask(2, "work", b"", fail)
        assert await asked(first, 2, "work", b"on") == b"on"
        assert "a defect" in caplog.text


async def test_another_life_of_a_broker_has_other_mail(server: Server, prefix: str) -> None:
    async with two(server, prefix) as (first, second):
        key = second._key(*second._address)
        await first.store.commands.call("RPUSH", key, b"no mail")
        second.handle("work", lambda body, answer: answer(body))
        assert await asked(first, 2, "work", b"1") == b"1"
        assert key != second._key(2, second._address[1] + 1)
        assert server.client.pttl(key) == -2, "what was taken is gone"


async def test_brokers_that_are_informed_know_the_newest_assignment(server: Server, prefix: str) -> None:
    async with two(server, prefix) as (first, second):
        before = second.member.leadership.assignment.version
        async with broker(server, prefix, 3) as third:
            assert await third.announce()
            versions = {box.member.leadership.assignment.version for box in (first, second, third)}
            assert versions == {third.member.leadership.assignment.version}
            assert versions != {before}


async def test_a_broker_of_an_earlier_release_is_not_asked(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(server, prefix) as (first, _):
        monkeypatch.setattr(lease, "PROTOCOLS", FIRST_PROTOCOLS)
        async with broker(server, prefix, 3):
            await first.member.refresh()
            assert not await first.announce()


async def test_a_broker_leads_until_the_others_know_that_it_leaves(server: Server, prefix: str) -> None:
    async with two(server, prefix) as (first, second):
        topic = await second.store.catalogue.create("t", 20)
        led = [
            number
            for number in range(20)
            if second.member.leadership.leader_epoch_of("t", number) is not None
        ]
        assert led

        async def inform() -> None:
            assert second.member.leadership.leader_epoch_of("t", led[0]) is not None
            assert await second.announce(leaving=True)
            assert [each.node_id for each in first.member.leadership.assignment.brokers] == [1]
            assert first.member.leadership.leader_epoch_of("t", led[0]) is not None

        await second.member.leave(inform)
        assert all(second.member.leadership.leader_epoch_of("t", number) is None for number in range(20))
        leaders = second.member.leadership.assignment.leaders("t", topic.partitions)
        assert {leader.node_id for leader in leaders} == {1}
        assert not second.member.leadership.alone
        assert [each[0] for each in second.member.leadership.endpoints("PLAINTEXT", steady_s())] == [1, 2]
        assert [each[0] for each in first.member.leadership.endpoints("PLAINTEXT", steady_s())] == [1, 2]


async def test_a_broker_that_leaves_without_an_announcement_is_not_listed(
    server: Server, prefix: str
) -> None:
    """A broker leaves in this way when its lease ends: it may be cut off from Redis, and not from clients."""
    async with two(server, prefix) as (first, second):
        await second.member.leave(lambda: announced(second))
        assert [each[0] for each in first.member.leadership.endpoints("PLAINTEXT", steady_s())] == [1]


async def test_requests_to_a_broker_that_leaves_end_at_once(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "ANSWER_TIMEOUT_S", 600.0)
    async with two(server, prefix) as (first, second):
        second.handle("silent", lambda body, answer: None)
        asking = asyncio.create_task(asked(first, 2, "silent", b""))
        await asyncio.sleep(0)
        await second.member.leave(lambda: announced(second))
        with pytest.raises(LinkLost, match="node 2 has left"):
            await asking


async def announced(box: Mailbox) -> None:
    assert await box.announce()


async def test_brokers_that_leave_at_the_same_time_do_not_come_back(server: Server, prefix: str) -> None:
    async with two(server, prefix) as (first, second), broker(server, prefix, 3) as third:
        await third.announce()
        await asyncio.gather(
            first.member.leave(lambda: announced(first)), second.member.leave(lambda: announced(second))
        )
        assert server.client.hkeys(f"{{{prefix}}}:brokers") == [b"3"]
