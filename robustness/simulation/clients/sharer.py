"""Members of a share group (KIP-932): they take records, accept, release or reject them, or keep silent."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.describe_share_group_offsets.v1 import request as describe
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as configs
from kio.schema.share_acknowledge.v2 import request as acknowledging
from kio.schema.share_fetch.v2 import request as fetching
from kio.schema.share_group_heartbeat.v1 import request as heartbeat

from robustness.history import Record, Settle, Take
from robustness.plan import OUTCOMES
from robustness.simulation.clients import records
from robustness.simulation.clients.client import RETRIABLE, Client, Partition, UnexpectedError
from robustness.simulation.clients.wire import Disconnected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from robustness.history import Outcome
    from robustness.plan import SharePlan

_HEARTBEAT_S: Final = 0.3
# How often a member works for longer than its locks last.
_SLOW: Final = 0.05
_LONGER_THAN_A_LOCK_S: Final = 1.3
_MAX_WAIT: Final = timedelta(milliseconds=200)
_OPEN, _CLOSE = 0, -1
_LEAVE: Final = -1
_GROUP_RESOURCE: Final = 32
_RESET, _EARLIEST = "share.auto.offset.reset", "earliest"
_TYPES: Final[dict[Outcome, int]] = {"accept": 1, "release": 2, "reject": 3}
_NO_MEMBER: Final = frozenset(
    {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found}
)
_NO_SESSION: Final = frozenset({ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch})
# The coordinator may have to initialise the partition: Kafka's clients ask again.
_AGAIN: Final = RETRIABLE | {ErrorCode.unknown_server_error}


class Session:
    """A share session with one broker, and what is to be said of the records taken in it."""

    def __init__(self) -> None:
        self.epoch = _OPEN
        self.settling: list[tuple[Record, Outcome]] = []

    def close(self) -> None:
        """Open another session next time: the records of this one are gone."""
        self.epoch = _OPEN
        self.settling.clear()


class Sharer:
    """One member."""

    def __init__(self, client: Client, plan: SharePlan, *, accepts_all: bool = False) -> None:
        self.client = client
        self.plan = plan
        self._accepts_all = accepts_all
        self._member_epoch = 0
        self._partitions: set[Partition] = set()
        self._sessions: dict[str, Session] = defaultdict(Session)
        self._until_s = 0.0

    def end(self) -> None:
        """End this member soon."""
        self._until_s = 0.0

    async def run(self, until_s: float, *, leaves: bool = True) -> None:
        """Be a member until a time; then leave, or end without a word."""
        self._until_s = until_s
        next_beat_s = 0.0
        while self.client.time() < self._until_s:
            try:
                if self.client.time() >= next_beat_s:
                    await self._beat()
                    next_beat_s = self.client.time() + _HEARTBEAT_S
                await self._take_some()
            except Disconnected:
                await self.client.pause()
        if leaves:
            await self._leave()
        self.client.close()

    async def _leave(self) -> None:
        self._member_epoch = _LEAVE
        try:
            for host, session in self._sessions.items():
                if session.epoch != _OPEN:
                    session.epoch = _CLOSE
                    await self._acknowledge(host, session)
            await self.client.ask_coordinator(self.plan.name, self._heartbeat())
        except Disconnected:
            # Its locks and its membership end by themselves.
            return

    # Membership

    def _heartbeat(self) -> Any:
        return _make(
            heartbeat.ShareGroupHeartbeatRequest,
            group_id=self.plan.name,
            member_id=self.client.name,
            member_epoch=self._member_epoch,
            rack_id=None,
            subscribed_topic_names=tuple(self.plan.topics) if self._member_epoch == 0 else None,
        )

    async def _beat(self) -> None:
        answer = await self.client.ask_coordinator(self.plan.name, self._heartbeat())
        error = answer.error_code
        if error in _NO_MEMBER:
            self._member_epoch = 0
        elif error in RETRIABLE:
            self.client.forget_coordinator(self.plan.name)
        elif error is not ErrorCode.none:
            raise UnexpectedError(f"ShareGroupHeartbeat: {error.name}")
        else:
            self._member_epoch = answer.member_epoch
            if answer.assignment is not None:
                await self._follow(answer.assignment.topic_partitions)

    async def _follow(self, assigned: Iterable[Any]) -> None:
        await self.client.refresh(self.plan.topics)
        names = {topic_id: name for name, topic_id in self.client.topic_ids.items()}
        found = {
            (names[each.topic_id], number)
            for each in assigned
            if each.topic_id in names
            for number in each.partitions
        }
        if found != self._partitions:
            self._partitions = found
            for session in self._sessions.values():
                session.close()

    # Records

    async def _take_some(self) -> None:
        """Ask one leader after the other once."""
        by_host: dict[str, list[Partition]] = defaultdict(list)
        for partition in sorted(self._partitions):
            leader = self.client.leaders.get(partition)
            if leader is not None:
                by_host[leader.host].append(partition)
        if not by_host:
            await self.client.refresh(self.plan.topics)
            await self.client.pause()
        if not self._accepts_all and self.client.dice.chance(_SLOW):
            await asyncio.sleep(_LONGER_THAN_A_LOCK_S)
        for host, partitions in by_host.items():
            session = self._sessions[host]
            try:
                if session.settling and self.client.dice.chance(0.5):
                    await self._acknowledge(host, session)
                await self._fetch(host, session, partitions)
            except Disconnected:
                session.close()
                await self.client.refresh(self.plan.topics)

    async def _fetch(self, host: str, session: Session, partitions: list[Partition]) -> None:
        settling = self._settling(session) if session.epoch != _OPEN else {}
        request = _make(
            fetching.ShareFetchRequest,
            group_id=self.plan.name,
            member_id=self.client.name,
            share_session_epoch=session.epoch,
            max_wait=_MAX_WAIT,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=self.client.dice.one_of((1, 5, 500)),
            batch_size=500,
            share_acquire_mode=0,
            is_renew_ack=False,
            topics=self._topics(
                fetching.FetchTopic,
                fetching.FetchPartition,
                fetching.AcknowledgementBatch,
                {**dict.fromkeys(partitions, ()), **settling},
            ),
            forgotten_topics_data=(),
        )
        self.client.note(Take, "invoke", group=self.plan.name)
        answer = await self._ask(host, session, request, settling)
        if answer is not None:
            await self._fetched(session, answer, settling)

    async def _fetched(
        self, session: Session, answer: Any, settling: dict[Partition, list[tuple[Record, Outcome]]]
    ) -> None:
        names = {topic_id: name for name, topic_id in self.client.topic_ids.items()}
        taken: list[Record] = []
        is_stale = False
        errors = dict.fromkeys(settling, ErrorCode.none)
        for topic_data in answer.responses:
            for data in topic_data.partitions:
                topic, number = names[topic_data.topic_id], data.partition_index
                errors[topic, number] = ErrorCode(data.acknowledge_error_code)
                if data.error_code is not ErrorCode.none:
                    if data.error_code not in _AGAIN:
                        raise UnexpectedError(f"ShareFetch of {topic}-{number}: {data.error_code.name}")
                    is_stale = True
                runs = [range(each.first_offset, each.last_offset + 1) for each in data.acquired_records]
                taken += [
                    Record(topic, number, offset, (value or b"").decode(), batch.leader_epoch)
                    for batch in records.decode(data.records)
                    for offset, value in batch.records
                    if any(offset in run for run in runs)
                ]
        for partition, some in settling.items():
            error = errors[partition]
            self._settled({partition: some}, "ok" if error is ErrorCode.none else "fail", error)
        if taken:
            self.client.note(Take, "ok", group=self.plan.name, records=tuple(taken))
            self._decide(session, taken)
        if is_stale:
            await self.client.refresh(self.plan.topics)
            await self.client.pause()

    def _decide(self, session: Session, taken: list[Record]) -> None:
        for record in taken:
            outcome: Outcome | None = "accept" if self._accepts_all else self.client.dice.one_of(OUTCOMES)
            if outcome is not None:
                session.settling.append((record, outcome))

    # Acknowledgements

    async def _acknowledge(self, host: str, session: Session) -> None:
        settling = self._settling(session)
        request = _make(
            acknowledging.ShareAcknowledgeRequest,
            group_id=self.plan.name,
            member_id=self.client.name,
            share_session_epoch=session.epoch,
            is_renew_ack=False,
            topics=self._topics(
                acknowledging.AcknowledgeTopic,
                acknowledging.AcknowledgePartition,
                acknowledging.AcknowledgementBatch,
                settling,
            ),
        )
        answer = await self._ask(host, session, request, settling)
        if answer is None:
            return
        names = {topic_id: name for name, topic_id in self.client.topic_ids.items()}
        for each in answer.responses:
            for data in each.partitions:
                partition = names[each.topic_id], data.partition_index
                type_ = "ok" if data.error_code is ErrorCode.none else "fail"
                self._settled({partition: settling[partition]}, type_, data.error_code)

    def _settling(self, session: Session) -> dict[Partition, list[tuple[Record, Outcome]]]:
        """What to say now of records, by partition and in order."""
        found: dict[Partition, list[tuple[Record, Outcome]]] = {}
        for record, outcome in sorted(session.settling):
            found.setdefault((record.topic, record.partition), []).append((record, outcome))
            self._note(record, outcome, "invoke")
        session.settling.clear()
        return found

    def _topics(
        self,
        topic_kind: Any,
        partition_kind: Any,
        batch_kind: Any,
        settling: Mapping[Partition, Iterable[tuple[Record, Outcome]]],
    ) -> tuple[Any, ...]:
        """The partitions of a request in its own structures, with what it says of records."""
        return tuple(
            topic_kind(
                topic_id=self.client.topic_ids[topic],
                partitions=(
                    partition_kind(
                        partition_index=number, acknowledgement_batches=_batches(batch_kind, some)
                    ),
                ),
            )
            for (topic, number), some in settling.items()
        )

    async def _ask(
        self,
        host: str,
        session: Session,
        request: Any,
        settling: dict[Partition, list[tuple[Record, Outcome]]],
    ) -> Any:
        """Ask in a session; returns None if the broker does not have that session. Raises Disconnected."""
        try:
            answer = await self.client.ask(host, request, "share")
        except Disconnected:
            self._settled(settling, "info", ErrorCode.network_exception)
            raise
        if answer.error_code in _NO_SESSION:
            self._settled(settling, "fail", answer.error_code)
            session.close()
            return None
        if answer.error_code is not ErrorCode.none:
            raise UnexpectedError(f"{type(request).__name__}: {answer.error_code.name}")
        session.epoch += 1
        return answer

    def _settled(
        self, settling: dict[Partition, list[tuple[Record, Outcome]]], type_: str, error: ErrorCode
    ) -> None:
        for some in settling.values():
            for record, outcome in some:
                self._note(record, outcome, type_, None if type_ == "ok" else error.name)

    def _note(self, record: Record, outcome: Outcome, type_: str, error: str | None = None) -> None:
        self.client.note(Settle, type_, group=self.plan.name, record=record, outcome=outcome, error=error)


async def begin_with_first_records(client: Client, group: str, broker: str, deadline_s: float) -> None:
    """Let a share group begin with the first records. Raises UnexpectedError after the deadline."""
    config = _make(configs.AlterableConfig, name=_RESET, config_operation=0, value=_EARLIEST)
    resource = _make(
        configs.AlterConfigsResource, resource_type=_GROUP_RESOURCE, resource_name=group, configs=(config,)
    )
    change = _make(configs.IncrementalAlterConfigsRequest, resources=(resource,), validate_only=False)
    while client.time() < deadline_s:
        try:
            (answer,) = (await client.ask(broker, change)).responses
        except Disconnected:
            await client.pause()
            continue
        if answer.error_code is ErrorCode.none:
            return
        await client.pause()
    raise UnexpectedError(f"the configs of {group} cannot be set")


async def has_taken_all(client: Client, plan: SharePlan, partitions: int) -> bool:
    """Whether no record of so many partitions waits for the group."""
    group = _make(describe.DescribeShareGroupOffsetsRequestGroup, group_id=plan.name, topics=None)
    try:
        answer = await client.ask_coordinator(
            plan.name, _make(describe.DescribeShareGroupOffsetsRequest, groups=(group,))
        )
    except Disconnected:
        return False
    found = [one for topic in answer.groups[0].topics for one in topic.partitions]
    return len(found) == partitions and all(one.lag == 0 for one in found)


def _make(kind: Any, **fields: Any) -> Any:
    return kind(**fields)


def _batches(kind: Any, settling: Iterable[tuple[Record, Outcome]]) -> tuple[Any, ...]:
    return tuple(
        _make(
            kind,
            first_offset=record.offset,
            last_offset=record.offset,
            acknowledge_types=(_TYPES[outcome],),
        )
        for record, outcome in settling
    )
