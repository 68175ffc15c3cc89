"""Runs the server process and ends it with the process that started it, its owner.

Usage: `shim.py bind|watch OWNER_PID SIGNAL LOCK_FD PROGRAM ARGUMENT...`. It imports nothing of korvet, so it
starts fast. A LOCK_FD of -1 stands for none.

- `bind` (Linux): this process becomes the server. The kernel sends it the signal when the thread ends that
  started it, even by kill -9 (prctl PR_SET_PDEATHSIG, kept across exec).
- `watch` (elsewhere, and for owners that start servers in threads): this process runs the server as its
  child. It sends the server the signal when its own parent is no longer the owner, or when it gets SIGTERM.

The signal is SIGTERM for a server that has data to write, else SIGKILL.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

_PR_SET_PDEATHSIG = 1
_TERMINATED_STATUS = 143
# Interval of looks whether the owner and the server still run. The owner polls too.
_POLL_S = 0.1


class _Asked(Exception):
    """SIGTERM arrived during a pause."""


def _bind_to_parent(owner: int, number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != owner:
        # The owner ended before prctl: the kernel sends no signal then.
        sys.exit(_TERMINATED_STATUS)


def _watch(program: list[str], owner: int, number: int, lock_fd: int) -> int:
    """Run the server until it exits or has to end. Returns its exit status."""
    watcher = os.getpid()
    asked = waiting = False

    def bind() -> None:
        # This process may be killed, too.
        if sys.platform == "linux":
            _bind_to_parent(watcher, signal.SIGKILL)

    def ask(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if waiting:
            raise _Asked

    signal.signal(signal.SIGTERM, ask)
    passed = [lock_fd] if lock_fd >= 0 else []
    with subprocess.Popen(program, pass_fds=passed, preexec_fn=bind) as server:  # noqa: PLW1509  # no threads
        try:
            waiting = True
            while not asked and server.poll() is None and os.getppid() == owner:
                time.sleep(_POLL_S)
        except _Asked:
            pass
        waiting = False
        server.send_signal(number)
        return server.wait()


def bound(command: list[str]) -> list[str]:
    """Returns the command with a shim, so that it gets SIGTERM when we end, even by kill -9 (Linux)."""
    if sys.platform != "linux":
        return command
    return shimmed("bind", signal.SIGTERM, -1, command)


def shimmed(mode: str, number: int, lock_fd: int, command: list[str]) -> list[str]:
    """Returns the command with a shim, of which this process is the owner."""
    arguments = [mode, str(os.getpid()), str(int(number)), str(lock_fd)]
    return [sys.executable, "-I", "-S", __file__, *arguments, *command]


def main(arguments: list[str]) -> int:
    """Become the server (`bind`, never returns) or supervise it (`watch`)."""
    mode, program = arguments[0], arguments[4:]
    owner, number, lock_fd = map(int, arguments[1:4])
    if mode == "bind":
        _bind_to_parent(owner, number)
        os.execv(program[0], program)
    return _watch(program, owner, number, lock_fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
