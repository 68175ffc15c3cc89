from collections.abc import Callable, Sequence
from uuid import UUID

from korvet.records.batch import (
    AppendArguments,
    BatchHeader,
    BytesLike,
    Entries,
    RecordSummary,
)
from korvet.records.produce_request import ProduceRequest

ACCELERATED: bool

def crc32c(data: BytesLike) -> int: ...
def crc32c_portable(data: BytesLike) -> int: ...
def decode_produce(
    frame: memoryview,
    position: int,
    version: int,
    uuid_of: Callable[[bytes], UUID | None],
    as_views: bool,
) -> ProduceRequest: ...
def place_batch(batch: BytesLike, base_offset: int, leader_epoch: int) -> bytes: ...
def parse_batch(data: BytesLike, start: int) -> BatchHeader: ...
def encode_append(
    data: BytesLike, start: int, header: BatchHeader, records: bytes | None, with_timestamps: bool
) -> AppendArguments: ...
def check_records(
    data: BytesLike, start: int, header: BatchHeader, records: bytes | None
) -> RecordSummary: ...
def check_entries(
    data: BytesLike, start: int, header: BatchHeader, records: bytes | None, with_timestamps: bool
) -> RecordSummary: ...
def find_record(
    data: BytesLike,
    start: int,
    header: BatchHeader,
    records: bytes | None,
    from_index: int,
    timestamp_ms: int,
) -> tuple[int, int] | None: ...
def find_invalid(
    data: BytesLike,
    start: int,
    header: BatchHeader,
    records: bytes | None,
    earliest_ms: int,
    latest_ms: int,
    keyed: bool,
    most: int,
) -> list[tuple[int, int, bool]]: ...
def encode_append_records(
    records: Sequence[tuple[bytes | None, bytes | None, int]], producer: tuple[int, int] | None = None
) -> AppendArguments: ...
def entries_to_batches(
    reply: BytesLike,
    start: int,
    end: int,
    *,
    bias: int,
    max_bytes: int,
    leader_epoch: int,
    log_append_time: bool,
    native: Callable[[list[bytes]], bytes],
    base_sequence: int = -1,
    skip_markers: bool = False,
) -> Entries: ...
def record_runs(
    reply: BytesLike, start: int, end: int, *, bias: int, before: int, is_committed: bool
) -> tuple[list[int], list[bytes], int] | None: ...
def resembles_batch(value: BytesLike, offset: int) -> bool: ...
def predict_end_offset(reply: BytesLike, bias: int) -> int: ...
def pack_command(*args: bytes | str | int) -> bytes: ...
def pack_arguments(*args: bytes | str | int) -> bytes: ...
def integer_array(reply: BytesLike) -> tuple[int, ...] | None: ...

class ReplyScanner:
    def __init__(self) -> None: ...
    def reset(self) -> None: ...
    def feed(self, buffer: BytesLike, start: int, end: int, replies: int = 1) -> int: ...
