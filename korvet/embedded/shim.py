"""Becomes the server process, bound to the life of the broker that started it.

Run as a program: `shim.py bind|watch OWNER_PID LOCK_FD PROGRAM ARGUMENT...`. It imports nothing of
korvet, so that it starts quickly. `bind` (Linux): the kernel ends the server when its parent ends,
however that happens (prctl PR_SET_PDEATHSIG, kept across exec). `watch` (elsewhere): the shim stays,
runs the server as its child and ends it when standard input, a pipe that the broker holds open, comes to
its end.

SIGTERM and not SIGKILL, so that the server writes out what it has in hand.
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
# How soon the end of the server is noticed where the shim stays; its owner polls on its own.
_CHILD_POLL_S = 0.2


def _bind_to_parent(owner: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != owner:
        # It ended before the kernel knew: nobody would tell us.
        sys.exit(_TERMINATED_STATUS)


def _watch(program: list[str], lock_fd: int) -> int:
    """Run the server until it ends or standard input does; its exit status."""
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
    """The command, to get SIGTERM when we end, however that happens (where the kernel can do that)."""
    if sys.platform != "linux":
        return command
    no_lock = "-1"
    return [sys.executable, "-I", "-S", __file__, "bind", str(os.getpid()), no_lock, *command]


def main(arguments: list[str]) -> int:
    """Become the server (`bind`, never returns) or look after it (`watch`)."""
    mode, owner, lock_fd, program = arguments[0], int(arguments[1]), int(arguments[2]), arguments[3:]
    if mode == "bind":
        _bind_to_parent(owner)
        os.execv(program[0], program)
    return _watch(program, lock_fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
