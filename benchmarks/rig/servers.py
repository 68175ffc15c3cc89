"""The measured servers: a Redis or Valkey without persistence, korvet on it, and Apache Kafka."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import redis
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.rig.measuring import Meter
from benchmarks.rig.records import LAYOUTS
from korvet.embedded.allocator import server_environment
from korvet.embedded.binary import find_server, identify
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.redis_server import await_answer
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Limits how far the offsets of a run may be ahead of the clock. A partition takes 1,024 records per ms in the
# long run; the runs measure what the servers could do, which is more.
LEAD_MAX_MS = 60_000
_serial = itertools.count(1)


class Store:
    """A Redis or Valkey on a unix socket and a TCP port, without persistence."""

    def __init__(self, program: str | None = None, module: Path | None = None) -> None:
        """`program`: a server program other than korvet's embedded one; `module`: a module to load."""
        self._folder = Path(tempfile.mkdtemp(prefix="korvet-bench-"))
        socket = self._folder / "s"
        self.address = f"unix:{socket}"
        self.url = f"unix://{socket}"
        binary = identify(Path(program)) if program else find_server()
        environ = server_environment(binary, os.environ)
        self.program = str(binary.path)
        self._allocator = Path(environ.get("LD_PRELOAD") or binary.allocator).name
        self.port = port = free_port()
        self.tcp_url = f"redis://127.0.0.1:{port}"
        options = [
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            str(socket),
            "--save",
            "",
            "--dir",
            str(self._folder),
            *(("--loadmodule", str(module)) if module is not None else ()),
        ]
        self._process = subprocess.Popen([self.program, *options], env=environ, stdout=subprocess.DEVNULL)
        self.client: Any = redis.Redis(unix_socket_path=str(socket), socket_timeout=60)
        await_answer(self._process, self.client)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def version(self) -> str:
        """The server's version and allocator, for example "Valkey 9.1.2 with libjemalloc.so.2"."""
        info = self.client.info("server")
        name = "Valkey" if "valkey_version" in info else "Redis"
        return f"{name} {info.get('valkey_version') or info['redis_version']} with {self._allocator}"

    def cpu_seconds(self) -> float:
        """Returns the CPU time of the server's process so far, all threads (INFO cpu)."""
        info = self.client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    @contextlib.contextmanager
    def configured(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Change settings for the length of a block. An append-only file is complete when it begins."""
        before = {name: self.client.config_get(name)[name] for name in settings}
        try:
            for name, value in settings.items():
                self.client.config_set(name, value)
            self.settle()
            yield
        finally:
            for name, value in reversed(before.items()):
                self.client.config_set(name, value)

    def free(self, *keys: str) -> None:
        """Delete keys, and wait until their memory is freed, which would cost CPU time of the next
        measurement.
        """
        self.client.unlink(*keys)
        self.settle()

    def settle(self) -> None:
        """Wait until deleted values are freed."""

        def freed() -> bool:
            info = self.client.info("memory")
            rewriting = self.client.info("persistence")["aof_rewrite_in_progress"]
            return int(info["lazyfree_pending_objects"]) == 0 and not rewriting

        until(freed, 60, "deleted keys are freed, and no rewrite is under way")

    def close(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait(20)
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(slots=True)
class Cluster:
    """A server of Kafka's protocol: its address, its processes, and the configs of its new topics."""

    bootstrap: str
    pids: dict[str, int]
    store: Store | None = None
    keyspace: str = "korvet"
    configs: Mapping[str, str] = field(default_factory=dict)

    def in_layout(self, layout: str) -> Cluster:
        """Returns the cluster with new topics in a storage.layout, which only korvet has."""
        return self if self.store is None else self.with_topics({"storage.layout": layout})

    def with_topics(self, configs: Mapping[str, str]) -> Cluster:
        """Returns the cluster with other configs of new topics."""
        return replace(self, configs=configs)

    @property
    def entries_are_batches(self) -> bool:
        """Whether an entry of a new topic's stream is a record batch instead of a record."""
        return self.configs.get("storage.layout") == LAYOUTS[1]

    def stream(self, topic: str) -> str:
        """The stream of the first partition."""
        return f"{self.keyspace}:{topic}:0"

    def new_topic(self, partitions: int = 1) -> str:
        """Create a topic, and wait until it is usable."""
        name = f"bench-{os.getpid()}-{next(_serial)}"
        admin = self._admin()
        topic = NewTopic(name, partitions, 1, config=dict(self.configs))
        admin.create_topics([topic])[name].result(60)
        until(lambda: name in admin.list_topics(timeout=10).topics, 20, f"{name} exists")
        return name

    def drop_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        admin = self._admin()
        admin.delete_topics([name])[name].result(60)
        if self.store is not None:
            self.store.settle()

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 4})

    def meter(self) -> Meter:
        """Returns a CPU meter of the server's processes."""
        return Meter(self.pids)


class Korvet:
    """`korvet serve` on a Redis, with the default settings of a user, except for the clock's limit."""

    def __init__(
        self,
        store: Store,
        keyspace: str = "korvet",
        url: str | None = None,
        profile: Path | None = None,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """`url`: of Redis, if not its unix socket; `profile`: file of the broker's profile; `settings`:
        overrides of the defaults.
        """
        options = ["--log-level", "warning"]
        for name, value in {"keyspace": keyspace, "append.lead.max.ms": LEAD_MAX_MS, **settings}.items():
            options += ["--set", f"{name}={value}"]
        if profile is not None:
            options += ["--profile", str(profile)]
        self.server = KorvetServer(*options, redis_url=url or store.url)
        self.server.start()
        pids = {"broker": self.server.process.pid, "redis": store.pid}
        self.cluster = Cluster(self.server.bootstrap, pids, store, keyspace)

    def close(self) -> None:
        self.server.stop()
        self.server.discard()


def rest(seconds: float = 0.3) -> None:
    """Wait for the background work of a run before the next one."""
    time.sleep(seconds)
