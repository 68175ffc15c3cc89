"""Jars that PySpark lacks (the Kafka connector, Delta): downloaded once by Maven or Ivy, pinned, verified.

Files are downloaded one by one, without their dependencies. Spark's `spark.jars.packages` would also download
dependencies that pyspark already has (a Hadoop client of 50 MB).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from korvet.spark.session.session import java_command
from korvet.spark.versions import named, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.spark.versions import Version

FETCH_TIMEOUT_S = 300
READ_BYTES = 1 << 20
_COORDINATES = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+")


class JarsMissing(RuntimeError):
    """A jar is missing, can't be downloaded, or is not the pinned one. The message states a remedy."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned file, by its Maven coordinates."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The file's name in a Maven repository."""
        return f"{self.artifact}-{self.version}.jar"


# By the version of Spark. Any release of the connector works with all releases of its minor version, and the
# newest one with later minor versions.
_CONNECTORS = {
    (4, 0): ("4.0.0", "33a3b8b04df4a2e43c9d5bf8ca5972936a1ac662f2714e014d00ef6f27468bf3"),
    (4, 1): ("4.1.1", "9c1ce986f548e6b1dcb0e2dfe2f253a0bc58f2232a32a0c9c6c674dd25a8570c"),
    (4, 2): ("4.2.0", "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"),
}
# The same for all: the interface of the token provider has not changed since 4.0.0, and kafka-clients is the
# newest that a connector depends on.
_CONNECTOR_NEEDS = (
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
# Delta is built once for each version of Spark. Its parser is pyspark's ANTLR.
_DELTA_VERSION = "4.4.0"
_DELTA = {
    (4, 0): "49e899667168b9412f83cbe894ce264107d7b896d6c5e12edca4e216845c1104",
    (4, 1): "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    (4, 2): "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
}
_DELTA_STORAGE = Jar(
    "io.delta",
    "delta-storage",
    _DELTA_VERSION,
    "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
)
KAFKA, DELTA = "kafka", "delta"


def jar_sets(version: Version) -> dict[str, tuple[Jar, ...]]:
    """Return the jars of each set for a version of Spark (major, minor).

    The set of Delta is empty if Delta has no release for that version yet.
    """
    release, digest = _CONNECTORS[min(version, max(_CONNECTORS))]
    connector = Jar("org.apache.spark", "spark-sql-kafka-0-10_2.13", release, digest)
    delta: tuple[Jar, ...] = ()
    if version in _DELTA:
        artifact = f"delta-spark_{named(version)}_2.13"
        delta = (Jar("io.delta", artifact, _DELTA_VERSION, _DELTA[version]), _DELTA_STORAGE)
    return {KAFKA: (connector, *_CONNECTOR_NEEDS), DELTA: delta}


# The sets for the installed version of Spark.
JARS = jar_sets(running())
# Settings of a session that uses the jars.
SETTINGS: dict[str, dict[str, str]] = {
    KAFKA: {},
    DELTA: {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
}


def jars_folder() -> Path:
    """Return the folder of the jars: KORVET_JARS_DIR, else a folder in the user's cache folder."""
    chosen = os.environ.get("KORVET_JARS_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "korvet" / "jars"


def find_jars(folder: Path | None = None, name: str = KAFKA) -> list[Path]:
    """Return the verified jars of a set in JARS. Raises JarsMissing for a missing or different jar."""
    folder = folder or jars_folder()
    jars = released(name)
    paths = [folder / jar.file_name for jar in jars]
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        raise JarsMissing(
            f"{', '.join(absent)} not in {folder}: run `{_command(name)}` once (it needs a Maven repository),"
            " or copy the files there from another machine"
        )
    for jar, path in zip(jars, paths, strict=True):
        _verify(jar, path)
    return paths


def fetch_jars(
    folder: Path | None = None, name: str = KAFKA, *, timeout_s: float = FETCH_TIMEOUT_S
) -> Iterator[tuple[Jar, str]]:
    """Download the missing jars of a set. Yields each jar with `present` or `fetched`.

    An interrupted download continues in the next call. Maven and Ivy have `timeout_s` seconds each per jar.
    Raises JarsMissing if a jar can't be downloaded or has another SHA-256, and for a set without jars.
    """
    folder = folder or jars_folder()
    for jar in released(name):
        target = folder / jar.file_name
        if target.is_file() and sha256(target) == jar.sha256:
            yield jar, "present"
            continue
        _fetch_into(folder, jar, timeout_s)
        yield jar, "fetched"


def released(name: str) -> tuple[Jar, ...]:
    """Return the jars of a set. Raises JarsMissing if there are none for the installed Spark."""
    if not JARS[name]:
        raise JarsMissing(
            f"stored tables and Delta exports need Delta, which has no release for Spark {named(running())}: "
            f"use Spark {named(max(_DELTA))} (pip install 'pyspark=={named(max(_DELTA))}.*')"
        )
    return JARS[name]


def fetch_package(coordinates: str, folder: Path | None = None) -> Path:
    """Return a jar by its Maven coordinates (`group:artifact:version`), downloaded if it is missing.

    Meant for jars like JDBC drivers: without dependencies, and verified only by Maven's checksum. Raises
    JarsMissing if the coordinates are malformed or the download fails.
    """
    if not _COORDINATES.fullmatch(coordinates):
        raise JarsMissing(f"{coordinates!r} are not Maven coordinates: use group:artifact:version")
    group, artifact, version = coordinates.split(":")
    jar, folder = Jar(group, artifact, version, sha256=""), folder or jars_folder()
    target = folder / jar.file_name
    return target if target.is_file() else _fetch_into(folder, jar, FETCH_TIMEOUT_S)


def _fetch_into(folder: Path, jar: Jar, timeout_s: float) -> Path:
    """Download next to the target and rename, so that an incomplete file never has the jar's name."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        fetched = _fetch(jar, Path(scratch), timeout_s)
        if jar.sha256:
            _verify(jar, fetched)
        return fetched.replace(folder / jar.file_name)


def _command(name: str) -> str:
    return "korvet jars" if name == KAFKA else f"korvet jars {name}"


def sha256(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal."""
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
    """The jar in a scratch folder, by the first tool that works."""
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
        f"{jar.file_name} can't be downloaded; is a Maven repository reachable? ({'; '.join(failures)}). "
        f"If this machine is offline, copy the file to {jars_folder()} from another one"
    )


def _ways(jar: Jar, scratch: Path) -> Iterator[tuple[str, list[str]]]:
    """The commands to try: Maven, which knows the user's mirrors, if installed; then pyspark's Ivy."""
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
