"""The watch over partitions and groups: settings apply at once, and lost servers don't hide the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from korvet.config.live import LiveConfig
from korvet.config.settings import Config
from korvet.observe import lag
from korvet.observe.lag import LagWatch
from korvet.observe.ordinals import Ends
from korvet.observe.positions import WatchedLog
from korvet.redis.errors import LinkLost, StorageError
from korvet.supervisor import end
from tests.support.running import run

if TYPE_CHECKING:
    from korvet.observe.ordinals import LogOrdinals

BOUNDS = (0, 0, 10, 0, 10)


class Ordinals:
    """A log on a server that answers, or on one that is lost."""

    partition = 0

    def __init__(self, server: str, error: StorageError | None = None) -> None:
        self.server = server
        self.topic = SimpleNamespace(name=server, internal=True)
        self.asked = 0
        self._error = error

    def ask(self) -> asyncio.Future[Any]:
        self.asked += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._error is None:
            future.set_result([b"ok", *BOUNDS])
        else:
            future.set_exception(self._error)
        return future

    async def ends_of(self, reply: list[Any]) -> Ends:
        return Ends(*reply[1:])


async def test_a_shorter_interval_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: asyncio.Queue[None] = asyncio.Queue()
    monkeypatch.setattr(LagWatch, "look", lambda _: looks.put(None))
    live = LiveConfig(Config(metrics_lag_interval_ms=3_600_000))
    nothing = cast("Any", None)
    watching = asyncio.ensure_future(LagWatch(live, nothing, nothing, nothing).run())
    try:
        await looks.get()
        live.take({"metrics.lag.interval.ms": "100"}, {})
        for _ in range(2):
            await looks.get()
    finally:
        await end(watching)


def test_by_default_every_group_is_shown() -> None:
    nothing = cast("Any", None)
    watch = LagWatch(LiveConfig(Config()), nothing, nothing, nothing)
    assert watch.shows_group("several\nlines")


def test_the_logs_of_other_servers_are_read_while_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing_new(_: LagWatch) -> None:
        pass

    for name in ("_follow_topics", "_follow_terms", "_admit_groups", "_follow_queues"):
        monkeypatch.setattr(LagWatch, name, nothing_new)
    monkeypatch.setattr(lag, "ENDS_AT_ONCE", 1)
    nothing = cast("Any", None)
    watch = LagWatch(LiveConfig(Config()), nothing, nothing, nothing)
    lost = LinkLost("gone")
    made = [
        Ordinals("a"),
        Ordinals("b", lost),
        Ordinals("b", lost),
        Ordinals("c", StorageError("damaged")),
        Ordinals("d"),
    ]
    logs = [WatchedLog(cast("LogOrdinals", each)) for each in made]
    for number, each in enumerate(logs):
        each.is_led = True
        watch.logs[each.ordinals.topic.name, number] = each
    for times in (1, 2):
        with pytest.raises(LinkLost):
            run(watch.look())
        assert [each.asked for each in made] == [times, times, 0, times, times]
    assert [each.ends for each in logs] == [Ends(*BOUNDS), None, None, None, Ends(*BOUNDS)]
    assert watch.counting.failures == 4
