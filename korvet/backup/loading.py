"""Sends a staged backup to a server or a cluster: the commands in their order, but the hash with the cluster
ID at the end.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from korvet.backup.connection import RedisConnection, ServerError
from korvet.backup.errors import BackupError
from korvet.backup.files import Report
from korvet.backup.manifest import Manifest
from korvet.backup.numbers import Found, databases, described_by
from korvet.backup.primaries import Primaries
from korvet.embedded import append_only
from korvet.redis.eviction import may_evict_ours

# Limits of one group of commands: enough to keep the server busy, little enough that the replies fit in the
# buffers of the connection.
_GROUP_COMMANDS: Final = 512
_GROUP_BYTES: Final = 1 << 20
# Name of the connection of a restore (CLIENT LIST).
_NAME: Final = "korvet-restore"
_LIBRARY_EXISTS: Final = "already exists"

Command = tuple[bytes, ...]


class LastReplyLostError(BackupError):
    """The connection broke during the last step of a restore, which may have succeeded."""


def load(
    parts: list[Path], keyspaces: list[Found], manifest: Manifest, target: Primaries, report: Report
) -> None:
    """Send the commands of an append-only file to an empty server, or to the servers of an empty cluster by
    the slots of their keys.

    A mark in each keyspace makes brokers refuse it until the end, and makes a repetition possible. The hash
    with the cluster id comes last, in one transaction with the removal of the mark. Raises BackupError;
    LastReplyLostError if it is unknown whether that transaction was executed.
    """
    repeated = check_target(keyspaces, manifest, target)
    _set_marks(keyspaces, manifest, target)
    late = {(each.database, each.keyspace.cluster) for each in keyspaces}
    withheld: list[tuple[int, Command]] = []
    total = sum(path.stat().st_size for path in parts)
    database, done, key = 0, 0, b""
    senders = {each: _Sender(each) for each in target.connections}
    for command in _commands(parts):
        done += sum(map(len, command))
        name = command[0].upper()
        if name == b"SELECT":
            database, key = int(command[1]), b""
        if name == b"SELECT" or len(command) == 1:
            for each in senders.values():
                each.send(command)
        elif (database, command[1]) in late:
            withheld.append((database, command))
        elif name == b"FUNCTION":
            for connection, each in senders.items():
                each.flush()
                _load_functions(connection, command)
        else:
            changed = key != (key := _key(name, command))
            sender = senders[target.of(key)]
            # All commands of a key follow each other.
            if repeated and changed:
                sender.send((b"UNLINK", key))
            sender.send(command)
            report("restoring", min(done, total), total)
    for each in senders.values():
        each.flush()
    # A node that has lost its slots, and what was written to it, has refused nothing.
    target.check_unchanged()
    _finish(keyspaces, withheld, manifest, target)


def check_target(keyspaces: list[Found], manifest: Manifest, target: Primaries) -> bool:
    """Refuse a target that holds other data or evicts keys, or into which another process restores. Returns
    whether it holds an unfinished restore of this backup. Raises BackupError.
    """
    held = 0
    for each in target.connections:
        if _connected(each).count(b" name=%b " % _NAME.encode()) > 1:
            raise BackupError(f"another restore into the server at {each.address} is running")
        policy = each.info("memory").get("maxmemory_policy", "")
        if may_evict_ours(policy):
            raise BackupError(
                f"the server at {each.address} may evict what is restored (maxmemory-policy {policy}): set "
                "it to noeviction or volatile-*"
            )
        held += sum(databases(each).values())
    marks = {_mark(each, target) for each in keyspaces} - {None}
    if not marks and is_restored(manifest, target):
        raise BackupError(
            f"the {target} holds the keyspace {manifest.keyspace!r} of this backup "
            "already, because it has been restored or the backup was made there: `korvet doctor` shows its "
            "state. To restore once more, use another server: this one may hold what was acknowledged since "
            "the backup"
        )
    if not marks and held:
        raise BackupError(
            f"the {target} holds {held} keys, and a backup is restored into an empty one only: use another, "
            "or delete everything there (FLUSHALL)"
        )
    if marks - {manifest.sha256.encode()}:
        raise BackupError(
            f"the {target} holds an unfinished restore of another backup: repeat that "
            "restore, or delete everything there (FLUSHALL)"
        )
    return bool(marks)


def is_restored(manifest: Manifest, target: Primaries) -> bool:
    """Whether a target holds the keyspace of a backup, and no restore of it is unfinished."""
    keyspace = described_by(manifest).keyspace
    server = target.of(keyspace.cluster)
    server.call("SELECT", manifest.database)
    if server.call("EXISTS", keyspace.restoring):
        return False
    cluster_id: bytes | None = server.call("HGET", keyspace.cluster, "id")
    return cluster_id is not None and cluster_id.decode(errors="replace") == manifest.cluster_id


def _connected(server: RedisConnection) -> Any:
    """The list of the server's connections, in which ours has a name."""
    try:
        server.call("CLIENT", "SETNAME", _NAME)
        return server.call("CLIENT", "LIST")
    except ServerError as error:
        raise BackupError(
            f"the server at {server.address} does not show whether another restore is running: {error}. Its "
            "user needs the permission +client|list"
        ) from error


