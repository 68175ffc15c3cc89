"""This broker's place among the live ones: its lease, who leads what, and what follows from a change of that.

A renewal of the lease brings whatever changed: another version of the assignment, or of the topic catalogue.
It comes some times in a second while there are other brokers, and at once when an append was refused because
somebody else leads its partition.

A broker leads while its lease lasts by its own clock, counted from when the renewal was sent, and whether it
believes to be alone or not: other brokers may have joined without its knowledge. After that it leads nothing
until the next renewal. While Redis takes no writes, nobody can renew a lease or take a broker out. Then it is
enough, for a short time, that the broker's entry is still in Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Protocol

from korvet.causes import Causes
from korvet.storage.brokers.assignment import Assignment, to_leader_epoch
from korvet.storage.brokers.claims import claim
from korvet.storage.brokers.lease import NO_VERSION, Lease, NodeIdTaken, Standing
from korvet.storage.errors import FencedEpoch, KeyspaceLost, StorageError, StoreError, WritesRefused
from korvet.storage.fields import DamageLog
from korvet.storage.link.clock import steady_s
from korvet.supervisor import keep, once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.config.address import Address
    from korvet.storage.catalogue import Catalogue
    from korvet.storage.link.commands import Commands

# Renewed several times within its length, so that one slow answer loses nothing.
_RENEWALS_PER_LEASE: Final = 4
# How soon others' changes are seen. Alone, nobody but a broker that comes changes anything.
_ALONE_POLL_S: Final = 1.0
_POLL_S: Final = 0.25
# While a topic is being deleted somebody waits for what all brokers have settled.
_DELETING_POLL_S: Final = 0.05
_LEAST_BETWEEN_S: Final = 0.02
# The part of a lease during which its holder serves. Clocks may run at different rates, and responses take a
# moment to be sent.
_SERVED_PART: Final = 0.95
# An entry that was read while Redis takes no writes is valid for two pauses between looks.
_LOOKS_AHEAD: Final = 2
# Longer than others take to hear of us and to load nothing more.
_MADE_KNOWN_S: Final = 3.0
_CLAIMS_AT_ONCE: Final = 256
# Consecutive failures that are no errors of Redis, about ten seconds of them: the broker is useless then.
_MOST_FAILURES: Final = 6

log = logging.getLogger(__name__)
causes = Causes(log)


class ChangeListener(Protocol):
    """What has to follow changes that other brokers make."""

    def follow_assignment(self) -> None:
        """Leaders have changed: take up what is ours now, and leave what is not."""

    async def complete_changes(self) -> None:
        """Return once what follows from the newest changes is done. Raises an error to be asked again."""


class Membership:
    """A live broker's view of the cluster, kept up to date until `leave`."""

    def __init__(
        self,
        commands: Commands,
        catalogue: Catalogue,
        node_id: int,
        lease: Lease,
        lease_ms: int,
        standing: Standing,
    ) -> None:
        """Use `join`."""
        assert standing.assignment is not None
        self.node_id = node_id
        self.assignment: Assignment = standing.assignment
        """The newest known assignment; while the lease is over, our partitions have no leader in it."""
        self._heard = self.assignment
        self.on_lost: Callable[[Exception], None] | None = None
        """Called once, after `begin`, if this process cannot be a broker any longer: another process has the
        node id, or the membership keeps failing.
        """
        self._end: Exception | None = None
        self._has_begun = False
        self.lost: KeyspaceLost | None = None
        """Why nothing is served, if Redis does not hold our keyspace any more."""
        self.writes_refused: WritesRefused | None = None
        """Why Redis refused the last renewal of the lease, if it took no writes; else None."""
        self._commands = commands
        self._catalogue = catalogue
        self._damage = DamageLog()
        self._lease = lease
        self._lease_s = lease_ms / 1000
        self._standing = standing
        self._listeners: list[ChangeListener] = []
        # The highest version that was met anywhere, which Redis may have lost.
        self._met = standing.version
        self._settled = (NO_VERSION, NO_VERSION)
        self._refreshing = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._serves_until_s = 0.0
        self._expiry: asyncio.TimerHandle | None = None
        self._suspended = False
        self._left = False
        self._tasks: list[asyncio.Task[None]] = []
        self._settling: asyncio.Task[None] | None = None
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
        listeners: Mapping[str, Address] | None = None,
    ) -> Membership:
        """Become a live broker that clients find at `endpoint`, or at the one of the listener they use.

        Raises StoreError, naming the holder, where another live broker has the node id.
        """
        lease, standing = await Lease.take(commands, node_id, endpoint, lease_ms, listeners or {})
        member = cls(commands, catalogue, node_id, lease, lease_ms, standing)
        member._tasks.append(
            keep("membership", member._keep_up, most_failures=_MOST_FAILURES, give_up=member._cannot_go_on)
        )
        return member

    # Who leads

    @property
    def alone(self) -> bool:
        """Whether there is no other live broker."""
        return len(self.assignment.brokers) == 1

    @property
    def is_controller(self) -> bool:
        """Whether it is on this broker to do what one of them has to do."""
        return not self._left and self.assignment.controller.node_id == self.node_id

    def leader_epoch_of(self, topic: str, partition: int) -> int | None:
        """Our leader epoch of a partition; None where another broker leads it, or nobody may know."""
        leader = self.assignment.leader(topic, partition)
        return leader.epoch if leader.node_id == self.node_id and not self._left else None

    # Changes

    def attach(self, listener: ChangeListener) -> None:
        """Have changes followed by one more, after those that are there already."""
        self._listeners.append(listener)

    def begin(self) -> None:
        """All followers are there, and `on_lost` is set: claim what we lead, and settle."""
        self._has_begun = True
        self._tell_end()
        self._assigned()
        self._settle_soon()

    def refresh_soon(self, refusal: FencedEpoch | None = None) -> None:
        """Look for changes at once; `refusal`: an append of ours was refused, so there must be one."""
        if refusal is not None and refusal.newest is not None:
            self._met = max(self._met, to_leader_epoch(refusal.newest))
        self._wanted.set()

    async def refresh(self) -> None:
        """Renew the lease, and follow what has changed. Raises NodeIdTaken, KeyspaceLost and StorageError."""
        async with self._refreshing:
            if self._left:
                return
            known = NO_VERSION if self._suspended else self.assignment.version
            try:
                standing = await self._lease.renew(
                    known, self._met, *self._settled, self._standing.unreadable
                )
            except KeyspaceLost as lost:
                self._keyspace_lost(lost)
                raise
            except WritesRefused as refused:
                self.writes_refused = refused
                if self.lost is None and await self._lease.stands(self.assignment.version):
                    self._resume(self._heard)
                    # The next look comes after the pause of a broker that leads; short stalls may delay it.
                    pause_s = max(self._poll_s(), _POLL_S)
                    self._confirmed(min(self._lease_s, _LOOKS_AHEAD * pause_s))
                raise
            self.writes_refused = None
            self._standing = standing
            self._damage.note(self._commands.keyspace.brokers, standing.damaged)
            if standing.unreadable:
                # Redis deletes them when the next renewal names them.
                self._wanted.set()
            if self.lost is not None:
                log.warning("the keyspace is there again: cluster id %s", self._commands.cluster_id)
                self.lost = None
            if standing.catalogue != self._catalogue.applied_version:
                await self._catalogue.load()
            if standing.assignment is not None:
                self._suspended = False
                self._take(standing.assignment)
            # Only now: in a version that this broker does not follow yet, others may lead its partitions.
            self._confirmed(self._lease_s)
            self._settle_soon()

    async def leave(self) -> None:
        """Give up the lease and all that is led here; no refresh is under way afterwards."""
        tasks = [task for task in (*self._tasks, self._settling, self._claiming) if task is not None]
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("a task of the membership failed", exc_info=outcome)
        if self._expiry is not None:
            self._expiry.cancel()
        if self._left:
            return
        self._left = True
        self._notify()
        try:
            await self._lease.release()
        except StorageError as error:
            log.warning("the lease on node id %d is left to lapse: %s", self.node_id, error)

    async def wait_acknowledged(self, catalogue: int) -> None:
        """Return once every other live broker has settled version `catalogue` of the topic catalogue, in the
        newest version of the assignment. Raises StorageError.
        """
        while True:
            await self.refresh()
            version, settled = self._standing.version, self._standing.settled_assignment
            if settled is None or self._standing.settled_catalogue is None:
                return
            if settled >= version and self._standing.settled_catalogue >= catalogue:
                return
            await asyncio.sleep(_DELETING_POLL_S)

    async def made_known(self) -> None:
        """Return once other brokers, such as answer, have taken our coming into account."""
        with contextlib.suppress(TimeoutError, StorageError):
            async with asyncio.timeout(_MADE_KNOWN_S):
                await self.wait_acknowledged(NO_VERSION)

    async def _keep_up(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s()):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.refresh()
            except NodeIdTaken as error:
                log.critical("%s", error)
                self._end = error
                self._tell_end()
                return
            except KeyspaceLost:
                # Logged once, when it was lost.
                pass
            except StorageError as error:
                causes.warn(error, "the lease on node id %d could not be renewed: %s", self.node_id, error)
            # Many appends may be refused at once.
            await asyncio.sleep(_LEAST_BETWEEN_S)

    def _cannot_go_on(self, error: BaseException) -> None:
        self._end = StoreError(f"the membership of node id {self.node_id} keeps failing: {error!r}")
        self._tell_end()

    def _tell_end(self) -> None:
        if self._has_begun and self._end is not None and self.on_lost is not None:
            self.on_lost(self._end)

    def _poll_s(self) -> float:
        quarter_s = self._lease_s / _RENEWALS_PER_LEASE
        if self.alone and not self._suspended:
            return min(quarter_s, _ALONE_POLL_S)
        return min(quarter_s, _DELETING_POLL_S if self._catalogue.pending_deletes() else _POLL_S)

    # The lease by our own clock

    def _confirmed(self, for_s: float) -> None:
        """Nobody takes us out for this time (s) after the newest request of the lease was sent."""
        serves_until_s = self._lease.asked_s + _SERVED_PART * for_s
        self._serves_until_s = max(self._serves_until_s, serves_until_s)
        if self._expiry is not None:
            self._expiry.cancel()
        left_s = self._serves_until_s - steady_s()
        self._expiry = asyncio.get_running_loop().call_later(max(left_s, 0.0), self._expired)

    def _resume(self, assignment: Assignment) -> None:
        """Lead again by this version if the broker was suspended."""
        if self._suspended:
            self._suspended = False
            self._take(assignment)

    def _expired(self) -> None:
        self.check()
        if not self._suspended and not self._left:
            # A timer may fire early, by its resolution.
            self._confirmed(0.0)

    def check(self) -> None:
        """Stop leading if the lease is over.

        Also called before requests are taken: after a process was stopped, requests are waiting and its
        timers fire late.
        """
        if steady_s() >= self._serves_until_s and not self._suspended and not self._left:
            log.error("the lease on node id %d is over: nothing is served until it is renewed", self.node_id)
            self._suspend()

    def _suspend(self) -> None:
        """Lead nothing until the lease is renewed."""
        self._suspended = True
        self.assignment = self.assignment.silencing(self.node_id)
        self._wanted.set()
        self._notify()

    def _keyspace_lost(self, lost: KeyspaceLost) -> None:
        """Serve nothing, and write nothing, until an operator has brought the keyspace back."""
        if self.lost is not None:
            return
        log.critical(
            "Redis does not hold the keyspace %r with cluster id %s any more: %s. Nothing is served or "
            "written until it is restored; to begin anew with what is there, restart all brokers",
            self._commands.keyspace.prefix,
            self._commands.cluster_id,
            lost,
        )
        self.lost = lost
        self._suspend()

    def _take(self, assignment: Assignment) -> None:
        self._met = max(self._met, assignment.version)
        self.assignment = self._heard = assignment
        log.info(
            "version %d of the assignment: %s",
            assignment.version,
            ", ".join(f"node {each.node_id} at {each.host}:{each.port}" for each in assignment.brokers),
        )
        self._assigned()

    def _assigned(self) -> None:
        self._notify()
        if self._claiming is not None:
            self._claiming.cancel()
        self._claiming = once("claims", self._claim())

    def _notify(self) -> None:
        for listener in self._listeners:
            listener.follow_assignment()

    # Claims and settling

    async def _claim(self) -> None:
        """Fence whoever led our partitions before, idle ones too."""
        claims = [
            (topic, partition, epoch)
            for topic in self._catalogue.topics.values()
            for partition in range(topic.partitions)
            if (epoch := self.leader_epoch_of(topic.name, partition)) is not None
        ]
        for start in range(0, len(claims), _CLAIMS_AT_ONCE):
            some = claims[start : start + _CLAIMS_AT_ONCE]
            outcomes = await asyncio.gather(
                *(claim(self._commands, *each) for each in some), return_exceptions=True
            )
            for outcome in outcomes:
                if isinstance(outcome, FencedEpoch):
                    self.refresh_soon(outcome)
                elif isinstance(outcome, StorageError):
                    # The first append claims as well.
                    log.info("a partition could not be claimed: %s", outcome)
                elif isinstance(outcome, BaseException):
                    raise outcome

    def _settle_soon(self) -> None:
        wanted = self.assignment.version, self._catalogue.applied_version
        busy = self._settling is not None and not self._settling.done()
        if wanted != self._settled and not busy:
            self._settling = once("settling", self._settle(wanted))

    async def _settle(self, wanted: tuple[int, int]) -> None:
        try:
            for listener in self._listeners:
                await listener.complete_changes()
        except StorageError as error:
            causes.warn(error, "changes are not settled yet: %s", error)
            return
        self._settled = wanted
        if not self.alone:
            # Somebody may wait for that.
            self._wanted.set()
