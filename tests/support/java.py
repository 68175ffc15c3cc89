"""Apache Kafka's Java tools: jars resolved once with Maven into .cache/, our few classes compiled there."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import Child, run

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "clients" / "java"
CACHE = ROOT / ".cache" / "kafka-tools"
RESOLVE_TIMEOUT_S = 280

COMMANDS = {
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "configs": "kafka.admin.ConfigCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
}


class ToolFailed(AssertionError):
    """A tool ended with an error; the message has what it wrote."""


@dataclass(frozen=True, slots=True)
class JavaTools:
    """Runs tools by their shell scripts' names without `kafka-`, and the classes in tests/clients/java."""

    java: str
    class_path: str

    @classmethod
    def resolve(cls) -> JavaTools:
        """The tools, ready to run. Skips the test where Java, its compiler or Maven is missing."""
        missing = [name for name in ("java", "javac") if shutil.which(name) is None]
        if missing:
            pytest.skip(f"needs a JDK: no {' and '.join(missing)} on PATH")
        libraries = CACHE / "libs"
        if not libraries.is_dir():
            _fetch(libraries)
        classes = _compile(libraries)
        return cls(str(shutil.which("java")), os.pathsep.join([f"{libraries}/*", str(classes), str(SOURCES)]))

    def command(self, name: str, arguments: Sequence[str]) -> list[str]:
        """The argument list that runs a tool (or a class of ours)."""
        head = [self.java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self.class_path]
        return [*head, COMMANDS.get(name, name), *arguments]

    def run(self, name: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 90) -> str:
        """What the tool printed. Raises ToolFailed when it exits with an error."""
        done = run(self.command(name, arguments), timeout_s, stdin)
        if done.returncode != 0:
            raise ToolFailed(f"{name} {arguments} ended with {done.returncode}\n{_text(done)}")
        return done.stdout.decode()

    def attempt(self, name: str, *arguments: str, timeout_s: float = 90) -> str:
        """Everything that the tool wrote, whatever its exit code."""
        return _text(run(self.command(name, arguments), timeout_s))

    def start(self, name: str, *arguments: str, log: Path) -> Child:
        """Start a tool that runs until it is ended."""
        return Child(self.command(name, arguments), log)


def _text(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")


def _fetch(libraries: Path) -> None:
    """Copy the jars into a folder beside the final one, then rename it: a half-filled one is never used."""
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("needs Maven (mvn) on PATH once, to resolve Apache Kafka's jars")
    partial = CACHE / f"libs.{os.getpid()}"
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    done = run([maven, "-q", "-B", "-f", str(SOURCES / "pom.xml"), *goal], RESOLVE_TIMEOUT_S)
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        pytest.skip(f"Maven could not resolve Apache Kafka's jars: {_text(done)[-500:]}")
    partial.rename(libraries)


def _compile(libraries: Path) -> Path:
    """Compile our classes when a source is newer than the last compilation."""
    classes = CACHE / "classes"
    stamp = classes / ".compiled"
    sources = sorted(SOURCES.glob("*.java"))
    if stamp.exists() and stamp.stat().st_mtime >= max(source.stat().st_mtime for source in sources):
        return classes
    classes.mkdir(parents=True, exist_ok=True)
    arguments = ["-Xlint:all,-path", "-cp", f"{libraries}/*", "-d", str(classes), *map(str, sources)]
    done = run(["javac", *arguments], 120)
    if done.returncode != 0:
        raise ToolFailed(f"javac:\n{_text(done)}")
    stamp.touch()
    return classes
