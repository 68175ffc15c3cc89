"""Metadata responses (MetadataResponse.json) written by hand: a cluster has thousands of partitions, and each
of its clients asks for them again and again.

There is one broker, so what is said of a partition depends on its index alone. All topics share one run of
encoded partitions for each version, and each takes as much of it as it has.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.protocol.primitives import length, string

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from korvet.config import Address

LEADER_EPOCH: Final = 0
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
_NO_ID: Final = b"\x00" * 16


class _Partitions:
    """The encoded partitions 0, 1, 2 … of any topic (MetadataResponsePartition), as many as were needed."""

    def __init__(self, version: int, node_id: int) -> None:
        flexible = version >= _FLEXIBLE_SINCE
        only_us = length(1, flexible) + _INT32.pack(node_id)
        self._behind_index = b"".join(
            (
                _INT32.pack(node_id),
                _INT32.pack(LEADER_EPOCH) if version >= _EPOCHS_SINCE else b"",
                only_us,
                only_us,
                length(0, flexible) if version >= _OFFLINE_SINCE else b"",
                b"\x00" if flexible else b"",
            )
        )
        self._size = len(_NO_ERROR) + _INT32.size + len(self._behind_index)
        self._encoded = b""

    def first(self, count: int) -> memoryview:
        """The first `count` of them."""
        known = len(self._encoded) // self._size
        if count > known:
            behind = self._behind_index
            self._encoded += b"".join(
                [_NO_ERROR + _INT32.pack(index) + behind for index in range(known, count)]
            )
        return memoryview(self._encoded)[: count * self._size]


@cache
def _partitions_of(version: int, node_id: int) -> _Partitions:
    return _Partitions(version, node_id)


def encode_topic(
    version: int,
    node_id: int,
    name: str | None,
    topic_id: uuid.UUID | None,
    *,
    partitions: int = 0,
    internal: bool = False,
    error: ErrorCode = ErrorCode.none,
    operations: int,
) -> bytes:
    """A topic (MetadataResponseTopic) with that many partitions; a name is null from version 12 on only.

    `operations` is the bit field of KIP-430.
    """
    flexible = version >= _FLEXIBLE_SINCE
    parts: list[bytes | memoryview] = [_INT16.pack(error), string(name, flexible)]
    if version >= _TOPIC_IDS_SINCE:
        parts.append(_NO_ID if topic_id is None else topic_id.bytes)
    if version >= _INTERNAL_SINCE:
        parts.append(b"\x01" if internal else b"\x00")
    parts.append(length(partitions, flexible))
    parts.append(_partitions_of(version, node_id).first(partitions))
    if version >= _OPERATIONS_SINCE:
        parts.append(_INT32.pack(operations))
    if flexible:
        parts.append(b"\x00")
    return b"".join(parts)


def encode_response(
    version: int,
    node_id: int,
    endpoint: Address,
    cluster_id: str,
    topics: Sequence[bytes],
    *,
    operations: int,
) -> bytes:
    """The response body without an error; `topics` are encoded ones, `operations` are the cluster's."""
    flexible = version >= _FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    parts = [_INT32.pack(0)] if version >= _THROTTLE_SINCE else []
    parts += [length(1, flexible), _INT32.pack(node_id)]
    parts += [string(endpoint.host, flexible), _INT32.pack(endpoint.port)]
    if version >= _RACK_SINCE:
        parts.append(string(None, flexible))
    parts.append(tags)
    if version >= _CLUSTER_ID_SINCE:
        parts.append(string(cluster_id, flexible))
    if version >= _CONTROLLER_SINCE:
        parts.append(_INT32.pack(node_id))
    parts.append(length(len(topics), flexible))
    parts += topics
    if _OPERATIONS_SINCE <= version <= _CLUSTER_OPERATIONS_UNTIL:
        parts.append(_INT32.pack(operations))
    if version >= _ERROR_SINCE:
        parts.append(_NO_ERROR)
    parts.append(tags)
    return b"".join(parts)
