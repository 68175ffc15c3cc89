"""Kafka Connect in distributed mode, and MirrorMaker 2, unmodified.

The tests set only addresses and intervals. The topics have one replica, because there is one broker.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.admin import create_topic
from tests.support.confluent import Read, consumer, producer, read_all, send, take
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.java import JavaTools
    from tests.support.processes import Child

pytestmark = [pytest.mark.clients, pytest.mark.long]

START_TIMEOUT_S = 120
# Their next step waits for their intervals and rebalances.
DONE_TIMEOUT_S = 90

WORKER = """
bootstrap.servers={bootstrap}
group.id={name}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
config.storage.topic={name}-configs
offset.storage.topic={name}-offsets
status.storage.topic={name}-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.flush.interval.ms=500
listeners=http://127.0.0.1:{port}
"""

MIRROR = """
clusters=a,b
a.bootstrap.servers={a}
b.bootstrap.servers={b}
a->b.enabled=true
b->a.enabled=false
a->b.topics=orders
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
emit.checkpoints.interval.seconds=1
refresh.topics.interval.seconds=1
refresh.groups.interval.seconds=1
offset.lag.max=0
offset.flush.interval.ms=500
"""


@pytest.fixture
def start(java: JavaTools, tmp_path: Path) -> Iterator[Callable[[str, str], Child]]:
    """Starts a service with the text of its properties. It stops with the test."""
    started: list[Child] = []

    def begin(service: str, properties: str) -> Child:
        file = tmp_path / "service.properties"
        file.write_text(properties)
        started.append(java.start(service, str(file), log=tmp_path / f"{service}.log"))
        return started[-1]

    yield begin
    for child in started:
        child.kill()


def call(port: int, path: str, body: dict[str, Any] | None = None, method: str | None = None) -> Any:
    """Returns the worker's response; None while it doesn't respond."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def test_file_source_and_sink(korvet, start, fresh, tmp_path, ask_configs):
    """Lines go from one file into another. A restarted worker continues at its position."""
    name, port = fresh("connect"), free_port()
    properties = WORKER.format(bootstrap=korvet.bootstrap, name=name, port=port)
    lines, copied = tmp_path / "lines", tmp_path / "copied"
    lines.write_text("".join(f"line {number}\n" for number in range(100)))
    worker = start("connect-distributed", properties)
    until(lambda: call(port, "/connectors") == [], START_TIMEOUT_S, "the worker is ready")
    topic = f"{name}-lines"
    source = {"connector.class": "FileStreamSource", "file": str(lines), "topic": topic}
    sink = {"connector.class": "FileStreamSink", "file": str(copied), "topics": topic}
    for kind, config in (("source", source), ("sink", sink)):
        body = {"name": f"{name}-{kind}", "config": {"tasks.max": "1", **config}}
        assert until(lambda body=body: call(port, "/connectors", body), 30, kind)["type"] == kind

    def so_far() -> bool:
        return copied.exists() and copied.read_text() == lines.read_text()

    until(so_far, DONE_TIMEOUT_S, "all lines are copied")
    where = f"/connectors/{name}-source/offsets"

    def stored() -> bool:
        offsets = (call(port, where) or {}).get("offsets")
        return bool(offsets) and offsets[0]["offset"]["position"] == lines.stat().st_size

    until(stored, DONE_TIMEOUT_S, "the source's position is stored")
    for kind in ("configs", "offsets", "status"):
        assert ask_configs(f"{name}-{kind}")["cleanup.policy"] == "compact"

    worker.kill()
    with lines.open("a") as file:
        file.write("last line\n")
    start("connect-distributed", properties)
    until(so_far, START_TIMEOUT_S + DONE_TIMEOUT_S, "only the line that came meanwhile is copied")


