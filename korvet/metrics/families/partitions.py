"""Topics and partitions, under the names of kafka_exporter and kafka-lag-exporter.

Each broker reports the partitions that it leads; the controller reports the cluster's brokers and topics.
Offsets are ordinals: the number of records ever appended before the position.
"""

from __future__ import annotations

from typing import Final

from korvet.metrics.family import Family, Kind

_PLACE: Final = ("topic", "partition")
_CLUSTER_PLACE: Final = ("cluster_name", "topic", "partition")

BROKERS: Final = Family(
    "kafka_brokers", Kind.GAUGE, "Live brokers. Reported by the controller.", by_one_broker=True
)
BROKER_INFO: Final = Family(
    "kafka_broker_info",
    Kind.INFO,
    "1 for each live broker, with its address for clients. Reported by the controller.",
    ("id", "address"),
    by_one_broker=True,
)
PARTITIONS: Final = Family(
    "kafka_topic_partitions",
    Kind.GAUGE,
    "Partitions of a topic. Reported by the controller.",
    ("topic",),
    by_one_broker=True,
)
CURRENT_OFFSET: Final = Family(
    "kafka_topic_partition_current_offset",
    Kind.GAUGE,
    "Records ever appended to a partition, those included that are deleted.",
    _PLACE,
    by_one_broker=True,
)
OLDEST_OFFSET: Final = Family(
    "kafka_topic_partition_oldest_offset",
    Kind.GAUGE,
    "Records of a partition that are deleted.",
    _PLACE,
    by_one_broker=True,
)
RAW_CURRENT_OFFSET: Final = Family(
    "korvet_topic_partition_raw_current_offset",
    Kind.GAUGE,
    "Log end offset of a partition, as Kafka clients see it.",
    _PLACE,
    by_one_broker=True,
)
RAW_OLDEST_OFFSET: Final = Family(
    "korvet_topic_partition_raw_oldest_offset",
    Kind.GAUGE,
    "Log start offset of a partition, as Kafka clients see it.",
    _PLACE,
    by_one_broker=True,
)
LEADER: Final = Family(
    "kafka_topic_partition_leader",
    Kind.GAUGE,
    "Node ID of a partition's leader, this broker.",
    _PLACE,
    by_one_broker=True,
)
LEADER_IS_PREFERRED: Final = Family(
    "kafka_topic_partition_leader_is_preferred",
    Kind.GAUGE,
    "Whether the leader of a partition is the preferred one: always 1.",
    _PLACE,
    by_one_broker=True,
)
REPLICAS: Final = Family(
    "kafka_topic_partition_replicas",
    Kind.GAUGE,
    "Copies that a partition should have, with the primary's.",
    _PLACE,
    by_one_broker=True,
)
IN_SYNC_REPLICAS: Final = Family(
    "kafka_topic_partition_in_sync_replica",
    Kind.GAUGE,
    "Copies of a partition that are in sync, with the primary's.",
    _PLACE,
    by_one_broker=True,
)
UNDER_REPLICATED: Final = Family(
    "kafka_topic_partition_under_replicated_partition",
    Kind.GAUGE,
    "Whether a partition has fewer copies in sync than it should have (1) or not (0).",
    _PLACE,
    by_one_broker=True,
)
LATEST_OFFSET: Final = Family(
    "kafka_partition_latest_offset",
    Kind.GAUGE,
    "Records ever appended to a partition (name of kafka-lag-exporter).",
    _CLUSTER_PLACE,
    by_one_broker=True,
)
EARLIEST_OFFSET: Final = Family(
    "kafka_partition_earliest_offset",
    Kind.GAUGE,
    "Records of a partition that are deleted (name of kafka-lag-exporter).",
    _CLUSTER_PLACE,
    by_one_broker=True,
)
COUNTS_AGE: Final = Family(
    "korvet_record_counts_age_seconds",
    Kind.GAUGE,
    "Time since the last complete look at the ends of partitions and the positions of groups, in seconds.",
)
COUNTS_ROUND: Final = Family(
    "korvet_record_counts_round_seconds",
    Kind.HISTOGRAM,
    "Duration of a look at partitions and groups, in seconds; see metrics.lag.interval.ms.",
)
COUNTS_READ: Final = Family(
    "korvet_record_counts_read_total",
    Kind.COUNTER,
    "What these looks read from Redis: ends of partitions, and positions of groups that had moved.",
    ("what",),
)
COUNTS_FAILURES: Final = Family(
    "korvet_record_counts_failures_total",
    Kind.COUNTER,
    "Partitions that could not be read in a look; they keep their last values.",
)
TOPICS_LEFT_OUT: Final = Family(
    "korvet_metrics_topics_left_out",
    Kind.GAUGE,
    "Topics with partitions that the broker leads and does not show, because of metrics.topics or "
    "metrics.max.rows.",
)
