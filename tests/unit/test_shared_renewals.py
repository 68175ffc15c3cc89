"""Renewals of the lease that several callers share."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from korvet.cluster.lease import Renewal
from korvet.cluster.membership import Membership
from korvet.redis.clock import steady_s
from korvet.redis.errors import LinkLost


async def test_a_renewal_whose_changes_could_not_be_followed_is_not_shared() -> None:
    """The other broker has left in version 2, and the connection broke before the catalogue was read."""

    class Lease:
        asked_s = 0.0
        renewals = 0

        async def renew(self, *_: Any, **__: Any) -> Renewal:
            self.asked_s = steady_s()
            self.renewals += 1
            return Renewal(2, 5, None, None, None, {}, ())

    async def load() -> None:
        raise LinkLost("the connection was lost")

    lease, leadership = Lease(), SimpleNamespace(ask=lambda: (1, 1, False), find_keyspace=lambda _: None)
    member: Any = SimpleNamespace(
        _catalogue=SimpleNamespace(applied_version=4, load=load),
        _commands=SimpleNamespace(keyspace=SimpleNamespace(brokers=b"")),
        _lease=lease,
        _leaving=False,
        _refreshing=asyncio.Lock(),
        _renewal=SimpleNamespace(unreadable=()),
        _renewed_s=0.0,
        changes=SimpleNamespace(acknowledged=(1, 4)),
        damage=SimpleNamespace(note=lambda *_: None),
        leadership=leadership,
    )
    since_s = steady_s()
    for _ in range(2):
        with pytest.raises(LinkLost):
            await Membership.refresh(member, since_s)
    assert lease.renewals == 2
