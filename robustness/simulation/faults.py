"""The faults of a run: what begins and ends each kind."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from robustness.history import Fault
from robustness.simulation import brokers
from robustness.simulation.servers import ALIAS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from robustness.plan import FaultPlan
    from robustness.simulation.world import World

Path = tuple[str, str]


class Faults:
    """Carries out faults in a world. Every fault that began ends."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._servers = world.servers
        self._of_servers = asyncio.Lock()
        """Held during a fault of a server: one at a time."""
        self._down: Counter[int] = Counter()
        """Faults in progress that keep a broker from running."""

    async def run(self, plan: FaultPlan) -> None:
        """One fault, from its begin to its end."""
        await asyncio.sleep(plan.at_ms / 1000)
        if plan.target in ("primary", "replica"):
            # A failover may take longer than planned.
            async with self._of_servers:
                await self._carry_out(plan)
        else:
            await self._carry_out(plan)

    async def _carry_out(self, plan: FaultPlan) -> None:
        fields = {"kind": plan.kind, "target": plan.target}
        self._world.note(Fault, "info", **fields, phase="begin")
        await _CARRY_OUT[plan.kind](self, plan)
        self._world.note(Fault, "info", **fields, phase="end")

    async def _kill(self, plan: FaultPlan) -> None:
        number = _number(plan)
        self._down[number] += 1
        self._world.network.kill(self._world.brokers[number])
        await self._start_after(plan)

    async def _start_after(self, plan: FaultPlan) -> None:
        """Start a broker at the end of the last fault that keeps it from running."""
        await _last(plan)
        number = _number(plan)
        self._down[number] -= 1
        if not self._down[number]:
            self._world.start_broker(number)

    async def _pause(self, plan: FaultPlan) -> None:
        process = self._world.brokers[_number(plan)]
        process.is_paused = True
        await _last(plan)
        self._world.loop.resume(process)

    async def _join(self, plan: FaultPlan) -> None:
        number = max(self._world.brokers) + 1
        self._world.start_broker(number)
        await _last(plan)
        await brokers.stop(self._world.brokers.pop(number))

    async def _leave(self, plan: FaultPlan) -> None:
        number = _number(plan)
        self._down[number] += 1
        await brokers.stop(self._world.brokers[number])
        await self._start_after(plan)

    async def _clock(self, plan: FaultPlan) -> None:
        process = self._world.brokers[_number(plan)]
        process.clock_offset_s += plan.strength
        await _last(plan)
        process.clock_offset_s -= plan.strength

    async def _cut(self, plan: FaultPlan) -> None:
        there, back = self._paths(plan)
        await self._without({*there, *back}, plan)

    async def _cut_requests(self, plan: FaultPlan) -> None:
        await self._without(self._paths(plan)[0], plan)

    async def _cut_replies(self, plan: FaultPlan) -> None:
        await self._without(self._paths(plan)[1], plan)

    async def _half_open(self, plan: FaultPlan) -> None:
        broker = self._world.brokers[_number(plan)]
        self._world.network.half_open(broker, [each.process for each in self._servers.all])

    async def _delay(self, plan: FaultPlan) -> None:
        there, back = self._paths(plan)
        network = self._world.network
        for path in sorted({*there, *back}):
            network.slow_down(*path, plan.strength / 1000)
        await _last(plan)
        for path in sorted({*there, *back}):
            network.slow_down(*path, 0.0)

    def _paths(self, plan: FaultPlan) -> tuple[set[Path], set[Path]]:
        """The paths from and to those that ask: a broker, or all clients."""
        if plan.target == "clients":
            sources, targets = self._world.clients, list(self._world.broker_names)
        else:
            sources, targets = [f"broker-{_number(plan)}"], self._servers.names
        there = {(source, target) for source in sources for target in targets}
        return there, {(target, source) for source, target in there}

    async def _without(self, paths: Iterable[Path], plan: FaultPlan) -> None:
        network, paths = self._world.network, sorted(paths)
        for path in paths:
            network.cut(*path)
        await _last(plan)
        for path in paths:
            network.mend(*path)

    async def _flush_functions(self, plan: FaultPlan) -> None:
        self._servers.primary.administer([b"FUNCTION", b"FLUSH"])

    async def _maxmemory(self, plan: FaultPlan) -> None:
        server = self._servers.primary
        server.is_full = True
        await _last(plan)
        server.is_full = False

    async def _kill_and_return(self, plan: FaultPlan) -> None:
        server = self._servers.primary
        self._servers.kill(server)
        await _last(plan)
        self._servers.restart(server, server.replication.offset)

    async def _lose_power(self, plan: FaultPlan) -> None:
        server = self._servers.primary
        self._world.network.switch_off(server.process)
        server.sessions.clear()
        await _last(plan)
        self._servers.restart(server, server.replication.synced_offset)

    async def _pause_server(self, plan: FaultPlan) -> None:
        process = self._servers.primary.process
        process.is_paused = True
        await _last(plan)
        self._world.loop.resume(process)

    async def _fail_over_clean(self, plan: FaultPlan) -> None:
        await self._servers.switch_over()

    async def _fail_over_lossy(self, plan: FaultPlan) -> None:
        old = self._servers.primary
        self._servers.kill(old)
        self._servers.promote()
        await _last(plan)
        self._servers.restart(old, old.replication.offset)
        self._servers.demote(old)

    async def _split_brain(self, plan: FaultPlan) -> None:
        """The replica is promoted; one broker stays with the old primary for a while."""
        network, old = self._world.network, self._servers.primary
        behind = [name for name in self._world.broker_names if name != "broker-1"][:1]
        old_name, new_name = old.process.name, self._servers.replica.process.name
        for name in behind:
            network.redirect(ALIAS, old_name, only=name)
        paths = {(name, new_name) for name in behind} | {(new_name, name) for name in behind}
        paths |= {(old_name, new_name), (new_name, old_name)}
        paths |= {
            pair
            for name in self._world.broker_names
            if name not in behind
            for pair in ((name, old_name), (old_name, name))
        }
        self._servers.promote()
        await self._without(paths, plan)
        for name in behind:
            network.end_redirect(ALIAS, name)
        self._servers.demote(old)

    async def _replica_late(self, plan: FaultPlan) -> None:
        self._servers.delay_replication(plan.strength / 1000)
        await _last(plan)
        self._servers.delay_replication(self._world.plan.replica_lag_ms / 1000)

    async def _replica_gone(self, plan: FaultPlan) -> None:
        names = self._servers.names
        await self._without({(names[0], names[1]), (names[1], names[0])}, plan)


async def _last(plan: FaultPlan) -> None:
    await asyncio.sleep(plan.duration_ms / 1000)


def _number(plan: FaultPlan) -> int:
    return int(plan.target.rpartition("-")[2])


_CARRY_OUT: Final[dict[str, Callable[[Faults, FaultPlan], Awaitable[None]]]] = {
    "kill": Faults._kill,
    "pause": Faults._pause,
    "join": Faults._join,
    "leave": Faults._leave,
    "clock": Faults._clock,
    "cut": Faults._cut,
    "cut_requests": Faults._cut_requests,
    "cut_replies": Faults._cut_replies,
    "half_open": Faults._half_open,
    "delay": Faults._delay,
    "flush_functions": Faults._flush_functions,
    "maxmemory": Faults._maxmemory,
    "kill_and_return": Faults._kill_and_return,
    "power_loss": Faults._lose_power,
    "pause_server": Faults._pause_server,
    "failover_clean": Faults._fail_over_clean,
    "failover_lossy": Faults._fail_over_lossy,
    "split_brain": Faults._split_brain,
    "replica_late": Faults._replica_late,
    "replica_gone": Faults._replica_gone,
}
