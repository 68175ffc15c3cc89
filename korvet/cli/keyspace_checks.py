"""Checks of what brokers share in Redis: the keyspace's identity, and the fields of its hashes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import redis

from korvet.cli.redis_address import keys_of
from korvet.cluster.catalogue import parse_topic, without_bad_configs
from korvet.cluster.lease import parse_entry
from korvet.cluster.shared_configs import parsers_of
from korvet.cluster.topic import Topic
from korvet.cluster.versions import format_problem
from korvet.outlook.findings import FAULT, OK, WARNING, Finding, damage_findings
from korvet.redis.fields import counter_of, read_fields, shown
from korvet.redis.keys import Keyspace, literal_pattern
from korvet.redis.server import WRITE_LINK
from korvet.topics.configs import config_problem

if TYPE_CHECKING:
    from korvet.cluster.assignment import Broker

_PAGE = 1_000


def shared_pattern(keyspace: str) -> str:
    """Returns the pattern of the keys that brokers share."""
    return f"{{{literal_pattern(keyspace)}}}:*"


def scan(
    servers: "Sequence[redis.Redis]", pattern: str, kind: str | None = None
) -> "Iterator[tuple[bytes, redis.Redis]]":
    """Yields the keys of a pattern, and of a type if one is given, with the client that reaches each."""
    for client in servers:
        for key in client.scan_iter(match=pattern, count=_PAGE, _type=kind):
            yield key, client


def check_shared(servers: "Sequence[redis.Redis]", keyspace: str) -> Iterator[Finding]:
    """Check the hashes that brokers share: the cluster ID, and unreadable fields that brokers skip."""
    keys = keys_of(keyspace)
    hashes: dict[bytes, Any] = {
        key: client.hgetall(key) for key, client in scan(servers, shared_pattern(keyspace), "hash")
    }
    if any(scan(servers, literal_pattern(keys.restoring.decode()), "string")):
        yield Finding("keyspace", FAULT, "a restore has not finished: run `korvet restore` again")
        return
    identity = _identity(hashes.get(keys.cluster, {}), hashes.get(keys.topics, {}), keys)
    if identity.state == WARNING and (why := _once_there(servers, hashes, keys)):
        identity = Finding(identity.subject, FAULT, f"there is none of the name {keys.prefix}, and {why}")
    yield identity
    count = 0
    for key, parse in _parsers(keys).items():
        found, damaged = read_fields(hashes.get(key, {}).items(), parse)
        for topic in found:
            if isinstance(topic, Topic) and (bad := without_bad_configs(topic, config_problem)[1]):
                damaged[topic.name.encode()] = "; ".join(bad.values())
        count += len(found)
        yield from damage_findings(key, damaged)
    yield Finding("shared fields", OK, f"{count} can be read")


def _once_there(servers: "Sequence[redis.Redis]", hashes: Mapping[bytes, Any], keys: Keyspace) -> str:
    """What shows that brokers have the keyspace open, which has neither cluster id nor topics; empty if
    nothing does. Brokers that lose their keyspace stay connected, and write nothing.
    """
    if hashes.get(keys.brokers):
        return "its brokers are still there: it was emptied or replaced; restore it, or restart all brokers"
    if next(scan(servers, "{*}:cluster", "hash"), None) is not None:
        # The brokers may have that keyspace open.
        return ""
    try:
        names: list[Any] = [each.get("name") for client in servers for each in client.client_list()]
    except redis.ResponseError:
        # CLIENT LIST may be forbidden.
        return ""
    if WRITE_LINK not in names:
        return ""
    return "brokers are connected: it was emptied (FLUSHALL); restore it, or restart all brokers"


def cluster_id_of(servers: "Sequence[redis.Redis]", keyspace: str) -> str:
    """Returns the keyspace's cluster id; empty if it has none."""
    cluster = keys_of(keyspace).cluster
    for _, client in scan(servers, literal_pattern(cluster.decode()), "hash"):
        found: Any = client.hget(cluster.decode(), "id")
        return found.decode("utf-8", "replace") if found is not None else ""
    return ""


def live_brokers(servers: "Sequence[redis.Redis]", keyspace: str) -> "list[Broker]":
    """Returns the brokers that have a lease, or had one until they ended; without damaged entries."""
    brokers = keys_of(keyspace).brokers
    for _, client in scan(servers, literal_pattern(brokers.decode()), "hash"):
        entries: Any = client.hgetall(brokers.decode())
        return read_fields(entries.items(), parse_entry)[0]
    return []


def _parsers(keys: Keyspace) -> dict[bytes, Callable[[bytes, bytes], object]]:
    return {
        keys.topics: parse_topic,
        keys.brokers: parse_entry,
        **parsers_of(keys),
    }


def _identity(cluster: Mapping[bytes, bytes], topics: Mapping[bytes, bytes], keys: Keyspace) -> Finding:
    """Check that the keyspace has our format, and still has its cluster ID and its catalogue."""
    cluster_id, expected = cluster.get(b"id"), counter_of(cluster.get(b"topics"))
    version = cluster.get(b"format")
    problem = None if version is None else format_problem(version)
    if problem is not None:
        return Finding("keyspace", FAULT, f"it {problem}")
    if cluster_id is None and topics:
        text = f"there are {len(topics)} topics, but no cluster id in {keys.cluster.decode()}: it was lost"
        return Finding("keyspace", FAULT, text)
    if cluster_id is None:
        return Finding("keyspace", WARNING, f"there is none of the name {keys.prefix} yet")
    if expected and not topics:
        text = f"the catalogue {keys.topics.decode()} of {expected} topics is gone: restore it from a backup"
        return Finding("keyspace", FAULT, text)
    return Finding("keyspace", OK, f"cluster id {shown(cluster_id)}, {len(topics)} topics")
