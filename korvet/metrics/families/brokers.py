"""The broker: traffic of topics, led partitions, connections, lease, appends, caches and compaction."""

from __future__ import annotations

from typing import Final

from korvet.metrics.family import Family, Kind

_TOPIC: Final = ("topic",)
_LISTENER: Final = ("listener",)
_PARTITION: Final = ("topic", "partition")
_SERVER: Final = "kafka_server_"
_SOCKETS: Final = "kafka_server_socket_server_metrics_"

MESSAGES_IN: Final = Family(
    f"{_SERVER}brokertopicmetrics_messagesin_total",
    Kind.COUNTER,
    "Records appended. The sample without a topic has all topics, with deleted ones, as in Kafka.",
    _TOPIC,
)
BYTES_IN: Final = Family(
    f"{_SERVER}brokertopicmetrics_bytesin_total",
    Kind.COUNTER,
    "Bytes of the appended record batches as they were received.",
    _TOPIC,
)
BYTES_OUT: Final = Family(
    f"{_SERVER}brokertopicmetrics_bytesout_total",
    Kind.COUNTER,
    "Bytes of the record batches in Fetch responses.",
    _TOPIC,
)
PRODUCES: Final = Family(
    f"{_SERVER}brokertopicmetrics_totalproducerequests_total",
    Kind.COUNTER,
    "Batches in Produce requests: one for each partition of a request, as in Kafka.",
    _TOPIC,
)
FAILED_PRODUCES: Final = Family(
    f"{_SERVER}brokertopicmetrics_failedproducerequests_total",
    Kind.COUNTER,
    "Of these, batches that were refused.",
    _TOPIC,
)
FETCHES: Final = Family(
    f"{_SERVER}brokertopicmetrics_totalfetchrequests_total",
    Kind.COUNTER,
    "Reads of partitions for Fetch requests. A partition without news is not read.",
    _TOPIC,
)
FAILED_FETCHES: Final = Family(
    f"{_SERVER}brokertopicmetrics_failedfetchrequests_total",
    Kind.COUNTER,
    "Partitions in Fetch responses that have an error.",
    _TOPIC,
)

LEADERS: Final = Family(
    f"{_SERVER}replicamanager_leadercount", Kind.GAUGE, "Partitions that the broker leads."
)
PARTITIONS: Final = Family(
    f"{_SERVER}replicamanager_partitioncount",
    Kind.GAUGE,
    "Partitions that the broker leads: Redis has the replicas.",
)
UNDER_REPLICATED: Final = Family(
    f"{_SERVER}replicamanager_underreplicatedpartitions",
    Kind.GAUGE,
    "Of these, partitions whose Redis server lacks a replica that it had within the last hour, or that "
    "min.insync.replicas asks for.",
)
UNDER_MIN_ISR_COUNT: Final = Family(
    f"{_SERVER}replicamanager_underminisrpartitioncount",
    Kind.GAUGE,
    "Of these, partitions with fewer replicas in sync than min.insync.replicas asks for.",
)
AT_MIN_ISR_COUNT: Final = Family(
    f"{_SERVER}replicamanager_atminisrpartitioncount",
    Kind.GAUGE,
    "Of these, partitions with exactly as many replicas in sync as min.insync.replicas asks for.",
)
UNDER_MIN_ISR: Final = Family(
    "kafka_cluster_partition_underminisr",
    Kind.GAUGE,
    "1 if the partition has fewer replicas in sync than min.insync.replicas asks for.",
    _PARTITION,
    by_one_broker=True,
)
AT_MIN_ISR: Final = Family(
    "kafka_cluster_partition_atminisr",
    Kind.GAUGE,
    "1 if the partition has exactly as many replicas in sync as min.insync.replicas asks for.",
    _PARTITION,
    by_one_broker=True,
)
LOG_SIZE: Final = Family(
    "kafka_log_log_size",
    Kind.GAUGE,
    "Bytes of the partition's keys, values and headers in Redis, read every half minute.",
    _PARTITION,
    by_one_broker=True,
)

ACTIVE_CONTROLLER: Final = Family(
    "kafka_controller_kafkacontroller_activecontrollercount",
    Kind.GAUGE,
    "1 if the broker is the controller.",
)
OFFLINE_PARTITIONS: Final = Family(
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    Kind.GAUGE,
    "Partitions without a leader; 0 on brokers that are not the controller.",
)
GLOBAL_TOPICS: Final = Family(
    "kafka_controller_kafkacontroller_globaltopiccount",
    Kind.GAUGE,
    "Topics of the cluster; 0 on brokers that are not the controller.",
)
GLOBAL_PARTITIONS: Final = Family(
    "kafka_controller_kafkacontroller_globalpartitioncount",
    Kind.GAUGE,
    "Partitions of the cluster; 0 on brokers that are not the controller.",
)
UNCLEAN_ELECTIONS: Final = Family(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    Kind.COUNTER,
    "How often Redis was restarted or another server took over that may lack acknowledged writes.",
)
SHORTENED: Final = Family(
    "korvet_shortened_logs_total",
    Kind.COUNTER,
    "Partitions of which records that clients could read were lost by such an election.",
)
BROKER_STATE: Final = Family(
    f"{_SERVER}kafkaserver_brokerstate",
    Kind.GAUGE,
    "1 starting, 2 loading, 3 serving, 6 draining, 7 stopping, as in Kafka.",
)

