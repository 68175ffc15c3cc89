"""The versions that let brokers of two releases share a keyspace.

The *format* is that of the data in Redis. It is stored in the keyspace; `korvet upgrade` raises it, after
which earlier releases refuse the keyspace. The *protocol* is that between two brokers: the highest one that
both speak. It is stored nowhere.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from korvet.redis.errors import StoreError
from korvet.redis.fields import counter_of, shown


class Versions(NamedTuple):
    """The versions with which a release works: from the lowest to the highest, both included."""

    lowest: int
    highest: int

    def include(self, version: int) -> bool:
        """Whether a version is among them."""
        return self.lowest <= version <= self.highest

    def __str__(self) -> str:
        """As in messages: "3 to 4"."""
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest} to {self.highest}"


FORMATS: Final = Versions(3, 4)
"""The formats of this release. With format 4, releases are gone whose only Function library is `korvet`."""
PROTOCOLS: Final = Versions(1, 2)
"""The protocols of this release."""
ANNOUNCING_PROTOCOL: Final = 2
"""From this protocol on, brokers announce new assignments to each other by mail."""
FIRST_FORMATS: Final = Versions(3, 3)
"""The formats of a broker that publishes none."""
FIRST_PROTOCOLS: Final = Versions(1, 1)
"""The protocols of a broker that publishes none."""


class VersionMisfit(StoreError):
    """This release cannot work with the keyspace, or with a live broker. The message advises the operator."""


def is_known_format(stored: bytes | None) -> bool:
    """Whether this release works with a keyspace whose stored format is this."""
    return FORMATS.include(counter_of(stored))


def format_problem(stored: bytes) -> str | None:
    """Why this release cannot work with a keyspace of a stored format, and what to do; None if it can."""
    if is_known_format(stored):
        return None
    number = counter_of(stored)
    problem = f"has format {shown(stored)}; this korvet works with formats {FORMATS}"
    if not number:
        return f"{problem}. The field is damaged: restore it"
    if number > FORMATS.highest:
        return f"{problem}. Use the release that the other brokers have"
    return f"{problem}. Upgrade with a release between first, and finalise it by its command `korvet upgrade`"


def protocol_problem(node_id: int, theirs: Versions) -> str:
    """Why a broker that speaks these protocols and this release cannot work together, and what to do."""
    problem = f"node {node_id} speaks protocols {theirs}; this korvet speaks {PROTOCOLS}"
    if theirs.highest < PROTOCOLS.lowest:
        return f"{problem}. Upgrade node {node_id} to a release between first"
    return f"{problem}. Use a release closer to that of node {node_id}"
