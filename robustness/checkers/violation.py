"""What a checker finds."""

from __future__ import annotations

from dataclasses import dataclass

from robustness.history import UNKNOWN


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule. `events` has the indexes of the events that prove it, in the order of the history."""

    kind: str
    message: str
    topic: str = ""
    partition: int = UNKNOWN
    offset: int = UNKNOWN
    events: tuple[int, ...] = ()
    is_note: bool = False
    """Whether Kafka allows it, so that it is only reported."""
