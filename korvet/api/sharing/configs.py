"""The configs of share groups that apply to records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from korvet.config.features import DEAD_LETTERS_SINCE
from korvet.groups.own_configs import (
    DEAD_LETTER_COPIES,
    DEAD_LETTER_TOPIC,
    LATEST,
    SHARE_AUTO_OFFSET_RESET,
    SHARE_DELIVERY_COUNT_LIMIT,
    SHARE_ISOLATION_LEVEL,
    SHARE_PARTITION_MAX_RECORD_LOCKS,
    SHARE_RECORD_LOCK_DURATION_MS,
    SHARE_RENEW_ACKNOWLEDGE_ENABLE,
)
from korvet.redis_groups.share import Limits

if TYPE_CHECKING:
    from korvet.groups.config import GroupConfig


class ShareConfig(msgspec.Struct, frozen=True, gc=False):
    """What applies to the records of one share group."""

    limits: Limits
    is_committed: bool = False
    """Whether only committed records are acquired."""
    renews: bool = True
    """Whether members may renew locks (KIP-1222)."""
    reset: str = LATEST
    """Where a group begins in a partition, as in share.auto.offset.reset."""
    dead_letter_topic: str = ""
    """The topic of the group's dead letters if it keeps them, else empty."""
    copies_dead: bool = False
    """Whether dead letters have the key and the value of the record."""


def share_config(groups: GroupConfig, group: str, version: int) -> ShareConfig:
    """What applies to one group: its own configs and the broker's settings. version: of share.version."""
    number, text = groups.number, groups.text
    dead_letter_topic = text(group, DEAD_LETTER_TOPIC) if version >= DEAD_LETTERS_SINCE else ""
    return ShareConfig(
        Limits(
            lock_ms=number(group, SHARE_RECORD_LOCK_DURATION_MS),
            deliveries=number(group, SHARE_DELIVERY_COUNT_LIMIT),
            locks=number(group, SHARE_PARTITION_MAX_RECORD_LOCKS),
            keeps_dead=bool(dead_letter_topic),
        ),
        is_committed=text(group, SHARE_ISOLATION_LEVEL) == "read_committed",
        renews=text(group, SHARE_RENEW_ACKNOWLEDGE_ENABLE) == "true",
        reset=text(group, SHARE_AUTO_OFFSET_RESET),
        dead_letter_topic=dead_letter_topic,
        copies_dead=text(group, DEAD_LETTER_COPIES) == "true",
    )
