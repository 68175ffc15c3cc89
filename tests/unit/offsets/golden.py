"""The captured `__consumer_offsets` topics in tests/data/consumer_offsets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.offsets_replay import OffsetsReplay

if TYPE_CHECKING:
    from collections.abc import Iterable

DATA = Path(__file__).resolve().parents[2] / "data" / "consumer_offsets"
CAPTURES = (".", "expiry")


@dataclass(frozen=True, slots=True)
class GoldenRecord:
    partition: int
    offset: int
    key: bytes
    value: bytes | None
    producer_id: int
    transactional: bool
    control: bool

    @property
    def type(self) -> int:
        return int.from_bytes(self.key[:2], "big", signed=True)


@cache
def records(capture: str) -> tuple[GoldenRecord, ...]:
    return tuple(
        GoldenRecord(
            row["partition"],
            row["offset"],
            bytes.fromhex(row["key_hex"]),
            None if row["value_hex"] is None else bytes.fromhex(row["value_hex"]),
            row["producer_id"],
            row["transactional"],
            row["control"],
        )
        for row in rows(capture, "records")
    )


def replayed(captured: Iterable[GoldenRecord]) -> OffsetsReplay:
    """The state after these records in this order."""
    replay = OffsetsReplay()
    for one in captured:
        replay.apply(
            one.partition,
            one.offset,
            one.key,
            one.value,
            producer_id=one.producer_id,
            transactional=one.transactional,
            control=one.control,
        )
    return replay


@cache
def rows(capture: str, name: str) -> tuple[dict[str, Any], ...]:
    text = (DATA / capture / f"{name}.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line) for line in text.split("\n") if line)


@cache
def printed(capture: str, name: str) -> dict[tuple[int, int], str]:
    """The text that a console formatter printed, by (partition, offset)."""
    result = {}
    text = (DATA / capture / f"{name}.jsonl").read_text(encoding="utf-8")
    for line in text.split("\n"):
        if line:
            head, _, decoded = line.partition(',"decoded":')
            position = json.loads(head + "}")
            result[position["partition"], position["offset"]] = decoded.removesuffix("}")
    return result
