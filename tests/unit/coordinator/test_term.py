"""A served partition of groups whose records wait for replicas, without Redis."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.coordinator.served import Claim
from korvet.coordinator.term import Term
from korvet.groups.config import GroupConfig
from korvet.groups.consumer.messages import ConsumerHeartbeatRequest
from korvet.groups.messages import FetchRequest, ListReply, ListRequest
from korvet.groups.shard import GroupShard
from korvet.records.control import ControlMarker
from korvet.redis.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend, WritesRefused
from tests.unit.coordinator.test_served import Log
from tests.unit.groups.driver import commit_request

JOIN = ConsumerHeartbeatRequest(
    "g", "m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=("orders",), owned=()
)


def served(log: Log, failures: list[Exception] | None = None) -> Term:
    projector: Any = SimpleNamespace(changed=lambda places: None, apply=lambda changes, done: done())
    failed = [] if failures is None else failures
    claim = Claim(log, 1, 0, lambda: 0, lambda at_ms: None, failed.append, lambda: 1000, 1000)  # type: ignore[arg-type]
    term = Term(
        GroupShard(GroupConfig(), lambda: "x"), claim, projector, {}, lambda term, initialisations: None
    )
    term.begin()
    return term


async def test_groups_are_listed_although_replicas_are_late() -> None:
    log, answers = Log(), []
    term = served(log)
    term.submit(GroupShard.commit, commit_request(1), answers.append)
    term.submit(GroupShard.list_groups, ListRequest(), answers.append)
    await asyncio.sleep(0)
    assert answers == []
    log.waiting.pop(0)(NotEnoughReplicasAfterAppend("late"))
    listed, committed = answers
    assert [each.group_id for each in listed.groups] == ["g"]
    assert committed.topics[0].partitions[0].error is ErrorCode.coordinator_not_available


@pytest.mark.parametrize("is_known", [True, False])
async def test_members_join_although_replicas_are_late(is_known: bool) -> None:
    """Their records need no replicas; commits wait on, and are answered once if they are late."""
    log, joined, committed = Log(), [], []
    term = served(log)
    term.submit(GroupShard.commit, commit_request(1, group_id="other"), committed.append)
    await asyncio.sleep(0)
    log.missing_replicas = NotEnoughReplicas("none") if is_known else None
    term.submit(GroupShard.consumer_heartbeat, JOIN, joined.append)
    await asyncio.sleep(0)
    if not is_known:
        assert joined == []
        log.waiting.pop()(NotEnoughReplicasAfterAppend("late"))
    assert [each.error for each in joined] == [ErrorCode.none]
    term.submit(GroupShard.fetch, FetchRequest("g", member_id="n", member_epoch=1), joined.append)
    assert joined[1].error is ErrorCode.unknown_member_id, "nothing waits any more"
    term.submit(GroupShard.fetch, FetchRequest("other"), joined.append)
    assert len(joined) == 2, "the commit is not safe yet"
    # Only the wait for the commit is left.
    (waiting,) = log.waiting
    waiting(None)
    assert joined[2].topics[0].partitions[0].offset == 1
    assert [each.topics[0].partitions[0].error for each in committed] == [ErrorCode.coordinator_not_available]


async def test_offsets_are_read_while_replicas_lack_records_of_members() -> None:
    """librdkafka reads nothing more if its assignment changes while OffsetFetch waits."""
    log, answers, joined = Log(), [], []
    term = served(log)
    term.submit(GroupShard.consumer_heartbeat, JOIN, joined.append)
    await asyncio.sleep(0)
    term.submit(GroupShard.fetch, FetchRequest("g"), answers.append)
    assert [each.error for each in answers] == [ErrorCode.none]
    # Whether there is such a member depends on the records that replicas lack.
    term.submit(GroupShard.fetch, FetchRequest("g", member_id="n", member_epoch=1), answers.append)
    assert len(answers) == 1
    log.waiting.pop(0)(None)
    assert len(joined) == 1
    assert answers[1].error is ErrorCode.unknown_member_id
    # Offsets are not read before replicas have them.
    commit = commit_request(5, "m", joined[0].member_epoch, knows_member_epochs=True)
    term.submit(GroupShard.commit, commit, joined.append)
    await asyncio.sleep(0)
    term.submit(GroupShard.fetch, FetchRequest("g"), answers.append)
    assert len(answers) == 2
    log.waiting.pop(0)(None)
    assert answers[2].topics[0].partitions[0].offset == 5


async def test_a_marker_is_refused_while_redis_takes_no_writes() -> None:
    """Its append would end the term, which still answers reads."""

    class Unwritable(Log):
        writes_refused: Any = WritesRefused("MISCONF")

        def mark(self, marker: ControlMarker, done: Any, *, epoch: int) -> None:
            done(self.writes_refused)

    answers: list[Any] = []
    failures: list[Exception] = []
    term = served(Unwritable(), failures)
    term.mark(ControlMarker(7, 0, True, 1), answers.append)
    await asyncio.sleep(0)
    term.submit(GroupShard.list_groups, ListRequest(), answers.append)
    assert answers == [ErrorCode.coordinator_load_in_progress, ListReply(())]
    assert not failures
