"""Reading a real Kafka with TLS, logins and ACLs: what clients made, as other clients are told it."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import functions as sf

from korvet.offsets.partition import partition_for
from korvet.spark.export.all_tables import stored_table, update_tables
from korvet.spark.export.tables import batch_table
from korvet.spark.report.report import write_report
from korvet.spark.session import kafka_cluster
from korvet.spark.session.command_config import read_command_config
from korvet.spark.session.kafka_probe import likely_cause
from korvet.spark.source.errors import SourceError
from korvet.spark.tables import readers
from korvet.spark.tables.decode import offset_commits
from korvet.spark.tables.kafka_offsets import GRACE_MS, HANGING, MAX_TRANSACTION_MS, NOT_READ, ORIGIN, Finding
from korvet.spark.tables.queues import SHARE_STATE_TOPIC
from korvet.spark.tables.readers import KafkaReader
from korvet.spark.tables.stored_tables import StoredTables
from tests.spark.sharing import RECORDS, work
from tests.support.certificates import Authority
from tests.support.java import JavaTools
from tests.support.polling import patient
from tests.support.ports import free_port
from tests.support.real_kafka import LOGINS, PARTITIONS, RealKafka

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Row, SparkSession

    from tests.spark.conftest import Connector

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("own_driver", "few_rows")]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
STORE_PASSWORD = "store-secret"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tools() -> JavaTools:
    return JavaTools.resolve()


@pytest.fixture(scope="module")
def kafka(
    tools: JavaTools, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealKafka]:
    kafka = RealKafka(tools, tmp_path_factory.mktemp("kafka"), authority)
    try:
        kafka.start()
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(10):
            producer.produce("orders", str(number).encode())
        assert producer.flush(20) == 0
        commit(kafka, "billing", 4)
        yield kafka
    finally:
        kafka.stop()


def commit(kafka: RealKafka, group: str, offset: int) -> None:
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def reader(address: str, properties: Mapping[str, str], folder: Path) -> KafkaReader:
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return KafkaReader(address, read_command_config(file))


def is_read(spark: SparkSession, source: KafkaReader) -> bool:
    """Whether the connector and the admin client tell what was committed."""
    found = source.offsets_topic(spark)
    assert found is not None
    commits = {(row["group"], row["committed_offset"]) for row in offset_commits(found).collect()}
    ends = {tuple(row)[:4] for row in source.ends(spark, ["orders"]).collect()}
    assert "secret" not in found._jdf.queryExecution().toString()
    return ("billing", 4) in commits and ends == {("orders", 0, 10, 0)}


@pytest.mark.parametrize("mechanism", LOGINS)
def test_logins(
    spark: SparkSession, connector: Connector, kafka: RealKafka, tmp_path: Path, mechanism: str
) -> None:
    assert is_read(spark, reader(kafka.at("SASL_SSL"), kafka.client(mechanism), tmp_path))


@pytest.mark.parametrize("kind", ["PEM", "JKS"])
def test_certificates_of_clients(
    spark: SparkSession,
    connector: Connector,
    kafka: RealKafka,
    authority: Authority,
    tmp_path: Path,
    kind: str,
) -> None:
    certificate = authority.issue("client", "/CN=ada")
    stores = {**kafka.trust(), "ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate)}
    if kind == "JKS":
        stores = in_stores(authority, certificate, tmp_path)
    assert is_read(spark, reader(kafka.at("SSL"), {"security.protocol": "SSL", **stores}, tmp_path))


def in_stores(authority: Authority, certificate: Path, folder: Path) -> dict[str, str]:
    """The same in stores of Java, with passwords."""
    keytool = shutil.which("keytool")
    if keytool is None:
        pytest.skip("needs keytool of Java")
    bundle, keys, trusted = folder / "client.p12", folder / "client.jks", folder / "trusted.jks"
    to = ("-passout", f"pass:{STORE_PASSWORD}", "-out", bundle)
    password = ("-storepass", STORE_PASSWORD, "-noprompt")
    source = ("-srckeystore", bundle, "-srcstoretype", "PKCS12", "-srcstorepass", STORE_PASSWORD)
    ca = ("-file", authority.certificate, "-alias", "authority")
    for command in (
        ("openssl", "pkcs12", "-export", "-in", certificate, *to),
        (keytool, "-importkeystore", *source, "-destkeystore", keys, "-deststoretype", "JKS", *password),
        (keytool, "-importcert", *ca, "-keystore", trusted, "-storetype", "JKS", *password),
    ):
        subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=patient(60))
    return {
        "ssl.keystore.type": "JKS",
        "ssl.keystore.location": str(keys),
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.key.password": STORE_PASSWORD,
        "ssl.truststore.type": "JKS",
        "ssl.truststore.location": str(trusted),
        "ssl.truststore.password": STORE_PASSWORD,
    }


def test_a_refused_login_is_named(
    spark: SparkSession, connector: Connector, kafka: RealKafka, tmp_path: Path
) -> None:
    login = LOGINS["SCRAM-SHA-512"].format(user="ada", password="no-secret")
    properties = kafka.client("SCRAM-SHA-512") | {"sasl.jaas.config": login}
    with pytest.raises(SourceError, match="invalid credentials with SASL mechanism SCRAM-SHA-512") as caught:
        reader(kafka.at("SASL_SSL"), properties, tmp_path).offsets_topic(spark)
    assert "no-secret" not in str(caught.value)


def test_a_store_that_is_missing_is_named(
    spark: SparkSession, connector: Connector, kafka: RealKafka, tmp_path: Path
) -> None:
    properties = kafka.client("PLAIN") | {"ssl.truststore.location": "/no/authority.pem"}
    with pytest.raises(SourceError, match=r"NoSuchFileException: /no/authority.pem"):
        reader(kafka.at("SASL_SSL"), properties, tmp_path).offsets_topic(spark)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("listener", PROTOCOLS)
def test_the_cause_of_a_time_out(kafka: RealKafka, listener: str, protocol: str) -> None:
    cause = likely_cause(kafka.at(listener), {"security.protocol": protocol})
    if protocol.endswith("SSL") and not listener.endswith("SSL"):
        assert (
            cause == f"{kafka.at(listener)} does not speak TLS: security.protocol {protocol} is wrong for it"
        )
    elif listener.endswith("SSL") and not protocol.endswith("SSL"):
        kind = "SASL_SSL" if protocol.startswith("SASL") else "SSL or SASL_SSL"
        assert cause is not None
        assert cause.startswith(f"{kafka.at(listener)} speaks TLS: set security.protocol to {kind} in")
    elif (listener, protocol) == ("SASL_PLAINTEXT", "PLAINTEXT"):
        assert cause is not None
        assert f"{kafka.at(listener)} wants a login" in cause
    else:
        # The client itself names the cause of these, or there is none.
        assert cause is None


def test_one_usable_server_is_enough(kafka: RealKafka) -> None:
    away = f"127.0.0.1:{free_port()}"
    assert likely_cause(away, {}) == f"{away}: Connection refused"
    assert likely_cause(f"{away},{kafka.bootstrap}", {}) is None
    assert likely_cause("no.invalid:9092", {}) == "the host no.invalid is unknown"


# The partition of __consumer_offsets in which transactions are open.
HELD = 2
OPEN, HANGING_GROUP, FIRST, SECOND = (
    next(name for number in range(100) if partition_for(name := f"{kind}-{number}", PARTITIONS) == HELD)
    for kind in ("open", "hanging", "first", "second")
)


@pytest.fixture(scope="module")
def open_transactions(kafka: RealKafka) -> Iterator[None]:
    """An open and a hanging transaction, before commits of other groups in the same partition."""
    commit(kafka, FIRST, 1)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": "open", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(30)
    member = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": OPEN})
    producer.begin_transaction()
    offsets = [TopicPartition("orders", 0, 9)]
    producer.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), 30)
    kafka.hang("hanging", HANGING_GROUP, "orders", 8)
    commit(kafka, FIRST, 5)
    commit(kafka, SECOND, 7)
    yield
    producer.abort_transaction(30)
    member.close()


def told(kafka: RealKafka) -> dict[str, int]:
    """The committed offsets of groups on the only partition, as another client is told them."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    found = {}
    for group in ("billing", OPEN, HANGING_GROUP, FIRST, SECOND):
        asked = [ConsumerGroupTopicPartitions(group)]
        answer = admin.list_consumer_group_offsets(asked)[group].result(30)
        for each in answer.topic_partitions:
            found[group] = each.offset
    return found


