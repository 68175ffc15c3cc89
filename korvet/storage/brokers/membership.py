"""This broker's membership among the live brokers: its lease, its leadership, and the changes that follow.

Each renewal of the lease returns what has changed: a new version of the assignment, or of the topic
catalogue. The broker renews several times a second while other brokers exist, and at once after an append was
refused because another broker leads its partition.

A broker leads while its lease lasts by its own clock, counted from the sending of the renewal. This holds
even if the broker believes to be alone, because other brokers may have joined without its knowledge. After
that it leads nothing until the next renewal. While Redis accepts no writes, no broker can renew a lease or
remove a broker. Then it is enough, for a short time, that the broker's entry is still in Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING, Final, Protocol

from korvet.causes import Causes
from korvet.storage.brokers.assignment import Assignment, to_leader_epoch
from korvet.storage.brokers.claims import claim_all
from korvet.storage.brokers.departed import Departed
from korvet.storage.brokers.lease import NO_VERSION, Lease, NodeIdTaken, Renewal
from korvet.storage.errors import FencedEpoch, KeyspaceLost, StorageError, StoreError, WritesRefused
from korvet.storage.fields import DamageLog
from korvet.storage.link.clock import steady_s
from korvet.storage.refusals import Cause
from korvet.storage.versions import VersionMisfit
from korvet.supervisor import keep, once

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from korvet.config.address import Address
    from korvet.storage.catalogue import Catalogue
    from korvet.storage.link.commands import Commands
    from korvet.storage.refusals import Refusals

# Renewals per length of a lease: several, so that one slow reply does not end the lease.
_RENEWALS_PER_LEASE: Final = 4
# Interval of renewals while this broker is alone: then only a joining broker can change anything.
_ALONE_POLL_S: Final = 1.0
# Interval of renewals, and so the delay of other brokers' changes.
_POLL_S: Final = 0.25
# Interval of renewals while a topic is being deleted: the deleting broker waits for all acknowledgements.
_DELETING_POLL_S: Final = 0.05
_LEAST_BETWEEN_S: Final = 0.02
# The part of a lease during which its holder serves. Clocks may run at different rates, and responses take a
# moment to be sent.
_SERVED_PART: Final = 0.95
# An entry that was read while Redis accepts no writes is valid for two intervals of renewals.
_VALID_INTERVALS: Final = 2
# Limits the wait until the other brokers know this broker and have stopped loading its partitions.
_KNOWN_TIMEOUT_S: Final = 3.0
# Consecutive failures, other than errors of Redis, after which the broker gives up: about ten seconds.
_MOST_FAILURES: Final = 6

log = logging.getLogger(__name__)
causes = Causes(log)


class ChangeListener(Protocol):
    """A part of the broker that follows the changes of other brokers."""

    def follow_assignment(self) -> None:
        """Leaders have changed: start to serve the partitions that this broker leads now, and stop to serve
        the others.
        """

    async def complete_changes(self) -> None:
        """Return when all consequences of the newest changes are complete. Raises StorageError to be called
        again later.
        """


class Membership:
    """A live broker's view of the cluster, kept up to date until `leave`."""

    def __init__(
        self,
        commands: Commands,
        catalogue: Catalogue,
        node_id: int,
        lease: Lease,
        lease_ms: int,
        renewal: Renewal,
        refusals: Refusals,
    ) -> None:
        """Use `join`."""
        assert renewal.assignment is not None
        self.node_id = node_id
        self.assignment: Assignment = renewal.assignment
        """The newest known assignment. While the lease has expired, the partitions of this broker have no
        leader in it.
        """
        self._newest = self.assignment
        self.departed = Departed(node_id)
        self.on_lost: Callable[[Exception], None] | None = None
        """Called once, after `begin`, if this process cannot be a broker any longer: another process has the
        node id, or the membership keeps failing.
        """
        self._end: Exception | None = None
        self._has_begun = False
        self.lost: KeyspaceLost | None = None
        """The error that stops all service if Redis does not hold our keyspace any more, else None."""
        self._refusals = refusals
        self._commands = commands
        self._catalogue = catalogue
        self.damage = DamageLog()
        self._lease = lease
        self.counts = lease.counts
        """What is counted of the lease."""
        self._lease_s = lease_ms / 1000
        self._renewal = renewal
        self._listeners: list[ChangeListener] = []
        # The highest version that this broker has met anywhere; Redis may have lost it.
        self._highest_version = renewal.version
        self._acknowledged = (NO_VERSION, NO_VERSION)
        self._refreshing = asyncio.Lock()
        self._renewed_s = 0.0  # when the newest renewal that was followed was asked for
        self._wanted = asyncio.Event()
        self._serves_until_s = 0.0
        self._expiry: asyncio.TimerHandle | None = None
        self._suspended = False
        # How often the data may have lost writes, and how many of these times are followed by a new version.
        self._losses = self._losses_followed = 0
        # The lease is given back; after that, this broker leads nothing any more.
        self._leaving = self._left = False
        self._tasks: list[asyncio.Task[None]] = []
        self._completing: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._confirmed(self._lease_s)

    @classmethod
    async def join(
        cls,
        commands: Commands,
        catalogue: Catalogue,
        node_id: int,
        endpoint: Address,
        lease_ms: int,
        refusals: Refusals,
        listeners: Mapping[str, Address] | None = None,
        admin: str = "",
    ) -> Membership:
        """Become a live broker that clients find at `endpoint`, or at the endpoint of the listener that they
        use. `refusals` learns whether renewals of the lease are refused; `admin`: the URL of its admin
        endpoint.

        Raises NodeIdTaken, which names the holder, if another live broker has the node id; and VersionMisfit
        if this release cannot work with the keyspace or a live broker.
        """
        lease, renewal = await Lease.take(commands, node_id, endpoint, lease_ms, listeners or {}, admin)
        member = cls(commands, catalogue, node_id, lease, lease_ms, renewal, refusals)
        member._tasks.append(
            keep("membership", member._keep_renewing, most_failures=_MOST_FAILURES, give_up=member._give_up)
        )
        return member

    # Leadership

    @property
    def alone(self) -> bool:
        """Whether no other live broker is known."""
        brokers = self.assignment.brokers
        return len(brokers) == 1 and brokers[0].node_id == self.node_id

    @property
    def holds_lease(self) -> bool:
        """Whether this broker may lead partitions: it holds its lease by its own clock, in a version of the
        assignment that it follows.
        """
        return not (self._suspended or self._left) and steady_s() < self._serves_until_s

    @property
    def is_controller(self) -> bool:
        """Whether this broker does the work of the whole cluster."""
        return not self._left and self.assignment.controller.node_id == self.node_id

    def leader_epoch_of(self, topic: str, partition: int) -> int | None:
        """The leader epoch in which this broker leads a partition; None if it does not lead the partition
        now.
        """
        leader = self.assignment.leader(topic, partition)
        return leader.epoch if leader.node_id == self.node_id and not self._left else None

    def endpoints(self, listener: str) -> list[tuple[int, str, int]]:
        """Node id, host and port of all brokers with that listener: of the live ones and of `departed`."""
        return self.assignment.endpoints(listener, self.departed.brokers(steady_s()))

    # Changes

    def attach(self, listener: ChangeListener) -> None:
        """Notify `listener` of changes, after the listeners that are attached already."""
        self._listeners.append(listener)

    def begin(self) -> None:
        """Claim the partitions that this broker leads, and complete the first changes. All listeners are
        attached and `on_lost` is set.
        """
        self._has_begun = True
        self._report_end()
        self._assigned()
        self._complete_soon()

    def refresh_soon(self, refusal: FencedEpoch | None = None) -> None:
        """Renew the lease at once to learn of changes. `refusal`: the reason why an append was refused, which
        proves that there is a change.
        """
        if refusal is not None and refusal.newest is not None:
            self._highest_version = max(self._highest_version, to_leader_epoch(refusal.newest))
        self._wanted.set()

    @property
    def rejoins(self) -> bool:
        """Whether Redis may have lost writes, and the lease has no new version yet. Until then this broker
        leads only if Redis takes no writes, and must append nothing.
        """
        return self._losses != self._losses_followed

    def rejoin(self, *, again: bool = False) -> None:
        """Lead nothing until the lease has a new version, or Redis takes no writes: Redis may have lost
        writes. In the new version all partitions that this broker leads have a new leader epoch. `again`:
        this loss has been reported already.
        """
        if not self._left:
            self._losses += 1
            self.counts.rejoins += not again
            self._suspend()

    def yield_partition(self, topic: str, partition: int) -> None:
        """Let another broker lead a partition, if there is one, and lead all others in a new leader epoch."""
        self._lease.yield_from_next_join(self.assignment.yields_of(self.node_id, topic, partition))
        self.rejoin()

    async def refresh(self, since_s: float = math.inf) -> None:
        """Renew the lease, and follow all changes, unless a renewal that began after `since_s` (`steady_s`)
        has succeeded. Raises NodeIdTaken, VersionMisfit, KeyspaceLost and StorageError.
        """
        async with self._refreshing:
            if self._leaving or self._renewed_s > since_s:
                return
            known = NO_VERSION if self._suspended else self.assignment.version
            losses, rejoins = self._losses, self.rejoins
            try:
                renewal = await self._lease.renew(
                    known,
                    self._highest_version,
                    *self._acknowledged,
                    self._renewal.unreadable,
                    rejoins=rejoins,
                )
            except KeyspaceLost as lost:
                self._keyspace_lost(lost)
                raise
            except WritesRefused as refused:
                self._refusals.refuse_for(refused, steady_s(), self._place())
                if self.lost is None and await self._lease.is_valid(self.assignment.version):
                    self._resume(self._newest)
                    # The next renewal follows after the interval of a broker that leads; stalls may delay it.
                    pause_s = max(self._poll_s(), _POLL_S)
                    self._confirmed(min(self._lease_s, _VALID_INTERVALS * pause_s))
                raise
            self._renewal = renewal
            self.damage.note(self._commands.keyspace.brokers, renewal.damaged)
            if renewal.unreadable:
                # Redis deletes these entries when the next renewal names them.
                self._wanted.set()
            if self.lost is not None:
                self.lost = None
                self._refusals.accept(Cause.KEYSPACE, steady_s())
            # A catalogue that has lost changes may have the same version again after others.
            if renewal.catalogue != self._catalogue.applied_version or rejoins:
                await self._catalogue.load()
            if losses != self._losses:
                # The version was given before the last loss.
                self._highest_version = max(self._highest_version, renewal.version)
                self._wanted.set()
                return
            self._losses_followed = losses
            if renewal.assignment is not None:
                self._suspended = False
                self._apply(renewal.assignment)
            # Only now: in a version that it does not follow yet, others may lead this broker's partitions.
            self._confirmed(self._lease_s)
            self._renewed_s = self._lease.asked_s
            self.departed.tell(steady_s())
            self._complete_soon()

    async def leave(self, inform: Callable[[], Awaitable[None]] | None = None) -> None:
        """Give up the lease and all leadership. From then on the assignment is that of the other brokers,
        without later changes. No refresh is in progress afterwards.

        `inform()` lets the other brokers know that the assignment has changed. Until it returns, this broker
        leads each partition until its next leader claims it. So all brokers name the next leader when clients
        are refused.
        """
        tasks = [task for task in (*self._tasks, self._completing, self._claiming) if task is not None]
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("a task of the membership failed", exc_info=outcome)
        async with self._refreshing:
            first, self._leaving = not self._leaving, True
        if first:
            await self._hand_over(inform)

    async def _hand_over(self, inform: Callable[[], Awaitable[None]] | None) -> None:
        successors = None
        try:
            successors = await self._lease.release()
            if successors is not None and inform is not None:
                await inform()
        except StorageError as error:
            log.warning("the lease on node id %d could not be given back, it lapses: %s", self.node_id, error)
        if self._expiry is not None:
            self._expiry.cancel()
        self._left = True
        self.departed.announced(self.node_id, steady_s())
        self._succeed(successors or self.assignment.suspending(self.node_id))
        self._notify()
        log.info("node %d has left the assignment, now version %d", self.node_id, self.assignment.version)

    async def wait_acknowledged(self, catalogue: int) -> None:
        """Return when every other live broker has acknowledged version `catalogue` of the topic catalogue and
        the newest version of the assignment. Raises StorageError.
        """
        called_s = steady_s()
        while True:
            # Many deletions may wait, and share the renewals.
            await self.refresh(max(called_s, steady_s() - _DELETING_POLL_S))
            renewal = self._renewal
            assignment, known = renewal.acknowledged_assignment, renewal.acknowledged_catalogue
            if assignment is None or known is None or (assignment >= renewal.version and known >= catalogue):
                return
            await asyncio.sleep(_DELETING_POLL_S)

    async def wait_known(self) -> None:
        """Return when all other brokers that respond have acknowledged that this broker joined."""
        with contextlib.suppress(TimeoutError, StorageError):
            async with asyncio.timeout(_KNOWN_TIMEOUT_S):
                await self.wait_acknowledged(NO_VERSION)

    async def _keep_renewing(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s()):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.refresh()
            except (NodeIdTaken, VersionMisfit) as error:
                log.critical("%s", error)
                self._end = error
                self._report_end()
                return
            except KeyspaceLost:
                # Logged once, when the keyspace was lost.
                pass
            except StorageError as error:
                message = "the lease on node id %d could not be renewed: %s"
                causes.warn(error, message, self.node_id, error, work="lease")
            else:
                causes.ended("lease")
            # Many refused appends may ask for a renewal at once.
            await asyncio.sleep(_LEAST_BETWEEN_S)

    def _give_up(self, error: BaseException) -> None:
        self._end = StoreError(f"the membership of node id {self.node_id} keeps failing: {error!r}")
        self._report_end()

    def _report_end(self) -> None:
        if self._has_begun and self._end is not None and self.on_lost is not None:
            self.on_lost(self._end)

    def _place(self) -> str:
        """The server of the lease, as refusals name it."""
        return str(self._commands.links(self._commands.keyspace.brokers).server.address)

    def _poll_s(self) -> float:
        quarter_s = self._lease_s / _RENEWALS_PER_LEASE
        if self.alone and not self._suspended:
            return min(quarter_s, _ALONE_POLL_S)
        return min(quarter_s, _DELETING_POLL_S if self._catalogue.pending_deletes() else _POLL_S)

    # The lease by the own clock

    def _confirmed(self, for_s: float) -> None:
        """No other broker removes this broker for `for_s` seconds after the newest request of the lease was
        sent.
        """
        serves_until_s = self._lease.asked_s + _SERVED_PART * for_s
        self._serves_until_s = max(self._serves_until_s, serves_until_s)
        if self._serves_until_s > steady_s():
            self._refusals.accept(Cause.LEASE, steady_s())
        if self._expiry is not None:
            self._expiry.cancel()
        left_s = self._serves_until_s - steady_s()
        self._expiry = asyncio.get_running_loop().call_later(max(left_s, 0.0), self._expired)

    def _resume(self, assignment: Assignment) -> None:
        """Lead again in this version if the broker was suspended."""
        if self._suspended:
            self._suspended = False
            self._apply(assignment)

    def _expired(self) -> None:
        self.check()
        if steady_s() < self._serves_until_s and not self._left:
            # A timer may fire early by its resolution.
            self._confirmed(0.0)

    def check(self) -> None:
        """Stop leading if the lease has expired.

        Also called before each request is accepted: after a process was suspended, requests wait and its
        timers fire late.
        """
        if steady_s() < self._serves_until_s or self._left or self.lost is not None:
            return
        self._refusals.refuse(Cause.LEASE, f"the lease on node id {self.node_id} has expired", steady_s())
        if not self._suspended:
            self.counts.expired += 1
            self._suspend()

    def _suspend(self) -> None:
        """Lead nothing until the lease is renewed."""
        self._suspended = True
        self.assignment = self.assignment.suspending(self.node_id)
        self._wanted.set()
        self._notify()

    def _keyspace_lost(self, lost: KeyspaceLost) -> None:
        """Serve nothing and write nothing until an operator has restored the keyspace."""
        if self.lost is not None:
            return
        reason = (
            f"Redis does not hold the keyspace {self._commands.keyspace.prefix!r} with cluster id "
            f"{self._commands.cluster_id} any more: {lost}. Restore it; to continue with what Redis holds "
            "now, restart all brokers"
        )
        self._refusals.refuse(Cause.KEYSPACE, reason, steady_s())
        self.lost = lost
        self._suspend()

    def _apply(self, assignment: Assignment) -> None:
        self._highest_version = max(self._highest_version, assignment.version)
        self._succeed(assignment)
        self.counts.versions += 1
        log.info(
            "version %d of the assignment: %s",
            assignment.version,
            ", ".join(f"node {each.node_id} at {each.host}:{each.port}" for each in assignment.brokers),
        )
        self._assigned()

    def _succeed(self, assignment: Assignment) -> None:
        self.departed.note(self.assignment, assignment, steady_s())
        self.assignment = self._newest = assignment

    def _assigned(self) -> None:
        self._notify()
        if self._claiming is not None:
            self._claiming.cancel()
        self._claiming = once("claims", self._claim())

    def _notify(self) -> None:
        for listener in self._listeners:
            listener.follow_assignment()

    # Claims and completion of changes

    async def _claim(self) -> None:
        """Claim all partitions that this broker leads, idle ones too. Redis then refuses appends of earlier
        leaders.
        """
        claims = [
            (topic, partition, epoch)
            for topic in self._catalogue.topics.values()
            for partition in range(topic.partitions)
            if (epoch := self.leader_epoch_of(topic.name, partition)) is not None
        ]
        await claim_all(self._commands, claims, self.refresh_soon)

    def _complete_soon(self) -> None:
        wanted = self.assignment.version, self._catalogue.applied_version
        busy = self._completing is not None and not self._completing.done()
        if wanted != self._acknowledged and not busy:
            self._completing = once("completing changes", self._complete(wanted))

    async def _complete(self, wanted: tuple[int, int]) -> None:
        try:
            for listener in self._listeners:
                await listener.complete_changes()
        except StorageError as error:
            causes.warn(error, "changes are not complete yet: %s", error, work="changes")
            return
        causes.ended("changes")
        self._acknowledged = wanted
        if not self.alone:
            # Another broker may wait for this acknowledgement.
            self._wanted.set()
