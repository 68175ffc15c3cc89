"""What the server module's appends leave elsewhere: on replicas, in append-only files, with subscribers and
blocked readers.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest
import redis

from korvet.offsets.packing import entry_id
from korvet.records.kernel import pack_command
from korvet.redis.functions import library_digest, library_source
from korvet.redis.module import find_module
from tests.storage.module_streams import (
    UNPACK,
    add_plainly,
    append_command,
    dumps,
    keys_of,
    put,
    send,
    unpack,
)
from tests.support.module import UNBUILT, module_built
from tests.support.polling import patient, until
from tests.support.ports import free_port
from tests.support.redis_server import Server, server_programs
from tests.unit.records.forms import BASE_MS, Record, whole_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    NewServer = Callable[..., Server]

pytestmark = pytest.mark.each_server

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
    server.client.function_load(library_source())
    server.client.xadd(STREAM, {"native": "1"}, id="0-1")
    return server


def append_all(server: Server, position: int = CLOCK) -> int:
    """Two batches, and a native entry after each. Returns the position after them."""
    for batch in (BATCH, IN_TRANSACTION):
        assert isinstance(put(server, STREAM, position, batch), list)
        position += len(RECORDS)
        server.client.xadd(STREAM, {"native": "2"}, id=entry_id(position))
        position += 1
    return position


def append_together(
    server: Server, *batches: bytes, serial: int = 1, lacks_module: bool = False
) -> list[Any]:
    """Append batches by one korvet_append. Returns the base offset of each."""
    (reply,) = send(server, append_command(STREAM, *batches, serial=serial), 1)
    assert isinstance(reply, list), reply
    assert (reply[4] == 2) == lacks_module, reply[4:]
    return reply[6:]


def log_of(server: Server) -> list[Any]:
    """What a server has of a log."""
    stream, index, meta = keys_of(STREAM)
    client = server.client
    return [client.dump(stream), client.zrange(index, 0, -1, withscores=True), client.hgetall(meta)]


@pytest.mark.parametrize("modules", list(itertools.product([False, True], repeat=2)))
def test_replicas_get_the_same_stream(new_server: NewServer, modules: tuple[bool, bool]) -> None:
    """Also a replica of the replica, which gets the commands as they are, and after a lost connection."""
    ports = free_port(), free_port()
    primary = with_stream(new_server("--port", str(ports[0])))
    copies = [new_server("--port", str(ports[1]), module=modules[0]), new_server(module=modules[1])]
    for replica, port in zip(copies, ports, strict=True):
        replica.follow(port)
    position = append_all(primary)
    primary.client.client_kill_filter(_type="replica", skipme=False)
    append_all(primary, position)
    wanted = dumps(primary, [STREAM])
    until(lambda: all(dumps(copy, [STREAM]) == wanted for copy in copies), 20, "equal streams")


@pytest.mark.parametrize("module", [False, True])
def test_replicas_get_the_same_log(new_server: NewServer, module: bool) -> None:
    """Batches of one append, one of them malformed, before and after a lost connection."""
    port = free_port()
    primary, replica = with_stream(new_server("--port", str(port))), new_server(module=module)
    replica.follow(port)
    first, refused, *skipped = append_together(primary, BATCH, BATCH[:-1], BATCH)
    assert first == 1
    assert [text.startswith(b"ERR malformed batch: ") for text in (refused, *skipped)] == [True, True]
    primary.client.client_kill_filter(_type="replica", skipme=False)
    bases = [1 + number * len(RECORDS) for number in range(1, 4)]
    assert append_together(primary, *[BATCH] * 3, serial=2) == bases
    has_all(replica, primary)
    assert log_of(replica) == log_of(primary)
    assert replica.client.xlen(STREAM) == 1 + 4 * len(RECORDS)


def test_replicas_get_an_append_as_one_unit(new_server: NewServer) -> None:
    port = free_port()
    primary = with_stream(new_server("--port", str(port)))
    with following(primary, port) as follower:
        append_together(primary, BATCH, BATCH, BATCH)
        received = received_until(follower, b"\r\nEXEC\r\n")
    unit = received.partition(b"\r\nMULTI\r\n")[2].partition(b"\r\nEXEC\r\n")[0]
    stream, index, meta = (b"\r\n%b\r\n" % key.encode() for key in keys_of(STREAM))
    assert [received.count(name) for name in (b"\r\nMULTI\r\n", b"\r\nFCALL\r\n", stream)] == [1, 3, 3]
    assert [unit.count(name) > 0 for name in (index, meta)] == [True, True]
    assert all(unit.count(name) == received.count(name) for name in (stream, index, meta))


@pytest.mark.parametrize(("records", "calls"), [(16_384, 1), (16_385, 0)])
def test_a_replica_answers_during_a_large_batch(new_server: NewServer, records: int, calls: int) -> None:
    """Without the module it would execute one function for long; it gets an XADD for each record."""
    port = free_port()
    primary, replica = with_stream(new_server("--port", str(port))), new_server(module=False)
    replica.follow(port)
    replica.client.config_resetstat()
    batch = whole_batch([Record(b"k", b"v", BASE_MS)] * records)
    assert isinstance(put(primary, STREAM, CLOCK, batch), list)
    has_all(replica, primary)
    assert replica.client.info("commandstats").get("cmdstat_fcall", {}).get("calls", 0) == calls
    assert dumps(replica, [STREAM]) == dumps(primary, [STREAM])


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
    until(lambda: replica.has_all_of(primary), 20, "the replica has all")


@pytest.mark.parametrize("module", [False, True])
def test_a_replica_that_comes_back_gets_only_what_it_has_missed(new_server: NewServer, module: bool) -> None:
    port = free_port()
    primary, replica = with_stream(new_server("--port", str(port))), new_server(module=module)
    replica.follow(port)
    away(replica, primary)
    append_all(primary)
    back(replica, primary)
    assert dumps(replica, [STREAM]) == dumps(primary, [STREAM])
    assert primary.client.info("stats")["sync_full"] == 1


@pytest.mark.parametrize("module", [False, True])
def test_a_replica_obeys_whatever_its_own_state(new_server: NewServer, module: bool) -> None:
    """A server refuses functions for many reasons, and its primary would not know."""
    port = free_port()
    primary = with_stream(new_server("--port", str(port)))
    replica = new_server(
        *("--replica-serve-stale-data", "no", "--min-replicas-to-write", "1", "--maxmemory", "1mb"),
        module=module,
    )
    replica.follow(port)
    primary.client.set("large", b"x" * (2 << 20))
    append_all(primary)
    has_all(replica, primary)
    assert dumps(replica, [STREAM]) == dumps(primary, [STREAM])


def test_a_replica_that_loses_the_module(new_server: NewServer) -> None:
    port = free_port()
    primary = with_stream(new_server("--port", str(port)))
    replica = new_server("--enable-module-command", "yes")
    replica.follow(port)
    position = append_all(primary)
    has_all(replica, primary)
    replica.client.module_unload("korvet")
    position = append_all(primary, position)
    has_all(replica, primary)
    replica.client.execute_command("MODULE", "LOAD", str(find_module()))
    append_all(primary, position)
    has_all(replica, primary)
    assert dumps(replica, [STREAM]) == dumps(primary, [STREAM])


def test_a_replica_has_the_function_that_it_is_told(new_server: NewServer) -> None:
    """Also if the primary loses its libraries, or gets those of another release, between two appends."""
    port = free_port()
    primary, plain = with_stream(new_server("--port", str(port))), new_server(module=False)
    plain.follow(port)
    away(plain, primary)
    position = append_all(primary)
    primary.client.function_flush()
    later = "#!lua name=later\n" + library_source().partition("\n")[2].replace(library_digest(), "later")
    primary.client.function_load(later)
    command = pack_command("KORVET.PUT", STREAM, entry_id(position), 1, "korvet_unpack_later", BATCH)
    assert isinstance(send(primary, command, 1)[0], list)
    back(plain, primary)
    assert dumps(plain, [STREAM]) == dumps(primary, [STREAM])


def test_a_function_does_as_the_module(new_server: NewServer) -> None:
    """What a server executes that became a primary, and whose replica asks for what it has missed."""
    server, plain = with_stream(new_server()), with_stream(new_server(module=False))
    put(server, STREAM, CLOCK, BATCH)
    for each in (server, plain):
        unpack(each, STREAM, CLOCK + (each is server) * len(RECORDS), BATCH)
    assert server.client.xlen(STREAM) == plain.client.xlen(STREAM) + len(RECORDS)
    refused = [str(unpack(each, STREAM, CLOCK, BATCH)) for each in (server, plain)]
    assert all("equal or smaller than the target" in text for text in refused), refused


def test_the_last_release_replicated_the_command_itself(new_server: NewServer) -> None:
    """A replica of such a primary, which sends another number."""
    replica, stream = new_server(*PERSISTENT), socket.create_server(("127.0.0.1", 0))
    replica.client.replicaof("127.0.0.1", stream.getsockname()[1])
    old = pack_command("KORVET.ADD", STREAM, entry_id(CLOCK), 1, 77, BATCH)
    with stream, as_primary(stream) as primary:
        until(lambda: replica.client.info("replication")["master_link_status"] == "up", 20, "it follows")
        has_file(replica)
        primary.sendall(pack_command("SELECT", 0) + pack_command("XADD", STREAM, "0-1", "native", 1) + old)
        until(lambda: replica.client.xlen(STREAM) == len(RECORDS) + 1, 20, "the batch is there")
    wanted = dumps(replica, [STREAM])
    replica.client.replicaof("NO", "ONE")
    assert "REFUSED KORVET.ADD is for append-only files" in str(send(replica, old, 1)[0])
    assert dumps(new_server(*PERSISTENT, folder=killed(replica)), [STREAM]) == wanted


@contextlib.contextmanager
def as_primary(listening: socket.socket) -> Iterator[socket.socket]:
    """Accept a replica, and send it an empty snapshot."""
    connection, _ = listening.accept()
    connection.settimeout(20)
    with connection, connection.makefile("rb") as received:
        while (name := command_name(received)) != b"PSYNC":
            connection.sendall(b"+PONG\r\n" if name == b"PING" else b"+OK\r\n")
        empty = b"REDIS0009\xff" + bytes(8)
        connection.sendall(b"+FULLRESYNC %b 0\r\n$%d\r\n%b" % (b"0" * 40, len(empty), empty))
        yield connection


def command_name(received: BinaryIO) -> bytes:
    """Read a command. Returns its name."""
    words = int(received.readline()[1:])
    lines = [received.readline() for _ in range(2 * words)]
    return lines[1].strip()


PERSISTENT = ("--appendonly", "yes", "--appendfsync", "always", "--enable-module-command", "yes")


def has_file(server: Server) -> None:
    """Wait until a server has an append-only file: a replica begins one when it has all data."""
    persistence = functools.partial(server.client.info, "persistence")
    unfinished = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
    until(lambda: not any(persistence()[each] for each in unfinished), 20, "the file is written")


def killed(server: Server) -> Path:
    """Kill a server with SIGKILL. Returns its folder."""
    server.stop()
    return Path(server.socket).parent


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_the_append_only_file_gives_the_same_stream(new_server: NewServer, preamble: str) -> None:
    """Commands that follow a snapshot or other commands."""
    options = (*PERSISTENT, "--aof-use-rdb-preamble", preamble)
    server = with_stream(new_server(*options))
    append_all(server)
    wanted = dumps(server, [STREAM])
    again = new_server(*options, folder=killed(server))
    assert dumps(again, [STREAM]) == wanted

    again.client.bgrewriteaof()
    has_file(again)
    folder = killed(again)
    plain = new_server(*options, folder=folder, module=False)
    assert dumps(plain, [STREAM]) == wanted


@pytest.mark.parametrize("options", [("--min-replicas-to-write", "1"), ("--maxmemory", "1mb")], ids=" ".join)
def test_an_append_only_file_is_loaded_whatever_the_server_refuses(
    new_server: NewServer, options: tuple[str, ...]
) -> None:
    """A server refuses functions without an error while it loads, if it needs replicas."""
    server = with_stream(new_server(*PERSISTENT))
    server.client.set("large", b"x" * (2 << 20))
    append_all(server)
    wanted = dumps(server, [STREAM])
    assert dumps(new_server(*PERSISTENT, *options, folder=killed(server)), [STREAM]) == wanted


@pytest.mark.parametrize("module", [False, True])
def test_the_append_only_file_of_a_replica(new_server: NewServer, module: bool) -> None:
    """That of a replica without the module needs none. It may become the primary, and lack replicas."""
    port = free_port()
    primary = with_stream(new_server("--port", str(port)))
    replica = new_server(*PERSISTENT, module=module)
    replica.follow(port)
    has_file(replica)
    append_all(primary)
    has_all(replica, primary)
    wanted = dumps(primary, [STREAM])
    options = (*PERSISTENT, "--min-replicas-to-write", "1")
    again = new_server(*options, folder=killed(replica), module=module)
    assert dumps(again, [STREAM]) == wanted


def test_an_append_only_file_of_the_last_release(new_server: NewServer, tmp_path: Path) -> None:
    """Its commands have the version of the replica set in place of 0."""
    files = tmp_path / "appendonlydir"
    files.mkdir()
    commands = [("SELECT", 0), ("XADD", STREAM, "0-1", "native", 1)]
    commands.append(("KORVET.ADD", STREAM, entry_id(CLOCK), 1, 4_000_000_000_000, BATCH))
    (files / "appendonly.aof.1.incr.aof").write_bytes(b"".join(pack_command(*each) for each in commands))
    (files / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    old, new = new_server(*PERSISTENT, folder=tmp_path), with_stream(new_server())
    put(new, STREAM, CLOCK, BATCH)
    assert dumps(old, [STREAM]) == dumps(new, [STREAM])


def test_an_append_only_file_ends_anywhere(new_server: NewServer) -> None:
    """A server that was killed while it wrote: a batch is there as a whole or not at all."""
    server = with_stream(new_server(*PERSISTENT))
    folder = Path(server.socket).parent
    [file] = (folder / "appendonlydir").glob("*.incr.aof")
    server.client.set("x", "y")
    size = file.stat().st_size
    before = server.client.xlen(STREAM)
    put(server, STREAM, CLOCK, BATCH)
    whole = file.stat().st_size
    killed(server)
    os.truncate(file, whole - (whole - size) // 2)
    again = new_server(*PERSISTENT, folder=folder)
    assert again.client.xlen(STREAM) == before


def test_an_append_only_file_ends_within_an_append(new_server: NewServer) -> None:
    """All batches of an append are there, with what the function noted, or none."""
    server = with_stream(new_server(*PERSISTENT))
    folder = Path(server.socket).parent
    [file] = (folder / "appendonlydir").glob("*.incr.aof")
    append_together(server, BATCH)
    before, size = log_of(server), file.stat().st_size
    append_together(server, BATCH, BATCH, BATCH, serial=2)
    after = log_of(server)
    killed(server)
    data = file.read_bytes()
    for part in (1, 2, 4, 5):
        os.truncate(file, size + (len(data) - size) * part // 6)
        again = new_server(*PERSISTENT, folder=folder)
        assert log_of(again) == before
        killed(again)
        file.write_bytes(data)
    assert log_of(new_server(*PERSISTENT, folder=folder)) == after


def test_without_the_module_its_append_only_file_is_not_loaded(new_server: NewServer) -> None:
    """Nothing is lost silently: the server doesn't start."""
    server = with_stream(new_server(*PERSISTENT))
    append_all(server)
    wanted = dumps(server, [STREAM])
    folder = killed(server)
    command = [str(argument) for argument in server.process.args]  # type: ignore[union-attr]
    at = command.index("--loadmodule")
    done = subprocess.run(
        [*command[:at], *command[at + 2 :]], capture_output=True, timeout=patient(60), check=False
    )
    assert done.returncode != 0
    assert dumps(new_server(*PERSISTENT, folder=folder), [STREAM]) == wanted


