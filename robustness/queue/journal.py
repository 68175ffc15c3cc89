"""What workers note of records: a line for what they have got, and one for what was accepted.

A line is written at once, so a worker that is killed loses at most the one that it was about to write.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TAKEN: Final = "taken"
ACCEPTED: Final = "accepted"


class Journal:
    """The notes of one worker."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, offsets: Iterable[int]) -> None:
        """Write a line."""
        os.write(self._file, " ".join([what, *map(str, offsets)]).encode() + b"\n")


class Notes:
    """How often a worker took each record, and was told of its acceptance."""

    def __init__(self, lines: Iterable[str], *, was_killed: bool) -> None:
        self.was_killed = was_killed
        self.taken: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()
        for line in lines:
            if line.endswith("\n"):
                what, *offsets = line.split()
                (self.taken if what == TAKEN else self.accepted).update(map(int, offsets))

    @property
    def unaccepted(self) -> Counter[int]:
        """Records that it took, and whose acceptance it was not told of."""
        return self.taken - self.accepted
