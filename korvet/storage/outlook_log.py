"""Logs what each kind of failure can lose."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.storage.durability import Loss, describe_replicas, merged, outlooks
from korvet.storage.errors import StorageError
from korvet.storage.link import server_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.storage.durability import Setup
    from korvet.storage.link.server import Router
    from korvet.storage.link.server_facts import ServerFacts

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
            found, now = await _facts(router), setup()
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


async def _facts(router: Router) -> dict[str, ServerFacts | StorageError]:
    """The facts of each server, or why it does not report them."""
    found: dict[str, ServerFacts | StorageError] = {}
    for server in tuple(router.servers()):
        try:
            found[str(server.address)] = await server_facts.ask(server.read)
        except StorageError as error:
            found[str(server.address)] = error
    return found


def _log(asked: Mapping[str, ServerFacts | StorageError], setup: Setup) -> None:
    """Log in one line which failures lose nothing, and a line for each failure that can lose something."""
    found = {}
    for place, facts in asked.items():
        if isinstance(facts, StorageError):
            log.warning("Redis at %s does not report what failures can lose: %s", place, facts)
            continue
        found[place] = outlooks(facts, setup)
        if candidates := setup.candidates(facts):
            log.info("Redis at %s: replicas: %s", place, describe_replicas(facts.replication, candidates))
    kept = [
        ", ".join(filter(None, (_named(outlook.failure.value, servers), outlook.condition)))
        for outlook, servers in merged(found)
        if outlook.loss is Loss.NOTHING
    ]
    if kept:
        log.info("nothing that was acknowledged with acks=all is lost if %s", "; ".join(kept))
    for outlook, servers in merged(found):
        if outlook.loss is not Loss.NOTHING:
            level = logging.WARNING if outlook.is_fault else logging.INFO
            log.log(level, "if %s: %s", _named(outlook.failure.value, servers), outlook)


def _named(text: str, servers: tuple[str, ...]) -> str:
    return f"{text} ({', '.join(servers)})" if servers else text
