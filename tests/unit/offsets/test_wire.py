"""Strings that are not UTF-8. What is expected was read from Kafka 4.4."""

from __future__ import annotations

import pytest

from korvet.offsets.wire import DecodeError, replaced_text

R = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (b"Gr\xfc\xdfe", f"Gr{R * 2}e"),
        # Half a surrogate pair, whole, truncated, two, and bytes that follow.
        (b"\xed\xa0\x80", R),
        (b"\xed\xa0", R),
        (b"\xed\xa0x", f"{R}x"),
        (b"\xed\xa0\x80\xed\xb0\x80", R * 2),
        (b"\xed\xbf\xbf\x80", R * 2),
        (b"\xed\xa0\xc3\xa9", f"{R}é"),
        (b"\xed\xa0\x80a\xed", f"{R}a{R}"),
        (b"\xedx\xff", f"{R}x{R}"),
        (b"\xed\x9f\xbf\xee\x80\x80\xff", f"\ud7ff\ue000{R}"),
        # Overlong forms, and code points above U+10FFFF.
        (b"\xc0\xaf", R * 2),
        (b"\xe0\x80\x80", R * 3),
        (b"\xe0\x9f", R * 2),
        (b"\xf0\x8f\xbf\xbf", R * 4),
        (b"\xf4\x90\x80\x80", R * 4),
        (b"\xf5\x80\x80\x80", R * 4),
        (b"\xf8\x88\x80\x80\x80", R * 5),
        # Truncated.
        (b"\xe2\x98", R),
        (b"\xe2\x98m", f"{R}m"),
        (b"\xf0\x9f\x92x", f"{R}x"),
        (b"\xf0\x9f\x92\xc3\xa9", f"{R}é"),
        (b"\xf4\x8fx", f"{R}x"),
        (b"\xe1\x80\xe2\xf0\x91\x92\xf1\xbfA", f"{R * 4}A"),
        (b"a\0b\xef\xbb\xbf\xff", f"a\0b\N{ZERO WIDTH NO-BREAK SPACE}{R}"),
    ],
)
def test_each_malformed_sequence_is_one_replacement(encoded: bytes, text: str) -> None:
    assert replaced_text(encoded) == text


def test_a_text_that_no_string_can_hold_is_refused() -> None:
    assert replaced_text(b"\xff" * 10_922) == R * 10_922
    with pytest.raises(DecodeError, match="more than 32767 bytes"):
        replaced_text(b"\xff" * 10_923)
