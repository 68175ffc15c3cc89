# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Record batches out of Produce requests, to stream entries and back, in one pass over the bytes each time.

One source in two forms: setup.py joins these modules into one unit, which Cython compiles (pure-Python mode),
so that calls between them are inlined; uncompiled they run unchanged, slower, with the same results.
Every byte that comes in is untrusted: lengths are compared before bytes are read or positions added, and no
arithmetic leaves 64 bits (so both forms agree). Positions are indices into buffers: `p` is read, `w` is
written, and the next byte is written at `o`. The compiled form passes structs by value, the other one
by reference: a function that changes a struct returns it, and its caller uses only the returned one.
"""

from __future__ import annotations

from korvet.records.kernel.append import encode_append, encode_append_records
from korvet.records.kernel.batches import entries_to_batches, predict_end_offset
from korvet.records.kernel.header import parse_batch, place_batch
from korvet.records.kernel.octets import crc32c, crc32c_portable
from korvet.records.kernel.produce_request import decode_produce
from korvet.records.kernel.records import check_entries, check_records, find_invalid, find_record
from korvet.records.kernel.replies import ReplyScanner, integer_array
from korvet.records.kernel.resp import pack_arguments, pack_command
from korvet.records.kernel.runs import record_runs
from korvet.records.kernel.whole_batches import resembles_batch

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

__all__ = [
    "ACCELERATED",
    "ReplyScanner",
    "check_entries",
    "check_records",
    "crc32c",
    "crc32c_portable",
    "decode_produce",
    "encode_append",
    "encode_append_records",
    "entries_to_batches",
    "find_invalid",
    "find_record",
    "integer_array",
    "pack_arguments",
    "pack_command",
    "parse_batch",
    "place_batch",
    "predict_end_offset",
    "record_runs",
    "resembles_batch",
]

ACCELERATED: bool = cython.compiled
