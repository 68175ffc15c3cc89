"""What the server module's appends leave elsewhere: on replicas, in append-only files, with subscribers and
blocked readers.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from korvet.offsets.packing import entry_id
from korvet.records.kernel import pack_command
from korvet.storage.module import find_module
from tests.storage.module_streams import add, add_plainly, dumps, replicas_version, send
from tests.support.module import UNBUILT, module_built
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.redis_server import Server, server_programs
from tests.unit.records.forms import BASE_MS, Record, whole_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    NewServer = Callable[..., Server]

CLOCK = BASE_MS << 10
RECORDS = [
    Record(b"k", b"v" * 100, BASE_MS, ((b"name", b"content"), (b"", None))),
    Record(None, None, BASE_MS + 1),
    Record(b"", b"", BASE_MS),
] * 100
BATCH = whole_batch(RECORDS)
IN_TRANSACTION = whole_batch(RECORDS, attributes=16, producer=(7, 3, 0))
STREAM = "s"


@pytest.fixture(params=server_programs(), ids=lambda path: Path(path).name)
def new_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewServer]:
    """Starts servers of one program with the module, in a new folder or a given one."""
    if not module_built():
        pytest.skip(UNBUILT)
    running: list[Server] = []

    def start(*options: str, folder: Path | None = None, module: bool = True) -> Server:
        place = folder or tmp_path_factory.mktemp("redis")
        at_once = ("--repl-diskless-sync-delay", "0")
        running.append(Server(request.param, place, *at_once, *options, module=module))
        return running[-1]

    yield start
    for one in running:
        one.stop()


def with_stream(server: Server) -> Server:
    server.client.xadd(STREAM, {"native": "1"}, id="0-1")
    return server


def is_added(server: Server, position: int, batch: bytes) -> bool:
    """Append a batch. Returns False if a replica has attached since the version was read."""
    reply = add(server, STREAM, position, batch)
    refused = isinstance(reply, redis.ResponseError)
    assert not refused or "REFUSED the replica set has changed" in str(reply)
    return not refused


def append_all(server: Server, position: int = CLOCK) -> int:
    """Two batches, and a native entry after each. Returns the position after them."""
    for batch in (BATCH, IN_TRANSACTION):
        until(functools.partial(is_added, server, position, batch), 20, "an append")
        position += len(RECORDS)
        server.client.xadd(STREAM, {"native": "2"}, id=entry_id(position))
        position += 1
    return position


def test_replicas_get_the_same_stream(new_server: NewServer) -> None:
    """Also a replica of the replica, which gets the commands as they are, and after a lost connection."""
    ports = free_port(), free_port()
    primary = with_stream(new_server("--port", str(ports[0])))
    copies = [new_server("--port", str(ports[1])), new_server()]
    for replica, port in zip(copies, ports, strict=True):
        replica.follow(port)
    position = append_all(primary)
    primary.client.client_kill_filter(_type="replica", skipme=False)
    append_all(primary, position)
    wanted = dumps(primary, [STREAM])
    until(lambda: all(dumps(copy, [STREAM]) == wanted for copy in copies), 20, "equal streams")


def away(replica: Server, primary: Server) -> None:
    """Stop a replica's process, and end its connection; `back` continues it."""
    replica.process.send_signal(signal.SIGSTOP)
    primary.client.client_kill_filter(_type="replica", skipme=False)
    until(lambda: primary.client.info("replication")["connected_slaves"] == 0, 20, "the replica is away")


def back(replica: Server, primary: Server) -> None:
    replica.process.send_signal(signal.SIGCONT)
    has_all(replica, primary)


def has_all(replica: Server, primary: Server) -> None:
    """Wait until a replica has executed all that its primary has."""
    offset = primary.client.info("replication")["master_repl_offset"]

    def there() -> bool:
        info = replica.client.info("replication")
        return info["master_link_status"] == "up" and info["slave_repl_offset"] >= offset

    until(there, 20, "the replica has all")


def test_a_replica_that_comes_back_without_the_module(new_server: NewServer) -> None:
    """Batches were added while it was away: it gets all data, because it does not know the command."""
    port = free_port()
    primary, plain = with_stream(new_server("--port", str(port))), new_server(module=False)
    plain.follow(port)
    away(plain, primary)
    append_all(primary)
    back(plain, primary)
    assert dumps(plain, [STREAM]) == dumps(primary, [STREAM])
    assert primary.client.info("stats")["sync_full"] == 2


