"""Node clients: npm installs packages once into .cache/; the scripts are in tests/clients/node."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import run

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "clients" / "node"
CACHE = ROOT / ".cache" / "node"
INSTALL_TIMEOUT_S = 200


@dataclass(frozen=True, slots=True)
class NodeTools:
    """Runs the scripts in tests/clients/node with the packages that its package.json names."""

    node: str

    @classmethod
    def resolve(cls) -> NodeTools:
        """The installed packages. Skips the test if node or npm is missing."""
        missing = [name for name in ("node", "npm") if shutil.which(name) is None]
        if missing:
            pytest.skip(f"needs {' and '.join(missing)} on PATH")
        wanted = (SOURCES / "package.json").read_bytes()
        installed = CACHE / ".installed.json"
        if not installed.exists() or installed.read_bytes() != wanted:
            _install(wanted)
            installed.write_bytes(wanted)
        return cls(str(shutil.which("node")))

    def needs(self, *version: int) -> None:
        """Skip the test if Node is older."""
        found = run([self.node, "--version"], 20).stdout.decode().strip()
        if tuple(map(int, found.removeprefix("v").split("."))) < version:
            pytest.skip(f"needs Node {'.'.join(map(str, version))}, this one is {found}")

    def run(self, script: str, arguments: dict[str, Any], timeout_s: float = 60) -> Any:
        """Run a script with one JSON argument; it prints one JSON answer as its last line."""
        written = self.run_file(SOURCES / script, json.dumps(arguments), timeout_s=timeout_s)
        return json.loads(written.splitlines()[-1])

    def run_file(self, file: Path, *arguments: str, timeout_s: float = 60) -> str:
        """Run any script with these packages; returns its output."""
        env = {**os.environ, "NODE_PATH": str(CACHE / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        done = run([self.node, str(file), *arguments], timeout_s, env=env)
        if done.returncode != 0:
            raise AssertionError(f"{file.name}: {done.stdout.decode()[-2000:]}{done.stderr.decode()[-4000:]}")
        return done.stdout.decode()


def _install(package: bytes) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "package.json").write_bytes(package)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    done = run(command, INSTALL_TIMEOUT_S, cwd=CACHE, env=os.environ | _headers())
    if done.returncode != 0:
        pytest.skip(f"npm could not install the Node clients: {done.stderr.decode(errors='replace')[-500:]}")


def _headers() -> dict[str, str]:
    """What lets npm compile packages against Node's own headers, without a download of these."""
    root = Path(str(shutil.which("node"))).resolve().parents[1]
    has_headers = (root / "include" / "node" / "common.gypi").exists()
    return {"npm_config_nodedir": str(root)} if has_headers else {}
