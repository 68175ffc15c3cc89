"""kafka-python's own integration tests, from its source distribution, on a separate broker.

They expect offsets from 0, node ID 0 and sessions of three seconds, so the broker is configured like that.
"""

from __future__ import annotations

import os
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from korvet.config.checks import STANDARD_AUTHORIZER
from tests.support.processes import run
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.timeout(900)]

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "kafka-python"
DOWNLOAD_TIMEOUT_S = 200
SUITE_TIMEOUT_S = 600

BROKER = {
    "node_id": "0",
    "num.partitions": "4",
    "log.offset.assignment": "dense",
    "group.min.session.timeout.ms": "1000",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
}
# The version that kafka-python derives from ApiVersions.
KAFKA_VERSION = "4.3"

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


@pytest.fixture(scope="module")
def suite() -> Path:
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


@pytest.fixture
def server() -> Iterator[KorvetServer]:
    """A broker with the configuration that the tests expect, and a named listener."""
    configured = KorvetServer()
    address = f"PLAINTEXT://{configured.bootstrap}"
    settings = {**BROKER, "listeners": address, "advertised.listeners": address}
    configured.options += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    try:
        yield configured.start()
    finally:
        configured.discard()


def test_its_own_integration_tests(suite, server, tmp_path):
    report = tmp_path / "report.xml"
    env = {**os.environ, "KAFKA_URI": f"kafka://{server.bootstrap}", "KAFKA_VERSION": KAFKA_VERSION}
    # The tests check that the folder exists, and start nothing from it.
    env["KAFKA_ROOT"] = str(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--show-capture=no", "-p", "no:warnings"]
    left_out = [f"--ignore=test/integration/{name}" for name in LEFT_OUT]
    options = ["-p", "no:cacheprovider", f"--junit-xml={report}", *left_out, "test/integration"]
    done = run([*command, *options], SUITE_TIMEOUT_S, env=env, cwd=suite)
    said = done.stdout.decode(errors="replace")[-8000:]
    assert report.exists(), said
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {
        case.attrib["name"]
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    assert not failed, said
    skipped = [case.attrib["name"] for case in cases if case.find("skipped") is not None]
    assert skipped == ["test_kafka_consumer_offsets_for_time_old"]
    assert len(cases) - len(skipped) >= 55
