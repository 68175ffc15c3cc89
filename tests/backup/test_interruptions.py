"""`korvet backup` and `korvet restore` are killed, and run again."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from korvet.backup import loading
from korvet.backup.connection import RedisConnection
from korvet.backup.manifest import SNAPSHOT
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.server import EmbeddedServer
from korvet.redis.address import parse_url
from tests.backup.contents import (
    CLUSTER,
    RESTORING,
    STREAM,
    contents,
    failure,
    fill,
    run,
    success,
    without_numbers,
)
from tests.embedded.folders import running
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.redis_server import Server

    Start = Callable[..., Server]

KINDS = ("valkey", "redis")
ENTRIES = 20_000
DEADLINE_S = 60.0


@pytest.fixture
def source(start: Start) -> Server:
    """A server with data whose restore takes long enough to be interrupted."""
    server = start()
    fill(server.client, ENTRIES)
    return server


@pytest.fixture
def backup(source: Server, tmp_path: Path) -> Path:
    success("backup", tmp_path / "backup", "--redis", source.url)
    return tmp_path / "backup"


def kill_when(reached: Callable[[], object], *arguments: object) -> None:
    """Run a command as a process of its own, and kill -9 it at a moment, or let it end."""
    command = [sys.executable, "-m", "korvet", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + DEADLINE_S
        while process.poll() is None and not reached():
            assert time.monotonic() < deadline
        process.kill()


def terminate_when(reached: Callable[[], object], *arguments: object) -> None:
    """Run a command as a process of its own, and end it by SIGTERM at a moment."""
    command = [sys.executable, "-m", "korvet", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        until(reached, DEADLINE_S, "the command has begun")
        process.terminate()
        assert process.wait(DEADLINE_S) == 143


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_a_killed_backup_is_no_backup(source: Server, tmp_path: Path) -> None:
    source.client.config_set("rdbcompression", "no")
    source.client.config_set("rdb-key-save-delay", 20_000)
    target, partial = tmp_path / "backup", tmp_path / "backup.partial"
    kill_when(lambda: size(partial / SNAPSHOT), "backup", target, "--redis", source.url)
    assert not target.exists()
    assert partial.exists()
    assert "is no complete backup" in failure("restore", partial, "--check")
    source.client.config_set("rdb-key-save-delay", 0)
    success("backup", target, "--redis", source.url)
    assert not partial.exists()
    assert "is sound" in success("restore", target, "--check")


def test_two_backups_do_not_mix(source: Server, tmp_path: Path) -> None:
    source.client.config_set("rdb-key-save-delay", 20_000)
    target, partial = tmp_path / "backup", tmp_path / "backup.partial"

    def second() -> bool:
        if not size(partial / SNAPSHOT):
            return False
        assert "another process writes" in failure("backup", target, "--redis", source.url)
        return True

    kill_when(second, "backup", target, "--redis", source.url)


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_holds_what_was_answered_while_an_earlier_backup_runs(
    start: Start, tmp_path: Path, kind: str
) -> None:
    """A server that writes snapshots to its disk sends one to all clients that ask meanwhile."""
    source = start("--repl-diskless-sync", "no", "--rdb-key-save-delay", "100000", kind=kind)
    fill(source.client)
    with RedisConnection(parse_url(source.url)[0]) as earlier:
        earlier.begin_snapshot()
        source.client.set("answered", "x")
        source.client.config_set("rdb-key-save-delay", 0)
        assert source.client.info("persistence")["rdb_bgsave_in_progress"]
        success("backup", tmp_path / "backup", "--redis", source.url)
        assert b"answered" not in b"".join(earlier.snapshot())
    assert b"answered" in (tmp_path / "backup" / SNAPSHOT).read_bytes()


MOMENTS: dict[str, Callable[[Path], object]] = {
    "begun": lambda data: (data / "restoring").exists(),
    "copied": lambda data: (data / "restoring" / "appendonlydir" / "appendonly.aof.manifest").exists(),
    "loaded": lambda data: (data / "restoring" / "server.sock").exists(),
    "rewriting": lambda data: any((data / "restoring").glob("temp-rewriteaof-*")),
    "rewritten": lambda data: any((data / "restoring").glob("appendonlydir/*.2.base.aof")),
    "renamed": lambda data: (data / "appendonlydir").exists(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_restore_into_a_folder_may_be_killed_at_any_moment(
    source: Server, backup: Path, tmp_path: Path, moment: str
) -> None:
    data = tmp_path / "data"
    kill_when(lambda: MOMENTS[moment](data), "restore", backup, "--data-dir", data)
    if not (data / "appendonlydir").exists():
        assert (data / "restoring").exists()
        with pytest.raises(EmbeddedServerError, match=r"has not finished: run `korvet restore` again"):
            EmbeddedServer(data).start()
        until(lambda: run("restore", backup, "--data-dir", data).exit_code == 0, 20, "it is restored")
    assert "contains data already" in failure("restore", backup, "--data-dir", data)
    with running(data) as (_, client):
        assert not (data / "restoring").exists()
        assert without_numbers(contents(client)) == without_numbers(contents(source.client))


@pytest.mark.parametrize("keys", [1, 2, 100, 205])
def test_a_restore_into_a_server_may_be_killed_at_any_moment(
    start: Start, source: Server, backup: Path, tmp_path: Path, keys: int
) -> None:
    target = start(kind="redis")
    for number in range(200):
        source.client.set(f"k{number}", "x")
    arguments = ["restore", backup, "--redis", target.url, "--scratch", tmp_path]
    kill_when(lambda: target.client.dbsize() >= keys, *arguments)
    if not target.client.exists(CLUSTER):
        assert target.client.exists(RESTORING)
        success("restore", backup, "--redis", target.url)
    assert not target.client.exists(RESTORING)
    source.client.delete(*(f"k{number}" for number in range(200)))
    assert without_numbers(contents(target.client)) == without_numbers(contents(source.client))


def test_a_native_writer_in_the_way_of_a_restore(
    start: Start, source: Server, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application adds a later entry to a stream before the restore writes that stream."""
    target = start()
    begin = loading._set_marks

    def begun(*arguments: Any) -> None:
        begin(*arguments)
        target.client.xadd(STREAM, {"a": "b"})

    monkeypatch.setattr(loading, "_set_marks", begun)
    message = failure("restore", backup, "--redis", target.url)
    assert f"XADD {STREAM}" in message
    monkeypatch.undo()
    success("restore", backup, "--redis", target.url)
    assert without_numbers(contents(target.client)) == without_numbers(contents(source.client))


