"""Which partitions the housekeeping compacts, and what it does if one of them fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from korvet.config.live import LiveConfig
from korvet.config.settings import Config
from korvet.records.kernel import encode_append_records
from korvet.topics.compaction import LogCleaner
from korvet.topics.directory import TopicDirectory
from tests.support.logs import append_own

if TYPE_CHECKING:
    from korvet.cluster.topic import Topic
    from korvet.log.partition_log import PartitionLog
    from tests.storage.conftest import Bench

COMPACT = {"cleanup.policy": "compact"}
NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


async def forget_nothing(topic: Topic) -> None:
    del topic


def cleaner(bench: Bench, **settings: Any) -> LogCleaner:
    live = LiveConfig(Config(**settings))
    return LogCleaner(
        bench.store.commands,
        bench.store.logs,
        TopicDirectory(bench.store.catalogue, bench.store.logs, live, forget_nothing),
        live,
        lambda: NOW_MS,
    )


def fill(bench: Bench, log: PartitionLog, count: int = 100, time_ms: int = NOW_MS) -> None:
    rows = [(b"k", b"%d" % number, time_ms) for number in range(count)]
    bench.run(append_own(log, encode_append_records(rows)))


def test_topics_with_the_policy_are_compacted(bench: Bench) -> None:
    policies = ("compact", "compact,delete", "delete", "delete,compact")
    logs = [bench.log(f"t{n}", configs={"cleanup.policy": each}) for n, each in enumerate(policies)]
    for log in logs:
        fill(bench, log)
    assert bench.run(cleaner(bench, log_cleaner_enable=False).clean()) == 0
    working = cleaner(bench)
    assert bench.run(working.clean()) == 3 * 99
    assert [bench.client.xlen(log.stream) for log in logs] == [1, 1, 100, 1]
    assert bench.run(working.clean()) == 0


def test_configs_of_the_topic_are_honoured(bench: Bench) -> None:
    young = bench.log("young", configs={**COMPACT, "min.compaction.lag.ms": "1000"})
    clean = bench.log("clean", configs={**COMPACT, "min.cleanable.dirty.ratio": "1.0"})
    old = {"min.cleanable.dirty.ratio": "1.0", "max.compaction.lag.ms": "1000"}
    late = bench.log("late", configs={**COMPACT, **old})
    gone = bench.log("gone", configs={**COMPACT, "delete.retention.ms": "0"})
    for log in (young, clean):
        fill(bench, log)
    fill(bench, late, time_ms=NOW_MS - 1001)
    bench.run(append_own(gone, encode_append_records([(b"k", b"v", 0), (b"k", None, 0), (b"n", b"v", 0)])))
    working = cleaner(bench)
    for _ in range(2):
        bench.run(working.clean())
    lengths = {log.topic.name: bench.client.xlen(log.stream) for log in (young, clean, late, gone)}
    assert lengths == {"young": 100, "clean": 100, "late": 1, "gone": 1}


def test_history_of_the_internal_topic(bench: Bench) -> None:
    topic = bench.topic("__consumer_offsets", configs=COMPACT, internal=True, offset_assignment="dense")
    log = bench.store.logs.get(topic, 0)
    fill(bench, log, 1000, NOW_MS - DAY_MS)
    fill(bench, log, 1000, NOW_MS - DAY_MS + 1)
    assert bench.run(cleaner(bench).clean()) == 999
    fill(bench, log, 3000)
    payload_bytes = bench.run(log.bounds()).payload_bytes
    assert bench.run(cleaner(bench, offsets_history_retention_bytes=-1).clean()) == 0
    assert bench.run(cleaner(bench, offsets_history_retention_bytes=payload_bytes).clean()) == 0
    assert bench.run(cleaner(bench, offsets_history_retention_bytes=payload_bytes // 4).clean()) > 2500
    # The limit counts records of the average size.
    assert bench.run(log.bounds()).payload_bytes == pytest.approx(payload_bytes / 4, rel=0.05)


def test_a_failing_partition_does_not_stop_the_others(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    logs = [bench.log(name, configs=COMPACT) for name in ("a", "b", "c")]
    for log in logs:
        fill(bench, log)
    bench.client.delete(logs[1].stream)
    bench.client.set(logs[1].stream, "of another type")
    assert bench.run(cleaner(bench).clean()) == 2 * 99
    assert "compaction of b-0" in caplog.text


def test_leftovers_are_removed_once(bench: Bench) -> None:
    log = bench.log("t", configs={"cleanup.policy": "delete"})
    fill(bench, log)
    left = bench.store.commands.keyspace.shadow_keys("t", 0)
    for key in left:
        bench.client.set(key, "left by a crash")
    working = cleaner(bench)
    bench.run(working.clean())
    assert bench.client.exists(*left) == 0
    assert bench.client.xlen(log.stream) == 100
    bench.client.set(left[0], "somebody else's, from now on")
    bench.run(working.clean())
    assert bench.client.exists(left[0]) == 1


def test_a_deleted_topic_takes_its_shadow_along(bench: Bench) -> None:
    log = bench.log("t", configs=COMPACT)
    fill(bench, log)
    left = bench.store.commands.keyspace.shadow_keys("t", 0)
    for key in left:
        bench.client.set(key, "left by a crash")
    bench.run(bench.store.catalogue.delete("t"))
    assert bench.client.exists(*left, *log.keys) == 0
