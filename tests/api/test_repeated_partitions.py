"""Requests that name a partition twice: as in Kafka, it is answered once, and the last entry counts."""

from __future__ import annotations

import pytest

from tests.api.asking import newest, versions
from tests.api.batches import batch
from tests.api.test_fetch import ALL, keys
from tests.api.test_produce import everything, put, topic_data

UNKNOWN_TOPIC, INVALID_REQUEST = 3, 42
IDS_SINCE = 13


@pytest.fixture
def filled(ask, new_topic):
    """A topic of two partitions with records 0 to 4 each, and their offsets."""
    name = new_topic(2)
    offsets = [
        [put(ask, name, batch([(b"%d" % n, b"v")]), partition=p).base_offset for n in range(5)]
        for p in (0, 1)
    ]
    return name, offsets


@pytest.fixture
def fetched(ask, filled, topic_ids):
    """Fetches partitions, given by topic entries of (partition, number of the first record)."""
    name, offsets = filled
    topic_id = topic_ids(name)

    def fetch(version, *entries, session=(0, -1)):
        topics = [
            {
                "topic": topic_id if version >= IDS_SINCE else name,
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition": p,
                        "fetch_offset": offsets[p][n] if p < 2 else 0,
                        "partition_max_bytes": ALL,
                    }
                    for p, n in entry
                ],
            }
            for entry in entries
        ]
        ids = {"session_id": session[0], "session_epoch": session[1]}
        fields = {"max_wait": 0, "min_bytes": 1, "max_bytes": ALL, "replica_id": -1}
        answer = ask("Fetch", version, **fields, **ids, topics=topics)
        parts = [part for topic in answer.responses for part in topic.partitions]
        first = [
            (part.partition_index, keys(part)[:1] if part.records else part.error_code) for part in parts
        ]
        return first, getattr(answer, "session_id", 0)

    return fetch


@versions("Fetch")
def test_full_fetches(fetched, version):
    for _ in range(2):
        assert fetched(version, [(0, 3), (0, 4)])[0] == [(0, [b"4"])]
        assert fetched(version, [(0, 4), (0, 4)])[0] == [(0, [b"4"])]
        assert fetched(version, [(0, 4)], [(0, 3)])[0] == [(0, [b"3"])]
    assert fetched(version, [(0, 1)])[0] == [(0, [b"1"])]
    assert fetched(version, [(0, 2), (0, 3)])[0] == [(0, [b"3"])]
    assert fetched(version, [(0, 2)])[0] == [(0, [b"2"])]
    assert fetched(version, [(7, 0), (7, 0)])[0] == [(7, UNKNOWN_TOPIC)]


@versions("Fetch", since=7)
def test_fetch_sessions(fetched, version):
    first, session_id = fetched(version, [(0, 3), (0, 4)], session=(0, 0))
    assert first == [(0, [b"4"])]
    assert session_id
    assert fetched(version, [(0, 4), (0, 2)], session=(session_id, 1))[0] == [(0, [b"2"])]
    assert fetched(version, [(1, 1)], [(1, 3)], session=(session_id, 2))[0] == [(0, [b"2"]), (1, [b"3"])]
    assert sorted(fetched(version, session=(session_id, 3))[0]) == [(0, [b"2"]), (1, [b"3"])]


@versions("ListOffsets")
def test_list_offsets(ask, filled, version):
    """It is refused, because two answers are asked for."""
    name, _ = filled
    partitions = [
        {"partition_index": index, "timestamp": stamp} for index, stamp in [(0, -1), (1, -2), (0, -2)]
    ]
    fields = {"replica_id": -1, "isolation_level": 0}
    for topics in (
        [{"name": name, "partitions": partitions}],
        [{"name": name, "partitions": [each]} for each in partitions],
    ):
        (topic,) = ask("ListOffsets", version, **fields, topics=topics).topics
        found = [(each.partition_index, each.error_code, each.offset) for each in topic.partitions]
        assert sorted(found) == [(0, INVALID_REQUEST, -1), (1, 0, 0)]


@versions("Produce")
def test_produce(ask, new_topic, topic_ids, version):
    name = new_topic(2)
    named = topic_ids(name) if version >= IDS_SINCE else name
    first, last, other = (batch([(key, b"v")]) for key in (b"first", b"last", b"other"))
    for data in (
        [topic_data(named, [(0, first), (1, other), (0, last)])],
        [topic_data(named, [(0, first)]), topic_data(named, [(1, other), (0, last)])],
    ):
        answer = ask("Produce", version, acks=-1, timeout=10_000, topic_data=data)
        (topic,) = answer.responses
        found = [(each.index, each.error_code) for each in topic.partition_responses]
        assert sorted(found) == [(0, 0), (1, 0)]
    assert [key for _, key, _ in everything(ask, name)] == [b"last"] * 2


def test_delete_records(ask, filled):
    name, offsets = filled
    asked = [{"partition_index": 0, "offset": offsets[0][number]} for number in (3, 2)]
    fields = {"topics": [{"name": name, "partitions": asked}], "timeout": 10_000}
    (topic,) = ask("DeleteRecords", newest("DeleteRecords"), **fields).topics
    assert [(each.error_code, each.low_watermark) for each in topic.partitions] == [(0, offsets[0][2])]
