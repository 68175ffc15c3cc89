"""What a server reports about its persistence, memory, and replicas (INFO, CONFIG GET, CLUSTER NODES)."""

from __future__ import annotations

import asyncio
import math
import re
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.redis.errors import LinkLost, StorageError, StoreError
from korvet.redis.eviction import may_evict_ours
from korvet.redis.info import parse_info, used_memory
from korvet.redis.replication import Replication, parse_replication
from korvet.redis.slots import count_replicas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.redis.link import RedisLink

_CONFIGS: Final = (
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "stop-writes-on-bgsave-error",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "cluster-node-timeout",
    "cluster-replica-validity-factor",
    "repl-ping-replica-period",
    "repl-timeout",
)
_REPLY_S: Final = 2.0
# The first version of Redis with the command WAITAOF. All versions of Valkey have the command.
_FIRST_WITH_WAITAOF: Final = (7, 2)
# With appendfsync everysec, WAITAOF may return before the flush. Redis 8.0 has the remedy, redis/redis#13793;
# Valkey did not have it up to 9.1.2.
_FIRST_EARLY: Final = (7, 4)
_FIRST_EARLY_NO_MORE: Final = (8, 0)


class ServerFacts(msgspec.Struct, frozen=True):
    """A server's facts. A config is None if the user may not read configs."""

    append_only: bool
    append_only_begins: bool
    """Whether the append-only file may be the first one, and incomplete: a restart then loads nothing.

    This is the case after appendonly was set to yes, until a rewrite has ended. A new server that started
    with appendonly looks the same during its first rewrite.
    """
    append_only_fails: bool
    """Whether the last write to the append-only file failed."""
    rewrites: bool
    """Whether a rewrite of the append-only file runs, or is scheduled."""
    rewrite_fails: bool
    """Whether the last rewrite of the append-only file failed."""
    appendfsync: str | None
    no_appendfsync_on_rewrite: bool
    """Whether the append-only file is not flushed while the server rewrites it, or takes a snapshot."""
    save: str | None
    """The schedule of snapshots; empty if there are none."""
    unsaved_changes: int
    """Changes since the last snapshot."""
    snapshot_fails: bool
    """Whether the last snapshot failed."""
    stop_writes_on_bgsave_error: bool
    maxmemory: int
    maxmemory_policy: str
    evicted_keys: int
    replication: Replication
    good_replicas: int | None
    """The replicas that count for min-replicas-to-write; None if the server needs none, or does not say."""
    min_replicas_to_write: int | None
    min_replicas_max_lag_s: int | None
    cluster: bool
    node_timeout_s: float | None
    replica_validity_s: float | None
    """How long a replica may have received nothing and still take over in a cluster; infinite without
    limit.
    """
    named_replicas: int
    """How many replicas the cluster names, those that it does not reach too; 0 if it names none, or does not
    say.
    """
    has_waitaof: bool
    """Whether the server can wait for flushes of append-only files; true if its version is unknown."""
    awaits_everysec: bool
    """Whether it certainly waits for the flush with appendfsync everysec, too. Other servers wait until the
    file is written.
    """
    used_memory: int = 0
    """The bytes that count for maxmemory."""
    version: str = ""
    """The server's kind and version, `Valkey 9.1.2`."""

    @property
    def evicts_ours(self) -> bool:
        """Whether the server may evict our keys."""
        return may_evict_ours(self.maxmemory_policy)


async def ask(link: RedisLink) -> ServerFacts:
    """Ask a server for its facts. Raises LinkLost, and StorageError if the server refuses INFO."""
    info: bytes = await link.call("INFO")
    try:
        flat = await link.call("CONFIG", "GET", *_CONFIGS)
    except LinkLost:
        raise
    except StorageError:
        # Users are often not allowed to read configs: the facts then say what is unknown.
        flat = []
    configs = dict(zip(flat[::2], flat[1::2], strict=True))
    named = await named_replicas(link, info)
    return facts_of(info, {name.decode(): value.decode() for name, value in configs.items()}, named)


async def reported(link: RedisLink) -> ServerFacts | StorageError:
    """A server's facts, or why it does not report them within two seconds."""
    try:
        async with asyncio.timeout(_REPLY_S):
            return await ask(link)
    except StorageError as error:
        return error
    except TimeoutError:
        return StoreError(f"it does not answer within {_REPLY_S:.0f} s")


