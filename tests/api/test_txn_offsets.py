"""Offsets committed in transactions, over the wire: TxnOffsetCommit, AddOffsetsToTxn, and OffsetFetch."""

from __future__ import annotations

import functools
import uuid

import pytest

from tests.api.asking import versions
from tests.api.test_transactions import (
    ABORTABLE,
    FENCED,
    FENCED_OLD,
    FIRST_PROTOCOL,
    INVALID_TXN_STATE,
    RETRIED,
    SECOND_PROTOCOL,
    UNKNOWN_ID,
    Producer,
    settled,
)
from tests.support.polling import until

UNSTABLE, UNKNOWN_MEMBER, ILLEGAL_GENERATION, INVALID_GROUP, UNKNOWN_TOPIC = 88, 25, 22, 24, 3
UNKNOWN_TOPIC_ID = 100
NOTHING = -1


class Mover(Producer):
    """A producer that commits offsets of a group in its transactions."""

    def __init__(self, ask, topic, protocol=FIRST_PROTOCOL, name=None):
        super().__init__(ask, topic, protocol, name)
        self.group = f"g{uuid.uuid4()}"

    @functools.cached_property
    def topic_id(self):
        (found,) = self.ask("Metadata", 12, topics=[{"topic_id": None, "name": self.topic}]).topics
        return found.topic_id

    def add_offsets(self, version=3):
        producer_id, epoch = self.identity
        fields = {"producer_id": producer_id, "producer_epoch": epoch, "group_id": self.group}
        return settled(
            lambda: self.ask("AddOffsetsToTxn", version, transactional_id=self.name, **fields)
        ).error_code

    def commit(self, offset, version=None, partitions=(0,), **fields):
        """Returns the errors of the partitions."""
        if version is None:
            version = 5 if self.protocol >= SECOND_PROTOCOL else 4
        producer_id, epoch = self.identity
        asked = [
            {
                "partition_index": index,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": "m",
            }
            for index in partitions
        ]
        fields = {
            "transactional_id": self.name,
            "group_id": self.group,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": self.topic, "topic_id": self.topic_id, "partitions": asked}],
        } | fields

        def errors():
            (found,) = self.ask("TxnOffsetCommit", version, **fields).topics
            return [each.error_code for each in found.partitions]

        return until(lambda: (found := errors()) and not RETRIED & set(found) and found, 30, "an answer")

    def committed(self, stable=True, version=8):
        """Returns offset and error, as a consumer of the group sees them."""
        topics = [{"name": self.topic, "partition_indexes": [0]}]
        fields = {"group_id": self.group, "topics": topics, "require_stable": stable}
        if version >= 8:
            group = {"group_id": self.group, "member_id": None, "member_epoch": -1, "topics": topics}
            fields = {"groups": [group], "require_stable": stable}

        def found():
            answer = self.ask("OffsetFetch", version, **fields)
            told = answer if version < 8 else answer.groups[0]
            assert told.error_code == 0
            (partition,) = told.topics[0].partitions
            return [partition.committed_offset, partition.error_code]

        return found()

    def stable(self):
        """Returns the committed offset, once no transaction has a pending one."""
        return until(lambda: (found := self.committed())[1] != UNSTABLE and found, 30, "the marker")[0]


@pytest.mark.parametrize("protocol", [FIRST_PROTOCOL, SECOND_PROTOCOL])
def test_offsets_count_once_they_are_committed(ask, topic, protocol):
    producer = Mover(ask, topic, protocol)
    producer.init()

    def moved(offset, committed):
        if protocol < SECOND_PROTOCOL:
            assert producer.add_offsets() == 0
        assert producer.commit(offset) == [0]
        before = producer.committed(stable=False)
        assert producer.committed() == [NOTHING, UNSTABLE]
        assert producer.end(committed) == 0
        return before

    assert moved(5, True) == [NOTHING, 0]
    assert producer.stable() == 5
    assert moved(7, False) == [5, 0]
    assert producer.stable() == 5
    producer.write(b"along")
    assert moved(9, True) == [5, 0]
    assert producer.stable() == 9


