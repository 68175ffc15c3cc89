"""Share groups while partitions and groups change brokers."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.api.asking import connect
from tests.api.batches import batch
from tests.api.test_produce import put
from tests.api.test_share import ACCEPT, INVALID_RECORD_STATE, OPEN, Member, partitions, runs
from tests.faults.brokers import LEASE_MS, LONG_LEASE_MS, NOT_LEADER, PARTITIONS, Brokers
from tests.faults.share_load import GROUP, LOCK_MS, OPTIONS, ShareLoad, share
from tests.support.admin import create_topic
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from uuid import UUID

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients]

TOPIC = "queue"


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Brokers]]:
    """Starts brokers with a topic and a share group that begins with its first records."""
    made: list[Brokers] = []

    def start_some(count: int, *options: str) -> Brokers:
        folder: Path = tmp_path_factory.mktemp("redis")
        made.append(Brokers(folder, count, *OPTIONS, *options))
        share(made[-1].all[0])
        create_topic(made[-1].bootstrap, TOPIC, PARTITIONS)
        return made[-1]

    yield start_some
    for brokers in made:
        brokers.discard()


@pytest.fixture
def member() -> Iterator[Callable[..., Member]]:
    """Members of the group, with connections to a broker."""
    made: list[Member] = []

    def make(server: KorvetServer, name: str = "one") -> Member:
        made.append(Member(server, GROUP, name))
        return made[-1]

    yield make
    for each in made:
        each.client.raw.socket.close()


def begin(server: KorvetServer) -> UUID:
    """Let the group begin in all partitions; returns the topic's ID."""
    starts = [{"partition_index": index, "start_offset": 0} for index in range(PARTITIONS)]
    topics = [{"topic_name": TOPIC, "partitions": starts}]
    with connect(server) as ask:

        def altered() -> bool:
            return not ask("AlterShareGroupOffsets", 0, group_id=GROUP, topics=topics).error_code

        until(altered, 20, "the coordinator has loaded")
        found: UUID = ask("Metadata", 12, topics=[{"name": TOPIC, "topic_id": None}]).topics[0].topic_id
        return found


def by_partition(answer: Any) -> dict[int, Any]:
    return {each.partition_index: each for each in partitions(answer)}


def taken_by(member: Member, key: tuple[UUID, int]) -> list[tuple[int, int, int]]:
    """The first records that a member gets of a partition, which are somebody's still."""

    def take() -> list[tuple[int, int, int]]:
        return runs(member.fetch(*([key] if member.epoch == OPEN else []), max_wait=LOCK_MS))

    return until(take, 20, "the member gets records")


def test_locks_survive_a_change_of_the_leader(
    start: Callable[..., Brokers], member: Callable[..., Member]
) -> None:
    brokers = start(1, "--set", "group.share.record.lock.duration.ms=60000")
    topic_id = begin(brokers.node(1))
    with connect(brokers.node(1)) as ask:
        offsets = [
            put(ask, TOPIC, batch(), partition=partition).base_offset for partition in range(PARTITIONS)
        ]
    keys = [(topic_id, partition) for partition in range(PARTITIONS)]
    first = member(brokers.node(1))
    assert len(runs(first.fetch(*keys))) == PARTITIONS
    first.send(max_wait=60_000)

    brokers.all.append(brokers.make(2, LONG_LEASE_MS))
    brokers.node(2).start()
    brokers.wait_for(1, 2)
    moved = {index for index, leader in brokers.leaders(TOPIC).items() if leader == 2}
    assert moved
    # The waiting fetch ends, and names the new leader.
    refused = by_partition(first.receive())
    assert refused
    for index, each in refused.items():
        assert (index in moved, each.error_code, each.current_leader.leader_id) == (True, NOT_LEADER, 2)
    # The old leader refuses acknowledgements of what has moved, and takes the others.
    accepts = [(*key, (offset, offset, [ACCEPT])) for key, offset in zip(keys, offsets, strict=True)]
    answer = by_partition(first.acknowledge(*accepts))
    assert {index for index, each in answer.items() if each.error_code == NOT_LEADER} == moved
    assert all(each.error_code == 0 for index, each in answer.items() if index not in moved)

    # At the new leader the locks hold; only their owner can accept.
    there = [key for key in keys if key[1] in moved]
    other, same = member(brokers.node(2), "other"), member(brokers.node(2))
    for each in (other, same):
        assert runs(each.fetch(*there)) == []
    late = [part for part in accepts if part[1] in moved]
    for each, error in ((other, INVALID_RECORD_STATE), (same, 0)):
        assert {one.error_code for one in partitions(each.acknowledge(*late))} == {error}
    for index in range(PARTITIONS):
        assert brokers.store.client.xpending(f"korvet:{TOPIC}:{index}", GROUP)["pending"] == 0


