"""Watching servers for the eviction of keys, which loses records and commits without an error."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.redis.address import RedisAddress

log = logging.getLogger(__name__)


def may_evict_ours(policy: str) -> bool:
    """Whether a maxmemory-policy lets the server evict keys without an expiry; ours have none."""
    return policy.startswith("allkeys-")


class EvictionWatch:
    """Logs an error when a server is configured to evict our keys, and when it has evicted keys."""

    def __init__(self) -> None:
        # Policy and number of evicted keys at the last look.
        self._known: dict[RedisAddress, tuple[str, int]] = {}

    def look(self, address: RedisAddress, info: Mapping[str, str]) -> None:
        """Compare what a server reports (INFO memory, stats) with its last report."""
        policy, evicted = info.get("maxmemory_policy", ""), int(info.get("evicted_keys", "0"))
        before_policy, before_evicted = self._known.get(address, ("", evicted))
        self._known[address] = policy, evicted
        if policy != before_policy and may_evict_ours(policy):
            log.error(
                "Redis at %s may evict our keys, which loses records and commits: its maxmemory-policy is %s "
                "now; set it to noeviction",
                address,
                policy,
            )
        elif policy != before_policy and may_evict_ours(before_policy):
            log.warning("Redis at %s no longer evicts our keys: its policy is %s", address, policy)
        # Volatile policies evict keys with an expiry only, and ours have none.
        if evicted > before_evicted and not policy.startswith("volatile-"):
            log.error(
                "Redis at %s has evicted %d keys: records and commits may be lost; see `korvet doctor`",
                address,
                evicted - before_evicted,
            )
