"""The JSON of native entries."""

from __future__ import annotations

import pytest

from korvet.records.native import native_json


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([], "{}"),
        ([b"b", b"1", b"a", b"zwei \xc3\xa4"], '{"b":"1","a":"zwei ä"}'),
        ([b"a", b"1", b"b", b"2", b"a", b"\xff"], '{"a":["1",{"base64":"/w=="}],"b":"2"}'),
        ([b"\xff\x00", b""], '{"base64:/wA=":""}'),
        ([b"base64:/wA=", b"x"], '{"base64:YmFzZTY0Oi93QT0=":"x"}'),
        ([b"", b'"\n\x00'], '{"":"\\"\\n\\u0000"}'),
    ],
)
def test_native_json(fields: list[bytes], text: str) -> None:
    assert native_json(fields).decode() == text
