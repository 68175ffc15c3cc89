"""Responses to clients that have quotas: counts what a client uses. A client that has used too much gets a
throttle time, and its connection takes no requests for that time (KIP-13, KIP-124, KIP-219).
"""

from __future__ import annotations

import struct
import time
import types
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from korvet.quotas.entities import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from korvet.quotas.throttle import most_bytes_of_window

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping

    from korvet.api.common.context import RequestContext
    from korvet.protocol.registry import Api, ReadQuota
    from korvet.quotas.limits import Limit
    from korvet.quotas.throttle import ClientQuotas
    from korvet.server.response_slot import ResponseSlot

_INT32: Final = struct.Struct(">i")


class ThrottledSlot:
    """Takes the response to a client that has quotas, and passes it on to the slot."""

    __slots__ = (
        "_api",
        "_began",
        "_context",
        "_limits",
        "_quotas",
        "_size_bytes",
        "_slot",
        "_spent_s",
        "request",
    )

    def __init__(
        self,
        slot: ResponseSlot,
        quotas: ClientQuotas,
        limits: Mapping[str, Limit],
        context: RequestContext,
        api: Api,
        request: Any,
        size_bytes: int,
    ) -> None:
        self._slot = slot
        self._quotas = quotas
        self._limits = limits
        self._context = context
        self._api = api
        self._size_bytes = size_bytes
        self.request = request
        """The request to handle: a Fetch asks for at most the bytes of one quota window."""
        if api.read_quota is not None and CONSUMER_BYTE_RATE in limits:
            self.request = api.read_quota.limit(request, most_bytes_of_window(limits[CONSUMER_BYTE_RATE]))
        if api.strict_quota_since is not None and CONTROLLER_MUTATION_RATE in limits:
            context.mutations = quotas.mutations(
                limits[CONTROLLER_MUTATION_RATE],
                _now_ms,
                strict=context.api_version >= api.strict_quota_since,
            )
        self._spent_s = 0.0
        self._began: float | None = None

    def resume(self) -> None:
        """Count the broker's time for the request from now on."""
        self._began = time.perf_counter()

    def pause(self) -> None:
        """Stop counting: the request waits, or has ended."""
        if self._began is not None:
            self._spent_s += time.perf_counter() - self._began
            self._began = None

    async def timed(self, handle: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a handler and count its time, without the time that it waits."""
        await self._steps(handle)

    @types.coroutine
    def _steps(self, handle: Callable[[], Coroutine[Any, Any, None]]) -> Generator[Any, Any, None]:
        handler = handle()
        step: Callable[[], Any] = partial(handler.send, None)
        while True:
            self.resume()
            try:
                awaited = step()
            except StopIteration:
                return
            finally:
                self.pause()
            try:
                step = partial(handler.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - passed on to the handler
                step = partial(handler.throw, error)

    def __call__(self, body: list[bytes] | None) -> None:
        """Answer at once, even if the client has to wait after that."""
        running = self._began is not None
        self.pause()
        now_ms = _now_ms()
        wait_ms = 0
        if body is not None and REQUEST_PERCENTAGE in self._limits:
            wait_ms = self._quotas.worked(self._limits[REQUEST_PERCENTAGE], self._spent_s, now_ms)
        if self._context.mutations is not None:
            wait_ms = max(wait_ms, self._context.mutations.wait_ms)
        if self._api.writes_records and PRODUCER_BYTE_RATE in self._limits:
            size_bytes = max(self._size_bytes, self._context.unpacked_bytes)
            produced_ms = self._quotas.produced(self._limits[PRODUCER_BYTE_RATE], size_bytes, now_ms)
            wait_ms = max(wait_ms, produced_ms)
        elif self._api.read_quota is not None and body is not None:
            body, wait_ms = self._fetched(self._api.read_quota, body, wait_ms, now_ms)
        if wait_ms:
            if body is not None:
                body = self._with_throttle_time(body, wait_ms)
            self._slot.connection.mute(wait_ms / 1000)
            if self._context.counts is not None:
                self._context.counts.throttled += 1
                self._context.counts.throttled_s += wait_ms / 1000
        self._slot(body)
        if running:
            self.resume()

    def _fetched(
        self, quota: ReadQuota, body: list[bytes], wait_ms: int, now_ms: float
    ) -> tuple[list[bytes], int]:
        """Charge a response that carries records. Returns the body to send and the time (ms) that the client
        has to wait.
        """
        limit = self._limits.get(CONSUMER_BYTE_RATE)
        if wait_ms:
            # As Kafka: a client that has to wait gets no records, and these are not counted.
            return quota.empty(self._context, body), wait_ms
        if limit is None:
            return body, 0
        wait_ms, passes = self._quotas.consumed(limit, sum(map(len, body)), now_ms)
        return (body if passes else quota.empty(self._context, body)), wait_ms

    def _with_throttle_time(self, body: list[bytes], wait_ms: int) -> list[bytes]:
        at = self._context.schema.throttle_at
        if at is None:
            return body
        first, *others = body
        at = at if at >= 0 else len(first) + at
        (wait_before_ms,) = _INT32.unpack_from(first, at)
        wait_ms = max(wait_ms, wait_before_ms)
        return [first[:at] + _INT32.pack(wait_ms) + first[at + 4 :], *others]


def _now_ms() -> float:
    return time.monotonic() * 1000
