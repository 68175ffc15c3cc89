"""Clients of the server, or of the primaries of the cluster, that a command looks at."""

from collections.abc import Collection, Sequence
from typing import Any

import click
import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from korvet.storage.link.address import RedisAddress
from korvet.storage.link.slots import NodeAddress, parse_slots

_CONNECT_TIMEOUT_S = 10.0
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
            with _client(address, _PROBE_TIMEOUT_S) as first:
                if not first.info("cluster").get("cluster_enabled"):
                    return {(address.host, address.port): _client(address, _REPLY_TIMEOUT_S)}, {}
                slots: Any = first.execute_command("CLUSTER", "SLOTS")
        except redis.RedisError as error:
            problems.append(f"{address.named}: {error}")
            continue
        primaries = sorted({found.primary for found in parse_slots(slots, address.host)})
        silent = {place: reason for place in primaries if (reason := _silence(_at(address, place)))}
        found = [place for place in primaries if place not in silent]
        if found:
            return {place: _client(_at(address, place), _REPLY_TIMEOUT_S) for place in found}, silent
        problems += [f"{host}:{port}: {reason}" for (host, port), reason in silent.items()]
        if not primaries:
            problems.append(f"{address.named}: no node of the cluster has slots")
    raise click.ClickException(problems[0])


def addresses_of(first: RedisAddress, servers: Collection[NodeAddress]) -> list[RedisAddress]:
    """Returns the addresses of the servers that `find_servers` found, with the credentials of `first`."""
    return [first if place == (first.host, first.port) else _at(first, place) for place in servers]


def _silence(address: RedisAddress) -> str:
    """Why a server does not answer; empty if it does."""
    try:
        with _client(address, _PROBE_TIMEOUT_S) as client:
            client.ping()
    except (redis.ConnectionError, redis.TimeoutError) as error:
        return str(error)
    return ""


def _at(address: RedisAddress, place: NodeAddress) -> RedisAddress:
    return msgspec.structs.replace(address, host=place[0], port=place[1], socket_path=None)


def _client(address: RedisAddress, reply_timeout_s: float) -> "redis.Redis":
    # No retries: report at once that a server doesn't answer.
    options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}
    options |= {"socket_connect_timeout": _CONNECT_TIMEOUT_S, "socket_timeout": reply_timeout_s}
    options |= {"username": address.username, "password": address.password}
    if address.socket_path is not None:
        return redis.Redis(unix_socket_path=address.socket_path, db=address.database, **options)
    return redis.Redis(address.host, address.port, db=address.database, ssl=address.tls, **options)
