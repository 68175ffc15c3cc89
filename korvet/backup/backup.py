"""Makes a backup: receives a snapshot of each server, as a replica does, and describes them.

The snapshots are of one moment, and hold every write that was answered before the backup began. Brokers and
clients continue during the backup.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from korvet.backup import files
from korvet.backup.connection import RedisConnection
from korvet.backup.errors import BackupError
from korvet.backup.files import Report
from korvet.backup.manifest import CLUSTER_VERSION, MANIFEST, VERSION, Manifest, Snapshot, encode, file_of
from korvet.backup.primaries import primaries
from korvet.backup.snapshots import Begun, begun, threads
from korvet.cluster.versions import format_problem
from korvet.embedded import append_only
from korvet.embedded.server import EmbeddedServer
from korvet.embedded.sockets import socket_of, url_of
from korvet.redis.address import parse_url
from korvet.redis.fields import counter_of
from korvet.redis.keys import Keyspace

# The first bytes of a snapshot.
_SIGNS: Final = (b"REDIS", b"VALKEY")


def back_up_server(url: str, keyspace: Keyspace, target: Path, report: Report) -> Manifest:
    """Back up a server or a cluster that runs. Raises BackupError and StoreError."""
    with primaries(url) as servers, files.new_folder(target.absolute()) as folder:
        created_ms = time.time_ns() // 1_000_000
        first = servers.of(keyspace.cluster)
        server = first.info("server")
        kind = "valkey" if "valkey_version" in server else "redis"
        cluster_id, topics, data_format = _identity(first, keyspace)
        with begun(servers, first) as sent:
            received = _receive(sent, folder, report)
        manifest = Manifest(
            version=CLUSTER_VERSION if servers.is_cluster else VERSION,
            korvet=version("korvet"),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created_ms // 1000)),
            created_ms=created_ms,
            server=f"{kind} {server[f'{kind}_version']}",
            keyspace=keyspace.prefix,
            cluster_id=cluster_id,
            format=data_format,
            database=first.address.database,
            topics=topics,
            **msgspec.structs.asdict(received[0]),
            others=tuple(received[1:]),
        )
        files.write(folder / MANIFEST, [encode(manifest)], lambda done: None)
    return manifest


def _receive(sent: Sequence[Begun], folder: Path, report: Report) -> list[Snapshot]:
    """Write the snapshots side by side: servers give up receivers that wait. Raises BackupError."""
    sizes = [0] * len(sent)

    def receive(number: int) -> Snapshot:
        def received(size: int) -> None:
            sizes[number] = size
            report("receiving", sum(sizes), None)

        each = sent[number]
        pieces = _checked(each.connection.snapshot())
        size, checksum = files.write(folder / file_of(number), pieces, received)
        return Snapshot(history=each.history, offset=each.offset, bytes=size, sha256=checksum)

    with threads([each.connection for each in sent]) as pool:
        running = [pool.submit(receive, number) for number in range(len(sent))]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        for each in done:
            each.result()
        return [each.result() for each in running]


def back_up_folder(data_dir: Path, keyspace: Keyspace, target: Path, report: Report) -> Manifest:
    """Back up the data folder of an embedded server, whether or not `korvet serve` runs on it.

    Call it on the main thread. Raises BackupError and EmbeddedServerError.
    """
    data_dir = data_dir.absolute()
    if not append_only.has_data(data_dir):
        raise BackupError(f"{data_dir} contains no data of an embedded server")
    with _running(data_dir, report) as url:
        return back_up_server(url, keyspace, target, report)


@contextlib.contextmanager
def _running(data_dir: Path, report: Report) -> Iterator[str]:
    """Yields the URL of the server on a folder, which is started if none runs."""
    socket = socket_of(data_dir)
    if socket is not None and _answers(url_of(socket)):
        yield url_of(socket)
        return
    server = EmbeddedServer(data_dir, on_loading=lambda done, total: report("loading", done, total))
    try:
        yield server.start()
    finally:
        server.stop()


def _answers(url: str) -> bool:
    try:
        with RedisConnection(parse_url(url)[0]) as connection:
            connection.call("PING")
    except BackupError:
        return False
    return True


def _identity(connection: RedisConnection, keyspace: Keyspace) -> tuple[str, int, int]:
    """The cluster id of a keyspace, its topics' number and its format. Raises BackupError without one."""
    cluster_id, found = connection.call("HMGET", keyspace.cluster, "id", "format")
    if cluster_id is None:
        raise BackupError(f"there is no keyspace {keyspace.prefix!r} on the server at {connection.address}")
    problem = format_problem(found or b"")
    if problem is not None:
        raise BackupError(f"the keyspace {keyspace.prefix!r} {problem}")
    topics = connection.call("HLEN", keyspace.topics)
    return cluster_id.decode(errors="replace"), topics, counter_of(found)


def _checked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces of a snapshot; raises BackupError if it does not begin as one."""
    head = b""
    for piece in pieces:
        if len(head) < 6:
            head += piece[:6]
            if len(head) >= 6 and not head.startswith(_SIGNS):
                raise BackupError(f"the server has sent {head!r}..., which is no snapshot")
        yield piece
    if len(head) < 6:
        raise BackupError("the server has sent an empty snapshot")
