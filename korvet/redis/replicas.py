"""Waits until the replicas of the server that holds some keys have all changes of them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.records.kernel import pack_command
from korvet.redis.errors import (
    HistoryChanged,
    NotEnoughReplicas,
    NotReplicated,
    SlotUnavailable,
    StorageError,
    domain_error,
)
from korvet.redis.futures import awaited

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.redis.barrier import Level
    from korvet.redis.server import Links

# Longest wait after a change of what brokers share; clients of the admin APIs wait longer.
CHANGE_TIMEOUT_S: Final = 5.0


class Held(NamedTuple):
    """A key, and the server that holds it."""

    links: Links
    key: bytes
    barrier_key: bytes
    """A key that may be written, in the same slot."""

    @property
    def history(self) -> str:
        """The id of the history of the server, as it is known now."""
        return self.links.server.history.id

    def shortage(self, level: Level) -> NotEnoughReplicas | None:
        """Why replicas cannot have changes of the key now; None if nothing speaks against it."""
        return self.links.server.barriers.refusal(level)


def await_replicas(
    held: Held, level: Level, history: str, done: Callable[[StorageError | None], None]
) -> None:
    """Call done(None) once the replicas have all changes of a key that were answered; or done(error), see
    Barrier.wait. It is never called before this function returns.

    `history` is that of the server when it answered. While a node of a cluster imports the slot and has the
    key already, the error is SlotUnavailable: the replicas of the former node would prove nothing.
    """
    links, server = held.links, held.links.server
    wait = partial(server.barriers.wait, level, held.barrier_key, history, done)

    def located(reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            done(domain_error(reply))
        else:
            wait()

    if links.is_moving:
        server.read.send(pack_command("EXISTS", held.key), located)
    else:
        wait()


async def replicated(held: Held, level: Level, history: str, timeout_s: float) -> None:
    """Wait until the replicas have all changes of a key that were answered; see `await_replicas`.

    Raises NotReplicated if replicas are missing or late, or if another server has taken over; and other
    errors of Barrier.wait.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await awaited(partial(await_replicas, held, level, history))
    except TimeoutError:
        raise NotReplicated(f"the replicas do not have the change within {timeout_s:g} s") from None
    except (NotEnoughReplicas, HistoryChanged, SlotUnavailable) as error:
        raise NotReplicated(str(error)) from error
