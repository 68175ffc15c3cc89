"""An administrator: creates and deletes topics, and deletes records."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.delete_records.v2.request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.errors import ErrorCode

from robustness.history import Admin
from robustness.plan import TopicPlan
from robustness.simulation.clients.client import RETRIABLE, Client, UnexpectedError
from robustness.simulation.clients.consumer import EARLIEST, LATEST, list_offset
from robustness.simulation.clients.wire import Disconnected

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

    from robustness.plan import AdminPlan, Plan

# Offsets before the log end that may stay. On clock topics a second has a million.
_KEPT_OFFSETS: Final = {"clock": 500_000, "dense": 10}
_TIMEOUT: Final[Any] = timedelta(seconds=1)
# Answers to a request that was sent before.
_ACCEPTED: Final = {
    "create_topic": (ErrorCode.topic_already_exists,),
    "delete_topic": (ErrorCode.unknown_topic_or_partition,),
}


class Administrator:
    """Carries out the requests of a plan."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self._client = client
        self._plan = plan

    async def create(self, topic: TopicPlan, deadline_s: float) -> None:
        """Create a topic before the clients begin. Raises UnexpectedError after the deadline."""
        while self._client.time() < deadline_s:
            if await self._ask(_creation(topic), ErrorCode.topic_already_exists) == "ok":
                return
            await self._client.pause()
        raise UnexpectedError(f"topic {topic.name} cannot be created")

    async def carry_out(self, admin: AdminPlan) -> None:
        """One request, once."""
        if admin.action == "create_topic":
            await self._note(admin, _creation(TopicPlan(admin.topic, 1, "clock", 1)))
        elif admin.action == "delete_topic":
            states = (DeleteTopicState(name=admin.topic, topic_id=None),)  # type: ignore[arg-type]
            await self._note(admin, DeleteTopicsRequest(topics=states, timeout=_TIMEOUT))
        elif admin.action == "delete_records":
            await self._delete_records(admin)

    async def _delete_records(self, admin: AdminPlan) -> None:
        """Delete up to a random offset of a partition."""
        topic = next(topic for topic in self._plan.topics if topic.name == admin.topic)
        partition = admin.topic, self._client.dice.below(topic.partitions)
        start = await list_offset(self._client, partition, EARLIEST)
        end = await list_offset(self._client, partition, LATEST)
        leader = self._client.leaders.get(partition)
        if start is None or end is None or leader is None:
            return
        offset = max(start, end - self._client.dice.below(_KEPT_OFFSETS[topic.offsets]))
        asked = DeleteRecordsPartition(partition_index=partition[1], offset=offset)  # type: ignore[arg-type]
        topics = (DeleteRecordsTopic(name=admin.topic, partitions=(asked,)),)  # type: ignore[arg-type]
        request = DeleteRecordsRequest(topics=topics, timeout=_TIMEOUT)
        await self._note(admin, request, leader.host, partition=partition[1], offset=offset)

    async def _note(
        self, admin: AdminPlan, request: RequestPayload, host: str | None = None, **where: int
    ) -> None:
        fields: dict[str, Any] = {"action": admin.action, "topic": admin.topic, **where}
        self._client.note(Admin, "invoke", **fields)
        outcome = await self._ask(request, *_ACCEPTED.get(admin.action, ()), host=host)
        self._client.note(Admin, "ok" if outcome == "ok" else "info", **fields)

    async def _ask(self, request: RequestPayload, *accepted: ErrorCode, host: str | None = None) -> str:
        """Returns `ok`, or `unknown`. Raises UnexpectedError."""
        try:
            if host is None:
                answer = await self._client.ask_anyone(request)
            else:
                answer = await self._client.ask(host, request)
        except Disconnected:
            return "unknown"
        results = answer.responses if isinstance(request, DeleteTopicsRequest) else answer.topics
        if isinstance(request, DeleteRecordsRequest):
            results = results[0].partitions
        error = results[0].error_code
        if error is ErrorCode.none or error in accepted:
            return "ok"
        if error not in RETRIABLE:
            raise UnexpectedError(f"{type(request).__name__}: {error.name}")
        return "unknown"


def _creation(topic: TopicPlan) -> CreateTopicsRequest:
    configs = {
        "offset.assignment": topic.offsets,
        "storage.layout": topic.layout,
        "min.insync.replicas": str(topic.min_insync_replicas),
    }
    creatable = CreatableTopic(
        name=topic.name,  # type: ignore[arg-type]
        num_partitions=topic.partitions,  # type: ignore[arg-type]
        replication_factor=-1,  # type: ignore[arg-type]
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in configs.items()),
    )
    return CreateTopicsRequest(topics=(creatable,))
