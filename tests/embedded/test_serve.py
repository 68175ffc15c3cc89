"""`korvet serve` with its embedded server: readiness, stop, a killed server, a folder in use."""

import json
import os
import signal
import struct
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from korvet.cli import config_requests
from korvet.cli.client import ClientError, Cluster
from korvet.cli.config_requests import ResourceType
from korvet.cli.topic_requests import create_topic
from tests.embedded.folders import add, begin, rewrite
from tests.support.polling import until
from tests.support.ports import has_ipv6
from tests.support.processes import alive, run
from tests.support.servers import KorvetServer
from tests.support.wire import RawConnection

TIMEOUT_S = 30


@pytest.fixture
def server() -> Iterator[KorvetServer]:
    with KorvetServer() as server:
        yield server


def topics(server: KorvetServer) -> list[str] | None:
    """Returns the names of all topics that aren't internal; None while the broker doesn't answer."""
    try:
        with Cluster(server.bootstrap, timeout_s=TIMEOUT_S) as cluster:
            return [str(topic.name) for topic in cluster.metadata().topics if not topic.is_internal]
    except ClientError:
        return None


def test_ready_then_served_then_ended_in_order(server: KorvetServer) -> None:
    assert f"korvet is ready on {server.bootstrap} (data in {server.data_dir})" in server.tail()
    with Cluster(server.bootstrap) as cluster:
        assert create_topic(cluster, "kept", 2, {}) == 2
    store = server.store_pid()
    assert server.process.terminate() == 0
    assert not alive(store)
    server.restart()
    assert topics(server) == ["kept"]


def test_dense_offsets_are_for_new_topics(server: KorvetServer) -> None:
    def assignment(cluster: Cluster, name: str) -> str | None:
        configs = config_requests.describe(cluster, ResourceType.TOPIC, name)
        return {config.name: config.value for config in configs}["offset.assignment"]

    with Cluster(server.bootstrap) as cluster:
        create_topic(cluster, "old", 1, {})
    assert server.process.terminate() == 0
    server.options.append("--dense")
    server.restart()
    with Cluster(server.bootstrap) as cluster:
        create_topic(cluster, "new", 1, {})
        assert [assignment(cluster, name) for name in ("old", "new")] == ["clock", "dense"]


# The settings of a broker that listens on every address, with PORT for its port.
ON_EVERY_ADDRESS = {
    "flag": (["--listen", "[::]:PORT"], {}),
    "listeners": (["--set", "listeners=INTERNAL://[::]:PORT"], {}),
    "variable": ([], {"KORVET_LISTENERS": "INTERNAL://[::]:PORT"}),
    "processes": (["--listen", "[::]:PORT", "--processes", "2"], {}),
}


def advertised(cluster: Cluster, expected: set[tuple[str, int]]) -> bool:
    """Whether the Metadata lists exactly the expected brokers."""
    return {(each.host, each.port) for each in cluster.metadata().brokers} == expected


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("name", ON_EVERY_ADDRESS)
def test_every_address_is_served_and_one_that_can_be_reached_is_advertised(name: str) -> None:
    options, environ = ON_EVERY_ADDRESS[name]
    server = KorvetServer("--set", "listener.security.protocol.map=INTERNAL:PLAINTEXT")
    port = str(server.port)
    server.options += [option.replace("PORT", port) for option in options]
    server.environ = {key: value.replace("PORT", port) for key, value in environ.items()}
    try:
        server.start()
        expected = {("localhost", server.port + number) for number in range(2 if name == "processes" else 1)}
        for host in ("127.0.0.1", "[::1]"):
            with Cluster(f"{host}:{port}", timeout_s=TIMEOUT_S) as cluster:
                # The first broker may be ready before it knows the second one.
                until(partial(advertised, cluster, expected), TIMEOUT_S, f"{expected} are advertised")
        assert f"tells them to connect to localhost:{port}" in server.tail()
    finally:
        server.discard()


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_an_address_that_nobody_can_connect_to_is_not_advertised(host: str, tmp_path: Path) -> None:
    said = refusal("127.0.0.1:0", tmp_path, "--advertise", f"{host}:9092")
    assert f"clients cannot connect to the nonroutable meta-address {host.strip('[]')}" in said
    named = [
        "--set",
        "listeners=PLAINTEXT://127.0.0.1:0",
        "--set",
        f"advertised.listeners=PLAINTEXT://{host}:9",
    ]
    assert "nonroutable meta-address" in refusal("127.0.0.1:0", tmp_path, *named)