IDLE: Final = Family(
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    Kind.GAUGE,
    "Part of the time, 0 to 1, in which the event loop's thread used no processor since the scrape before.",
)
HANDLER_IDLE: Final = Family(
    f"{_SERVER}kafkarequesthandlerpool_requesthandleravgidle_percent",
    Kind.GAUGE,
    "The same: one thread reads requests and handles them.",
)
CONNECTIONS: Final = Family(f"{_SOCKETS}connection_count", Kind.GAUGE, "Open connections.", _LISTENER)
CREATED: Final = Family(
    f"{_SOCKETS}connection_creation_total", Kind.COUNTER, "Accepted connections.", _LISTENER
)
CLOSED: Final = Family(f"{_SOCKETS}connection_close_total", Kind.COUNTER, "Ended connections.", _LISTENER)
AUTHENTICATED: Final = Family(
    f"{_SOCKETS}successful_authentication_total",
    Kind.COUNTER,
    "Connections whose client is known; all of them on listeners without authentication.",
    _LISTENER,
)
REAUTHENTICATED: Final = Family(
    f"{_SOCKETS}successful_reauthentication_total",
    Kind.COUNTER,
    "Further authentications on the same connections.",
    _LISTENER,
)
FAILED_AUTHENTICATIONS: Final = Family(
    f"{_SOCKETS}failed_authentication_total",
    Kind.COUNTER,
    "Failed SASL exchanges and TLS handshakes.",
    _LISTENER,
)
EXPIRED: Final = Family(
    "kafka_network_socketserver_expiredconnectionskilled_total",
    Kind.COUNTER,
    "Connections closed because their client did not authenticate again in time.",
    _LISTENER,
)
IDLE_CLOSED: Final = Family(
    "korvet_idle_connections_closed_total",
    Kind.COUNTER,
    "Connections closed because they were idle, or not set up in time.",
    _LISTENER,
)
REFUSED: Final = Family(
    "korvet_connections_refused_total",
    Kind.COUNTER,
    "Connections beyond the limits of their number or rate.",
    _LISTENER,
)
CERTIFICATE_EXPIRY: Final = Family(
    "korvet_certificate_expiry_timestamp_seconds",
    Kind.GAUGE,
    "Time when a certificate of a listener expires, in seconds since the epoch. If a file has several of a "
    "subject: of a keystore the first to expire, of a truststore the last.",
    ("listener", "file", "subject"),
)

PURGATORY: Final = Family(
    f"{_SERVER}delayedoperationpurgatory_purgatorysize",
    Kind.GAUGE,
    "Fetch requests that wait for records.",
    ("delayedOperation",),
)
SESSIONS: Final = Family(
    f"{_SERVER}fetchsessioncache_numincrementalfetchsessions", Kind.GAUGE, "Fetch sessions (KIP-227)."
)
SESSION_PARTITIONS: Final = Family(
    f"{_SERVER}fetchsessioncache_numincrementalfetchpartitionscached",
    Kind.GAUGE,
    "Partitions of all fetch sessions.",
)
SESSION_EVICTIONS: Final = Family(
    f"{_SERVER}fetchsessioncache_incrementalfetchsessionevictions_total",
    Kind.COUNTER,
    "Fetch sessions that were closed to make room for others.",
)

BACKPRESSURE_SECONDS: Final = Family(
    "korvet_backpressure_seconds_total",
    Kind.COUNTER,
    "Time in which Produce requests waited because too many bytes were on their way to Redis, in seconds.",
)
BACKPRESSURE_HOLDS: Final = Family(
    "korvet_backpressure_holds_total", Kind.COUNTER, "How often a connection had to wait for that."
)
BACKPRESSURE_WAITING: Final = Family(
    "korvet_backpressure_waiting_connections", Kind.GAUGE, "Connections that wait for that now."
)
IN_FLIGHT_BYTES: Final = Family(
    "korvet_produce_in_flight_bytes", Kind.GAUGE, "Bytes of Produce requests that Redis has not answered."
)
FETCH_MEMORY_BYTES: Final = Family(
    "korvet_fetch_memory_bytes", Kind.GAUGE, "Memory of Fetch responses that clients have not received."
)

