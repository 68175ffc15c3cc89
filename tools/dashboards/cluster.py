"""The dashboard of brokers, traffic, requests and Redis."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panel import (
    BROKER,
    EACH,
    NO_ALIAS,
    Dashboard,
    Panel,
    Row,
    all_topics,
    figure,
    quantile,
    rate,
)

HEALTH: Final = Row(
    "Health",
    (
        figure("Brokers", "Live brokers, as the controller sees them.", "max(kafka_brokers)"),
        figure(
            "Not ready",
            "Brokers that are not ready for clients; /readyz of the broker has the reasons.",
            "count(korvet_ready == 0) or vector(0)",
            alarming=1,
        ),
        figure(
            "Offline partitions",
            "Partitions without a leader. Clients can neither produce to them nor read them.",
            "sum(kafka_controller_kafkacontroller_offlinepartitionscount)",
            alarming=1,
        ),
        figure(
            "Under-replicated",
            "Partitions that lack a replica of Redis.",
            "sum(kafka_server_replicamanager_underreplicatedpartitions)",
            alarming=1,
        ),
        figure(
            "Under min.insync.replicas",
            "Partitions that refuse acks=all, because they lack in-sync replicas.",
            "sum(kafka_server_replicamanager_underminisrpartitioncount)",
            alarming=1,
        ),
        figure(
            "Connections",
            "Open connections of clients.",
            f"sum(kafka_server_socket_server_metrics_connection_count{{{BROKER}}})",
        ),
    ),
)

TRAFFIC_ROW: Final = Row(
    "Traffic",
    (
        Panel(
            "Records in",
            "Records per second that clients produce.",
            ((all_topics("messagesin"), "all topics"),),
            "cps",
        ),
        Panel(
            "Bytes",
            "Bytes of record batches per second, from producers and to consumers.",
            ((all_topics("bytesin"), "in"), (all_topics("bytesout"), "out")),
            "Bps",
        ),
        Panel(
            "Failed requests",
            "Produce and Fetch requests per second that were answered with an error.",
            ((all_topics("failedproducerequests"), "Produce"), (all_topics("failedfetchrequests"), "Fetch")),
            "reqps",
        ),
    ),
)

REQUEST_TIMES: Final = "kafka_network_requestmetrics"


def mean_ms(part: str) -> str:
    """Returns the mean of a part of the time of Produce requests, in ms."""
    of = f'request="Produce",{BROKER}'
    total = f"sum({rate(f'{REQUEST_TIMES}_{part}_sum', of)})"
    return f"{total} / sum({rate(f'{REQUEST_TIMES}_{part}_count', of)})"


REQUESTS: Final = Row(
    "Requests",
    (
        Panel(
            "Requests",
            "Requests per second by API.",
            (
                (
                    f"sum by (request) ({rate(f'{REQUEST_TIMES}_requests_total', NO_ALIAS)})",
                    "{{request}}",
                ),
            ),
            "reqps",
        ),
        Panel(
            "Time of requests, p99",
            "From arrival to answer. Fetch and JoinGroup wait for records and members.",
            ((quantile(0.99, "korvet_request_seconds", "request"), "{{request}}"),),
            "s",
        ),
        Panel(
            "Errors",
            "Errors in responses per second, by API and code.",
            (
                (
                    f"topk(10, sum by (request, error) ({rate(f'{REQUEST_TIMES}_errors_total')}))",
                    "{{request}} {{error}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Time of Produce requests",
            "Means: the wait before the handler, its work, the wait for Redis, the wait before the write.",
            (
                (mean_ms("requestqueuetimems"), "queue"),
                (mean_ms("localtimems"), "handler"),
                (mean_ms("remotetimems"), "Redis"),
                (mean_ms("responsesendtimems"), "send"),
            ),
            "ms",
        ),
        Panel(
            "Throttling",
            "Throttle time per second that quotas give to clients.",
            ((f"sum by (request) ({rate('korvet_throttle_seconds_total')})", "{{request}}"),),
            "s",
        ),
        Panel(
            "Transactions",
            "Transactions per second by outcome.",
            ((f"sum by (outcome) ({rate('korvet_transactions_ended_total')})", "{{outcome}}"),),
            "cps",
        ),
    ),
)

HITS: Final = rate("korvet_tail_cache_hits_total")
APPENDS: Final = Row(
    "Appends and reads",
    (
        Panel(
            "Appends by route",
            "Batches per second: guard is the fast route; script takes twice the time of Redis.",
            ((f"sum by (route) ({rate('korvet_appends_total')})", "{{route}}"),),
            "cps",
        ),
        Panel(
            "Refused by the guard",
            "Guarded appends per second that Redis refused, by reason. They are appended by script then.",
            ((f"sum by (reason) ({rate('korvet_guard_refusals_total')})", "{{reason}}"),),
            "cps",
        ),
        Panel(
            "Backpressure",
            "Connections that wait on average, because too many bytes are on their way to Redis.",
            ((f"sum by (instance, node_id) ({rate('korvet_backpressure_seconds_total')})", EACH),),
        ),
        Panel(
            "Reads from the tail cache",
            "Part of the reads that the tail cache answers. The others read from Redis.",
            (
                (
                    f"sum({HITS}) / (sum({HITS}) + sum({rate('korvet_tail_cache_misses_total')}))",
                    "hits",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Leadership",
            "Events per minute: expired leases, failed renewals, appends fenced off by a newer leader.",
            (
                (f"60 * sum({rate('korvet_lease_expired_total')})", "leases expired"),
                (f"60 * sum({rate('korvet_lease_renewal_failures_total')})", "renewals failed"),
                (f"60 * sum({rate('korvet_fenced_appends_total')})", "appends fenced"),
            ),
        ),
        Panel(
            "Compaction",
            "Records per second that compactions remove.",
            ((f"sum by (instance, node_id) ({rate('korvet_compaction_removed_records_total')})", EACH),),
            "cps",
        ),
    ),
)

# Every broker reports every server of Redis.
SERVERS: Final = Row(
    "Redis",
    (
        Panel(
            "Round trips, p99",
            "Time from a command to its reply, by kind of link. The barrier waits for replicas.",
            ((quantile(0.99, "korvet_redis_round_trip_seconds", "link"), "{{link}}"),),
            "s",
        ),
        Panel(
            "Commands",
            "Commands per second that each server executes for all its clients.",
            ((f"max by (server) ({rate('korvet_redis_commands_total')})", "{{server}}"),),
            "ops",
        ),
        Panel(
            "Replicas",
            "Replicas that follow each server, and the time since the last report of the latest one.",
            (
                (f"min by (server) (korvet_redis_replicas_in_sync{{{BROKER}}})", "{{server}} in sync"),
                (f"max by (server) (korvet_redis_replica_lag_seconds{{{BROKER}}})", "{{server}} seconds"),
            ),
        ),
        Panel(
            "Wait for replicas, p99",
            "How long appends wait until replicas, or disks, confirm them.",
            ((quantile(0.99, "korvet_barrier_wait_seconds", "instance, node_id"), EACH),),
            "s",
        ),
        Panel(
            "Lost connections",
            "Connections to Redis that broke, per second, by kind of link.",
            ((f"sum by (link) ({rate('korvet_redis_connections_lost_total')})", "{{link}}"),),
            "cps",
        ),
    ),
)


def of_servers(name: str, of: str = "max") -> str:
    """Returns the value of a metric of Redis that every broker reports, by server."""
    return f"{of} by (server) (korvet_redis_{name}{{{BROKER}}})"


STORAGE: Final = Row(
    "Memory and files of Redis",
    (
        Panel(
            "Memory",
            "Memory that each server has allocated, what it has from the system, and maxmemory.",
            (
                (of_servers("memory_used_bytes"), "{{server}} used"),
                (of_servers("memory_resident_bytes"), "{{server}} resident"),
                (f"{of_servers('memory_max_bytes')} > 0", "{{server}} maxmemory"),
            ),
            "bytes",
        ),
        Panel(
            "Memory used of maxmemory",
            "At 100 % records are refused. Servers without maxmemory are not shown.",
            (
                (
                    f"{of_servers('memory_used_bytes')} / ({of_servers('memory_max_bytes')} > 0)",
                    "{{server}}",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Evicted keys",
            "Keys per second that each server evicts, which loses topics or groups, and 1 if it may evict.",
            (
                (f"max by (server) ({rate('korvet_redis_evicted_keys_total')})", "{{server}} evicted"),
                (of_servers("evicts_keys"), "{{server}} may evict"),
            ),
        ),
        Panel(
            "Disk",
            "Free space on the disks of embedded servers, and the reserve for commits and leases.",
            (
                (f"korvet_disk_free_bytes{{{BROKER}}}", f"{EACH} free"),
                (f"korvet_disk_reserve_bytes{{{BROKER}}}", f"{EACH} reserve"),
            ),
            "bytes",
        ),
        Panel(
            "Append-only file",
            "Size of each server's append-only file, and its size after the last rewrite.",
            (
                (of_servers("aof_bytes"), "{{server}}"),
                (of_servers("aof_base_bytes"), "{{server}} after the rewrite"),
            ),
            "bytes",
        ),
        Panel(
            "Time since the last snapshot",
            "Without an append-only file, a crash of the server loses what was written in this time.",
            ((f"time() - {of_servers('rdb_last_save_timestamp_seconds')}", "{{server}}"),),
            "s",
        ),
        Panel(
            "Writes to files",
            "1 if the server's last write of this kind succeeded: append-only file, its rewrite, snapshot.",
            (
                (
                    f"min by (server, kind) (korvet_redis_persistence_ok{{{BROKER}}})",
                    "{{server}} {{kind}}",
                ),
            ),
        ),
        Panel(
            "Last fork",
            "How long the server answered nobody while it forked for a rewrite, a snapshot or a new replica.",
            ((of_servers("last_fork_seconds"), "{{server}}"),),
            "s",
        ),
        Panel(
            "Forks in progress",
            "1 while a fork of the server writes: meanwhile the server may need up to twice its memory.",
            (
                (of_servers("aof_rewriting"), "{{server}} rewrite"),
                (of_servers("rdb_saving"), "{{server}} snapshot"),
            ),
        ),
    ),
)

PROCESS: Final = Row(
    "Broker processes",
    (
        Panel(
            "Processor",
            "Share of one core that each broker uses. A broker uses one core at most.",
            ((rate("process_cpu_seconds_total", f'job="korvet",{BROKER}'), EACH),),
            "percentunit",
        ),
        Panel(
            "Event loop lag, p99",
            "By how much the event loop runs due work late. Every request waits as long.",
            (
                (
                    quantile(0.99, "korvet_event_loop_lag_seconds", "instance, node_id"),
                    EACH,
                ),
            ),
            "s",
        ),
        Panel(
            "Memory",
            "Resident memory of each broker.",
            ((f'process_resident_memory_bytes{{job="korvet",{BROKER}}}', EACH),),
            "bytes",
        ),
        Panel(
            "Open files",
            "Open files, with connections, as a share of the limit.",
            (
                (
                    f'process_open_fds{{job="korvet",{BROKER}}} / process_max_fds{{job="korvet",{BROKER}}}',
                    EACH,
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Failures",
            "Background work that ended with an exception, and requests answered with UNKNOWN_SERVER_ERROR.",
            (
                (f"sum by (work) ({rate('korvet_background_failures_total')})", "{{work}}"),
                (f"sum by (api) ({rate('korvet_request_exceptions_total')})", "{{api}}"),
            ),
            "cps",
        ),
        Panel(
            "Phase",
            "What each broker does: starting, loading, serving, draining, stopping.",
            ((f"korvet_broker_phase{{{BROKER}}} == 1", "{{instance}} {{node_id}} {{phase}}"),),
        ),
    ),
)

CLUSTER: Final = Dashboard(
    "cluster",
    "korvet: cluster",
    "Brokers, traffic, requests and Redis.",
    (("broker", "label_values(korvet_build_info, instance)"),),
    (HEALTH, TRAFFIC_ROW, REQUESTS, APPENDS, SERVERS, STORAGE, PROCESS),
)
