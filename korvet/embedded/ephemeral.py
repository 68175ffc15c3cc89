"""A server for tests: data in memory only, on a free port of 127.0.0.1, without a folder.

It has no files at all, so nothing can be left: its settings come through standard input, and its log is a
file without a name. A Unix socket would need a path.

Other users of the machine can connect to the port, so the server has a password, which only its URL holds. It
is not an argument, because arguments are visible to all users.
"""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Final

from korvet.config.address import Address
from korvet.config.machine_memory import described_end, memory_kills
from korvet.embedded.allocator import server_environment
from korvet.embedded.binary import ServerBinary, find_server
from korvet.embedded.conf import conf
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.log_end import end_of, last_lines
from korvet.embedded.module import MODULE_REFUSED, OFF
from korvet.embedded.probe import Probe, ProbeError
from korvet.embedded.shim import shimmed
from korvet.redis.module import find_module

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
# Longest start, on a busy machine.
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.005
# Where ports can't be reserved, another process may take the port before the server.
_MOST_PORTS: Final = 5
_PORT_TAKEN: Final = "failed listening on port"


class EphemeralServer:
    """A private server process. It ends with the process that started it, even by kill -9, and so within
    0.2 s. Any thread may start it.
    """

    def __init__(self, module: str, maxmemory_bytes: int) -> None:
        """`module`: as `embedded.module`. Above `maxmemory_bytes` of data it refuses writes (0: never)."""
        self._module_setting = module
        self._maxmemory_bytes = maxmemory_bytes
        self._password = secrets.token_urlsafe(18)
        self._process: subprocess.Popen[bytes] | None = None
        self.log = _unnamed_file()
        self._memory_kills: int | None = None
        self.binary: ServerBinary | None = None
        self.loaded_module: Path | None = None
        """The server module that the server loads. `start` sets it."""
        self.address = Address(HOST, 0)

    @property
    def url(self) -> str:
        """The `redis://` URL of the running server, with its password."""
        return f"redis://:{self._password}@{self.address}"

    def start(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Start the server, call `meanwhile` while it starts, and wait until it answers. An attempt that
        fails is repeated, with `meanwhile` and maybe another port. Raises EmbeddedServerError: no program, or
        the end of the server's log.
        """
        try:
            self.binary = find_server()
            # If the server refuses the module, it is started again without.
            self.loaded_module = None if self._module_setting == OFF else find_module()
            for _ in range(_MOST_PORTS):
                with reserved_port() as self.address:
                    self._launch()
                    if meanwhile is not None:
                        meanwhile()
                    if answers(self.address, self._password, lambda: self.described_end() is None):
                        return
                text = end_of(self.log.fileno()).lower()
                if self.loaded_module is not None and MODULE_REFUSED in text:
                    logger.warning("%s does not load korvet's server module, and runs without", self.binary)
                    self.loaded_module = None
                elif _PORT_TAKEN not in text:
                    break
            end = self.described_end() or f"does not become ready within {_START_TIMEOUT_S:g} s"
            raise EmbeddedServerError(f"{self.binary} {end} while starting{log_tail(self.log)}")
        except BaseException:
            self.stop()
            raise

    def _launch(self) -> None:
        assert self.binary is not None
        self._end()
        self.log.truncate(0)
        self.log.seek(0)
        self._memory_kills = memory_kills()
        self._process = subprocess.Popen(
            shimmed("watch", signal.SIGKILL, -1, [str(self.binary.path), "-"]),
            env=server_environment(self.binary, os.environ),
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,  # Ctrl-C in a terminal reaches only us; we stop the server last
        )
        assert self._process.stdin is not None
        # A server that has ended takes nothing; `answers` finds out.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as settings:
            settings.write(os.fsencode(self._settings()))

    def _settings(self) -> str:
        pairs = {
            "bind": self.address.host,
            "port": str(self.address.port),
            "requirepass": self._password,
            "daemonize": "no",
            "logfile": "",  # standard output
            # The server writes no file. SAVE, which a client may call, is refused.
            "dir": "/proc" if sys.platform == "linux" else "/",
            "save": "",
            "appendonly": "no",
            # A snapshot for a backup begins at once, and goes to the connection without a file.
            "repl-diskless-sync": "yes",
            "repl-diskless-sync-delay": "0",
            "maxmemory": str(self._maxmemory_bytes),
            "maxmemory-policy": "noeviction",
        }
        if self.loaded_module is not None:
            pairs["loadmodule"] = str(self.loaded_module)
        return conf(pairs)

    def described_end(self) -> str | None:
        """Returns how the server has ended, for a message; None while it runs."""
        status = None if self._process is None else self._process.poll()
        return None if status is None else described_end(status, self._memory_kills)

    def stop(self) -> None:
        """End the server, with all data. Does nothing if the server wasn't started."""
        self._end()
        self.log.close()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # The watching shim kills the server.
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(address: Address, password: str, awaited: Callable[[], bool] = lambda: True) -> bool:
    """Wait until a server answers. Returns False if it takes too long, or once it is not `awaited`."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while awaited() and time.monotonic() < deadline:
        try:
            with Probe(address, password=password) as probe:
                probe.ping()
                return True
        except ProbeError:
            time.sleep(_POLL_S)
    return False


def _unnamed_file() -> IO[bytes]:
    """Returns an empty file that has no name, so that neither a program's end nor kill -9 leaves it. On Linux
    it is in memory: there may be no folder where files can be written.
    """
    file: IO[bytes]
    if sys.platform == "linux":
        file = os.fdopen(os.memfd_create("korvet-log"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115  # open until `stop`
    return file


def log_tail(log: IO[bytes]) -> str:
    """Returns the last lines of a log, as the end of a message; empty if there are none."""
    lines = last_lines(log.fileno())
    return f". The end of its log:\n{lines}" if lines else ""


@contextlib.contextmanager
def reserved_port(port: int = 0) -> Iterator[Address]:
    """A port of 127.0.0.1 (0: any free one) that no other process gets in the block, but one that is given
    the number can listen on it.

    On Linux, several sockets may be bound to a port, if all have SO_REUSEADDR and none of them listens. Other
    systems have no such reservation.
    """
    with socket.socket() as reserving:
        reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserving.bind((HOST, port))
        address = Address(HOST, int(reserving.getsockname()[1]))
        if sys.platform != "linux":
            reserving.close()
        yield address
