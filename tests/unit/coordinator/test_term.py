"""A served partition of groups whose records wait for replicas, without Redis."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from korvet.coordinator.served import Claim
from korvet.coordinator.term import Term
from korvet.groups.config import GroupConfig
from korvet.groups.messages import ListReply, ListRequest
from korvet.groups.shard import GroupShard
from korvet.records.control import ControlMarker
from korvet.storage.errors import NotEnoughReplicasAfterAppend, WritesRefused
from tests.unit.coordinator.test_served import Log
from tests.unit.groups.driver import commit_request


def served(log: Log, failures: list[Exception] | None = None) -> Term:
    projector: Any = SimpleNamespace(touched=None, apply=lambda changes, done: done())
    failed = [] if failures is None else failures
    claim = Claim(log, 1, 0, lambda: 0, lambda at_ms: None, failed.append, lambda: 1000, 1000)  # type: ignore[arg-type]
    term = Term(GroupShard(GroupConfig(), lambda: "x"), claim, projector, {})
    term.begin()
    return term


def test_a_list_of_groups_is_refused_if_replicas_are_late() -> None:
    async def work() -> None:
        log, answers = Log(), []
        term = served(log)
        term.submit(GroupShard.commit, commit_request(1), answers.append)
        term.submit(GroupShard.list_groups, ListRequest(), answers.append)
        await asyncio.sleep(0)
        log.waiting.pop(0)(NotEnoughReplicasAfterAppend("late"))
        assert answers[1:] == [ListReply((), ErrorCode.coordinator_not_available)]

    asyncio.run(work())


def test_a_marker_is_refused_while_redis_takes_no_writes() -> None:
    """Its append would end the term, which still answers reads."""

    class Unwritable(Log):
        writes_refused: Any = WritesRefused("MISCONF")

        def mark(self, marker: ControlMarker, done: Any, *, epoch: int) -> None:
            done(self.writes_refused)

    async def work() -> None:
        answers: list[Any] = []
        failures: list[Exception] = []
        term = served(Unwritable(), failures)
        term.mark(ControlMarker(7, 0, True, 1), answers.append)
        await asyncio.sleep(0)
        term.submit(GroupShard.list_groups, ListRequest(), answers.append)
        assert answers == [ErrorCode.coordinator_load_in_progress, ListReply(())]
        assert not failures

    asyncio.run(work())
