"""log.retention.memory.ratio: a server that would be full deletes its oldest records, of all topics."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.admin import alter_broker, create_topic
from tests.support.confluent import producer, send
from tests.support.polling import until
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.brokers import Brokers

pytestmark = [pytest.mark.faults, pytest.mark.clients]

RATIO = 0.6
MAXMEMORY = 40 << 20
# Records in a round. Each broker leads some partitions of both topics.
RATES = {"fast": 150, "slow": 50}
PARTITIONS = 2
_PAUSE_S = 0.2
VALUE_BYTES = 4_000


class Writing:
    """Writes to both topics, several times as much as there is room for."""

    def __init__(self, brokers: Brokers) -> None:
        self._redis = brokers.store.client
        self._client = producer(brokers.bootstrap, linger_ms=5)
        self.failed = 0
        self.written_bytes = 0

    def round(self, times: int) -> None:
        def report(error: object, message: object) -> None:
            self.failed += error is not None

        for topic, count in RATES.items():
            for number in range(count * times):
                value = os.urandom(VALUE_BYTES)
                self._client.produce(topic, value, partition=number % PARTITIONS, on_delivery=report)
                self.written_bytes += VALUE_BYTES
        self._client.flush(60)
        # No faster than that, so that the records of this small server get some seconds old.
        self._client.poll(_PAUSE_S)

    @property
    def used(self) -> float:
        return int(self._redis.info("memory")["used_memory"]) / MAXMEMORY

    @property
    def refused(self) -> int:
        errors: dict[str, Any] = self._redis.info("errorstats")
        return int(errors.get("errorstat_OOM", {"count": 0})["count"])

    def oldest_ms(self, topic: str, partition: int) -> int:
        ((entry_id, _),) = self._redis.xrange(f"korvet:{topic}:{partition}", count=1)
        return int(entry_id.split(b"-")[0])


def test_no_write_is_refused_and_all_topics_keep_the_same_age(start: Callable[[int], Brokers]) -> None:
    brokers = start(2)
    brokers.store.client.config_set("maxmemory", MAXMEMORY)
    for topic in RATES:
        create_topic(brokers.bootstrap, topic, PARTITIONS)
    # Old records of topics that the limit must not touch.
    kept = {"compacted": {"cleanup.policy": "compact"}, "for-ever": {"retention.ms": "-1"}}
    client = producer(brokers.bootstrap)
    for topic, configs in kept.items():
        create_topic(brokers.bootstrap, topic, 1, configs)
        send(client, topic, 0, [Record(b"k", b"v", (), NOW_MS - 86_400_000)])
    for node_id in (1, 2):
        alter_broker(brokers.bootstrap, node_id, {"log.retention.memory.ratio": str(RATIO)})
    writing = Writing(brokers)
    highest = 0.0
    while writing.written_bytes < 3 * MAXMEMORY:
        # Twice the rate after half of the time.
        writing.round(1 if writing.written_bytes < 1.5 * MAXMEMORY else 2)
        highest = max(highest, writing.used)
    assert RATIO < highest < 1
    assert writing.failed == writing.refused == 0

    def have_the_same_age() -> bool:
        """Each broker deletes by itself, so one may be ahead for a while."""
        writing.round(2)
        until(lambda: writing.used <= RATIO, 20, "the deletion ends below the ratio")
        oldest = [writing.oldest_ms(topic, number) for topic in RATES for number in range(PARTITIONS)]
        age_ms = time.time() * 1_000 - min(oldest)
        return max(oldest) - min(oldest) < 0.25 * age_ms

    until(have_the_same_age, 60, "all topics keep the same age")
    for topic in kept:
        assert brokers.store.client.xlen(f"korvet:{topic}:0") == 1
