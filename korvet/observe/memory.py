"""The forecast of the servers' memory, which the controller makes for all partitions."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.causes import Causes
from korvet.metrics.declared import declare
from korvet.outlook.memory_forecast import PERIOD_MS, describe, forecast, growth_of
from korvet.redis.errors import StorageError
from korvet.topics.retention import keeping_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.cluster.leadership import Leadership
    from korvet.cluster.topic import Topic
    from korvet.metrics.family import Family, Samples
    from korvet.outlook.memory_forecast import Forecast, Growth
    from korvet.redis.commands import Commands
    from korvet.redis.server_watch import ServerWatch
    from korvet.topics.directory import TopicDirectory

# Exactly one broker of the cluster reports each series of these.
_declare: Final = partial(declare, by_one_broker=True)
_LIMIT: Final = _declare(
    "korvet_memory_limit_bytes",
    "maxmemory of the server, or the memory of its machine or container. Reported by the controller.",
    "server",
)
_NEEDED: Final = _declare(
    "korvet_memory_needed_bytes",
    "Memory that the server will use once each partition has what its retention keeps, at the rate of the "
    "last hour; +Inf if nothing ends the growth of a topic. Reported by the controller.",
    "server",
)
_FULL_SECONDS: Final = _declare(
    "korvet_memory_full_seconds",
    "Time until the server reaches maxmemory, or the memory of its machine, at the rate of the last hour; "
    "younger topics count with their own time; +Inf if it does not. Reported by the controller.",
    "server",
)
_BYTES_PER_SECOND: Final = _declare(
    "korvet_topic_bytes_per_second",
    "Payload appended to the topic in a second, in the last hour. Reported by the controller.",
    "topic",
)

log = logging.getLogger(__name__)
causes = Causes(log)

# Interval of forecasts, and of looks whether this broker makes them now.
_PERIOD_S: Final = 60.0
_LOOK_S: Final = 1.0
# Partitions that are read at once, and the pause after them: at most 1,000 calls of 20 us in a second.
_AT_ONCE: Final = 50
_PAUSE_S: Final = 0.05


class MemoryForecasts:
    """The newest forecast of each server."""

    def __init__(
        self,
        commands: Commands,
        leadership: Leadership,
        topics: TopicDirectory,
        watch: ServerWatch,
        machine_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        """`machine_bytes`: the memory of the servers' machine or container; 0 if the broker is on another."""
        self._commands = commands
        self._leadership = leadership
        self._topics = topics
        self._watch = watch
        self._machine_bytes = machine_bytes
        self._now_ms = now_ms
        self.forecasts: dict[str, Forecast] = {}
        """By the server's address. Empty if another broker is the controller."""
        self._rates: dict[str, float] = {}
        self._said: dict[str, bool] = {}

    async def run(self) -> NoReturn:
        """Forecast again and again until cancelled, and log the first forecast and changes of its verdict."""
        while True:
            # The first readings of the servers may not be there yet.
            if not self._leadership.is_controller or not self._watch.readings:
                self.forecasts, self._rates = {}, {}
                await asyncio.sleep(_LOOK_S)
                continue
            await self.look()
            self._say()
            await asyncio.sleep(_PERIOD_S)

    async def look(self) -> None:
        """Read the rates of all partitions, and forecast."""
        growths: dict[str, list[Growth]] = {name: [] for name in self._watch.readings}
        rates: dict[str, float] = defaultdict(float)
        for topic in self._topics.all():
            for start in range(0, topic.partitions, _AT_ONCE):
                numbers = range(start, min(start + _AT_ONCE, topic.partitions))
                try:
                    found = await asyncio.gather(*(self._read(topic, number) for number in numbers))
                except StorageError as error:
                    text = "the growth of %s cannot be read: %s"
                    causes.warn(error, text, topic.name, error, work=topic.name)
                    break
                causes.ended(topic.name)
                for server, growth in found:
                    growths.setdefault(server, []).append(growth)
                    rates[topic.name] += growth.bytes_per_s
                if topic.partitions > 1:
                    await asyncio.sleep(_PAUSE_S * len(numbers) / _AT_ONCE)
        readings = self._watch.readings
        made = {
            server: forecast(readings[server].info, found, self._machine_bytes)
            for server, found in growths.items()
            if server in readings
        }
        self.forecasts = {server: each for server, each in made.items() if each is not None}
        self._rates = rates

    async def _read(self, topic: Topic, number: int) -> tuple[str, Growth]:
        keys = self._commands.keyspace.partition_keys(topic.name, number)[:3]
        server = str(self._commands.links(keys[0]).server.address)
        now_ms = self._now_ms()
        arguments = topic.bias, now_ms - PERIOD_MS
        reply = await self._commands.fcall("korvet_rate", keys, *arguments, read=True)
        topics = self._topics
        keeping = keeping_of(topic, topics.policy(topic), keeps_all=topics.keeps_all(topic))
        return server, growth_of(topic.name, keeping, reply, now_ms)

    def _say(self) -> None:
        for server, found in self.forecasts.items():
            if self._said.get(server) is not found.is_short:
                self._said[server] = found.is_short
                level = logging.WARNING if found.is_short else logging.INFO
                log.log(level, "memory of Redis at %s: %s", server, describe(found, self._now_ms()))

    def collect(self, shown: Callable[[], frozenset[str]]) -> Iterator[Samples]:
        """See Collector. `shown`: the topics that metrics show one by one."""
        of_servers: dict[Family, Callable[[Forecast], float]] = {
            _LIMIT: lambda each: each.limit_bytes,
            _NEEDED: lambda each: each.needed_bytes,
            _FULL_SECONDS: lambda each: each.full_s,
        }
        for family, value in of_servers.items():
            yield family.by_label({server: value(each) for server, each in self.forecasts.items()})
        names = shown()
        yield _BYTES_PER_SECOND.by_label({name: rate for name, rate in self._rates.items() if name in names})