@versions("TxnOffsetCommit")
def test_txn_offset_commit(ask, topic, version):
    producer = Mover(ask, topic, SECOND_PROTOCOL if version >= 5 else FIRST_PROTOCOL)
    producer.init()
    if version < 5:
        absent = ABORTABLE if version >= 4 else INVALID_TXN_STATE
        assert producer.commit(1, version) == [absent]
        assert producer.add_offsets() == 0
    assert sorted(producer.commit(1, version, partitions=(0, 99))) == [0, UNKNOWN_TOPIC]
    assert sorted(producer.commit(1, version, partitions=(0, 99), group_id="")) == [
        UNKNOWN_TOPIC,
        INVALID_GROUP,
    ]
    assert producer.commit(1, version, producer_id=producer.identity[0] + 1000) == [UNKNOWN_ID]
    assert producer.commit(1, version, producer_epoch=producer.identity[1] + 1) == [FENCED_OLD]
    if version >= 3:
        fields = {"generation_id": 4, "member_id": "nobody"}
        found = producer.commit(1, version, partitions=(0, 99), **fields)
        assert sorted(found) == [UNKNOWN_TOPIC, UNKNOWN_MEMBER]
    if version >= 6:
        producer.topic_id = uuid.uuid4()
        assert producer.commit(1, version) == [UNKNOWN_TOPIC_ID]
    assert producer.end() == 0
    assert producer.stable() == 1


@versions("AddOffsetsToTxn")
def test_add_offsets_to_txn(ask, topic, version):
    producer = Mover(ask, topic)
    producer.init()
    assert producer.add_offsets(version) == 0
    producer_id, epoch = producer.identity
    producer.identity = producer_id, epoch + 1
    assert producer.add_offsets(version) == (FENCED if version >= 2 else FENCED_OLD)
    producer.identity = producer_id + 1000, epoch
    assert producer.add_offsets(version) == UNKNOWN_ID


@versions("OffsetFetch", since=7, until=9)
def test_offset_fetch_that_asks_for_stable_offsets(ask, topic, version):
    producer = Mover(ask, topic, SECOND_PROTOCOL)
    producer.init()
    producer.commit(3)
    assert producer.committed(version=version) == [NOTHING, UNSTABLE]
    assert producer.committed(stable=False, version=version) == [NOTHING, 0]
    producer.end()
    assert producer.stable() == 3
    assert producer.committed(version=version) == [3, 0]


def test_a_producer_is_fenced_by_the_next(ask, topic):
    old = Mover(ask, topic, SECOND_PROTOCOL)
    old.init()
    assert old.commit(1) == [0]
    new = Mover(ask, topic, SECOND_PROTOCOL, name=old.name)
    new.group = old.group
    new.init()
    assert old.commit(2) == [FENCED_OLD]
    assert new.stable() == NOTHING
    assert new.commit(3) == [0]
    assert new.end() == 0
    assert new.stable() == 3


def test_a_member_is_fenced_by_its_generation(ask, topic):
    producer = Mover(ask, topic, SECOND_PROTOCOL)
    producer.init()

    def joined(member_id=""):
        return settled(
            lambda: ask(
                "JoinGroup",
                5,
                group_id=producer.group,
                session_timeout=30_000,
                rebalance_timeout=30_000,
                member_id=member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b""}],
            )
        )

    first = joined(joined().member_id)
    member = {"member_id": first.member_id, "generation_id": first.generation_id}
    assert producer.commit(1, **member) == [0]
    assert producer.commit(1, **member | {"generation_id": 77}) == [ILLEGAL_GENERATION]
    assert producer.commit(1, **member | {"member_id": "other"}) == [UNKNOWN_MEMBER]
    # A request without a member is fenced only as a producer.
    assert producer.commit(2) == [0]
    assert producer.end() == 0
    assert producer.stable() == 2
