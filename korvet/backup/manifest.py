"""What a backup consists of: a folder with a snapshot of each server, and a manifest that describes and
protects them.
"""

from pathlib import Path
from typing import Final

import msgspec

from korvet.backup.errors import BackupError

MANIFEST: Final = "backup.json"
SNAPSHOT: Final = "data.rdb"
VERSION: Final = 1
"""Version of the layout of backups of one server."""
CLUSTER_VERSION: Final = 2
"""Version of the layout of backups of a Redis Cluster."""


class Version(msgspec.Struct, frozen=True):
    """The field that all versions of the manifest have."""

    version: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one server."""

    history: str
    """ID of the server's replication history (master_replid)."""
    offset: int
    """The replication offset to which the snapshot extends."""
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The contents of the manifest. In a backup of a cluster, history, offset, size and checksum are those of
    the server that has the hash of the cluster.
    """

    version: int
    korvet: str
    """Version of the korvet that made the backup."""
    created: str
    """When the backup began: UTC, in ISO 8601."""
    server: str
    """Kind and version of the server, for example `valkey 9.0.1`."""
    history: str
    """ID of the server's replication history (master_replid)."""
    offset: int
    """The replication offset to which the snapshot extends."""
    keyspace: str
    cluster_id: str
    format: int
    """Version of the keyspace's format."""
    database: int
    topics: int
    created_ms: int
    """`created` in ms since the epoch."""
    bytes: int
    """Size of the snapshot."""
    sha256: str
    """Checksum of the snapshot."""
    others: tuple[Snapshot, ...] = ()
    """Snapshots of the other primaries of a cluster."""

    @property
    def snapshots(self) -> dict[str, Snapshot]:
        """All snapshots by the names of their files."""
        first = Snapshot(history=self.history, offset=self.offset, bytes=self.bytes, sha256=self.sha256)
        return {file_of(number): each for number, each in enumerate((first, *self.others))}

    @property
    def total_bytes(self) -> int:
        """Size of all snapshots."""
        return sum(each.bytes for each in self.snapshots.values())


def file_of(number: int) -> str:
    """The name of the file of a snapshot; 0 is the first one."""
    return f"data-{number}.rdb" if number else SNAPSHOT


def encode(manifest: Manifest) -> bytes:
    """The bytes of the file."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode(encoded: bytes) -> Manifest:
    """Parse the file. Raises BackupError for another version and for a damaged file."""
    try:
        version = msgspec.json.decode(encoded, type=Version).version
        if version in {VERSION, CLUSTER_VERSION}:
            return msgspec.json.decode(encoded, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackupError(f"the manifest is damaged: {error}") from error
    raise BackupError(f"the backup has version {version}; this korvet reads versions 1 and 2 only")


def read(backup: Path) -> Manifest:
    """Read the manifest of a backup, and check the sizes of its snapshots. Raises BackupError."""
    try:
        manifest = decode((backup / MANIFEST).read_bytes())
        sizes = {name: (backup / name).stat().st_size for name in manifest.snapshots}
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BackupError(f"{backup} is no complete backup: {error.filename} does not exist") from error
    except OSError as error:
        raise BackupError(f"{backup} cannot be read: {error}") from error
    except BackupError as error:
        raise BackupError(f"{backup}: {error}") from error
    for name, each in manifest.snapshots.items():
        if sizes[name] != each.bytes:
            raise BackupError(
                f"{backup} is damaged: {name} has {sizes[name]} bytes, not {each.bytes} as in the manifest"
            )
    return manifest
