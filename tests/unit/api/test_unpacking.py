"""The budget of plain bytes: whoever gets batches decompressed gives back what they hold."""

from __future__ import annotations

import asyncio
import gzip

from korvet.api.producing.unpacking import Unpacked, Unpacking
from korvet.records import kernel
from tests.api.batches import GZIP, batch

MOST_BYTES = 1 << 20


async def test_batches_that_nobody_holds_any_more_are_counted_no_more() -> None:
    """Whatever became of the callback that would have released them."""
    data = batch([(b"k", b"v" * 20_000)], attributes=GZIP, compress=gzip.compress)
    header = kernel.parse_batch(data, 0)
    unpacking = Unpacking(MOST_BYTES, asyncio.get_running_loop())
    held: list[Unpacked] = []
    while (unpacked := unpacking.at_once(data, header, MOST_BYTES)) is not None:
        held.append(unpacked)
        assert len(held) * len(unpacked.plain) <= MOST_BYTES
        await asyncio.sleep(0)
    count = len(held)
    assert count > 0
    del unpacked
    held.clear()
    await asyncio.sleep(0)
    assert unpacking.at_once(data, header, MOST_BYTES) is not None
    unpacking.close()
