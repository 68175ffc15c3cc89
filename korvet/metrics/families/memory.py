"""The forecast of memory: how fast topics grow, and what retention needs."""

from __future__ import annotations

from typing import Final

from korvet.metrics.family import Family, Kind

LIMIT: Final = Family(
    "korvet_memory_limit_bytes",
    Kind.GAUGE,
    "maxmemory of the server, or the memory of its machine or container. Reported by the controller.",
    ("server",),
    by_one_broker=True,
)
NEEDED: Final = Family(
    "korvet_memory_needed_bytes",
    Kind.GAUGE,
    "Memory that the server will use once each partition has what its retention keeps, at the rate of the "
    "last hour; +Inf if nothing ends the growth of a topic. Reported by the controller.",
    ("server",),
    by_one_broker=True,
)
FULL_SECONDS: Final = Family(
    "korvet_memory_full_seconds",
    Kind.GAUGE,
    "Time until the server reaches maxmemory, or the memory of its machine, at the rate of the last hour; "
    "younger topics count with their own time; +Inf if it does not. Reported by the controller.",
    ("server",),
    by_one_broker=True,
)
BYTES_PER_SECOND: Final = Family(
    "korvet_topic_bytes_per_second",
    Kind.GAUGE,
    "Payload appended to the topic in a second, in the last hour. Reported by the controller.",
    ("topic",),
    by_one_broker=True,
)
