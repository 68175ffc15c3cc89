"""Tables about the states and members of groups, by a replay of their records in order."""

from __future__ import annotations

import base64
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from korvet.offsets.codec import DecodeError
from korvet.offsets.consumer_protocol import decode_assignment, decode_subscription
from korvet.offsets.formatters import format_group_record, format_newer_group_record
from korvet.offsets.group_records import ConsumerMember, ShareMember
from korvet.offsets.schema import GroupMemberKey
from korvet.offsets.streams_records import StreamsMember
from tests.spark.reckoning.records import day, moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from korvet.offsets.schema import MemberMetadata
    from tests.spark.reckoning.records import Place, Record, Row

CLASSIC_TYPE = 2
EPOCHS = {3: "consumer", 11: "share", 17: "streams"}
MEMBERS, ASSIGNMENTS = {5, 10, 19}, {8, 14, 22}
Assigned = list[Any]
"""Topic and partitions, of each topic."""


@dataclass(slots=True)
class State:
    """One state of a group. A classic group's is a record, another group's an epoch."""

    record: Record
    kind: str
    generation: int | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    entered_ms: int | None = None
    members: dict[str, Row] = field(default_factory=dict)

    @property
    def tombstone(self) -> bool:
        return self.record.value is None

    @property
    def at_ms(self) -> int:
        return self.record.timestamp_ms if self.entered_ms is None else self.entered_ms


@dataclass(slots=True)
class Replay:
    """The records of one group so far: the members and assignments that the next epoch will have."""

    states: list[State] = field(default_factory=list)
    joined: dict[str, Any] = field(default_factory=dict)
    assigned: dict[str, Assigned] = field(default_factory=dict)

    def see(self, record: Record) -> None:
        version = record.key.version
        if version == CLASSIC_TYPE:
            self.states.append(_classic_state(record))
        elif version in EPOCHS:
            self.states.append(State(record, EPOCHS[version]))
            if record.value is not None:
                self.states[-1].generation = record.value.epoch
                self.states[-1].protocol_type = EPOCHS[version]
                self.states[-1].members = {
                    name: _newer_member(value) | {"assigned": self.assigned.get(name)}
                    for name, value in sorted(self.joined.items())
                }
        elif version in MEMBERS:
            _put(self.joined, _member_of(record), record.value)
        elif version in ASSIGNMENTS:
            self._assign(_member_of(record), record.value)

    def _assign(self, name: str, value: Any) -> None:
        """The assignment holds in the current epoch, too. Its removal is seen in the next one."""
        parts = None if value is None else _by_id(value)
        _put(self.assigned, name, parts)
        newer = [state for state in self.states if state.kind != "classic"]
        if newer and value is not None and name in newer[-1].members:
            newer[-1].members[name]["assigned"] = parts