LEASE_RENEWALS: Final = Family(
    "korvet_lease_renewal_seconds", Kind.HISTOGRAM, "Renewals of the broker's lease, with their duration."
)
LEASE_FAILURES: Final = Family(
    "korvet_lease_renewal_failures_total", Kind.COUNTER, "Renewals of the lease that failed."
)
LEASE_EXPIRIES: Final = Family(
    "korvet_lease_expired_total",
    Kind.COUNTER,
    "How often the broker led nothing because its lease had expired.",
)
VERSION_CHANGES: Final = Family(
    "korvet_assignment_changes_total",
    Kind.COUNTER,
    "Versions of the assignment of leaders that the broker took over.",
)
VERSION: Final = Family(
    "korvet_assignment_version", Kind.GAUGE, "Version of the assignment, which is the newest leader epoch."
)
FENCED: Final = Family(
    "korvet_fenced_appends_total",
    Kind.COUNTER,
    "Appends and claims that Redis refused because another broker leads the partition.",
)

APPENDED: Final = Family(
    "korvet_appends_total",
    Kind.COUNTER,
    "Appends by route: guard (the broker assigns the offsets), script, own (records of the broker, by "
    "script), and marker.",
    ("route",),
)
REFUSALS: Final = Family(
    "korvet_guard_refusals_total",
    Kind.COUNTER,
    "Guarded appends that Redis refused, by reason. They are appended by script then.",
    ("reason",),
)
READ_BACK: Final = Family(
    "korvet_appends_read_back_total",
    Kind.COUNTER,
    "Guarded appends whose outcome was read back after a connection broke.",
)
BATCHES: Final = Family(
    "korvet_guarded_append_batches", Kind.HISTOGRAM, "Batches that one guarded append carried."
)
RECORDS: Final = Family(
    "korvet_appended_records_total",
    Kind.COUNTER,
    "Records in appended batches of clients. Divided by the appends of the routes guard and script: records "
    "per batch.",
)

TAIL_HITS: Final = Family(
    "korvet_tail_cache_hits_total", Kind.COUNTER, "Reads that the tail cache answered with record batches."
)
TAIL_MISSES: Final = Family(
    "korvet_tail_cache_misses_total", Kind.COUNTER, "Reads of records that the tail cache does not have."
)
TAIL_HIT_BYTES: Final = Family(
    "korvet_tail_cache_hit_bytes_total", Kind.COUNTER, "Bytes of the record batches out of the tail cache."
)
TAIL_DROPPED: Final = Family(
    "korvet_tail_cache_dropped_batches_total",
    Kind.COUNTER,
    "Batches that the tail cache dropped to keep its limit.",
)
TAIL_BYTES: Final = Family("korvet_tail_cache_bytes", Kind.GAUGE, "Bytes in the tail cache.")
TAIL_LIMIT: Final = Family(
    "korvet_tail_cache_limit_bytes", Kind.GAUGE, "Limit of the tail cache: tail.cache.bytes."
)
READAHEAD_BYTES: Final = Family(
    "korvet_readahead_bytes", Kind.GAUGE, "Bytes that are read ahead for consumers."
)

COMPACTIONS: Final = Family("korvet_compactions_total", Kind.COUNTER, "Compactions of one partition.")
COMPACTED: Final = Family(
    "korvet_compaction_removed_records_total", Kind.COUNTER, "Records that compactions removed."
)
COMPACTION_SECONDS: Final = Family(
    "korvet_compaction_seconds_total", Kind.COUNTER, "Time of compactions in seconds."
)
COMPACTION_FAILURES: Final = Family(
    "korvet_compaction_failures_total", Kind.COUNTER, "Compactions that failed."
)
COMPACTION_PASSES: Final = Family(
    "korvet_compaction_passes_total", Kind.COUNTER, "Passes over all topics that looked for due compactions."
)
COMPACTION_LEFT: Final = Family(
    "korvet_compaction_partitions_left",
    Kind.GAUGE,
    "Partitions at which the pass in progress has yet to look.",
)

REFUSED_NOW: Final = Family(
    "korvet_refused",
    Kind.GAUGE,
    "1 while the broker refuses something for this cause, and /status says what and why.",
    ("cause",),
)
REFUSED_BATCHES: Final = Family(
    "korvet_refused_batches_total",
    Kind.COUNTER,
    "Batches of clients that were refused, by cause.",
    ("cause",),
)
MEMORY_NEARLY_FULL: Final = Family(
    "korvet_memory_nearly_full", Kind.GAUGE, "1 while a Redis server uses at least 90 % of maxmemory."
)

DISK_FREE: Final = Family(
    "korvet_disk_free_bytes", Kind.GAUGE, "Free space on the disk of the embedded server."
)
DISK_RESERVE: Final = Family(
    "korvet_disk_reserve_bytes", Kind.GAUGE, "Space that stays free: disk.reserve.bytes."
)
