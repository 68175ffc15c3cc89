"""Probes of the servers: whether each takes writes, and has the replicas that topics ask for. So a broker
knows within seconds what begins and ends to be refused, even if no client writes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.log.release import level_of
from korvet.records.kernel import pack_command
from korvet.redis.clock import steady_s
from korvet.redis.errors import AllowanceSpent, LinkLost, OutOfMemory, StorageError, domain_error
from korvet.redis.functions import named
from korvet.redis.refusals import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.cluster.catalogue import Catalogue
    from korvet.log.resources import LogResources
    from korvet.redis.barrier import Level
    from korvet.redis.server import Router, Server

# Interval of probes; each takes a server some microseconds.
_PERIOD_S: Final = 1.0
# The same while something is refused: its end matters to clients.
_REFUSED_PERIOD_S: Final = 0.25


class WriteProbe:
    """Feeds a broker's refusals with what its servers answer to probes."""

    def __init__(self, router: Router, catalogue: Catalogue, resources: LogResources) -> None:
        self._router = router
        self._catalogue = catalogue
        self._resources = resources
        self._refusals = resources.refusals
        # The servers that have not answered yet: a silent one is asked once.
        self._asked: set[Server] = set()
        self._levels: Mapping[Level, int] = {}
        self._levels_of: tuple[int, int, Level] | None = None

    async def run(self) -> NoReturn:
        """Probe all servers until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_REFUSED_PERIOD_S if self._refusals else _PERIOD_S)

    def look(self) -> None:
        """Probe all servers once; the answers arrive later. Function korvet_probe."""
        servers = self._router.servers()
        self._refusals.keep_only({str(server.address) for server in servers}, steady_s())
        for server in servers:
            self._look_at_replicas(server)
            if server.read.found_replica or server.write.found_replica:
                reason = "it is a replica now, and no other server is known as the primary"
                self._refusals.refuse(Cause.DEMOTED, reason, steady_s(), str(server.address))
            elif server not in self._asked:
                self._ask(server, "korvet_probe")

    def _ask(self, server: Server, function: str) -> None:
        place = str(server.address)

        def answered(reply: memoryview | StorageError) -> None:
            self._asked.discard(server)
            error = domain_error(reply) if isinstance(reply, StorageError) else None
            self._note(server, place, function, error)

        self._asked.add(server)
        # On the link for reads: the order of writes does not matter here.
        server.read_functions.send(pack_command("FCALL", named(function), 0), answered)

    def _note(self, server: Server, place: str, function: str, error: StorageError | None) -> None:
        now_s = steady_s()
        if isinstance(error, LinkLost):
            return
        if function == "korvet_probe_allowance":
            if error is None:
                self._refusals.accept(Cause.ALLOWANCE, now_s, place)
        elif error is None:
            self._refusals.accept_writes(now_s, place)
        elif isinstance(error, OutOfMemory) and not isinstance(error, AllowanceSpent):
            self._ask(server, "korvet_probe_allowance")
        if error is not None:
            self._refusals.refuse_for(error, now_s, place)

    def _look_at_replicas(self, server: Server) -> None:
        """Whether a server lacks replicas that topics ask for."""
        levels, default = self._current_levels(), self._resources.level
        refused = {level: found for level in levels if (found := server.barriers.refusal(level)) is not None}
        place, now_s = str(server.address), steady_s()
        if not refused:
            # None: unknown, until the server reports again; or for ever, if the user may not run INFO.
            if server.replication is not None or not server.history.id:
                self._refusals.accept(Cause.ACKS_ALL, now_s, place)
            return
        # The broker's own level, as it concerns most topics; else that of the most topics.
        level = default if default in refused else max(refused, key=lambda each: levels[each])
        count = sum(levels[each] for each in refused)
        reason = f"{refused[level]} ({count} of {sum(levels.values())} topics)"
        self._refusals.refuse(Cause.ACKS_ALL, reason, now_s, place, partial=default not in refused)

    def _current_levels(self) -> Mapping[Level, int]:
        """What the topics ask for, with how many topics do."""
        default = self._resources.level
        key = (self._catalogue.applied_version, self._catalogue.local_change, default)
        if key != self._levels_of:
            topics = self._catalogue.topics.values()
            self._levels = Counter(level_of(topic, default) for topic in topics)
            self._levels_of = key
        return self._levels