async def named_replicas(link: RedisLink, info: bytes = b"") -> int:
    """How many replicas of a server its cluster names, including those that the server does not reach; 0
    outside of clusters, and if the server refuses to answer. `info`: the server's reply to INFO, if it is
    known. Raises LinkLost.
    """
    try:
        info = info or await link.call("INFO", "cluster")
        if parse_info(info).get("cluster_enabled") != "1":
            return 0
        return count_replicas(await link.call("CLUSTER", "NODES"))
    except LinkLost:
        raise
    except StorageError:
        return 0


def facts_of(reply: bytes, configs: Mapping[str, str], named_replicas: int = 0) -> ServerFacts:
    """The facts from the reply to INFO, from configs, which may be empty, and from CLUSTER NODES."""
    info = parse_info(reply)
    cluster, valkey = info.get("cluster_enabled") == "1", info.get("valkey_version")
    redis_version = version_numbers(info.get("redis_version", ""))
    timeout_ms = _whole(configs, "cluster-node-timeout") if cluster else None
    timeout_s = None if timeout_ms is None else timeout_ms / 1000
    factor = _whole(configs, "cluster-replica-validity-factor")
    # A replica counts from when it has noticed that it is cut off: repl-timeout after the last data.
    more_s = sum(_whole(configs, f"repl-{name}") or 0 for name in ("ping-replica-period", "timeout"))
    validity_s = None
    if timeout_s is not None and factor is not None:
        validity_s = timeout_s * factor + more_s if factor else math.inf
    needed, max_lag_s = (_whole(configs, f"min-replicas-{name}") for name in ("to-write", "max-lag"))
    good = info.get("min_slaves_good_slaves")
    if needed is None and good is None and "connected_slaves" in info:
        # Servers count good replicas if both settings are above 0.
        needed = 0
    append_only = info.get("aof_enabled") == "1"
    rewrites = "1" in (info.get("aof_rewrite_in_progress"), info.get("aof_rewrite_scheduled"))
    return ServerFacts(
        append_only=append_only,
        # A first rewrite that fails is scheduled again.
        append_only_begins=append_only and rewrites and info.get("aof_base_size") == "0",
        append_only_fails=info.get("aof_last_write_status", "ok") != "ok",
        rewrites=rewrites,
        rewrite_fails=info.get("aof_last_bgrewrite_status", "ok") != "ok",
        appendfsync=configs.get("appendfsync"),
        no_appendfsync_on_rewrite=configs.get("no-appendfsync-on-rewrite") == "yes",
        save=configs.get("save"),
        unsaved_changes=int(info.get("rdb_changes_since_last_save", "0")),
        snapshot_fails=info.get("rdb_last_bgsave_status", "ok") != "ok",
        stop_writes_on_bgsave_error=configs.get("stop-writes-on-bgsave-error", "yes") == "yes",
        maxmemory=int(info.get("maxmemory", "0")),
        maxmemory_policy=info.get("maxmemory_policy", "noeviction"),
        evicted_keys=int(info.get("evicted_keys", "0")),
        replication=parse_replication(reply),
        good_replicas=None if good is None else int(good),
        # A largest lag of 0 switches the limit off.
        min_replicas_to_write=0 if max_lag_s == 0 else needed,
        min_replicas_max_lag_s=max_lag_s,
        cluster=cluster,
        node_timeout_s=timeout_s,
        replica_validity_s=validity_s,
        named_replicas=named_replicas,
        has_waitaof=valkey is not None or redis_version is None or redis_version >= _FIRST_WITH_WAITAOF,
        awaits_everysec=valkey is None and redis_version is not None and _awaits_everysec(redis_version),
        used_memory=used_memory(info),
        version=f"Valkey {valkey}" if valkey else f"Redis {info.get('redis_version', '')}",
    )


def version_numbers(version: str) -> tuple[int, int] | None:
    """The first two numbers of a server's version; None if the version begins with no number."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found and (int(found[1]), int(found[2]))


def _awaits_everysec(redis_version: tuple[int, int]) -> bool:
    if redis_version < _FIRST_EARLY:
        return redis_version >= _FIRST_WITH_WAITAOF
    return redis_version >= _FIRST_EARLY_NO_MORE


def _whole(configs: Mapping[str, str], name: str) -> int | None:
    value = configs.get(name)
    return None if value is None else int(value)
