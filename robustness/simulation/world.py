"""One run: servers, brokers, clients and faults of a plan on one virtual clock, and the history of it all."""

from __future__ import annotations

import asyncio
import hashlib
import random
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from robustness import history
from robustness.checkers import check
from robustness.dice import Dice
from robustness.history import CatchUp, Run
from robustness.plan import COPIES, first_event
from robustness.simulation import brokers, virtual_time
from robustness.simulation.clients.admin import Administrator
from robustness.simulation.clients.client import Client, History, Span
from robustness.simulation.clients.copying import ClassicCopier, ModernCopier
from robustness.simulation.clients.final import FinalReader
from robustness.simulation.clients.groups import ClassicMember, Member, ModernMember
from robustness.simulation.clients.native import NativeClient
from robustness.simulation.clients.producer import Producer
from robustness.simulation.clients.sharer import Sharer, begin_with_first_records, has_taken_all
from robustness.simulation.clients.transactional import TransactionalProducer
from robustness.simulation.faults import Faults
from robustness.simulation.loop import SimulatedLoop
from robustness.simulation.network import Network
from robustness.simulation.plan import asks_for_fsync
from robustness.simulation.redis.replication import FSYNC_S
from robustness.simulation.servers import ALIAS, Servers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from robustness.checkers import Violation
    from robustness.history import Event
    from robustness.plan import AdminPlan, GroupPlan, Plan, ProducerPlan, SharePlan, TopicPlan
    from robustness.simulation.process import Process

# Virtual time after the last fault in which brokers must serve everything again.
RECOVERY_S: Final = 30.0
# Virtual time in which brokers start.
_START_S: Final = 20.0
# Clients go on after the last fault for this time.
_CALM_S: Final = 0.5


_MEMBERS: Final[dict[tuple[str, bool], type[Member]]] = {
    ("classic", False): ClassicMember,
    ("consumer", False): ModernMember,
    ("classic", True): ClassicCopier,
    ("consumer", True): ModernCopier,
}


class Outcome(NamedTuple):
    """What a run has shown."""

    events: list[Event]
    violations: list[Violation]
    """Violations and notes."""
    problems: list[str]
    """Errors of clients and brokers that nobody expects, with their tracebacks."""
    trace: str
    """A hash of all events and of the order in which callbacks ran."""

    @property
    def is_good(self) -> bool:
        """Whether no rule was broken."""
        return not self.problems and all(violation.is_note for violation in self.violations)


def run(plan: Plan) -> Outcome:
    """Simulate a plan, and check its history."""
    loop = SimulatedLoop()
    virtual_time.begin(loop, plan.seed)
    asyncio.set_event_loop(loop)
    try:
        world = World(loop, plan)
        loop.run_until_complete(world.runner.run(world.main()))
        events = world.history.events
        problems = [*world.problems, *map(_text, loop.failures)]
    finally:
        virtual_time.end()
        asyncio.set_event_loop(None)
    digest = hashlib.sha256(b"".join(map(history.encode, events)))
    digest.update(b"%d %r" % (loop.callbacks, loop.time()))
    return Outcome(events, check(events), problems, digest.hexdigest())


def _text(context: dict[str, Any]) -> str:
    error = context["exception"]
    return context["message"] + "\n" + "".join(traceback.format_exception(error))


