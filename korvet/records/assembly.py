"""A record batch from the bytes that its CRC covers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.offsets.record_batch import HEADER_START, LENGTH_EXCLUDES_BYTES, MAGIC
from korvet.records.kernel import crc32c

if TYPE_CHECKING:
    from korvet.records.batch import BytesLike


def assemble_batch(base_offset: int, leader_epoch: int, *parts: BytesLike) -> bytes:
    """The record batch whose bytes are `parts` from the attributes on; length and CRC are computed."""
    checked = b"".join(parts)
    length = HEADER_START.size - LENGTH_EXCLUDES_BYTES + len(checked)
    return HEADER_START.pack(base_offset, length, leader_epoch, MAGIC, crc32c(checked)) + checked
