"""Consumer groups, under the names of kafka_exporter and kafka-lag-exporter, and what coordinators count.

A group's coordinator reports the group. Lag is the exact number of unread records; offsets are ordinals: the
number of records ever appended before the position.
"""

from __future__ import annotations

from typing import Final

from korvet.metrics.family import Family, Kind

_GROUP: Final = ("consumergroup",)
_PLACE: Final = ("consumergroup", "topic", "partition")
_CLUSTER_GROUP: Final = ("cluster_name", "group")
_MEMBER: Final = ("cluster_name", "group", "topic", "partition", "member_host", "consumer_id", "client_id")

MEMBERS: Final = Family(
    "kafka_consumergroup_members", Kind.GAUGE, "Members of a group.", _GROUP, by_one_broker=True
)
CURRENT_OFFSET: Final = Family(
    "kafka_consumergroup_current_offset",
    Kind.GAUGE,
    "Records ever appended before the committed offset; -1 for a member's partition without a commit, if the "
    "group has committed offsets of other partitions of the topic.",
    _PLACE,
    by_one_broker=True,
)
CURRENT_OFFSET_SUM: Final = Family(
    "kafka_consumergroup_current_offset_sum",
    Kind.GAUGE,
    "Records ever appended before the committed offsets of a topic.",
    ("consumergroup", "topic"),
    by_one_broker=True,
)
LAG: Final = Family(
    "kafka_consumergroup_lag",
    Kind.GAUGE,
    "Records from the committed offset on; -1 for a member's partition without a commit.",
    _PLACE,
    by_one_broker=True,
)
LAG_SUM: Final = Family(
    "kafka_consumergroup_lag_sum",
    Kind.GAUGE,
    "Records from the committed offsets of a topic on.",
    ("consumergroup", "topic"),
    by_one_broker=True,
)
RAW_CURRENT_OFFSET: Final = Family(
    "korvet_consumergroup_raw_current_offset",
    Kind.GAUGE,
    "Committed offset, as Kafka clients see it.",
    _PLACE,
    by_one_broker=True,
)
GROUP_LAG: Final = Family(
    "kafka_consumergroup_group_lag",
    Kind.GAUGE,
    "Records from the committed offset on, with the member that the partition is assigned to (name of "
    "kafka-lag-exporter).",
    _MEMBER,
    by_one_broker=True,
)
GROUP_LAG_SECONDS: Final = Family(
    "kafka_consumergroup_group_lag_seconds",
    Kind.GAUGE,
    "Seconds since the timestamp of the first record from the committed offset on; 0 if there is none.",
    _MEMBER,
    by_one_broker=True,
)
MAX_LAG: Final = Family(
    "kafka_consumergroup_group_max_lag",
    Kind.GAUGE,
    "Largest number of records from a committed offset of a group on.",
    _CLUSTER_GROUP,
    by_one_broker=True,
)
MAX_LAG_SECONDS: Final = Family(
    "kafka_consumergroup_group_max_lag_seconds",
    Kind.GAUGE,
    "Largest lag of a group in seconds.",
    _CLUSTER_GROUP,
    by_one_broker=True,
)
SUM_LAG: Final = Family(
    "kafka_consumergroup_group_sum_lag",
    Kind.GAUGE,
    "Records from all committed offsets of a group on.",
    _CLUSTER_GROUP,
    by_one_broker=True,
)
TOPIC_SUM_LAG: Final = Family(
    "kafka_consumergroup_group_topic_sum_lag",
    Kind.GAUGE,
    "Records from the committed offsets of a group in a topic on.",
    (*_CLUSTER_GROUP, "topic"),
    by_one_broker=True,
)

