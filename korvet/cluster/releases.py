"""Tidies up what other releases have left in Redis, when their last broker has gone."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.causes import Causes
from korvet.cluster.versions import FORMATS
from korvet.redis.errors import StorageError
from korvet.redis.fields import counter_of
from korvet.redis.library import tidy_libraries

if TYPE_CHECKING:
    from korvet.cluster.leadership import Leadership
    from korvet.redis.commands import Commands
    from korvet.redis.server import Router

log = logging.getLogger(__name__)
causes = Causes(log)

_POLL_S: Final = 1.0
# How long the live brokers must be the same: an upgrade may be in progress.
_SETTLED_S: Final = 10.0


async def keep_tidy(router: Router, commands: Commands, leadership: Leadership) -> NoReturn:
    """While this broker is the controller: delete the Function libraries that no live broker uses, and log
    when `korvet upgrade` is due.
    """
    loop = asyncio.get_running_loop()
    seen, tidied, since_s = leadership.assignment.version, -1, loop.time()
    while True:
        await asyncio.sleep(_POLL_S)
        version = leadership.assignment.version
        if version != seen:
            seen, since_s = version, loop.time()
        if version == tidied or not leadership.is_controller or loop.time() - since_s < _SETTLED_S:
            continue
        try:
            await _tidy(router, commands, leadership)
        except StorageError as error:
            message = "Function libraries of other releases cannot be deleted yet: %s"
            causes.warn(error, message, error, work="tidying")
            continue
        causes.ended("tidying")
        tidied = version


async def _tidy(router: Router, commands: Commands, leadership: Leadership) -> None:
    used = frozenset(broker.library for broker in leadership.assignment.brokers)
    await asyncio.gather(*(tidy_libraries(server.write, used) for server in router.servers()))
    stored = counter_of(await commands.call("HGET", commands.keyspace.cluster, "format"))
    if len(used) == 1 and stored < FORMATS.highest:
        log.info(
            "the keyspace has format %d, as before the upgrade: run `korvet upgrade` for format %d when no "
            "broker is to go back to the earlier release",
            stored,
            FORMATS.highest,
        )
