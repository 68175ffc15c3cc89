"""Commits of Kafka groups, projected onto the Redis consumer group of the same name (DESIGN section 7).

A commit of N acknowledges everything below N in the Redis group and lets its native readers continue at N.
Every call names the position of the record in `__consumer_offsets` that it follows, so it may be repeated,
and a late one does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from korvet.offsets.packing import entry_id
from korvet.storage.errors import StorageError, domain_error
from korvet.storage.link import pack

if TYPE_CHECKING:
    from korvet.storage.store import Store

# Pending entries acknowledged by one call: about a millisecond of Redis.
ACKNOWLEDGED_AT_ONCE: Final = 1_000
# Fields of a meta hash read at once when looking for projected commits.
SCANNED_AT_ONCE: Final = 1_000

_COMMIT_FIELD: Final = b"commit:"
# The reply of korvet_project when pending entries are left: the integer 2.
_MORE: Final = b":2\r\n"

Projected: TypeAlias = Callable[[StorageError | None], None]


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A commit of `offset` (a packed offset: the next one to be read) by a group.

    position: packed offset of the record in `__consumer_offsets` that says so.
    """

    group: str
    topic: str
    partition: int
    position: int
    offset: int


def entry_id_before(offset: int, bias: int) -> str:
    """ID of the entry before `offset`, where a Redis group stands that reads `offset` next; "0-0" for offset
    0.

    bias is 1 on a dense topic, else 0. Raises AddressError outside 0..2^63-1.
    """
    return entry_id(offset - 1, bias) if offset else "0-0"


class Projection:
    """The calls that move, drop and look up projected commits. Calls take effect in the order in which they
    are made.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keyspace = store.keyspace

    def project(self, commit: GroupCommit, *, bias: int, done: Projected) -> None:
        """Let the Redis group follow a commit (XACK, XGROUP SETID); bias is that of the topic.

        done(None) once that is so, also when a later commit was projected before; done(error) otherwise, and
        then the call may be repeated.
        """
        topic, partition = commit.topic, commit.partition
        command = pack(
            "FCALL",
            "korvet_project",
            3,
            self._keyspace.stream(topic, partition),
            self._keyspace.index(topic, partition),
            self._keyspace.meta(topic, partition),
            commit.group,
            commit.position,
            commit.offset,
            entry_id_before(commit.offset, bias),
            ACKNOWLEDGED_AT_ONCE,
        )
        self._store.write_functions.send(command, partial(self._projected, command, done))

    def drop(
        self, group: str, topic: str, partition: int, position: int, *, force: bool, done: Projected
    ) -> None:
        """Forget a group's commits up to log position `position` and destroy its Redis group (XGROUP
        DESTROY).

        force False keeps a Redis group that has native consumers or pending entries. A group or stream that
        is not there is no error. done(None) once that is so, done(error) otherwise.
        """
        command = pack(
            "FCALL",
            "korvet_drop_group",
            2,
            self._keyspace.stream(topic, partition),
            self._keyspace.meta(topic, partition),
            group,
            position,
            int(force),
        )
        self._store.write_functions.send(command, lambda reply: done(_error_of(reply)))

    async def projected(self, topic: str, partition: int) -> list[GroupCommit]:
        """The newest projected commit of every group of one partition. Raises StorageError."""
        meta = self._keyspace.meta(topic, partition)
        found: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            try:
                cursor, fields = await self._store.read.call(
                    "HSCAN", meta, cursor, "MATCH", _COMMIT_FIELD + b"*", "COUNT", SCANNED_AT_ONCE
                )
            except StorageError as error:
                raise domain_error(error) from error
            found.update(zip(fields[::2], fields[1::2], strict=True))
            if cursor == b"0":
                break
        return [_parse(field, value, topic, partition) for field, value in found.items()]

    def _projected(self, command: bytes, done: Projected, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            done(domain_error(reply))
        elif bytes(reply) == _MORE:
            self._store.write_functions.send(command, partial(self._projected, command, done))
        else:
            done(None)


def _error_of(reply: memoryview | StorageError) -> StorageError | None:
    return domain_error(reply) if isinstance(reply, StorageError) else None


def _parse(field: bytes, value: bytes, topic: str, partition: int) -> GroupCommit:
    position, offset = value.split()
    group = field.removeprefix(_COMMIT_FIELD).decode()
    return GroupCommit(group, topic, partition, int(position), int(offset))
