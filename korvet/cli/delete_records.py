"""`korvet topics delete-records`: does what kafka-delete-records does."""

import click

from korvet.cli import record_counts, topic_requests
from korvet.cli.client import Bootstrap, ClientError, Cluster
from korvet.cli.log_requests import EARLIEST, LATEST, list_offsets
from korvet.cli.options import PartitionOffset, Time, bootstrap_option, json_option
from korvet.cli.output import print_json, table
from korvet.cli.redis_address import RedisSource, redis_options


@click.command("delete-records")
@click.argument("name")
@click.option(
    "-p",
    "--partition",
    "before",
    type=PartitionOffset(),
    multiple=True,
    help="Delete the records before an offset. Repeatable.",
)
@click.option("--before-timestamp", type=Time(), help="Delete what precedes the first record of that time.")
@click.option("--all", "everything", is_flag=True, help="Delete all records that exist now.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@bootstrap_option
@redis_options("The Redis that holds the data, to count records.")
@json_option
def delete_records(
    name: str,
    before: tuple[tuple[int, int], ...],
    before_timestamp: int | None,
    everything: bool,
    yes: bool,
    bootstrap: Bootstrap,
    source: RedisSource,
    as_json: bool,
) -> None:
    """Delete a topic's oldest records.

    Shows each partition's log start, the new one, and how many records will be deleted ("-" if Redis isn't
    reachable), and asks for confirmation.
    """
    if bool(before) + (before_timestamp is not None) + everything != 1:
        raise click.UsageError("give one of --partition, --before-timestamp, --all")
    if len(dict(before)) < len(before):
        raise click.UsageError("give one offset for each partition")
    if as_json and not yes:
        raise click.UsageError("--json needs --yes")
    with Cluster(bootstrap) as cluster:
        topic = cluster.topic(name)
        if topic.is_internal:
            raise ClientError(f"{name} is an internal topic: its records cannot be deleted")
        existing = [int(part.partition_index) for part in topic.partitions]
        wanted = dict(before) or dict.fromkeys(sorted(existing), 0)
        starts = list_offsets(cluster, name, wanted, EARLIEST)
        ends = list_offsets(cluster, name, wanted, LATEST)
        if before_timestamp is not None:
            found = list_offsets(cluster, name, wanted, before_timestamp)
            wanted = {index: found[index] if found[index] >= 0 else ends[index] for index in wanted}
        elif everything:
            wanted = {index: ends[index] for index in wanted}
        for index, offset in wanted.items():
            if offset > ends[index]:
                raise ClientError(
                    f"{name} partition {index} ends at offset {ends[index]}, before {offset}: "
                    "nothing was deleted"
                )
        spans = {(name, index): (starts[index], max(starts[index], wanted[index])) for index in wanted}
        if not yes:
            counts = record_counts.between(source, cluster, spans)
            rows = [(index, *spans[name, index], counts[name, index]) for index in wanted]
            table(("PARTITION", "LOG START", "NEW LOG START", "RECORDS TO DELETE"), rows)
            click.confirm(f"\nDelete these records of {name}?", abort=True)
        done = topic_requests.delete_records(cluster, name, wanted)
    errors = [each for each in done.values() if isinstance(each, ClientError)]
    deleted = {index: each for index, each in sorted(done.items()) if not isinstance(each, ClientError)}
    if as_json:
        print_json([{"partition": index, "log_start": start} for index, start in deleted.items()])
    else:
        for index, start in deleted.items():
            click.echo(f"{name} partition {index} now starts at offset {start}")
    if errors:
        raise ClientError("; ".join(map(str, errors)))
