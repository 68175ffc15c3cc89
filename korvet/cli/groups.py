"""`korvet groups`: state, members and committed offsets of consumer groups."""

from typing import Any

import click
from kio.schema.describe_groups.v5.response import DescribedGroupMember

from korvet.cli import group_requests
from korvet.cli.client import ClientError, Cluster
from korvet.cli.log_requests import LATEST, list_offsets
from korvet.cli.options import bootstrap_option, json_option
from korvet.cli.output import print_json, table
from korvet.offsets.codec import DecodeError
from korvet.offsets.consumer_protocol import decode_assignment


@click.group()
def groups() -> None:
    """Consumer groups: state, members, committed offsets."""


@groups.command("list")
@bootstrap_option
@json_option
def list_groups(bootstrap: str, as_json: bool) -> None:
    """List all groups."""
    with Cluster(bootstrap) as cluster:
        found = [
            {"group": group.group_id, "state": group.group_state, "protocol_type": group.protocol_type}
            for group in group_requests.list_groups(cluster)
        ]
    if as_json:
        print_json(found)
    else:
        table(("GROUP", "STATE", "PROTOCOL TYPE"), [tuple(row.values()) for row in found])


@groups.command("describe")
@click.argument("name")
@bootstrap_option
@json_option
def describe_group(name: str, bootstrap: str, as_json: bool) -> None:
    """Show a group's state, its members and what it has committed."""
    with Cluster(bootstrap) as cluster:
        described = group_requests.describe_group(cluster, name)
        committed = _committed(cluster, name)
    if described.group_state == "Dead" and not committed:
        raise ClientError(f"there is no group {name}")
    members = [_member(member) for member in described.members]
    if as_json:
        document = {"group": name, "state": described.group_state, "protocol": described.protocol_data}
        print_json({**document, "members": members, "offsets": committed})
        return
    click.echo(f"{name}  {described.group_state}  {described.protocol_data}\n")
    table(
        ("MEMBER", "INSTANCE", "CLIENT", "HOST", "ASSIGNED"),
        [(m["member"], m["instance"], m["client"], m["host"], ", ".join(m["assigned"])) for m in members],
    )
    click.echo()
    _print_offsets(committed)


@groups.command("offsets")
@click.argument("name")
@bootstrap_option
@json_option
def group_offsets(name: str, bootstrap: str, as_json: bool) -> None:
    """Show what a group has committed."""
    with Cluster(bootstrap) as cluster:
        committed = _committed(cluster, name)
    if as_json:
        print_json(committed)
    else:
        _print_offsets(committed)


@groups.command("delete")
@click.argument("name")
@click.option("-t", "--topic", help="Only the offsets of this topic.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
def delete_group(name: str, topic: str | None, yes: bool, bootstrap: str) -> None:
    """Delete a group without members, or its offsets of one topic."""
    what = f"group {name}" if topic is None else f"the offsets of group {name} for {topic}"
    if not yes:
        click.confirm(f"Delete {what}?", abort=True)
    with Cluster(bootstrap) as cluster:
        if topic is None:
            group_requests.delete_group(cluster, name)
        else:
            committed = group_requests.committed_offsets(cluster, name)
            partitions = [part for of_topic, part in committed if of_topic == topic]
            if not partitions:
                raise ClientError(f"group {name} has no offsets for {topic}")
            group_requests.delete_offsets(cluster, name, {topic: partitions})
    click.echo(f"deleted {what}")


def _committed(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """Committed offset and log end of each partition; no difference of the two, which counts no records."""
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


def _print_offsets(rows: list[dict[str, Any]]) -> None:
    columns = ("TOPIC", "PARTITION", "COMMITTED", "LOG END", "METADATA")
    table(columns, [(r["topic"], r["partition"], r["committed"], r["log_end"], r["metadata"]) for r in rows])


def _member(member: DescribedGroupMember) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "instance": member.group_instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "assigned": _assigned(member.member_assignment),
    }


def _assigned(assignment: bytes) -> list[str]:
    """`topic-partition` names; what other protocols than consumers' assign is not ours to read."""
    try:
        decoded = decode_assignment(assignment) if assignment else None
    except DecodeError:
        return ["(not readable)"]
    if decoded is None:
        return []
    return [f"{part.topic}-{index}" for part in decoded.assigned_partitions for index in part.partitions]