def test_file_source_exactly_once(korvet, start, fresh, tmp_path, java):
    """Each line is committed once, even if its worker dies. A new configuration fences the old tasks."""
    name, port = fresh("connect"), free_port()
    properties = WORKER.format(bootstrap=korvet.bootstrap, name=name, port=port)
    properties += "exactly.once.source.support=enabled\n"
    topic, lines = f"{name}-lines", tmp_path / "lines"
    create_topic(korvet.bootstrap, topic, 1)
    lines.write_text("".join(f"line {number}\n" for number in range(1000)))
    worker = start("connect-distributed", properties)
    until(lambda: call(port, "/connectors") == [], START_TIMEOUT_S, "the worker is ready")
    config = {
        "connector.class": "FileStreamSource",
        "file": str(lines),
        "topic": topic,
        "tasks.max": "1",
        "exactly.once.support": "required",
    }
    body = {"name": name, "config": config}
    assert until(lambda: call(port, "/connectors", body), 30, "the source")["type"] == "source"

    written = lines.read_text().splitlines()

    def are_committed() -> bool:
        return len(values(korvet.bootstrap, topic)) >= len(written)

    until(are_committed, DONE_TIMEOUT_S, "all lines are committed")
    for ended in (False, True):
        with lines.open("a") as file:
            file.writelines(f"{'another ' * 20}{number}\n" for number in range(1900))
        written[:] = lines.read_text().splitlines()
        until(lambda: is_open(korvet.bootstrap, topic) or are_committed(), DONE_TIMEOUT_S, "it is at work")
        if ended:
            worker.kill()
            start("connect-distributed", properties)
        else:
            call(port, f"/connectors/{name}/config", {**config, "batch.size": "1999"}, "PUT")
        until(are_committed, START_TIMEOUT_S + DONE_TIMEOUT_S, "all lines are committed")
        assert values(korvet.bootstrap, topic) == written
    tasks = until(lambda: call(port, f"/connectors/{name}/status"), 30, "the status")["tasks"]
    assert [task["state"] for task in tasks] == ["RUNNING"]
    at = ("--bootstrap-server", korvet.bootstrap)
    described = java.run("transactions", *at, "describe", "--transactional-id", f"{name}-{name}-0")
    assert int(described.splitlines()[1].split()[3]) > 0, described


def values(bootstrap: str, topic: str) -> list[str]:
    """Returns a topic's committed lines up to the end that a consumer sees."""
    client = consumer(bootstrap, "lines", isolation_level="read_committed", enable_partition_eof=True)
    found: list[str] = []
    try:
        client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = client.poll(30)
            assert message is not None, found[-1:]
            if message.error() is not None:
                return found
            found.append(message.value().decode())
    finally:
        client.close()


def is_open(bootstrap: str, topic: str) -> bool:
    """Whether a transaction is open."""
    ends = set()
    for isolation in ("read_uncommitted", "read_committed"):
        client = consumer(bootstrap, "ends", isolation_level=isolation)
        ends.add(client.get_watermark_offsets(TopicPartition(topic, 0), 30)[1])
        client.close()
    return len(ends) > 1


@pytest.fixture
def ask_configs(java: JavaTools, korvet) -> Callable[[str], dict[str, str]]:
    """Returns the configs that a topic sets."""

    def ask(topic: str) -> dict[str, str]:
        at = ("--bootstrap-server", korvet.bootstrap)
        shown = java.run("configs", *at, "--describe", "--entity-type", "topics", "--entity-name", topic)
        return dict(re.findall(r"^\s+([\w.]+)=(\S*)", shown, re.MULTILINE))

    return ask


def test_mirror_maker_between_two_brokers(own_korvet, start):
    """Records, headers, timestamps and group offsets arrive."""
    a, b = own_korvet(), own_korvet()
    create_topic(a.bootstrap, "orders", 2, {"retention.ms": "7200000"})
    records = [Record(b"k%d" % n, b"v%d" % n, (("trace", b"%d" % n),), NOW_MS + n) for n in range(40)]
    for partition in (0, 1):
        send(producer(a.bootstrap), "orders", partition, records)
    start("connect-mirror-maker", MIRROR.format(a=a.bootstrap, b=b.bootstrap))

    admin = AdminClient({"bootstrap.servers": b.bootstrap})
    limit_s = START_TIMEOUT_S + DONE_TIMEOUT_S
    until(lambda: "a.orders" in admin.list_topics(timeout=20).topics, limit_s, "the topic is mirrored")

    def arrived(partition: int) -> list[Read] | None:
        found = read_all(b.bootstrap, "a.orders", partition)
        return found if len(found) >= len(records) else None

    there = [until(lambda n=n: arrived(n), DONE_TIMEOUT_S, "all records are mirrored") for n in (0, 1)]
    assert [[read.record for read in found] for found in there] == [records, records]

    # It doesn't translate offsets before the part of a partition that it remembers. This group is at the end.
    group = consumer(a.bootstrap, "accounting", auto_offset_reset="earliest")
    group.assign([TopicPartition("orders", 0, 0)])
    read = take(group, len(records))
    group.commit(offsets=[TopicPartition("orders", 0, read[-1].offset + 1)], asynchronous=False)
    group.close()
    moved = consumer(b.bootstrap, "accounting")

    def translated() -> int:
        (found,) = moved.committed([TopicPartition("a.orders", 0)], timeout=20)
        return max(found.offset, 0)

    # The group may read records twice, but can't miss one.
    offset = until(translated, DONE_TIMEOUT_S, "the group's offset is translated")
    assert there[0][0].offset < offset <= there[0][-1].offset + 1
    moved.close()
