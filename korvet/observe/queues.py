"""The queues of the share groups that the broker coordinates: records that wait, and records in flight."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from korvet.groups.share.group import ShareGroup
from korvet.groups.share.messages import SharePartition
from korvet.metrics.declared import declare
from korvet.metrics.family import Samples
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from korvet.config.settings import Config
    from korvet.groups.context import AnyGroup
    from korvet.redis_groups.share import QueueView

# Exactly one broker of the cluster reports each series: the coordinator of the group.
_declare: Final = partial(declare, by_one_broker=True)
_PLACE: Final = ("consumergroup", "topic", "partition")
_LAG: Final = _declare(
    "korvet_share_group_lag",
    "Records of a partition that a share group has neither accepted nor archived (its depth as a queue).",
    *_PLACE,
)
_MEMBERS: Final = _declare("korvet_share_group_member_records", "Records that members have.", *_PLACE)
_NATIVES: Final = _declare(
    "korvet_share_group_native_records", "Records that native consumers of a share group have.", *_PLACE
)
_RELEASED: Final = _declare(
    "korvet_share_group_released_records",
    "Records that a share group was delivered, and that can be acquired again.",
    *_PLACE,
)
_DEAD: Final = _declare(
    "korvet_share_group_dead_records",
    "Records of a share group that wait to become dead letters (KIP-1191).",
    *_PLACE,
)
_UNREADABLE: Final = _declare(
    "korvet_share_group_unreadable_entries",
    "Entries of a share group that Kafka clients cannot get: no offset names them.",
    *_PLACE,
)
_SECONDS: Final = _declare(
    "korvet_share_group_lag_seconds",
    "Seconds since the timestamp of the first record that somebody has or can get; 0 if there is none.",
    *_PLACE,
)
# Limits the time that a look holds the event loop at once: clients wait as long.
_SLICE_S: Final = 0.001


class WatchedQueue:
    """A share group in one partition."""

    __slots__ = ("place", "text", "view")

    def __init__(self, place: SharePartition) -> None:
        self.place = place
        self.text = _LAG.text(place.group_id, place.topic, place.partition)
        """Label text."""
        self.view: QueueView | None = None
        """As it was read last."""


class WatchedQueues:
    """The queues of all share groups that the broker coordinates, as far as the settings permit."""

    def __init__(self) -> None:
        self.by_place: dict[SharePartition, WatchedQueue] = {}
        self.left_out: Collection[str] = ()
        """The groups that metrics.max.rows leaves out."""

    async def follow(self, groups: Collection[AnyGroup], config: Config) -> None:
        """Watch the partitions that are initialised for these groups."""
        shows_group = re.compile(config.metrics_groups, re.DOTALL).fullmatch
        shows_topic = re.compile(config.metrics_topics).fullmatch
        known, left_out = self.by_place, []
        found: dict[SharePartition, WatchedQueue] = {}
        async for group in sliced(groups, _SLICE_S):
            if not isinstance(group, ShareGroup) or group.states is None or not shows_group(group.group_id):
                continue
            places = [
                SharePartition(group.group_id, topic_id, topic, partition)
                for topic_id, topic, partition in group.states.initialised_places()
                if shows_topic(topic)
            ]
            if len(found) + len(places) > config.metrics_max_rows:
                left_out.append(group.group_id)
                continue
            found.update((place, known.get(place) or WatchedQueue(place)) for place in places)
        self.by_place, self.left_out = found, frozenset(left_out)

    def collect(self) -> Iterator[Samples]:
        """See Collector."""
        now_ms = time.time_ns() // 1_000_000
        seen = [(each.text, each.view) for each in self.by_place.values() if each.view is not None]
        yield Samples(_LAG, ((text, view.lag) for text, view in seen if view.lag >= 0))
        yield Samples(_SECONDS, ((text, view.waiting_ms(now_ms) / 1000) for text, view in seen))
        yield Samples(_MEMBERS, ((text, view.members) for text, view in seen))
        yield Samples(_NATIVES, ((text, view.natives) for text, view in seen))
        yield Samples(_RELEASED, ((text, view.released) for text, view in seen))
        yield Samples(_DEAD, ((text, view.dead) for text, view in seen))
        yield Samples(_UNREADABLE, ((text, view.unreadable) for text, view in seen))
