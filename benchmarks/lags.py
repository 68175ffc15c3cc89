"""What a report on a Kafka fetches: records and bytes, by the size of the topic.

    ./dev bench lags --records 20000000 --groups 10

Starts a Kafka, fills a topic with small records, lets groups commit, and writes a report through a proxy that
counts. With `--exact`, it also writes one that counts all records.
"""

from __future__ import annotations

import tempfile
import time
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
from korvet.spark.tables.readers import KafkaReader
from tests.support.certificates import Authority
from tests.support.java import JavaTools
from tests.support.real_kafka import RealKafka

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

TOPIC: Final = "records"
OFFSETS_TOPIC: Final = "__consumer_offsets"
# Commits of each group and partition.
_COMMITS: Final = 12
_FILL_TIMEOUT_S: Final = 3600


def fill(tools: JavaTools, bootstrap: str, records: int, record_bytes: int) -> None:
    """Produce with Kafka's own tool, a Java producer in its default configuration."""
    size = ("--num-records", str(records), "--record-size", str(record_bytes), "--throughput", "-1")
    servers = ("--bootstrap-server", bootstrap)
    tools.run("producer-perf-test", "--topic", TOPIC, *size, *servers, timeout_s=_FILL_TIMEOUT_S)


def commit(bootstrap: str, groups: int, partitions: Sequence[TopicPartition]) -> None:
    """Each group reads on steadily. The first one ends at the log end, the others before it."""
    for group in range(groups):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": f"group-{group}", "enable.auto.commit": False}
        )
        for number in range(1, _COMMITS + 1):
            share = number / _COMMITS * (groups - group) / groups
            consumer.commit(
                offsets=[
                    TopicPartition(TOPIC, each.partition, int(each.offset * share)) for each in partitions
                ],
                asynchronous=False,
            )
        consumer.close()


def log_ends(bootstrap: str, partitions: int) -> list[TopicPartition]:
    """The partitions with their log ends."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    asked = [TopicPartition(TOPIC, partition) for partition in range(partitions)]
    found = [TopicPartition(TOPIC, each.partition, client.get_watermark_offsets(each)[1]) for each in asked]
    client.close()
    return found


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


@click.command()
@click.option("--records", default=1_000_000, show_default=True, type=click.IntRange(1))
@click.option("--record-bytes", default=20, show_default=True, type=click.IntRange(1))
@click.option("--partitions", default=4, show_default=True, type=click.IntRange(1))
@click.option("--groups", default=10, show_default=True, type=click.IntRange(1))
@click.option("--exact", is_flag=True, help="Also measure a report that counts all records.")
def main(records: int, record_bytes: int, partitions: int, groups: int, *, exact: bool) -> None:
    """Fill a topic, and print what reports fetch of it."""
    tools, meter = JavaTools.resolve(), FetchMeter()
    with tempfile.TemporaryDirectory(prefix="korvet-bench-lags-") as name:
        folder = Path(name)
        advertised = {"advertised.listeners": f"PLAINTEXT://localhost:{meter.port}"}
        kafka = RealKafka(tools, folder, Authority(folder), **advertised)
        meter.pass_to(int(kafka.bootstrap.rpartition(":")[2]))
        bootstrap = f"localhost:{meter.port}"
        try:
            kafka.start()
            admin = AdminClient({"bootstrap.servers": bootstrap})
            admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(20)
            fill(tools, bootstrap, records, record_bytes)
            commit(bootstrap, groups, log_ends(bootstrap, partitions))
            spark = build_session("korvet bench lags", "local[2]", jars=find_jars())
            rows = [
                measure(spark, meter, bootstrap, folder / f"report-{number}", exact=each)
                for number, each in enumerate((False, True) if exact else (False,))
            ]
            spark.stop()
        finally:
            kafka.stop()
            meter.close()
    table = Table(title=f"{records:,} records of {record_bytes} B, {partitions} partitions, {groups} groups")
    heads = ("report", "records fetched", "bytes", "commits fetched", "bytes", "bytes of all answers")
    for head in (*heads, "unread records", "s"):
        table.add_column(head, justify="left" if head == "report" else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
