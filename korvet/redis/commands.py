"""Commands and function calls on the keys of a keyspace, each sent to the server that holds its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from korvet.records.kernel import pack_command
from korvet.redis.functions import named

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from korvet.redis.keys import Keyspace
    from korvet.redis.server import Links, Router


class Commands:
    """Sends commands on the keys of one keyspace in one Redis, or in a cluster."""

    __slots__ = ("cluster_id", "keyspace", "links")

    def __init__(self, keyspace: Keyspace, router: Router, cluster_id: str = "") -> None:
        self.keyspace = keyspace
        self.cluster_id = cluster_id
        """The id of the keyspace that was opened: functions refuse to change a keyspace of another id
        (KeyspaceLost).
        """
        self.links: Callable[[bytes], Links] = router.links
        """The connections to the server that holds a key."""

    def call(self, *args: bytes | str | int) -> asyncio.Future[Any]:
        """Send one command over the write link; its second word is its key. The future gives the parsed
        reply, or raises StorageError.
        """
        key = args[1] if isinstance(args[1], bytes) else str(args[1]).encode()
        return self.links(key).write_functions.call(*args)

    def fcall(
        self, name: str, keys: Sequence[bytes], *args: bytes | str | int, read: bool = False
    ) -> asyncio.Future[Any]:
        """Call one function of this release (FCALL) over the write link, or over the read link if `read`. The
        future gives the parsed reply, or raises StorageError.

        All keys are of one cluster slot. If Redis has lost the library, it is loaded again.
        """
        links = self.links(keys[0])
        functions = links.read_functions if read else links.write_functions
        return functions.call_packed(pack_command("FCALL", named(name), len(keys), *keys, *args))
