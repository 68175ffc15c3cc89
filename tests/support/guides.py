"""Runs the blocks of a page of docs/ as printed, in their order, on a network of their own.

- ```sh and ```python run. A line that starts a server runs until the end of the page, unless it ends with &.
- A block of a file (toml, ini, conf, yaml, properties) or of source that begins with `# NAME` or `// NAME` is
  written to that file.
- A block is left out if the line above says why: `*Not run by the tests: needs a Docker engine.*`
- ```text holds output and notation, no commands.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from korvet.embedded import shim
from korvet.embedded.binary import find_server
from tests.support.polling import patient, until
from tests.support.processes import Child, run

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
FIRST_TOPIC: Final = DOCS / "start" / "first-topic.md"
"""The page that begins with an empty folder, and makes what guides begin with."""
JARS: Final = Path(os.environ.get("KORVET_JARS_DIR") or ROOT / ".cache" / "jars")
FILES: Final = {"toml", "ini", "conf", "yaml", "properties"}
SOURCES: Final = {"python", "js", "go", "java"}
_NAME: Final = re.compile(r"(?:#|//) (\S+\.\w+)\n")
# The beginnings of lines that start a server, and what the server writes when it is ready.
SERVERS: Final = {
    "korvet serve": "korvet is ready",
    "valkey-server": "Ready to accept connections",
    "valkey-sentinel": "Sentinel ID is",
}
_FENCED = re.compile(
    r"(?:^\*Not run by the tests: ([^\n]+)\*\n\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
_START_S: Final = 60
_COMMAND_S: Final = 300
# Gives the network an address, tells that it exists, and waits for the end of standard input.
_HOLD: Final = """
import fcntl, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
print("up", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `reason`: why it is not run, else empty."""

    language: str
    text: str
    reason: str
    line: int

    @property
    def file(self) -> str | None:
        """The name of the file that the block is written to."""
        name = _NAME.match(self.text) if self.language in FILES | SOURCES else None
        return None if name is None else name[1]

    @property
    def runs(self) -> bool:
        """Whether the block is executed."""
        return self.language in {"sh", "python"} and not self.reason and self.file is None


def blocks(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page."""
    text = page.read_text("utf-8")
    return [
        Block(found[2], found[3], found[1] or "", text.count("\n", 0, found.start(3)) + 1)
        for found in _FENCED.finditer(text)
    ]


def starts_servers(page: Path) -> bool:
    """Whether a page starts its own servers, and so begins with nothing."""
    return any(
        _server_of(line) is not None
        for block in blocks(page)
        if block.runs
        for line in block.text.splitlines()
    )


def _server_of(line: str) -> str | None:
    """What a line starts, if that runs until the end of the page."""
    return next((start for start in SERVERS if line.startswith(start) and not line.endswith("&")), None)


class Desk:
    """A folder and a network, in which every port is free. Skips the test if the system permits none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._servers: list[Child] = []
        python = [sys.executable, "-I", "-S", "-c", _HOLD]
        self._network = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--net", *python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._network.stdout is not None
        if self._network.stdout.readline() != b"up\n":
            pytest.skip("no network namespace can be made here")
        programs = folder / ".bin"
        programs.mkdir(parents=True)
        server = find_server().path
        for name in ("valkey-server", "valkey-sentinel"):
            (programs / name).symlink_to(server)
        if (client := shutil.which("redis-cli")) is not None:
            (programs / "valkey-cli").symlink_to(client)
        # Readers may have hypothesis, whose plugin pytest loads.
        left_out = ("KORVET_", "PYTHONPATH")
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        self._environ |= {
            "HOME": str(folder),
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KORVET_JARS_DIR": str(JARS),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "GOCACHE": str(ROOT / ".cache" / "go-build"),
        }

    def close(self) -> None:
        """End all servers, the last one first, and the network."""
        while self._servers:
            self._servers.pop().terminate()
        self._network.communicate(timeout=patient(10))

    def follow(self, page: Path) -> None:
        """Run the blocks of a page. Raises AssertionError if one fails."""
        for block in blocks(page):
            where = f"{page.relative_to(ROOT)}:{block.line}"
            if block.reason:
                continue
            if block.file is not None:
                (self.folder / block.file).write_text(block.text)
            elif block.language == "python":
                self._run(where, [sys.executable, "-c", block.text])
            elif block.language == "sh":
                self.shell(where, block.text)

    def shell(self, where: str, text: str) -> None:
        """Run commands and start servers, in the order of their lines."""
        commands: list[str] = []
        for line in [*re.sub(r"\\\n\s*", "", text).splitlines(), ""]:
            server = _server_of(line)
            if server is None and line:
                commands.append(line)
                continue
            if commands:
                self._run(where, ["/bin/sh", "-euc", "\n".join(commands)])
                commands.clear()
            if server is not None:
                self._serve(where, line, SERVERS[server])

    def _inside(self, command: list[str]) -> list[str]:
        entered = ["nsenter", "--preserve-credentials", "--user", "--net", f"--target={self._network.pid}"]
        return [*entered, *shim.bound(command)]

    def _run(self, where: str, command: list[str]) -> None:
        done = run(self._inside(command), timeout_s=_COMMAND_S, env=self._environ, cwd=self.folder)
        assert done.returncode == 0, (
            f"{where}: exit status {done.returncode}\n{(done.stdout + done.stderr).decode()}"
        )

    def _serve(self, where: str, line: str, ready: str) -> None:
        log = self.folder / f".server-{len(self._servers)}.log"
        shell = ["/bin/sh", "-c", f"cd {self.folder} && exec {line.partition(' #')[0]}"]
        server = Child(self._inside(shell), log, self._environ)
        self._servers.append(server)

        def is_ready() -> bool:
            assert server.running, f"{where}: {line!r} ended\n{server.output()}"
            return ready in server.output()

        until(is_ready, _START_S, f"{where}: {line!r} is ready")
