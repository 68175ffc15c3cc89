"""Apache Kafka's Java tools: jars resolved once with Maven into .cache/, a few test classes compiled
there.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.java_host import Host
from tests.support.processes import Child, run

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "clients" / "java"
POM = SOURCES / "pom.xml"
CACHE = ROOT / ".cache" / "kafka-tools"
# Class data (JEP 350) of the tools: they start in half the time.
ARCHIVE = CACHE / "tools.jsa"
RESOLVE_TIMEOUT_S = 280
PREPARE_TIMEOUT_S = 120
LOGGING = "log4j2.yaml"

COMMANDS = {
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "configs": "kafka.admin.ConfigCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
}
# Tools that finish their work in the JVM's own shutdown hooks.
ALONE = {"verifiable-producer", "verifiable-consumer", "verifiable-share-consumer"}
SERVICES = {
    "connect-distributed": "org.apache.kafka.connect.cli.ConnectDistributed",
    "connect-mirror-maker": "org.apache.kafka.connect.mirror.MirrorMaker",
}


class ToolFailed(AssertionError):
    """A tool that ended with an error; the message has its output."""


@dataclass(frozen=True, slots=True)
class JavaTools:
    """Runs tools by their shell scripts' names without `kafka-`, and the classes in tests/clients/java."""

    java: str
    class_path: str

    @classmethod
    def resolve(cls) -> JavaTools:
        """The tools, ready to run. Skips the test if Java, its compiler or Maven is missing."""
        missing = [name for name in ("java", "javac") if shutil.which(name) is None]
        if missing:
            pytest.skip(f"needs a JDK: no {' and '.join(missing)} on PATH")
        libraries = CACHE / "libs"
        with _alone():
            fetched = libraries / POM.name
            if not fetched.exists() or fetched.read_bytes() != POM.read_bytes():
                _fetch(libraries)
            class_path = os.pathsep.join(
                map(str, [*sorted(libraries.glob("*.jar")), _jar_of_ours(libraries)])
            )
            _archive(class_path)
        return cls(str(shutil.which("java")), class_path)

    def command(self, name: str, arguments: Sequence[str]) -> list[str]:
        """The argument list that runs a tool, or a test class, in a process of its own."""
        return [*_java(self.java, self.class_path), _class_of(name), *arguments]

    def run(self, name: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 90) -> str:
        """The tool's output. Raises ToolFailed if it exits with an error."""
        done = self._done(name, arguments, stdin, timeout_s)
        if done.returncode != 0:
            raise ToolFailed(f"{name} {arguments} ended with {done.returncode}\n{_text(done)}")
        return done.stdout.decode()

    def attempt(self, name: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 90) -> str:
        """The tool's complete output, whatever its exit code."""
        return _text(self._done(name, arguments, stdin, timeout_s))

    def _done(
        self, name: str, arguments: Sequence[str], stdin: bytes, timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a tool in the process that tools share if it isn't busy, else in its own."""
        host = _host(self.java, self.class_path)
        done = None if name in ALONE else host.run([_class_of(name), *arguments], stdin, timeout_s)
        return done or run(self.command(name, arguments), timeout_s, stdin)

    def start(self, name: str, *arguments: str, log: Path) -> Child:
        """Start a tool that runs until it is stopped."""
        return Child(self.command(name, arguments), log)


def _class_of(name: str) -> str:
    return COMMANDS.get(name) or SERVICES.get(name, name)


def _java(java: str, class_path: str) -> list[str]:
    # Java also starts without the archive, and must not mix messages of its own into the output of tools.
    return [java, f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable", "-Xmx512m", "-cp", class_path]


@functools.cache
def _host(java: str, class_path: str) -> Host:
    return Host(_java(java, class_path))


def _text(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One process at a time prepares the tools."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(libraries: Path) -> None:
    """Copy the jars into a folder beside the final one, then rename it: a half-filled folder is never
    used.
    """
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("needs Maven (mvn) on PATH once, to resolve Apache Kafka's jars")
    partial = CACHE / f"libs.{os.getpid()}"
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    done = run([maven, "-q", "-B", "-f", str(POM), *goal], RESOLVE_TIMEOUT_S)
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        pytest.skip(f"Maven could not resolve Apache Kafka's jars: {_text(done)[-500:]}")
    shutil.copy(POM, partial)
    shutil.rmtree(libraries, ignore_errors=True)
    # The archive belongs to the former jars.
    ARCHIVE.unlink(missing_ok=True)
    partial.rename(libraries)


def _jar_of_ours(libraries: Path) -> Path:
    """The test classes and the configuration of logging, rebuilt when a source is newer."""
    jar = CACHE / "ours.jar"
    sources = sorted(SOURCES.glob("*.java"))
    if jar.exists() and jar.stat().st_mtime >= max(source.stat().st_mtime for source in SOURCES.iterdir()):
        return jar
    classes = CACHE / "classes"
    arguments = ["-Xlint:all,-path", "-cp", f"{libraries}/*", "-d", str(classes), *map(str, sources)]
    _prepare(["javac", *arguments])
    _prepare(["jar", "--create", "--file", str(jar), "-C", str(classes), ".", "-C", str(SOURCES), LOGGING])
    return jar


def _archive(class_path: str) -> None:
    """Build the archive of class data if it is missing or older than the test classes."""
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime >= (CACHE / "ours.jar").stat().st_mtime:
        return
    partial = CACHE / f"tools.{os.getpid()}.jsa"
    tour = ["-Xlog:disable", "-cp", class_path, "Tour", "Host", *COMMANDS.values()]
    _prepare(["java", f"-XX:ArchiveClassesAtExit={partial}", *tour])
    partial.rename(ARCHIVE)


def _prepare(command: list[str]) -> None:
    done = run(command, PREPARE_TIMEOUT_S)
    if done.returncode != 0:
        raise ToolFailed(f"{command[0]}:\n{_text(done)}")
