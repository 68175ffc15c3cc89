"""Clients of aiokafka, each one on a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import aiokafka
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from robustness.history import UNKNOWN, Admin, Assign, Commit, Place, Poll, Record, Send, Truncated, Txn
from robustness.load.members import HEARTBEAT_MS, MS_PER_S, POLL_RECORDS, POLL_S
from robustness.load.pace import Pace
from robustness.load.producers import IN_FLIGHT, PAUSE_S
from robustness.load.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from robustness.clients import Recorder
    from robustness.plan import GroupPlan, ProducerPlan

# Limits a step of a transaction, which aiokafka repeats by itself without a limit.
STEP_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0
SETTINGS: Final[dict[str, Any]] = {
    "metadata_max_age_ms": 2_000,
    "retry_backoff_ms": 50,
    "request_timeout_ms": 15_000,
}
# What a client raises if it can't go on; AssertionError if a step doesn't fit the state of a transaction.
FAILURES: Final = (KafkaError, TimeoutError, OSError, AssertionError)

# Faults cut connections, which the clients would log.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)


class Failed(Exception):
    """The client can't be used any more: its successor takes over."""


async def _stop(client: aiokafka.AIOKafkaProducer | aiokafka.AIOKafkaConsumer) -> None:
    """Stop a client, and give it up after some time."""
    task = asyncio.ensure_future(client.stop())
    await asyncio.wait([task], timeout=STOP_TIMEOUT_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class AioProducerWorker(Worker):
    """Produces at a rate to all partitions, with a new producer after an error that ends one."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, plan: ProducerPlan, partitions: Mapping[str, int], seed: int
    ) -> None:
        super().__init__(plan.name, plan.name)
        self._record, self._bootstrap, self._plan = recorder, bootstrap, plan
        self._pace = Pace(plan, partitions, seed)

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        number = 0
        while not self.closing.is_set():
            number += 1
            client = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                acks=self._plan.acks,
                linger_ms=self._plan.linger_ms,
                enable_idempotence=self._plan.kind != "plain",
                transactional_id=self._plan.name if self._plan.kind == "transactional" else None,
                transaction_timeout_ms=self._plan.transaction_timeout_ms,
                **SETTINGS,
            )
            try:
                await asyncio.wait_for(client.start(), STEP_TIMEOUT_S)
                await AioSession(self, client, self._record, f"{self.name}.{number}", self._plan).use(
                    self._pace
                )
            except (*FAILURES, Failed) as error:
                process = f"{self.name}.{number}"
                self._record.add(Admin, process, "info", action="abandon", error=f"{error!r}")
                await asyncio.sleep(PAUSE_S)
            finally:
                await _stop(client)


class AioSession:
    """A producer from its start to its end: one process of the history."""

    def __init__(
        self,
        worker: Worker,
        client: aiokafka.AIOKafkaProducer,
        recorder: Recorder,
        process: str,
        plan: ProducerPlan,
    ) -> None:
        self._worker = worker
        self._client, self._record, self._process, self._plan = client, recorder, process, plan
        self._serial = 0
        self._txn: str | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._has_failed = False

    async def use(self, pace: Pace) -> None:
        """Send until the worker is closed. Raises Failed, or one of FAILURES."""
        while not self._worker.closing.is_set():
            if self._plan.kind == "transactional":
                await self._transaction(pace, *pace.next_transaction())
            else:
                await self._send(pace)
                # A failed record leaves a gap in the sequence of an idempotent producer.
                if self._has_failed and self._plan.kind == "idempotent":
                    raise Failed
        await self._flush()

    async def _send(self, pace: Pace) -> None:
        pace.take_turn()
        while len(self._waiting) >= IN_FLIGHT:
            await asyncio.wait(set(self._waiting), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(max(pace.left_s, 0))
        topic, partition, key = pace.next_record()
        self._serial += 1
        value = f"{self._process}-{self._serial}"
        fields = {
            "topic": topic,
            "partition": partition,
            "value": value,
            "key": key,
            "acks": self._plan.acks,
            "idempotent": self._plan.kind != "plain",
            "txn": self._txn,
        }
        self._record.add(Send, self._process, "invoke", **fields)
        try:
            future = await self._client.send(topic, value.encode(), key.encode(), partition)
        except FAILURES as error:
            self._record.add(Send, self._process, "info", **fields, error=repr(error))
            raise Failed from error
        self._waiting.add(future)
        future.add_done_callback(lambda done: self._done(fields, done))

    def _done(self, fields: dict[str, Any], future: asyncio.Future[Any]) -> None:
        self._waiting.discard(future)
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            self._has_failed = True
            self._record.add(Send, self._process, "info", **fields, error=repr(error))
            return
        self._record.add(Send, self._process, "ok", **fields, offset=max(future.result().offset, UNKNOWN))
        self._worker.progress += 1

    async def _flush(self) -> None:
        if self._waiting:
            await asyncio.wait(set(self._waiting), timeout=STEP_TIMEOUT_S)
        if self._waiting:
            raise Failed

    async def _transaction(self, pace: Pace, count: int, end: str) -> None:
        self._serial += 1
        self._txn, self._has_failed = f"{self._process}/{self._serial}", False
        self._step("begin", "invoke")
        await self._client.begin_transaction()
        self._step("begin", "ok")
        for _ in range(count):
            await self._send(pace)
        await self._flush()
        end = "abort" if self._has_failed else end
        self._step(end, "invoke")
        try:
            await self._within(
                self._client.commit_transaction() if end == "commit" else self._client.abort_transaction()
            )
        except FAILURES as error:
            self._step(end, "info", error=repr(error))
            raise Failed from error
        self._step(end, "ok")

    @staticmethod
    async def _within(step: Awaitable[None]) -> None:
        await asyncio.wait_for(step, STEP_TIMEOUT_S)

    def _step(self, action: str, type_: str, **fields: Any) -> None:
        where = {"txn": self._txn, "transactional_id": self._plan.name, "action": action}
        self._record.add(Txn, self._process, type_, **where, **fields)


class AioMember(ConsumerRebalanceListener):  # type: ignore[misc]
    """A member of a group from its start to its end: one process of the history.

    aiokafka doesn't validate leader epochs.
    """

    def __init__(self, recorder: Recorder, bootstrap: str, process: str, plan: GroupPlan) -> None:
        self._record, self._process, self._plan = recorder, process, plan
        self._positions: dict[tuple[str, int], int] = {}
        self.client = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=plan.name,
            enable_auto_commit=False,
            # The member itself chooses where to go on, so that the history shows it.
            auto_offset_reset="none",
            isolation_level=plan.isolation,
            session_timeout_ms=plan.session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
            **SETTINGS,
        )
        self.client.subscribe(list(plan.topics), listener=self)

    async def on_partitions_revoked(self, revoked: set[aiokafka.TopicPartition]) -> None:
        """A rebalance begins."""
        self._positions.clear()

    async def on_partitions_assigned(self, assigned: set[aiokafka.TopicPartition]) -> None:
        """A rebalance has ended."""
        self._positions.clear()
        self._assign(assigned, "rebalance")

    def _assign(self, assigned: set[aiokafka.TopicPartition], why: str) -> None:
        places = tuple(Place(*each) for each in sorted(assigned))
        self._record.add(Assign, self._process, "info", places=places, why=why, group=self._plan.name)

    async def poll(self) -> int:
        """Read what arrives within a moment. Returns the number of records."""
        try:
            found = await self.client.getmany(timeout_ms=int(POLL_S * MS_PER_S), max_records=POLL_RECORDS)
        except OffsetOutOfRangeError as error:
            await self._start_again(list(error.args[0]))
            return 0
        except NoOffsetForPartitionError as error:
            await self._start_again([error.args[0]])
            return 0
        records = tuple(
            Record(each.topic, each.partition, each.offset, each.value.decode())
            for part in found.values()
            for each in part
        )
        if records:
            for record in records:
                self._positions[record.topic, record.partition] = record.offset + 1
            fields = {"isolation": self._plan.isolation, "group": self._plan.name}
            self._record.add(Poll, self._process, "ok", records=records, **fields)
        return len(records)

    async def _start_again(self, partitions: list[aiokafka.TopicPartition]) -> None:
        """Read from the beginning: there is no committed offset, or the position is not in the log."""
        mine = [each for each in partitions if each in self.client.assignment()]
        for each in mine:
            position = self._positions.pop((each.topic, each.partition), None)
            if position is not None:
                where = {"topic": each.topic, "partition": each.partition, "offset": position}
                self._record.add(Truncated, self._process, "info", **where)
        self._assign(self.client.assignment(), "seek")
        await self.client.seek_to_beginning(*mine)

    async def commit(self) -> None:
        """Commit the positions."""
        places = tuple(Place(*partition, offset) for partition, offset in sorted(self._positions.items()))
        if not places:
            return
        fields = {"group": self._plan.name, "offsets": places}
        self._record.add(Commit, self._process, "invoke", **fields)
        try:
            await self.client.commit(
                {aiokafka.TopicPartition(each.topic, each.partition): each.offset for each in places}
            )
        except (*FAILURES, ValueError) as error:
            # ValueError: a rebalance has taken a partition away.
            self._record.add(Commit, self._process, "info", **fields, error=repr(error))
        else:
            self._record.add(Commit, self._process, "ok", **fields)


class AioMemberWorker(Worker):
    """Reads and commits at intervals, and leaves and joins at others."""

    def __init__(self, recorder: Recorder, bootstrap: str, plan: GroupPlan, number: int) -> None:
        super().__init__(f"{plan.name}/{number}", plan.name)
        self._record, self._bootstrap, self._plan = recorder, bootstrap, plan
        # Members leave at different times.
        self._life_s = number * plan.restart_interval_ms / plan.members / MS_PER_S

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        number = 0
        while not self.closing.is_set():
            number += 1
            member = AioMember(self._record, self._bootstrap, f"{self.name}.{number}", self._plan)
            try:
                await asyncio.wait_for(member.client.start(), STEP_TIMEOUT_S)
                await self._use(member)
            except FAILURES as error:
                process = f"{self.name}.{number}"
                self._record.add(Admin, process, "info", action="abandon", error=f"{error!r}")
                await asyncio.sleep(PAUSE_S)
            finally:
                await _stop(member.client)
            self._life_s = self._plan.restart_interval_ms / MS_PER_S

    async def _use(self, member: AioMember) -> None:
        loop = asyncio.get_running_loop()
        interval_s = self._plan.commit_interval_ms / MS_PER_S
        due, end = loop.time() + interval_s, float("inf")
        while not self.closing.is_set() and loop.time() < end:
            if self._life_s and member.client.assignment() and end == float("inf"):
                end = loop.time() + self._life_s
            self.progress += await member.poll()
            if loop.time() >= due:
                await member.commit()
                due = loop.time() + interval_s
        await member.commit()
