"""The server under test: korvet as a process of its own, or an Apache Kafka that runs already."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import redis

from korvet.embedded.sockets import socket_of
from tests.support.module import choice
from tests.support.polling import until
from tests.support.ports import accepts, free_port
from tests.support.processes import Child, alive, bound_to_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START_TIMEOUT_S = 40.0
KAFKA_VARIABLE = "KORVET_TEST_KAFKA"
# The module that is run.
BROKER = ("korvet",)


@dataclass(frozen=True, slots=True)
class Broker:
    """Where Kafka clients connect. `korvet` is None if the server is a real Kafka."""

    host: str
    port: int
    korvet: KorvetServer | None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"


class KorvetServer:
    """`korvet serve` with an embedded Valkey in a data folder of its own.

    The port and the folder stay the same across a restart, so that clients find the server again.
    """

    def __init__(
        self,
        *options: str,
        advertise: str | None = None,
        redis_url: str | None = None,
        environ: Mapping[str, str] | None = None,
        program: Sequence[str] = BROKER,
        prefix: Sequence[str] = (),
    ) -> None:
        """`program`: the module that is run, with its first arguments. `prefix`: a command that runs it."""
        self.environ = dict(environ or {})
        self._program = program
        self._prefix = prefix
        self.data_dir = Path(tempfile.mkdtemp(prefix="korvet-test-"))
        self.log = self.data_dir.with_suffix(".log")
        self.host = "127.0.0.1"
        self.port = free_port()
        self.options = [*options]
        if advertise is not None:
            self.options += ["--advertise", advertise]
        if redis_url is not None:
            self.options += ["--redis", redis_url]
        self._child: Child | None = None
        self._redis: redis.Redis | None = None
        self._redis_url = redis_url

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def process(self) -> Child:
        assert self._child is not None, "the server was not started"
        return self._child

    def spawn(self) -> None:
        """Start the process; `wait_ready` waits for it."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("KORVET_")}
        env |= self.environ
        python = [*bound_to_us(), *self._prefix, sys.executable]
        command = [*python, "-m", *self._program, "serve", "--listen", self.bootstrap]
        command += ["--set", "embedded.module=off"] if choice() == "none" else []
        self._child = Child([*command, "--data-dir", str(self.data_dir), *self.options], self.log, env)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the port accepts connections: korvet opens it only when it can serve."""

        def ready() -> bool:
            if not self.process.running:
                raise AssertionError(f"korvet ended with {self.process.exit_code}:\n{self.tail()}")
            return accepts(self.host, self.port)

        until(ready, timeout_s, f"korvet accepts connections; its log:\n{self.tail()}")

    def start(self) -> Self:
        self.spawn()
        self.wait_ready()
        return self

    def __enter__(self) -> Self:
        """Start it; at the end of the block everything is discarded."""
        try:
            return self.start()
        except BaseException:
            self.discard()
            raise

    def __exit__(self, *_: object) -> None:
        self.discard()

    def tail(self, characters: int = 4000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def socket_path(self) -> Path:
        """The unix socket of the embedded Valkey, as its process reports it."""

        def found() -> Path | None:
            path = socket_of(self.data_dir)
            return path if path is not None and path.exists() else None

        return until(found, 10, "the embedded server's socket")

    @property
    def redis(self) -> redis.Redis:
        """A plain Redis client of the store (bytes in, bytes out), like a native application's."""
        if self._redis is None:
            if self._redis_url is not None:
                self._redis = redis.Redis.from_url(self._redis_url, decode_responses=False)
            else:
                self._redis = redis.Redis(unix_socket_path=str(self.socket_path()), decode_responses=False)
        return self._redis

    def raw(self, *arguments: str | bytes | int) -> Any:
        """A command's raw reply: redis-py would turn an entry's fields into a dictionary."""
        connection = self.redis.connection_pool.get_connection()
        try:
            connection.send_command(*arguments)
            return connection.read_response()
        finally:
            self.redis.connection_pool.release(connection)

    def store_pid(self) -> int:
        """Process id of the embedded Valkey."""
        return int(cast("dict[str, Any]", self.redis.info("server"))["process_id"])

    def kill(self) -> None:
        """kill -9 of korvet; the embedded server must follow by itself."""
        self.process.kill()

    def kill_store(self) -> None:
        """kill -9 of the embedded Valkey alone."""
        pid = self.store_pid()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), 10, "the killed Valkey is gone")

    def kill_both(self) -> None:
        """kill -9 of both, the store first, without a pause."""
        pid = self.store_pid()
        os.kill(pid, signal.SIGKILL)
        self.process.kill()
        until(lambda: not alive(pid), 10, "the killed Valkey is gone")

    def restart(self) -> None:
        """Start again after an end, with the same folder and port."""
        self.drop_redis()
        self.start()

    def drop_redis(self) -> None:
        if self._redis is not None:
            self._redis.close()
            self._redis = None

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.drop_redis()
        return self.process.terminate()

    def discard(self) -> None:
        """End everything, and delete the folder."""
        self.drop_redis()
        if self._child is not None:
            self._child.kill()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        self.log.unlink(missing_ok=True)
