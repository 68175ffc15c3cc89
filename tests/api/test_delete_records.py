"""DeleteRecords: which records are deleted, which stay, and which requests are refused."""

from __future__ import annotations

import pytest

from tests.api.asking import newest, versions
from tests.api.batches import batch
from tests.api.test_tail import fetch, keys, put
from tests.support.polling import until

OUT_OF_RANGE, UNKNOWN_TOPIC, POLICY_VIOLATION = 1, 3, 44
NEWEST = newest("DeleteRecords")


def delete(ask, name, *asked, version=NEWEST):
    """Returns (error, log start) per partition."""
    partitions = [{"partition_index": index, "offset": offset} for index, offset in asked]
    (topic,) = ask(
        "DeleteRecords", version, topics=[{"name": name, "partitions": partitions}], timeout=20_000
    ).topics
    assert topic.name == name
    assert [each.partition_index for each in topic.partitions] == [index for index, _ in asked]
    return [(int(each.error_code), each.low_watermark) for each in topic.partitions]


def list_offset(ask, name, timestamp):
    asked = [{"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}]
    topics = [{"name": name, "partitions": asked}]
    (topic,) = ask("ListOffsets", newest("ListOffsets"), replica_id=-1, topics=topics).topics
    return topic.partitions[0].offset


def ends(ask, name):
    return list_offset(ask, name, -2), list_offset(ask, name, -1)


@versions("DeleteRecords")
@pytest.mark.parametrize("layout", ["record", "batch"])
@pytest.mark.parametrize("assignment", ["clock", "dense"])
def test_records_before_an_offset_are_gone(ask, korvet, new_topic, version, layout, assignment):
    name = new_topic(1, {"storage.layout": layout, "offset.assignment": assignment})
    offsets = [put(ask, name, batch([(b"%d" % number, b"v")])).base_offset for number in range(20)]
    assert delete(ask, name, (0, offsets[7]), version=version) == [(0, offsets[7])]
    assert ends(ask, name) == (offsets[7], offsets[-1] + 1)
    (part,) = fetch(ask, 11, (name, 0, offsets[7]))
    assert keys(part) == [b"%d" % number for number in range(7, 20)]
    (part,) = fetch(ask, 11, (name, 0, offsets[6]))
    assert part.error_code == OUT_OF_RANGE
    # A repetition, and an offset before the log start, have no effect.
    assert delete(ask, name, (0, offsets[3]), version=version) == [(0, offsets[7])]
    assert delete(ask, name, (0, -1), version=version) == [(0, offsets[-1] + 1)]
    assert ends(ask, name) == (offsets[-1] + 1,) * 2
    assert korvet.redis.xlen(f"korvet:{name}:0") == 0
    later = put(ask, name, batch([(b"later", b"v")])).base_offset
    assert later > offsets[-1]
    # A consumer that has read everything stays in range, although there is no record up to the next one.
    assert ends(ask, name) == (offsets[-1] + 1, later + 1)
    (part,) = fetch(ask, 11, (name, 0, offsets[-1] + 1))
    assert keys(part) == [b"later"]


def test_an_offset_inside_a_batch_leaves_it_whole(ask, new_topic):
    name = new_topic(1, {"storage.layout": "batch"})
    base = put(ask, name, batch([(b"%d" % number, b"v") for number in range(10)])).base_offset
    assert delete(ask, name, (0, base + 4)) == [(0, base + 4)]
    (part,) = fetch(ask, 11, (name, 0, base + 4))
    assert keys(part)[-6:] == [b"%d" % number for number in range(4, 10)]
    # A consumer that seeks to a time, or to the largest timestamp, arrives within the log.
    assert list_offset(ask, name, 0) == list_offset(ask, name, -3) == base + 4


def test_a_long_log_goes_in_steps(ask, korvet, topic):
    rows = [(b"%d" % number, b"v") for number in range(1_000)]
    bases = [put(ask, topic, batch(rows)).base_offset for _ in range(20)]
    target = bases[15] + 500
    assert delete(ask, topic, (0, target)) == [(0, target)]
    assert korvet.redis.xlen(f"korvet:{topic}:0") == 4_500
    (part,) = fetch(ask, 11, (topic, 0, target))
    assert keys(part)[-500:] == [b"%d" % number for number in range(500, 1_000)]
    put(ask, topic, batch([(b"next", b"v")]))
    until(lambda: korvet.redis.xlen(f"korvet:{topic}:0") == 4_501, 5, "it goes on")


def test_what_cannot_be_deleted(ask, korvet, new_topic, topic):
    end = put(ask, topic, batch([(b"k", b"v")])).base_offset + 1
    assert delete(ask, topic, (0, end + 1)) == [(OUT_OF_RANGE, -1)]
    assert delete(ask, topic, (0, -2)) == [(OUT_OF_RANGE, -1)]
    assert delete(ask, topic, (5, 0), (0, 0)) == [(UNKNOWN_TOPIC, -1), (0, 0)]
    assert delete(ask, "nobody-has-it", (0, 0)) == [(UNKNOWN_TOPIC, -1)]
    compacted = new_topic(1, {"cleanup.policy": "compact"})
    put(ask, compacted, batch([(b"k", b"v")]))
    assert delete(ask, compacted, (0, -1)) == [(POLICY_VIOLATION, -1)]
    both = new_topic(1, {"cleanup.policy": "compact,delete"})
    end = put(ask, both, batch([(b"k", b"v")])).base_offset + 1
    assert delete(ask, both, (0, -1)) == [(0, end)]
    neither = new_topic(1, {"cleanup.policy": ""})
    end = put(ask, neither, batch([(b"k", b"v")])).base_offset + 1
    assert delete(ask, neither, (0, -1)) == [(0, end)]
    assert korvet.redis.xlen(f"korvet:{topic}:0") == 1
