"""The way back to a folder that every server can load: `korvet rewrite`, upgrade, downgrade."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from korvet.embedded import append_only
from korvet.embedded.binary import find_server, installed_servers
from korvet.embedded.server import EmbeddedServer
from tests.embedded.folders import (
    DEADLINE_S,
    RECORDS,
    add,
    add_plainly,
    begin,
    dumps,
    filled,
    is_plain,
    put_command,
    rewrite,
    running,
)
from tests.support.disk import Disk
from tests.support.redis_server import await_answer

pytestmark = pytest.mark.usefixtures("module")


def test_a_rewrite_makes_the_folder_plain(tmp_path: Path) -> None:
    before = filled(tmp_path)
    done = rewrite(tmp_path)
    assert done.exit_code == 0, done.output
    assert "is plain: a server without the module can load it" in done.output
    assert is_plain(tmp_path)
    again = rewrite(tmp_path)
    assert again.exit_code == 0
    assert "was plain already" in again.output
    with running(tmp_path, module="off") as (_, client):
        assert dumps(client) == before


def test_a_rewrite_reports_in_json(tmp_path: Path) -> None:
    filled(tmp_path)
    before_bytes = sum(path.stat().st_size for path in append_only.parts(tmp_path))
    done = json.loads(rewrite(tmp_path, "--json").stdout)
    after_bytes = sum(path.stat().st_size for path in append_only.parts(tmp_path))
    assert done == {"changed": True, "before_bytes": before_bytes, "after_bytes": after_bytes}
    again = json.loads(rewrite(tmp_path, "--json").stdout)
    assert again == {"changed": False, "before_bytes": after_bytes, "after_bytes": after_bytes}


def test_a_client_that_uses_the_module_during_a_rewrite_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)

    def stop(server: EmbeddedServer) -> None:
        with redis.Redis.from_url(server.url) as client:
            add(client, "orders", 900)
        original(server)

    original = EmbeddedServer.stop
    monkeypatch.setattr(EmbeddedServer, "stop", stop)
    done = rewrite(tmp_path)
    assert done.exit_code == 1
    assert "a client has appended by the server module" in done.output
    assert not is_plain(tmp_path)


def test_a_folder_in_use_or_without_data_is_not_rewritten(tmp_path: Path) -> None:
    assert "contains no data" in rewrite(tmp_path / "new").output
    assert not (tmp_path / "new").exists()
    with running(tmp_path):
        assert "is in use by process" in rewrite(tmp_path).output


def test_any_server_loads_a_plain_folder(tmp_path: Path) -> None:
    """The folder moves to a server that knows nothing of korvet."""
    before = filled(tmp_path)
    assert rewrite(tmp_path).exit_code == 0
    program = find_server().path
    with plain_server(program, tmp_path) as client:
        assert dumps(client) == before
        client.xadd("orders", {"value": "native"})
        after = dumps(client)
    with running(tmp_path) as (_, client):
        assert dumps(client) == after
        add(client, "orders", 2_000_000_000_000)


def test_redis_loads_a_plain_folder_of_valkey(tmp_path: Path) -> None:
    """Its streams are the same; the bytes of DUMP end with a version that differs."""
    other = next((server for server in installed_servers() if server.kind != find_server().kind), None)
    if other is None:
        pytest.skip("no server of another kind is installed")
    filled(tmp_path)
    assert rewrite(tmp_path).exit_code == 0
    with plain_server(other.path, tmp_path) as client:
        assert client.xrange("orders") == client.xrange("plain")
        assert client.xlen("orders") == 40 * RECORDS + 1
        assert client.xinfo_groups("orders")[0]["last-delivered-id"] == b"20-3"


@contextmanager
def plain_server(program: Path, data_dir: Path) -> Iterator["redis.Redis"]:
    """Run `PROGRAM --appendonly yes --dir DIR`, with nothing of korvet."""
    options = ["--port", "0", "--unixsocket", "plain.sock", "--save", "", "--appendonly", "yes"]
    with subprocess.Popen(
        [program, *options, "--dir", str(data_dir)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        client = redis.Redis(unix_socket_path=str(data_dir / "plain.sock"))
        try:
            await_answer(process, client, lambda: process.stdout.read().decode() if process.stdout else "")
            yield client
        finally:
            client.close()
            process.terminate()


def test_upgrade_and_downgrade(tmp_path: Path) -> None:
    """A release without the module, one with it, and back: as `module=off`, and a rewrite in between."""
    with running(tmp_path, module="off") as (_, client):
        begin(client, "orders")
        add_plainly(client, "orders", 1)
        first = dumps(client)
    with running(tmp_path) as (_, client):
        assert dumps(client) == first
        add(client, "orders", 2)
        second = dumps(client)
    assert rewrite(tmp_path).exit_code == 0
    with running(tmp_path, module="off") as (_, client):
        assert dumps(client) == second
        add_plainly(client, "orders", 3)
        third = dumps(client)
    with running(tmp_path) as (_, client):
        assert dumps(client) == third
        assert client.xlen("orders") == 1 + 3 * RECORDS


def large(data_dir: Path) -> dict[bytes, bytes]:
    """A folder whose rewrite takes long enough to be interrupted."""
    with running(data_dir, appendfsync="no") as (_, client):
        for stream in ("a", "b"):
            begin(client, stream)
            with client.pipeline(transaction=False) as pipeline:
                for first in range(1, 400):
                    pipeline.execute_command(*put_command(stream, first, 500))
                pipeline.execute()
        return dumps(client)


def test_a_rewrite_that_the_server_has_begun_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with a large file begins a rewrite as soon as it has loaded the file."""
    before = large(tmp_path)

    def start(server: EmbeddedServer) -> str:
        url = original(server)
        with redis.Redis.from_url(url) as client:
            client.bgrewriteaof()
            assert client.info("persistence")["aof_rewrite_in_progress"]
        return url

    original = EmbeddedServer.start
    with monkeypatch.context() as patches:
        patches.setattr(EmbeddedServer, "start", start)
        done = rewrite(tmp_path)
    assert done.exit_code == 0, done.output
    with running(tmp_path, module="off") as (_, client):
        assert dumps(client) == before


