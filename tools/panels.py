"""The panels of the Grafana dashboards: what each shows, and its PromQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `targets`: expressions with the legend of their series."""

    title: str
    about: str
    targets: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    alarming: float | None = None
    """The value from which a single figure is red."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard. `variables`: names with the query of their values."""

    name: str
    title: str
    about: str
    variables: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]


def figure(
    title: str, about: str, expression: str, unit: str = "short", alarming: float | None = None
) -> Panel:
    """Returns a panel with a single figure."""
    return Panel(title, about, ((expression, ""),), unit, "stat", 4, alarming)


RATE: Final = "[$__rate_interval]"
BROKER: Final = 'instance=~"$broker"'
TOPIC: Final = 'topic=~"$topic"'
GROUP: Final = 'consumergroup=~"$group"'
OF_BOTH: Final = f"{GROUP},{TOPIC}"
TRAFFIC: Final = "kafka_server_brokertopicmetrics"


def rate(name: str, matchers: str = BROKER) -> str:
    """Returns the expression of a counter's increase per second."""
    return f"rate({name}{{{matchers}}}{RATE})"


def quantile(part: float, name: str, by: str, matchers: str = BROKER) -> str:
    """Returns the expression of a histogram's quantile."""
    return f"histogram_quantile({part}, sum by (le, {by}) ({rate(f'{name}_bucket', matchers)}))"


def all_topics(name: str) -> str:
    """Returns the rate of a counter of Kafka's over all topics: the series without a topic."""
    per_second = rate(f"{TRAFFIC}_{name}_total", f'topic="",{BROKER}')
    return f"sum({per_second})"


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
            "sum(kafka_cluster_partition_underminisr)",
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

PROCESS: Final = Row(
    "Broker processes",
    (
        Panel(
            "Processor",
            "Share of one core that each broker uses. A broker uses one core at most.",
            ((rate("process_cpu_seconds_total", f'job="korvet",{BROKER}'), "{{instance}} {{node_id}}"),),
            "percentunit",
        ),
        Panel(
            "Event loop lag, p99",
            "By how much the event loop runs due work late. Every request waits as long.",
            (
                (
                    quantile(0.99, "korvet_event_loop_lag_seconds", "instance, node_id"),
                    "{{instance}} {{node_id}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Memory",
            "Resident memory of each broker.",
            ((f'process_resident_memory_bytes{{job="korvet",{BROKER}}}', "{{instance}} {{node_id}}"),),
            "bytes",
        ),
        Panel(
            "Open files",
            "Open files, with connections, as a share of the limit.",
            (
                (
                    f'process_open_fds{{job="korvet",{BROKER}}} / process_max_fds{{job="korvet",{BROKER}}}',
                    "{{instance}} {{node_id}}",
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

LAG: Final = Row(
    "Consumer groups",
    (
        Panel(
            "Unread records",
            "Records that each group has not committed, exact for every kind of topic.",
            (
                (
                    f"sum by (consumergroup) (kafka_consumergroup_lag{{{OF_BOTH}}} >= 0)",
                    "{{consumergroup}}",
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
                    "{{consumergroup}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Members",
            "Members of each group.",
            ((f"kafka_consumergroup_members{{{GROUP}}}", "{{consumergroup}}"),),
        ),
        Panel(
            "Unread records by partition",
            "The partitions with the most unread records.",
            ((f"topk(20, kafka_consumergroup_lag{{{OF_BOTH}}})", ""),),
            kind="table",
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

DASHBOARDS: Final = (
    Dashboard(
        "cluster",
        "korvet: cluster",
        "Brokers, traffic, requests and Redis.",
        (("broker", "label_values(korvet_build_info, instance)"),),
        (HEALTH, TRAFFIC_ROW, PROCESS),
    ),
    Dashboard(
        "groups",
        "korvet: groups and topics",
        "Lag, members and commits of consumer groups; rate and size of topics.",
        (
            ("group", "label_values(kafka_consumergroup_members, consumergroup)"),
            ("topic", "label_values(kafka_topic_partitions, topic)"),
        ),
        (LAG, TOPICS),
    ),
)
