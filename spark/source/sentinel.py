"""Asking sentinels for the address of a primary, with redis-py's raw connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import RedisError

from korvet.spark.source.errors import RedisAway

if TYPE_CHECKING:
    from korvet.spark.source.address import Sentinels

# Limits the wait for each sentinel. One whose machine is gone delays every connection by this.
TIMEOUT_S = 1.0


def find_primary(sentinels: Sentinels) -> tuple[str, int]:
    """Return host and port of the primary. Sentinels that don't answer are skipped.

    The sentinel with the newest configuration (config-epoch) is right. Raises RedisAway if none knows the
    primary.
    """
    answers: list[tuple[int, str, int]] = []
    reasons: list[str] = []
    for url in sentinels.urls:
        try:
            answer = _ask(url, sentinels)
        except (RedisError, OSError, ValueError) as error:
            reasons.append(f"the sentinel at {url}: {error}")
            continue
        if answer is None:
            reasons.append(f"the sentinel at {url} knows no primary of the name {sentinels.name!r}")
        else:
            answers.append(answer)
    if not answers:
        raise RedisAway("; ".join(reasons))
    _, host, port = max(answers)
    return host, port


def _ask(url: str, sentinels: Sentinels) -> tuple[int, str, int] | None:
    """The epoch of a sentinel's configuration and its primary; None if it doesn't know the name."""
    limits = {"socket_connect_timeout": TIMEOUT_S, "socket_timeout": TIMEOUT_S}
    pool: Any = redis.ConnectionPool.from_url(url, protocol=2, **limits, **sentinels.arguments)
    raw = pool.make_connection()
    raw.connect()
    try:
        raw.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels.name)
        found = raw.read_response(disable_decoding=True)
        if found is None:
            return None
        raw.send_command("SENTINEL", "MASTER", sentinels.name)
        words = raw.read_response(disable_decoding=True)
    finally:
        raw.disconnect()
    epoch = int(dict(zip(words[::2], words[1::2], strict=True))[b"config-epoch"])
    host, port = (word.decode() for word in found)
    return epoch, host, int(port)