@pytest.mark.short
def test_a_killed_store_is_restarted(server: KorvetServer) -> None:
    with Cluster(server.bootstrap) as cluster:
        create_topic(cluster, "before", 1, {})
    server.kill_store()
    until(lambda: "the embedded server runs again" in server.tail(), TIMEOUT_S, "the server runs again")

    def create_another() -> bool:
        try:
            with Cluster(server.bootstrap, timeout_s=TIMEOUT_S) as cluster:
                create_topic(cluster, "after", 1, {})
        except ClientError:
            return "after" in (topics(server) or [])
        return True

    until(create_another, TIMEOUT_S, "the broker serves again")
    assert sorted(topics(server) or []) == ["after", "before"]


def refusal(listen: str, data_dir: Path, *options: str) -> str:
    """Returns the message of another `korvet serve` that can't start."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("KORVET_")}
    command = [sys.executable, "-m", "korvet", "serve", "--listen", listen, "--data-dir", str(data_dir)]
    command += options
    done = run(command, TIMEOUT_S, env=environ)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "Traceback" not in said
    return said


def test_a_folder_or_a_port_in_use_is_refused(server: KorvetServer, tmp_path: Path) -> None:
    assert f"is in use by process {server.process.pid}" in refusal("127.0.0.1:0", server.data_dir)
    assert f"Error: cannot listen on {server.bootstrap}" in refusal(server.bootstrap, tmp_path)


@pytest.mark.usefixtures("module")
def test_a_folder_that_needs_the_module_is_refused_without_and_served_after_a_rewrite(
    server: KorvetServer,
) -> None:
    assert "with korvet's server module" in server.tail()
    with Cluster(server.bootstrap) as cluster:
        create_topic(cluster, "kept", 1, {})
    with redis.Redis(unix_socket_path=str(server.data_dir / "server.sock")) as client:
        begin(client, "s")
        add(client, "s", 1)
    assert server.stop() == 0
    said = refusal(server.bootstrap, server.data_dir, "--set", "embedded.module=off")
    assert said.startswith("Error: the append-only file in")
    assert f"`korvet rewrite --data-dir {server.data_dir}`" in said
    assert rewrite(server.data_dir).exit_code == 0
    server.options += ["--set", "embedded.module=off"]
    server.restart()
    assert topics(server) == ["kept"]
    assert "without korvet's server module" in server.tail()


# Runs `korvet serve`, and sends itself SIGTERM when it imports the module that is named first.
EARLY_SIGNAL = """
import os, signal, sys
from korvet import cli

early = sys.argv.pop(1)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == early:
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Finder())
cli.main()
"""


@pytest.mark.parametrize("moment", ["korvet.cli.app", "korvet.cli.serve", "korvet.broker"])
def test_a_signal_at_the_start_is_an_orderly_stop(moment: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", EARLY_SIGNAL, moment, "serve", "--listen", "127.0.0.1:0"]
    done = run([*command, "--data-dir", str(tmp_path / "data")], TIMEOUT_S)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert b"Traceback" not in done.stderr


def test_an_interrupt_ends_it_too(server: KorvetServer) -> None:
    store = server.store_pid()
    os.kill(server.process.pid, signal.SIGINT)
    until(lambda: not server.process.running, TIMEOUT_S, "korvet has ended")
    assert server.process.exit_code == 0
    assert not alive(store)


def test_every_line_of_a_json_log_is_an_object(server: KorvetServer) -> None:
    server.stop()
    server.options += ["--set", "log.format=json"]
    server.restart()
    # A name that is too long with U+FFFD, and one that forges a line: the broker closes both connections.
    for name in (b"\xff\n" * 15_000, b'a\n{"level": "ERROR"}\n'):
        with RawConnection(server.host, server.port, TIMEOUT_S) as raw:
            raw.send(struct.pack(">hhih", 3, 12, 1, len(name)) + name + b"\x00\xff")
            assert raw.closed_by_server()
    assert "in use by process" in refusal(
        "127.0.0.1:0", server.data_dir, "--set", "log.format=json", "--node-id", "5"
    )
    server.stop()
    text = server.log.read_text()
    lines = text[text.rindex("korvet is ready on") :].splitlines()[1:]
    found = [json.loads(line) for line in lines]
    assert "stopping" in {line["message"] for line in found}
    assert {line["node_id"] for line in found} == {1}
    assert sum(line["logger"] == "korvet.server.connection" for line in found) == 2
