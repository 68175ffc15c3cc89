"""Runs the Spark tests with other versions of Spark than .venv's.

    ./dev run python -m tools.spark_versions 3.5 4.0

Each version has an environment of its own in .cache/spark: its PySpark, before the packages of .venv. A file
of tests that has passed with the same sources does not run again. Output and results are in
build/spark-versions.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from tools import dev

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "spark-versions"
EXPRESSIONS_ONLY = "3.5"
EXPRESSIONS = "test_expressions"
# Exit status of pytest without tests.
NO_TESTS = 5
RELEASES = {EXPRESSIONS_ONLY: "3.5.9", "4.0": "4.0.0", "4.1": "4.1.4"}
# What the results depend on.
SOURCES = ("spark/**/*.py", "offsets/**/*.py", "tests/spark/*.py", "pyspark_korvet.py", "pyproject.toml")


def main(arguments: Sequence[str]) -> int:
    """Run the Spark tests with the versions named. Returns the exit status."""
    unknown = [version for version in arguments if version not in RELEASES]
    if unknown:
        sys.stderr.write(f"no version {', '.join(unknown)}; there are {', '.join(RELEASES)}\n")
        return 2
    results = [run(version, name) for version in arguments or RELEASES for name in suites(version)]
    return int(not all(results))


def suites(version: str) -> list[str]:
    """The names of the files of tests for a version."""
    if version == EXPRESSIONS_ONLY:
        return [EXPRESSIONS]
    return sorted(path.stem for path in (ROOT / "tests" / "spark").glob("test_*.py"))


def run(version: str, suite: str) -> bool:
    """Run a file of tests, unless it has passed with these sources before. Returns whether it passed."""
    folder, digest = RESULTS / version, digest_of(sources())
    folder.mkdir(parents=True, exist_ok=True)
    passed_with, output = folder / f"{suite}.passed", folder / f"{suite}.txt"
    if passed_with.exists() and passed_with.read_text() == digest:
        return True
    python = environment(version)
    environ = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    command = [*pytest_of(version, python), f"tests/spark/{suite}.py"]
    with output.open("w") as file:
        done = subprocess.run(command, cwd=ROOT, env=environ, stdout=file, stderr=file, check=False)
    # A file that is skipped as a whole has no test.
    passed = done.returncode in {0, NO_TESTS}
    dev.say(f"Spark {version}, {suite}: {'passed' if passed else f'FAILED, see {output}'}")
    if passed:
        passed_with.write_text(digest)
    return passed


def pytest_of(version: str, python: Path) -> list[str]:
    """The command of pytest for a version."""
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider"]
    if version == EXPRESSIONS_ONLY:
        # The conftest.py files need data sources in Python. This Spark warns about itself with recent
        # versions of Python's libraries.
        return [*command, "--noconftest", "-p", "tests.spark.plain_session", "-W", "ignore"]
    # PySpark 4.0 and 4.1 leave sockets to the garbage collector.
    quiet = ["-W", "ignore::pytest.PytestUnraisableExceptionWarning", "-W", "ignore::ResourceWarning"]
    return [*command, *quiet]


def environment(version: str) -> Path:
    """Return the Python of a version's environment, created if it is missing. Raises SetupError."""
    release = RELEASES[version]
    folder = ROOT / ".cache" / "spark" / release
    python, made = folder / "bin" / "python", folder / "made"
    packages = sysconfig.get_path("purelib")
    if made.exists() and made.read_text() == packages:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    base, uv = dev.base_python(), shutil.which("uv")
    if uv:
        create = [uv, "venv", "--quiet", "--python", base]
        pip = [uv, "pip", "install", "--python", str(python)]
    else:
        create, pip = [base, "-m", "venv"], [str(python), "-m", "pip", "install"]
    dev.install(f"creating {folder}", [*create, str(folder)])
    dev.install(f"installing pyspark {release}", [*pip, "--quiet", f"pyspark=={release}"])
    own = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # After its own packages, with the .pth files there.
    (own / "korvet_packages.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    made.write_text(packages)
    return python


def sources() -> list[Path]:
    """The files that the results depend on."""
    return sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))


def digest_of(files: Iterable[Path]) -> str:
    """Return a hash of files with their names."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
