"""What topics ask for before records with acks=all are acknowledged."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from korvet.log.release import level_of
from korvet.outlook.durability import Setup
from korvet.redis.barrier import Level

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.cluster.topic import Topic
    from korvet.config.settings import Config


def default_level(config: Config) -> Level:
    """What topics ask for that have no configs of their own."""
    return Level(config.min_insync_replicas - 1, config.acks_all_fsync)


def setup_of(
    topics: Iterable[Topic],
    default: Level,
    url: str,
    *,
    embedded: bool,
    reserve_bytes: int,
    named_replicas: int,
) -> Setup:
    """What topics, the URL of Redis, disk.reserve.bytes and sentinels contribute to the outlooks; `default`:
    see default_level; `named_replicas`: see Setup.
    """
    levels = Counter(level_of(topic, default) for topic in topics)
    reserve = embedded and reserve_bytes > 0
    sentinel = "+sentinel:" in url
    return Setup(levels, embedded, reserve, sentinel, named_replicas)
