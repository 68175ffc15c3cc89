"""`korvet groups`: state, members, committed offsets and lag of consumer groups."""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import click
import msgspec
from kio.schema.consumer_group_describe.v1.response import Member as ConsumerMember
from kio.schema.describe_groups.v5.response import DescribedGroup, DescribedGroupMember
from kio.schema.list_groups.v4.response import ListedGroup

from korvet.cli import fetched_lag, group_requests, lag, share_groups, share_requests
from korvet.cli.client import Bootstrap, ClientError, Cluster
from korvet.cli.lag import Commit, Lag, Lags, LagUnknown, Waiting
from korvet.cli.log_requests import LATEST, list_offsets
from korvet.cli.options import bootstrap_option, json_option
from korvet.cli.output import print_json, printable, table
from korvet.cli.redis_address import RedisSource, redis_options
from korvet.cli.reset_offsets import reset_offsets
from korvet.offsets.codec import DecodeError
from korvet.offsets.consumer_protocol import decode_assignment
from korvet.offsets.group_status import OK

# Limits the groups whose lag `list` counts: more would take seconds. `describe` counts the lag of one.
_MOST_GROUPS_COUNTED = 500
_REDIS_HELP = "The Redis that holds the data, for lag."


@click.group()
def groups() -> None:
    """Show, reset and delete consumer groups: members, offsets, lag."""


groups.add_command(reset_offsets)


@groups.command("list")
@bootstrap_option
@redis_options(_REDIS_HELP)
@json_option
def list_groups(bootstrap: Bootstrap, source: RedisSource, as_json: bool) -> None:
    """List all groups with their lag.

    Record lag is the number of unread records of a group; time lag is how long the first of them has been
    waiting. Records are counted in Redis. If it isn't reachable, only topics with dense offsets have a record
    lag, the difference of the offsets; "-" is unknown.

    The status is lost, ahead, ok if nothing is unread, or "-" if the history of commits decides, which korvet
    report reads.

    The record lag of a share group is the number of records that it has neither accepted nor archived.
    """
    with Cluster(bootstrap) as cluster:
        listed = group_requests.list_groups(cluster)
        commits: dict[str, list[Commit]] = {}
        depths: dict[str, dict[str, int | None]] = {}
        if len(listed) <= _MOST_GROUPS_COUNTED:
            for group in listed:
                if group.protocol_type == share_groups.PROTOCOL_TYPE:
                    depths[group.group_id] = {"record_lag": share_groups.depth(cluster, group.group_id)}
                else:
                    commits[group.group_id] = _commits(cluster, group.group_id)
        else:
            click.echo(f"lag: not counted for {len(listed)} groups; describe one", err=True)
        wanted = [commit for found in commits.values() for commit in found]
        lags = _lags(source, cluster, wanted)
        found = [
            {
                "group": group.group_id,
                "state": group.group_state,
                "protocol_type": group.protocol_type,
                **lag.fields(_total(cluster, group, commits.get(group.group_id, []), lags)),
                **depths.get(group.group_id, {}),
            }
            for group in listed
        ]
    if as_json:
        print_json(found)
        return
    table(
        ("GROUP", "STATE", "PROTOCOL TYPE", "STATUS", "RECORD LAG", "TIME LAG"),
        [(*list(row.values())[:-1], lag.waiting(row["lag_ms"])) for row in found],
    )


