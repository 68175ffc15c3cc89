"""Reading Redis consumer groups that Redis applications have moved (function korvet_moved)."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from korvet.groups.native import NativeGroup, Projected, group_id_of
from korvet.records.kernel import pack_arguments
from korvet.redis.calls import parse_reply
from korvet.redis.errors import StorageError
from korvet.redis.functions import named
from korvet.redis.futures import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from korvet.cluster.topic import Topic
    from korvet.redis.commands import Commands

log = logging.getLogger(__name__)

_NONE_MOVED: Final = b"*0\r\n"
_ROW: Final = 3
_ARGUMENTS: Final = 7
# Limits the names that are logged, each once, because they cannot be Kafka groups.
_LOGGED_NAMES: Final = 1_000


class NativeGroups:
    """Reads the Redis groups whose position has changed since the last projection of a commit of the Kafka
    group of that name.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        # By topic: the packed calls of its partitions without the last argument.
        self._calls: dict[str, tuple[Topic, list[bytes]]] = {}
        self._unnamed: set[tuple[str, int, bytes]] = set()

    async def moved(self, streams: Sequence[tuple[Topic, int]]) -> list[NativeGroup]:
        """The moved groups of some partitions. One call per partition is sent, all at once, and more calls
        for partitions with thousands of groups. Partitions that cannot be read are left out.
        """
        found: list[NativeGroup] = []
        asked = [(topic, partition, 0) for topic, partition in streams]
        while asked:
            further = []
            for topic, partition, reply in await self._ask(asked):
                try:
                    found += self._groups(topic, partition, reply)
                except Exception:
                    # Damaged data of one partition must not stop the export of other partitions' groups.
                    log.exception("the Redis groups of %s-%d cannot be read", topic.name, partition)
                    continue
                if reply[0]:
                    further.append((topic, partition, reply[0]))
            asked = further
        return found

    def forget(self, topics: Iterable[str]) -> None:
        """Drop what is kept for topics other than `topics`, which exist."""
        existing = set(topics)
        for name in self._calls.keys() - existing:
            del self._calls[name]
        self._unnamed = {key for key in self._unnamed if key[0] in existing}

    def _ask(
        self, asked: Sequence[tuple[Topic, int, int]]
    ) -> asyncio.Future[list[tuple[Topic, int, list[Any]]]]:
        """The replies of korvet_moved for partitions with moved groups. `asked` holds (topic, partition,
        number of groups to skip).
        """
        replies: list[tuple[Topic, int, list[Any]]] = []
        answered: asyncio.Future[list[tuple[Topic, int, list[Any]]]] = (
            asyncio.get_running_loop().create_future()
        )
        left = len(asked)

        def arrived(topic: Topic, partition: int, reply: memoryview | StorageError) -> None:
            nonlocal left
            left -= 1
            if isinstance(reply, StorageError) or bytes(reply[: len(_NONE_MOVED)]) != _NONE_MOVED:
                parsed = reply if isinstance(reply, StorageError) else parse_reply(reply)
                if isinstance(parsed, StorageError):
                    log.debug("the Redis groups of %s-%d cannot be read: %s", topic.name, partition, parsed)
                else:
                    replies.append((topic, partition, parsed))
            if not left:
                resolve(answered, replies)

        for topic, partition, left_out in asked:
            links = self._commands.links(self._commands.keyspace.stream(topic.name, partition))
            call = self._call(topic, partition) + pack_arguments(left_out)
            links.read_functions.send(call, partial(arrived, topic, partition))
        return answered

    def _call(self, topic: Topic, partition: int) -> bytes:
        known = self._calls.get(topic.name)
        if known is None or known[0] is not topic:
            known = self._calls[topic.name] = (
                topic,
                [
                    b"*%d\r\n" % _ARGUMENTS
                    + pack_arguments(
                        "FCALL_RO",
                        named("korvet_moved"),
                        2,
                        self._commands.keyspace.stream(topic.name, number),
                        self._commands.keyspace.meta(topic.name, number),
                        topic.bias,
                    )
                    for number in range(topic.partitions)
                ],
            )
        return known[1][partition]

    def _groups(self, topic: Topic, partition: int, reply: list[Any]) -> list[NativeGroup]:
        log_start, rows = reply[1], reply[2:]
        found = []
        for at in range(0, len(rows), _ROW):
            name, position, field = rows[at : at + _ROW]
            group = group_id_of(name)
            if group is None:
                self._note_unnamed(topic.name, partition, name)
                continue
            found.append(
                NativeGroup(
                    group,
                    topic.name,
                    partition,
                    int(position),
                    log_start,
                    _projected(field),
                    topic.topic_id.bytes,
                )
            )
        return found

    def _note_unnamed(self, topic: str, partition: int, name: bytes) -> None:
        key = topic, partition, name
        if key not in self._unnamed and len(self._unnamed) < _LOGGED_NAMES:
            self._unnamed.add(key)
            log.warning("the Redis group %r of %s-%d cannot be a Kafka group", name[:100], topic, partition)


def _projected(field: bytes) -> Projected | None:
    """The last projected commit in a field of a meta hash: position, offset (`-`: deleted), position of the
    group, origin.
    """
    if not field:
        return None
    position, offset, *rest = field.split(b" ")
    return Projected(int(position), None if offset == b"-" else int(offset), rest[-1:] == [b"n"])
