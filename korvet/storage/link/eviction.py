"""Watching servers for the eviction of keys, which loses records and commits without an error."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.storage.errors import StorageError
from korvet.storage.link.info import parse_info

if TYPE_CHECKING:
    from korvet.storage.link.address import RedisAddress
    from korvet.storage.link.server import Router, Server

# Interval of checks. CONFIG SET takes effect at once, but a server evicts only at maxmemory.
_PERIOD_S: Final = 5.0

log = logging.getLogger(__name__)


def may_evict_ours(policy: str) -> bool:
    """Whether a maxmemory-policy lets the server evict keys without an expiry; ours have none."""
    return policy.startswith("allkeys-")


class EvictionWatch:
    """Logs an error when a server is configured to evict our keys, and when it has evicted keys."""

    def __init__(self, router: Router) -> None:
        self._router = router
        # Policy and number of evicted keys at the last check.
        self._known: dict[RedisAddress, tuple[str, int]] = {}

    async def run(self) -> NoReturn:
        """Check all servers until cancelled (INFO memory, stats)."""
        while True:
            for server in self._router.servers():
                try:
                    await self._check(server)
                except StorageError as error:
                    log.debug("Redis at %s does not report whether it evicts keys: %s", server.address, error)
            await asyncio.sleep(_PERIOD_S)

    async def _check(self, server: Server) -> None:
        info = parse_info(await server.read.call("INFO", "memory", "stats"))
        policy, evicted = info.get("maxmemory_policy", ""), int(info.get("evicted_keys", "0"))
        before_policy, before_evicted = self._known.get(server.address, ("", evicted))
        self._known[server.address] = policy, evicted
        if policy != before_policy and may_evict_ours(policy):
            log.error(
                "Redis at %s may evict our keys, which loses records and commits: its maxmemory-policy is %s "
                "now; set it to noeviction",
                server.address,
                policy,
            )
        elif policy != before_policy and may_evict_ours(before_policy):
            log.warning("Redis at %s no longer evicts our keys: its policy is %s", server.address, policy)
        # Volatile policies evict keys with an expiry only, and ours have none.
        if evicted > before_evicted and not policy.startswith("volatile-"):
            log.error(
                "Redis at %s has evicted %d keys: records and commits may be lost; see `korvet doctor`",
                server.address,
                evicted - before_evicted,
            )
