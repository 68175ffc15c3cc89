"""Faults on request, by HTTP: the admin endpoint of an ephemeral broker. Bodies are JSON objects.

    GET    /faults                     the faults, each with how many requests have met it and how many will
    POST   /faults                     let requests meet a fault: see AskedFault
    DELETE /faults                     forget all faults
    POST   /faults/move-leader         see AskedLeader
    POST   /faults/move-coordinator    see AskedCoordinator
    POST   /faults/expire-member       see AskedMember
    POST   /faults/abort-transaction   see AskedTransaction

A request for something that another broker leads is redirected to that broker.
"""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from kio.schema.errors import ErrorCode

from korvet.admin.http import Response, text_response
from korvet.faults.asked import (
    AskedCoordinator,
    AskedFault,
    AskedLeader,
    AskedMember,
    AskedTransaction,
    BadFault,
    decode,
    fault_of,
)
from korvet.faults.table import FaultTable, TooManyFaults
from korvet.groups.group import Member
from korvet.groups.messages import HeartbeatReply, HeartbeatRequest
from korvet.groups.shard import GroupShard
from korvet.redis.errors import StorageError
from korvet.transactions.messages import NO_EPOCH, NO_PRODUCER_ID, EndReply, EndRequest
from korvet.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from korvet.admin.endpoint import Page
    from korvet.admin.http import Request
    from korvet.faults.table import Counted
    from korvet.groups.consumer.member import Member as ConsumerMember
    from korvet.groups.share.group import Member as ShareMember
    from korvet.observe.parts import Parts

_NO_GENERATION: Final = -1
_PAUSE_S: Final = 0.02


_Event: TypeAlias = "Callable[[Parts, bytes], Awaitable[dict[str, Any]]]"


class _Elsewhere(Exception):
    """Another broker leads what a request is about."""

    def __init__(self, admin: str) -> None:
        """`admin`: the URL of that broker's admin endpoint."""
        super().__init__(admin)
        self._admin = admin

    def response(self, path: str) -> Response:
        """Sends the client there, with the same method and body."""
        place = ("Location", self._admin + path)
        return text_response(HTTPStatus.TEMPORARY_REDIRECT, "another broker leads that", place)


class _Absent(Exception):
    """There is no such topic, member or transaction. The message is for the user."""


class _Refused(Exception):
    """It is not possible now. The message is for the user."""


class FaultPages:
    """The pages about faults of one broker."""

    def __init__(self) -> None:
        self.faults = FaultTable()
        """Those that were asked for."""
        self.parts: Parts | None = None
        """The broker's parts, once they exist."""
        self.actions: Mapping[tuple[str, str], Page] = {
            ("GET", "/faults"): self._list,
            ("POST", "/faults"): self._add,
            ("DELETE", "/faults"): self._clear,
            ("POST", "/faults/move-leader"): partial(self._event, self._move_leader),
            ("POST", "/faults/move-coordinator"): partial(self._event, self._move_coordinator),
            ("POST", "/faults/expire-member"): partial(self._event, self._expire_member),
            ("POST", "/faults/abort-transaction"): partial(self._event, self._abort_transaction),
        }
        """By method and path."""

    async def _list(self, request: Request) -> Response:
        del request
        return _json(HTTPStatus.OK, {"faults": [_shown(each) for each in self.faults]})

    async def _add(self, request: Request) -> Response:
        try:
            added = self.faults.add(fault_of(decode(request.body, AskedFault)))
        except (BadFault, TooManyFaults) as error:
            return text_response(HTTPStatus.BAD_REQUEST, str(error))
        return _json(HTTPStatus.CREATED, _shown(added))

    async def _clear(self, request: Request) -> Response:
        del request
        self.faults.clear()
        return _json(HTTPStatus.OK, {"faults": []})

    # Events

    async def _event(self, event: _Event, request: Request) -> Response:
        if self.parts is None:
            return text_response(HTTPStatus.SERVICE_UNAVAILABLE, "the broker starts")
        try:
            done = await event(self.parts, request.body)
        except BadFault as error:
            return text_response(HTTPStatus.BAD_REQUEST, str(error))
        except _Absent as error:
            return text_response(HTTPStatus.NOT_FOUND, str(error))
        except _Elsewhere as elsewhere:
            return elsewhere.response(request.path)
        except (_Refused, StorageError) as error:
            return text_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return _json(HTTPStatus.OK, done)

    async def _move_leader(self, parts: Parts, body: bytes) -> dict[str, Any]:
        asked = decode(body, AskedLeader)
        topic = parts.topics.get(asked.topic)
        if topic is None or not 0 <= asked.partition < topic.partitions:
            raise _Absent(f"there is no partition {asked.partition} of a topic {asked.topic!r}")
        return await _move(parts, topic.name, asked.partition)

    async def _move_coordinator(self, parts: Parts, body: bytes) -> dict[str, Any]:
        asked = decode(body, AskedCoordinator)
        if asked.group is not None and asked.transactional_id is None:
            place = parts.coordinator.partition_of(asked.group)
        elif asked.transactional_id is not None and asked.group is None:
            place = parts.transactions.partition_of(asked.transactional_id)
        else:
            raise BadFault("either a group or a transactional_id has a coordinator")
        return await _move(parts, *place)

    async def _expire_member(self, parts: Parts, body: bytes) -> dict[str, Any]:
        asked = decode(body, AskedMember)
        _check_leads(parts, *parts.coordinator.partition_of(asked.group))
        member_ids = _members(parts, asked.group, asked.member)
        for member_id in member_ids:
            expired: HeartbeatReply = await parts.coordinator.call(
                asked.group, GroupShard.end_session, HeartbeatRequest(asked.group, _NO_GENERATION, member_id)
            )
            _check_reply(expired.error)
        return {"members": member_ids}

    async def _abort_transaction(self, parts: Parts, body: bytes) -> dict[str, Any]:
        asked = decode(body, AskedTransaction)
        topic, partition = parts.transactions.partition_of(asked.transactional_id)
        error = ErrorCode.invalid_txn_state
        if parts.topics.get(topic) is not None:
            _check_leads(parts, topic, partition)
            request = EndRequest(asked.transactional_id, NO_PRODUCER_ID, NO_EPOCH, committed=False)
            reply: EndReply = await parts.transactions.call(
                asked.transactional_id, TransactionShard.time_out, request
            )
            error = reply.error
        if error is ErrorCode.invalid_txn_state:
            raise _Absent(f"the transactional ID {asked.transactional_id!r} has no open transaction")
        _check_reply(error)
        return {}


