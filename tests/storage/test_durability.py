"""What failures can lose, as `korvet doctor` and the log report it for real servers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

from korvet.cli.app import korvet as korvet_command
from korvet.cli.doctor import check_durability
from korvet.embedded.server import EmbeddedServer
from korvet.outlook.durability import Setup
from korvet.outlook.outlook_log import watch_outlooks
from korvet.redis.address import parse_url
from korvet.redis.barrier import Level
from korvet.redis.keys import Keyspace
from korvet.redis.opening import connect
from korvet.store import Store
from korvet.supervisor import end, keep
from tests.support.polling import until, until_async
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.cluster import RedisCluster
    from tests.support.redis_server import Server

WAIT_S = 20
ALONE, TWO, FLUSHED = Level(0, False), Level(1, False), Level(0, True)


def findings(server: Server, *levels: Level, url: str = "") -> dict[str, tuple[str, str]]:
    setup = Setup({level: levels.count(level) for level in levels})
    return {each.subject: each[1:] for each in check_durability(parse_url(url or server.url), setup)}


def pair(new_server: Callable[..., Server]) -> Server:
    """A primary with a replica that is online."""
    port = free_port()
    primary = new_server("--port", str(port), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
    new_server("--replicaof", "127.0.0.1", str(port))
    until(lambda: "online" in states(primary), WAIT_S, "the replica is online")
    return primary


def states(server: Server) -> list[str]:
    info: dict[str, Any] = server.client.info("replication")
    return [value["state"] for name, value in info.items() if name.startswith("slave") and name[5:].isdigit()]


def logged(server: Server, caplog: pytest.LogCaptureFixture, *levels: Level) -> list[tuple[str, str]]:
    """The levels and the lines that a broker logs."""

    def lines() -> list[tuple[str, str]]:
        return [(each.levelname, each.getMessage()) for each in caplog.records if "outlook" in each.name]

    async def are_there() -> bool:
        return bool(lines())

    async def run() -> None:
        router, setup = await connect(server.url), Setup({level: levels.count(level) for level in levels})
        task = keep("outlooks", partial(watch_outlooks, router, lambda: setup, lambda: True))
        try:
            await until_async(are_there, WAIT_S, "they are logged")
        finally:
            await end(task)
            await router.close()

    with caplog.at_level(logging.INFO, "korvet.outlook.outlook_log"):
        asyncio.run(run())
    return lines()


def test_the_doctor_reports_a_pair(new_server: Callable[..., Server]) -> None:
    alone = new_server()
    assert findings(alone, ALONE)["replicas"] == ("ok", "none")
    assert "acks=all" not in findings(alone, ALONE)
    assert findings(alone, TWO)["acks=all"][0] == "fault"
    primary = pair(new_server)
    found = findings(primary, TWO, TWO)
    state, text = found["replicas"]
    assert state == "ok"
    assert text.startswith("1 of 1 in sync, at most ")
    assert found["if the Redis process dies and restarts"] == (
        "fault",
        "everything is lost, because the server keeps no files; replicas then copy the empty server, unless "
        "one was promoted before; set appendonly yes",
    )
    assert found["if the primary is lost for good"][0] == "ok"
    assert found["if a replica is lost"][1].endswith("but 2 of 2 topics refuse records with acks=all")
    assert "set min.insync.replicas 2" in findings(primary, ALONE)["if the primary is lost for good"][1]


def test_the_doctor_refuses_a_replica(new_server: Callable[..., Server]) -> None:
    replica = new_server("--replicaof", "127.0.0.1", "1")
    done = CliRunner().invoke(korvet_command, ["doctor", "--redis", replica.url, "--json"])
    assert done.exit_code == 1
    found = {each["subject"]: each for each in json.loads(done.output)}
    role = found["role"]
    assert role["state"] == "fault"
    assert role["text"].startswith("replica of 127.0.0.1:1, which may lack acknowledged records")
    # What is reported of replicas and failures is that of a primary.
    assert not [name for name in found if name == "replicas" or name.startswith("if ")]


def test_the_doctor_names_a_server_that_refuses_it(new_server: Callable[..., Server]) -> None:
    locked = new_server()
    locked.client.config_set("requirepass", "secret")
    done = CliRunner().invoke(korvet_command, ["doctor", "--redis", locked.url])
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: Redis at {locked.url.removeprefix('unix://')}: ")


def test_settings_of_the_server_change_what_can_be_lost(new_server: Callable[..., Server]) -> None:
    server = new_server()
    assert findings(server)["if the machine of Redis loses power"][0] == "warning"
    server.client.config_set("appendonly", "yes")
    until(lambda: server.client.info("persistence")["aof_base_size"], WAIT_S, "the file is complete")
    for flush, state in (("everysec", "warning"), ("always", "ok"), ("no", "warning")):
        server.client.config_set("appendfsync", flush)
        assert findings(server)["if the machine of Redis loses power"][0] == state, flush
    server.client.config_set("appendfsync", "always")
    assert all(found[0] != "fault" for found in findings(server).values())


def test_the_doctor_promises_no_flush_that_is_not_awaited(new_server: Callable[..., Server]) -> None:
    """With everysec, flushes begin a second apart; some versions report them earlier (redis/redis#13793)."""
    server = new_server("--appendonly", "yes", "--appendfsync", "everysec")
    began_s = time.monotonic()
    for _ in range(4):
        server.client.set("x", "y")
        assert server.client.execute_command("WAITAOF", 1, 0, 0) == [1, 0]
    early = time.monotonic() - began_s < 2
    state, text = findings(server, FLUSHED)["if the machine of Redis loses power"]
    assert state == "warning" or not early
    assert text.endswith("; set appendfsync always") or not early


def test_the_first_append_only_file_of_a_running_server(new_server: Callable[..., Server]) -> None:
    restart = "if the Redis process dies and restarts"
    options = "--appendfsync", "always", "--rdb-key-save-delay", "20000"
    assert findings(new_server("--appendonly", "yes", *options))[restart][0] == "ok"
    server = new_server(*options)
    server.client.mset({f"key{number}": "" for number in range(100)})
    server.client.config_set("appendonly", "yes")
    assert findings(server)[restart] == (
        "warning",
        "everything is lost if appendonly was set to yes just now, because the first append-only file is not "
        "complete; wait until its rewrite has ended",
    )
    until(lambda: findings(server)[restart][0] == "ok", WAIT_S, "the file is complete")


def test_an_append_only_file_that_was_off_for_a_while(new_server: Callable[..., Server]) -> None:
    restart, former = "if the Redis process dies and restarts", "if appendonly was set to yes just now"
    server = new_server("--appendonly", "yes", "--appendfsync", "always")
    server.client.mset({f"key{number}": "" for number in range(100)})
    server.client.bgrewriteaof()
    until(lambda: server.client.info("persistence")["aof_base_size"], WAIT_S, "the file is complete")
    assert former not in findings(server)[restart][1]
    server.client.config_set("rdb-key-save-delay", 20_000)
    server.client.config_set("appendonly", "no")
    server.client.set("x", "y")
    server.client.config_set("appendonly", "yes")
    assert findings(server)[restart] == (
        "ok",
        "nothing is lost: it writes its append-only file before it replies; if appendonly was set to yes "
        "just now, everything since it was set to no is lost",
    )
    until(lambda: former not in findings(server)[restart][1], WAIT_S, "the file is complete")


def test_the_doctor_finds_a_server_that_refuses_all_writes(new_server: Callable[..., Server]) -> None:
    server = new_server("--min-replicas-to-write", "1")
    state, text = findings(server)["writes"]
    assert (state, text) == (
        "fault",
        "the server refuses all writes: it has 0 of 1 replicas (min-replicas-to-write)",
    )
    server.client.config_set("min-replicas-max-lag", 0)
    assert server.client.set("x", "y")
    assert "writes" not in findings(server)


def test_the_doctor_finds_a_server_that_refuses_writes_after_a_failed_snapshot(
    new_server: Callable[..., Server],
) -> None:
    server = new_server()
    server.client.config_set("save", "3600 1")
    (server.socket.parent / "dump.rdb").mkdir()
    server.client.bgsave()
    until(lambda: server.client.info("persistence")["rdb_last_bgsave_status"] == "err", WAIT_S, "it failed")
    with pytest.raises(redis.ResponseError, match="MISCONF"):
        server.client.set("x", "y")
    assert findings(server)["writes"] == (
        "fault",
        "the server refuses all writes: its last snapshot failed, see its log (stop-writes-on-bgsave-error)",
    )
    url = without_configs(server)
    state, text = findings(server, url=url)["writes"]
    assert state == "warning"
    assert "whether the server refuses writes is unknown" in text


def test_a_server_that_refuses_all_writes_to_a_user_who_may_not_read_configs(
    new_server: Callable[..., Server],
) -> None:
    server = new_server("--min-replicas-to-write", "1")
    assert findings(server, url=without_configs(server))["writes"] == (
        "fault",
        "the server refuses all writes: it has none of the replicas that it needs (min-replicas-to-write)",
    )


def without_configs(server: Server) -> str:
    """The server's URL with a user who may not read configs."""
    rules = "on >secret ~* +@all -@dangerous +info"
    server.client.execute_command("ACL", "SETUSER", "broker", *rules.split())
    return f"{server.url}?username=broker&password=secret"


def test_a_user_who_may_not_read_configs(new_server: Callable[..., Server]) -> None:
    server = new_server()
    url = without_configs(server)
    state, text = findings(server, url=url)["if the Redis process dies and restarts"]
    assert state == "warning"
    assert text == "unknown: the Redis user may not run CONFIG GET; give the user the ACL rule +config|get"
    server.client.execute_command("ACL", "SETUSER", "broker", "+config|get")
    assert findings(server, url=url)["if the Redis process dies and restarts"][0] == "fault"


def test_a_server_that_does_not_answer() -> None:
    (found,) = check_durability(parse_url("redis://127.0.0.1:1"), Setup({}))
    assert (found.subject, found.state) == ("durability, 127.0.0.1:1", "warning")


def test_the_doctor_knows_whether_an_embedded_server_has_a_reserve(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    try:
        for reserve_bytes, expected in (
            ("1", "nothing is lost: writes are refused before (disk.reserve.bytes)"),
            ("0", "nothing is lost: the server exits, and can start again when the disk has room"),
        ):
            done = CliRunner(env={"KORVET_DISK_RESERVE_BYTES": reserve_bytes}).invoke(
                korvet_command, ["doctor", "--data-dir", str(tmp_path), "--json"]
            )
            found = {each["subject"]: each["text"] for each in json.loads(done.stdout)}
            assert found["if the disk of Redis is full"] == expected
    finally:
        server.stop()


def test_the_log_has_the_lines_of_the_doctor(
    new_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    primary = pair(new_server)
    lines = logged(primary, caplog, TWO)
    assert lines[0][1].startswith("replicas: 1 of 1 in sync")
    found = {f"{subject}: {text}": state for subject, (state, text) in findings(primary, TWO).items()}
    assert len(lines) == len(found)
    # The replica's lag changes.
    for level, line in lines[1:]:
        assert level == ("WARNING" if found[line] == "fault" else "INFO")


def test_outlooks_are_logged_again_when_there_are_more_replicas(
    new_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    primary = new_server("--port", str(port), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
    replicas = [new_server(), new_server()]

    def lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if "the primary is lost" in each.getMessage()]

    async def run() -> None:
        router = await connect(primary.url)
        wanted: list[bool] = []
        watch = partial(watch_outlooks, router, lambda: Setup({TWO: 1}), lambda: bool(wanted), 0.01)
        task = keep("outlooks", watch)
        try:
            await asyncio.sleep(0.1)
            assert not lines()
            wanted.append(True)
            for count, replica in enumerate(replicas):
                await until_async(partial(has, count + 1), WAIT_S, "it is logged")
                await asyncio.to_thread(replica.follow, port)
            await until_async(partial(has, 3), WAIT_S, "it is logged again")
            replicas[0].client.replicaof("no", "one")
            await asyncio.to_thread(replicas[0].follow, port)
            await asyncio.sleep(0.1)
        finally:
            await end(task)
            await router.close()

    async def has(count: int) -> bool:
        return len(lines()) >= count

    with caplog.at_level(logging.INFO, "korvet.outlook.outlook_log"):
        asyncio.run(run())
    alone, one, two = lines()
    assert "because there is no replica" in alone
    assert "is lost if a replica that is attached now takes over" in one
    assert "set min.insync.replicas 3" in two


def test_replicas_that_the_cluster_names_may_take_over(own_cluster: RedisCluster) -> None:
    primary, replica = own_cluster.nodes[0], own_cluster.nodes[-1]
    subject = "if the primary is lost for good"

    def found() -> dict[str, tuple[str, str]]:
        setup = Setup({TWO: 1})
        return {each.subject: each[1:] for each in check_durability(parse_url(primary.url), setup)}

    assert found()[subject][0] == "ok"
    assert "attached now" not in found()[subject][1]
    replica.kill()
    until(lambda: found()["replicas"][1].startswith("0 of 1 in sync, 1 not"), WAIT_S, "it is away")
    assert found()["replicas"][0] == "warning"
    assert found()[subject][1].startswith("nothing that was acknowledged with acks=all is lost; with acks=1")


def test_the_doctor_knows_the_dynamic_settings_of_all_brokers(
    new_server: Callable[..., Server], prefix: str
) -> None:
    alone, keyspace = new_server(), Keyspace(prefix)

    async def work() -> None:
        store = await Store.open(alone.url, keyspace)
        await store.catalogue.create("t", 1)
        await store.close()

    asyncio.run(work())

    def refusing() -> list[str]:
        arguments = ["doctor", "--redis", alone.url, "--keyspace", prefix, "--json"]
        done = CliRunner(env={}).invoke(korvet_command, arguments)
        return [each["text"] for each in json.loads(done.stdout) if each["subject"] == "acks=all"]

    assert not refusing()
    for broker, value in (("", b"2"), ("7", b"1")):
        field = json.dumps([broker, "min.insync.replicas"], separators=(",", ":"))
        alone.client.hset(keyspace.broker_configs, field, value)
    (found,) = refusing()
    assert found.startswith("1 of 1 topics refuse records: they need more replicas than 0")
