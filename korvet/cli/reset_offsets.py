"""`korvet groups reset-offsets`: does what kafka-consumer-groups and kafka-share-groups --reset-offsets do.

The preview shows the distance in records too, because a difference of offsets isn't a number of records.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import click
from kio.schema.consumer_group_describe.v1.response import DescribedGroup as ConsumerGroup
from kio.schema.describe_groups.v5.response import DescribedGroup as ClassicGroup
from kio.schema.share_group_describe.v1.response import DescribedGroup as ShareGroup

from korvet.cli import group_requests, record_counts, share_requests
from korvet.cli.client import Bootstrap, ClientError, Cluster
from korvet.cli.log_requests import EARLIEST, LATEST, list_offsets
from korvet.cli.options import Duration, Places, Time, TopicPartitions, bootstrap_option, json_option
from korvet.cli.output import print_json, table
from korvet.cli.record_counts import Place
from korvet.cli.redis_address import RedisSource, redis_options

_Described = ConsumerGroup | ClassicGroup | ShareGroup

# The states of groups without members. A group that doesn't exist is Dead, and a commit creates it.
_WITHOUT_MEMBERS = ("Empty", "Dead")


@click.command("reset-offsets")
@click.argument("name")
@click.option(
    "-t", "--topic", "places", type=TopicPartitions(), multiple=True, help="What to reset. Repeatable."
)
@click.option("--all-topics", is_flag=True, help="Reset every partition that the group has committed.")
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="OFFSET", help="To this offset.")
@click.option("--to-datetime", type=Time(), help="To the first record of that time or later.")
@click.option("--by-duration", type=Duration(), help="To the first record of the last 90m, 1d, PT1H ...")
@click.option("--execute", is_flag=True, help="Commit the new offsets.")
@bootstrap_option
@redis_options("The Redis that holds the data, to count records.")
@json_option
def reset_offsets(
    name: str,
    places: tuple[Places, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: int | None,
    by_duration: int | None,
    execute: bool,
    bootstrap: Bootstrap,
    source: RedisSource,
    as_json: bool,
) -> None:
    """Move the committed offsets of a group without members, or where a share group begins.

    Without --execute, nothing changes: the command shows the current and the new offset of each partition,
    and the distance in offsets and in records, which is negative if the group will read records again.
    Records are counted in Redis; if it isn't reachable, "-" is shown, except with dense offsets.

    All locks of a share group end, also those of its native consumers.
    """
    if bool(places) == all_topics:
        raise click.UsageError("give --topic or --all-topics")
    asked = [
        EARLIEST if to_earliest else None,
        LATEST if to_latest else None,
        to_datetime,
        None if by_duration is None else max(0, time.time_ns() // 1_000_000 - by_duration),
    ]
    targets = [each for each in asked if each is not None]
    if len(targets) + (to_offset is not None) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration"
        )
    with Cluster(bootstrap) as cluster:
        shared = share_requests.describe(cluster, name)
        _refuse_members(name, shared or group_requests.describe_group(cluster, name))
        current = _current(cluster, name) if shared is None else _starts(cluster, name)
        change = group_requests.commit_offsets if shared is None else share_requests.alter_offsets
        wanted = _existing(cluster, current) if all_topics else _places(cluster, places)
        if not wanted:
            raise ClientError(f"group {name} has no offsets of existing topics; name a topic with --topic")
        new = _targets(cluster, wanted, targets[0] if targets else None, to_offset)
        spans = {place: (current[place], offset) for place, offset in new.items() if place in current}
        counts = record_counts.between(source, cluster, spans)
        refused = change(cluster, name, new) if execute else {}
    rows = [_row(place, current.get(place), new[place], counts.get(place)) for place in wanted]
    if as_json:
        print_json({"group": name, "executed": execute and not refused, "offsets": rows})
    else:
        titles = ("TOPIC", "PARTITION", "CURRENT", "NEW", "OFFSETS", "RECORDS")
        table(titles, [tuple(row.values()) for row in rows])
        if not execute:
            click.echo("\nNothing was changed. Add --execute to commit the new offsets.")
    if refused:
        done = len(new) - len(refused)
        raise ClientError(f"{'; '.join(map(str, refused.values()))}; {done} of {len(new)} offsets were reset")


def _current(cluster: Cluster, name: str) -> dict[Place, int]:
    """Returns the committed offsets of a group."""
    committed = group_requests.committed_offsets(cluster, name)
    return {place: int(part.committed_offset) for place, part in committed.items()}


def _starts(cluster: Cluster, name: str) -> dict[Place, int]:
    """Returns where a share group begins."""
    offsets = share_requests.offsets(cluster, name)
    return {place: int(part.start_offset) for place, part in offsets.items() if part.start_offset >= 0}


def _refuse_members(name: str, found: _Described) -> None:
    """Raise ClientError if a group has members: the coordinator would refuse the commit, and a member's next
    commit would undo it.
    """
    if found.group_state not in _WITHOUT_MEMBERS:
        count = len(found.members)
        raise ClientError(
            f"group {name} is {found.group_state} with {count} member{'s' if count != 1 else ''}: "
            "stop its consumers, or wait for their session timeout, and try again"
        )


def _existing(cluster: Cluster, committed: Iterable[Place]) -> list[Place]:
    """Returns the partitions that exist. The offsets of a deleted topic can stay for a while."""
    topics = {str(topic.name): len(topic.partitions) for topic in cluster.metadata().topics}
    return sorted(place for place in committed if place[1] < topics.get(place[0], 0))


def _places(cluster: Cluster, asked: Iterable[Places]) -> list[Place]:
    """Returns the named partitions. Raises ClientError if one doesn't exist."""
    found: set[Place] = set()
    for topic, partitions in asked:
        existing = {int(part.partition_index) for part in cluster.topic(topic).partitions}
        for partition in existing if partitions is None else partitions:
            if partition not in existing:
                raise ClientError(f"{topic} has no partition {partition}")
            found.add((topic, partition))
    return sorted(found)


def _targets(
    cluster: Cluster, places: Sequence[Place], timestamp: int | None, offset: int | None
) -> dict[Place, int]:
    """Returns the new offset of each partition, within the partition's log."""
    new: dict[Place, int] = {}
    for topic in sorted({topic for topic, _ in places}):
        indexes = [index for of_topic, index in places if of_topic == topic]
        ends = list_offsets(cluster, topic, indexes, LATEST)
        if timestamp is not None:
            found = list_offsets(cluster, topic, indexes, timestamp)
            # After the last record's time, the next record is the first one.
            new |= {(topic, i): found[i] if found[i] >= 0 else ends[i] for i in indexes}
            continue
        starts = list_offsets(cluster, topic, indexes, EARLIEST)
        for i in indexes:
            new[topic, i] = max(starts[i], min(offset or 0, ends[i]))
            if new[topic, i] != offset:
                click.echo(
                    f"{topic} partition {i} has offsets from {starts[i]} to {ends[i]}: "
                    f"{new[topic, i]} is the nearest to {offset}",
                    err=True,
                )
    return new


def _row(place: Place, current: int | None, new: int, records: int | None) -> dict[str, Any]:
    return {
        "topic": place[0],
        "partition": place[1],
        "current": current,
        "new": new,
        "offsets": None if current is None else new - current,
        "records": records,
    }