PENDING: Final = Family(
    "korvet_redis_group_pending_entries",
    Kind.GAUGE,
    "Entries of a stream that consumers of a Redis group have received and not acknowledged. Reported by the "
    "partition's leader, for groups with consumers or pending entries.",
    _PLACE,
    by_one_broker=True,
)
PENDING_IDLE: Final = Family(
    "korvet_redis_group_oldest_pending_idle_seconds",
    Kind.GAUGE,
    "Seconds since the oldest pending entry of a Redis group was delivered last.",
    _PLACE,
    by_one_broker=True,
)
CONSUMERS: Final = Family(
    "korvet_redis_group_consumers",
    Kind.GAUGE,
    "Consumers of a Redis group on a stream.",
    _PLACE,
    by_one_broker=True,
)
DIVERGED: Final = Family(
    "korvet_redis_groups_diverged",
    Kind.GAUGE,
    "Redis groups that were not at the newest commit of their Kafka group in the last round, and were set to "
    "it again.",
)

INFO: Final = Family(
    "korvet_consumergroup_info",
    Kind.INFO,
    "1 for each group, with its state, its type (classic, consumer) and its protocol type.",
    ("consumergroup", "state", "type", "protocol_type"),
    by_one_broker=True,
)
LEFT_OUT: Final = Family(
    "korvet_metrics_groups_left_out",
    Kind.GAUGE,
    "Groups that the broker coordinates and does not show, or shows without their lag, because of "
    "metrics.groups or metrics.max.rows.",
)
GROUPS: Final = Family(
    "korvet_consumergroups", Kind.GAUGE, "Groups that the broker coordinates, by state.", ("state",)
)
REBALANCES: Final = Family(
    "korvet_consumergroup_rebalances_total",
    Kind.COUNTER,
    "Rebalances of a group that began; in the consumer protocol, new epochs of the group.",
    _GROUP,
    by_one_broker=True,
)
COMMITS: Final = Family(
    "korvet_consumergroup_commits_total",
    Kind.COUNTER,
    "Commit requests of a group that were accepted, those of transactions included.",
    _GROUP,
    by_one_broker=True,
)
REBALANCE_SECONDS: Final = Family(
    "korvet_group_coordinator_rebalance_seconds",
    Kind.HISTOGRAM,
    "Time from the beginning of a rebalance until the group is stable, in seconds.",
)
REQUESTS: Final = Family(
    "korvet_group_coordinator_requests_total",
    Kind.COUNTER,
    "Requests of members by kind: join, sync, heartbeat, leave. First and last heartbeats of the consumer "
    "protocol also count as join and leave.",
    ("kind",),
)
EXPIRED_MEMBERS: Final = Family(
    "korvet_group_coordinator_expired_members_total",
    Kind.COUNTER,
    "Members that were removed because they sent no heartbeat, or did not join again, in time.",
)
OFFSETS: Final = Family(
    "korvet_group_coordinator_offsets_total",
    Kind.COUNTER,
    "Offsets by event: committed (by Kafka clients), exported (committed for Redis groups), expired.",
    ("event",),
)
UNPROJECTED: Final = Family(
    "korvet_group_coordinator_unprojected_commits",
    Kind.GAUGE,
    "Commits that Redis groups do not follow yet: waiting (on their way), failed (retried).",
    ("state",),
)
COORDINATED: Final = Family(
    "korvet_coordinator_partitions",
    Kind.GAUGE,
    "Partitions of the coordinators' topics on this broker: served, or being loaded.",
    ("coordinator", "state"),
)
MOVES: Final = Family(
    "korvet_coordinator_moves_total",
    Kind.COUNTER,
    "Partitions of the coordinators' topics that this broker gained or lost, new leader epochs included.",
    ("coordinator", "event"),
)
LOAD_SECONDS: Final = Family(
    "korvet_coordinator_load_seconds",
    Kind.HISTOGRAM,
    "Time to load a partition of a coordinator's topic, in seconds.",
    ("coordinator",),
)
RELOADS: Final = Family(
    "korvet_coordinator_reloads_total",
    Kind.COUNTER,
    "Partitions that were loaded again because an append had failed.",
    ("coordinator",),
)