def test_keyspaces_become_usable_together(
    start: Start, source: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step is refused; none of two keyspaces can be used before the restore is repeated."""
    source.client.hset("{other}:cluster", mapping={"id": "second", "format": 3})
    success("backup", tmp_path / "backup", "--redis", source.url)
    target = start()
    finish = loading._finish

    def refused(*arguments: Any) -> None:
        target.client.config_set("maxmemory", 1)
        finish(*arguments)

    monkeypatch.setattr(loading, "_finish", refused)
    message = failure("restore", tmp_path / "backup", "--redis", target.url)
    assert "refuses its last step" in message
    assert target.client.exists(RESTORING, "{other}:restoring") == 2
    assert not target.client.exists(CLUSTER, "{other}:cluster")
    monkeypatch.undo()
    target.client.config_set("maxmemory", 0)
    success("restore", tmp_path / "backup", "--redis", target.url)
    assert target.client.exists(CLUSTER, "{other}:cluster") == 2
    assert not target.client.exists(RESTORING, "{other}:restoring")


def at_last_step(monkeypatch: pytest.MonkeyPatch, broken: int, then: Callable[[], object] = bool) -> None:
    """Shut the connection of a restore down for its last step. `then` is called when the step has failed."""
    pipeline = RedisConnection.pipeline

    def break_last(connection: RedisConnection, commands: Sequence[Sequence[Any]]) -> list[Any]:
        if commands[-1] != ("EXEC",):
            return pipeline(connection, commands)
        connection._socket.shutdown(broken)
        try:
            return pipeline(connection, commands)
        finally:
            then()

    monkeypatch.setattr(RedisConnection, "pipeline", break_last)


def test_a_restore_whose_last_reply_is_lost_is_complete(
    start: Start, source: Server, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start()
    at_last_step(monkeypatch, socket.SHUT_RD)
    success("restore", backup, "--redis", target.url)
    assert without_numbers(contents(target.client)) == without_numbers(contents(source.client))
    assert not target.client.exists(RESTORING)


def test_a_restore_whose_last_step_is_lost_is_repeated(
    start: Start, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start()
    at_last_step(monkeypatch, socket.SHUT_RDWR)
    assert "The restore is not finished: run it again" in failure("restore", backup, "--redis", target.url)
    assert target.client.exists(RESTORING)
    assert not target.client.exists(CLUSTER)
    monkeypatch.undo()
    success("restore", backup, "--redis", target.url)
    assert target.client.hget(CLUSTER, "id") == b"the-id"


def test_a_server_that_is_away_after_the_last_step_may_have_everything(
    start: Start, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start()
    at_last_step(monkeypatch, socket.SHUT_RD, target.stop)
    message = failure("restore", backup, "--redis", target.url)
    assert "The restore may be complete" in message
    assert "`korvet doctor`" in message
    assert "cannot be reached" in message
    assert "run it again" not in message


def test_a_complete_restore_is_not_repeated(start: Start, source: Server, backup: Path) -> None:
    """An empty server is not suggested: it would lose everything that was acknowledged since."""
    target = start()
    success("restore", backup, "--redis", target.url)
    for server in (target, source):
        before = contents(server.client)
        message = failure("restore", backup, "--redis", server.url)
        assert "holds the keyspace 'korvet' of this backup already" in message
        assert "`korvet doctor`" in message
        assert "FLUSHALL" not in message
        assert contents(server.client) == before


def test_a_terminated_command_leaves_nothing(source: Server, start: Start, tmp_path: Path) -> None:
    backup, scratch, data = tmp_path / "backup", tmp_path / "scratch", tmp_path / "data"
    partial = tmp_path / "backup.partial"
    source.client.config_set("rdbcompression", "no")
    source.client.config_set("rdb-key-save-delay", 20_000)
    terminate_when(lambda: size(partial / SNAPSHOT), "backup", backup, "--redis", source.url)
    assert not any(tmp_path.iterdir())
    source.client.config_set("rdb-key-save-delay", 0)
    success("backup", backup, "--redis", source.url)
    scratch.mkdir()
    target = start()
    arguments = ["restore", backup, "--redis", target.url, "--scratch", scratch]
    terminate_when(lambda: any(scratch.iterdir()), *arguments)
    assert not any(scratch.iterdir())
    assert not target.client.dbsize()
    terminate_when((data / "restoring").exists, "restore", backup, "--data-dir", data)
    assert not (data / "restoring").exists()
    assert not (data / "appendonlydir").exists()


def test_two_restores_into_a_server_do_not_mix(
    start: Start, source: Server, backup: Path, tmp_path: Path
) -> None:
    target = start()
    arguments = ["restore", backup, "--redis", target.url, "--scratch", tmp_path]

    def second() -> bool:
        if not target.client.exists(RESTORING):
            return False
        target.client.client_pause(60_000, all=False)
        assert "another restore into the server" in failure(*arguments)
        return True

    kill_when(second, *arguments)
    target.client.client_unpause()
    success(*arguments)
    assert without_numbers(contents(target.client)) == without_numbers(contents(source.client))
