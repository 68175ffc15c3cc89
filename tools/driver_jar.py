"""Compiles spark/session/driver, the part of korvet in the JVM of Spark's driver, into the jar beside it.

    python -m tools.driver_jar

It needs a JDK, and PySpark in this environment. The jar is in the repository, so that an installation needs
neither; its manifest has the digest of the sources that it was compiled from, which a test compares.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "spark" / "session" / "driver"
JAR = ROOT / "spark" / "session" / "assets" / "korvet-driver.jar"
MANIFEST = "META-INF/MANIFEST.MF"
DIGEST = "Sources-SHA-256"
# The oldest Java that Spark 4 runs on.
RELEASE = 17
# Files in a jar have a time. With a fixed one, the same sources give the same jar.
TIME = (1980, 1, 1, 0, 0, 0)


def digest_of(folder: Path = SOURCES) -> str:
    """Return the SHA-256 of the sources, by name and content."""
    digest = hashlib.sha256()
    for source in sorted(folder.glob("*.java")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def compiled_digest(jar: Path = JAR) -> str:
    """Return the digest of the sources that a jar was compiled from."""
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read(MANIFEST).decode().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith(DIGEST))


def build(jar: Path = JAR) -> Path:
    """Compile the sources and write the jar. Raises CalledProcessError if the compiler refuses them."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("PySpark is not installed: its jars are what the sources compile against")
    with tempfile.TemporaryDirectory(prefix="korvet-driver-") as folder:
        classes = Path(folder)
        command = ["javac", "--release", str(RELEASE), "-d", folder]
        command += ["-Xlint:all,-path,-classfile,-serial", "-Werror"]
        command += ["-cp", str(Path(spec.origin).parent / "jars" / "*")]
        subprocess.run([*command, *map(str, sorted(SOURCES.glob("*.java")))], check=True)
        jar.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
            manifest = f"Manifest-Version: 1.0\n{DIGEST}: {digest_of()}\n"
            archive.writestr(zipfile.ZipInfo(MANIFEST, TIME), manifest)
            for path in sorted(classes.rglob("*.class")):
                entry = zipfile.ZipInfo(path.relative_to(classes).as_posix(), TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    return jar


if __name__ == "__main__":
    build()
