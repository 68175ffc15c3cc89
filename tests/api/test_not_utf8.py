"""Strings that are not UTF-8: they are read as Kafka reads them, and answered."""

from __future__ import annotations

from typing import Any

from tests.api.asking import KEYS, frame
from tests.api.batches import batch
from tests.api.test_groups import join_fields
from tests.support.polling import until
from tests.support.wire import decode_response

# Of this character, two bytes in UTF-8, the requests have its byte in Latin-1 and another one.
ODD = "ä"
READ = "\N{REPLACEMENT CHARACTER}" * 2
UNKNOWN_TOPIC, INVALID_TOPIC, UNKNOWN_MEMBER, INVALID_CONFIG, INVALID_REQUEST = 3, 17, 25, 40, 42


def odd(ask: Any, name: str, version: int, **fields: Any) -> Any:
    sent = frame(name, version, 1, **fields).replace(ODD.encode(), b"\xe4\xfc")
    return decode_response(KEYS[name], version, ask.raw.ask(sent)).message


def test_a_group(ask, topic, fresh):
    group = fresh("g")
    until(lambda: odd(ask, "FindCoordinator", 2, key=group + ODD, key_type=0).error_code == 0, 20, "it")
    commit = {"generation_id_or_member_epoch": -1, "group_id": group + ODD}
    for version in (2, 8):
        partition = {"partition_index": 0, "committed_offset": version, "committed_metadata": f"m{ODD}"}
        topics = [{"name": topic, "partitions": [partition]}]
        answer = odd(ask, "OffsetCommit", version, **commit, topics=topics)
        assert answer.topics[0].partitions[0].error_code == 0
        asked = {"group_id": group + READ, "topics": [{"name": topic, "partition_indexes": [0]}]}
        (found,) = ask("OffsetFetch", 8, groups=[asked]).groups
        (committed,) = found.topics[0].partitions
        assert (committed.committed_offset, committed.metadata) == (version, f"m{READ}")
    assert group + READ in {each.group_id for each in ask("ListGroups", 4).groups}
    member = odd(ask, "JoinGroup", 3, **join_fields(group + ODD, protocols=[(f"range{ODD}", b"m")]))
    assert (member.error_code, member.protocol_name) == (0, f"range{READ}")
    beat = {"group_id": group + ODD, "generation_id": 1, "member_id": f"{ODD}"}
    assert odd(ask, "Heartbeat", 3, **beat).error_code == UNKNOWN_MEMBER
    sync = {"group_id": group + ODD, "generation_id": 1, "member_id": member.member_id}
    assert odd(ask, "SyncGroup", 3, **sync, assignments=[]).error_code == 0
    (described,) = odd(ask, "DescribeGroups", 5, groups=[group + ODD]).groups
    assert (described.group_id, described.group_state) == (group + READ, "Stable")
    left = {"member_id": member.member_id, "group_instance_id": None, "reason": f"{ODD}"}
    assert odd(ask, "LeaveGroup", 5, group_id=group + ODD, members=[left]).error_code == 0
    (deleted,) = ask("DeleteGroups", 2, groups_names=[group + READ]).results
    assert deleted.error_code == 0


def test_topics(ask, topic):
    for version in (8, 9):
        (found,) = odd(ask, "Metadata", version, topics=[{"name": f"t{ODD}"}]).topics
        assert (found.error_code, found.name) == (INVALID_TOPIC, f"t{READ}")
    data = [{"name": f"t{ODD}", "partition_data": [{"index": 0, "records": batch([(b"k", b"v")])}]}]
    for version in (8, 9):
        (answer,) = odd(ask, "Produce", version, acks=-1, timeout=1000, topic_data=data).responses
        assert (answer.name, answer.partition_responses[0].error_code) == (f"t{READ}", UNKNOWN_TOPIC)
    asked = [{"topic": f"t{ODD}", "partitions": [{"partition": 0, "partition_max_bytes": 1}]}]
    for version in (11, 12):
        (answer,) = odd(ask, "Fetch", version, session_epoch=-1, rack_id=f"r{ODD}", topics=asked).responses
        assert (answer.topic, answer.partitions[0].error_code) == (f"t{READ}", UNKNOWN_TOPIC)
    wanted = [{"name": f"t{ODD}", "num_partitions": 1, "replication_factor": 1}]
    assert odd(ask, "CreateTopics", 5, topics=wanted, timeout=1000).topics[0].error_code == INVALID_TOPIC
    configs = [{"name": "retention.ms", "config_operation": 0, "value": f"1{ODD}"}]
    resources = [{"resource_type": 2, "resource_name": topic, "configs": configs}]
    altered = odd(ask, "IncrementalAlterConfigs", 1, resources=resources)
    assert altered.responses[0].error_code == INVALID_CONFIG


def test_other_names(ask, fresh):
    name = fresh("t")
    made = {"transactional_id": name + ODD, "transaction_timeout": 1000, "producer_id": -1}
    until(lambda: odd(ask, "InitProducerId", 3, **made).error_code == 0, 20, "the coordinator is loaded")

    def listed() -> bool:
        return name + READ in {
            each.transactional_id for each in ask("ListTransactions", 0).transaction_states
        }

    until(listed, 20, "all partitions of the coordinator are loaded, and the transaction is listed")
    versions = odd(ask, "ApiVersions", 3, client_software_name=ODD, client_software_version="1")
    assert versions.error_code == INVALID_REQUEST
