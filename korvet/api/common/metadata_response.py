"""Encodes Metadata responses (MetadataResponse.json) by hand: a cluster has thousands of partitions, and each
client requests them again and again.

While one broker leads all partitions and all servers have as many replicas, an encoded partition depends on
its index alone: topics share one sequence of encoded partitions per version, and each topic uses the first
ones. With several brokers, each topic has a sequence of its own, which is kept until the leaders or the
replicas change.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from kio.schema.errors import ErrorCode

from korvet.api.common.replicas import replicas_of
from korvet.cluster.assignment import NO_NODE
from korvet.outlook.copies import Copies
from korvet.protocol.primitives import length, string, uuid_bytes

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from korvet.cluster.assignment import Assignment, Leader

_RACK_SINCE: Final = 1
_CONTROLLER_SINCE: Final = 1
_INTERNAL_SINCE: Final = 1
_CLUSTER_ID_SINCE: Final = 2
_THROTTLE_SINCE: Final = 3
_OFFLINE_SINCE: Final = 5
_EPOCHS_SINCE: Final = 7
_OPERATIONS_SINCE: Final = 8
_FLEXIBLE_SINCE: Final = 9
_TOPIC_IDS_SINCE: Final = 10
_CLUSTER_OPERATIONS_UNTIL: Final = 10
_ERROR_SINCE: Final = 13
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_NO_ERROR: Final = b"\x00\x00"
_NO_LEADER: Final = _INT16.pack(ErrorCode.leader_not_available)


class _Partitions:
    """The encoded partitions 0, 1, 2 … of any topic with one leader and these copies
    (MetadataResponsePartition), up to the largest number that was needed.
    """

    def __init__(self, version: int, leader: Leader, copies: Copies) -> None:
        self._error = _error_of(leader)
        self._after_index = _after_index(version, leader, copies)
        self._size = len(self._error) + _INT32.size + len(self._after_index)
        self._encoded = b""

    def first(self, count: int) -> memoryview:
        """The first `count` partitions."""
        known = len(self._encoded) // self._size
        if count > known:
            error, after = self._error, self._after_index
            self._encoded += b"".join([error + _INT32.pack(index) + after for index in range(known, count)])
        return memoryview(self._encoded)[: count * self._size]


def _error_of(leader: Leader) -> bytes:
    return _NO_LEADER if leader.node_id == NO_NODE else _NO_ERROR


def _after_index(version: int, leader: Leader, copies: Copies) -> bytes:
    flexible = version >= _FLEXIBLE_SINCE
    replicas = replicas_of(leader.node_id, copies)
    return b"".join(
        (
            _INT32.pack(leader.node_id),
            _INT32.pack(leader.epoch) if version >= _EPOCHS_SINCE else b"",
            _node_ids(replicas.all, flexible),
            _node_ids(replicas.in_sync, flexible),
            _node_ids(replicas.offline, flexible) if version >= _OFFLINE_SINCE else b"",
            b"\x00" if flexible else b"",
        )
    )


def _node_ids(nodes: tuple[int, ...], flexible: bool) -> bytes:
    return length(len(nodes), flexible) + struct.pack(f">{len(nodes)}i", *nodes)


class _Sequences:
    """The encoded partitions of topics in one assignment, by version, topic, number and copies."""

    # Limits the sequences that are kept: every change of the replicas adds new ones.
    _MOST: Final = 10_000

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, int, Copies], bytes] = {}

    def find(self, version: int, leaders: list[Leader], topic: str, copies: Copies) -> bytes:
        """The partitions of a topic with these leaders."""
        key = version, topic, len(leaders), copies
        encoded = self._known.get(key)
        if encoded is None:
            if len(self._known) >= self._MOST:
                self._known.clear()
            encoded = self._known[key] = _encode(version, leaders, [copies] * len(leaders))
        return encoded


# The sequences of each assignment that is in use: clients request the same few topics, and a topic of 1,000
# partitions takes a millisecond to encode.
_sequences: Final[WeakKeyDictionary[Assignment, _Sequences]] = WeakKeyDictionary()


@lru_cache(maxsize=64)
def _partitions_of(version: int, leader: Leader, copies: Copies) -> _Partitions:
    return _Partitions(version, leader, copies)


def _encode(version: int, leaders: Sequence[Leader], copies: Sequence[Copies]) -> bytes:
    kinds = [*zip(leaders, copies, strict=True)]
    after = {kind: _after_index(version, *kind) for kind in set(kinds)}
    return b"".join(
        [_error_of(kind[0]) + _INT32.pack(index) + after[kind] for index, kind in enumerate(kinds)]
    )


def encode_partitions(
    version: int, assignment: Assignment, topic: str, count: int, copies: Copies | Sequence[Copies]
) -> bytes | memoryview:
    """The first `count` partitions of a topic (MetadataResponsePartition), one after the other.

    `copies`: those of any partition, or of each.
    """
    if not isinstance(copies, Copies):
        return _encode(version, assignment.leaders(topic, count)[:count], copies[:count])
    if assignment.sole_leader is not None:
        return _partitions_of(version, assignment.sole_leader, copies).first(count)
    sequences = _sequences.setdefault(assignment, _Sequences())
    return sequences.find(version, assignment.leaders(topic, count)[:count], topic, copies)


def encode_topic(
    version: int,
    name: str | None,
    topic_id: uuid.UUID | None,
    *,
    partitions: bytes | memoryview = b"",
    count: int = 0,
    internal: bool = False,
    error: ErrorCode = ErrorCode.none,
    operations: int,
) -> bytes:
    """A topic (MetadataResponseTopic) with `count` encoded partitions. A name may be null from version 12 on.

    `operations` is the bit field of KIP-430.
    """
    flexible = version >= _FLEXIBLE_SINCE
    parts: list[bytes | memoryview] = [_INT16.pack(error), string(name, flexible)]
    if version >= _TOPIC_IDS_SINCE:
        parts.append(uuid_bytes(topic_id))
    if version >= _INTERNAL_SINCE:
        parts.append(b"\x01" if internal else b"\x00")
    parts.append(length(count, flexible))
    parts.append(partitions)
    if version >= _OPERATIONS_SINCE:
        parts.append(_INT32.pack(operations))
    if flexible:
        parts.append(b"\x00")
    return b"".join(parts)


def encode_response(
    version: int,
    brokers: Sequence[tuple[int, str, int]],
    controller_id: int,
    cluster_id: str,
    topics: Sequence[bytes],
    *,
    operations: int,
) -> bytes:
    """The response body without an error; `brokers` are node id, host and port, `topics` are encoded ones,
    `operations` are the cluster's.
    """
    flexible = version >= _FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    parts = [_INT32.pack(0)] if version >= _THROTTLE_SINCE else []
    parts.append(length(len(brokers), flexible))
    for node_id, host, port in brokers:
        parts += [_INT32.pack(node_id), string(host, flexible), _INT32.pack(port)]
        if version >= _RACK_SINCE:
            parts.append(string(None, flexible))
        parts.append(tags)
    if version >= _CLUSTER_ID_SINCE:
        parts.append(string(cluster_id, flexible))
    if version >= _CONTROLLER_SINCE:
        parts.append(_INT32.pack(controller_id))
    parts.append(length(len(topics), flexible))
    parts += topics
    if _OPERATIONS_SINCE <= version <= _CLUSTER_OPERATIONS_UNTIL:
        parts.append(_INT32.pack(operations))
    if version >= _ERROR_SINCE:
        parts.append(_NO_ERROR)
    parts.append(tags)
    return b"".join(parts)
