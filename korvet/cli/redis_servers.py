"""Clients of the server, or of the primaries of the cluster, that a command looks at."""

from collections.abc import Collection, Sequence
from typing import Any

import click
import redis

from korvet.redis.address import RedisAddress
from korvet.redis.client import client_of
from korvet.redis.slots import NodeAddress, parse_slots

# Longest wait for the first reply of a server. After that it counts as silent.
_PROBE_TIMEOUT_S = 5.0
# Longest wait for another reply. A server may be busy with long commands of other clients.
_REPLY_TIMEOUT_S = 60.0


def find_servers(
    addresses: Sequence[RedisAddress],
) -> "tuple[dict[NodeAddress, redis.Redis], dict[NodeAddress, str]]":
    """Returns a client of the server, or of each primary of a cluster with these nodes that answers, and why
    the other primaries do not answer.

    Raises ClickException if none answers.
    """
    problems = []
    for address in addresses:
        try:
            with client_of(address, _PROBE_TIMEOUT_S) as first:
                if not first.info("cluster").get("cluster_enabled"):
                    return {(address.host, address.port): client_of(address, _REPLY_TIMEOUT_S)}, {}
                slots: Any = first.execute_command("CLUSTER", "SLOTS")
        except redis.RedisError as error:
            problems.append(f"{address.named}: {error}")
            continue
        primaries = sorted({found.primary for found in parse_slots(slots, address.host)})
        silent = {place: reason for place in primaries if (reason := _silence(address.at(*place)))}
        found = [place for place in primaries if place not in silent]
        if found:
            return {place: client_of(address.at(*place), _REPLY_TIMEOUT_S) for place in found}, silent
        problems += [f"{host}:{port}: {reason}" for (host, port), reason in silent.items()]
        if not primaries:
            problems.append(f"{address.named}: no node of the cluster has slots")
    raise click.ClickException(problems[0])


def addresses_of(first: RedisAddress, servers: Collection[NodeAddress]) -> list[RedisAddress]:
    """Returns the addresses of the servers that `find_servers` found, with the credentials of `first`."""
    return [first if place == (first.host, first.port) else first.at(*place) for place in servers]


def _silence(address: RedisAddress) -> str:
    """Why a server does not answer; empty if it does."""
    try:
        with client_of(address, _PROBE_TIMEOUT_S) as client:
            client.ping()
    except (redis.ConnectionError, redis.TimeoutError) as error:
        return str(error)
    return ""
