"""Share groups in `korvet groups`: records that wait, and records that members and native consumers have."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click
from kio.schema.describe_share_group_offsets.v1.response import DescribeShareGroupOffsetsResponsePartition
from kio.schema.share_group_describe.v1.response import DescribedGroup, Member

from korvet.cli import group_requests, lag, share_requests
from korvet.cli.client import ClientError, Cluster
from korvet.cli.lag import LagUnknown
from korvet.cli.output import print_json, printable, table
from korvet.cli.redis_address import RedisSource
from korvet.redis.errors import StorageError
from korvet.redis_groups.share import NativeConsumer, QueueView, ShareQueue
from korvet.store import Store

PROTOCOL_TYPE = "share"
_COUNTED = ("depth", "in_flight", "dead")
_OFFSETS = ("TOPIC", "PARTITION", "START", "DEPTH")
_RECORDS = ("TIME LAG", "IN FLIGHT", "RELEASED", "DEAD")


class _Queue(NamedTuple):
    """What Redis knows of a group in one partition."""

    view: QueueView
    natives: list[NativeConsumer]


_Queues = Mapping[tuple[str, int], _Queue | None]


def depth(cluster: Cluster, group: str) -> int | None:
    """Returns how many records a group has not accepted; None, with a warning, if that is unknown."""
    try:
        lags = [part.lag for part in share_requests.offsets(cluster, group).values()]
    except ClientError as error:
        click.echo(printable(f"lag of group {group} is unknown: {error}"), err=True)
        return None
    return None if -1 in lags else sum(lags)


def show(cluster: Cluster, group: DescribedGroup, source: RedisSource, *, as_json: bool) -> None:
    """Print state, members and queues of a group."""
    members = [_member(member) for member in group.members]
    offsets = share_requests.offsets(cluster, group.group_id)
    queues = _queues(cluster, group.group_id, source, offsets)
    rows, natives = _rows(offsets, queues), _natives(queues)
    if as_json:
        document = {"group": group.group_id, "state": group.group_state, "protocol": group.assignor_name}
        totals = {name: _sum(rows, name) for name in _COUNTED}
        print_json(
            {**document, **totals, "members": members, "native_consumers": natives, "partitions": rows}
        )
        return
    click.echo(f"{group.group_id}  {group.group_state}  {printable(group.assignor_name)}\n")
    table(
        ("MEMBER", "CLIENT", "HOST", "ASSIGNED"),
        [(m["member"], m["client"], m["host"], ", ".join(m["assigned"])) for m in members],
    )
    click.echo()
    if natives:
        table(
            ("NATIVE CONSUMER", "IN FLIGHT", "IDLE", "PARTITIONS"),
            [
                (n["consumer"], n["in_flight"], lag.waiting(n["idle_ms"]), ", ".join(n["partitions"]))
                for n in natives
            ],
        )
        click.echo()
    table(_OFFSETS + _RECORDS, [[*(row | {"lag_ms": lag.waiting(row["lag_ms"])}).values()] for row in rows])


def show_offsets(cluster: Cluster, group: str, *, as_json: bool) -> None:
    """Print the start and the depth of a group in each partition."""
    rows = [_start(*place, offset) for place, offset in share_requests.offsets(cluster, group).items()]
    if as_json:
        print_json(rows)
    else:
        table(_OFFSETS, [[*row.values()] for row in rows])


def _member(member: Member) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.client_host,
        "assigned": group_requests.assigned(member),
    }


def _rows(
    offsets: Mapping[tuple[str, int], DescribeShareGroupOffsetsResponsePartition], queues: _Queues
) -> list[dict[str, Any]]:
    """Returns a row for each partition; None is unknown."""
    rows, now_ms = [], time.time_ns() // 1_000_000
    for (topic, partition), offset in offsets.items():
        queue = queues.get((topic, partition))
        view = None if queue is None else queue.view
        rows.append(
            _start(topic, partition, offset)
            | {
                "lag_ms": None if view is None else view.waiting_ms(now_ms),
                "in_flight": None if view is None else view.members + view.natives,
                "released": None if view is None else view.released,
                "dead": None if view is None else view.dead,
            }
        )
    return rows


def _start(topic: str, partition: int, offset: DescribeShareGroupOffsetsResponsePartition) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "start": None if offset.start_offset < 0 else int(offset.start_offset),
        "depth": None if offset.lag < 0 else int(offset.lag),
    }


def _natives(queues: _Queues) -> list[dict[str, Any]]:
    """Returns a row for each native consumer, with the partitions in which it has records."""
    found: dict[str, dict[str, Any]] = {}
    for (topic, partition), queue in queues.items():
        for name, records, idle_ms in () if queue is None else queue.natives:
            new = {"consumer": name, "in_flight": 0, "idle_ms": idle_ms, "partitions": []}
            row = found.setdefault(name, new)
            row["in_flight"] += records
            row["idle_ms"] = min(row["idle_ms"], idle_ms)
            if records:
                row["partitions"].append(f"{topic}-{partition}")
    return [found[name] for name in sorted(found)]


def _queues(cluster: Cluster, group: str, source: RedisSource, places: Iterable[tuple[str, int]]) -> _Queues:
    """Returns what Redis knows of the partitions. If that is nothing, a line on standard error says why."""

    async def read(store: Store) -> dict[tuple[str, int], _Queue | None]:
        wanted = list(places)
        found = await asyncio.gather(*(_queue(store, group, *place) for place in wanted))
        return dict(zip(wanted, found, strict=True))

    try:
        return lag.read_store(source, cluster.metadata([]).cluster_id, read)
    except LagUnknown as error:
        click.echo(f"records in flight are unknown: {error}", err=True)
        return {}


async def _queue(store: Store, group: str, name: str, partition: int) -> _Queue | None:
    topic = store.catalogue.get(name)
    if topic is None:
        return None
    queue = ShareQueue(store.commands, topic, partition, group)
    try:
        view = await queue.view()
        return None if view is None else _Queue(view, await queue.native_consumers())
    except StorageError as error:
        click.echo(f"records of {name} partition {partition} in flight are unknown: {error}", err=True)
        return None


def _sum(rows: list[dict[str, Any]], name: str) -> int | None:
    found = [row[name] for row in rows]
    return None if None in found else sum(found)
