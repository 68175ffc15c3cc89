"""Turns a backup into an append-only file of plain commands, which a server of any kind and version loads.

One server loads the snapshots of all servers, the numbers that must not repeat are raised, and the server
writes its data as commands.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from korvet.backup import files
from korvet.backup.connection import RedisConnection
from korvet.backup.errors import BackupError
from korvet.backup.files import Report
from korvet.backup.manifest import Manifest
from korvet.backup.numbers import Found, databases, described_by, find_keyspaces, raise_numbers
from korvet.embedded import append_only
from korvet.embedded.binary import OLDEST_VERSION, installed_servers
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.module import OFF
from korvet.embedded.rewrite import rewrite_file
from korvet.embedded.server import EmbeddedServer
from korvet.embedded.writer import forget_writer
from korvet.records.kernel import pack_command
from korvet.redis.address import parse_url
from korvet.redis.functions import PUBLIC_LIBRARY, is_versioned

_BASE: Final = "appendonly.aof.1.base.rdb"
# The nodes of a cluster have the same functions, and a server refuses to load a library a second time.
_FORGET_FUNCTIONS: Final = pack_command("FUNCTION", "FLUSH")


class Staged(NamedTuple):
    """What a staged backup holds."""

    keyspaces: list[Found]
    databases: list[int]


def stage(backup: Path, manifest: Manifest, folder: Path, report: Report, *, earlier: int = 0) -> Staged:
    """Fill an empty folder with the append-only file. Returns what is in it. `earlier`: how often the backup
    has been restored before.

    Call it on the main thread. Raises BackupError and EmbeddedServerError: the snapshot is damaged, no
    installed server can load it, the keyspace has another format, or the disk is full.
    """
    _copy(backup, manifest, folder, report)
    with _loaded(folder, manifest, report) as server, RedisConnection(parse_url(server.url)[0]) as connection:
        found = find_keyspaces(connection)
        if described_by(manifest) not in found:
            raise BackupError(f"{backup} does not hold the keyspace {manifest.keyspace!r} of its manifest")
        for each in found:
            raise_numbers(connection, each, manifest.created_ms, earlier)
        _forget_library(connection)
        staged = Staged(found, sorted(databases(connection)))
        rewrite_file(server, report)
    return staged


def _copy(backup: Path, manifest: Manifest, folder: Path, report: Report) -> None:
    """Make the snapshots the parts of an append-only file, and check the checksums of the copies."""
    parts = folder / append_only.FOLDER
    parts.mkdir(mode=0o700)
    copied, names = 0, [_BASE]

    def copying(done: int) -> None:
        report("reading", copied + done, manifest.total_bytes)

    for name, snapshot in manifest.snapshots.items():
        if copied:
            names.append(f"appendonly.aof.{len(names)}.incr.aof")
            files.write(parts / names[-1], [_FORGET_FUNCTIONS], lambda done: None)
            # A server loads a snapshot also as a later part.
            names.append(f"appendonly.aof.{len(names)}.incr.aof")
        size, checksum = files.write(parts / names[-1], files.read(backup / name), copying)
        if (size, checksum) != (snapshot.bytes, snapshot.sha256):
            raise BackupError(f"{backup} is damaged: the checksum of {name} is not the one of its manifest")
        copied += size
    lines = [f"file {name} seq {n or 1} type {'i' if n else 'b'}\n" for n, name in enumerate(names)]
    files.write(parts / append_only.MANIFEST, ["".join(lines).encode()], lambda done: None)


@contextlib.contextmanager
def _loaded(folder: Path, manifest: Manifest, report: Report) -> Iterator[EmbeddedServer]:
    """Yields a server that has loaded the folder: the first installed one that can."""
    reasons = []
    for binary in installed_servers():
        if binary.version < OLDEST_VERSION:
            continue
        server = EmbeddedServer(
            folder,
            binary=binary,
            module=OFF,
            appendfsync="everysec",
            on_loading=lambda done, total: report("loading", done, total),
        )
        try:
            server.start()
        except OSError as error:
            raise BackupError(f"no server can be started on {folder}: {error}") from error
        except EmbeddedServerError:
            reasons.append(f"{binary} does not load it{server.log_tail()}")
            # The next one may be of another kind.
            forget_writer(folder)
            continue
        try:
            yield server
        finally:
            server.stop()
        return
    raise BackupError(
        f"no installed server can load the backup, which {manifest.server} wrote: install that server or a "
        "newer one of its kind on PATH\n" + "\n".join(reasons or ["none is installed"])
    )


def _forget_library(connection: RedisConnection) -> None:
    """Delete korvet's Function libraries: a broker loads those of its own release."""
    for listed in connection.call("FUNCTION", "LIST", "LIBRARYNAME", f"{PUBLIC_LIBRARY}*"):
        name = dict(zip(listed[::2], listed[1::2], strict=True))[b"library_name"].decode()
        if name == PUBLIC_LIBRARY or is_versioned(name):
            connection.call("FUNCTION", "DELETE", name)
