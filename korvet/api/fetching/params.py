"""What a Fetch request asks for (FetchRequest.json): its limits, partitions and changes of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from korvet.api.fetching.partition import FetchedPartition
from korvet.protocol.fetch_request import TOPIC_IDS_SINCE, requested_partition

if TYPE_CHECKING:
    from korvet.protocol.fetch_request import FetchRequest, TopicKey

API_KEY: Final = 1
"""The API key of Fetch."""
READ_COMMITTED: Final = 1
SESSIONS_SINCE: Final = 7
# Older versions may belong to clients that do not know the codec (KIP-110).
_ZSTD_SINCE: Final = 10
# Limits a response, even if the client asks for more: Kafka's broker setting fetch.max.bytes.
_MAX_BYTES: Final = 55 * 1024 * 1024


class FetchParams(msgspec.Struct, frozen=True, gc=False):
    """The version of a request, and how much it asks for."""

    version: int
    is_committed: bool
    """Isolation level read_committed."""
    max_wait_ms: int
    min_bytes: int
    """At most `max_bytes`."""
    max_bytes: int
    reads_at_end: bool
    """Whether partitions are read although this broker knows nothing more of them, unless it listens to them.

    The known log ends are kept up to date only while a fetch listens to the log. A first fetch that waits too
    briefly for that has to ask Redis.
    """

    takes_zstd: bool
    """Whether the client knows the codec zstd."""

    @classmethod
    def of(cls, version: int, request: FetchRequest, poll_interval_ms: int) -> FetchParams:
        """poll_interval_ms: how often a listener learns of entries of native writers."""
        max_wait_ms, max_bytes = request.max_wait_ms, min(request.max_bytes, _MAX_BYTES)
        min_bytes = min(request.min_bytes, max_bytes)
        return cls(
            version,
            request.isolation_level == READ_COMMITTED,
            max_wait_ms,
            min_bytes,
            max_bytes,
            max_wait_ms <= poll_interval_ms or min_bytes <= 0,
            version >= _ZSTD_SINCE,
        )

    @property
    def names_topics_by_id(self) -> bool:
        """Whether the request names topics by ID."""
        return self.version >= TOPIC_IDS_SINCE


def requested_partitions(version: int, request: FetchRequest) -> list[FetchedPartition]:
    """The partitions that a request names."""
    return [new_partition(version, topic.key, entry) for topic in request.topics for entry in topic.entries]


def new_partition(version: int, topic: TopicKey, entry: bytes) -> FetchedPartition:
    """The partition that an entry of a request names, with nothing found."""
    asked = requested_partition(version, entry)
    return FetchedPartition(topic, asked.index, asked.offset, asked.max_bytes, asked.leader_epoch)
