"""Commands of the sink. All of them may be repeated: they are sent again while Redis is away or busy, until a
deadline.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import (
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import TimeoutError as LinkTimeout

from korvet.spark.source.connection import Connection
from korvet.spark.source.errors import RedisAway, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.spark.source.address import Address
    from korvet.spark.source.connection import Arguments

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_THROTTLED = "THROTTLED "
# Refusals of a server that can't serve yet or is no longer the primary.
_PASSING = (ClusterDownError, ReadOnlyError, TryAgainError)
# Likewise: too few replicas, no place on its disk, a long script.
_PASSING_CODES = ("NOREPLICAS ", "MISCONF ", "BUSY ")


class Link:
    """A connection that is opened again after failures."""

    def __init__(self, address: Address, delivery_ms: int) -> None:
        self._address = address
        self._delivery_s = delivery_ms / 1000
        self._connection: Connection | None = None

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(self, *arguments: str | bytes | int) -> Any:
        """Return the reply to one command. Raises RedisAway after the deadline, SourceError for a refusal."""
        return self._repeated(lambda connection: connection.call(*arguments))

    def replies(self, commands: list[Arguments]) -> list[Any]:
        """Return the replies to commands that are sent together. Raises as `call` does."""
        return self._repeated(lambda connection: connection.pipeline(commands))  # type: ignore[no-any-return]

    def wait_for_replicas(self, key: str, kept_ms: int, replicas: int) -> int:
        """Return how many replicas have all earlier writes to the node of the key. Sets the key's expiry.

        Waits for `replicas` of them until the deadline. Raises as `call` does.
        """
        deadline_s = time.monotonic() + self._delivery_s

        def waited(connection: Connection) -> int:
            left_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
            return connection.wait_for_replicas(key, kept_ms, replicas, left_ms)

        while True:
            found: int = self._repeated(waited)
            if found >= replicas or time.monotonic() >= deadline_s:
                return found

    def _repeated(self, command: Callable[[Connection], Any]) -> Any:
        deadline_s, pause_s = time.monotonic() + self._delivery_s, _FIRST_PAUSE_S
        while True:
            try:
                if self._connection is None:
                    self._connection = Connection(self._address)
                return command(self._connection)
            except (RedisAway, LinkError, LinkTimeout, ResponseError) as error:
                if isinstance(error, ResponseError) and not _passes(error):
                    self._wait_or_refuse(error, deadline_s)
                    continue
                self.close()
                if time.monotonic() + pause_s > deadline_s:
                    where = "" if isinstance(error, RedisAway) else f"Redis at {self._address.url}: "
                    tried = f"tried for {self._delivery_s:g} s, deliveryTimeout"
                    raise RedisAway(f"{where}{error} ({tried})") from error
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _wait_or_refuse(self, error: ResponseError, deadline_s: float) -> None:
        """Sleep if Redis is throttled. Raises SourceError for any other refusal, and after the deadline."""
        lead_ms = _throttled_ms(error)
        if lead_ms is None or time.monotonic() + lead_ms / 1000 > deadline_s:
            raise SourceError(_explained(error, self._address)) from error
        time.sleep(lead_ms / 1000)


def _passes(error: ResponseError) -> bool:
    """Whether a refusal may end by itself."""
    return isinstance(error, _PASSING) or str(error).startswith(_PASSING_CODES)


def _throttled_ms(error: ResponseError) -> int | None:
    text = str(error)
    return int(text.removeprefix(_THROTTLED)) if text.startswith(_THROTTLED) else None


def _explained(error: ResponseError, address: Address) -> str:
    text = str(error)
    if isinstance(error, OutOfMemoryError):
        return f"Redis at {address.url} is out of memory (maxmemory): {text}"
    if "Function not found" in text:
        return (
            f"Redis at {address.url} lacks a function of the sink (korvet_xadd_once, korvet_pace): brokers "
            "load them when they start, and when all brokers of the keyspace have this release"
        )
    return f"Redis at {address.url} refuses the records: {text}"
