"""`korvet topics`: does for topics what kafka-topics and kafka-configs do."""

import click
from kio.schema.errors import ErrorCode

from korvet.cli import config_requests, topic_requests
from korvet.cli.client import Bootstrap, ClientError, Cluster
from korvet.cli.config_requests import ResourceType
from korvet.cli.delete_records import delete_records
from korvet.cli.log_requests import EARLIEST, LATEST, list_offsets
from korvet.cli.options import KeyValue, bootstrap_option, json_option, partition_count
from korvet.cli.output import print_json, size, table
from korvet.cli.topic_sizes import NOTHING, topic_sizes


@click.group()
def topics() -> None:
    """List, create, describe, change and delete topics, and delete their records."""


topics.add_command(delete_records)


@topics.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@bootstrap_option
@json_option
def list_topics(internal: bool, bootstrap: Bootstrap, as_json: bool) -> None:
    """List all topics with their sizes.

    PAYLOAD is the bytes of keys, values and headers that are in the topic. MEMORY is an estimate of what they
    take in Redis: the topic's share, by payload, of the memory in use. The last row has the sums.
    """
    with Cluster(bootstrap) as cluster:
        found = [
            topic
            for topic in sorted(cluster.metadata().topics, key=lambda topic: topic.name or "")
            if internal or not topic.is_internal
        ]
        sizes = topic_sizes(cluster, [topic.name or "" for topic in found])
    rows = [
        (topic.name or "", len(topic.partitions), topic.is_internal, sizes[topic.name or ""])
        for topic in found
    ]
    if as_json:
        print_json(
            [
                {"topic": name, "partitions": count, "internal": is_internal, **of_topic._asdict()}
                for name, count, is_internal, of_topic in rows
            ]
        )
        return
    total = sum(sizes.values(), NOTHING)
    table(
        ("TOPIC", "PARTITIONS", "INTERNAL", "PAYLOAD", "MEMORY"),
        [
            *((*row, *map(size, of_topic)) for *row, of_topic in rows),
            ("", sum(count for _, count, _, _ in rows), "", *map(size, total)),
        ],
    )


@topics.command("create")
@click.argument("name")
@partition_count("Number of partitions [the broker's default].")
@click.option("-c", "--config", "configs", type=KeyValue(), multiple=True, help="Topic config. Repeatable.")
@click.option("--if-not-exists", "lenient", is_flag=True, help="Succeed if the topic exists already.")
@bootstrap_option
def create_topic(
    name: str,
    partitions: int | None,
    configs: tuple[tuple[str, str], ...],
    lenient: bool,
    bootstrap: Bootstrap,
) -> None:
    """Create a topic."""
    with Cluster(bootstrap) as cluster:
        try:
            count = topic_requests.create_topic(cluster, name, partitions, dict(configs))
        except ClientError as error:
            if not lenient or error.code is not ErrorCode.topic_already_exists:
                raise
            click.echo(f"{name} exists already")
            return
    click.echo(f"created {name} with {count} partition{'s' if count != 1 else ''}")


@topics.command("describe")
@click.argument("name")
@bootstrap_option
@json_option
def describe_topic(name: str, bootstrap: Bootstrap, as_json: bool) -> None:
    """Show a topic's partitions, their offsets, and its configs."""
    with Cluster(bootstrap) as cluster:
        topic = cluster.topic(name)
        indexes = sorted(int(part.partition_index) for part in topic.partitions)
        leaders = {int(part.partition_index): int(part.leader_id) for part in topic.partitions}
        copies = {
            int(part.partition_index): (len(part.replica_nodes), len(part.isr_nodes))
            for part in topic.partitions
        }
        starts = list_offsets(cluster, name, indexes, EARLIEST)
        ends = list_offsets(cluster, name, indexes, LATEST)
        configs = config_requests.describe(cluster, ResourceType.TOPIC, name)
    if as_json:
        print_json(
            {
                "topic": name,
                "topic_id": None if topic.topic_id is None else str(topic.topic_id),
                "internal": topic.is_internal,
                "partitions": [
                    {
                        "partition": i,
                        "leader": leaders[i],
                        "replicas": copies[i][0],
                        "in_sync": copies[i][1],
                        "log_start": starts[i],
                        "log_end": ends[i],
                    }
                    for i in indexes
                ],
                "configs": {config.name: config.value for config in configs},
            }
        )
        return
    click.echo(f"{name}  (id {topic.topic_id}{', internal' if topic.is_internal else ''})\n")
    rows = [(i, leaders[i], *copies[i], starts[i], ends[i]) for i in indexes]
    table(("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "LOG START", "LOG END"), rows)
    click.echo()
    table(("SETTING", "VALUE"), [(config.name, config.value) for config in configs])


@topics.command("alter")
@click.argument("name")
@partition_count("New, larger number of partitions.")
@click.option(
    "-c", "--config", "configs", type=KeyValue(), multiple=True, help="Config to change. Repeatable."
)
@click.option("--unset", multiple=True, metavar="KEY", help="Config to reset to its default. Repeatable.")
@bootstrap_option
def alter_topic(
    name: str,
    partitions: int | None,
    configs: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    bootstrap: Bootstrap,
) -> None:
    """Add partitions or change configs."""
    changes: dict[str, str | None] = {**dict(configs), **dict.fromkeys(unset)}
    if partitions is None and not changes:
        raise click.UsageError("nothing to change: give --partitions, --config or --unset")
    with Cluster(bootstrap) as cluster:
        if partitions is not None:
            if changes:
                # A value that doesn't fit must leave the partitions as they are, too.
                config_requests.alter(cluster, ResourceType.TOPIC, name, changes, validate_only=True)
            topic_requests.add_partitions(cluster, name, partitions)
        if changes:
            config_requests.alter(cluster, ResourceType.TOPIC, name, changes)
    click.echo(f"changed {name}")


@topics.command("delete")
@click.argument("names", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@bootstrap_option
def delete_topics(names: tuple[str, ...], yes: bool, bootstrap: Bootstrap) -> None:
    """Delete topics and all their records."""
    if not yes:
        click.confirm(f"Delete {', '.join(names)} with all records?", abort=True)
    with Cluster(bootstrap) as cluster:
        for name in names:
            topic_requests.delete_topic(cluster, name)
            click.echo(f"deleted {name}")