def lags_of_the_tool(kafka: RealKafka, tools: JavaTools) -> dict[str, tuple[int, int]]:
    """Committed offset and lag, as kafka-consumer-groups prints them."""
    printed = tools.run(
        "consumer-groups", "--bootstrap-server", kafka.bootstrap, "--describe", "--all-groups"
    )
    rows = [line.split() for line in printed.splitlines() if " orders " in line]
    return {row[0]: (int(row[3]), int(row[5])) for row in rows if row[3] != "-"}


def status(rows: list[Row]) -> dict[str, tuple[int, int]]:
    return {row["group"]: (row["committed_offset"], row["record_lag"]) for row in rows}


@pytest.mark.usefixtures("open_transactions")
def test_open_transactions_hide_no_group(
    spark: SparkSession,
    connector: Connector,
    kafka: RealKafka,
    tools: JavaTools,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logins: list[str] = []

    def cluster_of(session: SparkSession, address: str, properties: Mapping[str, str]) -> Any:
        logins.append(address)
        return kafka_cluster.cluster_of(session, address, properties)

    monkeypatch.setattr(readers, "cluster_of", cluster_of)
    source = reader(kafka.at("SASL_SSL"), kafka.client("SCRAM-SHA-512"), tmp_path)
    done = write_report(spark, source, tmp_path / "report", now_ms())
    # One admin client asks all.
    assert len(logins) == 1
    found = status(spark.read.parquet(str(tmp_path / "report" / "partition_status")).collect())
    assert {group: offset for group, (offset, _) in found.items()} == told(kafka)
    assert found == lags_of_the_tool(kafka, tools)
    assert found == {"billing": (4, 6), FIRST: (5, 5), SECOND: (7, 3)}
    history = spark.read.parquet(str(tmp_path / "report" / "offset_commits")).where(sf.col("group") == FIRST)
    assert [row["committed_offset"] for row in history.orderBy("src_offset").collect()] == [1, 5]
    (origin,) = done.alerts["findings"]
    assert f"after open transactions (partition {HELD})" in origin["message"]
    assert origin["message"] in done.page.read_text()

    later_ms = now_ms() + MAX_TRANSACTION_MS + 2 * GRACE_MS
    transactions = [each for each in source.findings(spark, ["orders"], later_ms) if each.kind == HANGING]
    # The open one has a timeout of ten minutes.
    names = {"of transactional.id open, longer than its timeout", "of which no coordinator knows"}
    assert {each.message.removeprefix("a transaction ").partition(" (")[0] for each in transactions} == names
    assert {(each.topic, each.partition) for each in transactions} == {("__consumer_offsets", HELD)}
    assert all(each.age_ms is not None and each.age_ms > MAX_TRANSACTION_MS for each in transactions)


@pytest.mark.long
@pytest.mark.usefixtures("open_transactions", "delta")
def test_tables_are_kept_and_exported(
    spark: SparkSession, connector: Connector, kafka: RealKafka, tmp_path: Path
) -> None:
    source = reader(kafka.at("SASL_SSL"), kafka.client("OAUTHBEARER"), tmp_path)
    folder = str(tmp_path / "groups")
    for offset in (5, 6):
        commit(kafka, "billing", offset)
        commit(kafka, SECOND, offset + 1)
        update_tables(spark, source, folder)
        snapshot = StoredTables(spark, folder).newest_snapshot()
        kept = StoredTables(spark, folder).read("partition_status", snapshot)
        assert {row["group"]: row["committed_offset"] for row in kept.collect()} == told(kafka)
        exported = batch_table(spark, source, "partition_status", now_ms())
        assert status(exported.collect()) == status(kept.collect())
    history = stored_table(spark, folder, "offset_commits").where("group = 'billing'")
    assert [row["committed_offset"] for row in history.orderBy("src_offset").collect()][-2:] == [5, 6]
    for file in Path(folder).rglob("*"):
        assert file.is_dir() or b"secret" not in file.read_bytes()


def allow(
    kafka: RealKafka, kind: ResourceType, name: str, operation: AclOperation, user: str = "bob"
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    binding = AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
    )
    for future in admin.create_acls([binding]).values():
        future.result(30)


def test_what_a_login_may_not_read_is_named(
    spark: SparkSession, connector: Connector, kafka: RealKafka, tmp_path: Path
) -> None:
    """Bob may describe groups and topics, and read neither __consumer_offsets nor orders."""
    allow(kafka, ResourceType.GROUP, "*", AclOperation.DESCRIBE)
    allow(kafka, ResourceType.TOPIC, "*", AclOperation.DESCRIBE)
    source = reader(kafka.at("SASL_SSL"), kafka.client("PLAIN", "bob"), tmp_path)
    told_of: list[Finding] = []
    rows = batch_table(spark, source, "partition_status", now_ms(), told_of.append).collect()
    assert {row["group"]: row["committed_offset"] for row in rows} == told(kafka)
    assert all(row["record_lag"] == 10 - row["committed_offset"] for row in rows)
    assert {row["lag_ms"] for row in rows} == {None}
    found = [(each.kind, each.topic) for each in told_of]
    assert found == [(NOT_READ, "__consumer_offsets"), (NOT_READ, "orders"), (ORIGIN, None)]
    with pytest.raises(SourceError, match=r"this login may not read __consumer_offsets \(ACL: Read"):
        source.stream(spark)


@pytest.mark.usefixtures("open_transactions")
def test_a_right_on_transactions_that_is_missing_is_named(
    spark: SparkSession, connector: Connector, kafka: RealKafka, tmp_path: Path
) -> None:
    """Coordinators leave out what a login may not describe, as if they knew nothing of it."""
    allow(kafka, ResourceType.TOPIC, "__consumer_offsets", AclOperation.READ, "cem")
    source = reader(kafka.at("SASL_SSL"), kafka.client("PLAIN", "cem"), tmp_path)
    found = [each.message for each in source.findings(spark, [], now_ms() + 2 * MAX_TRANSACTION_MS)]
    hidden = [message for message in found if "that this login may not describe" in message]
    assert len(hidden) == 2
    assert all("ACL: Describe on transactional IDs" in message for message in hidden)


def test_a_login_without_rights_is_told_so(
    spark: SparkSession, connector: Connector, kafka: RealKafka, tmp_path: Path
) -> None:
    source = reader(kafka.at("SASL_SSL"), kafka.client("PLAIN", "ada"), tmp_path)
    assert source.offsets_topic(spark) is None
    done = write_report(spark, source, tmp_path / "report", now_ms())
    found = [(each["kind"], each["topic"]) for each in done.alerts["findings"]]
    assert found == [("not_read", "__consumer_offsets"), ("origin", None)]
    assert "ACL: Describe on the groups" in done.alerts["findings"][0]["message"]
    page = done.page.read_text(encoding="utf-8")
    assert "This login sees no consumer group" in page
    assert "No consumer group has committed anything yet" not in page


def queues_of_the_tool(kafka: RealKafka, tools: JavaTools) -> dict[int, tuple[int, int]]:
    """Start offset and lag, as kafka-share-groups prints them."""
    where = ("--bootstrap-server", kafka.bootstrap, "--group", "workers")
    printed = tools.run("share-groups", *where, "--describe", "--offsets")
    rows = [line.split() for line in printed.splitlines() if " jobs " in line]
    return {int(row[2]): (int(row[-2]), int(row[-1])) for row in rows if row[-1] != "-"}


def test_queues_are_those_of_kafkas_tool(
    spark: SparkSession, connector: Connector, kafka: RealKafka, tools: JavaTools, tmp_path: Path
) -> None:
    work(kafka.bootstrap)
    expected = queues_of_the_tool(kafka, tools)
    assert expected.keys() == {0, 1}
    source = reader(kafka.at("SASL_SSL"), kafka.client("SCRAM-SHA-512"), tmp_path)
    rows = {row["partition"]: row for row in batch_table(spark, source, "queues", now_ms()).collect()}
    found = {part: (row["start_offset"], row["depth"]) for part, row in rows.items()}
    # Nobody reads a partition without records.
    assert found == {**expected, 2: (0, 0)}
    for partition, (_, depth) in expected.items():
        row = rows[partition]
        assert (row["exact"], row["end_offset"], row["in_flight"]) == (True, RECORDS, None)
        assert 0 <= row["waiting_again"] <= depth < RECORDS
        assert (0 < row["deliveries"] <= 5) == (row["waiting_again"] > 0)
    # Cem may read the records on groups, and the queue's topic. Spark's connector reads as a group.
    allow(kafka, ResourceType.GROUP, "*", AclOperation.READ, "cem")
    for topic in ("__consumer_offsets", "jobs"):
        allow(kafka, ResourceType.TOPIC, topic, AclOperation.READ, "cem")
    source = reader(kafka.at("SASL_SSL"), kafka.client("PLAIN", "cem"), tmp_path)
    report = write_report(spark, source, tmp_path / "report", now_ms())
    unknown = spark.read.parquet(str(tmp_path / "report" / "queues")).collect()
    assert {(row["status"], row["depth"]) for row in unknown} == {("UNKNOWN", None)}
    named = [each for each in report.alerts["findings"] if each["topic"] == SHARE_STATE_TOPIC]
    assert [each["kind"] for each in named] == [NOT_READ]
    assert named[0]["message"] in report.page.read_text()
