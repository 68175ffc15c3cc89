"""What a backup consists of: a folder with a snapshot, and a manifest that describes and protects it."""

from pathlib import Path
from typing import Final

import msgspec

from korvet.backup.errors import BackupError

MANIFEST: Final = "backup.json"
SNAPSHOT: Final = "data.rdb"
VERSION: Final = 1
"""Version of the layout of backups."""


class Version(msgspec.Struct, frozen=True):
    """The field that all versions of the manifest have."""

    version: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the manifest."""

    version: int = VERSION
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


def encode(manifest: Manifest) -> bytes:
    """The bytes of the file."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode(encoded: bytes) -> Manifest:
    """Parse the file. Raises BackupError for another version and for a damaged file."""
    try:
        version = msgspec.json.decode(encoded, type=Version).version
        if version == VERSION:
            return msgspec.json.decode(encoded, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackupError(f"the manifest is damaged: {error}") from error
    raise BackupError(f"the backup has version {version}; this korvet reads version {VERSION} only")


def read(backup: Path) -> Manifest:
    """Read the manifest of a backup, and check the size of its snapshot. Raises BackupError."""
    try:
        encoded = (backup / MANIFEST).read_bytes()
        size = (backup / SNAPSHOT).stat().st_size
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BackupError(f"{backup} is no complete backup: {error.filename} does not exist") from error
    except OSError as error:
        raise BackupError(f"{backup} cannot be read: {error}") from error
    try:
        manifest = decode(encoded)
    except BackupError as error:
        raise BackupError(f"{backup}: {error}") from error
    if size != manifest.bytes:
        raise BackupError(
            f"{backup} is damaged: {SNAPSHOT} has {size} bytes, not {manifest.bytes} as in the manifest"
        )
    return manifest
