"""Data servers and sentinels behind gates: each one is known to all others by its gate's address."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from korvet.embedded.allocator import server_environment
from korvet.embedded.binary import identify
from tests.support.module import module_options
from tests.support.ports import free_port
from tests.support.processes import bound_to_us
from tests.support.redis_server import await_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.network import Gate, Network

COMMAND_TIMEOUT_S: Final = 5.0
# A second of silence is common on a busy machine, and sentinels would replace a primary that no fault hit.
DOWN_AFTER_MS: Final = 2_000
# Sentinels find each other by greetings, and demote a former primary after four of them. A sentinel that did
# not run for its trigger does nothing for 30 s, and the machine is busy.
SENTINEL_TIMES_MS: Final = {
    "ping-period": 300,
    "publish-period": 300,
    "info-period": 1_000,
    "tilt-trigger": 60_000,
}


class Process:
    """A server program on a port of its own, with a gate. It keeps both across restarts."""

    def __init__(self, name: str, program: str, folder: Path, network: Network) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        self.port = free_port()
        self.gate: Gate = network.open(lambda _: (name, self.port))
        self._program = program
        self._environ = server_environment(identify(Path(program)), os.environ)
        self._child: subprocess.Popen[bytes] | None = None
        self._client: Any = None

    @property
    def pid(self) -> int | None:
        """The process ID while the server runs."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    @property
    def client(self) -> Any:
        """A client that connects directly. It does not repeat commands."""
        if self._client is None:
            self._client = redis.Redis(
                port=self.port,
                socket_timeout=COMMAND_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
            )
        return self._client

    def spawn(self, arguments: Sequence[str]) -> None:
        """Start the program, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._child = subprocess.Popen(
                [*bound_to_us(), self._program, *arguments],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        await_answer(self._child, self.client, self.tail)

    def tail(self) -> str:
        """The end of its log."""
        return (self.folder / "log").read_text(errors="replace")[-2_000:]

    def pause(self) -> None:
        """SIGSTOP."""
        assert self._child is not None
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._child is not None
        self._child.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._client is not None:
            self._client.close()
            self._client = None


class DataServer(Process):
    """A Valkey, with korvet's module or without."""

    def __init__(
        self,
        name: str,
        program: str,
        folder: Path,
        network: Network,
        options: Sequence[str] = (),
        *,
        module: bool = True,
    ) -> None:
        super().__init__(name, program, folder, network)
        self.data = self.folder
        """The folder of its append-only file."""
        self._options = (
            *("--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
            *("--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(self.gate.port)),
            *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", "--repl-timeout", "10"),
            *("--repl-backlog-size", "64mb"),
            *(module_options(program) if module else ()),
            *options,
        )

    def start(self, primary: Process | None = None, *options: str) -> None:
        """Start as a primary, or as a replica of another server."""
        follow = () if primary is None else ("--replicaof", f"127.0.0.1 {primary.gate.port}")
        self.spawn([*self._options, "--dir", str(self.data), *follow, *options])

    @property
    def is_primary(self) -> bool:
        """Whether the server runs and takes itself for a primary."""
        with contextlib.suppress(redis.RedisError):
            return self.pid is not None and self.client.info("replication")["role"] == "master"
        return False

    @property
    def written(self) -> int:
        """The offset in the replication stream up to which it has data."""
        facts = self.client.info("replication")
        return int(facts["master_repl_offset" if facts["role"] == "master" else "slave_repl_offset"])

    def follows(self, primary: DataServer) -> bool:
        """Whether it is a replica with a complete copy of that server."""
        with contextlib.suppress(redis.RedisError):
            facts = self.client.info("replication")
            return bool(
                self.pid is not None
                and facts["role"] == "slave"
                and int(facts["master_port"]) == primary.gate.port
                and facts["master_link_status"] == "up"
            )
        return False


class Sentinel(Process):
    """A sentinel that watches one primary."""

    def start(self, primary: DataServer, service: str, quorum: int) -> None:
        """Start with a new configuration."""
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            "sentinel announce-ip 127.0.0.1",
            f"sentinel announce-port {self.gate.port}",
            f"sentinel monitor {service} 127.0.0.1 {primary.gate.port} {quorum}",
            f"sentinel down-after-milliseconds {service} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {service} 2000",
        )
        config = self.folder / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        self.spawn([str(config), "--sentinel"])
        for name, milliseconds in SENTINEL_TIMES_MS.items():
            self.client.execute_command("SENTINEL", "DEBUG", name, milliseconds)
