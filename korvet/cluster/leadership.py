"""Whether this broker leads its partitions, and in which version of the assignment. No I/O, and no clock:
Membership passes in times, by `steady_s`.

A broker leads while its lease lasts by its own clock, counted from the sending of the renewal. This holds
even if the broker believes to be alone, because other brokers may have joined without its knowledge. After
that it leads nothing until the next renewal. While Redis accepts no writes, no broker can renew a lease or
remove a broker. Then it is enough, for a short time, that the broker's entry is still in Redis.

| event | leading | suspended | cut off | left |
|---|---|---|---|---|
| check, after the lease | suspended: STOP | | | |
| lose_writes | suspended, rejoins: STOP | rejoins: STOP | rejoins: STOP | |
| follow, asked before a loss | | RENEW | | |
| follow, a new version | no longer rejoins: LEAD | leading, no longer rejoins: LEAD | | |
| follow, the known version | no longer rejoins | no longer rejoins | | |
| keep, asked before a loss | | | | |
| keep | | leading: LEAD | | |
| lose_keyspace | cut off: STOP | cut off: STOP | | |
| find_keyspace | | | suspended | |
| leave | left: LEAVE | left: LEAVE | left: LEAVE | |

`follow` and `keep` extend the lease, but not if they were asked before a loss of writes; if the lease is over
nevertheless, `check` follows. A broker that rejoins may be leading: then it appends nothing.
"""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Final

from korvet.cluster.departed import Departed
from korvet.cluster.lease import NO_VERSION
from korvet.redis.refusals import Cause

if TYPE_CHECKING:
    from korvet.cluster.assignment import Assignment
    from korvet.cluster.lease import LeaseCounts, Renewal
    from korvet.redis.errors import KeyspaceLost
    from korvet.redis.refusals import Refusals

# Renewals per length of a lease: several, so that one slow reply does not end the lease.
_RENEWALS_PER_LEASE: Final = 4
# Interval of renewals while this broker is alone: then only a joining broker can change anything.
_ALONE_POLL_S: Final = 1.0
# Interval of renewals, and so the delay of other brokers' changes.
_POLL_S: Final = 0.25
DELETING_POLL_S: Final = 0.05
"""Interval of renewals while a topic is being deleted: the deleting broker waits for all acknowledgements."""
# The part of a lease during which its holder serves. Clocks may run at different rates, and responses take a
# moment to be sent.
_SERVED_PART: Final = 0.95
# An entry that was read while Redis accepts no writes is valid for two intervals of renewals.
_VALID_INTERVALS: Final = 2

log = logging.getLogger(__name__)


class State(enum.Enum):
    """Whether this broker leads."""

    LEADING = enum.auto()
    """It leads what the assignment gives to it."""
    SUSPENDED = enum.auto()
    """It leads nothing until the lease is renewed: others may lead its partitions by now."""
    CUT_OFF = enum.auto()
    """It serves and writes nothing until an operator has restored the keyspace."""
    LEFT = enum.auto()
    """It has given the lease back, and leads nothing any more."""


class Effect(enum.Enum):
    """What follows from an event."""

    RENEW = enum.auto()
    """The lease is renewed at once."""
    STOP = enum.auto()
    """As RENEW. Listeners stop to serve: this broker leads nothing."""
    LEAD = enum.auto()
    """Listeners follow the new version, and this broker claims what it leads."""
    LEAVE = enum.auto()
    """Listeners follow the assignment without this broker."""


