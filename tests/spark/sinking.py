"""Rows for the sink."""

from __future__ import annotations

import random
from typing import Any

from korvet.spark.source.sink.columns import SinkRow


def row(value: bytes | None, key: bytes | None = None, **more: Any) -> SinkRow:
    """Return a row with defaults for the columns that aren't given."""
    given = {"topic": None, "partition": None, "headers": (), "timestamp_ms": None, **more}
    return SinkRow(key, value, **given)


def random_rows(seed: int, count: int, partitions: int) -> list[SinkRow]:
    """Return rows with keys, without keys, and with partitions; each value names its row."""
    chance = random.Random(seed)
    return [
        row(
            b"%d" % number,
            chance.choice([None, b"%d" % chance.randrange(50)]),
            partition=chance.choice([None, None, chance.randrange(partitions)]),
            headers=chance.choice([(), (("h", b"1"), ("h", None))]),
            timestamp_ms=chance.choice([None, 1_700_000_000_000 + number]),
        )
        for number in range(count)
    ]
