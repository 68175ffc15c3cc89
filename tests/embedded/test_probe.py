"""`korvet ready` beside running brokers, whatever they listen on."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.certificates import Authority
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAIT_S = 30


def ready(*arguments: str, **environ: str) -> tuple[int, str]:
    """The exit status, and what was written."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("KORVET_")}
    command = [sys.executable, "-m", "korvet", "ready", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=own | environ)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def serve() -> Iterator[Callable[..., KorvetServer]]:
    made: list[KorvetServer] = []

    def spawn(*options: str) -> KorvetServer:
        made.append(KorvetServer(*options))
        made[-1].spawn()
        return made[-1]

    yield spawn
    for server in made:
        server.discard()


def test_a_broker_without_an_admin_endpoint(serve: Callable[..., KorvetServer]) -> None:
    server, other = serve(), serve()
    assert ready("--listen", server.bootstrap, "--wait", str(WAIT_S)) == (0, "ready\n")
    assert ready("--data-dir", str(server.data_dir), "--wait", str(WAIT_S)) == (0, "ready\n")
    assert ready("--wait", str(WAIT_S), KORVET_LISTEN=other.bootstrap) == (0, "ready\n")
    status, text = ready()
    assert (status, "several brokers run here" in text) == (2, True)
    store = server.store_pid()
    os.kill(store, signal.SIGSTOP)
    try:
        status, text = until(
            lambda: (found := ready("--listen", server.bootstrap))[0] and found, WAIT_S, "it is not ready"
        )
    finally:
        os.kill(store, signal.SIGCONT)
    assert status == 1
    assert text.startswith("not ready: ")
    assert "redis: " in text
    assert text.count("\n") == 1
    assert ready("--listen", other.bootstrap) == (0, "ready\n")
    server.process.kill()
    status, text = ready("--listen", server.bootstrap)
    assert (status, text.count("\n")) == (1, 1)


def test_listeners_with_tls_and_passwords(serve: Callable[..., KorvetServer], tmp_path: Path) -> None:
    """Neither matters. An admin endpoint with TLS is asked, if the settings name one."""
    keystore = Authority(tmp_path).issue("broker", "/CN=broker")
    port, admin = free_port(), free_port()
    file = tmp_path / "korvet.toml"
    file.write_text(
        f'listeners = "SASL_SSL://127.0.0.1:{port}"\n'
        f'"ssl.keystore.location" = "{keystore}"\n'
        '"sasl.enabled.mechanisms" = "SCRAM-SHA-256"\n'
        f'"admin.listen" = "[::1]:{admin}"\n'
        f'"admin.ssl.keystore.location" = "{keystore}"\n'
        '"admin.token" = "secret"\n'
    )
    serve("--config", str(file))
    assert ready("--config", str(file), "--wait", str(WAIT_S)) == (0, "ready\n")
    assert ready("--admin", f"https://[::1]:{admin}") == (0, "ready\n")
    assert ready("--listen", f"127.0.0.1:{port}") == (0, "ready\n")
    assert ready("--admin", f"[::1]:{admin}")[0] == 1, "it speaks TLS"


@pytest.mark.parametrize("with_endpoint", [False, True])
def test_all_processes_must_be_ready(serve: Callable[..., KorvetServer], with_endpoint: bool) -> None:
    port = free_port()
    admin = ["--set", f"admin.listen=127.0.0.1:{port}"] if with_endpoint else []
    server = serve("--processes", "2", *admin)
    environ = {"KORVET_LISTEN": server.bootstrap}
    if with_endpoint:
        environ = {"KORVET_ADMIN_LISTEN": f"127.0.0.1:{port}"}
    assert ready("--wait", str(WAIT_S), **environ) == (0, "ready\n")
    text = server.tail(100_000)
    second = int(text.partition("node 2 is process ")[2].split()[0])
    os.kill(second, signal.SIGSTOP)
    try:
        status, text = ready(**environ)
    finally:
        os.kill(second, signal.SIGCONT)
    assert (status, text) == (1, "not ready: node 2: serving: the broker does not answer\n")


def test_a_probe_costs_little(serve: Callable[..., KorvetServer]) -> None:
    """User and system time beyond that of an empty Python."""
    server = serve()
    server.wait_ready()

    def cpu_ms(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    probe = "-m", "korvet", "ready", "--listen", server.bootstrap
    # The least of several runs: other processes can only add.
    assert min(cpu_ms(*probe) - cpu_ms("-c", "pass") for _ in range(5)) < 60
