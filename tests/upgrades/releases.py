"""The last release, built from its commit, and this one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.support.polling import patient

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parents[2]
LAST_COMMIT: Final = "80dcc3160c"
BUILT: Final = ROOT / "build" / "releases"
BUILD_TIMEOUT_S: Final = 300.0


class Release(NamedTuple):
    """A release that `python -m korvet` runs with these environment variables."""

    name: str
    environ: Mapping[str, str]


THIS: Final = Release("this", {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"})


def last() -> Release:
    """The last release, which is built once. Skips the test without its commit."""
    folder = BUILT / LAST_COMMIT
    if not folder.exists():
        _build(folder)
    return Release("last", {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"})


def _build(folder: Path) -> None:
    tree = subprocess.run(
        ["git", "archive", LAST_COMMIT],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if tree.returncode:
        pytest.skip(f"the commit {LAST_COMMIT} of the last release is not in this clone")
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as scratch:
        source, target = Path(scratch, "source"), Path(scratch, "target")
        source.mkdir()
        subprocess.run(["tar", "-x", "-C", source], input=tree.stdout, check=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command = [*pip, "--no-deps", "--target", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=patient(BUILD_TIMEOUT_S))
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
        # Tests of several processes may build it at the same time.
        with contextlib.suppress(OSError):
            target.rename(folder)
