import numpy as np
from numpy.typing import NDArray

BytesLike = bytes | bytearray | memoryview | NDArray[np.uint8]

ACCELERATED: bool

class Strings:
    count: int
    size: int
    nulls: int
    ends: NDArray[np.int32]
    validity: NDArray[np.uint8]
    data: NDArray[np.uint8]
    def __init__(self, most: int, room: int) -> None: ...

class Rows:
    count: int
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    producers: NDArray[np.int64]
    transactional: bool
    keys: Strings
    values: Strings
    header_ends: NDArray[np.int32]
    header_names: Strings
    header_values: Strings
    last_id: bytes
    def __init__(self, most: int, room: int, headers: int, with_headers: bool) -> None: ...
    def take_entries(
        self, reply: BytesLike, size: int, skipped: int, bias: int, append_times: bool
    ) -> bool: ...
    def take_records(
        self,
        section: BytesLike,
        count: int,
        base_offset: int,
        base_ms: int,
        append_ms: int | None,
        producer: int,
        first: int,
        stop: int,
    ) -> bool: ...

def batches_in(
    reply: BytesLike, size: int, skipped: int, bias: int
) -> tuple[list[tuple[int, int]], bytes] | None: ...
