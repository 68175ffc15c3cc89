"""The writer of `__share_group_state` while leaders or Redis are gone, and what is asked of leaders."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from korvet.api.sharing.leader_mail import LeaderMail
from korvet.api.sharing.snapshots import ShareSnapshots
from korvet.coordinator.share_changes import ShareChange, ShareChanges
from korvet.groups.share.messages import SharePartition
from korvet.redis.errors import LinkLost, StorageError
from korvet.topics.errors import TopicError

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES = [SharePartition("g", b"t" * 16, "orders", number) for number in range(9)]
OWN, OTHER = 1, 2
_UNUSED: Any = None


class Mailbox:
    """Mail to one other broker, which answers with an error text, or is gone (None)."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.sent: list[tuple[int, str, bytes]] = []
        self.reply: bytes | None = None

    def handle(self, kind: str, handler: Any) -> None:
        self.handlers[kind] = handler

    def ask(self, node_id: int, kind: str, body: bytes, done: Callable[[bytes | StorageError], None]) -> None:
        self.sent.append((node_id, kind, body))
        done(LinkLost("gone") if self.reply is None else self.reply)


class Leadership:
    """One of two brokers."""

    alone = False

    def __init__(self, leader: int, epoch: int = 7) -> None:
        self.leader, self.epoch = leader, epoch
        self.assignment = SimpleNamespace(leader=lambda *_: SimpleNamespace(node_id=leader, epoch=epoch))

    def leader_epoch_of(self, topic: str, partition: int) -> int | None:
        del topic, partition
        return self.epoch if self.leader == OWN else None


class Topics:
    """`__share_group_state`, which can be created or not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def get(self, name: str) -> Any:
        del name
        return None if self.error else SimpleNamespace(partitions=50)

    async def get_or_create(self, name: str) -> Any:
        del name
        assert self.error is not None
        raise self.error


def writer(topics: Topics, mailbox: Mailbox, changes: ShareChanges) -> ShareSnapshots:
    parts: Any = (_UNUSED, topics, Leadership(OTHER), mailbox, _UNUSED, changes)
    return ShareSnapshots(*parts)


@pytest.mark.parametrize("error", [None, StorageError("no Redis"), TopicError("no topic")])
async def test_changes_wait_and_are_told_of_once(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    changes, mailbox = ShareChanges(), Mailbox()
    snapshots = writer(Topics(error), mailbox, changes)
    changes.begun(PLACES[0], 3)
    changes.removed(PLACES[1])
    changes.changed(PLACES[2], [(4, 5)])
    expected = [ShareChange(PLACES[0], 3), ShareChange(PLACES[1], gone=True)]
    expected.append(ShareChange(PLACES[2], given_up=[(4, 5)]))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await snapshots.flush()
    assert sorted(changes.take(), key=lambda change: change.place.partition) == expected
    assert len(caplog.records) == 1
    assert "not written yet" in caplog.text


async def test_each_change_is_written_once() -> None:
    changes, mailbox = ShareChanges(), Mailbox()
    mailbox.reply = b"\xa0"  # an empty text
    snapshots = writer(Topics(), mailbox, changes)
    for place in PLACES:
        changes.changed(place)
    await snapshots.flush()
    await snapshots.flush()
    assert 1 < len(mailbox.sent) <= len(PLACES)
    assert changes.take() == []


# Leaders


async def test_a_leader_works_for_others_in_its_epoch() -> None:
    done: list[tuple[str, int, bytes]] = []

    async def work(topic: str, partition: int, body: bytes) -> None:
        if body == b"bad":
            raise StorageError("no Redis")
        done.append((topic, partition, body))

    asking, leading = Mailbox(), Mailbox()
    parts: Any = (Leadership(OTHER), asking, "kind", work)
    asker = LeaderMail(*parts)

    async def answer(epoch: int, body: bytes) -> bytes:
        """What a leader in that epoch answers."""
        parts: Any = (Leadership(OWN, epoch), leading, "kind", work)
        leader: LeaderMail = LeaderMail(*parts)
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        asking.reply = b"\xa0"
        await asker.ask("t", 3, body)
        node_id, kind, request = asking.sent[-1]
        assert (node_id, kind) == (OTHER, "kind")
        leading.handlers["kind"](request, answered.set_result)
        reply = await answered
        await leader.close()
        return reply

    assert await answer(7, b"good") == b"\xa0"
    assert done == [("t", 3, b"good")]
    for epoch, body, text in ((7, b"bad", "no Redis"), (8, b"good", "has another leader")):
        refusal = await answer(epoch, body)
        asking.reply = refusal
        assert text.encode() in refusal
        with pytest.raises(StorageError, match=text):
            await asker.ask("t", 3, body)
    assert len(done) == 1


async def test_a_leader_asks_nobody() -> None:
    done: list[bytes] = []

    async def work(topic: str, partition: int, body: bytes) -> None:
        del topic, partition
        done.append(body)

    mailbox = Mailbox()
    parts: Any = (Leadership(OWN), mailbox, "kind", work)
    await LeaderMail(*parts).ask("t", 3, b"body")
    assert (done, mailbox.sent) == ([b"body"], [])
