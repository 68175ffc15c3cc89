"""The pytest plugin: its fixtures and ini options, in test runs of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import patient, until
from tests.testing.conftest import WAIT_S, descendants, until_ended

pytest_plugins = ["pytester"]

# These test runs do without, as those of most users do.
WITHOUT = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error"]


@pytest.fixture
def tests(pytester: pytest.Pytester, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder of tests. What they leave is in `scratch`."""
    for variable in [name for name in os.environ if name.startswith("KORVET_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("TMPDIR", str(scratch))
    return pytester


def run(tests: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run the tests in a process of their own, which leaves nothing."""
    result = tests.runpytest_subprocess(*WITHOUT, *options, timeout=patient(WAIT_S))
    assert list(Path(os.environ["TMPDIR"]).iterdir()) == []
    return result


ONE_SESSION = """
import os
from confluent_kafka import Producer

seen = []

def test_a_topic_of_its_own(korvet_broker, korvet_topic):
    producer = Producer({"bootstrap.servers": korvet_broker.bootstrap_servers})
    producer.produce(korvet_topic, b"first")
    assert producer.flush(60) == 0
    (record,) = korvet_broker.records(korvet_topic)
    assert (record.offset, record.value) == (0, b"first")
    assert "test-a-topic-of-its-own" in korvet_topic
    seen.append((korvet_broker, korvet_topic))

def test_the_next_one_has_another(korvet_broker, korvet_topic):
    ((before, topic),) = seen
    assert korvet_broker is before
    assert korvet_topic != topic
    assert korvet_broker.records(korvet_topic) == []

def test_a_broker_of_its_own(fresh_korvet_broker, korvet_broker):
    assert fresh_korvet_broker is not korvet_broker
    fresh_korvet_broker.create_topic("fresh")
    fresh_korvet_broker.stop(abruptly=True)

def test_nothing_is_left_of_it(fresh_korvet_broker):
    fresh_korvet_broker.create_topic("fresh")
"""


@pytest.mark.short
def test_brokers_and_topics_are_shared_as_far_as_their_scopes_say(tests: pytest.Pytester) -> None:
    tests.makepyfile(ONE_SESSION)
    run(tests).assert_outcomes(passed=4)


CONFIGURED = """
from confluent_kafka import Producer

def test_it(korvet_broker):
    assert korvet_broker.bootstrap_servers.count(",") == 1
    producer = Producer({"bootstrap.servers": korvet_broker.bootstrap_servers})
    producer.produce("auto", b"first")
    assert producer.flush(60) == 0
    assert len(producer.list_topics("auto", 60).topics["auto"].partitions) == 3
    assert korvet_broker.records("auto")[0].offset > 1 << 50
"""


def test_settings_and_the_number_of_brokers_are_ini_options(tests: pytest.Pytester) -> None:
    tests.makepyfile(CONFIGURED)
    tests.makeini(
        """
        [pytest]
        korvet_brokers = 2
        korvet_settings =
            num.partitions = 3
            log.offset.assignment=clock
        """
    )
    run(tests).assert_outcomes(passed=1)
    run(tests, "--help").stdout.fnmatch_lines(["*korvet_settings (linelist):*", "*korvet_brokers (string):*"])


@pytest.mark.parametrize(
    ("ini", "message"),
    [
        ("korvet_brokers = none", "korvet_brokers: expected a number from 1 on, not 'none'"),
        ("korvet_settings = num.partitions", "korvet_settings: expected KEY=VALUE, not 'num.partitions'"),
        ("korvet_settings = num.partitons=3", "num.partitons"),
    ],
)
def test_options_that_do_not_fit_are_named(ini: str, message: str, tests: pytest.Pytester) -> None:
    tests.makepyfile("def test_it(korvet_broker): pass")
    tests.makeini(f"[pytest]\n{ini}")
    run(tests).stdout.fnmatch_lines([f"*{message}*"])


WORKERS = """
import os
import pathlib
import pytest
from confluent_kafka import Producer

@pytest.mark.parametrize("number", range(COUNT))
def test_it(number, korvet_broker, korvet_topic):
    producer = Producer({"bootstrap.servers": korvet_broker.bootstrap_servers})
    producer.produce(korvet_topic, b"%d" % number)
    assert producer.flush(60) == 0
    assert [record.value for record in korvet_broker.records(korvet_topic)] == [b"%d" % number]
    worker = os.environ["PYTEST_XDIST_WORKER"]
    pathlib.Path(worker).write_text(korvet_broker.bootstrap_servers)
"""


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
def test_each_worker_has_a_broker_and_each_test_a_topic(count: int, tests: pytest.Pytester) -> None:
    tests.makepyfile(WORKERS.replace("COUNT", str(count)))
    run(tests, "-n", "4").assert_outcomes(passed=count)
    addresses = [path.read_text() for path in tests.path.glob("gw*")]
    assert len(set(addresses)) == len(addresses) == 4


HUNG = """
import pathlib, time

def test_it(korvet_broker, korvet_topic):
    pathlib.Path("hangs").touch()
    time.sleep(1000)
"""


@pytest.mark.short
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_hung_test_leaves_nothing_when_it_is_ended(
    number: signal.Signals, tests: pytest.Pytester, scratch: Path
) -> None:
    tests.makepyfile(HUNG)
    log = tests.path / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "pytest", *WITHOUT]
        process = tests.popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    hangs = tests.path / "hangs"
    until(lambda: hangs.exists() or process.poll() is not None, WAIT_S, "the test hangs")
    assert process.poll() is None, log.read_text()
    pids = descendants(process.pid)
    assert len(pids) == 3  # broker, server, and what watches the server
    process.send_signal(number)
    process.wait(WAIT_S)
    until_ended(pids)
    assert list(scratch.iterdir()) == []


@pytest.mark.short
def test_it_imports_nothing_where_it_is_not_used() -> None:
    program = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import korvet.pytest_plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["korvet", "korvet.pytest_plugin"]


IDLE = """
import os, pathlib, sys

def test_it():
    assert not {"korvet.testing", "kio", "msgspec"} & set(sys.modules)
    for path in pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        assert path.read_text() == ""
"""


def test_a_session_without_its_fixtures_starts_nothing(tests: pytest.Pytester) -> None:
    tests.makepyfile(IDLE)
    run(tests).assert_outcomes(passed=1)