def test_a_replica_gets_only_the_ordinary_commands_that_it_has_missed(new_server: NewServer) -> None:
    port = free_port()
    primary, replica = with_stream(new_server("--port", str(port))), new_server()
    replica.follow(port)
    append_all(primary)
    has_all(replica, primary)
    # The server notes only when a replica comes back how far KORVET.ADD goes.
    for number in (1, 2, 3):
        away(replica, primary)
        primary.client.set("missed", number)
        back(replica, primary)
        stats = primary.client.info("stats")
        assert (stats["sync_full"], stats["sync_partial_ok"]) == (2, number - 1)
        assert replica.client.get("missed") == b"%d" % number
    assert dumps(replica, [STREAM]) == dumps(primary, [STREAM])


def test_a_replica_accepts_what_its_primary_did(new_server: NewServer) -> None:
    """The versions of the replica set differ from server to server. Its own clients need the replica's."""
    port = free_port()
    primary = with_stream(new_server("--port", str(port)))
    replica = new_server("--replica-read-only", "no")
    replica.follow(port)
    assert replicas_version(primary) != replicas_version(replica)
    append_all(primary)
    until(lambda: dumps(replica, [STREAM]) == dumps(primary, [STREAM]), 20, "equal streams")
    command = pack_command("KORVET.ADD", STREAM, entry_id(CLOCK << 1), 1, replicas_version(primary), BATCH)
    assert "REFUSED the replica set has changed" in str(send(replica, command, 1)[0])


