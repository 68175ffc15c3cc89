"""What follows from a change of the assignment or of the topic catalogue: listeners, claims, completion."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from korvet.causes import Causes
from korvet.cluster.claims import claim_all
from korvet.cluster.lease import NO_VERSION
from korvet.redis.errors import StorageError
from korvet.supervisor import end, once

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from korvet.cluster.catalogue import Catalogue
    from korvet.cluster.leadership import Leadership
    from korvet.redis.commands import Commands
    from korvet.redis.errors import FencedEpoch

causes = Causes(logging.getLogger(__name__))


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


class Changes:
    """Carries out changes, one after the other."""

    def __init__(
        self,
        commands: Commands,
        catalogue: Catalogue,
        leadership: Leadership,
        renew: Callable[[FencedEpoch | None], None],
    ) -> None:
        """`renew(refusal)` renews the lease at once; see Membership.refresh_soon."""
        self._commands = commands
        self._catalogue = catalogue
        self._leadership = leadership
        self._renew = renew
        self._listeners: list[ChangeListener] = []
        self.acknowledged = (NO_VERSION, NO_VERSION)
        """The versions of the assignment and of the catalogue whose changes are complete."""
        self._completing: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[None] | None = None

    def attach(self, listener: ChangeListener) -> None:
        """Notify `listener` of changes, after the listeners that are attached already."""
        self._listeners.append(listener)

    def notify(self) -> None:
        """The assignment has changed, or this broker leads nothing any more."""
        for listener in self._listeners:
            listener.follow_assignment()

    def claim(self) -> None:
        """Claim all partitions that this broker leads, idle ones too. Redis then refuses appends of earlier
        leaders.
        """
        if self._claiming is not None:
            self._claiming.cancel()
        self._claiming = once("claims", self._claim())

    def complete_soon(self) -> None:
        """Complete the changes up to the newest known versions, unless that is done or in progress."""
        wanted = self._leadership.assignment.version, self._catalogue.applied_version
        busy = self._completing is not None and not self._completing.done()
        if wanted != self.acknowledged and not busy:
            self._completing = once("completing changes", self._complete(wanted))

    async def close(self) -> None:
        """End what is in progress."""
        await end(self._completing, self._claiming)

    async def _claim(self) -> None:
        claims = [
            (topic, partition, epoch)
            for topic in self._catalogue.topics.values()
            for partition in range(topic.partitions)
            if (epoch := self._leadership.leader_epoch_of(topic.name, partition)) is not None
        ]
        await claim_all(self._commands, claims, self._renew)

    async def _complete(self, wanted: tuple[int, int]) -> None:
        try:
            for listener in self._listeners:
                await listener.complete_changes()
        except StorageError as error:
            causes.warn(error, "changes are not complete yet: %s", error, work="changes")
            return
        causes.ended("changes")
        self.acknowledged = wanted
        if not self._leadership.alone:
            # Another broker may wait for this acknowledgement.
            self._renew(None)
