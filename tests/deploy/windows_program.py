"""Runs command lines of `korvet` as on Windows: without what Python and the packages lack there.

Modules of others are imported before, because their form for Linux would not load afterwards. Prints a JSON
object: of each command line its exit status and output.
"""

from __future__ import annotations

import importlib
import importlib.abc
import json
import os
import select
import shlex
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from click.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_OTHERS: Final = """
    asyncio concurrent.futures importlib.metadata importlib.resources logging.handlers multiprocessing pathlib
    platform ssl subprocess tempfile urllib.request hiredis msgspec redis.asyncio rich.console rich.live
    rich.progress rich.table
"""
_ABSENT_MODULES: Final = "curses fcntl grp posix pty pwd resource syslog termios tty uvloop"
_ABSENT_NAMES: Final = {
    os: """
        O_CLOEXEC O_DIRECTORY O_NOFOLLOW chown fchmod fork forkpty getegid geteuid getgid getloadavg getpgid
        getuid killpg mkfifo pread pwrite register_at_fork sched_getaffinity sched_yield setsid statvfs
        sysconf uname
    """,
    signal: "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGPROF SIGQUIT SIGUSR1 SIGUSR2 setitimer",
    socket: "AF_UNIX MSG_DONTWAIT SO_REUSEPORT TCP_USER_TIMEOUT",
    select: "epoll poll",
}


class _Absent(importlib.abc.MetaPathFinder):
    """Finds none of the modules that Windows lacks."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in _ABSENT_MODULES.split():
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def _become_windows() -> None:
    for name in _OTHERS.split():
        importlib.import_module(name)
    for name in _ABSENT_MODULES.split():
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Absent())
    module: Any
    for module, names in _ABSENT_NAMES.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = "win32"


def main(lines: list[str]) -> None:
    """Run the command lines one by one."""
    _become_windows()
    from korvet.cli.app import korvet  # noqa: PLC0415  # as everything of korvet, after the change

    results = {}
    for line in lines:
        done = CliRunner().invoke(korvet, shlex.split(line), prog_name="korvet")
        results[line] = (done.exit_code, done.output or repr(done.exception))
    print(json.dumps(results))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