def handshake(port: int, command: bytes) -> tuple[bytes, socket.socket]:
    """Begin to synchronise like a replica: (the first bytes of the reply, the connection)."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.settimeout(20)
    connection.sendall(command)
    reply = b""
    while not reply.strip():
        reply += connection.recv(1)
    return reply, connection


@pytest.mark.parametrize(
    "command",
    [
        pack_command("PSYNC", "?", "-1"),
        pack_command("psync", "?", "-1"),
        pack_command("SYNC"),
        b"SyNc\r\n",
        b"PSYNC ? -1\r\n",
        pack_command("CLUSTER", "SYNCSLOTS", "SYNC", "t"),
    ],
    ids=repr,
)
def test_a_replica_that_attaches_stops_appends_by_the_module(new_server: NewServer, command: bytes) -> None:
    port = free_port()
    server = with_stream(new_server("--port", str(port)))
    version = replicas_version(server)
    assert replicas_version(server) == version
    refused_later = pack_command("KORVET.ADD", STREAM, entry_id(CLOCK), 1, version, BATCH)
    before = dumps(server, [STREAM])
    _, connection = handshake(port, command)
    with connection:
        assert "REFUSED the replica set has changed" in str(send(server, refused_later, 1)[0])
        assert dumps(server, [STREAM]) == before
        assert replicas_version(server) != version
        assert not isinstance(add(server, STREAM, CLOCK, BATCH), Exception)


def test_a_replica_that_continues_stops_appends_by_the_module(new_server: NewServer) -> None:
    """A partial resynchronisation."""
    port = free_port()
    server = with_stream(new_server("--port", str(port)))
    new_server().follow(port)
    replication = server.client.info("replication")
    version = replicas_version(server)
    command = pack_command("PSYNC", replication["master_replid"], replication["master_repl_offset"] + 1)
    reply, connection = handshake(port, command)
    with connection:
        while not reply.endswith(b"\r\n"):
            reply += connection.recv(1)
        assert reply.strip().startswith(b"+CONTINUE")
        assert replicas_version(server) != version


@pytest.mark.parametrize(
    "command",
    [
        ("REPLCONF", "capa", "psync2"),
        ("PSYNCX",),
        ("SYNCX",),
        ("XPSYNC",),
        ("CLUSTER", "INFO"),
        ("CLUSTER",),
        ("CLUSTER", "SYNCSLOTS", "ACK", "x"),
        ("KORVET.REPLICAS",),
        ("XLEN", STREAM),
        ("SYN\0",),
        ("",),
    ],
    ids=repr,
)
def test_other_commands_leave_the_version(new_server: NewServer, command: tuple[str, ...]) -> None:
    server = new_server()
    version = replicas_version(server)
    send(server, pack_command(*command), 1)
    assert replicas_version(server) == version


def test_the_version_differs_after_each_start(new_server: NewServer) -> None:
    versions = {replicas_version(new_server()) for _ in range(3)}
    assert len(versions) == 3
    assert all(0 <= version < 1 << 53 for version in versions)


PERSISTENT = ("--appendonly", "yes", "--appendfsync", "always", "--enable-module-command", "yes")


def killed(server: Server) -> Path:
    """Kill a server with SIGKILL. Returns its folder."""
    server.stop()
    return Path(server.socket).parent


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_the_append_only_file_gives_the_same_stream(new_server: NewServer, preamble: str) -> None:
    """Commands that follow a snapshot or other commands; with the module, their version of the replica set is
    an old one.
    """
    options = (*PERSISTENT, "--aof-use-rdb-preamble", preamble)
    server = with_stream(new_server(*options))
    position = append_all(server)
    version = replicas_version(server)
    transaction = (
        pack_command("MULTI")
        + pack_command("RENAME", STREAM, "gate")
        + pack_command("KORVET.ADD", "gate", entry_id(position), 1, version, BATCH)
        + pack_command("RENAME", "gate", STREAM)
        + pack_command("EXEC")
    )
    replies = send(server, transaction, 5)
    assert len(replies[-1]) == 3
    wanted = dumps(server, [STREAM])
    again = new_server(*options, folder=killed(server))
    assert dumps(again, [STREAM]) == wanted
    assert replicas_version(again) != version

    again.client.bgrewriteaof()
    until(
        lambda: not again.client.info("persistence")["aof_rewrite_in_progress"], 20, "the file is rewritten"
    )
    until(lambda: not again.client.info("persistence")["aof_rewrite_scheduled"], 20, "none is scheduled")
    folder = killed(again)
    plain = new_server(*options, folder=folder, module=False)
    assert dumps(plain, [STREAM]) == wanted


def test_an_append_only_file_ends_anywhere(new_server: NewServer) -> None:
    """A server that was killed while it wrote: a batch is there as a whole or not at all."""
    server = with_stream(new_server(*PERSISTENT))
    folder = Path(server.socket).parent
    [file] = (folder / "appendonlydir").glob("*.incr.aof")
    server.client.set("x", "y")
    size = file.stat().st_size
    before = server.client.xlen(STREAM)
    add(server, STREAM, CLOCK, BATCH)
    whole = file.stat().st_size
    killed(server)
    os.truncate(file, whole - (whole - size) // 2)
    again = new_server(*PERSISTENT, folder=folder)
    assert again.client.xlen(STREAM) == before


def test_without_the_module_its_append_only_file_is_not_loaded(new_server: NewServer) -> None:
    """Nothing is lost silently: the server doesn't start."""
    server = with_stream(new_server(*PERSISTENT))
    append_all(server)
    wanted = dumps(server, [STREAM])
    folder = killed(server)
    command = [str(argument) for argument in server.process.args]  # type: ignore[union-attr]
    at = command.index("--loadmodule")
    done = subprocess.run([*command[:at], *command[at + 2 :]], capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    assert dumps(new_server(*PERSISTENT, folder=folder), [STREAM]) == wanted


def test_the_module_can_be_unloaded(new_server: NewServer) -> None:
    server = with_stream(new_server("--enable-module-command", "yes"))
    version = replicas_version(server)
    server.client.module_unload("korvet")
    assert "unknown command" in str(send(server, pack_command("KORVET.REPLICAS"), 1)[0])
    server.client.execute_command("MODULE", "LOAD", str(find_module()))
    assert replicas_version(server) != version
    append_all(server)


def events_of(server: Server, work: Callable[[], object]) -> list[tuple[bytes, bytes]]:
    """The keyspace events that some work causes: (event, key)."""
    server.client.config_set("notify-keyspace-events", "EA")
    with server.client.pubsub(ignore_subscribe_messages=True) as subscriber:
        subscriber.psubscribe("__keyevent@0__:*")
        subscriber.get_message(timeout=5)
        work()
        server.client.set("end", "1")
        found: list[tuple[bytes, bytes]] = []
        while not found or found[-1][1] != b"end":
            message = subscriber.get_message(timeout=20)
            if message is not None:
                found.append((message["channel"].partition(b":")[2], message["data"]))
    return found[:-1]


def test_a_batch_is_one_event(new_server: NewServer) -> None:
    """XADDs are an event each; a refused batch is none."""
    server = with_stream(new_server())
    assert events_of(server, lambda: add(server, STREAM, CLOCK, BATCH)) == [(b"xadd", b"s")]
    assert events_of(server, lambda: add(server, STREAM, CLOCK, BATCH)) == []
    plainly = functools.partial(add_plainly, server, STREAM, CLOCK << 1, BATCH)
    assert events_of(server, plainly) == [(b"xadd", b"s")] * len(RECORDS)


READERS = {
    "XREAD": ("XREAD", "BLOCK", "20000", "STREAMS", STREAM, "$"),
    "XREADGROUP": ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "20000", "STREAMS", STREAM, ">"),
}


