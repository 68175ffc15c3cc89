"""Commits of Kafka groups, projected onto the Redis consumer group of the same name (DESIGN section 7).

A commit of N acknowledges everything below N in the Redis group and lets its native readers continue at N.
Every call names the position of the record in `__consumer_offsets` that it follows, so it may be repeated,
and a late one does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from korvet.offsets.packing import entry_id
from korvet.records.kernel import pack_arguments, pack_command
from korvet.storage.errors import StorageError, domain_error
from korvet.storage.link.calls import parse_reply

if TYPE_CHECKING:
    from korvet.storage.link.commands import Commands

# Pending entries acknowledged by one call: about a millisecond of Redis.
ACKNOWLEDGED_AT_ONCE: Final = 1_000
# Fields of a meta hash read at once when looking for projected commits.
SCANNED_AT_ONCE: Final = 1_000

_COMMIT_FIELD: Final = b"commit:"
# In place of the offset where a deletion left the group to its native consumers.
_DELETED: Final = b"-"
# Arguments of a call of korvet_project: for all commits, and for each.
_PROJECT_FIXED_ARGUMENTS: Final = 8
_COMMIT_ARGUMENTS: Final = 6
# What korvet_project replies for a commit of which pending entries are left.
_MORE: Final = 2

Dropped: TypeAlias = Callable[[StorageError | None], None]
Projected: TypeAlias = "Callable[[Sequence[GroupCommit] | StorageError], None]"


class GroupCommit(msgspec.Struct, frozen=True, gc=False):
    """A commit of `offset` (a packed offset: the next one to be read) by a group.

    position: packed offset of the record in `__consumer_offsets` that says so. earliest: the offset of the
    first of the commits that this one stands for, itself included; None where a later one of them went back.
    native: where the Redis group stood, as an offset, when the commit was read off it; None for others.
    restored: read from the log, which does not say whether it was read off the Redis group.
    """

    group: str
    position: int
    offset: int
    earliest: int | None
    native: int | None = None
    restored: bool = False


def entry_id_before(offset: int, bias: int) -> str:
    """ID of the entry before `offset`, where a Redis group stands that reads `offset` next; "0-0" for offset
    0 or less.

    bias is 1 on a dense topic, else 0. Raises AddressError above 2^63-1.
    """
    return entry_id(offset - 1, bias) if offset > 0 else "0-0"


def _pack_commit(commit: GroupCommit, bias: int) -> bytes:
    """The arguments of korvet_project for one commit, in one step: there are thousands a second."""
    group, position = commit.group.encode(), b"%d" % commit.position
    offset = b"%d" % max(commit.offset, 0)
    earliest = b"" if commit.earliest is None else b"%d" % max(commit.earliest, 0)
    before = entry_id_before(commit.offset, bias).encode()
    native = (b"?" if commit.restored else b"") if commit.native is None else b"%d" % commit.native
    return b"$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
        *(len(group), group, len(position), position, len(offset), offset),
        *(len(earliest), earliest, len(before), before, len(native), native),
    )


class Projection:
    """The calls that move, drop and look up projected commits. Calls take effect in the order in which they
    are made.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._keyspace = commands.keyspace

    def project(
        self, topic: str, partition: int, commits: Sequence[GroupCommit], *, bias: int, done: Projected
    ) -> None:
        """Let Redis groups of one partition follow commits (XACK, XGROUP SETID); bias is that of the topic.
        Those that were read off a group are noted only.

        done([]) once all have followed, also where a later commit was projected before; done(commits) of
        those of which pending entries are left: they are to be sent again. done(error) otherwise, and then
        the call may be repeated.
        """
        arguments = pack_arguments(
            "FCALL",
            "korvet_project",
            3,
            self._keyspace.stream(topic, partition),
            self._keyspace.index(topic, partition),
            self._keyspace.meta(topic, partition),
            bias,
            max(1, ACKNOWLEDGED_AT_ONCE // len(commits)),
        )
        count = _PROJECT_FIXED_ARGUMENTS + _COMMIT_ARGUMENTS * len(commits)
        packed = [_pack_commit(commit, bias) for commit in commits]
        command = b"".join((b"*%d\r\n" % count, arguments, *packed))
        links = self._commands.links(self._keyspace.stream(topic, partition))
        links.write_functions.send(command, partial(self._projected, commits, done))

    def drop(
        self,
        group: str,
        topic: str,
        partition: int,
        position: int,
        *,
        bias: int,
        force: bool,
        done: Dropped,
    ) -> None:
        """Forget a group's commits up to log position `position` and destroy its Redis group (XGROUP
        DESTROY); bias is that of the topic.

        force False keeps a Redis group that has native consumers or pending entries, or was there before any
        commit, and marks it: what was deleted comes back when it moves on, not before. A group or stream that
        is not there is no error. done(None) once that is so, done(error) otherwise.
        """
        command = pack_command(
            "FCALL",
            "korvet_drop_group",
            3,
            self._keyspace.stream(topic, partition),
            self._keyspace.index(topic, partition),
            self._keyspace.meta(topic, partition),
            bias,
            group,
            position,
            int(force),
        )
        links = self._commands.links(self._keyspace.stream(topic, partition))
        links.write_functions.send(command, lambda reply: done(_error_of(reply)))

    async def projected(self, topic: str, partition: int) -> dict[str, int]:
        """By group: the position of its newest projected commit in one partition. Raises StorageError."""
        meta = self._keyspace.meta(topic, partition)
        found: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            cursor, fields = await self._commands.links(meta).read.call(
                "HSCAN", meta, cursor, "MATCH", _COMMIT_FIELD + b"*", "COUNT", SCANNED_AT_ONCE
            )
            found.update(zip(fields[::2], fields[1::2], strict=True))
            if cursor == b"0":
                break
        return {
            field[len(_COMMIT_FIELD) :].decode(): int(position)
            for field, value in found.items()
            for position, offset, *_ in (value.split(b" "),)
            if offset != _DELETED
        }

    def _projected(
        self, commits: Sequence[GroupCommit], done: Projected, reply: memoryview | StorageError
    ) -> None:
        if isinstance(reply, StorageError):
            done(domain_error(reply))
            return
        states = parse_reply(reply)
        done([commit for commit, state in zip(commits, states, strict=True) if state == _MORE])


def _error_of(reply: memoryview | StorageError) -> StorageError | None:
    return domain_error(reply) if isinstance(reply, StorageError) else None
