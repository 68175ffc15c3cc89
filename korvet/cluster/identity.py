"""The identity of a keyspace in Redis: its cluster id, its format and the layout of its offsets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from korvet.cluster.ids import random_uuid
from korvet.cluster.versions import FORMATS, VersionMisfit, Versions, format_problem
from korvet.offsets.packing import SEQUENCE_BITS
from korvet.offsets.wire import uuid_text
from korvet.redis.errors import StoreError
from korvet.redis.fields import shown

if TYPE_CHECKING:
    from korvet.redis.commands import Commands

# The form in which Kafka writes UUIDs; an id that an operator has chosen may be longer.
_CLUSTER_ID: Final = re.compile(rb"[A-Za-z0-9_.-]{1,100}")


async def open_keyspace(commands: Commands) -> str:
    """Give a new keyspace its identity (HSETNX), and check the identity of an existing one. Returns the
    cluster id. Raises StorageError; StoreError if this program cannot use the keyspace.

    A complete identity is not written again: a server whose memory is full would refuse that.

    `created_ms` is when the keyspace was made, by Redis's clock; in a keyspace of an earlier release, when
    this release used it first. Numbers that must not repeat count the seconds since then.
    """
    cluster, prefix = commands.keyspace.cluster, commands.keyspace.prefix
    await _check_restored(commands)
    await _check_not_orphaned(commands)
    fresh = uuid_text(random_uuid().bytes)
    seconds, micros = await commands.links(cluster).write_functions.call("TIME")
    created_ms = int(seconds) * 1000 + int(micros) // 1000
    identity: dict[str, str | int] = {
        "id": fresh,
        "format": FORMATS.highest,
        "sequence_bits": SEQUENCE_BITS,
        "created_ms": created_ms,
    }
    stored = await commands.call("HMGET", cluster, *identity)
    for (field, value), known in zip(identity.items(), stored, strict=True):
        if known is None:
            await commands.call("HSETNX", cluster, field, value)
    cluster_id, version, bits = await commands.call("HMGET", cluster, "id", "format", "sequence_bits")
    problem = format_problem(version)
    if problem is not None:
        raise VersionMisfit(f"keyspace {prefix!r} {problem}")
    if bits != b"%d" % SEQUENCE_BITS:
        raise StoreError(
            f"keyspace {prefix!r} was made with {shown(bits)} sequence bits, not {SEQUENCE_BITS}: its "
            f"offsets would mean other entries"
        )
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise StoreError(f"the cluster id of keyspace {prefix!r} is damaged: {shown(cluster_id)}")
    return str(cluster_id.decode())


async def _check_restored(commands: Commands) -> None:
    """Refuse a keyspace whose restore has not finished."""
    if await commands.call("EXISTS", commands.keyspace.restoring):
        raise StoreError(
            f"a restore of keyspace {commands.keyspace.prefix!r} has not finished: run `korvet restore` again"
        )


async def _check_not_orphaned(commands: Commands) -> None:
    """Refuse topics without a cluster id: a new cluster would use their records as its own."""
    keys = commands.keyspace
    if await commands.call("HEXISTS", keys.cluster, "id") or not await commands.call("EXISTS", keys.topics):
        return
    cluster = keys.cluster.decode()
    raise StoreError(
        f"keyspace {keys.prefix!r} has topics but no cluster id: {cluster} was lost. Restore it from a "
        f"backup, or give it a new id: HSET {cluster} id {uuid_text(random_uuid().bytes)}"
    )


async def finalise(commands: Commands) -> int:
    """Raise the format of the keyspace to the highest one of this release. Returns the format before.

    Raises VersionMisfit if a live broker does not work with it, or if the keyspace has a later one; and
    StorageError. Function korvet_finalise.
    """
    keys = commands.keyspace
    outcome, *details = await commands.fcall("korvet_finalise", [keys.brokers, keys.cluster], FORMATS.highest)
    if outcome == b"unfit":
        node_id, lowest, highest = (int(each) for each in details)
        raise VersionMisfit(
            f"node {node_id} works with formats {Versions(lowest, highest)}: upgrade it to the release with "
            f"format {FORMATS.highest}, or stop it, then repeat this"
        )
    return int(details[0])
