"""`korvet backup` and `korvet restore` on servers without brokers: contents, refusals, interruptions."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from korvet.backup import backup as making
from korvet.backup import files, restores
from korvet.backup import restore as restoring
from korvet.backup.manifest import MANIFEST, SNAPSHOT
from korvet.backup.staging import stage
from tests.backup.contents import (
    BROKERS,
    CLUSTER,
    RESTORING,
    STREAM,
    contents,
    damage,
    failure,
    fill,
    run,
    success,
    without_numbers,
)
from tests.embedded.folders import running
from tests.support.certificates import Authority
from tests.support.cluster import Tls, program_with_tls
from tests.support.disk import Disk
from tests.support.polling import patient, until
from tests.support.sentinel import SentinelGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.redis_server import Server

    Start = Callable[..., Server]

KINDS = ("valkey", "redis")


@pytest.fixture
def backup(start: Start, tmp_path: Path) -> Path:
    """A backup of a filled server."""
    server = start()
    fill(server.client)
    folder = tmp_path / "backup"
    success("backup", folder, "--redis", server.url)
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("diskless", ["yes", "no"])
@pytest.mark.short
def test_a_folder_holds_what_the_server_held(start: Start, tmp_path: Path, kind: str, diskless: str) -> None:
    server = start("--repl-diskless-sync", diskless, kind=kind)
    fill(server.client)
    before = contents(server.client)
    told = json.loads(success("backup", tmp_path / "backup", "--redis", server.url, "--json"))
    assert told == json.loads((tmp_path / "backup" / MANIFEST).read_text())
    assert told["server"].startswith(f"{kind} ")
    assert (told["keyspace"], told["cluster_id"], told["topics"]) == ("korvet", "the-id", 200)
    assert {path.name for path in (tmp_path / "backup").iterdir()} == {MANIFEST, SNAPSHOT}
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]
    success("restore", tmp_path / "backup", "--data-dir", tmp_path / "data")
    assert not (tmp_path / "data" / "restoring").exists()
    with running(tmp_path / "data") as (_, client):
        assert without_numbers(contents(client)) == without_numbers(before)
        assert not client.exists(BROKERS, RESTORING)
        assert int(client.hget(CLUSTER, "assignment")) > 1024


def test_each_restore_of_a_backup_has_its_own_versions(start: Start, tmp_path: Path, backup: Path) -> None:
    """The keyspace of an earlier restore may have had tens of thousands of them."""
    success("restore", backup, "--check")
    versions = []
    for number in range(2):
        server = start()
        success("restore", backup, "--redis", server.url)
        versions.append(int(server.client.hget(CLUSTER, "assignment")))
        success("restore", backup, "--data-dir", tmp_path / str(number))
        with running(tmp_path / str(number)) as (_, client):
            versions.append(int(client.hget(CLUSTER, "assignment")))
    assert all(later >= earlier + (1 << 16) for earlier, later in itertools.pairwise(versions))
    assert len((backup / "restores").read_text().splitlines()) == len(versions)
    assert (backup / "restores").stat().st_mode & 0o077 == 0


def test_a_backup_that_cannot_be_written_is_restored_with_a_warning(
    start: Start, backup: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, flags: int) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(restores, "open_private", refuse)
    server = start()
    success("restore", backup, "--redis", server.url)
    assert int(server.client.hget(CLUSTER, "assignment")) > 1024
    assert "cannot be noted" in caplog.text


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_a_server_holds_what_another_kind_of_server_held(
    start: Start, tmp_path: Path, source: str, target: str
) -> None:
    server, other = start(kind=source), start(kind=target)
    fill(server.client)
    success("backup", tmp_path / "backup", "--redis", server.url)
    success("restore", tmp_path / "backup", "--redis", other.url)
    assert without_numbers(contents(other.client)) == without_numbers(contents(server.client))
    assert not other.client.exists(BROKERS, RESTORING)
    assert other.client.fcall("own_answer", 0) == 42
    assert int(other.client.hget(CLUSTER, "catalogue")) > 1_700_000_000_000


def test_keyspaces_of_other_prefixes_and_databases_are_restored(start: Start, tmp_path: Path) -> None:
    server, other = start(), start()
    fill(server.client)
    client = server.client
    client.hset("{other}:cluster", mapping={"id": "second", "format": 3, "assignment": 5000})
    client.hset("{strange}:cluster", mapping={"id": "third", "format": 1, "assignment": 1})
    client.execute_command("SELECT", 3)
    client.hset(CLUSTER, mapping={"id": "fourth", "format": 3})
    client.set("elsewhere", "x")
    url = f"{server.url}?db=3"
    client.connection_pool.disconnect()
    success("backup", tmp_path / "backup", "--redis", url)
    success("restore", tmp_path / "backup", "--redis", f"{other.url}?db=3")
    assert int(other.client.hget("{other}:cluster", "assignment")) >= 5000 + (1 << 22)
    assert other.client.hget("{strange}:cluster", "assignment") == b"1"
    assert other.client.hget(CLUSTER, "id") == b"the-id"
    other.client.execute_command("SELECT", 3)
    assert other.client.hget(CLUSTER, "id") == b"fourth"
    assert other.client.get("elsewhere") == b"x"
    other.client.connection_pool.disconnect()


def test_a_keyspace_is_restored_where_brokers_look_for_it(start: Start, tmp_path: Path, backup: Path) -> None:
    """They would begin an empty cluster in another database."""
    target = start()
    assert "in database 0, and the URL names" in failure("restore", backup, "--redis", f"{target.url}?db=5")
    assert target.client.dbsize() == 0
    source = start()
    source.client.execute_command("SELECT", 5)
    fill(source.client)
    source.client.connection_pool.disconnect()
    success("backup", tmp_path / "fifth", "--redis", f"{source.url}?db=5")
    assert "uses database 0" in failure("restore", tmp_path / "fifth", "--data-dir", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_server_that_closes_idle_connections_is_restored(
    start: Start, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To prepare the data takes longer than its timeout."""
    target = start("--timeout", "1")

    def stage_late(*arguments: Any, **options: Any) -> Any:
        until(lambda: b"korvet-restore" not in names_of(target), 60, "the connection is closed")
        return stage(*arguments, **options)

    monkeypatch.setattr(restoring, "stage", stage_late)
    success("restore", backup, "--redis", target.url)
    assert target.client.hget(CLUSTER, "id") == b"the-id"