@groups.command("describe")
@click.argument("name")
@bootstrap_option
@redis_options(_REDIS_HELP)
@json_option
def describe_group(name: str, bootstrap: Bootstrap, source: RedisSource, as_json: bool) -> None:
    """Show a group's state, members, committed offsets and lag.

    Record lag is the number of records at or after the committed offset; time lag is how long the first of
    them has been waiting, by its timestamp. Records are counted in Redis. If it isn't reachable, only topics
    with dense offsets have a record lag, the difference of the offsets; "-" is unknown.

    The status is lost, ahead, ok if nothing is unread, or "-" if the history of commits decides, which korvet
    report reads.

    A share group has no committed offsets. It is shown with the start, the depth (records neither accepted
    nor archived), the age of the first of these, the records in flight (members and native consumers have
    them), the released records and those that wait to become dead letters, of each partition; and with the
    native consumers of its Redis group.
    """
    with Cluster(bootstrap) as cluster:
        state, protocol, members = _described(cluster, name)
        shared = share_requests.describe(cluster, name) if state == "Dead" else None
        if shared is not None:
            share_groups.show(cluster, shared, source, as_json=as_json)
            return
        committed = _committed(cluster, name)
        if state == "Dead" and not committed:
            raise ClientError(f"there is no group {name}")
        commits = [Commit(row["topic"], row["partition"], row["committed"]) for row in committed]
        lags = _lags(source, cluster, commits)
    total = _judged(lag.total(commits, lags), commits, members)
    committed = [row | lag.fields(lags.get(commit)) for row, commit in zip(committed, commits, strict=True)]
    if as_json:
        document = {"group": name, "state": state, "protocol": protocol}
        document |= lag.fields(total)
        print_json({**document, "members": members, "offsets": committed})
        return
    click.echo(f"{name}  {state}  {printable(protocol)}  {lag.fields(total)['status'] or '-'}\n")
    table(
        ("MEMBER", "INSTANCE", "CLIENT", "HOST", "ASSIGNED"),
        [(m["member"], m["instance"], m["client"], m["host"], ", ".join(m["assigned"])) for m in members],
    )
    click.echo()
    _print_lag(committed)


@groups.command("offsets")
@click.argument("name")
@bootstrap_option
@json_option
def group_offsets(name: str, bootstrap: Bootstrap, as_json: bool) -> None:
    """Show the committed offsets of a group, or where a share group begins and its depth."""
    with Cluster(bootstrap) as cluster:
        if share_requests.describe(cluster, name) is not None:
            share_groups.show_offsets(cluster, name, as_json=as_json)
            return
        committed = _committed(cluster, name)
    if as_json:
        print_json(committed)
    else:
        _print_offsets(committed)


