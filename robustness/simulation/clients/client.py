"""What every simulated Kafka client does: connections, metadata, coordinators, events in the history."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from robustness.history import Stuck
from robustness.simulation.clients.wire import BrokerConnection, Disconnected

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from kio.static.protocol import RequestPayload

    from robustness.dice import Dice
    from robustness.history import Event
    from robustness.simulation.process import Process

Partition = tuple[str, int]
# Longer than PRODUCE_TIMEOUT of producers.
REQUEST_TIMEOUT_S: Final = 3.0
# Pause of a client before it repeats a request.
BACKOFF_S: Final = 0.1

RETRIABLE: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.concurrent_transactions,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.leader_not_available,
        ErrorCode.network_exception,
        ErrorCode.not_controller,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_leader_or_follower,
        ErrorCode.offset_not_available,
        ErrorCode.request_timed_out,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unstable_offset_commit,
    }
)
"""Errors after which Kafka's clients ask again, perhaps another broker."""


class UnexpectedError(AssertionError):
    """The broker answered an error that no client expects here."""


class Span(NamedTuple):
    """How long a producer works, in virtual seconds since the run began."""

    calm_s: float
    """When the last fault has ended: the producer must get an acknowledgement after it."""
    until_s: float
    longest_s: float
    """When it is given up if it gets none."""

    def is_over(self, now_s: float, acknowledged_s: float) -> bool:
        """Whether the producer has to end; `acknowledged_s`: when it got its last acknowledgement."""
        return now_s >= (self.until_s if acknowledged_s >= self.calm_s else self.longest_s)


class Leader(NamedTuple):
    """The leader of a partition, as metadata show it."""

    host: str
    epoch: int


class History:
    """The events of one run, in the order in which they happen."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, process: Process, event: type[Event], type_: str, /, **fields: Any) -> None:
        """Append an event of a process."""
        at = round(process.loop.time() * 1e9)
        self.events.append(event(at=at, process=process.name, type=type_, **fields))  # type: ignore[arg-type]


class Client:
    """One client process."""

    def __init__(self, process: Process, bootstrap: Sequence[str], history: History, dice: Dice) -> None:
        self.process = process
        self.dice = dice
        self.leaders: dict[Partition, Leader] = {}
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.acknowledged_s = 0.0
        """When a record or a transaction of this client was acknowledged last."""
        self._history = history
        self._bootstrap = bootstrap
        self._connections: dict[tuple[str, str], BrokerConnection] = {}
        self._connecting = asyncio.Lock()
        self._coordinators: dict[tuple[str, int], str] = {}

    @property
    def name(self) -> str:
        """The process's name."""
        return self.process.name

    def time(self) -> float:
        """Virtual seconds since the run began."""
        return self.process.loop.time()

    def acknowledged(self) -> None:
        """A record or a transaction of this client is acknowledged."""
        self.acknowledged_s = self.time()

    def is_over(self, span: Span) -> bool:
        """Whether a producer has to end."""
        return span.is_over(self.time(), self.acknowledged_s)

    def note_progress(self, span: Span) -> None:
        """Note a producer as stuck if it got no acknowledgement after the last fault."""
        if self.acknowledged_s < span.calm_s:
            self.note(Stuck, "info", subject=self.name, waited_s=self.time() - span.calm_s)

    def now_ms(self) -> int:
        """The client's wall clock."""
        return time.time_ns() // 1_000_000

    def note(self, event: type[Event], type_: str, /, **fields: Any) -> None:
        """Write an event to the history."""
        self._history.add(self.process, event, type_, **fields)

    async def pause(self) -> None:
        """Wait before a repetition."""
        await asyncio.sleep(BACKOFF_S)

    # Requests

    async def ask(
        self, host: str, request: RequestPayload, purpose: str = "", timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Any:
        """Ask one broker, on a connection for the purpose. Raises Disconnected."""
        connection = await self.connect(host, purpose)
        return await connection.ask(request, timeout_s)

    async def connect(self, host: str, purpose: str = "") -> BrokerConnection:
        """Returns the open connection to a broker for a purpose. Raises Disconnected."""
        async with self._connecting:
            connection = self._connections.get((host, purpose))
            if connection is None or connection.is_broken:
                connection = await BrokerConnection.open(self.name, host, REQUEST_TIMEOUT_S)
                self._connections[host, purpose] = connection
        return connection

    async def ask_anyone(self, request: RequestPayload) -> Any:
        """Ask any broker, the next one if one does not answer. Raises Disconnected."""
        first = self.dice.below(len(self._bootstrap))
        for host in (*self._bootstrap[first:], *self._bootstrap[:first]):
            try:
                return await self.ask(host, request)
            except Disconnected as error:
                last = error
        raise last

    async def refresh(self, topics: Sequence[str]) -> bool:
        """Ask for the leaders of topics. Returns whether all are known, and have leaders."""
        asked = tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in topics)
        request = MetadataRequest(
            topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        try:
            answer = await self.ask_anyone(request)
        except Disconnected:
            return False
        hosts = {broker.node_id: broker.host for broker in answer.brokers}
        complete = True
        for topic in answer.topics:
            complete &= topic.error_code is ErrorCode.none
            if topic.error_code is ErrorCode.none:
                self.topic_ids[topic.name] = topic.topic_id
            for one in topic.partitions:
                complete &= one.leader_id in hosts
                known = self.leaders.get((topic.name, one.partition_index))
                if one.leader_id in hosts and (known is None or known.epoch <= one.leader_epoch):
                    leader = Leader(hosts[one.leader_id], one.leader_epoch)
                    self.leaders[topic.name, one.partition_index] = leader
        return complete

    async def coordinator(self, key: str, kind: int = 0) -> str:
        """Returns the host of the coordinator of a group (kind 0) or transactional ID (1).

        Raises Disconnected if there is none now.
        """
        known = self._coordinators.get((key, kind))
        if known is not None:
            return known
        answer = await self.ask_anyone(FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,)))  # type: ignore[arg-type]
        found = answer.coordinators[0]
        if found.error_code is not ErrorCode.none:
            if found.error_code not in RETRIABLE:
                raise UnexpectedError(f"FindCoordinator: {found.error_code}")
            raise Disconnected(f"FindCoordinator: {found.error_code.name}")
        self._coordinators[key, kind] = found.host
        return str(found.host)

    async def ask_coordinator(
        self, key: str, request: RequestPayload, kind: int = 0, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Any:
        """Ask the coordinator. Raises Disconnected; the coordinator is looked up again then."""
        try:
            host = await self.coordinator(key, kind)
            return await self.ask(host, request, f"coordinator {key}", timeout_s)
        except Disconnected:
            self.forget_coordinator(key, kind)
            raise

    def forget_coordinator(self, key: str, kind: int = 0) -> None:
        """Look the coordinator up again."""
        self._coordinators.pop((key, kind), None)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
