"""The broker of the demo: the real `korvet serve`, as a process that ends with us."""

import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from korvet.config.keys import clean_environment
from korvet.demo.failure import DemoFailed
from korvet.embedded.shim import bound
from korvet.embedded.sockets import socket_of

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.05
_READY = re.compile(r"^korvet is ready on (\S+) ", re.MULTILINE)
_LOG_TAIL_CHARACTERS = 2_000


class DemoServer:
    """`korvet serve` on a free port with an embedded server. As a context manager, it stops at the end."""

    def __init__(self, data_dir: Path, log: Path) -> None:
        self.data_dir = data_dir
        self.log = log
        self.bootstrap = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker and wait until it is ready. Raises DemoFailed."""
        command = [sys.executable, "-m", "korvet", "serve", "--listen", "127.0.0.1:0"]
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C reaches only us, and we stop the broker after its clients.
            self._process = subprocess.Popen(
                bound([*command, "--data-dir", str(self.data_dir)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(),
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while (found := _READY.search(self._log_text())) is None:
            if (fault := self.fault()) is not None:
                raise DemoFailed(fault)
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"the broker was not ready within {START_TIMEOUT_S:.0f} s:\n{self.log_tail()}"
                )
            time.sleep(_POLL_S)
        self.bootstrap = found[1]

    def stop(self) -> None:
        """Stop the broker with SIGTERM, or kill it if that takes too long."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fault(self) -> str | None:
        """Returns the message for a broker that has exited by itself; None while it runs."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        return f"the broker exited with status {status}:\n{self.log_tail()}"

    def log_tail(self) -> str:
        """Returns the end of the broker's log."""
        return self._log_text()[-_LOG_TAIL_CHARACTERS:].strip()

    @property
    def redis_socket(self) -> Path:
        """Returns the Unix socket of the embedded server."""
        path = socket_of(self.data_dir)
        if path is None:
            raise DemoFailed(f"no embedded server in {self.data_dir}")
        return path.absolute()

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace")
