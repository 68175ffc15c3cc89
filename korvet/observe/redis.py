"""The connections to Redis and the newest readings of the servers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from korvet.metrics.families import redis
from korvet.metrics.family import Samples
from korvet.storage.link.clock import steady_s
from korvet.storage.link.counts import BARRIER_WAITS, LINKS
from korvet.storage.link.eviction import may_evict_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from korvet.metrics.family import Family, Value
    from korvet.storage.link.server import Router
    from korvet.storage.link.server_watch import Reading, ServerWatch

# Of INFO keyspace: `db0` is `keys=5,expires=0,avg_ttl=0`.
_DATABASE: Final = re.compile(r"db\d+")
_PERSISTENCE: Final = (
    ("aof", "aof_last_write_status"),
    ("aof_rewrite", "aof_last_bgrewrite_status"),
    ("rdb", "rdb_last_bgsave_status"),
)


def collect_links() -> Iterator[Samples]:
    """See Collector. What is counted of the process's links."""
    links = sorted(LINKS.items())
    texts = [redis.ROUND_TRIPS.text(kind) for kind, _ in links]
    of_kinds: list[tuple[Family, list[Value]]] = [
        (redis.ROUND_TRIPS, [counts.round_trips for _, counts in links]),
        (redis.CONNECTED, [counts.connected for _, counts in links]),
        (redis.LOST, [counts.lost for _, counts in links]),
    ]
    for family, values in of_kinds:
        yield Samples(family, list(zip(texts, values, strict=True)))
    yield redis.BARRIER.single(BARRIER_WAITS)


def collect_servers(router: Router) -> Iterator[Samples]:
    """See Collector. What the broker knows of the servers and their replicas."""
    servers = sorted(router.servers(), key=lambda server: str(server.address))
    names = {server: str(server.address) for server in servers}
    texts = {server: redis.UP.text(name) for server, name in names.items()}
    yield Samples(redis.UP, [(texts[server], int(server.connected)) for server in servers])
    yield Samples(redis.SILENT, [(texts[server], int(server.silent)) for server in servers])
    used = [(texts[server], int(server.module.replicas is not None)) for server in servers]
    yield Samples(redis.MODULE, used)
    known = [(server, server.replication) for server in servers if server.replication is not None]
    yield Samples(redis.REPLICAS, [(texts[server], found.attached) for server, found in known])
    yield Samples(redis.IN_SYNC, [(texts[server], found.in_sync) for server, found in known])
    # If several replicas have one address, the worst one counts.
    lag_bytes: dict[str, int] = {}
    lag_s: dict[str, int] = {}
    for server, found in known:
        for each in found.standing:
            text = redis.REPLICA_LAG_BYTES.text(names[server], f"{each.host}:{each.port}")
            lag_bytes[text] = max(found.offset - each.offset, lag_bytes.get(text, 0))
            lag_s[text] = max(each.lag_s, lag_s.get(text, each.lag_s))
    yield Samples(redis.REPLICA_LAG_BYTES, list(lag_bytes.items()))
    yield Samples(redis.REPLICA_LAG_SECONDS, list(lag_s.items()))


def collect_info(watch: ServerWatch, now_s: Callable[[], float] = steady_s) -> Iterator[Samples]:
    """See Collector. What the servers reported at the last reading (INFO)."""
    readings = sorted(watch.readings.items())
    texts = {name: redis.KEYS.text(name) for name, _ in readings}
    now = now_s()
    yield Samples(redis.READ_AGE, [(texts[name], max(now - each.at_s, 0.0)) for name, each in readings])
    yield Samples(redis.VERSION, [(_version(name, each.info), 1) for name, each in readings])
    policies = [
        (texts[name], int(may_evict_ours(policy)))
        for name, each in readings
        if (policy := each.info.get("maxmemory_policy")) is not None
    ]
    yield Samples(redis.POLICY, policies)
    written = [
        (redis.PERSISTENCE_OK.text(name, kind), int(each.info[field] == "ok"))
        for name, each in readings
        for kind, field in _PERSISTENCE
        if field in each.info
    ]
    yield Samples(redis.PERSISTENCE_OK, written)
    for field, family, factor in redis.BY_FIELD:
        rows = [
            (texts[name], value if factor == 1 else value * factor)
            for name, each in readings
            if (value := _number(each.info.get(field))) is not None
        ]
        yield Samples(family, rows)
    for family, key in ((redis.KEYS, "keys"), (redis.EXPIRING, "expires")):
        yield Samples(family, [(texts[name], _keyspace(each, key)) for name, each in readings])


def _version(name: str, info: Mapping[str, str]) -> str:
    program = "valkey" if "valkey_version" in info else "redis"
    return redis.VERSION.text(name, program, info.get(f"{program}_version", ""))


def _number(text: str | None) -> int | float | None:
    """The number in a field; None without one."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def _keyspace(reading: Reading, key: str) -> int:
    """The sum of one number of all databases."""
    return sum(
        int(dict(pair.split("=", 1) for pair in value.split(",")).get(key, "0"))
        for name, value in reading.info.items()
        if _DATABASE.fullmatch(name)
    )
