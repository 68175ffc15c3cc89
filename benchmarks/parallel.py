"""How long pytest-xdist takes for tests with fresh topics, on korvet's fixture and on a warm Apache Kafka.

    ./dev bench parallel [--tests 200] [--workers 4] [--rounds 5] [--kafka HOST:PORT]

Each test creates a topic and a group of its own, and checks that it reads its own records, all of them, at
the offsets from 0 on. korvet's time includes the start and the end of a broker per worker. Kafka runs before
that, and the tests have run on it once. `--kafka` names a running Kafka; without it, one is started from the
jars of the Java tests. Compare ratios: the same machine can be half as fast a minute later.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks.rig.kafka import Kafka, KafkaMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S: Final = 1200
_ADDRESS: Final = "BENCH_BOOTSTRAP_SERVERS"
_COUNT: Final = "BENCH_TESTS"
_TESTS: Final = f'''
import os
import uuid

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

RECORDS = 10


@pytest.fixture(scope="session")
def servers(request):
    return os.environ.get("{_ADDRESS}") or request.getfixturevalue("korvet_broker").bootstrap_servers


@pytest.fixture(scope="session")
def admin(servers):
    return AdminClient({{"bootstrap.servers": servers}})


@pytest.mark.parametrize("number", range(int(os.environ["{_COUNT}"])))
def test_own_records_are_read(servers, admin, number):
    topic = f"topic-{{number}}-{{uuid.uuid4()}}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer({{"bootstrap.servers": servers, "linger.ms": 0}})
    for index in range(RECORDS):
        producer.produce(topic, f"{{number}}/{{index}}")
    assert producer.flush(60) == 0
    group = {{"group.id": topic, "auto.offset.reset": "earliest", "enable.partition.eof": True}}
    consumer = Consumer({{"bootstrap.servers": servers, **group}})
    consumer.subscribe([topic])
    read = []
    while (message := consumer.poll(60)) is not None and message.error() is None:
        read.append((message.offset(), message.value().decode()))
    assert message is not None, "no end of the partition within a minute"
    assert read == [(index, f"{{number}}/{{index}}") for index in range(RECORDS)]
    (committed,) = consumer.commit(asynchronous=False)
    assert committed.offset == RECORDS
    consumer.close()
'''


def run_tests(folder: Path, workers: int, tests: int, address: str | None) -> float:
    """Run all tests, on korvet if there is no address; returns the seconds that this takes.

    Raises ClickException unless all of them pass.
    """
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("BENCH_", "KORVET_"))}
    environ |= {_COUNT: str(tests)} | ({_ADDRESS: address} if address else {})
    options = ["-q", "-p", "no:cacheprovider", "-n", str(workers), "-c", os.devnull, f"--rootdir={folder}"]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    took_s = time.perf_counter() - began
    if done.returncode != 0 or not re.search(rf"\b{tests} passed", done.stdout):
        raise click.ClickException(f"not all tests passed: {done.stdout[-4000:]}{done.stderr[-2000:]}")
    return took_s


@contextmanager
def kafka_at(address: str | None) -> Iterator[str]:
    """The address of a Kafka that runs until the end of the block, or longer if it is given."""
    if address is not None:
        yield address
        return
    try:
        kafka = Kafka()
    except KafkaMissing as reason:
        raise click.ClickException(f"no Kafka to compare with: {reason}") from reason
    try:
        yield kafka.cluster.bootstrap
    finally:
        kafka.close()


@click.command()
@click.option("--tests", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--kafka", "address", help="HOST:PORT of a running Kafka.")
def main(tests: int, workers: int, rounds: int, address: str | None) -> None:
    """Print the medians of both sides."""
    took: dict[str, list[float]] = {"korvet, with its starts": [], "Apache Kafka, warm": []}
    with tempfile.TemporaryDirectory(prefix="korvet-bench-") as name, kafka_at(address) as kafka:
        folder = Path(name)
        (folder / "test_topics.py").write_text(_TESTS, encoding="utf-8")
        sides = dict(zip(took, (None, kafka), strict=True))
        for number in range(rounds + 1):
            for side, servers in sides.items():
                took_s = run_tests(folder, workers, tests, servers)
                if number:  # the first round compiles modules and warms Kafka up
                    took[side].append(took_s)
    table = Table("side", "s", title=f"{tests} tests, {workers} workers")
    for side, seconds in took.items():
        table.add_row(side, f"{statistics.median(seconds):.2f}")
    ratio = statistics.median(ours / theirs for ours, theirs in zip(*took.values(), strict=True))
    Console(width=120).print(table, f"median of the ratios: {ratio:.2f}")


if __name__ == "__main__":
    main()
