"""A record of a topic, as tests see it."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """A record of a topic. Without a key, or for a tombstone, `key` or `value` is None."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