def names_of(server: Server) -> set[bytes]:
    return {each["name"].encode() for each in server.client.client_list()}


def test_a_prefix_is_no_pattern(start: Start, tmp_path: Path) -> None:
    """A partition whose meta hash keeps the history would not note the end of its former leader epochs."""
    server, other = start(), start()
    fill(server.client)
    server.client.hset(r"{a[1]\*}:cluster", mapping={"id": "second", "format": 3})
    meta = r"{a[1]\*:t:0}:meta"
    server.client.hset(meta, mapping={"history": "h", "end": 1})
    success("backup", tmp_path / "backup", "--redis", server.url)
    success("restore", tmp_path / "backup", "--redis", other.url)
    assert other.client.hgetall(meta) == {b"end": b"1"}


def test_a_stopped_folder_is_backed_up_and_stays_as_it_is(tmp_path: Path) -> None:
    with running(tmp_path / "data", module="off") as (_, client):
        fill(client)
        before = contents(client)
        success("backup", tmp_path / "online", "--data-dir", tmp_path / "data")
    record = (tmp_path / "data" / "server.json").read_text()
    told = success("backup", tmp_path / "offline", "--data-dir", tmp_path / "data")
    assert f"holds the keyspace korvet of {tmp_path / 'data'} as of " in told
    assert (tmp_path / "data" / "server.json").read_text() == record
    for name in ("online", "offline"):
        assert "is sound" in success("restore", tmp_path / name, "--check")
        success("restore", tmp_path / name, "--data-dir", tmp_path / f"from-{name}")
        with running(tmp_path / f"from-{name}") as (_, client):
            assert without_numbers(contents(client)) == without_numbers(before)