def test_the_module_can_be_unloaded(new_server: NewServer) -> None:
    server = with_stream(new_server("--enable-module-command", "yes"))
    server.client.module_unload("korvet")
    assert "unknown command" in str(send(server, pack_command("KORVET.PUT"), 1)[0])
    server.client.execute_command("MODULE", "LOAD", str(find_module()))
    append_all(server)


@pytest.mark.parametrize("lack", ["unloaded", "forbidden"])
def test_an_append_needs_no_module(new_server: NewServer, lack: str) -> None:
    """The function unpacks the batches itself, and says so."""
    server, other = (with_stream(new_server("--enable-module-command", "yes")) for _ in range(2))
    batches = BATCH, IN_TRANSACTION, BATCH
    bases = append_together(other, *batches)
    if lack == "unloaded":
        server.client.module_unload("korvet")
    else:
        server.client.acl_setuser("default", enabled=True, nopass=True, commands=["-korvet.put"], keys=["*"])
    assert append_together(server, *batches, lacks_module=True) == bases
    assert dumps(server, [STREAM]) == dumps(other, [STREAM])


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
    assert events_of(server, lambda: put(server, STREAM, CLOCK, BATCH)) == [(b"xadd", b"s")]
    assert events_of(server, lambda: put(server, STREAM, CLOCK, BATCH)) == []
    plainly = functools.partial(add_plainly, server, STREAM, CLOCK << 1, BATCH)
    assert events_of(server, plainly) == [(b"xadd", b"s")] * len(RECORDS)


