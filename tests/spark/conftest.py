"""One Spark session for all tests here, and a private Valkey that tests fill in the documented layout."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from korvet.spark.session.jars import DELTA, JARS, KAFKA, SETTINGS, JarsMissing, fetch_jars, find_jars
from korvet.spark.session.session import JavaMissing, build_session, check_java
from korvet.spark.session.tuning import tuned_for
from tests.spark.connect import JAVA as QUICK_JAVA
from tests.spark.connect import connect_server
from tests.spark.keyspace import Keyspace
from tests.support.redis_server import Server, server_programs
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

FETCH_TIMEOUT_S = 60
# Runs the tests through Spark Connect.
CONNECT = os.environ.get("KORVET_TEST_CONNECT") == "1"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "jars"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Through Connect, run only tests with a session: the others are the same without it."""
    if not CONNECT:
        return
    others = [item for item in items if "spark" not in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@dataclass(frozen=True, slots=True)
class Connector:
    """A set of jars in `folder`, or the reason why they are missing."""

    folder: Path
    jars: tuple[Path, ...] = ()
    missing: str = ""


def _fetched(name: str) -> Connector:
    """Download them once into the checkout's cache folder, or into KORVET_JARS_DIR."""
    folder = Path(os.environ.get("KORVET_JARS_DIR") or CACHE)
    try:
        for _ in fetch_jars(folder, name, timeout_s=FETCH_TIMEOUT_S):
            pass
        return Connector(folder, tuple(find_jars(folder, name)))
    except JarsMissing as error:
        return Connector(folder, missing=str(error))


@pytest.fixture(scope="session")
def connector_jars() -> Connector:
    """The jars of the Kafka connector."""
    return _fetched(KAFKA)


@pytest.fixture(scope="session")
def delta_jars() -> Connector:
    """The jars of Delta."""
    return _fetched(DELTA)


@pytest.fixture(scope="session")
def connector(connector_jars: Connector) -> Connector:
    """Skips tests that read with `format("kafka")` if the connector is missing."""
    if connector_jars.missing:
        pytest.skip(f"no Kafka connector for Spark: {connector_jars.missing}")
    return connector_jars


@pytest.fixture
def delta(delta_jars: Connector, record_property: Callable[[str, object], None]) -> None:
    """Skips tests with Delta tables if Delta is missing. What users get without a release is recorded."""
    if delta_jars.missing:
        if not JARS[DELTA]:
            record_property("refused", delta_jars.missing)
        pytest.skip(f"no Delta for Spark: {delta_jars.missing}")


def _session_settings(delta_jars: Connector) -> dict[str, str]:
    """Settings of the session of the tests."""
    return {
        **(SETTINGS[DELTA] if delta_jars.jars else {}),
        # By default Delta reads its log in 50 tasks.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        # By default Derby, the database of the export tests, logs into the working folder.
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={os.devnull}",
        "spark.driver.memory": "1g",
    }


@pytest.fixture(scope="session")
def connect_url(
    connector_jars: Connector, delta_jars: Connector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server of Spark Connect."""
    pytest.importorskip("grpc_status")
    settings = _session_settings(delta_jars)
    settings["spark.driver.extraJavaOptions"] += f" {QUICK_JAVA}"
    settings["spark.jars"] = ",".join(map(str, (*connector_jars.jars, *delta_jars.jars)))
    with connect_server(tmp_path_factory.mktemp("connect"), settings) as url:
        yield url


@pytest.fixture(scope="session")
def spark(
    request: pytest.FixtureRequest, connector_jars: Connector, delta_jars: Connector
) -> Iterator[SparkSession]:
    """A session of this process; with KORVET_TEST_CONNECT=1, of a Spark Connect server."""
    if CONNECT:
        session = build_session("korvet tests", request.getfixturevalue("connect_url"))
    else:
        try:
            check_java()
        except JavaMissing as error:
            pytest.fail(str(error))
        jars = [*connector_jars.jars, *delta_jars.jars]
        session = build_session("korvet tests", "local[2]", jars=jars, conf=_session_settings(delta_jars))
    yield session
    session.stop()


@contextlib.contextmanager
def configured(spark: SparkSession, setting: str, value: str) -> Iterator[None]:
    """Run a block with a value of a setting of the session."""
    before = str(spark.conf.get(setting))
    spark.conf.set(setting, value)
    yield
    spark.conf.set(setting, before)


@pytest.fixture
def few_rows(spark: SparkSession) -> Iterator[None]:
    """For a test with few rows: planning and compiling its queries would take most of the time."""
    with tuned_for(spark, 0):
        yield


@pytest.fixture
def new_york(spark: SparkSession) -> Iterator[None]:
    """For a test of what must not depend on the time zone of the session."""
    with configured(spark, "spark.sql.session.timeZone", "America/New_York"):
        yield


@pytest.fixture(scope="session")
def own_driver() -> None:
    """Skips tests of what only a session with a driver of its own has, or that change this process."""
    if CONNECT:
        pytest.skip("needs a session with a driver of its own")


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(server_programs()[0], tmp_path_factory.mktemp("valkey"))
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    """A korvet for the tests of a module."""
    with KorvetServer() as started:
        yield started


@pytest.fixture
def keyspace(redis_url: str) -> Iterator[Keyspace]:
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        client.flushall()
        yield Keyspace(client, redis_url)
