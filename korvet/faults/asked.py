"""Reads from JSON which fault or event a test asks for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from kio.schema.errors import ErrorCode

from korvet.faults.table import Action, Fault
from korvet.protocol import registry

if TYPE_CHECKING:
    from collections.abc import Iterable

# APIs whose requests name topics, or partitions of topics. Each of these has its own error in the response.
_WITH_TOPICS: Final = frozenset(
    {"Metadata", "CreateTopics", "DeleteTopics", "CreatePartitions", "DescribeTopicPartitions"}
)
_WITH_PARTITIONS: Final = frozenset(
    {
        "Produce",
        "Fetch",
        "ListOffsets",
        "OffsetCommit",
        "DeleteRecords",
        "OffsetForLeaderEpoch",
        "TxnOffsetCommit",
        "DescribeProducers",
    }
)
_WITH_GROUPS: Final = frozenset(
    {
        "OffsetCommit",
        "OffsetFetch",
        "FindCoordinator",
        "JoinGroup",
        "Heartbeat",
        "LeaveGroup",
        "SyncGroup",
        "DescribeGroups",
        "AddOffsetsToTxn",
        "TxnOffsetCommit",
        "DeleteGroups",
        "OffsetDelete",
        "ConsumerGroupHeartbeat",
        "ConsumerGroupDescribe",
        "ShareGroupHeartbeat",
        "ShareGroupDescribe",
        "DescribeShareGroupOffsets",
        "AlterShareGroupOffsets",
        "DeleteShareGroupOffsets",
    }
)
# Limits a delay: clients have given up long before.
_LONGEST_DELAY_MS: Final = 3_600_000

_T = TypeVar("_T", bound=msgspec.Struct)


class AskedFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault as a test asks for it. See Fault."""

    api: str
    action: str
    error: str | None = None
    ms: int | None = None
    times: int | None = 1
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    client_id: str | None = None


class AskedLeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A partition whose leader moves."""

    topic: str
    partition: int = 0


class AskedCoordinator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group or a transactional ID whose coordinator moves."""

    group: str | None = None
    transactional_id: str | None = None


class AskedMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member of a group whose session expires."""

    group: str
    member: str


class AskedTransaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transactional ID whose open transaction is aborted."""

    transactional_id: str


class BadFault(ValueError):
    """No fault can be made of this. The message is for the user."""


def decode(body: bytes, kind: type[_T]) -> _T:
    """Decode a JSON object. Raises BadFault, which names the fields that there are."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        fields = ", ".join(each.name for each in msgspec.structs.fields(kind))
        raise BadFault(f"{error}; the fields of the JSON object are {fields}") from error


def fault_of(asked: AskedFault) -> Fault:
    """The fault that a test asks for. Raises BadFault."""
    names = {each.name for each in registry.registered()}
    _check(asked.api, names, "API")
    _check(asked.action, [each.value for each in Action], "action")
    action = Action(asked.action)
    _check_filters(asked)
    if asked.times is not None and asked.times < 1:
        raise BadFault(f"times is {asked.times}: at least one request meets a fault, and null means all")
    return Fault(
        api=asked.api,
        action=action,
        error=_error(asked, action),
        delay_ms=_delay_ms(asked, action),
        times=asked.times,
        topic=asked.topic,
        partition=asked.partition,
        group=asked.group,
        client_id=asked.client_id,
    )


def _check(value: str, valid: Iterable[str], kind: str) -> None:
    if value not in valid:
        raise BadFault(f"there is no {kind} {value!r}, but {', '.join(sorted(valid))}")


def _error(asked: AskedFault, action: Action) -> ErrorCode | None:
    if action is not Action.FAIL:
        if asked.error is not None:
            raise BadFault(f"error is given, which belongs to the action fail, not to {action.value}")
        return None
    if asked.error is None:
        raise BadFault("the action fail needs an error, for example NOT_LEADER_OR_FOLLOWER")
    codes = {each.name.upper(): each for each in ErrorCode if each is not ErrorCode.none}
    _check(asked.error, codes, "error")
    return codes[asked.error]


def _delay_ms(asked: AskedFault, action: Action) -> int:
    if action is not Action.DELAY:
        if asked.ms is not None:
            raise BadFault(f"ms is given, which belongs to the action delay, not to {action.value}")
        return 0
    if asked.ms is None or not 1 <= asked.ms <= _LONGEST_DELAY_MS:
        raise BadFault(f"the action delay needs ms from 1 to {_LONGEST_DELAY_MS}")
    return asked.ms


def _check_filters(asked: AskedFault) -> None:
    for name, value, apis in (
        ("topic", asked.topic, _WITH_TOPICS | _WITH_PARTITIONS),
        ("partition", asked.partition, _WITH_PARTITIONS),
        ("group", asked.group, _WITH_GROUPS),
    ):
        if value is not None and asked.api not in apis:
            raise BadFault(
                f"{asked.api} cannot be chosen by its {name}: these APIs can: {', '.join(sorted(apis))}"
            )
    if asked.partition is not None and asked.topic is None:
        raise BadFault("partition is given without a topic")
    if asked.partition is not None and asked.partition < 0:
        raise BadFault(f"partition is {asked.partition}")
