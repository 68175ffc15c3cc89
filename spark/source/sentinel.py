"""Asking sentinels for the address of a primary.

redis-py's Sentinel believes the first sentinel that answers; one that was cut off names an old primary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from korvet.spark.source.address import Sentinels

# Limits the wait for each sentinel. One whose machine is gone delays every connection by this.
TIMEOUT_S = 1.0


def find_primary(sentinels: Sentinels) -> tuple[str, int]:
    """Return host and port of the primary. Sentinels that don't answer are skipped.

    The sentinel with the newest configuration (config-epoch) is right. Raises SourceError if none knows the
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
        raise SourceError("; ".join(reasons))
    _, host, port = max(answers)
    return host, port


def _ask(url: str, sentinels: Sentinels) -> tuple[int, str, int] | None:
    """The epoch of a sentinel's configuration and its primary; None if it doesn't know the name."""
    client: Any = redis.Redis.from_url(
        url,
        protocol=2,
        socket_connect_timeout=TIMEOUT_S,
        socket_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        **sentinels.arguments,
    )
    with client:
        found = client.sentinel_get_master_addr_by_name(sentinels.name)
        if found is None:
            return None
        state = client.sentinel_master(sentinels.name)
    host, port = found
    return state["config-epoch"], host.decode(), port
