"""The demonstration's story: a shop's orders, read by groups that behave differently."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, cast

import click
import redis

from korvet.demo.clients import Member, Orders, create_topics, read_and_leave
from korvet.embedded import socket_of
from korvet.offsets.packing import entry_id, offset_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from korvet.demo.steps import Steps

ORDERS = "orders"
SHIPMENTS = "shipments"
HISTORY_ORDERS = 30_000
HISTORY_MS = 2 * 3_600_000
_WAIT_S = 30.0
_POLL_S = 0.1


class Scenario:
    """Everything between the broker's start and the report. `close` lets all members leave."""

    def __init__(self, steps: Steps, bootstrap: str, data_dir: Path) -> None:
        self._steps = steps
        self._bootstrap = bootstrap
        self._redis = redis.Redis(unix_socket_path=str(socket_of(data_dir)))
        self._orders = Orders(bootstrap, ORDERS, seed=7)
        self._members: list[Member] = []

    def run(self) -> None:
        """The steps, in order."""
        self._produce()
        self._keep_up()
        self._fall_behind()
        self._abandon()
        self._rebalance()
        self._native_writer()
        self._native_reader()

    def trickle(self) -> None:
        """A few more orders, so that the groups that keep up have something to commit."""
        self._orders.send(200, 1_000, lambda text: None)

    def close(self) -> None:
        """End all clients."""
        for member in self._members:
            member.close()
        self._redis.close()

    def _join(self, group: str, topic: str, *, batch: int = 500, pause_s: float = 0.0) -> Member:
        member = Member(self._bootstrap, group, topic, batch=batch, pause_s=pause_s)
        self._members.append(member)
        return member

    def _produce(self) -> None:
        with self._steps.step(f"A Kafka producer writes {HISTORY_ORDERS:,} orders") as step:
            create_topics(self._bootstrap, {ORDERS: 3, SHIPMENTS: 1})
            began = time.monotonic()
            self._orders.send(HISTORY_ORDERS, HISTORY_MS, step.note)
            rate = HISTORY_ORDERS / (time.monotonic() - began)
            step.result = f"{rate:,.0f} records/s into 3 Redis streams"
            for partition in range(3):
                stream = f"korvet:{ORDERS}:{partition}"
                step.details.append(f"XLEN {stream} = {self._redis.xlen(stream):,}")

    def _keep_up(self) -> None:
        with self._steps.step("Group billing (2 members) keeps up") as step:
            members = [self._join("billing", ORDERS) for _ in range(2)]
            _wait(lambda: _read(members) >= self._orders.sent, "billing reads everything", step.note)
            step.result = f"read and committed {_read(members):,} records"

    def _fall_behind(self) -> None:
        with self._steps.step("Group search-index (1 slow member) falls behind") as step:
            member = self._join("search-index", ORDERS, batch=50, pause_s=0.25)
            _wait(lambda: member.read >= 300, "search-index reads a little", step.note)
            step.result = f"has read {member.read:,} of {self._orders.sent:,}, and goes on slowly"

    def _abandon(self) -> None:
        with self._steps.step("Group audit reads a part and is abandoned") as step:
            member = Member(self._bootstrap, "audit", ORDERS, batch=1_000)
            _wait(lambda: member.read >= 5_000, "audit reads a part", step.note)
            member.close()
            step.result = f"left after {member.read:,} records"

    def _rebalance(self) -> None:
        with self._steps.step("Group mailer rebalances: members come and go") as step:
            members = []
            for number in range(3):
                members.append(self._join("mailer", ORDERS))
                reached = partial(_have_read, list(members), _read(members) + 100)
                self._orders.send(600, 1_000, step.note)
                _wait(reached, f"member {number + 1} joins", step.note)
            leaving = members.pop()
            self._members.remove(leaving)
            leaving.close()
            step.result = "three members joined one by one, one left"

    def _native_writer(self) -> None:
        with self._steps.step("A Redis application writes with XADD, a Kafka group reads it") as step:
            stream = f"korvet:{SHIPMENTS}:0"
            for number in range(40):
                self._redis.xadd(stream, {"value": f"parcel {number}"})
            member = self._join("tracking", SHIPMENTS)
            _wait(lambda: member.read >= 40, "tracking reads the shipments", step.note)
            step.result = f"{member.read} entries were {member.read} Kafka records"

    def _native_reader(self) -> None:
        with self._steps.step("A native XREADGROUP continues where a Kafka group committed") as step:
            committed = read_and_leave(self._bootstrap, "warehouse", SHIPMENTS, 25)
            stream = f"korvet:{SHIPMENTS}:0"
            reply = self._redis.xreadgroup("warehouse", "redis-worker", {stream: ">"}, count=1)
            ((_, ((found, _fields),)),) = cast("list[tuple[bytes, list[tuple[bytes, object]]]]", reply)
            pending = cast("dict[str, object]", self._redis.xpending(stream, "warehouse"))
            step.details += [
                f"committed offset      {committed.offset} = entry {entry_id(committed.offset)}",
                f"XREADGROUP GROUP warehouse redis-worker COUNT 1 STREAMS {stream} >",
                f"                      {offset_of(found)} = entry {found.decode()}",
                f"XPENDING              {pending['pending']}: the one just read, nothing below",
            ]
            if offset_of(found) != committed.offset:
                raise click.ClickException("the Redis group does not stand where the Kafka group committed")


def _have_read(members: list[Member], count: int) -> bool:
    return _read(members) >= count


def _read(members: list[Member]) -> int:
    return sum(member.read for member in members)


def _wait(done: Callable[[], bool], what: str, note: Callable[[str], None]) -> None:
    deadline = time.monotonic() + _WAIT_S
    note(what)
    while not done():
        if time.monotonic() > deadline:
            raise click.ClickException(f"not within {_WAIT_S:.0f} s: {what}")
        time.sleep(_POLL_S)