def test_files_are_private(backup: Path) -> None:
    assert {path.stat().st_mode & 0o077 for path in (backup, *backup.iterdir())} == {0}


def test_what_cannot_be_backed_up(start: Start, tmp_path: Path) -> None:
    empty = start()
    target = tmp_path / "backup"
    assert "there is no keyspace 'korvet'" in failure("backup", target, "--redis", empty.url)
    assert "contains no data" in failure("backup", target, "--data-dir", tmp_path / "none")
    missing = f"unix://{tmp_path}/nothing"
    assert "cannot be reached" in failure("backup", target, "--redis", missing)
    empty.client.hset(CLUSTER, mapping={"id": "x", "format": 99})
    assert "has format 99" in failure("backup", target, "--redis", empty.url)
    replica = start("--replicaof", "127.0.0.1 1")
    assert "is a replica" in failure("backup", target, "--redis", replica.url)
    node = start("--cluster-enabled", "yes")
    assert "Redis Cluster" in failure("backup", target, "--redis", node.url)
    locked = start()
    locked.client.config_set("requirepass", "secret")
    for url in (locked.url, locked.url.replace("unix://", "unix://:other@")):
        said = failure("backup", target, "--redis", url)
        assert f"the server at {locked.url.removeprefix('unix://')} refuses the connection: " in said
    assert not any(tmp_path.iterdir())


def test_a_target_that_exists_is_not_overwritten(start: Start, backup: Path, tmp_path: Path) -> None:
    server = start()
    fill(server.client, 10)
    before = (backup / MANIFEST).read_bytes()
    assert "exists already" in failure("backup", backup, "--redis", server.url)
    assert (backup / MANIFEST).read_bytes() == before
    (tmp_path / "empty").mkdir()
    success("backup", tmp_path / "empty", "--redis", server.url)
    (tmp_path / "file").write_text("")
    assert "exists already" in failure("backup", tmp_path / "file", "--redis", server.url)


def test_a_target_that_cannot_be_looked_at_is_named(start: Start, tmp_path: Path) -> None:
    """In a folder of another user, for example."""
    server = start()
    fill(server.client, 10)
    target = tmp_path / ("x" * 300)
    assert "cannot be created: File name too long" in failure("backup", target, "--redis", server.url)


def test_a_user_without_the_permission_is_told(start: Start, tmp_path: Path) -> None:
    server = start()
    fill(server.client, 10)
    server.client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-psync")
    url = server.url.replace("unix://", "unix://app:secret@")
    message = failure("backup", tmp_path / "backup", "--redis", url)
    assert "+psync" in message
    assert "secret" not in message
    server.client.execute_command("ACL", "SETUSER", "app", "+psync")
    success("backup", tmp_path / "backup", "--redis", url)


def test_a_user_who_may_not_list_connections_is_told(start: Start, backup: Path) -> None:
    server = start()
    user = ("reader", "on", "nopass", "~*", "&*", "+@all", "-@dangerous", "+info")
    server.client.execute_command("ACL", "SETUSER", *user)
    url = server.url.replace("unix://", "unix://reader:x@")
    assert "needs the permission +client|list" in failure("restore", backup, "--redis", url)
    server.client.execute_command("ACL", "SETUSER", "reader", "+client|list")
    success("restore", backup, "--redis", url)


