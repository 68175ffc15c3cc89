"""The names of our keys in Redis. All keys of one partition are in one cluster slot."""

from __future__ import annotations

import re
from typing import Final

DEFAULT_PREFIX: Final = "korvet"
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARE_STATES_TOPIC: Final = "__share_group_state"

# Kafka's rule for topic names. The rule excludes braces, which would move keys to other cluster slots, and
# colons, which separate the parts of a key.
MAX_NAME_LENGTH: Final = 249
"""Limits the characters of a topic's name, in Kafka."""
_TOPIC_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_NAME_LENGTH}}}")
_PREFIX: Final = re.compile(r"[^{}\s\x00-\x1f]{1,100}")
# Characters with a meaning in a pattern of SCAN.
_SPECIAL: Final = re.compile(r"[\\*?\[]")


def is_topic_name(name: str) -> bool:
    """Whether Kafka accepts the name for a topic."""
    return _TOPIC_NAME.fullmatch(name) is not None


def literal_pattern(text: str) -> str:
    """The pattern of SCAN that only this text matches."""
    return _SPECIAL.sub(r"\\\g<0>", text)


class Keyspace:
    """All keys of one cluster. Several clusters in one Redis have different prefixes.

    Raises ValueError if the prefix is empty, is longer than 100 characters, or contains braces or white
    space.
    """

    __slots__ = (
        "acls",
        "broker_configs",
        "brokers",
        "cluster",
        "features",
        "group_configs",
        "prefix",
        "quotas",
        "restoring",
        "shared_barrier",
        "topics",
        "users",
    )

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(f"keyspace prefix {prefix!r}: 1 to 100 characters, no braces, no white space")
        self.prefix = prefix
        self.topics = self._shared("topics")
        """Hash: topic name -> topic as JSON."""
        self.cluster = self._shared("cluster")
        """Hash: cluster ID; when the keyspace was made; number of topics; versions of format,
        catalogue, assignment and security; the history in which the assignment got its newest
        version; next producer ID, and the first one after a restore; the secret for SCRAM salts
        of unknown users.
        """
        self.brokers = self._shared("brokers")
        """Hash: node id -> lease as JSON."""
        self.users = self._shared("users")
        """Hash: mechanism and user -> SCRAM credential."""
        self.acls = self._shared("acls")
        """Hash: ACL binding as JSON -> nothing."""
        self.quotas = self._shared("quotas")
        """Hash: entity and key as JSON -> client quota."""
        self.group_configs = self._shared("group.configs")
        """Hash: group and name of a config as JSON -> the value that the group has set."""
        self.broker_configs = self._shared("broker.configs")
        """Hash: broker's id (empty: all brokers) and name of a config as JSON -> its dynamic value."""
        self.features = self._shared("features")
        """Hash: feature -> its finalized level, if that was changed (KIP-584)."""
        self.shared_barrier = self._shared("barrier")
        """String: as `barrier`, on the server of these keys."""

        self.restoring = self._shared("restoring")
        """String: checksum of the backup that is being restored; gone when the restore is complete."""

    def stream(self, topic: str, partition: int) -> bytes:
        """Stream: the log itself. Its plain name is easy to use for Redis applications."""
        return self._partition(topic, partition).encode()

    def is_stream(self, key: bytes) -> bool:
        """Whether a key is the log of a partition, of whatever topic."""
        prefix, _, partition = key.decode(errors="replace").rpartition(":")
        start = f"{self.prefix}:"
        return prefix.startswith(start) and is_topic_name(prefix[len(start) :]) and partition.isdecimal()

    def index(self, topic: str, partition: int) -> bytes:
        """Sorted set: sparse index of offsets: number of records before them, times, bytes."""
        return f"{{{self._partition(topic, partition)}}}:index".encode()

    def meta(self, topic: str, partition: int) -> bytes:
        """Hash: log start and end; producer sequences; open transactions; the session in which
        brokers append, and their newest calls (`done`); the leader epoch that may append
        (`epoch`); where writes may have been lost, with the next leader epoch
        (`leaders`), when and at which log end that was noted last (`cut`), and the history of the
        data at that time (`history`); when a leader last took over without a loss (`taken_over`,
        ms); the last commit that each Redis group received (`commit:GROUP`); compaction state;
        what makes record counts continue after compactions and repairs of the index (`ordinals`,
        `remade`); the offset after the last entry that the index counts although it may be no
        record, as markers (`mixed`; missing if an earlier release began the index).
        """
        return f"{{{self._partition(topic, partition)}}}:meta".encode()

    def latest(self, topic: str, partition: int) -> bytes:
        """Hash: record key -> newest entry ID, on topics that coordinators load."""
        return f"{{{self._partition(topic, partition)}}}:latest".encode()

    def aborted(self, topic: str, partition: int) -> bytes:
        """Sorted set: offset of an abort marker -> producer id, first offset of the transaction, last stable
        offset after the marker.
        """
        return f"{{{self._partition(topic, partition)}}}:aborted".encode()

    def pending(self, topic: str, partition: int, producer_id: int) -> bytes:
        """Hash: record key -> newest entry ID in an open transaction, on topics that coordinators load."""
        return f"{{{self._partition(topic, partition)}}}:pending:{producer_id}".encode()

    def barrier(self, topic: str, partition: int) -> bytes:
        """String: short-lived; its replication shows that replicas have all earlier writes."""
        return f"{{{self._partition(topic, partition)}}}:barrier".encode()

    def mail(self, node_id: int, joined: int) -> bytes:
        """List: mail for the broker that joined in this version of the assignment."""
        return self._shared(f"mail:{node_id}:{joined}")

    def shadow_keys(self, topic: str, partition: int) -> tuple[bytes, ...]:
        """Stream, sorted set, hash, set, stream: the keys of a compaction in progress: stream,
        index and meta of the new log, its placeholders, and the old stream that is being deleted.
        """
        first = f"{{{self._partition(topic, partition)}}}:compact"
        return tuple(f"{first}{part}".encode() for part in ("", ":index", ":meta", ":pending", ":old"))

    def partition_keys(self, topic: str, partition: int) -> tuple[bytes, bytes, bytes, bytes]:
        """Stream, index, meta, latest: the lasting keys of one partition."""
        return (
            self.stream(topic, partition),
            self.index(topic, partition),
            self.meta(topic, partition),
            self.latest(topic, partition),
        )

    def _shared(self, name: str) -> bytes:
        return f"{{{self.prefix}}}:{name}".encode()

    def _partition(self, topic: str, partition: int) -> str:
        if not is_topic_name(topic):
            raise ValueError(f"topic name {topic!r} is not one Kafka accepts")
        if partition < 0:
            raise ValueError(f"partition {partition} is negative")
        return f"{self.prefix}:{topic}:{partition}"
