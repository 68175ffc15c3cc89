"""A controller that cannot delete the libraries of other releases logs that once, not every second."""

import asyncio
import logging
from types import SimpleNamespace

from korvet.cluster import releases
from korvet.redis.errors import StorageError


def test_a_cause_that_lasts_is_logged_once(monkeypatch, caplog):
    async def fail(router, commands, member):
        raise StorageError("no connection to Redis at 127.0.0.1:6379")

    monkeypatch.setattr(releases, "_POLL_S", 0.001)
    monkeypatch.setattr(releases, "_SETTLED_S", 0.0)
    monkeypatch.setattr(releases, "_tidy", fail)
    member = SimpleNamespace(assignment=SimpleNamespace(version=1), is_controller=True)

    async def run():
        tidy = asyncio.create_task(releases.keep_tidy(None, None, member))
        await asyncio.sleep(0.1)
        tidy.cancel()

    with caplog.at_level(logging.INFO, releases.__name__):
        asyncio.run(run())
    assert len([line for line in caplog.messages if "cannot be deleted yet" in line]) == 1
