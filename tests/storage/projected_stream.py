"""A partition's stream with a Redis group, and calls of korvet_project and korvet_drop_group on it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from korvet.offsets.packing import entry_id
from korvet.redis.functions import named
from korvet.redis_groups.projection import entry_id_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    pass


GROUP = "g"


STALE, MORE = 0, 2


_serial = itertools.count()


Client = Any  # redis.Redis; its stubs name every reply a union with awaitables


class Stream:
    """One partition's keys on the server, and the calls of the tests."""

    def __init__(self, client: Client, *, bias: int = 0) -> None:
        name = f"projected:t{next(_serial)}:0"
        self.client = client
        self.bias = bias
        self.key = name
        self.index = f"{{{name}}}:index"
        self.meta = f"{{{name}}}:meta"

    def add(self, *offsets: int) -> None:
        for offset in offsets:
            self.client.xadd(self.key, {"value": str(offset)}, id=entry_id(offset, self.bias))

    def delete(self, *offsets: int) -> None:
        for offset in offsets:
            self.client.xdel(self.key, entry_id(offset, self.bias))

    def crowd(self, count: int) -> None:
        """Add `count` other groups."""
        pipeline = self.client.pipeline(transaction=False)
        for number in range(count):
            pipeline.xgroup_create(self.key, f"crowd{number}", "0-0", mkstream=True)
        pipeline.execute()

    def project_once(self, offset: int, position: int, limit: int = 1000) -> int:
        (reply,) = self.project_all([(GROUP, position, offset, offset)], limit)
        return reply

    def project_all(self, commits: Sequence[tuple[str, int, int, int | str]], limit: int = 1000) -> list[int]:
        """Call korvet_project once for commits, each with group, log position, offset and earliest offset."""
        keys = (self.key, self.index, self.meta)
        arguments = [(*commit, entry_id_before(commit[2], self.bias), "") for commit in commits]
        replies: list[int] = self.client.fcall(
            named("korvet_project"), 3, *keys, self.bias, limit, *itertools.chain.from_iterable(arguments)
        )
        return replies

    def project(self, offset: int, position: int, limit: int = 1000) -> int:
        """Project until the commit is done; returns the number of calls (0: not applied)."""
        for calls in itertools.count(1):
            reply = self.project_once(offset, position, limit)
            if reply != MORE:
                return calls * reply
        raise AssertionError("unreachable")

    def drop(self, *, force: bool, position: int = 1_000) -> int:
        keys = (self.key, self.index, self.meta)
        destroyed: int = self.client.fcall(
            named("korvet_drop_group"), 3, *keys, self.bias, GROUP, position, int(force)
        )
        return destroyed

    def read(self, count: int | None = None, *, noack: bool = False) -> list[int]:
        """The offsets that a native consumer of the group receives next."""
        reply = self.client.xreadgroup(GROUP, "c", {self.key: ">"}, count=count, noack=noack)
        entries = reply[0][1] if reply else []
        return [int(fields[b"value"]) for _, fields in entries]

    def pending(self) -> list[str]:
        entries = self.client.xpending_range(self.key, GROUP, "-", "+", 100_000)
        return [entry["message_id"].decode() for entry in entries]

    def ids(self, offsets: Sequence[int]) -> list[str]:
        return [entry_id(offset, self.bias) for offset in offsets]

    def group(self) -> dict[str, Any]:
        groups: list[dict[str, Any]] = self.client.xinfo_groups(self.key)
        (group,) = [group for group in groups if group["name"] == GROUP.encode()]
        return group

    def delivered(self) -> str:
        answer: str = self.group()["last-delivered-id"].decode()
        return answer

    def stored(self) -> bytes | None:
        """The log position and the offset of the newest projected commit."""
        value: bytes | None = self.client.hget(self.meta, f"commit:{GROUP}")
        return value and b" ".join(value.split()[:2])
