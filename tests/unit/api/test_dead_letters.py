"""The writer of dead letters, with queues and topics in memory: what it reads at once, and when it rests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from korvet.api.sharing.configs import ShareConfig
from korvet.api.sharing.counts import ShareCounts
from korvet.api.sharing.dead_letters import DeadLetters
from korvet.api.sharing.sharing import rest_s
from korvet.groups.share.messages import SharePartition
from korvet.redis_groups.share import DeadRecord, Limits

CONFIG = ShareConfig(Limits(30_000, 5, 2_000, keeps_dead=True), dead_letter_topic="dlq.t", copies_dead=True)
RECORD = DeadRecord(b"1-0", 1024, 1, True, ())
USABLE = SimpleNamespace(internal=False, configs={"errors.deadletterqueue.group.enable": "true"})
LOG = SimpleNamespace(closed=False, topic=SimpleNamespace(native_format="json"))


class Queue:
    """A queue with one record that waits, of which nobody gets a copy."""

    def __init__(self) -> None:
        self.copies: list[bool] = []
        """What each read asked for."""

    async def dead(self, config: ShareConfig, count: int, *, copies: bool) -> list[DeadRecord]:
        assert (config, count) in {(CONFIG, 1), (CONFIG, 1_000)}
        self.copies.append(copies)
        if copies:
            await asyncio.get_running_loop().create_future()
        return [RECORD]


def partition_of(queue: Queue, number: int = 0) -> Any:
    place = SharePartition("g", b"\1" * 16, "t", number)
    return SimpleNamespace(place=place, dead=queue.dead, log=LOG)


def writer(topic: object, counts: ShareCounts) -> DeadLetters:
    policy = SimpleNamespace(compacts=False, max_message_bytes=1_000)
    topics: Any = SimpleNamespace(get=lambda _: topic, is_alias=lambda _: False, policy=lambda _: policy)
    mailbox: Any = SimpleNamespace(handle=lambda *_: None)
    live: Any = SimpleNamespace(now=SimpleNamespace(errors_deadletterqueue_topic_name_prefix="dlq."))
    unused: Any = None
    return DeadLetters(topics, unused, mailbox, live, unused, counts)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_no_copies_are_read_for_a_topic_that_cannot_have_them() -> None:
    queue, counts = Queue(), ShareCounts()
    writer(SimpleNamespace(internal=True), counts).write_soon(partition_of(queue), CONFIG)
    await turns()
    assert counts.failed_letters == 1
    assert queue.copies == [False]


async def test_a_rest_follows_failures_of_any_kind() -> None:
    queue = Queue()
    letters = writer(SimpleNamespace(), ShareCounts())
    for _ in range(3):
        letters.write_soon(partition_of(queue), CONFIG)
        await turns()
    assert queue.copies == [False]


async def test_few_partitions_are_copied_at_once() -> None:
    queue, counts = Queue(), ShareCounts()
    letters = writer(USABLE, counts)
    for number in range(100):
        letters.write_soon(partition_of(queue, number), CONFIG)
    await turns()
    assert 1 <= queue.copies.count(True) <= 16
    assert not counts.failed_letters
    await letters.close()


def test_hours_without_an_answer_of_redis_are_not_followed_by_days_of_rest() -> None:
    assert [rest_s(took_s) for took_s in (0.001, 1, 3_600)] == [3, 19, 60]
