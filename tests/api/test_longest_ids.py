"""IDs of 32,767 bytes, the longest in Kafka's records and requests, from first use to deletion."""

from __future__ import annotations

import pytest

from tests.api.test_transactions import SECOND_PROTOCOL, Producer
from tests.support.polling import until

LONGEST = 32_767
# Characters of one byte and of three bytes.
FILLERS = ["x", "\N{SNOWMAN}"]


def longest(name: str, filler: str) -> str:
    """Returns an ID of the largest length."""
    made = name + filler * ((LONGEST - len(name)) // len(filler.encode()))
    made += "." * (LONGEST - len(made.encode()))
    assert len(made.encode()) == LONGEST
    return made


@pytest.mark.parametrize("filler", FILLERS)
def test_a_group(ask, topic, fresh, filler):
    group = longest(fresh("g"), filler)
    until(lambda: ask("FindCoordinator", 1, key=group, key_type=0).error_code == 0, 20, "a coordinator")
    partitions = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"}]
    commit = {"group_id": group, "generation_id_or_member_epoch": -1}
    answer = ask("OffsetCommit", 8, **commit, topics=[{"name": topic, "partitions": partitions}])
    assert answer.topics[0].partitions[0].error_code == 0

    def fetched():
        names = [{"name": topic, "partition_indexes": [0]}]
        (found,) = ask("OffsetFetch", 8, groups=[{"group_id": group, "topics": names}]).groups
        assert found.group_id == group
        return found.topics[0].partitions[0].committed_offset

    assert fetched() == 5
    assert group in {each.group_id for each in ask("ListGroups", 4).groups}
    (described,) = ask("DescribeGroups", 5, groups=[group]).groups
    assert (described.error_code, described.group_id, described.group_state) == (0, group, "Empty")
    (deleted,) = ask("DeleteGroups", 2, groups_names=[group]).results
    assert (deleted.error_code, deleted.group_id) == (0, group)
    assert fetched() == -1


@pytest.mark.parametrize("filler", FILLERS)
def test_a_transaction(ask, topic, fresh, filler):
    name = longest(fresh("t"), filler)
    producer = Producer(ask, topic, SECOND_PROTOCOL, name)
    assert producer.init().error_code == 0
    assert producer.write(b"v").error_code == 0
    (described,) = ask("DescribeTransactions", 0, transactional_ids=[name]).transaction_states
    assert (described.transactional_id, described.transaction_state) == (name, "Ongoing")
    assert [each.topic for each in described.topics] == [topic]
    assert producer.end() == 0

    def listed() -> bool:
        return name in {each.transactional_id for each in ask("ListTransactions", 0).transaction_states}

    until(listed, 20, "all partitions of the coordinator are loaded, and the transaction is listed")
