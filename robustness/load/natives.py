"""Redis clients that append to the streams of topics, read them, and take from the queues of share groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from robustness.dice import Dice
from robustness.history import NativeRead, NativeSend, Record, Settle, Take, addressed
from robustness.load.worker import Worker
from robustness.plan import LOCK_MS, OUTCOMES
from tests.support.polling import DeadlineMissed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from robustness.clients import Recorder
    from robustness.plan import NativePlan, SharePlan
    from robustness.site.topologies import Topology

TIMEOUT_S: Final = 2.0
PAUSE_S: Final = 0.2
READ_ENTRIES: Final = 500
READS_PER_S: Final = 20
# How often a worker looks for entries that others do not have any more.
CLAIMS: Final = 0.1


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


class NativeSharer(Worker):
    """Takes entries of a share group and accepts most of them; others wait for the end of their locks."""

    def __init__(
        self,
        recorder: Recorder,
        topology: Topology,
        plan: SharePlan,
        places: Sequence[tuple[str, int]],
        number: int,
        seed: int,
    ) -> None:
        """`places`: the partitions to take from."""
        super().__init__(f"{plan.name}/native-{number}", plan.name)
        self._record, self._group, self._places = recorder, plan.name, places
        self._client = NativeClient(topology)
        self._dice = Dice(seed, self.name)

    def work(self) -> None:
        while not self.closing.wait(1 / READS_PER_S):
            for place in self._places:
                try:
                    self._take_from(*place)
                except (redis.RedisError, DeadlineMissed):
                    # Also while the group has no member: then it does not exist yet.
                    self.closing.wait(PAUSE_S)
        self._client.close()

    def _take_from(self, topic: str, partition: int) -> None:
        """Take new entries, or those that nobody has a lock on."""
        key, count = stream(topic, partition), self._dice.one_of((1, 10, 100))
        client = self._client.of(key)
        self._record.add(Take, self.name, "invoke", group=self._group, native=True)
        if self._dice.chance(CLAIMS):
            _, entries, *_ = client.xautoclaim(key, self._group, self.name, LOCK_MS, count=count)
        else:
            reply = client.xreadgroup(self._group, self.name, {key: ">"}, count)
            entries = reply[0][1] if reply else []
        records: dict[str, Record] = {}
        for entry_id, fields in entries:
            value = value_of(fields)
            if value is None:
                client.xack(key, self._group, entry_id)
                continue
            for offset, _ in addressed([(entry_id, value)]):
                records[entry_id] = Record(topic, partition, offset, value)
        if not records:
            return
        self._record.add(
            Take, self.name, "ok", group=self._group, records=tuple(records.values()), native=True
        )
        for entry_id, record in records.items():
            if self._dice.one_of(OUTCOMES) is not None:
                self._accept(client, key, entry_id, record)

    def _accept(self, client: Any, key: str, entry_id: str, record: Record) -> None:
        fields = {"group": self._group, "record": record, "outcome": "accept"}
        self._record.add(Settle, self.name, "invoke", **fields)
        try:
            was_pending = client.xack(key, self._group, entry_id)
        except redis.RedisError as error:
            self._record.add(Settle, self.name, "info", **fields, error=str(error))
            raise
        if was_pending:
            self._record.add(Settle, self.name, "ok", **fields)
            self.progress += 1
        else:
            self._record.add(Settle, self.name, "fail", **fields, error="not pending")