class Groups:
    """The groups of `__consumer_offsets`. names: those of topics by ID."""

    def __init__(self, records: Sequence[Record], names: Mapping[str, str], as_of_ms: int) -> None:
        self.records = records
        self.names = names
        self.as_of_ms = as_of_ms
        replays: dict[str, Replay] = defaultdict(Replay)
        for record in records:
            replays[record.key.group].see(record)  # type: ignore[union-attr]
        self.states = {group: replay.states for group, replay in replays.items() if replay.states}

    @property
    def current(self) -> dict[str, State]:
        """The newest state of each group that isn't deleted."""
        return {group: states[-1] for group, states in self.states.items() if not states[-1].tombstone}

    def group_records(self) -> list[Row]:
        return [
            {
                "group": record.key.group,  # type: ignore[union-attr]
                "group_type": _type_of(record.key.version),
                "key_version": record.key.version,
                "member_id": record.key.member_id if isinstance(record.key, GroupMemberKey) else None,
                "data": format_group_record(record.key_bytes, record.value_bytes)
                or format_newer_group_record(record.key_bytes, record.value_bytes),
                "tombstone": record.value is None,
                **record.position,
                "src_date": day(record.timestamp_ms),
            }
            for record in self.records
        ]

    def group_generations(self) -> list[Row]:
        rows = []
        for group, states in self.states.items():
            before: set[str] = set()
            for state in states:
                now = set(state.members)
                rows.append(
                    {
                        "group": group,
                        "group_type": state.kind,
                        "generation": state.generation,
                        "protocol_type": state.protocol_type,
                        "protocol": state.protocol,
                        "leader": state.leader,
                        "at_ts": state.at_ms,
                        "member_count": len(now),
                        "member_ids": list(state.members),
                        "joined": len(now - before),
                        "left": len(before - now),
                        "owners": [
                            {
                                "member_id": name,
                                "client_id": row["client_id"],
                                "client_host": row["client_host"],
                                **part,
                            }
                            for name, row in state.members.items()
                            for part in self.named(state, row["assigned"]) or ()
                        ],
                        "tombstone": state.tombstone,
                        **state.record.position,
                        "src_date": day(state.record.timestamp_ms),
                    }
                )
                before = now
        return rows

    def rebalances(self) -> list[Row]:
        rows = []
        for group, states in self.states.items():
            for at, state in enumerate(states):
                previous = states[at - 1] if at else None
                before, now = set(previous.members if previous else ()), set(state.members)
                same = previous is not None and previous.generation == state.generation
                if state.tombstone or same or not (before or now):
                    continue
                rows.append(
                    {
                        "group": group,
                        "group_type": state.kind,
                        "kind": "emptied" if not now else "rebalanced" if before else "formed",
                        "generation": state.generation,
                        "previous_generation": previous.generation if previous else None,
                        "protocol": state.protocol,
                        "member_count": len(now),
                        "joined": len(now - before),
                        "left": len(before - now),
                        "at_ts": state.at_ms,
                        "previous_lasted_ms": state.at_ms - previous.at_ms if previous else None,
                        **state.record.position,
                        "src_date": day(state.record.timestamp_ms),
                    }
                )
        return rows

    def members(self) -> list[Row]:
        rows = []
        for group, states in self.states.items():
            for name in {name for state in states for name in state.members}:
                listing = [state for state in states if name in state.members]
                last = listing[-1]
                assigned = self.named(last, last.members[name]["assigned"])
                rows.append(
                    {
                        "group": group,
                        "member_id": name,
                        "group_type": last.kind,
                        **last.members[name],
                        "assigned": assigned,
                        "assigned_partitions": len(_places(assigned)),
                        "generation": last.generation,
                        "active": last is states[-1],
                        "first_seen_ts": min(state.at_ms for state in listing),
                        "last_seen_ts": max(state.at_ms for state in listing),
                    }
                )
        return rows

    def assigned(self) -> dict[Place, int]:
        """Returns the partitions that consumers have now, and since when their group is in its state."""
        return {
            (group, part["topic"], number): state.at_ms
            for group, state in self.current.items()
            if state.kind in {"classic", "consumer"}
            for member in state.members.values()
            for part in self.named(state, member["assigned"]) or ()
            for number in part["partitions"]
        }

    def named(self, state: State, assigned: Assigned | None) -> Assigned | None:
        """Newer groups name topics by ID."""
        if assigned is None or state.kind == "classic":
            return assigned
        return [{**part, "topic": self.names.get(part["topic"], part["topic"])} for part in assigned]

    def topic_consumers(self, current: Mapping[Any, Record]) -> list[Row]:
        active = [row for row in self.members() if row["active"]]
        wanted: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in active:
            topics = {*(row["topics"] or ()), *(part["topic"] for part in row["assigned"] or ())}
            for topic in topics:
                wanted[topic, row["group"]].append(row)
        commits: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for (group, topic, _), record in current.items():
            commits[topic, group].append(record)
        rows = []
        for topic, group in {*wanted, *commits}:
            who, made = wanted[topic, group], commits[topic, group]
            times = [at for one in made if (at := moment(one.value.commit_timestamp_ms)) is not None]
            owned = {place for row in who for place in _places(row["assigned"]) if place[0] == topic}
            rows.append(
                {
                    "topic": topic,
                    "group": group,
                    "committed_partitions": len(made),
                    "assigned_partitions": len(owned),
                    "members": len(who),
                    "client_ids": sorted({row["client_id"] for row in who}),
                    "client_hosts": sorted({row["client_host"] for row in who}),
                    "last_commit_ts": max(times, default=None),
                }
            )
        return rows


def _classic_state(record: Record) -> State:
    value = record.value
    if value is None:
        return State(record, "classic")
    return State(
        record,
        "classic",
        value.generation,
        value.protocol_type,
        value.protocol,
        value.leader,
        moment(value.current_state_timestamp_ms),
        {member.member_id: _classic_member(member, value.protocol_type) for member in value.members},
    )


def _classic_member(member: MemberMetadata, protocol_type: str) -> Row:
    topics: list[str] | None = None
    assigned: Assigned | None = None
    if protocol_type == "consumer":
        try:
            topics = list(decode_subscription(member.subscription).topics)
        except DecodeError:
            topics = None
        try:
            parts = decode_assignment(member.assignment).assigned_partitions
            assigned = [{"topic": part.topic, "partitions": list(part.partitions)} for part in parts]
        except DecodeError:
            assigned = None
    return {
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "topics": topics,
        "assigned": assigned,
    }


def _newer_member(value: ConsumerMember | ShareMember | StreamsMember) -> Row:
    classic = value.classic_member_metadata if isinstance(value, ConsumerMember) else None
    return {
        "instance_id": None if isinstance(value, ShareMember) else value.instance_id,
        "client_id": value.client_id,
        "client_host": value.client_host,
        "session_timeout_ms": classic.session_timeout_ms if classic else None,
        "rebalance_timeout_ms": None if isinstance(value, ShareMember) else value.rebalance_timeout_ms,
        "topics": None if isinstance(value, StreamsMember) else list(value.subscribed_topic_names),
    }


def _by_id(value: Any) -> Assigned | None:
    """The assignment of a consumer or share group; a streams group assigns tasks."""
    parts = getattr(value, "assigned_partitions", None)
    if parts is None:
        return None
    return [{"topic": id_text(part.topic_id), "partitions": list(part.partitions)} for part in parts]


def _places(assigned: Assigned | None) -> set[tuple[str, int]]:
    return {(part["topic"], number) for part in assigned or () for number in part["partitions"]}


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    values.pop(name, None)
    if value is not None:
        values[name] = value


def _member_of(record: Record) -> str:
    assert isinstance(record.key, GroupMemberKey)
    return record.key.member_id


def _type_of(version: int) -> str:
    if version == CLASSIC_TYPE:
        return "classic"
    if version < 10 or version == 16:
        return "consumer"
    return "share" if version < 16 else "streams"


def id_text(topic_id: bytes) -> str:
    """Returns a topic ID as Kafka's tools write it."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
