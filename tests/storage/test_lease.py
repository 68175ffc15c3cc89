"""The lease of a broker: when the broker stops leading, and when it leads again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from korvet.cluster.assignment import NO_NODE
from korvet.redis.clock import steady_s
from korvet.redis.errors import FencedEpoch, LinkLost, WritesRefused
from korvet.redis.refusals import Cause
from tests.storage.live_brokers import (
    LEASE_MS,
    RECORD,
    WAIT_S,
    agreed,
    broker,
    led,
    member_of,
    nodes,
    proxied_broker,
)
from tests.support.logs import append_own, read_log
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.redis_server import Server


async def test_without_redis_other_brokers_lead_after_the_lease_has_expired(new_server, prefix: str) -> None:  # type: ignore[no-untyped-def]
    server = new_server()
    async with broker(server, prefix, 1, lease_ms=600) as one, broker(server, prefix, 2) as two:
        topic = await one.catalogue.create("t", 20)
        await agreed(one, two)
        assert led(one, "t", 20)
        log = one.logs.get(topic, min(led(one, "t", 20)))
        server.process.kill()
        await until_async(lambda: not led(one, "t", 20), WAIT_S, "it leads nothing any more")
        assert log.closed
        with pytest.raises(LinkLost):
            await member_of(one).refresh()


@pytest.mark.parametrize("rejoins", [False, True], ids=["away", "another history"])
async def test_when_redis_was_away_the_first_broker_that_returns_leaves_the_others_their_partitions(
    server: Server, prefix: str, rejoins: bool
) -> None:
    key = f"{{{prefix}}}:brokers"

    async def lapsed(node_id: int) -> bool:
        entry = server.client.hget(key, node_id)
        return entry is not None and int(entry.split()[0]) <= time.time() * 1000

    own_ms = 60_000 if rejoins else 300
    async with (
        broker(server, prefix, 1, lease_ms=300) as one,
        broker(server, prefix, 2, lease_ms=own_ms) as two,
    ):
        await one.catalogue.create("t", 20)
        await agreed(one, two)
        await member_of(two).refresh()
        ours, theirs = led(one, "t", 20), led(two, "t", 20)
        for store in (one, two):
            member_of(store)._renewing.cancel()
        await until_async(lambda: lapsed(1), WAIT_S, "the lease is over")
        if rejoins:
            member_of(two).rejoin()
        else:
            await until_async(lambda: lapsed(2), WAIT_S, "both leases are over")
        await member_of(two).refresh()
        assert nodes(two) == [1, 2]
        assert led(two, "t", 20).keys() == theirs.keys()
        await member_of(one).refresh()
        assert led(one, "t", 20) == ours

        async def removed() -> bool:
            await member_of(two).refresh()
            return nodes(two) == [2]

        await until_async(removed, WAIT_S, "a broker that is silent from now on is taken out")


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with another"])
async def test_a_broker_that_cannot_renew_its_lease_stops_leading_before_others_may_begin(
    server: Server, prefix: str, alone: bool
) -> None:
    """Redis sends it no replies, and no connection breaks."""
    async with proxied_broker(server, prefix) as (proxy, one), contextlib.AsyncExitStack() as stack:
        topic = await one.catalogue.create("t", 20)
        if not alone:
            two = await stack.enter_async_context(broker(server, prefix, 2))
            await agreed(one, two)
        ours = led(one, "t", 20)
        log = one.logs.get(topic, min(ours))
        await append_own(log, RECORD)
        key = f"{{{prefix}}}:brokers"
        proxy.hold_replies()
        # Commands that the broker has sent by now take effect; later ones do not.
        proxy.hold_requests()

        async def over() -> bool:
            stopped = not led(one, "t", 20)
            # This is Redis's clock too: the server runs on this machine.
            entry = server.client.hget(key, 1)
            assert stopped or (entry and int(entry.split()[0]) > time.time() * 1000)
            return stopped

        await until_async(over, WAIT_S, "it leads nothing any more")
        assert one.membership is not None
        assert one.membership.leadership.assignment.leader("t", min(ours)).node_id == NO_NODE
        with pytest.raises(FencedEpoch):
            await read_log(log, 0, 100)
        proxy.release()
        await until_async(lambda: led(one, "t", 20), WAIT_S, "it leads again")
        await append_own(one.logs.get(topic, min(led(one, "t", 20))), RECORD)


@pytest.mark.parametrize("suspended", [False, True])
async def test_an_expired_lease_is_told_until_it_is_renewed(
    server: Server, prefix: str, suspended: bool
) -> None:
    """Also if the broker leads nothing already, because Redis was restarted before it fell silent."""
    async with proxied_broker(server, prefix) as (proxy, one):
        refusals = one.resources.refusals
        proxy.hold_replies()
        proxy.hold_requests()
        if suspended:
            member_of(one).rejoin()
        await until_async(lambda: refusals.has(Cause.LEASE), WAIT_S, "it is told")
        proxy.release()
        await until_async(lambda: not refusals.has(Cause.LEASE), WAIT_S, "it is over")


async def test_a_suspended_process_finds_its_lease_expired_at_the_first_request(
    server: Server, prefix: str
) -> None:
    """A late timer must not matter: the loop was busy, or the machine slept."""
    async with broker(server, prefix, 1, lease_ms=500) as one:
        topic = await one.catalogue.create("t", 1)
        log = one.logs.get(topic, 0)
        time.sleep(0.6)  # noqa: ASYNC251 - nothing runs meanwhile
        member_of(one).check()
        assert one.logs.leader_epoch_of("t", 0) is None
        assert log.closed
        await until_async(lambda: one.logs.leader_epoch_of("t", 0) is not None, WAIT_S, "it leads again")


async def test_the_time_of_a_renewal_does_not_extend_the_lease(server: Server, prefix: str) -> None:
    async with proxied_broker(server, prefix) as (proxy, one):
        member = member_of(one)
        proxy.hold_replies()
        renewal = asyncio.ensure_future(member.refresh())
        began = steady_s()
        await asyncio.sleep(0.5)
        proxy.release()
        await renewal
        assert member.leadership.serves_until_s < began + LEASE_MS / 1000


async def test_a_broker_continues_to_lead_while_redis_accepts_no_writes(
    new_server: Callable[..., Server], prefix: str
) -> None:
    """No other broker can remove it then, and reads work as before."""
    own = new_server()
    async with broker(own, prefix, 1, lease_ms=LEASE_MS) as one:
        topic = await one.catalogue.create("t", 1)
        log = one.logs.get(topic, 0)
        await append_own(log, RECORD)
        own.client.config_set("min-replicas-to-write", 1)
        until_s = steady_s() + 2 * LEASE_MS / 1000
        while steady_s() < until_s:
            with pytest.raises(WritesRefused):
                await append_own(log, RECORD)
            assert (await read_log(log, 0, 1000)).data
            assert one.logs.get(topic, 0) is log
            await asyncio.sleep(0.05)
        own.client.config_set("min-replicas-to-write", 0)
        await append_own(log, RECORD)


async def test_a_broker_leads_again_although_redis_accepts_no_writes(
    new_server: Callable[..., Server], prefix: str
) -> None:
    """Its lease expired because Redis could not be reached, and no other broker removed it."""
    own = new_server()
    async with proxied_broker(own, prefix, lease_ms=4000) as (proxy, one):
        log = one.logs.get(await one.catalogue.create("t", 1), 0)
        await append_own(log, RECORD)
        own.client.config_set("min-replicas-to-write", 1)
        proxy.refusing = True
        await proxy.cut()

        async def over() -> bool:
            return one.logs.leader_epoch_of("t", 0) is None

        await until_async(over, WAIT_S, "it leads nothing any more")
        proxy.refusing = False
        await until_async(lambda: one.logs.leader_epoch_of("t", 0) is not None, WAIT_S, "it leads again")
        topic = one.catalogue.get("t")
        assert topic is not None
        log = one.logs.get(topic, 0)
        # It continues to lead, although it checks its entry less often again: groups are loaded once.
        until_s = steady_s() + 3
        while steady_s() < until_s:
            assert (await read_log(log, 0, 1000)).data
            assert one.logs.get(topic, 0) is log
            await asyncio.sleep(0.02)
        # Another broker's entry, as if that broker had taken the node id.
        own.client.config_set("min-replicas-to-write", 0)
        own.client.hset(f"{{{prefix}}}:brokers", 1, "99999999999999 another 0 -1 -1 {}")
        own.client.config_set("min-replicas-to-write", 1)
        await until_async(over, WAIT_S, "it leads nothing any more")
