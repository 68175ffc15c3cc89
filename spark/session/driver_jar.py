"""The jar of `driver/`, the part of korvet in the JVM of Spark's driver.

It is compiled when it is first needed, against the jars of the running Spark. An installation of korvet
therefore needs neither Java nor Spark.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zipfile
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from pyspark.find_spark_home import _find_spark_home

from korvet.spark.session.jars import JarsMissing, jars_folder
from korvet.spark.session.session import JavaMissing, java_command
from korvet.spark.versions import named, running

COMPILE_TIMEOUT_S: Final = 300
# The oldest Java that Spark 4 runs on.
_RELEASE: Final = "17"
# A module of every JDK, and of the runtimes of some distributions, which lack the command javac.
_COMPILER: Final = "jdk.compiler"
_OPTIONS: Final = ("--release", _RELEASE, "-Xlint:all,-path,-classfile,-serial", "-Werror")


@cache
def driver_jar() -> Path:
    """Return the jar, which is compiled unless the folder of the jars has one of the same sources and Spark.

    Raises JavaMissing if Java is missing or has no compiler, and JarsMissing if the jar can't be stored.
    """
    sources = {
        source.name: source.read_bytes()
        for source in sorted((files("korvet.spark.session") / "driver").iterdir(), key=lambda each: each.name)
        if source.name.endswith(".java")
    }
    digest = hashlib.sha256(b"\0".join(name.encode() + b"\0" + text for name, text in sources.items()))
    jar = jars_folder() / f"korvet-driver-{named(running())}-{digest.hexdigest()[:16]}.jar"
    try:
        if not jar.is_file():
            jar.parent.mkdir(parents=True, exist_ok=True)
            _compile(sources, jar)
    except OSError as error:
        raise JarsMissing(f"{jar.parent} can't be written ({error}): set KORVET_JARS_DIR") from error
    return jar


def _compile(sources: dict[str, bytes], jar: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="korvet-driver-", dir=jar.parent) as name:
        folder = Path(name)
        for source, text in sources.items():
            (folder / source).write_bytes(text)
        _run_compiler(folder, sorted(sources))
        packed = folder / jar.name
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted((folder / "classes").rglob("*.class")):
                archive.write(path, path.relative_to(folder / "classes").as_posix())
        os.replace(packed, jar)


def _run_compiler(folder: Path, sources: list[str]) -> None:
    """Compile the sources in a folder to its subfolder `classes`."""
    java = java_command()
    command = [java, "-m", f"{_COMPILER}/com.sun.tools.javac.Main", *_OPTIONS, "-d", "classes"]
    jars = (Path(_find_spark_home()) / "jars").glob("*.jar")
    command += ["-cp", os.pathsep.join(map(str, jars)), *sources]
    try:
        subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip()
        if _COMPILER in said:
            raise JavaMissing(
                f"{java} has no compiler, which korvet needs for its part in Spark's driver: use a JDK "
                f"{_RELEASE} or newer (JAVA_HOME)"
            ) from error
        raise JavaMissing(f"{java} can't compile korvet's part in Spark's driver: {said[:500]}") from error
    except subprocess.TimeoutExpired as error:
        raise JavaMissing(f"{java} took more than {COMPILE_TIMEOUT_S} s to compile") from error
