"""The connections to Redis, and what the servers report about themselves."""

from __future__ import annotations

from typing import Final

from korvet.metrics.family import Family, Kind

_SERVER: Final = ("server",)

ROUND_TRIPS: Final = Family(
    "korvet_redis_round_trip_seconds",
    Kind.HISTOGRAM,
    "Time from a command, or several with one answer, to its last reply, in seconds, by kind of link, of "
    "every eighth command. The barrier's commands wait for replicas.",
    ("link",),
)
CONNECTED: Final = Family(
    "korvet_redis_connections_total",
    Kind.COUNTER,
    "Connections that were set up, by kind of link.",
    ("link",),
)
LOST: Final = Family(
    "korvet_redis_connections_lost_total", Kind.COUNTER, "Connections that broke, by kind of link.", ("link",)
)
BARRIER: Final = Family(
    "korvet_barrier_wait_seconds",
    Kind.HISTOGRAM,
    "How long logs waited for replicas, or disks, to confirm what was appended, in seconds.",
)
UP: Final = Family("korvet_redis_up", Kind.GAUGE, "1 if all links to the server accept commands.", _SERVER)
SILENT: Final = Family(
    "korvet_redis_silent", Kind.GAUGE, "1 if the server has not answered for some time.", _SERVER
)
MODULE: Final = Family("korvet_redis_module_used", Kind.GAUGE, "1 if appends use the server module.", _SERVER)
REPLICAS: Final = Family("korvet_redis_replicas", Kind.GAUGE, "Replicas of the server.", _SERVER)
IN_SYNC: Final = Family(
    "korvet_redis_replicas_in_sync", Kind.GAUGE, "Replicas that follow the server.", _SERVER
)
REPLICA_LAG_BYTES: Final = Family(
    "korvet_redis_replica_lag_bytes",
    Kind.GAUGE,
    "Bytes of the replication stream that the replica has not confirmed.",
    ("server", "replica"),
)
REPLICA_LAG_SECONDS: Final = Family(
    "korvet_redis_replica_lag_seconds",
    Kind.GAUGE,
    "Time since the replica's last report. The server disconnects a replica after repl-timeout (60 s).",
    ("server", "replica"),
)
READ_AGE: Final = Family(
    "korvet_redis_info_age_seconds",
    Kind.GAUGE,
    "Age of the newest INFO, from which the following metrics of the server are.",
    _SERVER,
)
VERSION: Final = Family(
    "korvet_redis_server_info",
    Kind.INFO,
    "Program and version of the server.",
    ("server", "program", "version"),
)
POLICY: Final = Family(
    "korvet_redis_evicts_keys",
    Kind.GAUGE,
    "1 if the maxmemory-policy lets the server evict topics and groups.",
    _SERVER,
)
PERSISTENCE_OK: Final = Family(
    "korvet_redis_persistence_ok",
    Kind.GAUGE,
    "1 if the last write of this kind succeeded: aof (append-only file), aof_rewrite, rdb (snapshot).",
    ("server", "kind"),
)