@groups.command("delete")
@click.argument("name")
@click.option("-t", "--topic", help="Delete only the offsets of this topic.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@bootstrap_option
def delete_group(name: str, topic: str | None, yes: bool, bootstrap: Bootstrap) -> None:
    """Delete a group without members, or its offsets of one topic.

    A share group forgets the topic: locks end, and it begins anew if it subscribes to the topic again.
    """
    what = f"group {name}" if topic is None else f"the offsets of group {name} for {topic}"
    if not yes:
        click.confirm(f"Delete {what}?", abort=True)
    with Cluster(bootstrap) as cluster:
        if topic is None:
            group_requests.delete_group(cluster, name)
        elif share_requests.describe(cluster, name) is not None:
            share_requests.delete_offsets(cluster, name, topic)
        else:
            committed = group_requests.committed_offsets(cluster, name)
            partitions = [part for of_topic, part in committed if of_topic == topic]
            if not partitions:
                raise ClientError(f"group {name} has no offsets for {topic}")
            group_requests.delete_offsets(cluster, name, {topic: partitions})
    click.echo(f"deleted {what}")


def _committed(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """Returns committed offset and log end of each partition, not their difference, which isn't the lag."""
    rows: list[dict[str, Any]] = []
    committed = group_requests.committed_offsets(cluster, name)
    existing = {str(topic.name): len(topic.partitions) for topic in cluster.metadata().topics}
    for topic in sorted({topic for topic, _ in committed}):
        indexes = [part for of_topic, part in committed if of_topic == topic]
        ends: dict[int, int] = {}
        if topic in existing:
            ends = list_offsets(cluster, topic, [i for i in indexes if i < existing[topic]], LATEST)
        for index in indexes:
            part = committed[topic, index]
            rows.append(
                {
                    "topic": topic,
                    "partition": index,
                    "committed": int(part.committed_offset),
                    "log_end": ends.get(index),
                    "leader_epoch": int(part.committed_leader_epoch),
                    "metadata": part.metadata or "",
                }
            )
    return rows


def _commits(cluster: Cluster, name: str) -> list[Commit]:
    """Returns a group's committed offsets; empty, with a warning, if the broker refuses the request."""
    try:
        committed = group_requests.committed_offsets(cluster, name)
    except ClientError as error:
        click.echo(printable(f"lag of group {name} is unknown: {error}"), err=True)
        return []
    return [Commit(topic, index, int(part.committed_offset)) for (topic, index), part in committed.items()]


def _total(
    cluster: Cluster, group: ListedGroup, commits: Collection[Commit], lags: Lags
) -> Lag | Waiting | None:
    """Returns the lag of a group and its status; members are asked for only if it depends on them."""
    total = lag.total(commits, lags)
    if total is None or total.status != OK or group.group_state == "Empty":
        return total
    try:
        _, _, members = _described(cluster, group.group_id)
    except ClientError as error:
        click.echo(printable(f"status of group {group.group_id} is unknown: {error}"), err=True)
        return msgspec.structs.replace(total, status=None)
    return _judged(total, commits, members)


def _judged(
    total: Lag | Waiting | None, commits: Iterable[Commit], members: Iterable[Mapping[str, Any]]
) -> Lag | Waiting | None:
    """Returns the lag without the status OK if a member has a partition without a commit."""
    if total is None or total.status != OK:
        return total
    committed = {f"{commit.topic}-{commit.partition}" for commit in commits}
    is_known = all(committed.issuperset(member["assigned"]) for member in members)
    return total if is_known else msgspec.structs.replace(total, status=None)


def _lags(source: RedisSource, cluster: Cluster, commits: Iterable[Commit]) -> Lags:
    """Returns the lag of each commit. If it is unknown, a line on standard error gives the reason."""
    commits = list(commits)
    try:
        lags = lag.measure(source, cluster.metadata([]).cluster_id, commits)
    except LagUnknown as error:
        return _fetched_lags(cluster, commits, error)
    faults = [(commit, found) for commit, found in lags.items() if not isinstance(found, Lag)]
    if faults:
        commit, fault = faults[0]
        more = f" (and {len(faults) - 1} more)" if faults[1:] else ""
        click.echo(f"lag of {commit.topic} partition {commit.partition} is unknown{more}: {fault}", err=True)
    return lags


def _fetched_lags(cluster: Cluster, commits: Iterable[Commit], reason: LagUnknown) -> Lags:
    """Returns the lag of each commit as far as brokers know it."""
    try:
        found, errors = fetched_lag.measure(cluster, commits, time.time_ns() // 1_000_000)
    except ClientError as error:
        click.echo(f"lag is unknown: {reason}; {printable(str(error))}", err=True)
        return {}
    if errors:
        more = f" (and {len(errors) - 1} more)" if errors[1:] else ""
        click.echo(f"lag is unknown: {reason}; {printable(str(errors[0]))}{more}", err=True)
    elif any(isinstance(each, Waiting) for each in found.values()):
        click.echo(
            f"records are not counted: {reason}; name the broker's Redis with --redis URL or --data-dir DIR",
            err=True,
        )
    return found


def _print_lag(rows: list[dict[str, Any]]) -> None:
    columns = ("TOPIC", "PARTITION", "COMMITTED", "LOG END", "STATUS", "RECORD LAG", "TIME LAG", "METADATA")
    named = ("topic", "partition", "committed", "log_end", "status", "record_lag")
    table(
        columns,
        [(*(row[name] for name in named), lag.waiting(row["lag_ms"]), row["metadata"]) for row in rows],
    )


def _print_offsets(rows: list[dict[str, Any]]) -> None:
    columns = ("TOPIC", "PARTITION", "COMMITTED", "LOG END", "METADATA")
    table(columns, [(r["topic"], r["partition"], r["committed"], r["log_end"], r["metadata"]) for r in rows])


def _described(cluster: Cluster, name: str) -> tuple[str, str, list[dict[str, Any]]]:
    """Returns a group's state, its protocol or assignor, and its members, for both group protocols."""
    described = group_requests.describe_group(cluster, name)
    state = str(described.group_state)
    if isinstance(described, DescribedGroup):
        return state, str(described.protocol_data), [_member(member) for member in described.members]
    return state, str(described.assignor_name), [_consumer(member) for member in described.members]


def _consumer(member: ConsumerMember) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "assigned": group_requests.assigned(member),
    }


def _member(member: DescribedGroupMember) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "instance": member.group_instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "assigned": _assigned(member.member_assignment),
    }


def _assigned(assignment: bytes) -> list[str]:
    """Returns the assignment as `topic-partition` names. Assignments of other protocol types are opaque."""
    try:
        decoded = decode_assignment(assignment) if assignment else None
    except DecodeError:
        return ["(not readable)"]
    if decoded is None:
        return []
    return [f"{part.topic}-{index}" for part in decoded.assigned_partitions for index in part.partitions]
