"""Runs the server process and ends it with the broker that started it.

Usage: `shim.py bind|watch OWNER_PID LOCK_FD PROGRAM ARGUMENT...`. It imports nothing of korvet, so it starts
fast.

- `bind` (Linux): this process becomes the server. The kernel ends it when its parent ends, even by kill -9
  (prctl PR_SET_PDEATHSIG, kept across exec).
- `watch` (elsewhere): this process runs the server as its child. It ends the server at the end of standard
  input, a pipe that the broker keeps open.

The signal is SIGTERM, not SIGKILL, so that the server writes its pending data.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1
_TERMINATED_STATUS = 143
# Interval at which `watch` checks for the server's exit. The owner polls too.
_CHILD_POLL_S = 0.2


def _bind_to_parent(owner: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != owner:
        # The owner ended before prctl: the kernel sends no signal then.
        sys.exit(_TERMINATED_STATUS)


def _watch(program: list[str], lock_fd: int) -> int:
    """Run the server until it exits or standard input ends. Returns its exit status."""
    with subprocess.Popen(program, stdin=subprocess.DEVNULL, pass_fds=[lock_fd]) as server:

        def end(signum: int, frame: FrameType | None) -> None:
            server.terminate()

        signal.signal(signal.SIGTERM, end)
        while server.poll() is None:
            readable, _, _ = select.select([0], [], [], _CHILD_POLL_S)
            if readable and not os.read(0, 4096):
                server.terminate()
                server.wait()
        return server.returncode


def bound(command: list[str]) -> list[str]:
    """Returns the command with a shim, so that it gets SIGTERM when we end, even by kill -9 (Linux)."""
    if sys.platform != "linux":
        return command
    no_lock = "-1"
    return [sys.executable, "-I", "-S", __file__, "bind", str(os.getpid()), no_lock, *command]


def main(arguments: list[str]) -> int:
    """Become the server (`bind`, never returns) or supervise it (`watch`)."""
    mode, owner, lock_fd, program = arguments[0], int(arguments[1]), int(arguments[2]), arguments[3:]
    if mode == "bind":
        _bind_to_parent(owner)
        os.execv(program[0], program)
    return _watch(program, lock_fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
