"""The rounds of a barrier, on a link whose replies the test gives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from korvet.storage.errors import HistoryChanged, LinkLost, NotEnoughReplicas, StorageError
from korvet.storage.link import barrier
from korvet.storage.link.barrier import Barriers, Level
from korvet.storage.link.replication import parse_replication

if TYPE_CHECKING:
    from collections.abc import Callable

LEVEL = Level(1)
WRITTEN_AND_ENOUGH = memoryview(b"+OK\r\n:1\r\n")
WRITTEN_AND_TOO_FEW = memoryview(b"+OK\r\n:0\r\n")


class Link:
    """A connection that keeps what it is sent."""

    def __init__(self) -> None:
        self.connected = True
        self.primary_only = True
        self.history = "h"
        self.sent: list[tuple[Any, Callable[[Any], None]]] = []
        self.resets: list[str] = []
        self.on_up: Callable[[], None] | None = None

    def send(self, payload: Any, on_reply: Callable[[Any], None], replies: int = 1) -> None:
        self.sent.append((payload, on_reply))

    def reply(self, reply: memoryview | StorageError) -> None:
        self.sent.pop(0)[1](reply)

    def reset(self, reason: str) -> None:
        self.resets.append(reason)


class Primary:
    """A server with one replica in sync."""

    address: Any = "server"
    replication: Any = parse_replication(
        b"role:master\r\nconnected_slaves:1\r\nslave0:ip=r,port=1,state=online,offset=1,lag=0\r\n"
    )

    def __init__(self) -> None:
        self.write: Any = Link()
        self.barriers = Barriers(self)

    def went_silent(self) -> None:
        pass


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    made = Link()
    monkeypatch.setattr(barrier.RedisLink, "begin", lambda *_: made)
    return made


@pytest.fixture
def primary(link: Link) -> Primary:
    return Primary()


def wait(primary: Primary, done: Callable[[StorageError | None], None], history: str = "h") -> None:
    primary.barriers.wait(LEVEL, b"key", history, done)


def test_who_comes_during_a_round_waits_for_the_next_one(primary: Primary, link: Link) -> None:
    outcomes: list[tuple[int, StorageError | None]] = []
    for number in range(3):
        wait(primary, lambda error, number=number: outcomes.append((number, error)))  # type: ignore[misc]
    assert len(link.sent) == 1
    link.reply(WRITTEN_AND_ENOUGH)
    assert outcomes == [(0, None)]
    link.reply(WRITTEN_AND_ENOUGH)
    assert outcomes == [(number, None) for number in range(3)]
    assert not link.sent


def test_logs_that_wait_again_at_once_share_the_next_round(primary: Primary, link: Link) -> None:
    rounds = dict.fromkeys(range(4), 0)

    def again(log: int, error: StorageError | None) -> None:
        rounds[log] += 1
        wait(primary, partial(again, log))

    for log in rounds:
        wait(primary, partial(again, log))
    for _ in range(11):
        link.reply(WRITTEN_AND_ENOUGH)
    assert rounds == {0: 11, 1: 10, 2: 10, 3: 10}


def test_a_late_replica_is_waited_for_without_another_write(primary: Primary, link: Link) -> None:
    outcomes: list[StorageError | None] = []
    wait(primary, outcomes.append)
    link.reply(WRITTEN_AND_TOO_FEW)
    payload, _ = link.sent[0]
    assert b"SET" not in payload
    assert not outcomes
    link.reply(memoryview(b":1\r\n"))
    assert outcomes == [None]


def test_missing_replicas_end_the_round(primary: Primary, link: Link) -> None:
    outcomes: list[StorageError | None] = []
    primary.replication = parse_replication(b"role:master\r\nconnected_slaves:0\r\n")
    wait(primary, outcomes.append)
    link.reply(WRITTEN_AND_TOO_FEW)
    assert [type(outcome) for outcome in outcomes] == [NotEnoughReplicas]
    assert isinstance(primary.barriers.refusal(LEVEL), NotEnoughReplicas)


def test_replicas_of_another_server_prove_nothing(primary: Primary, link: Link) -> None:
    outcomes: list[StorageError | None] = []
    wait(primary, outcomes.append, history="former")
    link.reply(WRITTEN_AND_ENOUGH)
    assert [type(outcome) for outcome in outcomes] == [HistoryChanged]


def test_a_barrier_that_leads_elsewhere_connects_again(primary: Primary, link: Link) -> None:
    outcomes: list[StorageError | None] = []
    link.history = "elsewhere"
    wait(primary, outcomes.append)
    link.reply(WRITTEN_AND_ENOUGH)
    assert [type(outcome) for outcome in outcomes] == [LinkLost]
    assert len(link.resets) == 1


def test_a_lost_connection_is_waited_for(primary: Primary, link: Link) -> None:
    outcomes: list[StorageError | None] = []
    wait(primary, outcomes.append)
    link.connected = False
    link.reply(LinkLost("broken"))
    assert [type(outcome) for outcome in outcomes] == [LinkLost]
    wait(primary, outcomes.append)
    assert not link.sent
    link.connected = True
    assert link.on_up is not None
    link.on_up()
    link.reply(WRITTEN_AND_ENOUGH)
    assert outcomes[1:] == [None]