def _set_marks(keyspaces: list[Found], manifest: Manifest, target: Primaries) -> None:
    # The keyspace of the manifest first: a repetition looks for its mark before it knows the others.
    for each in sorted(keyspaces, key=lambda each: each != described_by(manifest)):
        server = target.of(each.keyspace.restoring)
        server.call("SELECT", each.database)
        try:
            server.call("SET", each.keyspace.restoring, manifest.sha256)
        except ServerError as error:
            raise _refused(server, "the mark of a restore", error) from error


def _mark(found: Found, target: Primaries) -> Any:
    server = target.of(found.keyspace.restoring)
    server.call("SELECT", found.database)
    return server.call("GET", found.keyspace.restoring)


def _key(name: bytes, command: Command) -> bytes:
    return command[2] if name == b"XGROUP" else command[1]


def _load_functions(target: RedisConnection, command: Command) -> None:
    """Load a library of an application, unless the application has loaded it already."""
    try:
        target.call(*command)
    except ServerError as error:
        if _LIBRARY_EXISTS not in str(error):
            raise _refused(target, "a library of functions", error) from error


def _finish(
    keyspaces: list[Found], withheld: list[tuple[int, Command]], manifest: Manifest, target: Primaries
) -> None:
    """Make all keyspaces usable: in one transaction in a server; in a cluster, whose transactions have one
    slot, in one for each, the keyspace of the manifest last.
    """
    ordered = sorted(keyspaces, key=lambda each: each == described_by(manifest))
    for together in [[each] for each in ordered] if target.is_cluster else [ordered]:
        commands: list[Sequence[bytes | str | int]] = []
        for each in together:
            hashed = (each.database, each.keyspace.cluster)
            commands.append(("SELECT", each.database))
            commands += [command for database, command in withheld if (database, command[1]) == hashed]
            commands.append(("DEL", each.keyspace.restoring))
        server = target.of(together[0].keyspace.cluster)
        try:
            *queued, done = server.pipeline([("MULTI",), *commands, ("EXEC",)])
        except BackupError as error:
            raise LastReplyLostError(str(error)) from error
        for reply in (*queued, *(done if isinstance(done, list) else (done,))):
            if isinstance(reply, Exception):
                raise _refused(server, "its last step", reply)


def _refused(target: RedisConnection, what: str, reply: Exception) -> BackupError:
    return BackupError(
        f"the server at {target.address} refuses {what}: {reply}. The restore is not finished: run it again"
    )


class _Sender:
    """Sends commands in groups, and checks every reply."""

    def __init__(self, target: RedisConnection) -> None:
        self._target = target
        self._group: list[Command] = []
        self._bytes = 0

    def send(self, command: Command) -> None:
        self._group.append(command)
        self._bytes += sum(map(len, command))
        if len(self._group) >= _GROUP_COMMANDS or self._bytes >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Raises BackupError if a command has failed."""
        group, self._group, self._bytes = self._group, [], 0
        if not group:
            return
        for command, reply in zip(group, self._target.pipeline(group), strict=True):
            if isinstance(reply, ServerError):
                what = b" ".join(command[:2])[:200].decode(errors="replace")
                raise _refused(self._target, repr(what), reply)


def _commands(parts: list[Path]) -> Iterator[Command]:
    for path in parts:
        yield from append_only.commands(path)
