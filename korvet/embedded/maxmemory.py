"""Changes of embedded.maxmemory while the embedded server runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.causes import Causes
from korvet.redis.errors import StorageError

if TYPE_CHECKING:
    from korvet.config.live import LiveConfig
    from korvet.redis.server import Router, Server
    from korvet.redis.server_watch import ServerWatch

log = logging.getLogger(__name__)
causes = Causes(log)

_PERIOD_S: Final = 1.0
_WORK: Final = "embedded.maxmemory"


async def keep_maxmemory(live: LiveConfig, router: Router, watch: ServerWatch) -> NoReturn:
    """Give the embedded server a changed embedded.maxmemory (CONFIG SET), also after a restart of the server,
    which begins with the static value. What an administrator sets by CONFIG SET stays until then.
    """
    begun_with = live.static.embedded_maxmemory
    run_id, in_force = "", begun_with
    while True:
        for server in router.servers():
            reading = watch.readings.get(str(server.address))
            if reading is None:
                continue
            if reading.info["run_id"] != run_id:
                run_id, in_force = reading.info["run_id"], begun_with
            configured = live.now.embedded_maxmemory
            wanted = begun_with if configured < 0 else configured
            if 0 <= wanted != in_force and await _set(server, wanted):
                in_force = wanted
        await live.pause(lambda _: _PERIOD_S)


async def _set(server: Server, limit_bytes: int) -> bool:
    try:
        await server.read.call("CONFIG", "SET", "maxmemory", limit_bytes)
    except StorageError as error:
        causes.warn(error, "embedded.maxmemory cannot be applied: %s", error, work=_WORK)
        return False
    causes.ended(_WORK)
    log.info("the embedded server has maxmemory %d", limit_bytes)
    return True
