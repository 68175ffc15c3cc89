"""Share groups in `korvet groups`: records that wait, and records that members and native consumers have."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import click
from kio.schema.share_group_describe.v1.response import DescribedGroup, Member

from korvet.cli import group_requests, lag
from korvet.cli.client import ClientError, Cluster
from korvet.cli.lag import LagUnknown
from korvet.cli.output import print_json, printable, table
from korvet.cli.redis_address import RedisSource
from korvet.redis.errors import StorageError
from korvet.redis_groups.share import QueueView, ShareQueue
from korvet.store import Store

PROTOCOL_TYPE = "share"


def depth(cluster: Cluster, group: str) -> int | None:
    """Returns how many records a group has not accepted; None, with a warning, if that is unknown."""
    try:
        lags = [part.lag for part in group_requests.share_offsets(cluster, group).values()]
    except ClientError as error:
        click.echo(printable(f"lag of group {group} is unknown: {error}"), err=True)
        return None
    return None if -1 in lags else sum(lags)


def show(cluster: Cluster, group: DescribedGroup, source: RedisSource, *, as_json: bool) -> None:
    """Print state, members and queues of a group."""
    members = [_member(member) for member in group.members]
    queues = _queues(cluster, group.group_id, source)
    if as_json:
        document = {"group": group.group_id, "state": group.group_state, "protocol": group.assignor_name}
        totals = {name: _sum(queues, name) for name in ("depth", "in_flight")}
        print_json({**document, **totals, "members": members, "partitions": queues})
        return
    click.echo(f"{group.group_id}  {group.group_state}  {printable(group.assignor_name)}\n")
    table(
        ("MEMBER", "CLIENT", "HOST", "ASSIGNED"),
        [(m["member"], m["client"], m["host"], ", ".join(m["assigned"])) for m in members],
    )
    click.echo()
    table(
        ("TOPIC", "PARTITION", "START", "DEPTH", "IN FLIGHT", "RELEASED"), [[*row.values()] for row in queues]
    )


def _member(member: Member) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.client_host,
        "assigned": group_requests.assigned(member),
    }


def _queues(cluster: Cluster, group: str, source: RedisSource) -> list[dict[str, Any]]:
    """Returns a row for each partition; None is unknown."""
    offsets = group_requests.share_offsets(cluster, group)
    views = _views(cluster, group, source, offsets)
    rows = []
    for (topic, partition), offset in offsets.items():
        view = views.get((topic, partition))
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "start": None if offset.start_offset < 0 else int(offset.start_offset),
                "depth": None if offset.lag < 0 else int(offset.lag),
                "in_flight": None if view is None else view.members + view.natives,
                "released": None if view is None else view.released,
            }
        )
    return rows


def _views(
    cluster: Cluster, group: str, source: RedisSource, places: Iterable[tuple[str, int]]
) -> Mapping[tuple[str, int], QueueView | None]:
    """Returns what Redis knows of the partitions. If that is nothing, a line on standard error says why."""

    async def read(store: Store) -> dict[tuple[str, int], QueueView | None]:
        wanted = list(places)
        views = await asyncio.gather(*(_view(store, group, *place) for place in wanted))
        return dict(zip(wanted, views, strict=True))

    try:
        return lag.read_store(source, cluster.metadata([]).cluster_id, read)
    except LagUnknown as error:
        click.echo(f"records in flight are unknown: {error}", err=True)
        return {}


async def _view(store: Store, group: str, name: str, partition: int) -> QueueView | None:
    topic = store.catalogue.get(name)
    if topic is None:
        return None
    try:
        return await ShareQueue(store.commands, topic, partition, group).view()
    except StorageError as error:
        click.echo(f"records of {name} partition {partition} in flight are unknown: {error}", err=True)
        return None


def _sum(rows: list[dict[str, Any]], name: str) -> int | None:
    found = [row[name] for row in rows]
    return None if None in found else sum(found)