def serving(data_dir: Path) -> bool:
    return (data_dir / "server.sock").exists()


def writing(data_dir: Path) -> bool:
    return any(path.stat().st_size for path in append_only.unfinished(data_dir))


def written(data_dir: Path) -> bool:
    return (data_dir / "appendonlydir" / "appendonly.aof.2.base.aof").exists()


def stopped(data_dir: Path) -> bool:
    return written(data_dir) and not serving(data_dir)


@pytest.mark.parametrize("moment", [serving, writing, written, stopped])
@pytest.mark.parametrize("server_too", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_rewrite_may_be_killed_at_any_moment(
    tmp_path: Path, moment: Callable[[Path], bool], *, server_too: bool
) -> None:
    before = large(tmp_path)
    command = [sys.executable, "-m", "korvet", "rewrite", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:

        def reached() -> bool:
            try:
                return moment(tmp_path) or process.poll() is not None
            except FileNotFoundError:  # renamed in between
                return True

        deadline = time.monotonic() + DEADLINE_S
        while not reached():
            assert time.monotonic() < deadline
        if server_too:
            kill_server(tmp_path)
        process.kill()
    with running(tmp_path) as (_, client):
        assert dumps(client) == before
    assert rewrite(tmp_path).exit_code == 0
    assert is_plain(tmp_path)
    with running(tmp_path, module="off") as (_, client):
        assert dumps(client) == before


def kill_server(data_dir: Path) -> None:
    """kill -9 of the server that holds the lock, if it still runs."""
    try:
        pid = int(json.loads((data_dir / "server.lock").read_text())["pid"])
        if str(data_dir) in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
    except (OSError, ValueError):
        return


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A small disk on tmp_path."""
    disk = Disk(tmp_path, 256 << 20)
    yield disk
    disk.unmount()


@pytest.mark.parametrize("keep_bytes", [0, 2 << 20])
def test_a_rewrite_on_a_full_disk_changes_nothing(tmp_path: Path, disk: Disk, keep_bytes: int) -> None:
    """No space at all, or less than the new file takes."""
    before = large(tmp_path)
    disk.fill(keep_bytes)
    failed = rewrite(tmp_path)
    assert failed.exit_code == 1
    assert "the rewrite failed, and the data are as before" in failed.output
    assert "bytes left" in failed.output
    assert disk.free_bytes() >= keep_bytes - (64 << 10)
    assert not is_plain(tmp_path)
    disk.make_room()
    with running(tmp_path) as (_, client):
        assert dumps(client) == before
    assert rewrite(tmp_path).exit_code == 0
    with running(tmp_path, module="off") as (_, client):
        assert dumps(client) == before


def test_a_disk_without_room_for_the_servers_settings(tmp_path: Path, disk: Disk) -> None:
    filled(tmp_path)
    (tmp_path / "server.conf").unlink()
    disk.fill()
    failed = rewrite(tmp_path)
    assert failed.exit_code == 1
    assert "no server can be started" in failed.output
    assert "No space left" in failed.output
    assert not is_plain(tmp_path)
