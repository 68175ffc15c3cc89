"""The shared state of a shard's parts: its groups, the time of the current call, and the outcome under
construction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from korvet.groups.group import Group, Member, Wait
from korvet.groups.messages import JoinReply, Outcome, Record, Reply, SyncReply, Token
from korvet.groups.timers import TimerQueue
from korvet.metrics.counted import Counted, counter, gauge, histogram, part
from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType

if TYPE_CHECKING:
    from collections.abc import Container

    from kio.schema.errors import ErrorCode

    from korvet.groups.config import GroupConfig
    from korvet.groups.consumer.group import ConsumerGroup
    from korvet.groups.consumer.topics import Topics
    from korvet.groups.share.group import ShareGroup
    from korvet.groups.share.messages import Initialisation

    AnyGroup: TypeAlias = Group | ConsumerGroup | ShareGroup


REBALANCE_BOUNDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds. A rebalance takes as long as its slowest member."""

_REQUESTS: Final = declare(
    "korvet_group_coordinator_requests_total",
    "Requests of members by kind: join, sync, heartbeat, leave. First and last heartbeats of the consumer "
    "protocol also count as join and leave.",
    "kind",
    kind=MetricType.COUNTER,
)
_OFFSETS: Final = declare(
    "korvet_group_coordinator_offsets_total",
    "Offsets by event: committed (by Kafka clients), exported (committed for Redis groups), expired.",
    "event",
    kind=MetricType.COUNTER,
)


class GroupCounts(Counted):
    """Counts of all groups that one broker coordinates, since its start; one instance for all shards."""

    rebalance_seconds = histogram(
        "korvet_group_coordinator_rebalance_seconds",
        "Time from the beginning of a rebalance until the group is stable, in seconds.",
        bounds=REBALANCE_BOUNDS,
    )
    joins = part(_REQUESTS, "join")
    syncs = part(_REQUESTS, "sync")
    heartbeats = part(_REQUESTS, "heartbeat")
    leaves = part(_REQUESTS, "leave")
    expired_members = counter(
        "korvet_group_coordinator_expired_members_total",
        "Members that were removed because they sent no heartbeat, or did not join again, in time.",
    )
    committed_offsets = part(_OFFSETS, "committed")
    exported_offsets = part(_OFFSETS, "exported")
    expired_offsets = part(_OFFSETS, "expired")
    diverged_groups = gauge(
        "korvet_redis_groups_diverged",
        "Redis groups that were not at the newest commit of their Kafka group in the last round, and were "
        "set to it again.",
    )

    def __init__(self) -> None:
        super().__init__()
        self.rebalances: dict[str, int] = {}
        """Rebalances that began, by group. A rebalance of the consumer protocol is a new group epoch."""
        self.commits: dict[str, int] = {}
        """Commit requests that were accepted, by group, transactional ones included."""

    def rebalance(self, group_id: str) -> None:
        """Count the beginning of a rebalance."""
        self.rebalances[group_id] = self.rebalances.get(group_id, 0) + 1

    def commit(self, group_id: str) -> None:
        """Count an accepted commit request."""
        self.commits[group_id] = self.commits.get(group_id, 0) + 1

    def forget(self, group_id: str) -> None:
        """Drop the counts of a group that was deleted."""
        self.rebalances.pop(group_id, None)
        self.commits.pop(group_id, None)

    def keep(self, groups: Container[str]) -> None:
        """Drop the counts of all groups except these, which this broker coordinates."""
        for counts in (self.rebalances, self.commits):
            for group_id in [each for each in counts if each not in groups]:
                del counts[group_id]