class World:
    """All processes of a run."""

    def __init__(self, loop: SimulatedLoop, plan: Plan) -> None:
        self.loop = loop
        self.plan = plan
        self.history = History()
        self.problems: list[str] = []
        self.network = Network(loop, random.Random(plan.seed))
        self.servers = Servers(self.network, COPIES[plan.topology])
        self.brokers: dict[int, Process] = {}
        self.clients: list[str] = []
        self.runner = self.network.process("runner")
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def _release_s(self) -> float:
        """Time in which what is written is on replicas and the disk, and is released: two rounds of WAIT."""
        fsync_s = 2 * FSYNC_S if asks_for_fsync(self.plan) else 0.0
        late_ms = [fault.strength for fault in self.plan.faults if fault.kind == "replica_late"]
        return 0.2 + fsync_s + 4 * self.plan.replica_lag_ms / 1000 + max(late_ms, default=0) / 1000

    @property
    def broker_names(self) -> list[str]:
        """The hosts of the planned brokers."""
        return [f"broker-{number}" for number in range(1, self.plan.brokers + 1)]

    def note(self, event: type[Event], type_: str, /, **fields: Any) -> None:
        """Write an event of the runner to the history."""
        self.history.add(self.runner, event, type_, **fields)

    def start_broker(self, number: int) -> None:
        """Start a broker."""
        process = self.brokers[number] = self.network.process(f"broker-{number}")
        settings = {
            "min_insync_replicas": COPIES[self.plan.topology],
            "acks_all_fsync": asks_for_fsync(self.plan),
        }
        brokers.start(process, number, settings)

    async def main(self) -> None:
        """The whole run."""
        plan = self.plan
        self.note(Run, "info", **first_event(plan))
        for number in range(1, plan.brokers + 1):
            self.start_broker(number)
        for topic in plan.topics:
            await self._create(topic)
        for group in plan.sharers:
            client = self._client(f"creator-{group.name}")
            deadline_s = client.time() + _START_S
            await self._run(
                client, begin_with_first_records(client, group.name, self.broker_names[0], deadline_s)
            )
        self.servers.delay_replication(plan.replica_lag_ms / 1000)
        await self._work()
        await asyncio.gather(*map(self._start_last_member, plan.groups))
        await asyncio.gather(*map(self._start_last_sharer, plan.sharers))
        await asyncio.sleep(2 * self._release_s)
        client = self._client("final")
        await self._run(client, self._final_reads(client))

    def _client(self, name: str) -> Client:
        self.clients.append(name)
        process = self.network.process(name)
        return Client(process, self.broker_names, self.history, Dice(self.plan.seed, name))

    def _run(self, client: Client, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return client.process.run(self._guarded(client.name, work), client.name)

    async def _guarded(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the run goes on, and the problem is reported
            self.problems.append(f"{name}: " + "".join(traceback.format_exception(error)))

    async def _create(self, topic: TopicPlan) -> None:
        client = self._client(f"creator-{topic.name}")
        await self._run(client, Administrator(client, self.plan).create(topic, client.time() + _START_S))

    async def _work(self) -> None:
        """Clients work while faults happen."""
        faults = Faults(self)
        last_ms = max((fault.end_ms for fault in self.plan.faults), default=0)
        calm_s = self.loop.time() + max(self.plan.duration_ms, last_ms) / 1000
        until_s = calm_s + _CALM_S
        span = Span(calm_s, until_s, calm_s + RECOVERY_S)
        tasks = [self.runner.run(self._guarded("fault", faults.run(fault))) for fault in self.plan.faults]
        tasks += [self._start_producer(producer, span) for producer in self.plan.producers]
        for group in self.plan.groups:
            tasks += self._start_members(group, partial(self._member, plan=group), until_s)
        for sharers in self.plan.sharers:
            tasks += self._start_members(sharers, partial(Sharer, plan=sharers), until_s)
        for native in self.plan.natives:
            client = self._client(native.name)
            tasks.append(self._run(client, NativeClient(client, native, ALIAS).run(until_s)))
        client = self._client("admin")
        tasks += [self._run(client, self._administer(client, admin)) for admin in self.plan.admins]
        await asyncio.gather(*tasks)

    async def _administer(self, client: Client, admin: AdminPlan) -> None:
        await asyncio.sleep(admin.at_ms / 1000)
        await Administrator(client, self.plan).carry_out(admin)

    @property
    def _partitions(self) -> dict[str, int]:
        return {topic.name: topic.partitions for topic in self.plan.topics}

    def _start_producer(self, plan: ProducerPlan, span: Span) -> asyncio.Task[None]:
        client = self._client(plan.name)
        kind = TransactionalProducer if plan.kind == "transactional" else Producer
        return self._run(client, kind(client, plan, self._partitions).run(span))

    def _start_members(
        self, plan: GroupPlan | SharePlan, make: Callable[[Client], Member | Sharer], until_s: float
    ) -> list[asyncio.Task[None]]:
        return [self.runner.run(self._members(plan, number, until_s, make)) for number in range(plan.members)]

    async def _members(
        self,
        plan: GroupPlan | SharePlan,
        number: int,
        until_s: float,
        make: Callable[[Client], Member | Sharer],
    ) -> None:
        """One member after the other, each a new process; every second one leaves without a word."""
        name, restarts, generation = f"{plan.name}-member-{number}", number > 0, 0
        while self.loop.time() < until_s:
            client = self._client(f"{name}-{generation}")
            member = make(client)
            end_s = until_s
            if restarts and plan.restart_interval_ms:
                end_s = min(until_s, self.loop.time() + plan.restart_interval_ms / 1000)
            await self._run(client, member.run(end_s, leaves=generation % 2 == 0))
            generation += 1

    def _member(self, client: Client, plan: GroupPlan) -> Member:
        return _MEMBERS[plan.protocol, plan.copies_to is not None](client, plan, self._partitions)

    def _start_last_member(self, plan: GroupPlan) -> asyncio.Task[None]:
        client = self._client(f"{plan.name}-last-member")
        member = self._member(client, plan)
        return self._run(client, _catch_up(client, plan.name, member, member.caught_up))

    def _start_last_sharer(self, plan: SharePlan) -> asyncio.Task[None]:
        client = self._client(f"{plan.name}-last-member")
        partitions = sum(self._partitions[topic] for topic in plan.topics)
        is_done = partial(has_taken_all, client, plan, partitions)
        sharer = Sharer(client, plan, accepts_all=True)
        return self._run(client, _catch_up(client, plan.name, sharer, is_done))

    async def _final_reads(self, client: Client) -> None:
        reader = FinalReader(client, client.time() + RECOVERY_S, self._release_s)
        await asyncio.gather(*(reader.read_topic(topic, ALIAS) for topic in self.plan.topics))
        for group in self.plan.groups:
            topics = [topic for topic in self.plan.topics if topic.name in group.topics]
            await reader.read_group(group.name, topics, ALIAS)


async def _catch_up(
    client: Client, group: str, member: Member | Sharer, is_done: Callable[[], Awaitable[bool]]
) -> None:
    """A new member of a group, its only one, reads all partitions to their ends."""
    deadline_s = client.time() + RECOVERY_S
    client.note(CatchUp, "invoke", group=group)
    working = asyncio.ensure_future(member.run(deadline_s))
    while not working.done() and not await is_done():
        await client.pause()
    if working.done():
        client.note(CatchUp, "info", group=group, error=f"it is not at the end within {RECOVERY_S:g} s")
    else:
        client.note(CatchUp, "ok", group=group)
    member.end()
    await working
