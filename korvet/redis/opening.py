"""Connecting to Redis for the first time: one server, a cluster, or the primary that sentinels know; and
checks of the servers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.redis.address import DEFAULT_TIMEOUT_MS, SentinelAddress, parse_target
from korvet.redis.cluster import Cluster
from korvet.redis.errors import LinkLost, Loading, StorageError, StoreError
from korvet.redis.eviction import may_evict_ours
from korvet.redis.info import parse_info
from korvet.redis.library import ensure_library
from korvet.redis.link import RedisLink
from korvet.redis.sentinel import NamedPrimary, find_primary
from korvet.redis.server import WRITE_LINK, OneServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.redis.address import RedisAddress
    from korvet.redis.server import Router

log = logging.getLogger(__name__)

# Functions, entries-added and XINFO's first entry came with Redis 7.0; Valkey's first own release is 7.2.
_OLDEST_REDIS: Final = (7, 0, 0)
_OLDEST_VALKEY: Final = (7, 2, 0)
# How long to wait for a server that replies LOADING while it reads its files; large files take minutes.
_LOADING_TIMEOUT_S: Final = 120.0
_LOADING_POLL_S: Final = 0.1
# How long to wait for a primary that sentinels know: a failover may be in progress.
_FAILOVER_TIMEOUT_S: Final = 10.0
_FAILOVER_POLL_S: Final = 0.2


async def connect(url: str, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> Router:
    """Connect to a server, to all primaries of the server's cluster, or to the primary that sentinels know.
    Raises StoreError.

    `timeout_ms`: how long a connection may be silent while a reply is due.
    """
    target = parse_target(url)
    if isinstance(target, SentinelAddress):
        server = msgspec.structs.replace(target.server, timeout_ms=timeout_ms)
        return await _connect_by_name(msgspec.structs.replace(target, server=server))
    addresses = [msgspec.structs.replace(address, timeout_ms=timeout_ms) for address in target]
    first = await _first_link(addresses)
    try:
        info = await _info_when_loaded(first)
        if info.get("cluster_enabled") != "1":
            if len(addresses) > 1:
                raise StoreError(f"Redis at {first.address} is no cluster: name one server only")
            _check(info, first)
            if info.get("role") == "slave":
                raise StoreError(f"Redis at {first.address} is a replica: connect to its primary")
            return OneServer(first, await RedisLink.connect(first.address, "korvet-read"))
    except BaseException:
        await first.close()
        raise
    await first.close()
    cluster = await Cluster.open(addresses)
    try:
        for node in cluster.servers():
            _check(await _info_when_loaded(node.write), node.write)
    except BaseException:
        await cluster.close()
        raise
    return cluster


async def _connect_by_name(target: SentinelAddress) -> NamedPrimary:
    """Connect to the primary that sentinels know. Raises StoreError."""
    deadline_s = asyncio.get_running_loop().time() + _FAILOVER_TIMEOUT_S
    while True:
        try:
            first = await _primary_link(target)
            break
        except _NoPrimaryNow as error:
            if asyncio.get_running_loop().time() > deadline_s:
                raise StoreError(str(error)) from error
        await asyncio.sleep(_FAILOVER_POLL_S)
    try:
        return NamedPrimary(first, await RedisLink.connect(first.address, "korvet-read"), target)
    except BaseException:
        await first.close()
        raise


class _NoPrimaryNow(StoreError):
    """The server that the sentinels name cannot be used now, as during a failover."""


async def _primary_link(target: SentinelAddress) -> RedisLink:
    """A link to the primary, checked. Raises StoreError."""
    address = await find_primary(target)
    try:
        link = await _link_when_loaded(address)
    except StoreError as error:
        cause = error.__cause__
        if isinstance(cause, OSError | LinkLost) and not isinstance(cause, ssl.SSLError):
            raise _NoPrimaryNow(str(error)) from error
        raise
    try:
        info = await _info_when_loaded(link)
        _check(info, link)
        if info.get("role") == "slave":
            raise _NoPrimaryNow(f"{address.named} is a replica, although the sentinels name it the primary")
    except BaseException:
        await link.close()
        raise
    return link


async def load_libraries(router: Router) -> None:
    """Load the Function library into each server that has none or another version of it. Raises
    StorageError.
    """
    await asyncio.gather(*(ensure_library(server.write) for server in router.servers()))


async def _first_link(addresses: Sequence[RedisAddress]) -> RedisLink:
    """A link to the first server that can be reached."""
    for address in addresses[:-1]:
        try:
            return await _link_when_loaded(address)
        except StoreError as error:
            log.warning("%s", error)
    return await _link_when_loaded(addresses[-1])


async def _link_when_loaded(address: RedisAddress) -> RedisLink:
    """A link to a server, which may still read its files. Raises StoreError."""
    deadline_s = asyncio.get_running_loop().time() + _LOADING_TIMEOUT_S
    logged = False
    while True:
        try:
            return await RedisLink.connect(address, WRITE_LINK)
        except StoreError as error:
            if not isinstance(error.__cause__, Loading) or asyncio.get_running_loop().time() > deadline_s:
                raise
        if not logged:
            log.info("Redis at %s loads its data", address)
            logged = True
        await asyncio.sleep(_LOADING_POLL_S)


def _check(info: dict[str, str], link: RedisLink) -> None:
    """Raise StoreError if the server is too old or may evict our keys."""
    kind = "valkey" if "valkey_version" in info else "redis"
    text = info[f"{kind}_version"]
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
    where = f"Redis at {link.address}"
    if version < (_OLDEST_VALKEY if kind == "valkey" else _OLDEST_REDIS):
        raise StoreError(f"{where} is {kind} {text}: Redis 7.0 or Valkey 7.2, or newer, is needed")
    policy = info.get("maxmemory_policy", "noeviction")
    if may_evict_ours(policy):
        raise StoreError(
            f"{where} may evict our keys (maxmemory-policy {policy}): set it to noeviction or volatile-*"
        )


async def _info_when_loaded(link: RedisLink) -> dict[str, str]:
    """The fields of INFO, as soon as the server has read its files. Raises StoreError."""
    deadline_s = asyncio.get_running_loop().time() + _LOADING_TIMEOUT_S
    while True:
        try:
            info = parse_info(await link.call("INFO"))
            if info.get("loading", "0") == "0":
                return info
        except Loading:
            pass
        except LinkLost as lost:
            raise StoreError(f"Redis at {link.address}: {lost}") from lost
        except StorageError as fault:
            raise StoreError(f"Redis at {link.address} refuses INFO: {fault}") from fault
        if asyncio.get_running_loop().time() > deadline_s:
            raise StoreError(f"Redis at {link.address} still loads its data after {_LOADING_TIMEOUT_S:.0f} s")
        await asyncio.sleep(_LOADING_POLL_S)
