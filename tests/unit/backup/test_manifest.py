"""The manifest of a backup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from korvet.backup.errors import BackupError
from korvet.backup.manifest import MANIFEST, SNAPSHOT, Manifest, decode, encode, read

if TYPE_CHECKING:
    from pathlib import Path

GIVEN = Manifest(
    version=1,
    korvet="0.1.0",
    created="2026-01-31T12:00:00Z",
    created_ms=1_769_860_800_000,
    server="valkey 9.0.1",
    history="0" * 40,
    offset=17,
    keyspace="korvet",
    cluster_id="id",
    format=3,
    database=0,
    topics=2,
    bytes=4,
    sha256="00",
)


def test_a_manifest_survives_its_file() -> None:
    assert decode(encode(GIVEN)) == GIVEN


@pytest.mark.parametrize("version", [0, 3, 99])
def test_another_version_is_named(version: int) -> None:
    encoded = encode(msgspec.structs.replace(GIVEN, version=version))
    with pytest.raises(BackupError, match=f"has version {version}; this korvet reads versions 1 and 2 only"):
        decode(encoded)


def test_another_version_may_have_other_fields() -> None:
    with pytest.raises(BackupError, match="has version 3"):
        decode(b'{"version": 3, "parts": []}')


@pytest.mark.parametrize("encoded", [b"", b"{", b"[]", b'{"version": "1"}', b'{"version": 1}', b"\xff\xfe"])
def test_a_damaged_manifest_is_refused(encoded: bytes) -> None:
    with pytest.raises(BackupError, match="the manifest is damaged"):
        decode(encoded)


def test_every_prefix_of_a_manifest_is_refused() -> None:
    encoded = encode(GIVEN).rstrip()
    for size in range(len(encoded)):
        with pytest.raises(BackupError):
            decode(encoded[:size])


def test_a_folder_without_one_of_its_files_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=f"is no complete backup: .*{MANIFEST} does not exist"):
        read(tmp_path)
    (tmp_path / MANIFEST).write_bytes(encode(GIVEN))
    with pytest.raises(BackupError, match=f"is no complete backup: .*{SNAPSHOT} does not exist"):
        read(tmp_path)
    (tmp_path / SNAPSHOT).write_bytes(b"12345")
    with pytest.raises(BackupError, match="has 5 bytes, not 4 as in the manifest"):
        read(tmp_path)
    (tmp_path / SNAPSHOT).write_bytes(b"1234")
    assert read(tmp_path) == GIVEN
