"""Redis clients that append to the streams of topics and read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from robustness.dice import Dice
from robustness.history import NativeRead, NativeSend
from robustness.load.worker import Worker
from tests.support.polling import DeadlineMissed

if TYPE_CHECKING:
    from robustness.clients import Recorder
    from robustness.plan import NativePlan
    from robustness.site.topologies import Topology

TIMEOUT_S: Final = 2.0
PAUSE_S: Final = 0.2
READ_ENTRIES: Final = 500
READS_PER_S: Final = 20


def stream(topic: str, partition: int) -> str:
    """Returns the key of a partition's stream."""
    return f"korvet:{topic}:{partition}"


def value_of(fields: dict[str, str]) -> str | None:
    """Returns the value of an entry; None if the entry is a marker."""
    return None if "ctl" in fields else fields["value"]


class NativeClient:
    """Connections to the primary of a stream."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._clients: dict[int, Any] = {}

    def of(self, key: str) -> Any:
        """Returns a client of the key's primary. It does not repeat commands."""
        port = self._topology.of_key(key).port
        if port not in self._clients:
            retry = Retry(NoBackoff(), 0)
            self._clients[port] = redis.Redis(
                port=port, socket_timeout=TIMEOUT_S, retry=retry, decode_responses=True
            )
        return self._clients[port]

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()


class NativeWriter(Worker):
    """Appends entries."""

    def __init__(
        self, recorder: Recorder, topology: Topology, plan: NativePlan, partitions: int, seed: int
    ) -> None:
        super().__init__(f"{plan.name}-writer", plan.name)
        self._record, self._plan, self._partitions = recorder, plan, partitions
        self._client = NativeClient(topology)
        self._dice = Dice(seed, self.name)

    def work(self) -> None:
        serial = 0
        while not self.closing.wait(1 / self._plan.writes_per_s):
            serial += 1
            self._append(self._dice.below(self._partitions), f"{self.name}-{serial}")
        self._client.close()

    def _append(self, partition: int, value: str) -> None:
        fields = {"topic": self._plan.topic, "partition": partition, "value": value}
        key = stream(self._plan.topic, partition)
        try:
            client = self._client.of(key)
        except (redis.RedisError, DeadlineMissed):
            self.closing.wait(PAUSE_S)
            return
        self._record.add(NativeSend, self.name, "invoke", **fields)
        try:
            entry_id = client.xadd(key, {"key": "native", "value": value})
        except redis.ResponseError as error:
            self._record.add(NativeSend, self.name, "fail", **fields, error=str(error))
        except redis.RedisError as error:
            self._record.add(NativeSend, self.name, "info", **fields, error=str(error))
        else:
            self._record.add(NativeSend, self.name, "ok", **fields, entry_id=entry_id)
            self.progress += 1


class NativeReader(Worker):
    """Reads the entries of one partition in order."""

    def __init__(self, recorder: Recorder, topology: Topology, plan: NativePlan, partition: int) -> None:
        super().__init__(f"{plan.name}-reader-{partition}", f"{plan.name}-readers")
        self._record, self._plan, self._partition = recorder, plan, partition
        self._client = NativeClient(topology)

    def work(self) -> None:
        key, after = stream(self._plan.topic, self._partition), "0"
        where = {"topic": self._plan.topic, "partition": self._partition}
        while not self.closing.wait(1 / READS_PER_S):
            try:
                found = self._client.of(key).xrange(key, f"({after}", "+", READ_ENTRIES)
            except (redis.RedisError, DeadlineMissed):
                self.closing.wait(PAUSE_S)
                continue
            if found:
                after = found[-1][0]
                self.progress += len(found)
                values = ((entry_id, value_of(fields)) for entry_id, fields in found)
                entries = tuple((entry_id, value) for entry_id, value in values if value is not None)
                self._record.add(NativeRead, self.name, "ok", **where, entries=entries)
        self._client.close()
