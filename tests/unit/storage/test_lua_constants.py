"""Numbers that Lua and Python both name have one value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import korvet.storage
from korvet.offsets import packing, record_batch
from korvet.records.batch import SPAN_RECORDS
from korvet.storage.log.producer_sequences import REMEMBERED_BATCHES

SCRIPTS = sorted(Path(next(iter(korvet.storage.__path__))).rglob("*.lua"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BATCH_HEADER_BYTES", record_batch.HEADER_BYTES),
        ("SEQUENCE_NUMBERS", record_batch.MAX_PRODUCER_SEQUENCE + 1),
        ("SEQUENCES", packing.MAX_SEQUENCE + 1),
        ("SPAN_RECORDS", SPAN_RECORDS),
        ("REMEMBERED_BATCHES", REMEMBERED_BATCHES),
    ],
)
def test_a_constant_of_lua_is_that_of_python(name: str, value: int) -> None:
    found = [
        int(number)
        for script in SCRIPTS
        for number in re.findall(rf"^local {name} = (\d+)$", script.read_text("utf-8"), re.MULTILINE)
    ]
    assert found == [value]
