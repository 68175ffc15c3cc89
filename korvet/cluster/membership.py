"""This broker's membership among the live brokers: keeps its lease, and carries out what Leadership decides.

Each renewal of the lease returns what has changed: a new version of the assignment, or of the topic
catalogue. The broker renews several times a second while other brokers exist, and at once after an append was
refused because another broker leads its partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING, Final

from korvet.causes import Causes
from korvet.cluster.assignment import to_leader_epoch
from korvet.cluster.changes import Changes
from korvet.cluster.leadership import DELETING_POLL_S, Effect, Leadership, State
from korvet.cluster.lease import NO_VERSION, Lease, NodeIdTaken, Renewal
from korvet.cluster.versions import VersionMisfit
from korvet.redis.clock import steady_s
from korvet.redis.errors import FencedEpoch, KeyspaceLost, StorageError, StoreError, WritesRefused
from korvet.redis.fields import DamageLog
from korvet.supervisor import end, keep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from korvet.cluster.assignment import Assignment
    from korvet.cluster.catalogue import Catalogue
    from korvet.config.address import Address
    from korvet.redis.commands import Commands
    from korvet.redis.refusals import Refusals

_LEAST_BETWEEN_S: Final = 0.02
# Limits the wait until the other brokers know this broker and have stopped loading its partitions.
_KNOWN_TIMEOUT_S: Final = 3.0
# Consecutive failures, other than errors of Redis, after which the broker gives up: about ten seconds.
_MOST_FAILURES: Final = 6

log = logging.getLogger(__name__)
causes = Causes(log)


class Membership:
    """Keeps `leadership` up to date until `leave`."""

    def __init__(
        self,
        commands: Commands,
        catalogue: Catalogue,
        lease: Lease,
        leadership: Leadership,
        renewal: Renewal,
        refusals: Refusals,
    ) -> None:
        """Use `join`."""
        self.leadership = leadership
        self.changes = Changes(commands, catalogue, leadership, self.refresh_soon)
        """Attach listeners before `begin`."""
        self.damage = DamageLog()
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Why this process cannot be a broker any longer: another process has the node id, or the membership
        keeps failing.
        """
        self._refusals = refusals
        self._commands = commands
        self._catalogue = catalogue
        self._lease = lease
        self._renewal = renewal
        self._refreshing = asyncio.Lock()
        self._renewed_s = 0.0  # when the newest renewal that was followed was asked for
        self._wanted = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._leaving = False
        self._renewing = keep(
            "membership", self._keep_renewing, most_failures=_MOST_FAILURES, give_up=self._give_up
        )
        self._follow(self.leadership.check(steady_s()))

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
        assert renewal.assignment is not None
        leadership = Leadership(
            node_id, renewal.assignment, lease_ms / 1000, lease.counts, refusals, lease.asked_s, steady_s()
        )
        return cls(commands, catalogue, lease, leadership, renewal, refusals)

    def begin(self) -> None:
        """Claim the partitions that this broker leads, and complete the first changes. All listeners are
        attached.
        """
        self._follow(Effect.LEAD)
        self.changes.complete_soon()

    def check(self) -> None:
        """Stop leading if the lease has expired.

        Also called before each request is accepted: after a process was suspended, requests wait and its
        timers fire late.
        """
        effect = self.leadership.check(steady_s())
        if effect is not None:
            self._follow(effect)

    def refresh_soon(self, refusal: FencedEpoch | None = None) -> None:
        """Renew the lease at once to learn of changes. `refusal`: the reason why an append was refused, which
        proves that there is a change.
        """
        if refusal is not None and refusal.newest is not None:
            self.leadership.meet(to_leader_epoch(refusal.newest))
        self._wanted.set()

    def rejoin(self) -> None:
        """Redis may have lost writes; see Leadership.lose_writes."""
        self._follow(self.leadership.lose_writes())

    def yield_partition(self, topic: str, partition: int) -> None:
        """Let another broker lead a partition, if there is one, and lead all others in a new leader epoch."""
        leadership = self.leadership
        yields = leadership.assignment.yields_of(leadership.node_id, topic, partition)
        self._lease.yield_from_next_join(yields)
        self.rejoin()

    async def refresh(self, since_s: float = math.inf) -> None:
        """Renew the lease, and follow all changes, unless a renewal that began after `since_s` (`steady_s`)
        has succeeded. Raises NodeIdTaken, VersionMisfit, KeyspaceLost and StorageError.
        """
        async with self._refreshing:
            if self._leaving or self._renewed_s > since_s:
                return
            known, highest, rejoins = self.leadership.ask()
            acknowledged = self.changes.acknowledged
            try:
                renewal = await self._lease.renew(
                    known, highest, *acknowledged, self._renewal.unreadable, rejoins=rejoins
                )
            except KeyspaceLost as lost:
                self._lose_keyspace(lost)
                raise
            except WritesRefused as refused:
                server = self._commands.links(self._commands.keyspace.brokers).server
                self._refusals.refuse_for(refused, steady_s(), str(server.address))
                leadership = self.leadership
                if leadership.lost is None and await self._lease.is_valid(leadership.assignment.version):
                    self._follow(leadership.keep(self._lease.asked_s, steady_s()))
                raise
            self._renewal = renewal
            self.damage.note(self._commands.keyspace.brokers, renewal.damaged)
            if renewal.unreadable:
                # Redis deletes these entries when the next renewal names them.
                self._wanted.set()
            self.leadership.find_keyspace(steady_s())
            # A catalogue that has lost changes may have the same version again after others.
            if renewal.catalogue != self._catalogue.applied_version or rejoins:
                await self._catalogue.load()
            # Only now: in a version that it does not follow yet, others may lead this broker's partitions.
            effect = self.leadership.follow(renewal, self._lease.asked_s, steady_s())
            self._follow(effect)
            if effect is not Effect.RENEW:
                self._renewed_s = self._lease.asked_s
                self.changes.complete_soon()

    async def leave(self, inform: Callable[[], Awaitable[None]] | None = None) -> None:
        """Give up the lease and all leadership. From then on the assignment is that of the other brokers,
        without later changes. No refresh is in progress afterwards.

        `inform()` lets the other brokers know that the assignment has changed. Until it returns, this broker
        leads each partition until its next leader claims it. So all brokers name the next leader when clients
        are refused.
        """
        await end(self._renewing)
        await self.changes.close()
        async with self._refreshing:
            first, self._leaving = not self._leaving, True
        if first:
            self._follow(self.leadership.leave(await self._release(inform), steady_s()))

    async def _release(self, inform: Callable[[], Awaitable[None]] | None) -> Assignment | None:
        successors = None
        try:
            successors = await self._lease.release()
            if successors is not None and inform is not None:
                await inform()
        except StorageError as error:
            message = "the lease on node id %d could not be given back, it lapses: %s"
            log.warning(message, self.leadership.node_id, error)
        return successors

    async def wait_acknowledged(self, catalogue: int) -> None:
        """Return when every other live broker has acknowledged version `catalogue` of the topic catalogue and
        the newest version of the assignment. Raises StorageError.
        """
        called_s = steady_s()
        while True:
            # Many deletions may wait, and share the renewals.
            await self.refresh(max(called_s, steady_s() - DELETING_POLL_S))
            renewal = self._renewal
            assignment, known = renewal.acknowledged_assignment, renewal.acknowledged_catalogue
            if assignment is None or known is None or (assignment >= renewal.version and known >= catalogue):
                return
            await asyncio.sleep(DELETING_POLL_S)

    async def wait_known(self) -> None:
        """Return when all other brokers that respond have acknowledged that this broker joined."""
        with contextlib.suppress(TimeoutError, StorageError):
            async with asyncio.timeout(_KNOWN_TIMEOUT_S):
                await self.wait_acknowledged(NO_VERSION)

    async def _keep_renewing(self) -> None:
        while True:
            deletes = bool(self._catalogue.pending_deletes())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.leadership.renewal_interval_s(deletes=deletes)):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.refresh()
            except (NodeIdTaken, VersionMisfit) as error:
                log.critical("%s", error)
                self._end(error)
                return
            except KeyspaceLost:
                # Logged once, when the keyspace was lost.
                pass
            except StorageError as error:
                message = "the lease on node id %d could not be renewed: %s"
                causes.warn(error, message, self.leadership.node_id, error, work="lease")
            else:
                causes.ended("lease")
            # Many refused appends may ask for a renewal at once.
            await asyncio.sleep(_LEAST_BETWEEN_S)

    def _give_up(self, error: BaseException) -> None:
        node_id = self.leadership.node_id
        self._end(StoreError(f"the membership of node id {node_id} keeps failing: {error!r}"))

    def _end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    def _lose_keyspace(self, lost: KeyspaceLost) -> None:
        reason = (
            f"Redis does not hold the keyspace {self._commands.keyspace.prefix!r} with cluster id "
            f"{self._commands.cluster_id} any more: {lost}. Restore it; to continue with what Redis holds "
            "now, restart all brokers"
        )
        self._follow(self.leadership.lose_keyspace(lost, reason, steady_s()))

    def _follow(self, effect: Effect | None) -> None:
        """Do what follows from an event."""
        if self._expiry is not None:
            self._expiry.cancel()
        state, until_s = self.leadership.state, self.leadership.serves_until_s
        left_s = until_s - steady_s()
        # It may have expired since it was looked at.
        if (left_s > 0 and state is not State.LEFT) or state is State.LEADING:
            self._expiry = asyncio.get_running_loop().call_later(max(left_s, 0), self._expired, until_s)
        if effect in (Effect.RENEW, Effect.STOP):
            self._wanted.set()
        if effect in (Effect.STOP, Effect.LEAD, Effect.LEAVE):
            self.changes.notify()
        if effect is Effect.LEAD:
            self.changes.claim()

    def _expired(self, until_s: float) -> None:
        # A timer may fire early by its resolution.
        self._follow(self.leadership.check(max(steady_s(), until_s)))
