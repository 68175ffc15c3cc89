"""Records of consumer groups (KIP-848) in `__consumer_offsets`, read by Kafka's own classes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.offsets.formatters import format_newer_group_record
from korvet.offsets.partition import partition_for
from tests.api.asking import Client, connect
from tests.clients.test_java_tools import json_objects
from tests.support.confluent import read_all
from tests.support.polling import until

if TYPE_CHECKING:
    from uuid import UUID

pytestmark = pytest.mark.clients

TOPIC = "__consumer_offsets"
# A group's epochs, members, target with its epoch, current assignments, regular expressions.
WRITTEN = {3, 5, 6, 7, 8, 16}


class Member:
    """A member that immediately applies the assignment of each heartbeat response."""

    def __init__(self, client: Client, group: str, name: str, **subscription: Any) -> None:
        self._client = client
        self._who = {"group_id": group, "member_id": name}
        self._subscription = {"rebalance_timeout": 60_000, "topic_partitions": [], **subscription}
        self.epoch = 0
        self.owned: dict[UUID, tuple[int, ...]] = {}

    def join(self) -> bool:
        """Join. Returns False while the coordinator is loading."""
        answer = self._client("ConsumerGroupHeartbeat", 1, **self._who, member_epoch=0, **self._subscription)
        return self._take(answer)

    def beat(self) -> dict[UUID, tuple[int, ...]]:
        """Send a heartbeat. Returns the owned partitions."""
        owned = [{"topic_id": topic, "partitions": parts} for topic, parts in self.owned.items()]
        fields = {"member_epoch": self.epoch, "rebalance_timeout": -1, "topic_partitions": owned}
        assert self._take(self._client("ConsumerGroupHeartbeat", 1, **self._who, **fields))
        return self.owned

    def leave(self) -> None:
        answer = self._client("ConsumerGroupHeartbeat", 1, **self._who, member_epoch=-1, rebalance_timeout=-1)
        assert answer.error_code is ErrorCode.none

    def _take(self, answer: Any) -> bool:
        if answer.error_code is not ErrorCode.none:
            return False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {one.topic_id: one.partitions for one in answer.assignment.topic_partitions}
        return True


def test_kafka_reads_the_records_of_a_consumer_group(broker, java, new_topic, group):
    """The records of two members, one with a regular expression, from the first join to the last leave."""
    topic = new_topic(4)
    with connect(broker) as client:
        first = Member(client, group, "first", subscribed_topic_names=[topic])
        until(first.join, 30, "the coordinator takes members")
        until(lambda: sum(map(len, first.beat().values())) == 4, 30, "the first member has all partitions")
        second = Member(client, group, "second", subscribed_topic_regex=f"{topic}.*", rack_id="r1")
        assert second.join()

        def is_shared() -> bool:
            return all(sum(map(len, member.beat().values())) == 2 for member in (first, second))

        until(is_shared, 30, "both have two partitions")
        first.leave()
        second.leave()
    partition = partition_for(group)
    read = [(one.record.key, one.record.value) for one in read_all(broker.bootstrap, TOPIC, partition)]
    texts = [format_newer_group_record(key, value) for key, value in read]
    ours = [one for one in map(json.loads, filter(None, texts)) if is_of(group, one)]
    assert {one["key"]["type"] for one in ours} == WRITTEN
    assert {one["key"]["type"] for one in ours if one["value"] is None} >= {5, 7, 8, 16}
    shown = java.run(
        "console-consumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", TOPIC, "--partition", str(partition)),
        *("--offset", "earliest", "--max-messages", str(len(read)), "--timeout-ms", "20000"),
        *("--formatter", "GroupRecordFormatter"),
    )
    assert [one for one in json_objects(shown) if is_of(group, one)] == ours


def is_of(group: str, record: dict[str, Any]) -> bool:
    """Whether the record has a newer key version and belongs to this group."""
    return record["key"]["data"].get("groupId") == group
