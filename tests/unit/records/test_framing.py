"""What producers may send compressed: the framings that every client can read, and no others."""

from __future__ import annotations

import random
from typing import Final

import lz4.frame
import pytest

from korvet.offsets.record_batch import GZIP, LZ4, SNAPPY, ZSTD
from korvet.records.batch import BatchError
from korvet.records.compression import NAMES, compress, decompress
from korvet.records.framing import unpack
from tests.support.framings import READ_BY_ALL, SEVERAL_FRAMES, Framing, framings

PLAIN: Final = b"".join(b"%d, " % random.Random(7).getrandbits(n % 200) for n in range(1, 9000))
MOST_BYTES: Final = 1 << 22
# The decompressors read these, so stored batches of former releases may have them.
STORED_ONCE: Final = {
    GZIP: {"two members", "empty member first", "empty members around it"},
    SNAPPY: {"version 2", "version 0", "compatible with version 2", "little-endian version"},
    LZ4: {
        "linked blocks",
        "one block that may be linked",
        "dictionary",
        "empty stored block first",
        "empty stored block last",
        "empty block first",
        "empty block last",
        *SEVERAL_FRAMES,
    },
    ZSTD: set(),
}


def named(framing: Framing) -> str:
    return f"{NAMES[framing.codec]}: {framing.name}"


@pytest.mark.parametrize("framing", framings(PLAIN), ids=named)
def test_a_framing(framing: Framing) -> None:
    codec, name, section = framing.codec, framing.name, framing.section
    accepted = name in READ_BY_ALL[codec]
    if accepted or name in STORED_ONCE[codec]:
        assert decompress(codec, section, MOST_BYTES) == PLAIN
    if accepted:
        assert unpack(codec, memoryview(section), MOST_BYTES) == PLAIN
        return
    with pytest.raises(BatchError, match=NAMES[codec]) as caught:
        unpack(codec, section, MOST_BYTES)
    assert caught.value.kind == "invalid_record"
    assert ("not every client" in str(caught.value)) is (name in STORED_ONCE[codec])


def test_the_tables_name_framings() -> None:
    known = {codec: {each.name for each in framings(PLAIN) if each.codec == codec} for codec in READ_BY_ALL}
    for codec, names in known.items():
        assert READ_BY_ALL[codec] | STORED_ONCE[codec] <= names
        assert not READ_BY_ALL[codec] & STORED_ONCE[codec]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("plain", [b"x", PLAIN, bytes(300_000)], ids=["short", "long", "zeros"])
def test_what_korvet_compresses_is_read_by_all(codec: int, plain: bytes) -> None:
    """Compaction writes such batches."""
    assert unpack(codec, compress(codec, plain), MOST_BYTES) == plain


def test_the_lz4_frames_of_the_test_are_sound() -> None:
    sound = [each.section for each in framings(PLAIN) if each.codec == LZ4 and each.name in READ_BY_ALL[LZ4]]
    assert all(lz4.frame.decompress(section) == PLAIN for section in sound)
