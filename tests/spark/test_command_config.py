"""Files of Kafka's client properties (--command-config): read as Java does, given on as references."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from korvet.spark.session.command_config import read_command_config
from korvet.spark.source.errors import SourceError
from korvet.spark.tables.readers import KafkaReader
from korvet.spark.versions import running

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.conftest import Connector


def test_values_become_references(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        'sasl.jaas.config=x required password="hush";\nssl.keystore.key=hush\nany.thing=hush\n'
        "bootstrap.servers=h:1\ngroup.id=g\nisolation.level=read_uncommitted\nkey.deserializer=K\n"
    )
    given = read_command_config(file)
    assert "hush" not in str(given)
    assert given == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        **{
            name: f"${{korvet:{file}:{name}}}"
            for name in ("sasl.jaas.config", "ssl.keystore.key", "any.thing")
        },
        "config.providers": "korvet",
        "config.providers.korvet.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }


def test_blanks_around_what_korvet_looks_at_do_not_count(tmp_path: Path) -> None:
    """As in Kafka."""
    file = tmp_path / "client.properties"
    file.write_text("security.protocol = SASL_SSL \nsasl.mechanism = PLAIN\t\n")
    given = read_command_config(file)
    assert (given["security.protocol"], given["sasl.mechanism"]) == ("SASL_SSL", "PLAIN")


def test_references_of_the_file_itself_stay(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "config.providers=env\nconfig.providers.env.class=EnvVarConfigProvider\n"
        "ssl.key.password=${env:PASSWORD}\nssl.truststore.password=hush\n"
    )
    given = read_command_config(file)
    assert given["config.providers"] == "env,korvet"
    assert given["config.providers.env.class"] == "EnvVarConfigProvider"
    assert given["ssl.key.password"] == "${env:PASSWORD}"
    assert given["ssl.truststore.password"] == f"${{korvet:{file}:ssl.truststore.password}}"


@pytest.mark.spark
@pytest.mark.usefixtures("own_driver")
def test_parameters_of_other_providers_are_hidden(spark: SparkSession, connector: Connector) -> None:
    """Kafka's clients take no references in them, and plans of streams show the options."""
    providers = {
        "config.providers": "vault",
        "config.providers.vault.class": "Vault",
        "config.providers.vault.param.key": "hush",
    }
    options = KafkaReader("h:1", providers)._options(spark, {"orders": {0: 0}})
    stream = spark.readStream.format("kafka").options(**options).load()
    plan = stream._jdf.queryExecution().toString()
    assert "vault.class=Vault" in plan
    assert "vault.param.key=***" in plan
    # Until the stream starts, Spark 4.0 and 4.1 also show the options of the older reader, not redacted.
    shown, _, older = plan.partition("~StreamingRelation DataSource")
    assert "hush" not in shown
    assert ("hush" in older) is (running() < (4, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a=1\nb=\\u12g4\n", r"line 2: \\u needs four hexadecimal digits"),
        (
            b"ssl.truststore.location=C:\\keys\\ca.pem\n",
            "line 1: ssl.truststore.location is read as 'C:keysca.pem', which does not exist: write",
        ),
        (b"a=\xe4\n", r"is not UTF-8 \(byte 2\): write other characters as \\uXXXX"),
        (
            b"security.protocol=TLS\n",
            "security.protocol is 'TLS', not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
    ],
)
def test_a_malformed_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        read_command_config(file)
    assert str(caught.value).startswith(f"--command-config {file}")
    assert "\n" not in str(caught.value)


def test_a_file_that_can_not_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.properties: No such file or directory"):
        read_command_config(tmp_path / "none.properties")
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "c").touch()
    with pytest.raises(SourceError, match="the path of the file must not contain : and }"):
        read_command_config(folder / "c")
