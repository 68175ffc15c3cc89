"""Logs what each kind of failure can lose."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from korvet.storage.durability import Loss, describe_replicas, merged, outlooks
from korvet.storage.errors import StorageError
from korvet.storage.link import server_facts

if TYPE_CHECKING:
    from korvet.storage.durability import Setup
    from korvet.storage.link.server import Router

log = logging.getLogger(__name__)


async def log_outlooks(router: Router, setup: Setup) -> None:
    """Log in one line which failures lose nothing, and a line for each failure that can lose something."""
    found = {}
    for server in tuple(router.servers()):
        try:
            facts = await server_facts.ask(server.read)
        except StorageError as error:
            log.warning("Redis at %s does not report what failures can lose: %s", server.address, error)
            continue
        found[str(server.address)] = outlooks(facts, setup)
        if facts.replication.standing:
            log.info("Redis at %s: replicas: %s", server.address, describe_replicas(facts.replication))
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
