"""Consumers that join, sync, commit, leave, die and return, in any order and at any time, with restarts
between.

The model tracks what each client has received. Whatever the interleaving: no client receives a generation
that is not the group's, a member gets what the leader assigned to it, the log holds all lasting state, and
every request is answered once.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from tests.unit.groups.driver import NONE, REBALANCE_MS, SESSION_MS, Driver, protocols

TOPICS = ("orders", "bills")
LONG_MS = 20 * REBALANCE_MS  # longer than any chain of timeouts
CONFIG = GroupConfig(max_size=4, new_member_join_timeout_ms=30_000, initial_rebalance_delay_ms=3_000)
INDEX = st.integers(0, 5)


class Client:
    """A consumer in its own view."""

    def __init__(self, instance_id: str | None, *, modern: bool) -> None:
        self.instance_id = instance_id
        self.modern = modern  # uses the flags of JoinGroup v4 and v9
        self.member_id = ""
        self.generation = -1
        self.is_ahead = (
            False  # may know a generation that a restart has undone, because it was never assigned
        )
        self.waits_for_join: int | None = None
        self.waits_for_sync: int | None = None
        self.to_assign: tuple[str, ...] | None = None  # set while it is the leader: the ids to assign to

    def reset(self) -> None:
        self.member_id, self.generation, self.to_assign = "", -1, None

    @property
    def waits(self) -> bool:
        return self.waits_for_join is not None or self.waits_for_sync is not None


class GroupMachine(RuleBasedStateMachine):
    """One group; clients are picked by index, modulo their number."""

    @initialize()
    def start(self) -> None:
        self.driver = Driver(CONFIG)
        self.clients: list[Client] = []
        self.lost: set[int] = set()  # tokens of disconnected clients: they need no reply
        self.given: dict[str, bytes] = {}  # by the leader, in the Stable generation
        self.newest_generation = 0
        self.sync_count = 0
        self.offset = 0
        self.committed: dict[tuple[str, int], int] = {}

    # Actions of clients

    @rule(instance_id=st.sampled_from((None, None, "i", "k")), modern=st.booleans())
    def come(self, instance_id: str | None, modern: bool) -> None:
        if len(self.clients) < 6:
            self.clients.append(Client(instance_id, modern=modern))

    @precondition(lambda self: self.clients)
    @rule(index=INDEX, topic=st.sampled_from(TOPICS), name=st.sampled_from((("range",), ("range", "sticky"))))
    def join(self, index: int, topic: str, name: tuple[str, ...]) -> None:
        client = self.pick(index)
        if client.waits:
            return
        client.waits_for_join = self.driver.join(
            client.member_id,
            protocols=protocols(*name, topics=(topic,)),
            group_instance_id=client.instance_id,
            client_id=f"c{index}",
            needs_member_id=client.modern,
            can_skip_assignment=client.modern,
        )
        self.deliver()

    @precondition(lambda self: self.clients)
    @rule(index=INDEX)
    def sync(self, index: int) -> None:
        client = self.pick(index)
        if client.waits or client.generation < 0:
            return
        was_completing = self.driver.state() == "CompletingRebalance"
        self.sync_count += 1
        ids = client.to_assign or ()
        given = {member_id: f"{member_id} {self.sync_count}".encode() for member_id in ids}
        client.waits_for_sync = self.driver.sync(
            client.member_id, client.generation, given, group_instance_id=client.instance_id
        )
        if was_completing and self.driver.state() == "Stable":
            self.given = given
        self.deliver()

    @precondition(lambda self: self.clients)
    @rule(index=INDEX)
    def heartbeat(self, index: int) -> None:
        client = self.pick(index)
        if not client.waits:
            error = self.driver.heartbeat(client.member_id, client.generation, client.instance_id)
            if error in {ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id}:
                client.reset()

    @precondition(lambda self: self.clients)
    @rule(index=INDEX, topic=st.sampled_from(TOPICS), partition=st.integers(0, 1))
    def commit(self, index: int, topic: str, partition: int) -> None:
        client = self.pick(index)
        self.offset += 1
        fields: dict[str, Any] = {
            "topic": topic,
            "partition": partition,
            "group_instance_id": client.instance_id,
        }
        if self.driver.commit(self.offset, client.member_id, client.generation, **fields) is NONE:
            self.committed[topic, partition] = self.offset

    @precondition(lambda self: self.clients)
    @rule(index=INDEX)
    def leave(self, index: int) -> None:
        client = self.pick(index)
        if client.member_id:
            self.driver.leave(client.member_id)
            self.deliver()
            if not client.waits:
                client.reset()

    @precondition(lambda self: self.clients)
    @rule(index=INDEX)
    def die(self, index: int) -> None:
        client = self.clients.pop(index % len(self.clients))
        for token in (client.waits_for_join, client.waits_for_sync):
            if token is not None:
                self.driver.shard.disconnect(token)
                self.lost.add(token)

    @precondition(lambda self: self.clients)
    @rule(
        topic=st.sampled_from(TOPICS), order=st.permutations(range(6)), leave_out=st.sets(INDEX, max_size=2)
    )
    def rebalance(self, topic: str, order: list[int], leave_out: set[int]) -> None:
        """All clients but some join, and those that were admitted sync; otherwise Stable groups are rare."""
        for _ in range(2):  # a client that must return with its member id
            for index in order[: len(self.clients)]:
                self.join(index, topic, ("range",))
        self.advance(3 * CONFIG.initial_rebalance_delay_ms)
        for index in order:
            if index not in leave_out:
                self.sync(index)

    # Events for all

    @rule(by_ms=st.sampled_from((1, 50, 1_000, SESSION_MS // 2, SESSION_MS, 30_000, REBALANCE_MS)))
    def advance(self, by_ms: int) -> None:
        self.driver.advance(by_ms)
        self.deliver()

    @rule()
    def restart(self) -> None:
        """Another shard reads the log; waiting clients lose their connections."""
        for client in self.clients:
            self.lost |= {
                token for token in (client.waits_for_join, client.waits_for_sync) if token is not None
            }
            client.waits_for_join = client.waits_for_sync = None
            client.is_ahead = True
        driver = self.reloaded()
        driver.now_ms, driver.asked = self.driver.now_ms, self.driver.asked
        driver.take(driver.shard.loaded(driver.now_ms))
        driver.log = self.driver.log
        driver.replies = self.driver.replies
        self.newest_generation = (
            0  # a generation that was never assigned is forgotten, and its number used again
        )
        self.driver = driver

    # Invariants

    def deliver(self) -> None:
        for client in self.clients:
            if client.waits_for_join in self.driver.replies:
                self.joined(client, self.driver.replies[client.waits_for_join])
                client.waits_for_join = None
            if client.waits_for_sync in self.driver.replies:
                self.synced(client, self.driver.replies[client.waits_for_sync])
                client.waits_for_sync = None

    def joined(self, client: Client, reply: Any) -> None:
        client.to_assign = None
        if reply.error is NONE:
            client.member_id, client.generation, client.is_ahead = reply.member_id, reply.generation_id, False
            assert reply.generation_id >= self.newest_generation
            self.newest_generation = reply.generation_id
            is_leader = reply.leader == reply.member_id
            assert is_leader == bool(reply.members)
            if is_leader and not reply.skip_assignment:
                client.to_assign = tuple(member.member_id for member in reply.members)
        elif reply.error is ErrorCode.member_id_required:
            client.member_id = reply.member_id
        elif reply.error in {
            ErrorCode.unknown_member_id,
            ErrorCode.fenced_instance_id,
            ErrorCode.group_max_size_reached,
        }:
            client.reset()
        else:
            # The protocol may not suit the members; nothing else can be wrong.
            assert reply.error in {ErrorCode.rebalance_in_progress, ErrorCode.inconsistent_group_protocol}

    def synced(self, client: Client, reply: Any) -> None:
        if reply.error is NONE:
            group = self.driver.shard._context.groups["g"]
            assert client.generation == group.generation
            assert reply.assignment == group.members[client.member_id].assignment

    @invariant()
    def only_one_generation(self) -> None:
        group = self.driver.shard._context.groups.get("g")
        if group is None:
            return
        assert group.awaiting_joins == sum(
            member.awaiting_join is not None for member in group.members.values()
        )
        assert group.pending_syncs <= group.members.keys()
        assert set(group.static_members.values()) <= group.members.keys()
        assert (group.leader_id in group.members) == bool(group.members)
        if group.state.value == "Stable":
            for client in self.clients:
                if client.member_id in group.members and not client.waits and not client.is_ahead:
                    assert client.generation <= group.generation

    @invariant()
    def stable_members_have_what_the_leader_gave(self) -> None:
        """A static member that returned has the assignment of its former id, which is part of the new id."""
        group = self.driver.shard._context.groups.get("g")
        if group is None or group.state.value != "Stable":
            return
        for member in group.members.values():
            if member.group_instance_id is None:
                assert member.assignment == self.given.get(member.member_id, b"")
            else:
                assert member.assignment in {b"", *self.given.values()}
                assert not member.assignment or member.assignment.startswith(
                    member.group_instance_id.encode() + b"-"
                )

    @invariant()
    def log_holds_all_that_lasts(self) -> None:
        fresh = self.reloaded()
        assert fresh.fetched() == self.driver.fetched() == self.committed
        ours, theirs = self.driver.described(), fresh.described()
        if ours.state == "Stable":
            assert (theirs.state, theirs.protocol_type, theirs.protocol_data) == (
                ours.state,
                ours.protocol_type,
                ours.protocol_data,
            )
            assert theirs.members == ours.members
        if ours.state in {"Stable", "Empty"} and theirs.state != "Dead":
            groups = self.driver.shard._context.groups, fresh.shard._context.groups
            assert groups[0]["g"].generation == groups[1]["g"].generation

    def teardown(self) -> None:
        """No client acts any more: all waiting requests are answered, and the group ends up empty."""
        if not hasattr(self, "driver"):
            return
        waiting = {client.waits_for_join for client in self.clients} | {
            client.waits_for_sync for client in self.clients
        }
        self.driver.advance(LONG_MS)
        assert waiting - {None} <= self.driver.replies.keys()
        assert not self.lost & self.driver.replies.keys()
        assert set(range(1, self.driver.asked + 1)) - self.lost <= self.driver.replies.keys()
        assert self.driver.state() in {"Empty", "Dead"}
        assert not self.driver.shard._context.waits

    # Helpers

    def pick(self, index: int) -> Client:
        return self.clients[index % len(self.clients)]

    def reloaded(self) -> Driver:
        """A driver whose shard has read the log."""
        return Driver(CONFIG, log=self.driver.log, suffix=self.driver.suffix)


GroupMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestGroupMachine = GroupMachine.TestCase
