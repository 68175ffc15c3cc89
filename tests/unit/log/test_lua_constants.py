"""Numbers that Lua, Python and C all name have one value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import korvet
import korvet.redis.module
from korvet.log import append_calls, layouts
from korvet.offsets import packing, record_batch
from korvet.records.batch import AppendForm

if TYPE_CHECKING:
    import struct

SCRIPTS = sorted(Path(next(iter(korvet.__path__))).glob("*/lua/*.lua"))
MODULE = Path(korvet.redis.module.__file__).with_name("korvet_module.c")
LUA_CONSTANTS = re.compile(r"^local ([A-Z][A-Z_, ]*[A-Z]) = ([^-\n]+?)(?: --.*)?$", re.MULTILINE)


def lua_values(name: str) -> list[str]:
    """What the Lua files assign to a constant."""
    found = []
    for script in SCRIPTS:
        for names, values in LUA_CONSTANTS.findall(script.read_text("utf-8")):
            assigned = dict(zip(names.split(", "), values.split(", "), strict=False))
            found += [assigned[name]] if name in assigned else []
    return found


def module_value(name: str) -> int:
    """What the server module defines for a constant."""
    (found,) = re.findall(rf"^#define {name} (\d+)$", MODULE.read_text("utf-8"), re.MULTILINE)
    return int(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BATCH_HEADER_BYTES", record_batch.HEADER_BYTES),
        ("SEQUENCE_NUMBERS", record_batch.MAX_PRODUCER_SEQUENCE + 1),
        ("SEQUENCES", packing.MAX_SEQUENCE + 1),
        ("SPAN_RECORDS", module_value("SPAN_RECORDS")),
        ("RECORDS", AppendForm.RECORDS),
        ("WHOLE", AppendForm.WHOLE),
        ("PACKED", AppendForm.PACKED),
        ("SENT", layouts._SENT),
        ("APPEND_TIME", layouts._APPEND_TIME),
    ],
)
def test_a_constant_of_lua_is_that_of_python_and_c(name: str, value: int) -> None:
    assert lua_values(name) == [str(int(value))]


@pytest.mark.parametrize(
    ("name", "packed"),
    [("CALL_NUMBERS", append_calls._CALL_NUMBERS), ("BATCH_NUMBERS", append_calls._BATCH_NUMBERS)],
)
def test_packed_numbers_have_the_format_of_lua(name: str, packed: struct.Struct) -> None:
    assert lua_values(name) == ["'>" + "d" * (packed.size // 8) + "'"]
    assert lua_values(f"{name}_BYTES") == [str(packed.size)]


def test_the_module_has_the_packing_of_entry_ids() -> None:
    assert module_value("SEQUENCE_BITS") == packing.SEQUENCE_BITS
