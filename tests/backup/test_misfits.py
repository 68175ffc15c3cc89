"""Backups and targets that do not fit this release or its server."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from korvet.backup.manifest import MANIFEST, SNAPSHOT
from tests.backup.contents import failure, fill, success

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.redis_server import Server

    Start = Callable[..., Server]


def test_a_backup_with_another_keyspace_of_a_later_format_is_refused(start: Start, tmp_path: Path) -> None:
    """Its leader epochs and producer IDs would repeat."""
    server = start()
    fill(server.client)
    server.client.hset("{later}:cluster", mapping={"id": "x", "format": 99})
    server.client.hset("{application}:cluster", mapping={"id": "x", "format": "json"})
    success("backup", tmp_path / "backup", "--redis", server.url)
    message = failure("restore", tmp_path / "backup", "--check")
    assert "the keyspace 'later' in database 0 has format 99" in message
    server.client.delete("{later}:cluster")
    success("backup", tmp_path / "other", "--redis", server.url)
    success("restore", tmp_path / "other", "--check")


@pytest.mark.short
def test_a_target_that_evicts_keys_is_refused(start: Start, tmp_path: Path) -> None:
    """Else it evicts a part of the data while they are restored, and the restore succeeds nevertheless."""
    source = start(kind="redis")
    fill(source.client)
    for partition in range(1, 400):
        source.client.xadd(f"korvet:orders:{partition}", {"value": b"v" * 20_000}, id="1-0")
    success("backup", tmp_path / "backup", "--redis", source.url)
    target = start("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru", kind="redis")
    assert "maxmemory-policy" in failure("restore", tmp_path / "backup", "--redis", target.url)


def test_a_snapshot_of_redis_7_4_is_loaded_by_the_server_in_the_wheel(start: Start, tmp_path: Path) -> None:
    """Redis 7.4 to 8 write version 12 and later, which Valkey refuses with `rdb-version-check strict`."""
    source, folder = start(kind="redis"), tmp_path / "backup"
    fill(source.client)
    success("backup", folder, "--redis", source.url)
    written = (folder / SNAPSHOT).read_bytes()
    # Without a checksum of its own.
    changed = b"REDIS0012" + written[9:-8] + bytes(8)
    (folder / SNAPSHOT).write_bytes(changed)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["sha256"] = hashlib.sha256(changed).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    success("restore", folder, "--check")
