"""What a report fetches: records and bytes, by the size of the topic.

    ./dev bench lags --records 20000000 --groups 10
    ./dev bench lags --records 2000000 --groups 10 --redis --turns 12

Starts a Kafka, fills a topic with small records, lets groups commit, and writes a report through a proxy that
counts. With `--redis`, starts korvet, and writes the report straight from Redis, whose statistics count.
With `--exact`, it also writes one that counts all records.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.rig.fetch_meter import FetchMeter
from korvet.spark.report.report import write_report
from korvet.spark.session.jars import find_jars
from korvet.spark.session.session import build_session
from korvet.spark.source.address import Address
from korvet.spark.tables.readers import KafkaReader, RedisReader
from tests.support.certificates import Authority
from tests.support.java import JavaTools
from tests.support.real_kafka import RealKafka
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.tables.needs import Needs

TOPIC: Final = "records"
OFFSETS_TOPIC: Final = "__consumer_offsets"
# Commits of each group and partition.
_COMMITS: Final = 12
_FILL_TIMEOUT_S: Final = 3600
_FIRST_RECORD_TIMEOUT_S: Final = 30
# What Redis counts (INFO).
_OUTPUT: Final = "total_net_output_bytes"
_COMMANDS: Final = ("cmdstat_xrange", "cmdstat_eval_ro", "cmdstat_xinfo|stream")
_SAMPLE: Final = 1000


def fill(tools: JavaTools, bootstrap: str, records: int, record_bytes: int) -> None:
    """Produce with Kafka's own tool, a Java producer in its default configuration."""
    size = ("--num-records", str(records), "--record-size", str(record_bytes), "--throughput", "-1")
    servers = ("--bootstrap-server", bootstrap)
    tools.run("producer-perf-test", "--topic", TOPIC, *size, *servers, timeout_s=_FILL_TIMEOUT_S)


def commit(bootstrap: str, groups: int, log: Sequence[tuple[int, int]], numbers: range) -> None:
    """Each group reads on steadily. The first one ends at the log end, the others before it.

    log: first offset and log end of each partition. numbers: those of the commits to make, of _COMMITS.
    """
    for group in range(groups):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": f"group-{group}", "enable.auto.commit": False}
        )
        for number in numbers:
            share = number / numbers[-1] * (groups - group) / groups
            consumer.commit(
                offsets=[
                    TopicPartition(TOPIC, partition, first + int((end - first) * share))
                    for partition, (first, end) in enumerate(log)
                ],
                asynchronous=False,
            )
        consumer.close()