async def _move(parts: Parts, topic: str, partition: int) -> dict[str, Any]:
    """Let another broker lead the partition, if there is one, and this one its other partitions in a new
    leader epoch.
    """
    _check_leads(parts, topic, partition)
    member = parts.member
    member.yield_partition(topic, partition)
    while True:
        await member.refresh()
        if not member.leadership.rejoins:
            break
        # Another loss was reported meanwhile, or the broker stops.
        await asyncio.sleep(_PAUSE_S)
    await member.wait_known()
    leader = member.leadership.assignment.leader(topic, partition)
    return {"topic": topic, "partition": partition, "leader": leader.node_id, "leader_epoch": leader.epoch}


def _check_leads(parts: Parts, topic: str, partition: int) -> None:
    """Raises _Elsewhere, or _Refused if no broker leads the partition now."""
    assignment = parts.member.leadership.assignment
    leader = assignment.leader(topic, partition)
    if leader.node_id == parts.member.leadership.node_id:
        return
    broker = assignment.broker(leader.node_id)
    if broker is None:
        raise _Refused(f"nobody leads partition {partition} of {topic} now")
    raise _Elsewhere(broker.admin)


def _members(parts: Parts, group_id: str, wanted: str) -> list[str]:
    """The member IDs of a group that are `wanted`, or those of its client. Raises _Absent."""
    found = next(
        (term.shard.groups[group_id] for _, term in parts.coordinator.terms if group_id in term.shard.groups),
        None,
    )
    clients = {} if found is None else {name: _client_of(each) for name, each in found.members.items()}
    member_ids = [name for name, client_id in clients.items() if wanted in (name, client_id)]
    if not member_ids:
        there = ", ".join(f"{name} (client {client_id})" for name, client_id in sorted(clients.items()))
        raise _Absent(f"the group {group_id!r} has no member {wanted!r}, but {there or 'none'}")
    return member_ids


def _client_of(member: Member | ConsumerMember | ShareMember) -> str:
    return member.client_id if isinstance(member, Member) else member.subscription.client_id


def _check_reply(error: ErrorCode) -> None:
    if error:
        raise _Refused(f"the coordinator answers {error.name.upper()}")


def _shown(counted: Counted) -> dict[str, Any]:
    fault = counted.fault
    shown = {
        "number": counted.number,
        "api": fault.api,
        "action": fault.action.value,
        "error": None if fault.error is None else fault.error.name.upper(),
        "ms": fault.delay_ms or None,
        "topic": fault.topic,
        "partition": fault.partition,
        "group": fault.group,
        "client_id": fault.client_id,
    }
    given = {name: value for name, value in shown.items() if value is not None}
    return {**given, "met": counted.met, "left": counted.left}


def _json(status: HTTPStatus, value: dict[str, Any]) -> Response:
    return Response(status, [msgspec.json.encode(value) + b"\n"], "application/json")
