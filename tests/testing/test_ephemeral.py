"""`korvet serve --ephemeral`: what it offers, refuses and leaves; with whom it ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import closing
from typing import IO, TYPE_CHECKING

import pytest
import redis
from confluent_kafka import Consumer, Producer

from korvet.cli.client import Cluster
from korvet.cli.topic_requests import create_topic
from korvet.embedded.ephemeral import EphemeralServer
from korvet.embedded.errors import EmbeddedServerError
from korvet.testing import KorvetBroker, KorvetBrokerError
from tests.support.polling import patient, until
from tests.support.processes import alive, run
from tests.testing.conftest import COMMAND, WAIT_S, Ephemeral, bare_environment, descendants, until_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def topics(bootstrap: str) -> set[str]:
    """The names of all topics that aren't internal."""
    with Cluster(bootstrap, timeout_s=WAIT_S) as cluster:
        return {str(topic.name) for topic in cluster.metadata().topics if not topic.is_internal}


def read_first(bootstrap: str, topic: str) -> tuple[int, bytes]:
    """Offset and value of a topic's first record, read as a group."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert isinstance(value, bytes)
        return offset, value
    finally:
        consumer.close()


@pytest.mark.short
def test_one_line_says_where_a_broker_for_tests_is(serve: Callable[..., Ephemeral]) -> None:
    broker = serve()
    assert set(broker.line) == {"bootstrap_servers", "redis", "admin", "pid"}
    assert broker.line["pid"] == broker.process.pid
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("created-by-use", b"first")
    assert producer.flush(WAIT_S) == 0
    assert read_first(broker.bootstrap, "created-by-use") == (0, b"first")
    with redis.Redis.from_url(broker.redis) as client:
        assert client.ping()
        with pytest.raises(redis.ResponseError):
            client.save()
    with urllib.request.urlopen(f"{broker.line['admin']}/readyz", timeout=WAIT_S) as answer:
        assert answer.status == 200
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(WAIT_S) == 0
    until_ended(broker.pids)


@pytest.mark.short
def test_redis_needs_the_password_of_the_line_which_no_argument_shows(
    serve: Callable[..., Ephemeral],
) -> None:
    broker = serve()
    password = broker.redis.partition("://:")[2].partition("@")[0]
    without = redis.Redis.from_url(broker.redis.replace(f":{password}@", ""))
    with without as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    for pid in broker.pids:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as arguments:
            assert password not in arguments.read()


def test_settings_replace_those_for_tests(serve: Callable[..., Ephemeral]) -> None:
    broker = serve("--set", "log.offset.assignment=clock", KORVET_ADMIN_LISTEN="127.0.0.1:0")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("clocked", b"first")
    assert producer.flush(WAIT_S) == 0
    offset, _ = read_first(broker.bootstrap, "clocked")
    assert offset > 1 << 50


def test_further_brokers_share_the_data_of_the_first(serve: Callable[..., Ephemeral]) -> None:
    first = serve()
    second = serve("--node-id", "2", KORVET_JOIN=first.redis)
    assert second.redis == first.redis

    def brokers() -> bool:
        with Cluster(first.bootstrap, timeout_s=WAIT_S) as cluster:
            return {str(each) for each in cluster.brokers()} == {first.bootstrap, second.bootstrap}

    until(brokers, WAIT_S, "both brokers are known")
    with Cluster(first.bootstrap) as cluster:
        create_topic(cluster, "shared", 1, {})
    until(lambda: topics(second.bootstrap) == {"shared"}, WAIT_S, "the second broker knows the topic")
    # The second broker has nothing of its own.
    second.process.kill()
    second.process.wait(WAIT_S)
    assert topics(first.bootstrap) == {"shared"}


CONTRADICTIONS = {
    "--redis": ["--redis", "redis://127.0.0.1:1"],
    "--data-dir": ["--data-dir", "there"],
    "--processes": ["--processes", "3"],
    "--join of another host": ["--join", "redis://another.host:6379"],
    "--join without a port": ["--join", "redis://127.0.0.1"],
    "--join with another port": ["--join", "redis://127.0.0.1:port"],
    "--parent": ["--parent", "1"],
}


@pytest.mark.short
@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_what_contradicts_it_is_refused(name: str, scratch: Path) -> None:
    done = run([*COMMAND, *CONTRADICTIONS[name]], WAIT_S, env=bare_environment(scratch), cwd=scratch)
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (1, b""), said
    assert said.startswith("Error: ")
    assert "Traceback" not in said
    assert list(scratch.iterdir()) == []


def test_options_of_it_need_it(scratch: Path) -> None:
    done = run([*COMMAND[:-1], "--join", "redis://127.0.0.1:1"], WAIT_S, env=bare_environment(scratch))
    assert b"--join and --parent need --ephemeral" in done.stderr
    assert done.returncode == 2


# Programs that start a broker with the arguments after the first one, which is the file for its line.
STARTERS = {
    "a shell": ["/bin/sh", "-c", 'out=$1; shift; "$@" > "$out" & wait', "-"],
    # The thread that starts the broker ends long before its process.
    "a thread": [
        sys.executable,
        "-c",
        "import subprocess, sys, threading, time\n"
        "start = lambda: subprocess.Popen(sys.argv[2:], stdout=open(sys.argv[1], 'wb'))\n"
        "thread = threading.Thread(target=start)\n"
        "thread.start(); thread.join(); time.sleep(1000)",
    ],
}


@pytest.mark.short
@pytest.mark.parametrize("name", STARTERS)
def test_it_ends_with_a_killed_parent(name: str, scratch: Path, tmp_path: Path) -> None:
    line = tmp_path / "line.json"
    parent = subprocess.Popen(
        [*STARTERS[name], str(line), *COMMAND], cwd=scratch, env=bare_environment(scratch)
    )
    until(lambda: line.exists() and line.read_bytes().endswith(b"\n"), WAIT_S, "the broker is ready")
    pid = json.loads(line.read_text())["pid"]
    pids = descendants(parent.pid)
    assert len(pids) == 3  # broker, server, and what watches the server
    assert pid in pids
    parent.kill()
    parent.wait(WAIT_S)
    until_ended(pids)
    assert list(scratch.iterdir()) == []


def test_it_starts_nothing_for_a_parent_that_has_ended(scratch: Path) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait(WAIT_S)
    done = run([*COMMAND, "--parent", str(gone.pid)], WAIT_S, env=bare_environment(scratch))
    assert done.returncode == 1
    assert b"is not the parent of this one, or has ended" in done.stderr


def full(kind: str) -> tuple[IO[bytes], IO[bytes]]:
    """The two ends of a pipe or socket that takes nothing more."""
    if kind == "pipe":
        reading, writing = os.pipe()
    else:  # as Node gives to its child processes
        reading, writing = (each.detach() for each in socket.socketpair())
    os.set_blocking(writing, False)
    for piece in (b"x" * 1024, b"x"):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, piece)
    os.set_blocking(writing, True)
    return open(reading, "rb"), open(writing, "wb")


@contextlib.contextmanager
def logging_to(output: IO[bytes], scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A broker whose standard error is `output`, once it is ready."""
    process = subprocess.Popen(
        [*COMMAND, "--log-level", "debug"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=output,
        cwd=scratch,
        env=bare_environment(scratch),
    )
    assert process.stdout is not None
    with closing(process.stdout):
        assert select.select([process.stdout], [], [], patient(WAIT_S))[0], "it waits for a reader"
        yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0


@pytest.mark.short
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_nobody_has_to_read_its_log(kind: str, scratch: Path) -> None:
    reading, writing = full(kind)
    with reading, writing, logging_to(writing, scratch) as process:
        assert process.stdout is not None
        bootstrap = json.loads(process.stdout.readline())["bootstrap_servers"]
        with Cluster(bootstrap) as cluster:
            create_topic(cluster, "made", 1, {})
        assert topics(bootstrap) == {"made"}


def test_a_log_that_is_read_late_has_every_line(scratch: Path) -> None:
    reading, writing = full("pipe")
    with reading, logging_to(writing, scratch) as process:
        writing.close()
        process.send_signal(signal.SIGTERM)
        lines = reading.read().lstrip(b"x").decode().splitlines()
    assert "admin endpoint at" in lines[0]
    assert any(line.endswith("korvet.cli.serve: stopping") for line in lines)
    assert not [line for line in lines if "dropped" in line]


def test_it_ends_if_nobody_reads_its_line(scratch: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(
        COMMAND, stdout=writing, stderr=subprocess.PIPE, env=bare_environment(scratch)
    ) as process:
        os.close(writing)
        _, said = process.communicate(timeout=patient(WAIT_S))
    assert process.returncode == 1
    assert b"standard output takes no text" in said


def test_other_brokers_serve_if_nobody_reads_their_line(scratch: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*COMMAND[:-1], "--listen", "127.0.0.1:0", "--data-dir", str(scratch / "data")]
    with subprocess.Popen(
        command, stdout=writing, stderr=subprocess.PIPE, env=bare_environment(scratch)
    ) as process:
        os.close(writing)
        assert process.stderr is not None
        assert any(b"standard output takes no text" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=patient(WAIT_S))
    assert process.returncode == 0


def test_it_ends_if_its_line_has_no_place(scratch: Path) -> None:
    closed = ["/bin/sh", "-c", 'exec "$@" >&-', "-", *COMMAND]
    done = run(closed, WAIT_S, env=bare_environment(scratch), cwd=scratch)
    assert done.returncode == 1
    assert b"Error: standard output is closed" in done.stderr


@pytest.mark.parametrize("name", ["broker", "watcher", "server"])
def test_a_killed_part_takes_the_others_along(name: str, serve: Callable[..., Ephemeral]) -> None:
    broker = serve()
    with redis.Redis.from_url(broker.redis) as client:
        server = int(client.info("server")["process_id"])
    (watcher,) = broker.pids - {broker.process.pid, server}
    os.kill({"broker": broker.process.pid, "watcher": watcher, "server": server}[name], signal.SIGKILL)
    broker.process.wait(WAIT_S)
    until_ended(broker.pids)
    assert not alive(server)


def test_a_module_that_is_not_loaded_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / 'a "module".so'
    broken.write_bytes(b"no module")
    monkeypatch.setattr("korvet.embedded.ephemeral.find_module", lambda: broken)
    attempts: list[str] = []
    server = EphemeralServer("auto", 0)
    server.start(lambda: attempts.append(server.url))
    try:
        assert server.loaded_module is None
        assert "does not load korvet's server module" in caplog.text
        assert len(attempts) == 2
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
            assert all(module[b"name"] != b"korvet" for module in client.module_list())
    finally:
        server.stop()


def test_a_server_that_does_not_start_shows_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    server = EphemeralServer("off", 0)
    monkeypatch.setattr(server, "_settings", lambda: "no-such-directive yes\n")
    with pytest.raises(EmbeddedServerError, match=r"(?s)while starting.*no-such-directive"):
        server.start()


def test_a_machine_without_a_server_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.embedded.binary._candidates", lambda: iter(()))
    with pytest.raises(KorvetBrokerError, match="Install one of these"):
        KorvetBroker().start()


def test_the_probe_of_this_machine_sees_other_brokers_only(serve: Callable[..., Ephemeral]) -> None:
    broker = serve()
    port = broker.bootstrap.rpartition(":")[2]
    done = run([*COMMAND[:3], "ready", "--listen", f"127.0.0.1:{port}"], WAIT_S)
    assert b"no broker answers here" in done.stderr


def test_a_port_in_use_is_refused(serve: Callable[..., Ephemeral], scratch: Path) -> None:
    broker = serve()
    done = run([*COMMAND, "--listen", broker.bootstrap], WAIT_S, env=bare_environment(scratch))
    assert f"Error: cannot listen on {broker.bootstrap}" in done.stderr.decode()
