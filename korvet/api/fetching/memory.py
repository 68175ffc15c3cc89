"""Limits the memory of Fetch responses, from the reading of records until the client has received them.

A response is as large as its client wants, up to `fetch.max.bytes`, and stays in memory until the client has
received it. Therefore a fetch takes memory from a budget before it reads records: up to an eighth of the free
bytes. If nothing is free, the fetch waits for a moment and then gets a small amount beyond the limit, enough
for its first batch. While fetches wait, clients that hardly receive anything are disconnected, beginning with
the one that has made no progress for the longest time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from korvet.api.common.budget import Budget
from korvet.metrics.counted import Counted, shown

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

log = logging.getLogger(__name__)

# Limits one fetch to this fraction of the free bytes: the first of many fetches must leave some to the
# others.
_SHARES: Final = 8
# Bytes that a fetch may take although its fraction is less, and for which it waits: reading them costs more
# than the wait.
_USEFUL_BYTES: Final = 256 * 1024
# Bytes that a fetch gets beyond the limit after its wait. Its first batch is returned whole, however large.
_LEAST_BYTES: Final = 16 * 1024
# Limits the wait of a fetch for memory. People notice a second, and the records have yet to be read.
_MAX_WAIT_S: Final = 0.25
# While others wait, a client has to receive _LEAST_PROGRESS_BYTES in this time. A consumer may process its
# records for minutes before it receives more.
_STALLED_S: Final = 10.0
_LEAST_PROGRESS_BYTES: Final = 64 * 1024


class Recipient(Protocol):
    """The connection that receives a response, see korvet.api.common.context.Client."""

    client_host: str

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that the client has not received yet."""

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Call back when `unsent_bytes` is 0 again, or the client is gone."""

    def cut(self) -> None:
        """End the connection at once."""


class _Sending:
    """A response that its client has not received completely."""

    __slots__ = ("client", "left_bytes", "moved_s", "size_bytes")

    def __init__(self, client: Recipient, size_bytes: int, now_s: float) -> None:
        self.client = client
        self.size_bytes = size_bytes
        self.left_bytes = client.unsent_bytes
        self.moved_s = now_s


class FetchMemory(Counted):
    """The memory that all fetches hold together: up to `limit_bytes`, and the first batches of fetches that
    find nothing free.
    """

    def __init__(self, limit_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._budget = Budget(limit_bytes, loop)
        self._loop = loop
        self._sending: dict[_Sending, None] = {}
        self._check: asyncio.TimerHandle | None = None

    @property
    @shown("korvet_fetch_memory_bytes", "Memory of Fetch responses that clients have not received.")
    def held_bytes(self) -> int:
        """The bytes that fetches hold now."""
        return self._budget.held_bytes

    def take(self, most_bytes: int) -> int:
        """Hold up to `most_bytes`. Returns how many bytes are held; 0 if there is no room."""
        budget = self._budget
        share_bytes = (budget.limit_bytes - budget.held_bytes) // _SHARES
        size_bytes = (
            most_bytes if most_bytes <= share_bytes else min(most_bytes, max(share_bytes, _USEFUL_BYTES))
        )
        return size_bytes if budget.take(size_bytes) else 0

    def wait(self, most_bytes: int, ready: Callable[[int], None]) -> None:
        """Hold up to `most_bytes` as soon as there is room, or a few bytes after _MAX_WAIT_S. Then call
        `ready(held bytes)`, never at once.
        """
        useful_bytes, least_bytes = min(most_bytes, _USEFUL_BYTES), min(most_bytes, _LEAST_BYTES)

        def done(admitted: bool) -> None:
            if not admitted:
                self._budget.exceed(least_bytes)
            ready(useful_bytes if admitted else least_bytes)

        self._budget.wait(useful_bytes, done, _MAX_WAIT_S)
        self._check_soon()

    def take_all(self, size_bytes: int) -> bool:
        """Hold exactly `size_bytes` at once. Returns False if there is no room."""
        return self._budget.take(size_bytes)

    def wait_for_all(self, size_bytes: int, ready: Callable[[], None]) -> None:
        """Call `ready` once exactly `size_bytes` are held, however long that takes."""
        self._budget.wait(size_bytes, lambda _: ready())
        self._check_soon()

    def resize(self, held_bytes: int, size_bytes: int) -> None:
        """Hold `size_bytes` instead of `held_bytes`."""
        self._budget.give_back(held_bytes - size_bytes)

    def sent_by(self, client: Recipient, held_bytes: int, size_bytes: int) -> None:
        """A response of `size_bytes`, for which `held_bytes` are held, was handed to the connection.

        Bytes that the client has not received stay held until it receives them.
        """
        if not client.unsent_bytes:
            self._budget.give_back(held_bytes)
            return
        self._budget.give_back(held_bytes - size_bytes)
        sending = _Sending(client, size_bytes, self._loop.time())
        self._sending[sending] = None
        client.when_sent(lambda: self._sent(sending))

    def _sent(self, sending: _Sending) -> None:
        if sending in self._sending:
            del self._sending[sending]
            self._budget.give_back(sending.size_bytes)

    def _check_soon(self) -> None:
        if self._check is None:
            self._check = self._loop.call_later(_MAX_WAIT_S / 2, self._look_at_readers)

    def _look_at_readers(self) -> None:
        """Disconnect clients that hardly receive anything, until no fetch waits for memory."""
        self._check = None
        if not self._budget.is_waited_for:
            return
        now_s = self._loop.time()
        for sending in list(self._sending):
            left_bytes = sending.client.unsent_bytes
            if sending.left_bytes - left_bytes >= _LEAST_PROGRESS_BYTES:
                sending.left_bytes, sending.moved_s = left_bytes, now_s
        stalled = [each for each in self._sending if now_s - each.moved_s >= _STALLED_S]
        for sending in sorted(stalled, key=lambda each: each.moved_s):
            if self._budget.free_bytes >= _USEFUL_BYTES:
                break
            log.warning(
                "closing the connection of %s: it read less than %d bytes of its response in %d s, "
                "and other fetches wait for memory",
                sending.client.client_host,
                _LEAST_PROGRESS_BYTES,
                now_s - sending.moved_s,
            )
            sending.client.cut()
            self._sent(sending)
        self._check_soon()
