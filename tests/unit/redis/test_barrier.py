"""The rounds of a barrier, on a link whose replies the test gives."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from korvet.redis import barrier
from korvet.redis.barrier import Barriers, Level
from korvet.redis.errors import (
    HistoryChanged,
    LinkLost,
    NotEnoughReplicas,
    RedisFault,
    SlotUnavailable,
    StorageError,
)
from korvet.redis.histories import History
from korvet.redis.replication import parse_replication
from tests.unit.redis.test_histories import report

if TYPE_CHECKING:
    from collections.abc import Callable

LEVEL = Level(1)
WRITTEN_AND_ENOUGH = memoryview(b"+OK\r\n:1\r\n")
WRITTEN_AND_TOO_FEW = memoryview(b"+OK\r\n:0\r\n")


class Link:
    """A connection that keeps what it is sent."""

    def __init__(self) -> None:
        self.connected = True
        self.closed = 0
        self.sent: list[tuple[Any, Callable[[Any], None]]] = []
        self.on_up: Callable[[], None] | None = None

    def send(self, payload: Any, on_reply: Callable[[Any], None], replies: int = 1) -> None:
        self.sent.append((payload, on_reply))

    def reply(self, reply: memoryview | StorageError) -> None:
        self.sent.pop(0)[1](reply)

    async def close(self) -> None:
        self.closed += 1


class Primary:
    """A server with one replica in sync."""

    address: Any = "server"
    replication: Any = parse_replication(
        b"role:master\r\nconnected_slaves:1\r\nslave0:ip=r,port=1,state=online,offset=1,lag=0\r\n"
    )

    def __init__(self) -> None:
        self.history = History()
        self.history.come_up(report("h"))
        self.followers: list[Any] = []
        self.barriers = Barriers(self)

    def lead(self, link: Any) -> None:
        self.followers.append(link)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    made = Link()
    monkeypatch.setattr(barrier.RedisLink, "begin", lambda *_: made)
    return made


@pytest.fixture
def primary(link: Link) -> Primary:
    return Primary()


def wait(
    primary: Primary, done: Callable[[StorageError | None], None], history: str = "h", key: bytes = b"key"
) -> None:
    primary.barriers.wait(LEVEL, key, history, done)


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


async def test_a_server_that_is_demoted_during_a_round_can_still_wait(primary: Primary, link: Link) -> None:
    """WAIT ends with an error then, as after CLUSTER FAILOVER FORCE."""
    outcomes: list[StorageError | None] = []
    wait(primary, outcomes.append)
    link.reply(memoryview(b"+OK\r\n-UNBLOCKED force unblock from blocking operation\r\n"))
    assert [type(outcome) for outcome in outcomes] == [LinkLost]
    assert primary.barriers.refusal(LEVEL) is None


async def test_missing_replicas_end_the_round(primary: Primary, link: Link) -> None:
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


def test_a_history_may_get_another_id(primary: Primary, link: Link) -> None:
    """A server takes a new id when its first replica attaches, or a backup, and another one after a pause."""
    outcomes: list[StorageError | None] = []
    for history in ("h", "another", "i", "j"):
        wait(primary, outcomes.append, history)
    primary.history.rename(report("i"))
    primary.history.rename(report("j"))
    link.reply(WRITTEN_AND_ENOUGH)
    link.reply(WRITTEN_AND_ENOUGH)
    assert [outcome and type(outcome) for outcome in outcomes] == [None, HistoryChanged, None, None]


def test_the_new_id_of_a_history_is_no_name_of_the_next_one(primary: Primary, link: Link) -> None:
    outcomes: list[StorageError | None] = []
    primary.history.rename(report("i"))
    # Another server takes over, and its history gets another id, too.
    primary.history.come_up(report("x"))
    primary.history.rename(report("y"))
    for history in ("h", "i", "x"):
        wait(primary, outcomes.append, history)
    link.reply(WRITTEN_AND_ENOUGH)
    link.reply(WRITTEN_AND_ENOUGH)
    assert [outcome and type(outcome) for outcome in outcomes] == [HistoryChanged, HistoryChanged, None]


def test_the_connection_follows_that_for_writes(primary: Primary, link: Link) -> None:
    wait(primary, lambda error: None)
    assert primary.followers == primary.barriers.links == [link]


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


@pytest.mark.parametrize("code", ["ASK", "MOVED"])
def test_a_key_that_moves_away_holds_back_no_other(primary: Primary, link: Link, code: str) -> None:
    outcomes: dict[bytes, StorageError | None] = {}
    for key in (b"round", b"moving", b"staying", b"other"):
        wait(primary, partial(outcomes.__setitem__, key), key=key)
    link.reply(WRITTEN_AND_ENOUGH)
    link.reply(RedisFault(f"{code} 7 host:1", code))
    assert isinstance(outcomes.pop(b"moving"), SlotUnavailable)
    payload, _ = link.sent[0]
    assert b"staying" in payload[0]
    link.reply(WRITTEN_AND_ENOUGH)
    assert outcomes == dict.fromkeys((b"round", b"staying", b"other"))


def test_a_refused_round_fails_for_those_who_wait_for_its_key(primary: Primary, link: Link) -> None:
    """Also if the wait that began the round has ended."""
    outcomes: list[tuple[bytes, StorageError | None]] = []
    for key in (b"round", b"a", b"b", b"a"):
        wait(primary, lambda error, key=key: outcomes.append((key, error)), key=key)  # type: ignore[misc]
    link.reply(WRITTEN_AND_ENOUGH)
    link.reply(RedisFault("MOVED 7 host:1", "MOVED"))
    assert [(key, type(error)) for key, error in outcomes[1:]] == [(b"a", SlotUnavailable)] * 2
    for key in (b"c", b"d"):
        wait(primary, lambda error, key=key: outcomes.append((key, error)), key=key)  # type: ignore[misc]
    link.reply(WRITTEN_AND_ENOUGH)
    primary.barriers.drop(lambda key: key == b"c")
    link.reply(RedisFault("MOVED 7 host:1", "MOVED"))
    link.reply(WRITTEN_AND_ENOUGH)
    assert [(key, error) for key, error in outcomes if error is None] == [
        (b"round", None),
        (b"b", None),
        (b"d", None),
    ]


def test_nobody_waits_for_a_server_that_has_given_the_key_away(primary: Primary, link: Link) -> None:
    outcomes: list[tuple[bytes, StorageError | None]] = []
    for key in (b"a1", b"a2", b"b2"):
        wait(primary, lambda error, key=key: outcomes.append((key, error)), key=key)  # type: ignore[misc]
    primary.barriers.drop(lambda key: key.startswith(b"a"))
    assert [(key, type(error)) for key, error in outcomes] == [
        (b"a1", SlotUnavailable),
        (b"a2", SlotUnavailable),
    ]
    wait(primary, lambda error: outcomes.append((b"b3", error)), key=b"b3")
    assert len(link.sent) == 1, "the round goes on, although nobody waits for it"
    link.reply(WRITTEN_AND_ENOUGH)
    assert len(outcomes) == 2
    link.reply(WRITTEN_AND_ENOUGH)
    assert outcomes[2:] == [(b"b2", None), (b"b3", None)]


def test_who_waits_no_longer_may_wait_at_another_level(primary: Primary) -> None:
    dropped: list[StorageError | None] = []

    def again(error: StorageError | None) -> None:
        dropped.append(error)
        primary.barriers.wait(Level(2), b"key", "h", dropped.append)

    wait(primary, again)
    primary.barriers.drop(lambda key: True)
    assert [type(error) for error in dropped] == [SlotUnavailable]


def test_the_connection_of_an_unused_level_is_closed(
    primary: Primary, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[StorageError | None] = []
    monkeypatch.setattr(barrier, "_UNUSED_S", -1.0)
    wait(primary, outcomes.append)
    asyncio.run(primary.barriers.close_unused())
    assert primary.barriers.links == [link]
    link.reply(WRITTEN_AND_ENOUGH)
    asyncio.run(primary.barriers.close_unused())
    assert not primary.barriers.links
    assert link.closed == 1
    wait(primary, outcomes.append)
    link.reply(WRITTEN_AND_ENOUGH)
    assert outcomes == [None, None]


@pytest.mark.parametrize("method", ["close_unused", "close"])
def test_levels_are_used_while_connections_are_closed(
    primary: Primary, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    outcomes: list[StorageError | None] = []
    links: list[Link] = []

    class Closing(Link):
        async def close(self) -> None:
            await super().close()
            if len(links) == 2:
                for level in (Level(1), Level(2), Level(2), Level(3)):
                    primary.barriers.wait(level, b"key", "h", outcomes.append)

    def begin(*_: object) -> Link:
        links.append(Closing())
        return links[-1]

    monkeypatch.setattr(barrier.RedisLink, "begin", begin)
    monkeypatch.setattr(barrier, "_UNUSED_S", 0.0)
    for level in (Level(1), Level(2)):
        primary.barriers.wait(level, b"key", "h", lambda error: None)
        links[-1].reply(WRITTEN_AND_ENOUGH)
    asyncio.run(getattr(primary.barriers, method)())
    if method == "close":
        assert all(link.closed for link in links)
        return
    for link in primary.barriers.links:
        while link.sent:  # type: ignore[attr-defined]
            link.reply(memoryview(b"+OK\r\n:9\r\n"))  # type: ignore[attr-defined]
    assert outcomes == [None] * 4