def test_records_of_a_killed_broker_are_taken_when_their_locks_end(
    start: Callable[..., Brokers], member: Callable[..., Member]
) -> None:
    brokers = start(2)
    topic_id = begin(brokers.node(1))
    index = brokers.led_by(TOPIC, 2)
    with connect(brokers.node(2)) as ask:
        offset = put(ask, TOPIC, batch(), partition=index).base_offset
    lost = member(brokers.node(2))
    assert runs(lost.fetch((topic_id, index))) == [(offset, offset, 1)]
    brokers.node(2).kill()
    brokers.wait_for(1, timeout_s=LEASE_MS / 1000 + 5)
    until(lambda: brokers.leaders(TOPIC)[index] == 1, 20, "the other broker leads the partition")
    heir = member(brokers.node(1), "heir")
    assert taken_by(heir, (topic_id, index)) == [(offset, offset, 2)]
    accepted = heir.acknowledge((topic_id, index, (offset, offset, [ACCEPT])))
    assert partitions(accepted)[0].error_code == 0


def test_a_paused_leader_takes_nothing_away(
    start: Callable[..., Brokers], member: Callable[..., Member]
) -> None:
    """What waited in its connections is refused, or counts once."""
    brokers = start(2)
    topic_id = begin(brokers.node(1))
    index = brokers.led_by(TOPIC, 2)
    with connect(brokers.node(2)) as ask:
        offset = put(ask, TOPIC, batch(), partition=index).base_offset
    old = member(brokers.node(2), "old")
    assert runs(old.fetch((topic_id, index))) == [(offset, offset, 1)]
    os.kill(brokers.node(2).process.pid, signal.SIGSTOP)
    try:
        old.send((topic_id, index, (offset, offset, [ACCEPT])), max_wait=0)
        brokers.wait_for(1, timeout_s=LEASE_MS / 1000 + 5)
        heir = member(brokers.node(1), "heir")
        assert taken_by(heir, (topic_id, index)) == [(offset, offset, 2)]
    finally:
        os.kill(brokers.node(2).process.pid, signal.SIGCONT)
    late = old.receive()
    assert late.error_code or partitions(late)[0].acknowledge_error_code in (NOT_LEADER, INVALID_RECORD_STATE)
    assert partitions(heir.acknowledge((topic_id, index, (offset, offset, [ACCEPT]))))[0].error_code == 0


def sent_to_both(brokers: Brokers) -> list[tuple[str, int]]:
    """A partition of each broker."""
    return [(TOPIC, brokers.led_by(TOPIC, node_id)) for node_id in range(1, len(brokers.all) + 1)]


def test_share_consumers_go_on_when_brokers_end_and_return(start: Callable[..., Brokers]) -> None:
    """The one that ends leads a partition, and coordinates the group."""
    brokers = start(2)
    group = brokers.group_at(2)
    share(brokers.all[0], group=group)
    load = ShareLoad(brokers.node(1), sent_to_both(brokers), group=group)
    load.gets_on("share consumers run")
    brokers.node(2).kill()
    brokers.wait_for(1, timeout_s=LEASE_MS / 1000 + 5)
    load.gets_on("the broker that is left has all")
    brokers.node(2).restart()
    brokers.wait_for(1, 2)
    load.gets_on("both brokers are back")
    load.finish()
    load.check()


@pytest.mark.long
def test_share_consumers_among_three_brokers_that_come_and_go(start: Callable[..., Brokers]) -> None:
    brokers = start(3)
    load = ShareLoad(brokers.node(1), sent_to_both(brokers), 3)
    load.gets_on("share consumers run")
    for node_id in (2, 3, 1):
        victim, others = brokers.node(node_id), {1, 2, 3} - {node_id}
        if node_id == 3:
            os.kill(victim.process.pid, signal.SIGSTOP)
            brokers.wait_for(*others)
            load.gets_on("the others go on")
            os.kill(victim.process.pid, signal.SIGCONT)
        else:
            victim.kill() if node_id == 2 else victim.stop()
            brokers.wait_for(*others)
            load.gets_on("the others go on")
            victim.restart()
        brokers.wait_for(1, 2, 3)
        load.gets_on("all go on")
    load.finish()
    load.check()
