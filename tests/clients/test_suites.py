"""Tests of other projects that a package registry has, unchanged, on `korvet serve` or a KorvetBroker.

The source distributions of aiokafka, confluent-kafka and FastStream and the package of kafkajs have no tests.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from korvet.config.checks import STANDARD_AUTHORIZER
from korvet.testing import KorvetBroker
from tests.support.go import BUILD_TIMEOUT_S, build_tests
from tests.support.processes import run
from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.timeout(BUILD_TIMEOUT_S + 900)]

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "kafka-python"
DOWNLOAD_TIMEOUT_S = 200
SUITE_TIMEOUT_S = 600

# kafka-python's tests expect node ID 0, dense offsets from 0, four partitions, sessions of three seconds, and
# ACLs.
OPTIONS = ["--node-id", "0"]
for setting in (
    "log.offset.assignment=dense",
    "num.partitions=4",
    "group.min.session.timeout.ms=1000",
    f"authorizer.class.name={STANDARD_AUTHORIZER}",
    "allow.everyone.if.no.acl.found=true",
):
    OPTIONS += ["--set", setting]
# The version that kafka-python derives from ApiVersions.
KAFKA_VERSION = "4.3"

# Tests that fail, with reasons.
FAILED = {
    "test_describe_configs_broker_resource_returns_configs": "the fixture leaves advertised.listeners alone"
}
# Tests that start their own brokers.
LEFT_OUT = ("test_sasl_integration.py", "test_ssl_integration.py")

# A module that the distribution lacks, with the parts that an external broker needs.
SERVICE = '''
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def stop(self):
        """Somebody else does."""


class SpawnedService:
    """Not used: the broker is external."""
'''

KGO = "github.com/twmb/franz-go/pkg/kgo"
# As many as let every consumer of the tests have some.
KGO_RECORDS = 50_000
# A broker that takes no Produce request of version 2.
KGO_SKIPPED = ["TestIssueProduceBrokerTooOldFailsRecords"]


@pytest.fixture(scope="module")
def kafka_python() -> Path:
    """The unpacked source distribution of the installed kafka-python. Skips the tests if there is none."""
    number = version("kafka-python")
    name, wanted = f"kafka_python-{number}", f"kafka-python=={number}"
    unpacked = CACHE / name
    if not unpacked.is_dir():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
        done = run([*command, "-d", str(CACHE), wanted], DOWNLOAD_TIMEOUT_S)
        if done.returncode != 0:
            pytest.skip(f"no source distribution of {wanted}: {done.stderr.decode(errors='replace')[-500:]}")
        with tarfile.open(CACHE / f"{name}.tar.gz") as archive:
            # Python 3.11.0 to 3.11.3 have no filters.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(CACHE)
    (unpacked / "test" / "__init__.py").touch()
    (unpacked / "test" / "service.py").write_text(SERVICE)
    return unpacked


def test_kafka_pythons_integration_tests(kafka_python: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    # The tests check that the folder exists, and start nothing from it.
    env = {**os.environ, "KAFKA_VERSION": KAFKA_VERSION, "KAFKA_ROOT": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--show-capture=no", "-p", "no:warnings"]
    left_out = [f"--ignore=test/integration/{name}" for name in LEFT_OUT]
    options = ["-p", "no:cacheprovider", f"--junit-xml={report}", *left_out, "test/integration"]
    with KorvetServer(*OPTIONS) as server:
        env["KAFKA_URI"] = f"kafka://{server.bootstrap}"
        done = run([*command, *options], SUITE_TIMEOUT_S, env=env, cwd=kafka_python)
    said = done.stdout.decode(errors="replace")[-8000:]
    assert report.exists(), said
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {
        case.attrib["name"]
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    assert failed == FAILED.keys(), said
    skipped = [case.attrib["name"] for case in cases if case.find("skipped") is not None]
    assert skipped == ["test_kafka_consumer_offsets_for_time_old"]
    assert len(cases) - len(skipped) >= 55


def test_franz_gos_tests(tmp_path: Path) -> None:
    program, folder = build_tests(KGO)
    with KorvetBroker() as broker, KorvetBroker(users={"alice": "secret"}) as secured:
        env = {
            **os.environ,
            "KGO_TEST_SCRAM": "alice:secret:512",
            "KGO_TEST_SCRAM_SEEDS": secured.bootstrap_servers,
            "KGO_SEEDS": broker.bootstrap_servers,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(KGO_RECORDS),
            "KGO_LOG_LEVEL": "none",
        }
        command = [str(program), "-test.v", f"-test.timeout={SUITE_TIMEOUT_S}s"]
        done = run(command, SUITE_TIMEOUT_S + 10, env=env, cwd=folder)
    said = done.stdout.decode(errors="replace")
    ended = re.findall(r"(?m)^--- (PASS|FAIL|SKIP): (\S+)", said)
    assert done.returncode == 0, said[-8000:]
    assert sorted(name for how, name in ended if how == "SKIP") == KGO_SKIPPED
    assert sum(how == "PASS" for how, name in ended) >= 145
