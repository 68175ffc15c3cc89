"""Go clients: programs in tests/clients/go, built once into .cache/go with the modules that go.mod names."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import run

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "clients" / "go"
PROGRAMS = ROOT / ".cache" / "go"
# The first build downloads the modules and compiles all of them.
BUILD_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class GoPrograms:
    """Runs the programs in tests/clients/go."""

    @classmethod
    def build(cls) -> GoPrograms:
        """The built programs. Skips if Go is missing or too old, or if the modules cannot be downloaded."""
        go = _go_with_modules()
        PROGRAMS.mkdir(parents=True, exist_ok=True)
        _build(go, SOURCES, f"{PROGRAMS}/", "./...")
        return cls()

    def run(self, program: str, arguments: dict[str, Any], timeout_s: float = 100) -> Any:
        """Run a program with one JSON argument; it prints one JSON answer."""
        done = run([str(PROGRAMS / program), json.dumps(arguments)], timeout_s)
        if done.returncode != 0:
            raise AssertionError(f"{program}: {done.stdout.decode()[-2000:]}{done.stderr.decode()[-4000:]}")
        return json.loads(done.stdout)


def run_source(source: str, folder: Path, timeout_s: float = 100) -> str:
    """Build a one-file program with the same modules in an empty folder, and run it; returns its output.

    Skips as GoPrograms.build does.
    """
    go = _go_with_modules()
    for name in ("go.mod", "go.sum"):
        shutil.copy(SOURCES / name, folder)
    (folder / "main.go").write_text(source)
    _build(go, folder, str(folder / "program"), ".")
    done = run([str(folder / "program")], timeout_s)
    if done.returncode != 0:
        raise AssertionError(f"{done.stdout.decode()[-2000:]}{done.stderr.decode()[-4000:]}")
    return done.stdout.decode()


def build_tests(package: str) -> tuple[Path, Path]:
    """Build the tests that a package of these modules has; returns the program, and the folder to run it in.

    Skips as GoPrograms.build does.
    """
    go = _go_with_modules()
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    program = PROGRAMS / f"{package.rpartition('/')[2]}.test"
    _execute([go, "test", "-c", "-vet=off", "-o", str(program), package], SOURCES)
    return program, Path(_execute([go, "list", "-f", "{{.Dir}}", package], SOURCES).strip())


def installed(program: str) -> str:
    """The path of a program that `go install` builds, PACKAGE@VERSION. Skips if that can't be done."""
    name, _, version = program.rpartition("/")[2].partition("@")
    folder = PROGRAMS / version
    if not (folder / name).exists():
        done = run([_go(), "install", program], BUILD_TIMEOUT_S, env={**os.environ, "GOBIN": str(folder)})
        if done.returncode != 0:
            pytest.skip(f"{name} could not be had: {done.stderr.decode(errors='replace')[-500:]}")
    return str(folder / name)


def _go() -> str:
    """The compiler. Skips if it is missing."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go (go) on PATH")
    return go


def _go_with_modules() -> str:
    """The compiler, once it has all modules; skips if it is missing."""
    go = _go()
    _require(go)
    gotten = run([go, "mod", "download"], BUILD_TIMEOUT_S, cwd=SOURCES)
    if gotten.returncode != 0:
        why = gotten.stderr.decode(errors="replace")[-500:]
        pytest.skip(f"the Go clients' modules could not be had: {why}")
    return go


def _build(go: str, folder: Path, output: str, packages: str) -> None:
    _execute([go, "build", "-buildvcs=false", "-o", output, packages], folder)


def _execute(command: list[str], folder: Path) -> str:
    """Run a command of Go to its end; returns its output."""
    done = run(command, BUILD_TIMEOUT_S, cwd=folder)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.decode(errors='replace')[-4000:]}")
    return done.stdout.decode()


def _require(go: str) -> None:
    """Skip if Go is older than go.mod demands: it would download a newer one."""
    wanted = _numbers(re.search(r"(?m)^go (\S+)$", (SOURCES / "go.mod").read_text()))
    version = run([go, "env", "GOVERSION"], 60, cwd=ROOT).stdout.decode()
    found = _numbers(re.search(r"go([\d.]+)", version))
    if found < wanted:
        pytest.skip(f"needs Go {'.'.join(map(str, wanted))}, this one is {version.strip()}")


def _numbers(found: re.Match[str] | None) -> tuple[int, ...]:
    assert found is not None
    return tuple(map(int, found[1].split(".")))
