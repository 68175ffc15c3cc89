"""The jars of Spark's official Kafka connector: fetched once by Maven or Ivy, pinned, verified.

Spark's own `spark.jars.packages` would also pull what pyspark already has (a Hadoop client of 50 MB), so the
four files are fetched one by one, without what they depend on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from korvet.spark.session import java_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FETCH_TIMEOUT_S = 300
READ_BYTES = 1 << 20


class JarsMissing(RuntimeError):
    """The jars are not there, can't be fetched, or are not the ones pinned; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned file by its Maven coordinates."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Its name in a Maven repository."""
        return f"{self.artifact}-{self.version}.jar"


# These four were tried together on pyspark 4.2.0 and 4.3.0. Kafka's client is the connector's own version;
# the token provider's interface has not changed since 4.0.0.
JARS = (
    Jar(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    Jar(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    Jar(
        "org.apache.commons",
        "commons-pool2",
        "2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)


def jars_folder() -> Path:
    """Where the jars are kept: KORVET_JARS_DIR, else below the user's cache folder."""
    chosen = os.environ.get("KORVET_JARS_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "korvet" / "jars"


def find_jars(folder: Path | None = None) -> list[Path]:
    """The verified jars. Raises JarsMissing when one is absent or not the one pinned."""
    folder = folder or jars_folder()
    paths = [folder / jar.file_name for jar in JARS]
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        raise JarsMissing(
            f"{', '.join(absent)} not in {folder}: run `korvet jars` once (it needs a Maven repository), or "
            "copy the files there from a machine that has one"
        )
    for jar, path in zip(JARS, paths, strict=True):
        _verify(jar, path)
    return paths


def fetch_jars(
    folder: Path | None = None, *, timeout_s: float = FETCH_TIMEOUT_S
) -> Iterator[tuple[Jar, str]]:
    """Fetch what is missing; yields each jar with `present` or `fetched`, so an interrupted run goes on.

    Each way of fetching a jar has `timeout_s` seconds.

    Raises JarsMissing when a jar can't be fetched or its SHA-256 is another.
    """
    folder = folder or jars_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for jar in JARS:
        target = folder / jar.file_name
        if target.is_file() and sha256(target) == jar.sha256:
            yield jar, "present"
            continue
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            fetched = _fetch(jar, Path(scratch), timeout_s)
            _verify(jar, fetched)
            fetched.replace(target)
        yield jar, "fetched"


def sha256(path: Path) -> str:
    """The file's SHA-256 in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _verify(jar: Jar, path: Path) -> None:
    found = sha256(path)
    if found != jar.sha256:
        raise JarsMissing(
            f"{path} is not the pinned {jar.file_name}: its SHA-256 is {found}, not {jar.sha256}; remove it"
        )


def _fetch(jar: Jar, scratch: Path, timeout_s: float) -> Path:
    """The jar in a scratch folder, by the first way that works."""
    failures = []
    for name, command in _ways(jar, scratch):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.CalledProcessError as error:
            failures.append(f"{name}: {_last_line(error.stdout, error.stderr)}")
        except (OSError, subprocess.TimeoutExpired) as error:
            failures.append(f"{name}: {error}")
        found = sorted(scratch.rglob(jar.file_name))
        if found:
            return found[0]
    raise JarsMissing(
        f"{jar.file_name} can't be fetched; is there a way to a Maven repository? ({'; '.join(failures)}). "
        f"Offline, copy the jars to {jars_folder()}: {', '.join(each.file_name for each in JARS)}"
    )


def _ways(jar: Jar, scratch: Path) -> Iterator[tuple[str, list[str]]]:
    """Maven, which knows the user's mirrors, when it is there; Ivy comes with pyspark."""
    ways: tuple[tuple[str, Callable[[Jar, Path], list[str] | None]], ...] = (("mvn", _maven), ("ivy", _ivy))
    for name, way in ways:
        command = way(jar, scratch)
        if command is not None:
            yield name, command


def _maven(jar: Jar, scratch: Path) -> list[str] | None:
    maven = shutil.which("mvn")
    if maven is None:
        return None
    coordinates = f"{jar.group}:{jar.artifact}:{jar.version}"
    return [maven, "-q", "-B", "dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={scratch}"]


def _ivy(jar: Jar, scratch: Path) -> list[str] | None:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        return None
    pattern = f"{scratch}/[artifact]-[revision].[ext]"
    command = [java_command(), "-jar", str(found[-1]), "-m2compatible", "-notransitive"]
    command += ["-cache", str(scratch / "cache"), "-confs", "default", "-retrieve", pattern]
    return [*command, "-dependency", jar.group, jar.artifact, jar.version]


def _last_line(*texts: str | None) -> str:
    lines = [line for text in texts for line in (text or "").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"