READERS = {
    "XREAD": ("XREAD", "BLOCK", "20000", "STREAMS", STREAM, "$"),
    "XREADGROUP": ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "20000", "STREAMS", STREAM, ">"),
}


@pytest.mark.parametrize("reader", READERS)
def test_blocked_readers_wake(new_server: NewServer, reader: str) -> None:
    server = with_stream(new_server())
    server.client.xgroup_create(STREAM, "g", id="$")
    read: list[Any] = []
    client = redis.Redis(unix_socket_path=str(server.socket))
    thread = threading.Thread(target=lambda: read.append(client.execute_command(*READERS[reader])))
    thread.start()
    try:
        until(lambda: server.client.info("clients")["blocked_clients"] == 1, 20, "a reader waits")
        append_together(server, BATCH)
    finally:
        thread.join()
        client.close()
    [[_, entries]] = read[0]
    assert [entry for entry, _ in entries] == [entry_id(2 + place).encode() for place in range(len(RECORDS))]


def test_scripts_can_append(new_server: NewServer) -> None:
    """A replica and the file get what a script did."""
    port = free_port()
    server = with_stream(new_server("--port", str(port), *PERSISTENT))
    replica = new_server(module=False)
    replica.follow(port)
    call = "return redis.call('KORVET.PUT', KEYS[1], ARGV[1], 1, ARGV[2], ARGV[3])"
    assert isinstance(server.client.eval(call, 1, STREAM, entry_id(CLOCK), UNPACK, BATCH), list)
    has_all(replica, server)
    wanted = dumps(server, [STREAM])
    assert dumps(replica, [STREAM]) == wanted
    assert dumps(new_server(*PERSISTENT, folder=killed(server)), [STREAM]) == wanted