_MEMORY_USED: Final = Family(
    "korvet_redis_memory_used_bytes", Kind.GAUGE, "Memory that the server has allocated.", _SERVER
)
_MEMORY_RSS: Final = Family(
    "korvet_redis_memory_resident_bytes", Kind.GAUGE, "Resident memory of the server.", _SERVER
)
_MEMORY_PEAK: Final = Family(
    "korvet_redis_memory_peak_bytes", Kind.GAUGE, "Largest memory that the server has allocated.", _SERVER
)
_MEMORY_MAX: Final = Family(
    "korvet_redis_memory_max_bytes", Kind.GAUGE, "maxmemory; 0 without a limit.", _SERVER
)
_FRAGMENTATION: Final = Family(
    "korvet_redis_memory_fragmentation_ratio", Kind.GAUGE, "Resident memory by allocated memory.", _SERVER
)
_CLIENTS: Final = Family("korvet_redis_clients", Kind.GAUGE, "Connections of all clients.", _SERVER)
_BLOCKED: Final = Family(
    "korvet_redis_blocked_clients", Kind.GAUGE, "Clients that wait in a blocking command.", _SERVER
)
_COMMANDS: Final = Family(
    "korvet_redis_commands_total", Kind.COUNTER, "Commands that the server has executed.", _SERVER
)
_EVICTED: Final = Family(
    "korvet_redis_evicted_keys_total", Kind.COUNTER, "Keys evicted because of maxmemory.", _SERVER
)
_EXPIRED: Final = Family("korvet_redis_expired_keys_total", Kind.COUNTER, "Keys that have expired.", _SERVER)
_REJECTED: Final = Family(
    "korvet_redis_rejected_connections_total", Kind.COUNTER, "Connections beyond maxclients.", _SERVER
)
_ERRORS: Final = Family(
    "korvet_redis_error_replies_total", Kind.COUNTER, "Error replies to all clients.", _SERVER
)
_FORK: Final = Family(
    "korvet_redis_last_fork_seconds",
    Kind.GAUGE,
    "Duration of the last fork, during which the server answers nobody.",
    _SERVER,
)
_AOF: Final = Family("korvet_redis_aof_enabled", Kind.GAUGE, "1 with an append-only file.", _SERVER)
_AOF_SIZE: Final = Family("korvet_redis_aof_bytes", Kind.GAUGE, "Size of the append-only file.", _SERVER)
_AOF_BASE: Final = Family(
    "korvet_redis_aof_base_bytes", Kind.GAUGE, "Size of the append-only file after its last rewrite.", _SERVER
)
_AOF_REWRITING: Final = Family(
    "korvet_redis_aof_rewriting", Kind.GAUGE, "1 while the append-only file is rewritten.", _SERVER
)
_AOF_DELAYED: Final = Family(
    "korvet_redis_aof_delayed_fsync_total",
    Kind.COUNTER,
    "Writes of the append-only file that waited for a flush in progress.",
    _SERVER,
)
_RDB_SAVING: Final = Family("korvet_redis_rdb_saving", Kind.GAUGE, "1 while a snapshot is written.", _SERVER)
_RDB_CHANGES: Final = Family(
    "korvet_redis_rdb_unsaved_changes", Kind.GAUGE, "Changes since the last snapshot.", _SERVER
)
_RDB_LAST: Final = Family(
    "korvet_redis_rdb_last_save_timestamp_seconds", Kind.GAUGE, "Time of the last snapshot.", _SERVER
)
_LOADING: Final = Family("korvet_redis_loading", Kind.GAUGE, "1 while the server reads its files.", _SERVER)
_UPTIME: Final = Family("korvet_redis_uptime_seconds", Kind.GAUGE, "Time since the server's start.", _SERVER)
KEYS: Final = Family("korvet_redis_keys", Kind.GAUGE, "Keys in all databases of the server.", _SERVER)
EXPIRING: Final = Family(
    "korvet_redis_expiring_keys", Kind.GAUGE, "Of these, keys with an expiry; none of korvet's logs.", _SERVER
)

BY_FIELD: Final = (
    ("used_memory", _MEMORY_USED, 1),
    ("used_memory_rss", _MEMORY_RSS, 1),
    ("used_memory_peak", _MEMORY_PEAK, 1),
    ("maxmemory", _MEMORY_MAX, 1),
    ("mem_fragmentation_ratio", _FRAGMENTATION, 1),
    ("connected_clients", _CLIENTS, 1),
    ("blocked_clients", _BLOCKED, 1),
    ("total_commands_processed", _COMMANDS, 1),
    ("evicted_keys", _EVICTED, 1),
    ("expired_keys", _EXPIRED, 1),
    ("rejected_connections", _REJECTED, 1),
    ("total_error_replies", _ERRORS, 1),
    ("latest_fork_usec", _FORK, 1e-6),
    ("aof_enabled", _AOF, 1),
    ("aof_current_size", _AOF_SIZE, 1),
    ("aof_base_size", _AOF_BASE, 1),
    ("aof_rewrite_in_progress", _AOF_REWRITING, 1),
    ("aof_delayed_fsync", _AOF_DELAYED, 1),
    ("rdb_bgsave_in_progress", _RDB_SAVING, 1),
    ("rdb_changes_since_last_save", _RDB_CHANGES, 1),
    ("rdb_last_save_time", _RDB_LAST, 1),
    ("loading", _LOADING, 1),
    ("uptime_in_seconds", _UPTIME, 1),
)
"""Fields of INFO with their families, and the factor to the family's unit. A server may lack some."""
