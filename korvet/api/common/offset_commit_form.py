"""OffsetCommit requests as consumers send them over and over: all is as before, but for the offsets.

Such a request is known by its bytes, and nothing is read but the offsets and the leader epochs beside them.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from korvet.groups.messages import CommitPartition
from korvet.protocol.durations import milliseconds
from korvet.protocol.headers import FIXED_HEADER_BYTES
from korvet.protocol.primitives import length, string, uuid_bytes

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator

_RETENTION_BEFORE: Final = 5
_LEADER_EPOCHS_SINCE: Final = 6
_INSTANCES_SINCE: Final = 7
_FLEXIBLE_SINCE: Final = 8
_TOPIC_IDS_SINCE: Final = 10
_INT32: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_OFFSET_AND_EPOCH: Final = struct.Struct(">qi")
# A form stays with its connection; a larger request costs little more per offset when it is decoded anew.
_MOST_BYTES: Final = 4096
# What a connection keeps forms of.
_MOST_GROUPS: Final = 128
# Some clients never send the same metadata twice. Where so many forms were made one after the other and no
# commit had one, the next is made only after so many commits.
_FORMS_IN_VAIN: Final = 3
_COMMITS_BETWEEN: Final = 64


class AskedTopic(msgspec.Struct, frozen=True):
    """OffsetCommitRequestTopic: a name or an id, as the version has it."""

    name: str
    topic_id: uuid.UUID | None
    partitions: tuple[CommitPartition, ...]


class AskedCommit(msgspec.Struct, frozen=True):
    """OffsetCommitRequest. `form` is the one that it was recognised by."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    retention_time_ms: int
    topics: tuple[AskedTopic, ...]
    form: CommitForm | None = None

    @classmethod
    def of(cls, request: Any) -> AskedCommit:
        """What a decoded request asks for."""
        retention = getattr(request, "retention_time", None)
        return cls(
            group_id=request.group_id,
            generation_id=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=getattr(request, "group_instance_id", None),
            retention_time_ms=-1 if retention is None else milliseconds(retention),
            topics=tuple(asked_topic(topic) for topic in request.topics),
        )


def asked_topic(topic: Any) -> AskedTopic:
    """What a decoded request asks for one topic."""
    partitions = tuple(
        CommitPartition(
            partition=each.partition_index,
            offset=each.committed_offset,
            leader_epoch=getattr(each, "committed_leader_epoch", -1),
            metadata=each.committed_metadata,
        )
        for each in topic.partitions
    )
    return AskedTopic(getattr(topic, "name", ""), getattr(topic, "topic_id", None), partitions)


class CommitForm:
    """What a consumer's commits have in common, taken from one of them."""

    __slots__ = ("_asked", "_gap", "_gaps", "_parts", "_size", "accepted", "is_met")

    def __init__(self, asked: AskedCommit, gap: struct.Struct, gaps: list[int], frame: bytes) -> None:
        """Use `of`."""
        self._asked = asked
        self._gap = gap
        self._gaps = gaps
        self._size = len(frame)
        ends = [FIXED_HEADER_BYTES, *(end for at in gaps for end in (at, at + gap.size)), len(frame)]
        self._parts = [(start, frame[start:end]) for start, end in list(pairwise(ends))[::2]]
        self.accepted: bytes | None = None
        """The body that answers such a request when every offset is taken, once it was."""
        self.is_met = False
        """Whether any request had this form."""

    @classmethod
    def of(cls, version: int, request: AskedCommit, frame: memoryview, position: int) -> CommitForm | None:
        """The form of a decoded request whose body lies at `position`; None where it can't be told by bytes.

        The form holds what is behind the correlation id: client id and tagged fields of the header, too.
        """
        if version < _RETENTION_BEFORE or len(frame) > _MOST_BYTES:
            return None
        gap = _OFFSET_AND_EPOCH if version >= _LEADER_EPOCHS_SINCE else _OFFSET
        written = bytearray(frame[:position])
        gaps = []
        for piece in _pieces(version, request):
            at = len(written)
            if piece is None:
                gaps.append(at)
            written += frame[at : at + gap.size] if piece is None else piece
        # Numbers can be written in more than one way, and there may be tagged fields: only the usual way is
        # recognised.
        if written != frame:
            return None
        return cls(request, gap, gaps, bytes(written))

    def decode(self, frame: memoryview) -> AskedCommit | None:
        """The request in a frame of the same version; None where it has another form."""
        if len(frame) != self._size:
            return None
        for start, part in self._parts:
            if frame[start : start + len(part)] != part:
                return None
        self.is_met = True
        numbers = map(self._gap.unpack_from, [frame] * len(self._gaps), self._gaps)
        asked = self._asked
        topics = tuple(
            [
                AskedTopic(topic.name, topic.topic_id, tuple(map(_moved, topic.partitions, numbers)))
                for topic in asked.topics
            ]
        )
        return AskedCommit(
            asked.group_id,
            asked.generation_id,
            asked.member_id,
            asked.group_instance_id,
            asked.retention_time_ms,
            topics,
            self,
        )