class Leadership:
    """A live broker's view of the cluster. Use from one event loop only."""

    def __init__(
        self,
        node_id: int,
        assignment: Assignment,
        lease_s: float,
        counts: LeaseCounts,
        refusals: Refusals,
        asked_s: float,
        now_s: float,
    ) -> None:
        """`assignment`: of the answer to the first request of the lease, which was sent at `asked_s`."""
        self.node_id = node_id
        self.assignment = assignment
        """The newest known assignment. Unless this broker is leading, its partitions have no leader in it."""
        self.departed = Departed(node_id)
        self.counts = counts
        """What is counted of the lease."""
        self.state = State.LEADING
        self.rejoins = False
        """Whether Redis may have lost writes, and the lease has no new version yet. Until then this broker
        leads only if Redis takes no writes, and must append nothing.
        """
        self.lost: KeyspaceLost | None = None
        """The error that stops all service while this broker is cut off."""
        self.serves_until_s = 0.0
        """No other broker removes this broker before."""
        self._newest = assignment
        # The highest version that this broker has met anywhere; Redis may have lost it.
        self._highest_version = assignment.version
        self._lease_s = lease_s
        self._refusals = refusals
        # Whether no writes may have been lost since the question that is under way was asked.
        self._holds = True
        self._extend(asked_s, lease_s, now_s)

    # What others read

    @property
    def alone(self) -> bool:
        """Whether no other live broker is known."""
        brokers = self.assignment.brokers
        return len(brokers) == 1 and brokers[0].node_id == self.node_id

    @property
    def is_controller(self) -> bool:
        """Whether this broker does the work of the whole cluster."""
        return self.state is not State.LEFT and self.assignment.controller.node_id == self.node_id

    def holds_lease(self, now_s: float) -> bool:
        """Whether this broker may lead partitions: it holds its lease by its own clock, in a version of the
        assignment that it follows.
        """
        return self.state is State.LEADING and now_s < self.serves_until_s

    def leader_epoch_of(self, topic: str, partition: int) -> int | None:
        """The leader epoch in which this broker leads a partition; None if it does not lead the partition
        now.
        """
        leader = self.assignment.leader(topic, partition)
        return leader.epoch if leader.node_id == self.node_id else None

    def endpoints(self, listener: str, now_s: float) -> list[tuple[int, str, int]]:
        """Node id, host and port of all brokers with that listener: of the live ones and of `departed`."""
        return self.assignment.endpoints(listener, self.departed.brokers(now_s))

    def renewal_interval_s(self, *, deletes: bool = False) -> float:
        """`deletes`: whether a topic is being deleted."""
        quarter_s = self._lease_s / _RENEWALS_PER_LEASE
        if self.alone and self.state is State.LEADING:
            return min(quarter_s, _ALONE_POLL_S)
        return min(quarter_s, DELETING_POLL_S if deletes else _POLL_S)

    # Events

    def check(self, now_s: float) -> Effect | None:
        """Stop leading if the lease has expired."""
        if now_s < self.serves_until_s or self.state in (State.CUT_OFF, State.LEFT):
            return None
        self._refusals.refuse(Cause.LEASE, f"the lease on node id {self.node_id} has expired", now_s)
        if self.state is State.SUSPENDED:
            return None
        self.counts.expired += 1
        return self._stop(State.SUSPENDED)

    def lose_writes(self) -> Effect | None:
        """Redis may have lost writes: lead nothing until the lease has a new version, or Redis takes no
        writes. In the new version all partitions that this broker leads have a new leader epoch.
        """
        if self.state is State.LEFT:
            return None
        self.counts.rejoins += 1
        self.rejoins, self._holds = True, False
        return self._stop(State.CUT_OFF if self.state is State.CUT_OFF else State.SUSPENDED)

    def meet(self, version: int) -> None:
        """An append was refused because another broker leads the partition since this version."""
        self._highest_version = max(self._highest_version, version)

    def ask(self) -> tuple[int, int, bool]:
        """The lease is to be renewed: `follow`, `keep` or neither is next. Returns the known and the highest
        version, and whether this broker rejoins, for Lease.renew.
        """
        self._holds = True
        known = self.assignment.version if self.state is State.LEADING else NO_VERSION
        return known, self._highest_version, self.rejoins

    def follow(self, renewal: Renewal, asked_s: float, now_s: float) -> Effect | None:
        """The lease is renewed by a request that was sent at `asked_s`, and the catalogue is read."""
        if self.state in (State.CUT_OFF, State.LEFT):
            return None
        if not self._holds:
            # The version was given before the last loss.
            self.meet(renewal.version)
            return Effect.RENEW
        self.rejoins = False
        effect = None if renewal.assignment is None else self._lead(renewal.assignment, now_s)
        self._extend(asked_s, self._lease_s, now_s)
        self.departed.tell(now_s)
        return self.check(now_s) or effect

    def keep(self, asked_s: float, now_s: float) -> Effect | None:
        """Redis accepts no writes, and at `asked_s` the entry of this broker was still valid."""
        if self.state in (State.CUT_OFF, State.LEFT) or not self._holds:
            return None
        effect = None if self.state is State.LEADING else self._lead(self._newest, now_s)
        # The next renewal follows after the interval of a broker that leads; stalls may delay it.
        pause_s = max(self.renewal_interval_s(), _POLL_S)
        self._extend(asked_s, min(self._lease_s, _VALID_INTERVALS * pause_s), now_s)
        return self.check(now_s) or effect

    def lose_keyspace(self, lost: KeyspaceLost, reason: str, now_s: float) -> Effect | None:
        """Redis does not hold our keyspace any more; `reason` is for users."""
        if self.state in (State.CUT_OFF, State.LEFT):
            return None
        self._refusals.refuse(Cause.KEYSPACE, reason, now_s)
        self.lost = lost
        return self._stop(State.CUT_OFF)

    def find_keyspace(self, now_s: float) -> None:
        """Redis has renewed the lease, so it holds our keyspace."""
        if self.state is State.CUT_OFF:
            self.state, self.lost = State.SUSPENDED, None
            self._refusals.accept(Cause.KEYSPACE, now_s)

    def leave(self, successors: Assignment | None, now_s: float) -> Effect | None:
        """The lease is given back. From then on the assignment is that of the other brokers, without later
        changes; None if they are unknown.
        """
        if self.state is State.LEFT:
            return None
        self.state = State.LEFT
        self.departed.announced(self.node_id, now_s)
        self._succeed(successors or self.assignment.suspending(self.node_id), now_s)
        log.info("node %d has left the assignment, now version %d", self.node_id, self.assignment.version)
        return Effect.LEAVE

    def _stop(self, state: State) -> Effect:
        self.state = state
        self.assignment = self.assignment.suspending(self.node_id)
        return Effect.STOP

    def _lead(self, assignment: Assignment, now_s: float) -> Effect:
        former = self._newest.version
        assert assignment.version >= former, f"version {assignment.version} follows {former}"
        self.state = State.LEADING
        self.meet(assignment.version)
        self._succeed(assignment, now_s)
        self.counts.versions += 1
        log.info(
            "version %d of the assignment: %s",
            assignment.version,
            ", ".join(f"node {each.node_id} at {each.host}:{each.port}" for each in assignment.brokers),
        )
        return Effect.LEAD

    def _succeed(self, assignment: Assignment, now_s: float) -> None:
        self.departed.note(self.assignment, assignment, now_s)
        self.assignment = self._newest = assignment

    def _extend(self, asked_s: float, for_s: float, now_s: float) -> None:
        """No other broker removes this broker for `for_s` seconds after `asked_s`."""
        self.serves_until_s = max(self.serves_until_s, asked_s + _SERVED_PART * for_s)
        if now_s < self.serves_until_s:
            self._refusals.accept(Cause.LEASE, now_s)
