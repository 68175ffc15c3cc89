"""The broker's settings: one frozen `Config`.

Settings that Kafka has carry Kafka's own dotted names.
"""

import re
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from korvet.config.address import Address, parse_address
from korvet.security.credentials import MECHANISMS
from korvet.security.listeners import Endpoint, ListenerSpec, listeners, parse_endpoints, parse_protocol_map

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
Count = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
Size = Annotated[int, Meta(ge=1, le=_INT32_MAX)]
# A coordinator's partitions are all read at a start.
Partitions = Annotated[int, Meta(ge=1, le=10_000)]
Duration = Annotated[int, Meta(ge=0, le=_INT64_MAX)]
Limit = Annotated[int, Meta(ge=-1, le=_INT64_MAX)]
# The name of the one listener where `listeners` is not set.
_PLAINTEXT = "PLAINTEXT"
# Settings that Kafka doesn't have and that are not grouped: their keys are their field names.
_PLAIN_KEYS = frozenset({"data_dir", "node_id", "log_level", "processes"})


class ListenerSetting(NamedTuple):
    """A setting of one listener, by the field of `Config` in whose stead it is there."""

    listener: str
    """Its name with underscores for dots and dashes, in capitals: variables have no others."""
    field: str
    value: object


def in_variable(name: str) -> str:
    """A key or a listener's name as a part of an environment variable's name."""
    return re.sub(r"[.-]", "_", name).upper()