class _Group:
    """What is known of a group's commits."""

    __slots__ = ("form", "in_vain", "left_out", "size")

    def __init__(self) -> None:
        self.size = 0
        """Bytes of the last one that no form was known of."""
        self.form: CommitForm | None = None
        self.in_vain = 0
        """Forms that were made since one of them was met."""
        self.left_out = 0
        """Commits of which no form is to be made yet."""


class CommitForms:
    """The forms of the commits that come over one connection, in one version and under one header.

    Mostly of one group. Where several take turns each has its own, made when it commits for the second time.
    """

    __slots__ = ("_groups", "_position", "_version", "header")

    def __init__(self, header: tuple[int, bytes], position: int) -> None:
        """header: the version, and what is between correlation id and body. The body lies at `position`."""
        self.header = header
        self._version = header[0]
        self._position = position
        self._groups: dict[bytes, _Group] = {}

    def note(self, request: AskedCommit, frame: memoryview) -> None:
        """Know the next one like this, if it is the second one of its size and the form is worth making."""
        name = self._group_of(frame)
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) == _MOST_GROUPS:
                self._groups.clear()
            group = self._groups[name] = _Group()
        if group.size != len(frame):
            group.size = len(frame)
        elif group.left_out:
            group.left_out -= 1
        else:
            self._make(group, request, frame)

    def _make(self, group: _Group, request: AskedCommit, frame: memoryview) -> None:
        if group.form is not None and group.form.is_met:
            group.in_vain = 0
        if group.in_vain == _FORMS_IN_VAIN:
            group.form = None
            group.in_vain -= 1
            group.left_out = _COMMITS_BETWEEN
        else:
            group.in_vain += 1
            group.form = CommitForm.of(self._version, request, frame, self._position)

    def decode(self, buffer: bytearray, begin: int, end: int) -> AskedCommit | None:
        """The request in the frame buffer[begin:end] of the same version; None where no form of it is
        known.
        """
        frame = memoryview(buffer)[begin:end]
        if len(frame) < self._position + 2:
            return None
        group = self._groups.get(self._group_of(frame))
        return None if group is None or group.form is None else group.form.decode(frame)

    def _group_of(self, frame: memoryview) -> bytes:
        """The group's name with its length; something else where that takes more than one byte of a varint,
        which is told by its form then.
        """
        at = self._position
        size = frame[at] if self._version >= _FLEXIBLE_SINCE else 2 + (frame[at] << 8 | frame[at + 1])
        return bytes(frame[at : at + size])


def _moved(partition: CommitPartition, numbers: tuple[int, ...]) -> CommitPartition:
    """The same partition with another offset and, where there is one, leader epoch."""
    epoch = numbers[1] if len(numbers) > 1 else partition.leader_epoch
    return CommitPartition(partition.partition, numbers[0], epoch, partition.metadata)


def _pieces(version: int, request: AskedCommit) -> Iterator[bytes | None]:
    """The body as it is usually written, with None where an offset stands."""
    flexible = version >= _FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    yield string(request.group_id, flexible)
    yield _INT32.pack(request.generation_id)
    yield string(request.member_id, flexible)
    if version >= _INSTANCES_SINCE:
        yield string(request.group_instance_id, flexible)
    yield length(len(request.topics), flexible)
    for topic in request.topics:
        if version < _TOPIC_IDS_SINCE:
            yield string(topic.name, flexible)
        else:
            yield uuid_bytes(topic.topic_id)
        yield length(len(topic.partitions), flexible)
        for partition in topic.partitions:
            yield _INT32.pack(partition.partition)
            yield None
            yield string(partition.metadata, flexible)
            yield tags
        yield tags
    yield tags
