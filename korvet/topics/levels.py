"""What topics ask for before records with acks=all are acknowledged."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from korvet.storage.durability import Level, Setup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.storage.topic import Topic


def setup_of(topics: Iterable[Topic], url: str, *, embedded: bool) -> Setup:
    """What topics and the URL of Redis contribute to the outlooks."""
    return Setup(Counter(map(_level, topics)), embedded=embedded, sentinel="+sentinel:" in url)


def _level(topic: Topic) -> Level:
    replicas = int(topic.configs.get("min.insync.replicas", "1")) - 1
    return Level(replicas, topic.configs.get("acks.all.fsync") == "true")
