"""The connections to Redis and the newest readings of the servers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType, Samples, label_text
from korvet.redis.barrier import COUNTS
from korvet.redis.clock import steady_s
from korvet.redis.eviction import may_evict_ours
from korvet.redis.link import LINKS, LinkCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from korvet.redis.server import Router
    from korvet.redis.server_watch import Reading, ServerWatch

_UP: Final = declare("korvet_redis_up", "1 if all links to the server accept commands.", "server")
_SILENT: Final = declare("korvet_redis_silent", "1 if the server has not answered for some time.", "server")
_MODULE: Final = declare("korvet_redis_module_used", "1 if appends use the server module.", "server")
_REPLICAS: Final = declare("korvet_redis_replicas", "Replicas of the server.", "server")
_IN_SYNC: Final = declare("korvet_redis_replicas_in_sync", "Replicas that follow the server.", "server")
_REPLICA_LAG_BYTES: Final = declare(
    "korvet_redis_replica_lag_bytes",
    "Bytes of the replication stream that the replica has not confirmed.",
    "server",
    "replica",
)
_REPLICA_LAG_SECONDS: Final = declare(
    "korvet_redis_replica_lag_seconds",
    "Time since the replica's last report. The server disconnects a replica after repl-timeout (60 s).",
    "server",
    "replica",
)
_READ_AGE: Final = declare(
    "korvet_redis_info_age_seconds",
    "Age of the newest INFO, from which the following metrics of the server are.",
    "server",
)
_VERSION: Final = declare(
    "korvet_redis_server_info",
    "Program and version of the server.",
    "server",
    "program",
    "version",
    kind=MetricType.INFO,
)
_POLICY: Final = declare(
    "korvet_redis_evicts_keys", "1 if the maxmemory-policy lets the server evict topics and groups.", "server"
)
_PERSISTENCE_OK: Final = declare(
    "korvet_redis_persistence_ok",
    "1 if the last write of this kind succeeded: aof (append-only file), aof_rewrite, rdb (snapshot).",
    "server",
    "kind",
)
_BY_FIELD: Final = {
    "used_memory": declare(
        "korvet_redis_memory_used_bytes", "Memory that the server has allocated.", "server"
    ),
    "used_memory_rss": declare(
        "korvet_redis_memory_resident_bytes", "Resident memory of the server.", "server"
    ),
    "used_memory_peak": declare(
        "korvet_redis_memory_peak_bytes", "Largest memory that the server has allocated.", "server"
    ),
    "maxmemory": declare("korvet_redis_memory_max_bytes", "maxmemory; 0 without a limit.", "server"),
    "mem_fragmentation_ratio": declare(
        "korvet_redis_memory_fragmentation_ratio", "Resident memory by allocated memory.", "server"
    ),
    "connected_clients": declare("korvet_redis_clients", "Connections of all clients.", "server"),
    "blocked_clients": declare(
        "korvet_redis_blocked_clients", "Clients that wait in a blocking command.", "server"
    ),
    "total_commands_processed": declare(
        "korvet_redis_commands_total",
        "Commands that the server has executed.",
        "server",
        kind=MetricType.COUNTER,
    ),
    "evicted_keys": declare(
        "korvet_redis_evicted_keys_total",
        "Keys evicted because of maxmemory.",
        "server",
        kind=MetricType.COUNTER,
    ),
    "expired_keys": declare(
        "korvet_redis_expired_keys_total", "Keys that have expired.", "server", kind=MetricType.COUNTER
    ),
    "rejected_connections": declare(
        "korvet_redis_rejected_connections_total",
        "Connections beyond maxclients.",
        "server",
        kind=MetricType.COUNTER,
    ),
    "total_error_replies": declare(
        "korvet_redis_error_replies_total", "Error replies to all clients.", "server", kind=MetricType.COUNTER
    ),
    "latest_fork_usec": declare(
        "korvet_redis_last_fork_seconds",
        "Duration of the last fork, during which the server answers nobody.",
        "server",
    ),
    "aof_enabled": declare("korvet_redis_aof_enabled", "1 with an append-only file.", "server"),
    "aof_current_size": declare("korvet_redis_aof_bytes", "Size of the append-only file.", "server"),
    "aof_base_size": declare(
        "korvet_redis_aof_base_bytes", "Size of the append-only file after its last rewrite.", "server"
    ),
    "aof_rewrite_in_progress": declare(
        "korvet_redis_aof_rewriting", "1 while the append-only file is rewritten.", "server"
    ),
    "aof_delayed_fsync": declare(
        "korvet_redis_aof_delayed_fsync_total",
        "Writes of the append-only file that waited for a flush in progress.",
        "server",
        kind=MetricType.COUNTER,
    ),
    "rdb_bgsave_in_progress": declare("korvet_redis_rdb_saving", "1 while a snapshot is written.", "server"),
    "rdb_changes_since_last_save": declare(
        "korvet_redis_rdb_unsaved_changes", "Changes since the last snapshot.", "server"
    ),
    "rdb_last_save_time": declare(
        "korvet_redis_rdb_last_save_timestamp_seconds", "Time of the last snapshot.", "server"
    ),
    "loading": declare("korvet_redis_loading", "1 while the server reads its files.", "server"),
    "uptime_in_seconds": declare("korvet_redis_uptime_seconds", "Time since the server's start.", "server"),
}
"""The families of fields of INFO. A server may lack some."""
# The factors to the unit of the family, if it is another one than the field has.
_FACTORS: Final = {"latest_fork_usec": 1e-6}
_KEYS: Final = declare("korvet_redis_keys", "Keys in all databases of the server.", "server")
_EXPIRING: Final = declare(
    "korvet_redis_expiring_keys", "Of these, keys with an expiry; none of korvet's logs.", "server"
)

# Of INFO keyspace: `db0` is `keys=5,expires=0,avg_ttl=0`.
_DATABASE: Final = re.compile(r"db\d+")
_PERSISTENCE: Final = (
    ("aof", "aof_last_write_status"),
    ("aof_rewrite", "aof_last_bgrewrite_status"),
    ("rdb", "rdb_last_bgsave_status"),
)


def collect_links() -> Iterator[Samples]:
    """See Collector. What is counted of the process's links."""
    yield from LinkCounts.samples_of(
        [(label_text([("link", kind)]), counts) for kind, counts in sorted(LINKS.items())]
    )
    yield from COUNTS.samples()


