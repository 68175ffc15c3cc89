"""One broker process of a KorvetBroker: `korvet serve --ephemeral --join`."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Final

from korvet.config.keys import PREFIX, variable_of
from korvet.embedded.ephemeral import log_tail
from korvet.testing.errors import KorvetBrokerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from korvet.config.address import Address

# Longest start and stop, on a busy machine.
START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 30.0
_PIECE_BYTES: Final = 65_536


class BrokerProcess:
    """A broker that can be started again on the same address."""

    def __init__(
        self,
        node_id: int,
        address: Address,
        options: Sequence[str],
        variables: Mapping[str, str],
        log: IO[bytes],
    ) -> None:
        """`variables`: settings in the environment. The broker writes to `log`."""
        self.address = address
        self.admin_url = ""
        self.node_id = node_id
        self._options = options
        self._variables = variables
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def launch(self, redis_url: str) -> None:
        """Start the process on the data of a server, and don't wait for it."""
        # Without settings of the machine's other brokers.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
        # Without -P, modules of the working folder come first.
        command = [sys.executable, "-P", "-m", "korvet", "serve", "--ephemeral", "--parent", str(os.getpid())]
        self._process = subprocess.Popen(
            [*command, "--node-id", str(self.node_id), *self._options],
            env={**inherited, **self._variables, variable_of("join"): redis_url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C in a terminal reaches only the tests, which stop the broker last
        )

    def wait_ready(self) -> None:
        """Wait until clients are accepted. Raises KorvetBrokerError."""
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            line = self._read_line(output.fileno())
        if not line:
            status = self._process.wait(_STOP_TIMEOUT_S)
            raise KorvetBrokerError(
                f"the broker ended with status {status} while starting{log_tail(self._log)}"
            )
        self.admin_url = str(json.loads(line)["admin"])

    def _read_line(self, fd: int) -> bytes:
        """The line that the broker writes when it is ready; empty if it ends before."""
        line = b""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not line.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                raise KorvetBrokerError(
                    f"the broker was not ready within {START_TIMEOUT_S:g} s{log_tail(self._log)}"
                )
            piece = os.read(fd, _PIECE_BYTES)
            if not piece:
                return b""
            line += piece
        return line

    def stop(self, *, abruptly: bool) -> None:
        """End the process with SIGTERM, or SIGKILL. Raises KorvetBrokerError if SIGTERM does not end it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGKILL if abruptly else signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise KorvetBrokerError(
                f"the broker did not stop within {_STOP_TIMEOUT_S:g} s and was killed{log_tail(self._log)}"
            ) from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