class Context:
    """One per shard; now_ms is the time of the latest call."""

    __slots__ = (
        "config",
        "counts",
        "groups",
        "initialisations",
        "least_generation",
        "now_ms",
        "producer",
        "records",
        "replies",
        "timers",
        "topics",
        "waits",
    )

    def __init__(
        self,
        config: GroupConfig,
        topics: Topics,
        least_generation: int = 0,
        counts: GroupCounts | None = None,
    ) -> None:
        """`least_generation` and `counts`: see GroupShard."""
        self.config = config
        self.counts = GroupCounts() if counts is None else counts
        self.least_generation = least_generation
        self.topics = topics
        self.groups: dict[str, AnyGroup] = {}
        self.timers = TimerQueue()
        self.now_ms = 0
        self.records: list[Record] = []
        self.replies: list[tuple[Token, Reply]] = []
        self.producer: tuple[int, int] | None = None
        self.initialisations: list[Initialisation] = []
        self.waits: dict[Token, Wait] = {}

    def begin_rebalance(self, group: AnyGroup) -> None:
        """Count a rebalance, and note its beginning unless it interrupts another one."""
        self.counts.rebalance(group.group_id)
        if group.rebalancing_since_ms is None:
            group.rebalancing_since_ms = self.now_ms

    def end_rebalance(self, group: AnyGroup) -> None:
        """Note that a group is stable."""
        if group.rebalancing_since_ms is not None:
            self.counts.rebalance_seconds.observe((self.now_ms - group.rebalancing_since_ms) / 1000)
            group.rebalancing_since_ms = None

    def shift(self, by_ms: int) -> None:
        """Move all deadlines, and the beginnings of rebalances, by a step of the clock."""
        self.timers.shift(by_ms)
        for group in self.groups.values():
            if group.rebalancing_since_ms is not None:
                group.rebalancing_since_ms += by_ms

    def classic(self, group_id: str) -> Group | None:
        """The classic group with that id."""
        group = self.groups.get(group_id)
        return group if isinstance(group, Group) else None

    def answer_all(self, group: Group, error: ErrorCode) -> None:
        """Answer all requests that wait for this group; the next outcome has the replies."""
        for member in group.members.values():
            self.answer_join(group, member, JoinReply(error, member.member_id))
            self.answer_sync(member, SyncReply(error))

    def release(self, group: Group, error: ErrorCode) -> None:
        """`answer_all`, and disarm the group's timeouts."""
        self.answer_all(group, error)
        sessions = [member.session for member in group.members.values()]
        for deadline in (*sessions, *group.pending_joins.values(), group.join_deadline, group.sync_deadline):
            if deadline is not None:
                deadline.cancel()

    def take_outcome(self) -> Outcome:
        """Returns the collected records and replies, and begins a new outcome."""
        outcome = Outcome(self.records, self.replies, self.producer, self.initialisations)
        self.records, self.replies, self.producer, self.initialisations = [], [], None, []
        return outcome

    def reply(self, token: Token, reply: Reply) -> None:
        """Answer a request at once."""
        self.replies.append((token, reply))

    def wait(self, token: Token) -> Wait:
        """Keep a request waiting."""
        wait = self.waits[token] = Wait(token)
        return wait

    def answer_join(self, group: Group, member: Member, reply: JoinReply) -> None:
        """Answer the member's waiting join, if it has one."""
        if member.awaiting_join is not None:
            self._answer(member.awaiting_join, reply)
            member.awaiting_join = None
            if group.members.get(member.member_id) is member:
                group.awaiting_joins -= 1

    def answer_sync(self, member: Member, reply: SyncReply) -> bool:
        """Answer the member's waiting sync; returns False if it has none."""
        if member.awaiting_sync is None:
            return False
        self._answer(member.awaiting_sync, reply)
        member.awaiting_sync = None
        return True

    def forget(self, token: Token) -> None:
        """Send no reply to `token` any more; its member still counts as waiting."""
        wait = self.waits.pop(token, None)
        if wait is not None:
            wait.token = None

    def _answer(self, wait: Wait, reply: Reply) -> None:
        if wait.token is not None:
            del self.waits[wait.token]
            self.replies.append((wait.token, reply))
