"""How a broker leaves: the other brokers lead at once, and clients are sent to them."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from korvet.observe.parts import Parts

# Limits the time during which clients are sent to other brokers before their connections are closed.
_REDIRECTED_S: Final = 1.0
# Limits the time until the other brokers know that this broker leaves: longer than their renewals' interval.
_INFORMED_S: Final = 0.3


async def hand_over(parts: Parts) -> None:
    """Let the other brokers lead, and send clients to them until all have gone or a second has passed.

    Clients that ask this broker learn who leads, so they need not find out by a closed connection.
    """
    # The others look at their mail more often after that.
    await parts.mailbox.announce(leaving=True)
    # The next leaders begin with the high watermarks that are noted.
    parts.store.resources.watermarks.note_all()
    await parts.member.leave(partial(_inform, parts))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REDIRECTED_S):
            await parts.listener.wait_empty()


async def _inform(parts: Parts) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_INFORMED_S):
            if not await parts.mailbox.announce(leaving=True):
                await asyncio.sleep(_INFORMED_S)
