"""The phase of a broker's life, for metrics and readiness."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What a broker does as a whole. The phases follow each other in this order."""

    STARTING = "starting"
    """It connects to Redis and takes its lease."""
    LOADING = "loading"
    """It reads groups and transactions."""
    SERVING = "serving"
    DRAINING = "draining"
    """It hands its partitions over and accepts no new clients."""
    STOPPING = "stopping"
    """It closes its connections."""


class Lifecycle:
    """The phase of one broker."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = Phase.STARTING
