"""The sink's tasks, on korvet or a real Kafka: each row once, and refusals."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from contextlib import closing
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka.partitioner.default import murmur2 as kafka_murmur2  # type: ignore[import-untyped]

from korvet.spark.source.errors import SourceError
from korvet.spark.source.settings import SourceOptions
from korvet.spark.source.sink import kafka_client, sorting
from korvet.spark.source.sink.job_tasks import check_task
from korvet.spark.source.sink.kafka_client import KafkaTopics, Transactions
from korvet.spark.source.sink.kafka_cluster import KafkaCluster
from korvet.spark.source.sink.options import SinkOptions, parse_sink_options
from korvet.spark.source.sink.pace import Pace
from korvet.spark.source.sink.partitioner import murmur2, partition_of
from korvet.spark.source.sink.progress import Job, job_group, noted_progress
from korvet.spark.source.sink.task import Written, write_task
from korvet.spark.source.sink.writer import KorvetWriter, batch_writer
from tests.api.secured import Secured
from tests.spark.direct import schema_of
from tests.spark.sinking import random_rows, row
from tests.support.admin import create_topic
from tests.support.confluent import Read, as_read, consumer
from tests.support.polling import until
from tests.support.proxy import CuttingProxy
from tests.support.servers import KAFKA_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from korvet.spark.source.sink.columns import SinkRow
    from tests.support.servers import Broker, KorvetServer

SEED = int(os.environ.get("KORVET_TEST_SEED", "20261125"))
ROWS, PARTITIONS, CHUNK = 2000, 3, 300


class Killed(Exception):
    """The attempt ends here."""


class Target:
    """A new topic, and a job that writes to it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = f"sink-{uuid.uuid4()}"
        self.job_id = str(uuid.uuid4())
        create_topic(bootstrap, self.topic, PARTITIONS)
        with closing(KafkaTopics(KafkaCluster(bootstrap), "any", 20)) as topics:
            topics.create_if_missing("korvet-sink-progress")

    def write(
        self, rows: Iterable[SinkRow], *, batch: int = 0, topic: str | None = "", **options: str
    ) -> Written:
        """Write the rows as one attempt of a task. With the topic None, rows name their topic."""
        name = self.topic if topic == "" else topic
        given = {"kafka.bootstrap.servers": self.bootstrap, **({} if name is None else {"topic": name})}
        return write_task(parse_sink_options({**given, **options}), Job(self.job_id, batch, 0), rows)

    def read(self, topic: str = "") -> list[list[Read]]:
        """Return the committed records of each partition."""
        return read_topic(self.bootstrap, topic or self.topic)

    def numbers(self) -> list[list[int]]:
        """Return the values of each partition, which are numbers of rows."""
        return [[int(one.record.value or b"") for one in partition] for partition in self.read()]


