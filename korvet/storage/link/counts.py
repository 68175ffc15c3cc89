"""What is counted of the connections to Redis, for the whole process: servers come and go in a cluster, and
counters must not fall.
"""

from __future__ import annotations

from typing import Final

from korvet.metrics.histogram import Histogram

_NAME_PREFIX: Final = "korvet-"


class LinkCounts:
    """The links of one kind: `write`, `read`, `barrier` and so on."""

    __slots__ = ("connected", "lost", "round_trips")

    def __init__(self) -> None:
        self.round_trips = Histogram()
        """From a command, or the first of several with one answer, to its last reply, in seconds, of every
        eighth command. Commands that wait on the server (WAIT) count with their wait.
        """
        self.connected = 0
        """Connections that were set up."""
        self.lost = 0
        """Connections that broke."""


LINKS: Final[dict[str, LinkCounts]] = {}
"""The counts of all links by kind."""

BARRIER_WAITS: Final = Histogram()
"""How long logs waited for replicas (WAIT, WAITAOF) to confirm what was appended, in seconds."""


def counts_of(name: str) -> LinkCounts:
    """The counts of the links with this name."""
    kind = name.removeprefix(_NAME_PREFIX)
    found = LINKS.get(kind)
    if found is None:
        found = LINKS[kind] = LinkCounts()
    return found
