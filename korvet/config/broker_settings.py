"""The settings of a broker apart from its listeners and security."""

import ipaddress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from korvet.config.address import Address, parse_address
from korvet.config.fields import INT32_MAX, INT64_MAX, Count, Duration, Limit, Partitions, Size, key_of


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_of):
    """The part of `Config` about storage, topics, groups and limits."""

    listen: Annotated[
        str, Meta(description="Address on which the broker accepts Kafka clients, HOST:PORT.")
    ] = "127.0.0.1:9092"
    advertise: Annotated[
        str | None,
        Meta(description="Address that clients connect to, if it differs from `listen`."),
    ] = None
    data_dir: Annotated[
        str,
        Meta(
            min_length=1,
            description="Folder of the embedded server's data, relative to the working folder. Not used if "
            "`redis` is set.",
        ),
    ] = "./korvet-data"
    redis: Annotated[
        str | None,
        Meta(
            description="URL of a Redis or Valkey (redis://, rediss://, unix://), of nodes of a cluster, or "
            "of sentinels (redis+sentinel://, rediss+sentinel://). If not set, an embedded server runs."
        ),
    ] = None
    redis_socket_timeout_ms: Annotated[
        int,
        Meta(
            ge=500,
            le=INT32_MAX,
            description="Longest silence on a connection to Redis with a pending request; after that, at "
            "most a quarter later, korvet reconnects.",
        ),
    ] = 15_000
    keyspace: Annotated[
        str, Meta(description="Prefix of all Redis keys. One keyspace is one Kafka cluster.")
    ] = "korvet"
    # Larger IDs stand for replicas (korvet/api/common/replicas.py).
    node_id: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            description="This broker's ID in the cluster, unique among live brokers.",
        ),
    ] = 1
    processes: Annotated[
        Size,
        Meta(
            description="Number of broker processes; their ports and node IDs count up from the configured "
            "ones."
        ),
    ] = 1
    drain_wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=600_000,
            description="After SIGTERM: time during which the broker still serves, but isn't ready "
            "(`/readyz`), so that load balancers notice. After that, it hands its partitions over.",
        ),
    ] = 0
    broker_session_timeout_ms: Annotated[
        int,
        Meta(
            ge=500,
            le=INT32_MAX,
            description="Time after which other brokers take over from a broker that doesn't renew its "
            "lease.",
        ),
    ] = 5_000
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Lowest severity of logged messages."),
    ] = "info"
    embedded_appendfsync: Annotated[
        Literal["always", "everysec", "no"],
        Meta(
            description="When the embedded server flushes its append-only file. Below `always`, a crash may "
            "lose records."
        ),
    ] = "always"
    embedded_module: Annotated[
        Literal["auto", "off"],
        Meta(description="Whether the embedded server loads korvet's server module: `auto` if it can."),
    ] = "auto"
    embedded_maxmemory: Annotated[
        Limit,
        Meta(
            description="Bytes of data above which the embedded server refuses writes (`maxmemory`), before "
            "it is killed for lack of memory. -1: two thirds of the memory of the machine or container that "
            "the brokers leave. 0: no limit."
        ),
    ] = -1

    disk_reserve_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=INT64_MAX,
            description="Free space on the embedded server's disk below which records are refused. Below "
            "half of it, all writes are refused. 0 turns the check off.",
        ),
    ] = 67_108_864

    auto_create_topics_enable: Annotated[
        bool, Meta(description="Create a topic when a client requests one that doesn't exist.")
    ] = True
    num_partitions: Annotated[
        Size, Meta(description="Partitions of a topic that is created without a partition count.")
    ] = 1
    # The share of large batches has room for two of the largest: one that Redis is adding, and the next one.
    # One connection carries all of them to Redis, so each further one delays all clients by 0.1 to 0.2 s.
    decompression_buffer_bytes: Annotated[
        Size,
        Meta(
            description="Memory per process for decompressed batches of producers that aren't in Redis yet. "
            "Further batches wait."
        ),
    ] = 25_165_824
    socket_request_max_bytes: Annotated[
        Size, Meta(description="Largest request. A larger one closes the connection.")
    ] = 104_857_600
    max_connections: Annotated[
        Size,
        Meta(
            description="Largest number of client connections, including TLS handshakes. Further "
            "connections are closed at once."
        ),
    ] = INT32_MAX
    max_connections_per_ip: Annotated[
        Size,
        Meta(
            description="Largest number of client connections from one address. Further connections are "
            "closed at once."
        ),
    ] = INT32_MAX
    max_connections_per_ip_overrides: Annotated[
        str,
        Meta(
            description="Limits of single addresses instead of `max.connections.per.ip`, comma-separated "
            "ADDRESS:COUNT."
        ),
    ] = ""
    max_connection_creation_rate: Annotated[
        Size,
        Meta(
            description="Largest number of new client connections per second. Further connections wait in "
            "the kernel's queue."
        ),
    ] = INT32_MAX
    connections_max_idle_ms: Annotated[
        Limit,
        Meta(
            description="Time after which an idle connection is closed, even if a request is waiting on it; "
            "-1 means never."
        ),
    ] = 600_000
    connections_setup_timeout_ms: Annotated[
        Size,
        Meta(
            description="Longest duration of a TLS handshake, and longest silence of a client that must "
            "authenticate."
        ),
    ] = 10_000
    append_lead_max_ms: Annotated[
        Duration,
        Meta(
            description="How far the offsets of a burst may run ahead of Redis's clock before its producers "
            "are slowed down to 1,024 records per ms. With storage.layout=batch it is a day."
        ),
    ] = 1_000
    busy_poll_us: Annotated[
        Count,
        Meta(
            description="Pause between a client's requests, and before Redis's reply, up to which a broker "
            "polls instead of sleeping; 0 turns polling off. It never polls on a single processor."
        ),
    ] = 200
    native_poll_interval_ms: Annotated[
        Size,
        Meta(
            description="How often korvet checks partitions that consumers read or wait for, for entries of "
            "native Redis writers."
        ),
    ] = 75
    tail_cache_bytes: Annotated[
        Count,
        Meta(
            description="Memory per process for the newest batches of all partitions, which are served "
            "without Redis; 0 turns the cache off. On small machines the default, and those of the other "
            "buffers, are smaller (docs/guides/memory.md)."
        ),
    ] = 268_435_456
    fetch_readahead_bytes: Annotated[
        Count,
        Meta(
            description="Memory for records that are read ahead for consumers that read through a log; 0 "
            "turns it off."
        ),
    ] = 33_554_432
    fetch_buffer_bytes: Annotated[
        Size,
        Meta(
            description="Memory per process for records in fetch responses, until clients have read them. "
            "While it is used up, a fetch returns one batch."
        ),
    ] = 67_108_864
    max_incremental_fetch_session_cache_slots: Annotated[
        Count, Meta(description="Largest number of fetch sessions; 0 means none.")
    ] = 1_000
    native_groups_enable: Annotated[
        bool,
        Meta(
            description="Commit the positions of Redis consumer groups that Redis applications move. Set "
            "the same value on all brokers of a keyspace."
        ),
    ] = True
    native_groups_interval_ms: Annotated[
        Size, Meta(description="How often korvet reads the positions of Redis consumer groups.")
    ] = 1_000
    transaction_max_timeout_ms: Annotated[
        Size, Meta(description="Longest transaction timeout that a producer may request.")
    ] = 900_000
    transactional_id_expiration_ms: Annotated[
        Duration, Meta(description="Idle time after which a transactional ID expires.")
    ] = 604_800_000
    producer_id_expiration_ms: Annotated[
        Duration, Meta(description="Idle time after which the state of an idempotent producer expires.")
    ] = 86_400_000

    log_retention_check_interval_ms: Annotated[Size, Meta(description="How often retention is applied.")] = (
        300_000
    )

    log_cleaner_enable: Annotated[
        bool, Meta(description="Compact topics with cleanup.policy=compact, and `__consumer_offsets`.")
    ] = True
    log_cleaner_backoff_ms: Annotated[
        Size, Meta(description="How often korvet looks for partitions to compact.")
    ] = 15_000
    log_cleaner_io_max_bytes_per_second: Annotated[
        int,
        Meta(
            ge=1,
            le=INT64_MAX,
            description="Approximate number of bytes that compaction reads and copies per second.",
        ),
    ] = 16_777_216
    log_cleaner_dedupe_buffer_size: Annotated[
        Size, Meta(description="Memory for the keys of one compaction, about 200 bytes per key.")
    ] = 134_217_728

    group_initial_rebalance_delay_ms: Annotated[
        Count, Meta(description="How long the first rebalance of an empty group waits for more members.")
    ] = 100
    group_min_session_timeout_ms: Annotated[
        Size, Meta(description="Smallest session timeout that a member may request.")
    ] = 6_000
    group_max_session_timeout_ms: Annotated[
        Size, Meta(description="Largest session timeout that a member may request.")
    ] = 1_800_000
    group_max_size: Annotated[Size, Meta(description="Largest number of members of one group.")] = INT32_MAX
    group_consumer_assignors: Annotated[
        str,
        Meta(description="Assignors of consumer groups (KIP-848), the default first: `uniform`, `range`."),
    ] = "uniform,range"
    group_consumer_session_timeout_ms: Annotated[
        Size, Meta(description="Time after which a silent member of a consumer group is removed.")
    ] = 45_000
    group_consumer_heartbeat_interval_ms: Annotated[
        Size,
        Meta(
            description="Heartbeat interval of members of consumer groups; shorter than the session timeout."
        ),
    ] = 5_000
    group_consumer_min_session_timeout_ms: Annotated[
        Size, Meta(description="Smallest session timeout that the config of a consumer group may set.")
    ] = 45_000
    group_consumer_max_session_timeout_ms: Annotated[
        Size, Meta(description="Largest session timeout that the config of a consumer group may set.")
    ] = 60_000
    group_consumer_min_heartbeat_interval_ms: Annotated[
        Size, Meta(description="Smallest heartbeat interval that the config of a consumer group may set.")
    ] = 5_000
    group_consumer_max_heartbeat_interval_ms: Annotated[
        Size, Meta(description="Largest heartbeat interval that the config of a consumer group may set.")
    ] = 15_000
    group_consumer_max_size: Annotated[
        Size, Meta(description="Largest number of members of one consumer group.")
    ] = INT32_MAX
    group_consumer_assignment_interval_ms: Annotated[
        Count, Meta(description="Shortest time between two assignments of one consumer group.")
    ] = 1_000
    group_consumer_migration_policy: Annotated[
        Literal["bidirectional", "upgrade", "downgrade", "disabled"],
        Meta(
            description="Which protocol changes are allowed for a group with members: from classic to "
            "consumer (`upgrade`), back (`downgrade`), both or none."
        ),
    ] = "bidirectional"
    offsets_retention_minutes: Annotated[
        Size, Meta(description="How long the offsets of a group without members are kept.")
    ] = 10_080
    offsets_retention_check_interval_ms: Annotated[
        Size,
        Meta(description="How often korvet looks for expired offsets, and for empty groups without offsets."),
    ] = 600_000
    offsets_history_retention_ms: Annotated[
        Duration,
        Meta(description="How long superseded records of `__consumer_offsets` are kept as history."),
    ] = 86_400_000
    offsets_history_retention_bytes: Annotated[
        Limit,
        Meta(
            description="Size of all of `__consumer_offsets` above which this history is deleted; -1 means "
            "unlimited."
        ),
    ] = 268_435_456
    offsets_commit_required_acks: Annotated[
        Literal[-1, 1],
        Meta(
            description="-1: a commit, and any other change of a group, is answered once it has "
            "`min.insync.replicas` copies; 1: once the primary has it."
        ),
    ] = -1
    offsets_commit_timeout_ms: Annotated[
        Size,
        Meta(
            description="Longest wait of a commit, of another change of a group, or of a transaction's step, "
            "for its replicas. After that, clients retry."
        ),
    ] = 5_000
    offset_metadata_max_bytes: Annotated[
        Count, Meta(description="Longest metadata of a commit, in UTF-16 units as in Kafka.")
    ] = 4_096
    offsets_topic_alias: Annotated[
        str | None,
        Meta(description="A second, read-only name of `__consumer_offsets` that isn't an internal topic."),
    ] = None
    offsets_topic_num_partitions: Annotated[
        Partitions,
        Meta(description="Partitions of `__consumer_offsets`, if a broker creates it at its start."),
    ] = 50
    transaction_state_log_num_partitions: Annotated[
        Partitions,
        Meta(description="Partitions of `__transaction_state`, when it is created on first use."),
    ] = 50
    offsets_topic_writable: Annotated[
        bool,
        Meta(
            description="Whether clients may produce to `__consumer_offsets`. korvet checks and applies "
            "their records."
        ),
    ] = False
    offsets_commit_value_version: Annotated[
        Literal[3, 4],
        Meta(
            description="Version of commit records. Every tool reads 3; version 4 (Kafka 4.1) contains the "
            "topic ID."
        ),
    ] = 3

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        """The names in `group.consumer.assignors`."""
        parts = (part.strip() for part in self.group_consumer_assignors.split(","))
        return tuple(part for part in parts if part)

    @property
    def listen_address(self) -> Address:
        """Host and port of `listen`."""
        return parse_address(self.listen)

    @property
    def advertise_address(self) -> Address | None:
        """Host and port of `advertise`; None if clients use the address of `listen`."""
        return None if self.advertise is None else parse_address(self.advertise)


def parse_overrides(text: str) -> dict[str, int]:
    """Connection limits by address, of `max.connections.per.ip.overrides`. Raises ValueError."""
    limits = {}
    for part in filter(None, map(str.strip, text.split(","))):
        address, _, count = part.rpartition(":")
        if not (count.isascii() and count.isdigit()):
            raise ValueError(f"expected ADDRESS:COUNT, not {part!r}")
        limits[str(ipaddress.ip_address(address.strip("[]")))] = int(count)
    return limits
