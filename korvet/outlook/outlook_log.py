"""Logs what each kind of failure can lose."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.outlook.durability import FAULT, outlooks
from korvet.redis.errors import StorageError
from korvet.redis.server_facts import reported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.outlook.durability import Setup
    from korvet.redis.server import Router
    from korvet.redis.server_facts import ServerFacts

log = logging.getLogger(__name__)


# Interval of looks whether more replicas may be promoted.
_PERIOD_S: Final = 60.0
# Instead of the number of replicas of a server that does not report its facts.
_UNKNOWN: Final = -1


async def watch_outlooks(
    router: Router, setup: Callable[[], Setup], is_wanted: Callable[[], bool], period_s: float = _PERIOD_S
) -> NoReturn:
    """Log the outlooks while that is wanted: at once, and again if there is another server, or more replicas
    of a server may be promoted than ever before.
    """
    logged: dict[str, int] = {}
    while True:
        if is_wanted():
            found = {str(server.address): await reported(server.read) for server in tuple(router.servers())}
            now = setup()
            counts = {
                place: _UNKNOWN if isinstance(facts, StorageError) else now.candidates(facts)
                for place, facts in found.items()
            }
            more = {
                place: count for place, count in counts.items() if count > logged.get(place, _UNKNOWN - 1)
            }
            if more:
                logged |= more
                _log(found, now)
        await asyncio.sleep(period_s)


def _log(asked: Mapping[str, ServerFacts | StorageError], setup: Setup) -> None:
    """Log what failures can lose, and which servers do not report it."""
    for place, facts in asked.items():
        if isinstance(facts, StorageError):
            log.warning("Redis at %s does not report what failures can lose: %s", place, facts)
    known = {place: facts for place, facts in asked.items() if not isinstance(facts, StorageError)}
    for subject, state, text in outlooks(known, setup, len(asked)):
        log.log(logging.WARNING if state == FAULT else logging.INFO, "%s: %s", subject, text)
