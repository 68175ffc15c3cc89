"""Record batches as a log takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from korvet.records.batch import BatchHeader, BytesLike


class ReceivedBatch(msgspec.Struct):
    """A record batch as a producer sent it."""

    data: BytesLike
    header: BatchHeader
    plain: bytes | None
    """The decompressed records if the batch has a codec, else None."""
