"""The dashboard of consumer groups and topics."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panel import (
    GROUP,
    JOB,
    NAMED,
    OF_BOTH,
    TOPIC,
    TRAFFIC,
    Dashboard,
    Panel,
    Row,
    quantile,
    rate,
)

_COMMITS: Final = 'request=~"OffsetCommit|TxnOffsetCommit"'

LAG: Final = Row(
    "Consumer groups",
    (
        Panel(
            "Unread records",
            "Records that each group has not committed, exact for every kind of topic.",
            (
                (
                    f"sum by (consumergroup) (kafka_consumergroup_lag{{{OF_BOTH}}} >= 0)",
                    NAMED,
                ),
            ),
            width=12,
        ),
        Panel(
            "Lag in time",
            "How long the first unread record has been waiting.",
            (
                (
                    f'max by (group) (kafka_consumergroup_group_lag_seconds{{group=~"$group",{TOPIC}}})',
                    "{{group}}",
                ),
            ),
            "s",
            width=12,
        ),
        Panel(
            "Records read",
            "Records per second that each group commits.",
            (
                (
                    f"sum by (consumergroup) ({rate('kafka_consumergroup_current_offset', OF_BOTH)})",
                    NAMED,
                ),
            ),
            "cps",
        ),
        Panel(
            "Members",
            "Members of each group.",
            ((f"kafka_consumergroup_members{{{GROUP}}}", NAMED),),
        ),
        Panel(
            "Unread records by partition",
            "The partitions with the most unread records.",
            ((f"topk(20, kafka_consumergroup_lag{{{OF_BOTH}}})", ""),),
            kind="table",
        ),
    ),
)

COORDINATION: Final = Row(
    "Coordination",
    (
        Panel(
            "Rebalances",
            "Rebalances per minute of each group.",
            (
                (
                    f"60 * sum by (consumergroup) ({rate('korvet_consumergroup_rebalances_total', GROUP)})",
                    NAMED,
                ),
            ),
        ),
        Panel(
            "Duration of rebalances, p99",
            "From the beginning of a rebalance until the group is stable, for all groups.",
            ((quantile(0.99, "korvet_group_coordinator_rebalance_seconds", "job", JOB), "all groups"),),
            "s",
        ),
        Panel(
            "Commits",
            "Commit requests per second of each group.",
            ((f"sum by (consumergroup) ({rate('korvet_consumergroup_commits_total', GROUP)})", NAMED),),
            "cps",
        ),
        Panel(
            "Duration of commits, p99",
            "From the arrival of a request with commits to the answer, for all groups.",
            ((quantile(0.99, "korvet_request_seconds", "request", f"{_COMMITS},{JOB}"), "{{request}}"),),
            "s",
        ),
        Panel(
            "Groups by state",
            "Groups of all coordinators by state.",
            (("sum by (state) (korvet_consumergroups)", "{{state}}"),),
        ),
        Panel(
            "Members that left without a word",
            "Members per minute that were removed because they sent no heartbeat in time.",
            ((f"60 * sum({rate('korvet_group_coordinator_expired_members_total', JOB)})", "all groups"),),
        ),
    ),
)

REDIS_GROUPS: Final = Row(
    "Redis groups",
    (
        Panel(
            "Pending entries",
            "Entries that consumers of a Redis group have received and not acknowledged.",
            ((f"sum by (consumergroup) (korvet_redis_group_pending_entries{{{OF_BOTH}}})", NAMED),),
        ),
        Panel(
            "Oldest pending entry",
            "Time since the oldest pending entry was delivered.",
            (
                (
                    f"max by (consumergroup) (korvet_redis_group_oldest_pending_idle_seconds{{{OF_BOTH}}})",
                    NAMED,
                ),
            ),
            "s",
        ),
        Panel(
            "Not shown, or set again",
            "Topics and groups that the settings leave out of metrics, and Redis groups that did not follow.",
            (
                ("sum(korvet_metrics_topics_left_out)", "topics left out"),
                ("sum(korvet_metrics_groups_left_out)", "groups left out"),
                ("sum(korvet_redis_groups_diverged)", "Redis groups set again"),
            ),
        ),
    ),
)

TOPICS: Final = Row(
    "Topics",
    (
        Panel(
            "Records appended",
            "Records per second of each topic, also those of Redis clients.",
            ((f"sum by (topic) ({rate('kafka_topic_partition_current_offset', TOPIC)})", "{{topic}}"),),
            "cps",
            width=12,
        ),
        Panel(
            "Bytes in",
            "Bytes of record batches per second from producers.",
            ((f"sum by (topic) ({rate(f'{TRAFFIC}_bytesin_total', TOPIC)})", "{{topic}}"),),
            "Bps",
            width=12,
        ),
        Panel(
            "Records kept",
            "Distance of the log end from the log start, in records. Deleted records in between count.",
            (
                (
                    f"sum by (topic) (kafka_topic_partition_current_offset{{{TOPIC}}}"
                    f" - kafka_topic_partition_oldest_offset{{{TOPIC}}})",
                    "{{topic}}",
                ),
            ),
            width=12,
        ),
        Panel(
            "Size",
            "Bytes of each topic in Redis.",
            ((f"sum by (topic) (kafka_log_log_size{{{TOPIC}}})", "{{topic}}"),),
            "bytes",
            width=12,
        ),
    ),
)

GROUPS: Final = Dashboard(
    "groups",
    "korvet: groups and topics",
    "Lag, members and commits of consumer groups; rate and size of topics.",
    (
        ("group", "label_values(kafka_consumergroup_members, consumergroup)"),
        ("topic", "label_values(kafka_topic_partitions, topic)"),
    ),
    (LAG, COORDINATION, REDIS_GROUPS, TOPICS),
)
