"""How long a coordinator takes to load the commits of its groups, each with a key of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvloop

from benchmarks.commits import measure_load, new_server
from benchmarks.rig.measuring import KORVET, Row, Sample, interleaved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig

RECORDS = 200_000
PARTITIONS = 200
UNITS = {"coordinator loaded": "s", "broker started": "s", "longest block of the event loop": "ms"}


def measure(rig: Rig) -> Iterator[Row]:
    """One round: writing the records takes longer than loading them."""
    count = rig.scaled(RECORDS)
    yield from interleaved(f"load of {count:,} commits", {KORVET: lambda: loaded(count)}, 1, UNITS)


def loaded(count: int) -> Sample:
    """Write commits for a topic of many partitions, and load them anew."""
    server = new_server(PARTITIONS)
    try:
        load = uvloop.run(measure_load(server, count, count // PARTITIONS, PARTITIONS))
    finally:
        server.discard()
    values = (load.coordinator_s, load.broker_start_s, load.longest_block_ms)
    return Sample(dict(zip(UNITS, values, strict=True)))