def logs(bootstrap: str, partitions: int) -> list[tuple[int, int]]:
    """The offset of the first record of each partition, and the log end."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "auto.offset.reset": "earliest"})
    places = [TopicPartition(TOPIC, partition) for partition in range(partitions)]
    ends = [client.get_watermark_offsets(place)[1] for place in places]
    firsts = []
    for place in places:
        client.assign([place])
        message = client.poll(_FIRST_RECORD_TIMEOUT_S)
        assert message is not None
        firsts.append(message.offset())
    client.close()
    return list(zip(firsts, ends, strict=True))


def fill_in_turns(
    tools: JavaTools,
    bootstrap: str,
    records: int,
    record_bytes: int,
    partitions: int,
    groups: int,
    turns: int,
) -> None:
    """Fill the topic; after each turn the groups commit a part of their commits."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(20)
    for turn in range(turns):
        fill(tools, bootstrap, records // turns, record_bytes)
        numbers = range(1 + turn * _COMMITS // turns, 1 + (turn + 1) * _COMMITS // turns)
        commit(bootstrap, groups, logs(bootstrap, partitions), numbers)


def topic_ids(bootstrap: str) -> dict[bytes, str]:
    """The names of the topics by their IDs."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    answers = admin.describe_topics(TopicCollection([TOPIC, OFFSETS_TOPIC]))
    found = {}
    for name, answer in answers.items():
        uuid = answer.result(20).topic_id
        halves = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits())
        found[b"".join((half & (2**64 - 1)).to_bytes(8, "big") for half in halves)] = name
    return found


def measure(spark: SparkSession, meter: FetchMeter, bootstrap: str, out: Path, *, exact: bool) -> list[str]:
    """Write a report. Returns what it fetched: records and bytes of either topic, bytes of all answers."""
    names = topic_ids(bootstrap)
    reader = KafkaReader(bootstrap, exact=exact)
    meter.reset()
    began = time.perf_counter()
    write_report(spark, reader, out, time.time_ns() // 1_000_000)
    took_s = time.perf_counter() - began
    row = [reader_name(exact=exact)]
    for topic in (TOPIC, OFFSETS_TOPIC):
        ids = [topic_id for topic_id, name in names.items() if name == topic]
        row += [
            f"{sum(meter.records[one] for one in ids):,}",
            f"{sum(meter.record_bytes[one] for one in ids):,}",
        ]
    lag = spark.read.parquet(str(out / "group_status")).groupBy().sum("record_lag").collect()[0][0]
    return [*row, f"{meter.response_bytes:,}", f"{lag:,}", f"{took_s:.1f}"]


def reader_name(*, exact: bool) -> str:
    return "counted (--exact)" if exact else "looked up"


class Counting(RedisReader):
    """Reads and counts all records."""

    def logs(self, spark: SparkSession, needs: Needs, as_of_ms: int) -> DataFrame:
        return self.records(spark, needs.starts)


def measure_redis(spark: SparkSession, server: KorvetServer, out: Path, *, exact: bool) -> list[str]:
    """Write a report. Returns what Redis answered: commands, their bytes, and as many records on the wire."""
    address = Address(f"unix://{server.socket_path()}")
    reader = (Counting if exact else RedisReader)(address)
    before = counters(server)
    began = time.perf_counter()
    write_report(spark, reader, out, time.time_ns() // 1_000_000)
    took_s = time.perf_counter() - began
    used = counters(server) - before
    answered = used.pop(_OUTPUT)
    shown = " ".join(f"{name} {calls:,}" for name, calls in sorted(used.items()))
    before = counters(server)
    server.redis.xrange(f"korvet:{TOPIC}:0", count=_SAMPLE)
    per_record = (counters(server) - before)[_OUTPUT] / _SAMPLE
    lag = spark.read.parquet(str(out / "group_status")).groupBy().sum("record_lag").collect()[0][0]
    return [
        "counted" if exact else "by the index",
        shown,
        f"{answered:,}",
        f"{answered / per_record:,.0f}",
        f"{lag:,}",
        f"{took_s:.1f}",
    ]


def counters(server: KorvetServer) -> Counter[str]:
    """How often commands were called, also by scripts, and the bytes of all answers."""
    calls = {
        name.removeprefix("cmdstat_"): figures["calls"]
        for name, figures in server.redis.info("commandstats").items()
        if name in _COMMANDS
    }
    return Counter({**calls, _OUTPUT: server.redis.info("stats")[_OUTPUT]})


@click.command()
@click.option("--records", default=1_000_000, show_default=True, type=click.IntRange(1))
@click.option("--record-bytes", default=20, show_default=True, type=click.IntRange(1))
@click.option("--partitions", default=4, show_default=True, type=click.IntRange(1))
@click.option("--groups", default=10, show_default=True, type=click.IntRange(1))
@click.option("--turns", default=1, show_default=True, type=click.IntRange(1, _COMMITS))
@click.option("--redis", is_flag=True, help="Report on korvet, straight from Redis.")
@click.option("--exact", is_flag=True, help="Also measure a report that counts all records.")
def main(
    records: int, record_bytes: int, partitions: int, groups: int, turns: int, *, redis: bool, exact: bool
) -> None:
    """Fill a topic, and print what reports fetch of it."""
    tools = JavaTools.resolve()
    load = (records, record_bytes, partitions, groups, turns)
    title = f"{records:,} records of {record_bytes} B, {partitions} partitions, {groups} groups"
    ways = (False, True) if exact else (False,)
    with tempfile.TemporaryDirectory(prefix="korvet-bench-lags-") as name:
        folder = Path(name)
        if redis:
            with KorvetServer() as server:
                fill_in_turns(tools, server.bootstrap, *load)
                spark = build_session("korvet bench lags", "local[2]")
                rows = [measure_redis(spark, server, folder / f"report-{way}", exact=way) for way in ways]
                spark.stop()
            show(title, ("calls of commands", "bytes of all answers", "as many records"), rows)
            return
        jars = find_jars()
        meter = FetchMeter()
        advertised = {"advertised.listeners": f"PLAINTEXT://localhost:{meter.port}"}
        kafka = RealKafka(tools, folder, Authority(folder), **advertised)
        meter.pass_to(int(kafka.bootstrap.rpartition(":")[2]))
        bootstrap = f"localhost:{meter.port}"
        try:
            kafka.start()
            fill_in_turns(tools, bootstrap, *load)
            spark = build_session("korvet bench lags", "local[2]", jars=jars)
            rows = [measure(spark, meter, bootstrap, folder / f"report-{way}", exact=way) for way in ways]
            spark.stop()
        finally:
            kafka.stop()
            meter.close()
    show(title, ("records fetched", "bytes", "commits fetched", "bytes", "bytes of all answers"), rows)


def show(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the reports as a table."""
    table = Table(title=title)
    for head in ("report", *heads, "unread records", "s"):
        table.add_column(head, justify="left" if head == "report" else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