def test_a_server_that_dies_leaves_no_backup(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("--rdb-key-save-delay", "20000")
    fill(server.client)

    def kill(pieces: Iterator[bytes]) -> Iterator[bytes]:
        yield next(pieces)
        os.kill(server.process.pid, signal.SIGKILL)
        yield from pieces

    monkeypatch.setattr(making, "_checked", kill)
    message = failure("backup", tmp_path / "backup", "--redis", server.url)
    assert "has not sent the whole snapshot" in message
    assert not any(tmp_path.iterdir())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = Disk(folder, 160 << 20)
    yield disk
    disk.unmount()


def test_a_mount_point_is_refused_before_anything_is_received(start: Start, disk: Disk) -> None:
    """The complete backup could not get its name, and its files would be on the disk of the parent folder."""
    server = start()
    fill(server.client)
    said = failure("backup", disk.folder, "--redis", server.url)
    assert f"{disk.folder} is a mount point: name a new folder in it" in said
    assert server.client.info("stats")["sync_full"] == 0


def test_a_backup_stops_before_its_disk_is_full(start: Start, disk: Disk) -> None:
    server = start("--rdbcompression", "no")
    fill(server.client, 10)
    for number in range(40):
        server.client.set(f"large-{number}", os.urandom(1 << 20))
    message = failure("backup", disk.folder / "backup", "--redis", server.url)
    assert "its disk has" in message
    assert "stay free" in message
    assert not any(disk.folder.iterdir())
    assert disk.free_bytes() > 100 << 20


def test_a_disk_that_is_full_nevertheless(start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    fill(server.client)
    monkeypatch.setattr(files, "_RESERVE_BYTES", 0)
    disk.fill(keep_bytes=16 << 10)
    assert "No space left" in failure("backup", disk.folder / "backup", "--redis", server.url)
    assert [path.name for path in disk.folder.iterdir()] == ["filler"]


def test_a_data_folder_without_room_for_the_data(backup: Path, disk: Disk) -> None:
    data = disk.folder / "data"
    disk.fill(keep_bytes=1 << 20)
    assert "bytes left" in failure("restore", backup, "--data-dir", data)
    assert not (data / "appendonlydir").exists()
    assert not (data / "restoring").exists()
    disk.make_room()
    success("restore", backup, "--data-dir", data)


@pytest.mark.parametrize("at", [0, 20, -40, -1])
def test_a_damaged_snapshot_is_refused_before_anything_is_written(
    start: Start, backup: Path, tmp_path: Path, at: int
) -> None:
    target = start()
    damage(backup / SNAPSHOT, at)
    for arguments in (["--data-dir", tmp_path / "data"], ["--redis", target.url], ["--check"]):
        assert "the checksum of data.rdb" in failure("restore", backup, *arguments)
    assert not target.client.dbsize()
    assert not (tmp_path / "data" / "appendonlydir").exists()
    with running(tmp_path / "data") as (_, client):
        assert not client.dbsize()


def test_a_snapshot_that_no_server_can_load(backup: Path, tmp_path: Path) -> None:
    """Its checksum is right: it was damaged before it was written, or comes from a newer server."""
    manifest = json.loads((backup / MANIFEST).read_text())
    with (backup / SNAPSHOT).open("r+b") as file:
        file.seek(6)
        file.write(b"999")
        file.seek(0)
        manifest["sha256"] = files.hashlib.sha256(file.read()).hexdigest()
    (backup / MANIFEST).write_text(json.dumps(manifest))
    message = failure("restore", backup, "--data-dir", tmp_path / "data")
    assert "no installed server can load the backup" in message
    assert "999" in message
    assert not (tmp_path / "data" / "restoring").exists()


def test_other_versions_are_refused(backup: Path, tmp_path: Path) -> None:
    manifest = json.loads((backup / MANIFEST).read_text())
    for field, text in (("version", "has version 99"), ("format", "has format 99")):
        (backup / MANIFEST).write_text(json.dumps(manifest | {field: 99}))
        assert text in failure("restore", backup, "--data-dir", tmp_path / "data")
    (backup / MANIFEST).write_text(json.dumps(manifest | {"keyspace": "another"}))
    assert "does not hold the keyspace 'another'" in failure("restore", backup, "--check")
    assert not (tmp_path / "data").exists()


def test_a_backup_of_a_wrong_clock_is_refused(backup: Path, tmp_path: Path) -> None:
    """Leader epochs would exceed 32 bits, and no client could use the keyspace."""
    manifest = json.loads((backup / MANIFEST).read_text())
    (backup / MANIFEST).write_text(json.dumps(manifest | {"created_ms": 0}))
    assert "is the clock right" in failure("restore", backup, "--data-dir", tmp_path / "data")
    assert "is the clock right" in failure("restore", backup, "--check")
    assert not (tmp_path / "data" / "appendonlydir").exists()
    ten_years_ms = 10 * 365 * 86_400_000
    (backup / MANIFEST).write_text(
        json.dumps(manifest | {"created_ms": manifest["created_ms"] - ten_years_ms})
    )
    success("restore", backup, "--check")


def test_targets_with_data_are_refused(start: Start, backup: Path, tmp_path: Path) -> None:
    success("restore", backup, "--data-dir", tmp_path / "data")
    assert "contains data already" in failure("restore", backup, "--data-dir", tmp_path / "data")
    with running(tmp_path / "used"):
        assert "is in use by process" in failure("restore", backup, "--data-dir", tmp_path / "used")
    server = start()
    server.client.set("own", "x")
    assert "holds 1 keys" in failure("restore", backup, "--redis", server.url)
    assert server.client.dbsize() == 1
    replica, node = start("--replicaof", "127.0.0.1 1"), start("--cluster-enabled", "yes")
    assert "is a replica" in failure("restore", backup, "--redis", replica.url)
    assert "Redis Cluster" in failure("restore", backup, "--redis", node.url)


def test_a_server_that_refuses_a_write_keeps_a_part_and_is_restored_again(
    start: Start, backup: Path, tmp_path: Path
) -> None:
    server = start("--maxmemory", "1500000")
    message = failure("restore", backup, "--redis", server.url)
    assert "command not allowed when used memory > 'maxmemory'" in message
    assert "run it again" in message
    assert server.client.exists(RESTORING)
    assert not server.client.exists(CLUSTER)
    assert "there is no keyspace" in failure("backup", tmp_path / "x", "--redis", server.url)
    command = [sys.executable, "-m", "korvet", "serve", "--redis", server.url, "--listen", "127.0.0.1:0"]
    served = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)
    assert served.returncode == 1
    assert "a restore of keyspace 'korvet' has not finished" in served.stderr
    assert "a restore has not finished" in run("doctor", "--redis", server.url).output
    second = tmp_path / "second"
    other = start()
    fill(other.client, 10)
    success("backup", second, "--redis", other.url)
    server.client.config_set("maxmemory", 0)
    assert "an unfinished restore of another backup" in failure("restore", second, "--redis", server.url)
    # What an application has written in between stays.
    server.client.set("own", "x")
    success("restore", backup, "--redis", server.url)
    found = contents(server.client)
    assert found.pop(b"own") == (b"x", -1)
    success("restore", backup, "--data-dir", tmp_path / "data")
    with running(tmp_path / "data") as (_, client):
        assert without_numbers(found) == without_numbers(contents(client))
        assert client.xlen(STREAM) == server.client.xlen(STREAM)


def test_a_full_server_is_named(start: Start, backup: Path) -> None:
    target = start("--maxmemory", "1")
    message = failure("restore", backup, "--redis", target.url)
    assert f"the server at {target.socket} refuses the mark of a restore: " in message
    assert "maxmemory" in message
    assert target.client.dbsize() == 0


def test_sentinels_lead_to_the_primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS, with passwords; the replica receives what is restored."""
    program = program_with_tls()
    if program is None:
        pytest.skip("no server with TLS is installed")
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    tls = Tls(authority.certificate, authority.issue("server", "/CN=server"))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    group = SentinelGroup(
        program, tmp_path / "group", sentinels=1, tls=tls, password="secret", sentinel_password="hidden"
    )
    try:
        primary, replica = group.servers
        fill(primary.client)
        success("backup", tmp_path / "backup", "--redis", group.url)
        primary.client.flushall()
        success("restore", tmp_path / "backup", "--redis", group.url)
        assert primary.client.hget(CLUSTER, "id") == "the-id"
        until(lambda: replica.client.dbsize() == primary.client.dbsize(), 20, "the replica has the data")
        assert replica.client.xlen(STREAM) == primary.client.xlen(STREAM)
    finally:
        group.stop()