@pytest.mark.parametrize("through", ["the stream", "a gate"])
@pytest.mark.parametrize("reader", READERS)
def test_blocked_readers_wake(new_server: NewServer, reader: str, through: str) -> None:
    server = with_stream(new_server())
    server.client.xgroup_create(STREAM, "g", id="$")
    read: list[Any] = []
    client = redis.Redis(unix_socket_path=str(server.socket))
    thread = threading.Thread(target=lambda: read.append(client.execute_command(*READERS[reader])))
    thread.start()
    try:
        until(lambda: server.client.info("clients")["blocked_clients"] == 1, 20, "a reader waits")
        if through == "the stream":
            add(server, STREAM, CLOCK, BATCH)
        else:
            with server.client.pipeline(transaction=True) as gate:
                version = replicas_version(server)
                gate.rename(STREAM, "gate")
                gate.execute_command("KORVET.ADD", "gate", entry_id(CLOCK), 1, version, BATCH)
                gate.rename("gate", STREAM)
                gate.execute()
    finally:
        thread.join()
        client.close()
    [[_, entries]] = read[0]
    assert [entry for entry, _ in entries] == [
        entry_id(CLOCK + place).encode() for place in range(len(RECORDS))
    ]


def test_scripts_can_append(new_server: NewServer) -> None:
    """A replica and the file get what a script did."""
    port = free_port()
    server = with_stream(new_server("--port", str(port)))
    replica = new_server()
    replica.follow(port)
    version = replicas_version(server)
    call = "return redis.call('KORVET.ADD', KEYS[1], ARGV[1], 1, ARGV[2], ARGV[3])"
    last = server.client.eval(call, 1, STREAM, entry_id(CLOCK), version, BATCH)
    assert last == entry_id(CLOCK + len(RECORDS) - 1).encode()
    until(lambda: dumps(replica, [STREAM]) == dumps(server, [STREAM]), 20, "equal streams")


def test_scripts_cannot_hide_an_append(new_server: NewServer) -> None:
    """A script sends PSYNC, which is refused, before the server replicates what the script did."""
    port = free_port()
    primary, plain = with_stream(new_server("--port", str(port))), new_server(module=False)
    plain.follow(port)
    away(plain, primary)
    call = (
        "redis.call('KORVET.ADD', KEYS[1], ARGV[1], 1, ARGV[2], ARGV[3])"
        "redis.pcall('PSYNC', '?', '-1')"
        "redis.call('SET', KEYS[1] .. 'x', 'y')"
    )
    primary.client.eval(call, 1, STREAM, entry_id(CLOCK), replicas_version(primary), BATCH)
    back(plain, primary)
    assert dumps(plain, [STREAM]) == dumps(primary, [STREAM])


def test_another_module_file_knows_what_the_one_before_added(new_server: NewServer) -> None:
    """An upgrade without a restart."""
    port = free_port()
    primary = with_stream(new_server("--port", str(port), "--enable-module-command", "yes"))
    plain = new_server(module=False)
    plain.follow(port)
    away(plain, primary)
    append_all(primary)
    primary.client.module_unload("korvet")
    primary.client.execute_command("MODULE", "LOAD", str(find_module()))
    back(plain, primary)
    assert dumps(plain, [STREAM]) == dumps(primary, [STREAM])


def test_a_stale_replica_reports_its_module(new_server: NewServer) -> None:
    """Its primary is away, so it refuses most commands."""
    replica = new_server("--replica-serve-stale-data", "no")
    replica.client.replicaof("127.0.0.1", free_port())
    assert isinstance(send(replica, pack_command("XLEN", STREAM), 1)[0], redis.exceptions.MasterDownError)
    assert replicas_version(replica) > 0


def test_valkey_moves_no_slots_by_replication(new_server: NewServer) -> None:
    """A node without the module would lose appends. Slots move by CLUSTER SETSLOT and MIGRATE."""
    options = ("--cluster-enabled", "yes", "--port", str(free_port()), "--cluster-port", str(free_port()))
    server = new_server(*options)
    server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    move = pack_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "0", "10", "NODE", "0" * 40)
    answer = str(send(server, move, 1)[0])
    assert "module korvet does not support atomic slot migrations" in answer or "unknown subcommand" in answer
