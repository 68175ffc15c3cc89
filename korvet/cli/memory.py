"""The forecast of memory in `korvet doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from korvet.outlook.findings import OK, WARNING
from korvet.outlook.memory_forecast import PERIOD_MS, forecast, growth_of, memory_findings
from korvet.redis.functions import named
from korvet.topics.configs import policy_of
from korvet.topics.directory import broker_configs_of
from korvet.topics.retention import keeping_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import redis

    from korvet.cluster.topic import Topic
    from korvet.config.live import LiveConfig
    from korvet.outlook.findings import Finding
    from korvet.outlook.memory_forecast import Growth
    from korvet.redis.keys import Keyspace


def check_memory(
    servers: Iterable[redis.Redis],
    streams: Mapping[bytes, redis.Redis],
    keys: Keyspace,
    live: LiveConfig,
    topics: Iterable[Topic],
    machine_bytes: int,
    now_ms: int,
) -> list[Finding]:
    """Check the memory of the servers, and forecast when they are full. `streams`: the client that reaches
    each stream. `machine_bytes`: the memory of their machine or container, if it is this one; else 0.
    """
    growths: dict[redis.Redis, list[Growth]] = {client: [] for client in servers}
    broker_configs = broker_configs_of(live)
    problem = ""
    try:
        for topic in topics:
            keeping = keeping_of(topic, policy_of(topic.configs, broker_configs))
            for number in range(topic.partitions):
                partition = keys.partition_keys(topic.name, number)[:3]
                client = streams.get(partition[0])
                if client is not None:
                    arguments: list[Any] = [*partition, topic.bias, now_ms - PERIOD_MS]
                    reply: Any = client.fcall(named("korvet_rate"), len(partition), *arguments)
                    growths[client].append(growth_of(topic.name, keeping, reply, now_ms))
    except ResponseError as error:
        # Brokers of another release have loaded theirs, or none runs.
        problem = f"; no forecast: {error}"
    found = {
        _place(client): forecast(_info(client), () if problem else its_growths, machine_bytes)
        for client, its_growths in growths.items()
    }
    known = {place: each for place, each in found.items() if each is not None}
    return [
        each._replace(state=WARNING if problem and each.state == OK else each.state, text=each.text + problem)
        for each in memory_findings(known, now_ms)
    ]


def _info(client: redis.Redis) -> Mapping[str, str]:
    found: Any = client.info("memory")
    return {name: str(value) for name, value in found.items()}


def _place(client: redis.Redis) -> str:
    address = client.connection_pool.connection_kwargs
    return f"{address['host']}:{address['port']}" if "host" in address else str(address.get("path"))