def test_a_node_to_which_slots_move_gets_entries(new_server: NewServer) -> None:
    """It may lack the library. It begins with CLUSTER SYNCSLOTS (Redis 8.4)."""
    port = free_port()
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    server = new_server("--port", str(port), *options)
    server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    until(lambda: b"cluster_state:ok" in server.client.execute_command("CLUSTER", "INFO"), 20, "a cluster")
    with_stream(server)
    with following(server, port) as follower:
        put(server, STREAM, CLOCK, BATCH)
        received_until(follower, b"\r\nFCALL\r\n$%d\r\n%b\r\n" % (len(UNPACK), UNPACK.encode()))
        for command in (("CLUSTER", "SYNCSLOTS", "SYNC", "x"), ("cluster", "Info"), ("cluster",)):
            send(server, pack_command(*command), 1)
        position = CLOCK + (1 << 20)
        assert isinstance(put(server, STREAM, position, BATCH), list)
        after = received_until(follower, entry_id(position + len(RECORDS) - 1).encode())
        assert after.count(b"\r\nXADD\r\n") >= len(RECORDS) - 1
        assert b"FCALL" not in after


@contextlib.contextmanager
def following(server: Server, port: int) -> Iterator[socket.socket]:
    """A connection that gets what replicas get."""
    with socket.create_connection(("127.0.0.1", port)) as follower:
        follower.settimeout(20)
        follower.sendall(b"PSYNC ? -1\r\n")
        replication = functools.partial(server.client.info, "replication")
        until(lambda: replication().get("slave0", {}).get("state") == "online", 20, "it follows")
        yield follower


def received_until(connection: socket.socket, word: bytes) -> bytes:
    """Returns what is received up to the first piece with a word."""
    received = b""
    while word not in received:
        piece = connection.recv(1 << 20)
        assert piece, received[-200:]
        received += piece
    return received


def test_valkey_moves_no_slots_by_replication(new_server: NewServer) -> None:
    """A node without the module would lose appends. Slots move by CLUSTER SETSLOT and MIGRATE."""
    options = ("--cluster-enabled", "yes", "--port", str(free_port()), "--cluster-port", str(free_port()))
    server = new_server(*options)
    server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    move = pack_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "0", "10", "NODE", "0" * 40)
    answer = str(send(server, move, 1)[0])
    assert "module korvet does not support atomic slot migrations" in answer or "unknown subcommand" in answer