def key_of(field: str) -> str:
    """The name of a field in files and documentation: dotted as in Kafka, except for our own few."""
    return field if field in _PLAIN_KEYS else field.replace("_", ".")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_of):
    """All settings of one broker process. Units are last in the names: `_ms`, `_minutes`, `_bytes`."""

    listen: Annotated[str, Meta(description="Address to accept Kafka clients on, HOST:PORT.")] = (
        "127.0.0.1:9092"
    )
    advertise: Annotated[
        str | None,
        Meta(description="Address that clients are told to connect to; the one listened on if not set."),
    ] = None
    data_dir: Annotated[
        str,
        Meta(
            min_length=1, description="Folder of the embedded server's data, relative to the working folder."
        ),
    ] = "./korvet-data"
    redis: Annotated[
        str | None,
        Meta(
            description="URL of a Redis or Valkey (redis://, rediss://, unix://), or of nodes of a cluster; "
            "embedded if not set."
        ),
    ] = None
    redis_socket_timeout_ms: Annotated[
        int,
        Meta(
            ge=500,
            le=_INT32_MAX,
            description="How long a connection to Redis may be silent while it is asked something, before "
            "another one is made; a quarter longer at the most.",
        ),
    ] = 15_000
    keyspace: Annotated[
        str, Meta(description="Prefix of all Redis keys: one keyspace is one Kafka cluster.")
    ] = "korvet"
    node_id: Annotated[
        Count, Meta(description="This broker's id in the cluster; each live broker has another one.")
    ] = 1
    processes: Annotated[
        Size, Meta(description="Broker processes to run, on ports and node ids from the given ones on.")
    ] = 1
    broker_session_timeout_ms: Annotated[
        int,
        Meta(
            ge=500,
            le=_INT32_MAX,
            description="Time after which other brokers take over from one that does not answer any more.",
        ),
    ] = 5_000
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least severe messages that are logged."),
    ] = "info"
    embedded_appendfsync: Annotated[
        Literal["always", "everysec", "no"],
        Meta(
            description="When the embedded server flushes its log; below `always` a crash may lose records."
        ),
    ] = "always"

    disk_reserve_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=_INT64_MAX,
            description="Free space on the embedded server's disk below which records are refused; below "
            "half of it all writes are. 0 is none.",
        ),
    ] = 67_108_864

    auto_create_topics_enable: Annotated[
        bool, Meta(description="Create a topic when a client asks for one that does not exist.")
    ] = True
    num_partitions: Annotated[Size, Meta(description="Partitions of a topic created without a count.")] = 1
    message_max_bytes: Annotated[Size, Meta(description="Largest record batch accepted, as sent.")] = (
        1_048_588
    )
    max_decompressed_bytes: Annotated[
        Size, Meta(description="Largest record batch accepted, once decompressed.")
    ] = 10 * 1024 * 1024
    # The share of large batches has room for two of the largest: one that Redis adds, and the next one. All
    # of them go to Redis on one connection, so that each further one delays everybody by 0.1 to 0.2 s.
    decompression_buffer_bytes: Annotated[
        Size,
        Meta(
            description="Memory of each process for produced batches that are decompressed and not in Redis "
            "yet; more of them wait."
        ),
    ] = 25_165_824
    message_timestamp_after_max_ms: Annotated[
        Duration, Meta(description="How far in the future a record's timestamp may lie.")
    ] = 3_600_000
    socket_request_max_bytes: Annotated[
        Size, Meta(description="Largest request accepted; the connection of a larger one is closed.")
    ] = 104_857_600
    max_connections: Annotated[
        Size,
        Meta(description="Most client connections, with those in a TLS handshake; more are closed at once."),
    ] = _INT32_MAX
    max_connections_per_ip: Annotated[
        Size, Meta(description="Most client connections from one address; more are closed at once.")
    ] = _INT32_MAX
    connections_max_idle_ms: Annotated[
        Limit,
        Meta(
            description="Time after which a connection is closed on which nothing is received or sent, even "
            "one that waits for an answer; -1 is never."
        ),
    ] = 600_000
    connections_setup_timeout_ms: Annotated[
        Size,
        Meta(
            description="Time for a TLS handshake, and for which a client may be silent before it has "
            "authenticated."
        ),
    ] = 10_000
    append_lead_max_ms: Annotated[
        Duration,
        Meta(
            description="How far offsets of a burst may run ahead of Redis's clock before it is throttled; "
            "with storage.layout=batch a day."
        ),
    ] = 1_000
    native_poll_interval_ms: Annotated[
        Size,
        Meta(
            description="How often partitions that consumers wait for, or keep asking for, are checked "
            "for native Redis writers' entries."
        ),
    ] = 75
    tail_cache_bytes: Annotated[
        Count,
        Meta(
            description="Memory of each process for the newest batches of all partitions, served without "
            "Redis; 0 is none."
        ),
    ] = 268_435_456
    bulk_scheduling_bytes_per_second: Annotated[
        Count,
        Meta(
            description="Produced bytes per second from which a broker waits for its turn on busy CPUs "
            "(Linux's SCHED_BATCH): more throughput, longer waits; 0 is never."
        ),
    ] = 8_388_608
    fetch_readahead_bytes: Annotated[
        Count,
        Meta(description="Memory for what consumers that read through a log will ask for next; 0 is none."),
    ] = 33_554_432
    fetch_buffer_bytes: Annotated[
        Size,
        Meta(
            description="Memory of each process for records that consumers have asked for and not read yet; "
            "while it is used up a consumer gets one batch at a time."
        ),
    ] = 67_108_864
    max_incremental_fetch_session_cache_slots: Annotated[
        Count, Meta(description="Fetch sessions that are kept at the most; 0 is none.")
    ] = 1_000
    native_groups_enable: Annotated[
        bool,
        Meta(
            description="Commit what Redis applications acknowledge in Redis consumer groups; alike for all "
            "brokers of a keyspace."
        ),
    ] = True
    native_groups_interval_ms: Annotated[
        Size, Meta(description="How often Redis consumer groups are looked at for that.")
    ] = 1_000
    transaction_max_timeout_ms: Annotated[
        Size, Meta(description="Longest time for which a producer may keep a transaction open.")
    ] = 900_000
    transactional_id_expiration_ms: Annotated[
        Duration, Meta(description="Idle time after which a transactional id is forgotten.")
    ] = 604_800_000
    producer_id_expiration_ms: Annotated[
        Duration, Meta(description="Idle time after which an idempotent producer's state is dropped.")
    ] = 86_400_000

    log_retention_ms: Annotated[
        Limit, Meta(description="Age at which records are deleted; -1 keeps them.")
    ] = 604_800_000
    log_retention_bytes: Annotated[
        Limit,
        Meta(description="Size of a partition above which its oldest records are deleted; -1 is unlimited."),
    ] = -1
    log_offset_assignment: Annotated[
        Literal["clock", "dense"],
        Meta(description="Of new topics: offsets from the clock, or 0, 1, 2 and so on as in Kafka."),
    ] = "clock"
    log_storage_layout: Annotated[
        Literal["record", "batch"],
        Meta(description="Of new topics: a stream entry for each record, or for each record batch."),
    ] = "record"
    log_retention_check_interval_ms: Annotated[Size, Meta(description="How often retention is applied.")] = (
        300_000
    )

    log_cleaner_enable: Annotated[
        bool, Meta(description="Compact the topics with cleanup.policy=compact, and `__consumer_offsets`.")
    ] = True
    log_cleaner_backoff_ms: Annotated[
        Size, Meta(description="How often it is looked for partitions to compact.")
    ] = 15_000
    log_cleaner_io_max_bytes_per_second: Annotated[
        int,
        Meta(ge=1, le=_INT64_MAX, description="Bytes that compaction reads and copies in a second, about."),
    ] = 16_777_216
    log_cleaner_dedupe_buffer_size: Annotated[
        Size, Meta(description="Memory for the keys of one compaction, about 200 bytes for each.")
    ] = 134_217_728

    group_initial_rebalance_delay_ms: Annotated[
        Count, Meta(description="How long the first rebalance of an empty group waits for more members.")
    ] = 100
    group_min_session_timeout_ms: Annotated[
        Size, Meta(description="Smallest session timeout a member may ask for.")
    ] = 6_000
    group_max_session_timeout_ms: Annotated[
        Size, Meta(description="Largest session timeout a member may ask for.")
    ] = 1_800_000
    group_max_size: Annotated[Size, Meta(description="Most members that one group may have.")] = _INT32_MAX
    group_consumer_assignors: Annotated[
        str,
        Meta(description="Assignors of consumer groups (KIP-848), the default first: `uniform`, `range`."),
    ] = "uniform,range"
    group_consumer_session_timeout_ms: Annotated[
        Size, Meta(description="Time after which a member of a consumer group that is silent is out.")
    ] = 45_000
    group_consumer_heartbeat_interval_ms: Annotated[
        Size, Meta(description="How often members of consumer groups are told to send heartbeats.")
    ] = 5_000
    group_consumer_min_session_timeout_ms: Annotated[
        Size, Meta(description="Least session timeout that a consumer group may set for itself.")
    ] = 45_000
    group_consumer_max_session_timeout_ms: Annotated[
        Size, Meta(description="Longest session timeout that a consumer group may set for itself.")
    ] = 60_000
    group_consumer_min_heartbeat_interval_ms: Annotated[
        Size, Meta(description="Least heartbeat interval that a consumer group may set for itself.")
    ] = 5_000
    group_consumer_max_heartbeat_interval_ms: Annotated[
        Size, Meta(description="Longest heartbeat interval that a consumer group may set for itself.")
    ] = 15_000
    group_consumer_max_size: Annotated[
        Size, Meta(description="Most members that one consumer group may have.")
    ] = _INT32_MAX
    group_consumer_assignment_interval_ms: Annotated[
        Count, Meta(description="Least time between two assignments of one consumer group.")
    ] = 1_000
    group_consumer_migration_policy: Annotated[
        Literal["bidirectional", "upgrade", "downgrade", "disabled"],
        Meta(
            description="Which way a group with members may change: from the classic protocol to that of "
            "consumer groups (upgrade), or back."
        ),
    ] = "bidirectional"
    offsets_retention_minutes: Annotated[
        Size, Meta(description="How long the offsets of a group without members are kept.")
    ] = 10_080
    offsets_retention_check_interval_ms: Annotated[
        Size, Meta(description="How often it is looked for such offsets, and for empty groups without any.")
    ] = 600_000
    offsets_history_retention_ms: Annotated[
        Duration,
        Meta(description="How long superseded records of `__consumer_offsets` are kept as history."),
    ] = 86_400_000
    offsets_history_retention_bytes: Annotated[
        Limit,
        Meta(
            description="Size of all of `__consumer_offsets` above which that history goes; -1 is unlimited."
        ),
    ] = 268_435_456
    offset_metadata_max_bytes: Annotated[
        Count, Meta(description="Longest metadata of a commit, in UTF-16 units as in Kafka.")
    ] = 4_096
    offsets_topic_alias: Annotated[
        str | None,
        Meta(
            description="Another name of `__consumer_offsets`, under which it is not internal, and can be "
            "read only."
        ),
    ] = None
    offsets_topic_num_partitions: Annotated[
        Partitions,
        Meta(description="Partitions of `__consumer_offsets`, if it is not there yet when a broker starts."),
    ] = 50
    transaction_state_log_num_partitions: Annotated[
        Partitions,
        Meta(description="Partitions of `__transaction_state`, if it is not there yet when it is needed."),
    ] = 50
    offsets_topic_writable: Annotated[
        bool,
        Meta(
            description="Whether clients may produce to `__consumer_offsets`; what they say is checked and "
            "applied."
        ),
    ] = False
    offsets_commit_value_version: Annotated[
        Literal[3, 4],
        Meta(
            description="Version of commit records: 3 is read by every tool, 4 (Kafka 4.1) has the topic id."
        ),
    ] = 3

    listeners: Annotated[
        str | None,
        Meta(
            description="Named listeners, NAME://HOST:PORT with commas between, as in Kafka; instead of "
            "`listen`."
        ),
    ] = None
    advertised_listeners: Annotated[
        str | None,
        Meta(description="Where clients are told to find them, by name; those listened on if not set."),
    ] = None
    listener_security_protocol_map: Annotated[
        str,
        Meta(
            description="NAME:PROTOCOL with commas between: how clients talk to a listener (PLAINTEXT, SSL, "
            "SASL_PLAINTEXT, SASL_SSL)."
        ),
    ] = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
    sasl_enabled_mechanisms: Annotated[
        str, Meta(description="SASL mechanisms that clients may choose from, with commas between.")
    ] = ",".join(MECHANISMS)
    plain_sasl_jaas_config: Annotated[
        str,
        Meta(
            description="Users of PLAIN beside those with SCRAM credentials, as Kafka's PlainLoginModule "
            "lists them."
        ),
    ] = ""
    connections_max_reauth_ms: Annotated[
        Duration,
        Meta(description="Time after which a client has to authenticate anew (KIP-368); 0 is never."),
    ] = 0
    connection_failed_authentication_delay_ms: Annotated[
        Count, Meta(description="Time from a request to authenticate until its failure is answered.")
    ] = 100
    ssl_keystore_location: Annotated[
        str | None, Meta(description="PEM file with the key and the certificate chain of TLS listeners.")
    ] = None
    ssl_key_password: Annotated[
        str | None, Meta(description="Password of an encrypted key in that file.")
    ] = None
    ssl_truststore_location: Annotated[
        str | None, Meta(description="PEM file with the authorities that sign clients' certificates.")
    ] = None
    ssl_client_auth: Annotated[
        Literal["none", "requested", "required"],
        Meta(description="Whether clients of SSL listeners show a certificate."),
    ] = "none"
    ssl_enabled_protocols: Annotated[
        Literal["TLSv1.2,TLSv1.3", "TLSv1.3"], Meta(description="TLS versions that are spoken.")
    ] = "TLSv1.2,TLSv1.3"
    ssl_cipher_suites: Annotated[
        str | None, Meta(description="Ciphers for TLS 1.2, as OpenSSL names them; its defaults if not set.")
    ] = None
    ssl_principal_mapping_rules: Annotated[
        str, Meta(description="How a certificate's subject becomes a user's name (KIP-371).")
    ] = "DEFAULT"
    authorizer_class_name: Annotated[
        str,
        Meta(
            description="Enforce ACLs: Kafka's name of its authorizer, "
            "`org.apache.kafka.metadata.authorizer.StandardAuthorizer`; empty allows everything."
        ),
    ] = ""
    super_users: Annotated[
        str, Meta(description="Principals that may do everything, with semicolons between.")
    ] = ""
    allow_everyone_if_no_acl_found: Annotated[
        bool, Meta(description="Whether all may use what no ACL is about.")
    ] = False

    listener_settings: tuple[ListenerSetting, ...] = ()
    """`listener.name.NAME.KEY`, which are no fields of their own."""

    def of_listener(self, name: str) -> "Config":
        """The settings as they are for one listener."""
        mine = {
            each.field: each.value for each in self.listener_settings if each.listener == in_variable(name)
        }
        return msgspec.structs.replace(self, **mine) if mine else self

    @property
    def listener_specs(self) -> tuple[ListenerSpec, ...]:
        """All listeners, with or without `listeners`. Raises ValueError where the settings do not fit."""
        if self.listeners is not None:
            return listeners(
                parse_endpoints(self.listeners),
                parse_endpoints(self.advertised_listeners or ""),
                parse_protocol_map(self.listener_security_protocol_map),
            )
        told = self.advertise_address
        advertised = None if told is None else Endpoint(_PLAINTEXT, *told)
        return (ListenerSpec(_PLAINTEXT, *self.listen_address, "PLAINTEXT", advertised),)

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        """`group.consumer.assignors`, taken apart."""
        parts = (part.strip() for part in self.group_consumer_assignors.split(","))
        return tuple(part for part in parts if part)

    @property
    def sasl_mechanisms(self) -> tuple[str, ...]:
        """`sasl.enabled.mechanisms`, taken apart."""
        parts = (part.strip() for part in self.sasl_enabled_mechanisms.split(","))
        return tuple(part for part in parts if part)

    @property
    def listen_address(self) -> Address:
        """`listen`, taken apart."""
        return parse_address(self.listen)

    @property
    def advertise_address(self) -> Address | None:
        """`advertise`, taken apart; None when clients are to be told the address listened on."""
        return None if self.advertise is None else parse_address(self.advertise)
