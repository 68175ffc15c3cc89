"""Reading a real Kafka with TLS, logins and ACLs: what clients made, as other clients are told it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from korvet.spark.session.command_config import read_command_config
from korvet.spark.session.kafka_probe import likely_cause
from korvet.spark.source.errors import SourceError
from korvet.spark.tables.decode import offset_commits
from korvet.spark.tables.readers import KafkaReader
from tests.support.certificates import Authority
from tests.support.java import JavaTools
from tests.support.ports import free_port
from tests.support.real_kafka import LOGINS, RealKafka

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.conftest import Connector

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("own_driver")]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
STORE_PASSWORD = "store-secret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def kafka(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    kafka = RealKafka(JavaTools.resolve(), tmp_path_factory.mktemp("kafka"), authority)
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
        subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=60)
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
