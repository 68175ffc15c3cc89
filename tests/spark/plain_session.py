"""A pytest plugin with a Spark session that korvet did not build, for Spark without Python data sources."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "jars"
# Spark's Kafka connector with what it depends on. Any release works with all releases of its minor version.
CONNECTOR = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.12", "3.5.1"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.12", "3.5.1"),
    ("org.apache.kafka", "kafka-clients", "3.4.1"),
    ("org.apache.commons", "commons-pool2", "2.11.1"),
)
FETCH_TIMEOUT_S = 60


def _fetched() -> list[Path]:
    """The jars of the connector, downloaded once; none if Maven or its repository is missing."""
    jars = []
    for group, artifact, version in CONNECTOR:
        jar = FOLDER / f"{artifact}-{version}.jar"
        if not jar.is_file():
            maven = shutil.which("mvn")
            if maven is None:
                return []
            words = [f"-Dartifact={group}:{artifact}:{version}", f"-DoutputDirectory={FOLDER}"]
            command = [maven, "-q", "-B", "dependency:copy", *words]
            if subprocess.run(command, timeout=FETCH_TIMEOUT_S, check=False).returncode != 0:
                return []
        jars.append(jar)
    return jars


@pytest.fixture(scope="session")
def connector_jars() -> list[Path]:
    return _fetched()


@pytest.fixture(scope="session")
def connector(connector_jars: list[Path]) -> list[Path]:
    """Skips tests that read with `format("kafka")` if the connector is missing."""
    if not connector_jars:
        pytest.skip("no Kafka connector for Spark 3.5: it needs Maven and a repository")
    return connector_jars


@pytest.fixture(scope="session")
def spark(connector_jars: list[Path]) -> Iterator[SparkSession]:
    builder = SparkSession.builder.appName("korvet tests").master("local[2]")
    session = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.jars", ",".join(map(str, connector_jars)))
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()