def collect_servers(router: Router) -> Iterator[Samples]:
    """See Collector. What the broker knows of the servers and their replicas."""
    servers = sorted(router.servers(), key=lambda server: str(server.address))
    names = {server: str(server.address) for server in servers}
    texts = {server: _UP.text(name) for server, name in names.items()}
    yield Samples(_UP, [(texts[server], int(server.connected)) for server in servers])
    yield Samples(_SILENT, [(texts[server], int(server.silent)) for server in servers])
    yield Samples(_MODULE, [(texts[server], int(server.module.used)) for server in servers])
    known = [(server, server.replication) for server in servers if server.replication is not None]
    yield Samples(_REPLICAS, [(texts[server], found.attached) for server, found in known])
    yield Samples(_IN_SYNC, [(texts[server], found.in_sync) for server, found in known])
    # If several replicas have one address, the worst one counts.
    lag_bytes: dict[str, int] = {}
    lag_s: dict[str, int] = {}
    for server, found in known:
        for each in found.standing:
            text = _REPLICA_LAG_BYTES.text(names[server], f"{each.host}:{each.port}")
            lag_bytes[text] = max(found.offset - each.offset, lag_bytes.get(text, 0))
            lag_s[text] = max(each.lag_s, lag_s.get(text, each.lag_s))
    yield Samples(_REPLICA_LAG_BYTES, list(lag_bytes.items()))
    yield Samples(_REPLICA_LAG_SECONDS, list(lag_s.items()))


def collect_info(watch: ServerWatch, now_s: Callable[[], float] = steady_s) -> Iterator[Samples]:
    """See Collector. What the servers reported at the last reading (INFO)."""
    readings = sorted(watch.readings.items())
    texts = {name: _KEYS.text(name) for name, _ in readings}
    now = now_s()
    yield Samples(_READ_AGE, [(texts[name], max(now - each.at_s, 0.0)) for name, each in readings])
    yield Samples(_VERSION, [(_version(name, each.info), 1) for name, each in readings])
    policies = [
        (texts[name], int(may_evict_ours(policy)))
        for name, each in readings
        if (policy := each.info.get("maxmemory_policy")) is not None
    ]
    yield Samples(_POLICY, policies)
    written = [
        (_PERSISTENCE_OK.text(name, kind), int(each.info[field] == "ok"))
        for name, each in readings
        for kind, field in _PERSISTENCE
        if field in each.info
    ]
    yield Samples(_PERSISTENCE_OK, written)
    for field, family in _BY_FIELD.items():
        factor = _FACTORS.get(field, 1)
        rows = [
            (texts[name], value * factor)
            for name, each in readings
            if (value := _number(each.info.get(field))) is not None
        ]
        yield Samples(family, rows)
    for family, key in ((_KEYS, "keys"), (_EXPIRING, "expires")):
        yield Samples(family, [(texts[name], _keyspace(each, key)) for name, each in readings])


def _version(name: str, info: Mapping[str, str]) -> str:
    program = "valkey" if "valkey_version" in info else "redis"
    return _VERSION.text(name, program, info.get(f"{program}_version", ""))


def _number(text: str | None) -> int | float | None:
    """The number in a field; None without one."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def _keyspace(reading: Reading, key: str) -> int:
    """The sum of one number of all databases."""
    return sum(
        int(dict(pair.split("=", 1) for pair in value.split(",")).get(key, "0"))
        for name, value in reading.info.items()
        if _DATABASE.fullmatch(name)
    )