@pytest.fixture
def target(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setattr(SinkOptions, "chunk_records", CHUNK)
    return Target(broker.bootstrap)


def written(target: Target) -> int:
    """The number of the task's records that are noted as written."""
    job = Job(target.job_id, 0, 0)
    with closing(KafkaTopics(KafkaCluster(target.bootstrap), job.identity, 20)) as topics:
        found = noted_progress(job, topics.noted("korvet-sink-progress"))
    return 0 if found is None else found.records


def read_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> list[list[Read]]:
    """Return the committed records of each partition, up to its current end."""
    client = consumer(bootstrap, "reading", enable_partition_eof=True, fetch_wait_max_ms=10)
    client.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    found: list[list[Read]] = [[] for _ in range(partitions)]
    ended: set[int | None] = set()

    def at_the_end() -> bool:
        for message in client.consume(1000, 0.05):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                found[message.partition() or 0].append(as_read(message))
        return len(ended) == partitions

    try:
        until(at_the_end, 60, "all partitions are read")
    finally:
        client.close()
    return found


def cut(rows: list[SinkRow], at: int) -> Iterator[SinkRow]:
    yield from rows[:at]
    raise Killed


def in_order(count: int, found: list[list[int]]) -> None:
    """Each row is there once, and the rows of a partition are in their order."""
    assert sorted(number for partition in found for number in partition) == list(range(count))
    assert found == [sorted(partition) for partition in found]


def test_attempts_continue_after_each_other(target: Target) -> None:
    rows = random_rows(SEED, ROWS, PARTITIONS)
    for at in (700, 1600):
        with pytest.raises(Killed):
            target.write(cut(rows, at))
    assert target.write(rows) == Written(ROWS - 1500, 1500)
    found = target.read()
    in_order(ROWS, [[int(one.record.value or b"") for one in partition] for partition in found])
    for partition, reads in enumerate(found):
        for one in reads:
            given = rows[int(one.record.value or b"")]
            assert (one.record.key, one.record.headers) == (given.key, given.headers)
            by_key = None if given.key is None else partition_of(given.key, PARTITIONS)
            assert (by_key if given.partition is None else given.partition) in {None, partition}
            assert given.timestamp_ms in {None, one.record.timestamp_ms}
    # The whole job again; another batch of it; the batch before.
    assert target.write(rows) == Written(0, ROWS)
    assert target.write(rows[:10], batch=1) == Written(10, 0)
    with pytest.raises(SourceError, match=r"batch 0 was replaced: batch 1 has begun"):
        target.write(rows)


def test_an_attempt_that_is_overtaken(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt has sent its records when the second one begins: its transaction is aborted."""
    rows = random_rows(SEED, 500, PARTITIONS)
    deliver = Transactions._deliver
    overtaking: list[Written] = []

    def overtaken(self: Transactions) -> None:
        deliver(self)
        monkeypatch.setattr(Transactions, "_deliver", deliver)
        overtaking.append(target.write(rows))

    monkeypatch.setattr(Transactions, "_deliver", overtaken)
    with pytest.raises(SourceError, match=r"row 300 of task 0 .*another attempt of this task has begun"):
        target.write(rows)
    assert overtaking == [Written(500, 0)]
    in_order(500, target.numbers())


def test_connections_that_are_cut(
    own_korvet: Callable[..., KorvetServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a transaction, and in the middle of the rows of the next one."""
    monkeypatch.setattr(SinkOptions, "chunk_records", CHUNK)
    rows = random_rows(SEED, ROWS, PARTITIONS)
    with closing(CuttingProxy()) as proxy:
        proxy.target_port = own_korvet(advertise=proxy.address).port
        target = Target(proxy.address)

        def with_cuts() -> Iterator[SinkRow]:
            for number, one in enumerate(rows):
                if number % 450 == 449:
                    proxy.cut()
                yield one

        assert target.write(with_cuts()) == Written(ROWS, 0)
        assert proxy.cuts
        in_order(ROWS, target.numbers())


def test_a_lost_answer_to_the_commit(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(SEED, 500, PARTITIONS)
    write = Transactions.write

    def lossy(self: Transactions, *arguments: Any) -> None:
        write(self, *arguments)
        raise SourceError("cut")

    monkeypatch.setattr(Transactions, "write", lossy)
    with pytest.raises(SourceError, match=r"row 300 .*: cut"):
        target.write(rows)
    monkeypatch.setattr(Transactions, "write", write)
    assert target.write(rows) == Written(200, 300)
    in_order(500, target.numbers())


def test_killed_processes(target: Target) -> None:
    chance = random.Random(SEED)
    command = [sys.executable, "-m", "tests.spark.sink_child", target.bootstrap, target.topic, target.job_id]
    command += [str(SEED), str(ROWS), str(PARTITIONS)]
    seen = 0
    for _ in range(2):
        least = seen + chance.randrange(1, ROWS // 4)
        with subprocess.Popen(command) as child:
            until(lambda least=least: written(target) >= least, 60, "records of the killed process")
            child.send_signal(signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
        seen = written(target)
    assert 0 < seen < ROWS
    rows = random_rows(SEED, ROWS, PARTITIONS)
    assert target.write(rows) == Written(ROWS - seen, seen)
    in_order(ROWS, target.numbers())


def test_sorted_rows_may_come_in_any_order(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "RUN_BYTES", 100_000)
    rows, chance = random_rows(SEED, ROWS, PARTITIONS), random.Random(SEED)
    with pytest.raises(SourceError, match=f"row {ROWS + 1} .* no partition 9"):
        target.write([row(b"bad", partition=9), *rows], sortRows="true")
    before = written(target)
    assert 0 < before < ROWS
    chance.shuffle(rows)
    assert target.write(rows, sortRows="true") == Written(ROWS - before, before)
    assert sorted(number for partition in target.numbers() for number in partition) == list(range(ROWS))


def test_sorting_counts_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of large headers go to temporary files, too."""
    monkeypatch.setattr(sorting, "RUN_BYTES", 100_000)
    files: list[Any] = []
    monkeypatch.setattr(sorting, "TemporaryFile", lambda: files.append(BytesIO()) or files[-1])
    rows = [row(b"%d" % number, headers=(("h", b"x" * 10_000),)) for number in range(50)]
    assert len(list(sorting.sorted_rows(reversed(rows)))) == 50
    assert len(files) == 5


def test_a_topic_that_grows_between_attempts(target: Target) -> None:
    rows = [row(b"%d" % number, b"%d" % number) for number in range(1000)]
    with pytest.raises(Killed):
        target.write(cut(rows, 700))
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.create_partitions([NewPartitions(target.topic, 7)])[target.topic].result()
    with closing(KafkaTopics(KafkaCluster(target.bootstrap), "any", 20)) as topics:
        until(lambda: topics.partitions(target.topic) == 7, 20, "the new partitions")
    assert target.write(rows) == Written(400, 600)
    found = read_topic(target.bootstrap, target.topic, 7)
    assert sorted(int(one.record.value or b"") for partition in found for one in partition) == list(
        range(1000)
    )
    assert all(found)


def test_rows_that_differ(target: Target) -> None:
    rows = [row(b"%d" % number, topic=target.topic) for number in range(500)]
    with pytest.raises(Killed):
        target.write(cut(rows, 400), topic=None)
    for wrong, message in [
        ([rows[1], rows[0], *rows[2:]], "row 300 of .*first 300 records are not those"),
        (rows[:299], "an earlier attempt wrote 300 records, but this attempt has 299"),
        ([], "an earlier attempt wrote 300 records, but this attempt has 0"),
    ]:
        with pytest.raises(SourceError, match=message):
            target.write(wrong, topic=None)
    target.write(rows, topic=None)
    in_order(500, target.numbers())


@pytest.mark.parametrize("count", [500, 2 * CHUNK])
def test_a_finished_task_gets_no_more_rows(target: Target, count: int) -> None:
    """Also if its last record was the last one of a chunk."""
    rows = random_rows(SEED, ROWS, PARTITIONS)
    assert target.write(rows[:count]) == Written(count, 0)
    with pytest.raises(SourceError, match=rf"row {count + 1} of .*attempt had {count} rows, .* has more"):
        target.write(rows)
    assert target.write(rows[:count]) == Written(0, count)
    in_order(count, target.numbers())


def test_a_job_with_another_number_of_tasks(target: Target) -> None:
    given = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.topic, "jobId": target.job_id}

    def writer() -> KorvetWriter:
        return batch_writer(given, schema_of("value"), overwrite=False)

    writer().abort([None, None])
    with pytest.raises(SourceError, match=r"tasks of job .* is 1, and was 2 before: some rows may be"):
        writer().commit([None])
    writer().commit([None, None])
    assert writer()._tasks_before == 2
    check_task(Job("j", 0, 1), 2)
    with pytest.raises(SourceError, match="task 2 of job j, batch 0: the number of tasks was 2 before"):
        check_task(Job("j", 0, 2), 2)


def test_rows_that_are_refused(target: Target) -> None:
    compacted, recent = f"{target.topic}-compacted", f"{target.topic}-recent"
    create_topic(target.bootstrap, compacted, 1, {"cleanup.policy": "compact"})
    create_topic(target.bootstrap, recent, 1, {"message.timestamp.before.max.ms": "60000"})
    refused: list[tuple[dict[str, Any], str]] = [
        ({"topic": "nowhere"}, "row 301 .*no topic nowhere in Kafka at 127"),
        ({"topic": None}, "row 301 .*the column topic is null"),
        ({"partition": 3}, "row 301 .*has no partition 3; it has 0 to 2"),
        ({"partition": -1}, "row 301 .*has no partition -1"),
        ({"headers": ((None, b"v"),)}, "row 301 .*a header has no key"),
        ({"headers": (("a\0b", b"v"),)}, r"row 301 .*the key 'a.x00b' of a header contains a NUL"),
        ({"topic": "__consumer_offsets"}, "TOPIC_AUTHORIZATION_FAILED .* for __consumer_offsets, sink-"),
        ({"timestamp_ms": 0}, "row 301 .*timestamp 0 ms can't be written: it must"),
        ({"value": b"x" * 1_048_588}, r"-0 refuses the record of row 301: MSG_SIZE_TOO_LARGE"),
        ({"timestamp_ms": 2**45}, r"-0 refuses the record of row 301: INVALID_TIMESTAMP"),
        (
            {"topic": recent, "timestamp_ms": 1_700_000_000_000},
            r"-0 refuses the record of row 301: INVALID_TIMESTAMP",
        ),
        ({"topic": compacted}, r"-0 refuses the record of row 301: INVALID_RECORD"),
    ]
    good = row(b"0", partition=0, topic=target.topic)
    for bad, message in refused:
        # The second transaction has a good row, too.
        rows = [*[good] * CHUNK, good._replace(**bad), good]
        target.job_id = str(uuid.uuid4())
        with pytest.raises(SourceError, match=rf"{message}.* It had written 300 records"):
            target.write(rows, topic=None)
    assert [len(partition) for partition in target.read()] == [CHUNK * len(refused), 0, 0]


def test_records_as_large_as_a_topic_accepts(target: Target) -> None:
    large = f"{target.topic}-large"
    create_topic(target.bootstrap, large, 1, {"max.message.bytes": "4000000"})
    sizes = {target.topic: 1_040_000, large: 3_900_000}
    rows = [row(b"x" * size, topic=topic, partition=0) for topic, size in sizes.items()]
    assert target.write([*rows, *rows], topic=None) == Written(4, 0)
    for topic, size in sizes.items():
        (found,) = read_topic(target.bootstrap, topic, 1)
        assert [len(one.record.value or b"") for one in found] == [size] * 2


def test_a_topic_that_is_deleted(target: Target) -> None:
    rows = [row(b"%d" % number) for number in range(700)]

    def deleted_meanwhile() -> Iterator[SinkRow]:
        yield from rows[:400]
        admin = AdminClient({"bootstrap.servers": target.bootstrap})
        admin.delete_topics([target.topic])[target.topic].result()
        yield from rows[400:]

    with pytest.raises(SourceError, match=rf"{target.topic}.* It had written 300 records"):
        target.write(deleted_meanwhile(), deliveryTimeout="4s")


def test_no_attempt_waits_for_rows_after_a_refused_one() -> None:
    """A broker can't take these, by their sequence numbers."""
    transactions = Transactions.__new__(Transactions)

    class Waiting:
        def flush(self, _: float) -> int:
            transactions._refusal = "row 1 is refused"
            return 1

    transactions._producer, transactions._timeout_s, transactions._refusal = Waiting(), 600, ""
    with pytest.raises(SourceError, match="row 1 is refused"):
        transactions._deliver()


def test_without_librdkafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "kafka", None)
    with pytest.raises(SourceError, match=r"needs confluent-kafka on the driver and on all executors: pip "):
        write_task(parse_sink_options({"topic": "t"}), Job("j", 0, 0), [row(b"v")])


def test_a_server_that_stays_away() -> None:
    options = parse_sink_options(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "deliveryTimeout": "1s"}
    )
    with pytest.raises(SourceError, match=r"row 1 of .*no usable Kafka at 127.0.0.1:1: .*tried for 1 s"):
        write_task(options, Job("j", 0, 0), [row(b"v")])


@pytest.mark.long
def test_users_and_rights(tmp_path: Path) -> None:
    """The password comes from a file. Each message names what is missing, until nothing is."""
    if os.environ.get(KAFKA_VARIABLE):
        pytest.skip("needs a server with users")
    secured = Secured()
    (tmp_path / "password").write_text("secret\n")
    try:
        secured.start()
        safe = {
            "bootstrap.servers": f"127.0.0.1:{secured.sasl_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
        }
        admin = AdminClient({**safe, "sasl.username": "admin", "sasl.password": "secret"})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(20)
        given = {f"kafka.{name}": value for name, value in safe.items()}
        given |= {"topic": "t", "kafka.sasl.username": "writer", "deliveryTimeout": "3s"}
        file = {"kafka.sasl.passwordFile": str(tmp_path / "password")}

        def allow(kind: ResourceType, name: str, operation: AclOperation) -> None:
            right = AclBinding(
                kind,
                name,
                ResourcePatternType.PREFIXED,
                "User:writer",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            admin.create_acls([right])[right].result(20)

        def refused(message: str, **more: str) -> None:
            with pytest.raises(SourceError, match=message):
                batch_writer({**given, **(more or file)}, schema_of("value"), overwrite=False)

        def attempt() -> Written:
            return write_task(parse_sink_options({**given, **file}), Job("j", 0, 0), [row(b"v")])

        refused(
            "no usable Kafka .*(?i:authentication)",
            **{"kafka.sasl.password": "wrong", "deliveryTimeout": "1s"},
        )
        refused("topic t: Broker: Topic authorization failed")
        allow(ResourceType.TOPIC, "t", AclOperation.WRITE)
        refused("topic korvet-sink-progress: Broker: Topic authorization failed")
        allow(ResourceType.TOPIC, "korvet-sink-", AclOperation.READ)
        refused("no topic korvet-sink-progress, and it can't be created: .*Create it with one partition")
        admin.create_topics([NewTopic("korvet-sink-progress", 1, 1)])["korvet-sink-progress"].result(20)
        batch_writer({**given, **file}, schema_of("value"), overwrite=False)
        with pytest.raises(SourceError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            attempt()
        allow(ResourceType.TRANSACTIONAL_ID, "korvet-sink-", AclOperation.WRITE)
        with pytest.raises(SourceError, match="Group authorization failed"):
            attempt()
        allow(ResourceType.GROUP, "korvet-sink-", AclOperation.READ)
        assert attempt() == Written(1, 0)
    finally:
        secured.close()
        secured.server.discard()


def test_a_job_has_the_group_of_no_task() -> None:
    """A job may have the name of another one with a number, or any other ending."""
    jobs = ["load", "load-1", "load-1-1", "load-tasks", "load-1-tasks"]
    groups = [job_group(job) for job in jobs]
    groups += [Job(job, 0, task).identity for job in jobs for task in range(2)]
    assert len(set(groups)) == len(groups)


def test_hashes_are_those_of_kafka() -> None:
    chance = random.Random(SEED)
    for size in range(40):
        key = chance.randbytes(size)
        assert murmur2(key) == kafka_murmur2(key) & 0xFFFFFFFF


def test_options() -> None:
    assert parse_sink_options({"topic": "t"}).cluster.bootstrap == "127.0.0.1:9092"
    base = {"kafka.bootstrap.servers": "a:1", "topic": "t"}
    found = parse_sink_options(
        {**base, "maxRecordsPerSecond": "300", "concurrentTasks": "3", "kafka.linger.ms": "20"}
    )
    assert (found.task_rate, found.chunk_records) == (100, 100)
    assert found.cluster.config() == {"bootstrap.servers": "a:1", "linger.ms": "20"}
    secret = parse_sink_options({**base, "kafka.sasl.password": "hidden", "kafka.ssl.ca.pem": "hidden"})
    assert "hidden" not in repr(secret)
    assert secret.cluster.config()["sasl.password"] == "hidden"


def test_a_write_names_brokers() -> None:
    """Options of Redis are for a view that is also read."""
    redis = {"redis": "redis://h", "redis.user": "me", "topic": "t"}
    with pytest.raises(
        SourceError,
        match=r"^redis, redis\.user: the korvet sink writes to brokers, not to Redis; give kafka\.boot",
    ):
        parse_sink_options(redis)
    of_view = {**redis, "keyspace": "k", "startingOffsets": "earliest", "kafka.bootstrap.servers": "a:1"}
    assert parse_sink_options(of_view).cluster == KafkaCluster("a:1")
    assert SourceOptions.parse({**of_view, "kafka.linger.ms": "5", "sortRows": "true"}).address.user == "me"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minReplicas": "1"}, "no option minReplicas; use the topic's config min.insync.replicas"),
        ({"progressRetention": "1h"}, "no option progressRetention; use the brokers' setting offsets.retent"),
        ({"maxRecordsPerSecond": "0"}, "maxRecordsPerSecond must be a number above 0, not '0'"),
        ({"maxRecordsPerSecond": "9"}, "maxRecordsPerSecond needs concurrentTasks"),
        ({"deliveryTimeout": "999ms"}, "deliveryTimeout must be 1s or longer"),
        ({"deliveryTimeout": "25d"}, "deliveryTimeout must be 1s or longer, and at most 24d"),
        ({"kafka.acks": "1"}, "kafka.acks: the sink sets this property itself"),
        ({"kafka.transaction.timeout.ms": "1"}, "sets this property itself; use deliveryTimeout"),
        (
            {"kafka.sasl.jaas.config": "x"},
            "a property of Java clients; use kafka.sasl.username and kafka.sasl",
        ),
        (
            {"kafka.ssl.key.pem": "hidden"},
            "^kafka.ssl.key.pem: Spark's plans and logs would show it; use kafka.ssl.key.location, a file "
            "with the key in PEM$",
        ),
        ({"kafka.sasl.password": "x", "kafka.sasl.passwordFile": "f"}, "only one of kafka.sasl.password, "),
        ({"colour": "red"}, "unknown option colour; the korvet sink has topic, jobId"),
        ({"kafka.colour": "red"}, 'Kafka at a:1: _INVALID_ARG .*No such configuration property: "colour"'),
    ],
)
def test_options_that_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        write_task(
            parse_sink_options({"kafka.bootstrap.servers": "a:1", "topic": "t", **options}),
            Job("j", 0, 0),
            [row(b"v")],
        )


def test_the_pace_of_a_task() -> None:
    now_s = 100.0

    def sleep(duration_s: float) -> None:
        nonlocal now_s
        now_s += duration_s

    chance = random.Random(SEED)
    pace, sent = Pace(50, lambda: now_s, sleep), 0
    for _ in range(100):
        records = chance.randrange(1, 20)
        pace.wait_for(records)
        sent += records
        assert now_s - 100 == pytest.approx(sent / 50)
    # Unused time isn't made up for.
    now_s += 60
    before_s = now_s
    pace.wait_for(50)
    assert now_s - before_s == pytest.approx(1)
