"""Features and their levels (KIP-584): which this release supports, and which are finalized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP_VERSION: Final = "group.version"
METADATA_VERSION: Final = "metadata.version"
SHARE_VERSION: Final = "share.version"
DEAD_LETTERS_SINCE: Final = 2
"""The level of share.version from which share groups have dead letters (KIP-1191)."""
TRANSACTION_VERSION: Final = "transaction.version"


class Levels(NamedTuple):
    """The levels of a feature that this release supports, both ends included, and the one in force without
    changes.
    """

    least: int
    most: int
    initial: int


SUPPORTED: Final[Mapping[str, Levels]] = {
    GROUP_VERSION: Levels(0, 1, 1),
    # Those of Kafka 4.4. Tools recognise the release by the finalized one, and nobody can lower it.
    METADATA_VERSION: Levels(7, 33, 33),
    SHARE_VERSION: Levels(0, 2, 2),
    TRANSACTION_VERSION: Levels(0, 2, 2),
}


def greatest_level(name: str) -> int:
    """The highest supported level; -1 for an unknown feature."""
    levels = SUPPORTED.get(name)
    return -1 if levels is None else levels.most


class Features:
    """The finalized levels of the cluster."""

    def __init__(self) -> None:
        self.epoch = 0
        """Grows with each change: clients ignore levels of an earlier epoch."""
        self.levels: Mapping[str, int] = {name: levels.initial for name, levels in SUPPORTED.items()}
        self._stored: Mapping[str, int] = {}

    def replace(self, stored: Mapping[str, int], epoch: int) -> None:
        """Take over the levels that were ever changed, as of `epoch`."""
        if stored != self._stored:
            self._stored, self.epoch = stored, epoch
            self.levels = {name: stored.get(name, levels.initial) for name, levels in SUPPORTED.items()}
