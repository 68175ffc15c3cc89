"""Fetch and ListOffsets: every version, limits, waiting, missing offsets and timestamps."""

from __future__ import annotations

import itertools
import time
import uuid

import pytest

from tests.api.asking import versions
from tests.api.batches import batch, now_ms, read
from tests.api.test_produce import everything, put
from tests.support.bystander import pids_of
from tests.support.polling import until
from tests.support.stopwatch import Stopwatch

OUT_OF_RANGE, UNKNOWN_TOPIC = 1, 3
FENCED_EPOCH, UNKNOWN_EPOCH, UNKNOWN_TOPIC_ID, UNSUPPORTED_VERSION = 74, 75, 100, 35
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
BY_NAME, BY_ID = 12, 17
ALL = 10**8


def fetch_fields(parts, *, wait_ms=0, min_bytes=1, max_bytes=ALL, **more):
    """`parts` are (topic, partition, offset) with further fields of the partition."""
    topics = [
        {
            "topic": topic,
            "topic_id": topic,
            "partitions": [
                {"partition": partition, "fetch_offset": offset, "partition_max_bytes": ALL} | extra
            ],
        }
        for topic, partition, offset, extra in parts
    ]
    defaults = {"session_epoch": -1, "replica_id": -1, "isolation_level": 0}
    return (
        defaults
        | {"max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": max_bytes, "topics": topics}
        | more
    )


def fetch(ask, version, *parts, **more):
    """The partitions' answers; parts are (topic, partition, offset[, {field: value}])."""
    full = [(*part, {}) if len(part) == 3 else part for part in parts]
    answer = ask("Fetch", version, **fetch_fields(full, **more))
    if version >= 7:
        assert (answer.error_code, answer.session_id) == (0, 0)
    return [partition for topic in answer.responses for partition in topic.partitions]


@pytest.fixture
def filled(ask, topic):
    """A topic with ten records in ten batches, and their offsets."""
    results = [put(ask, topic, batch([(b"%d" % index, b"v" * 100)])) for index in range(10)]
    offsets = [result.base_offset for result in results]
    assert offsets == sorted(offsets)
    return topic, offsets


def keys(part):
    return [key for _, key, _ in read(part.records)]


@versions("Fetch")
@pytest.mark.parametrize("isolation", [0, 1])
def test_fetch(ask, filled, topic_ids, version, isolation):
    name, offsets = filled
    named = topic_ids(name) if version >= 13 else name
    for start in (0, 4, 9):
        (part,) = fetch(ask, version, (named, 0, offsets[start]), isolation_level=isolation)
        assert part.error_code == 0
        assert keys(part) == [b"%d" % index for index in range(start, 10)]
        assert part.high_watermark == part.last_stable_offset == offsets[-1] + 1
        assert part.aborted_transactions in ((), None)
        if version >= 5:
            assert part.log_start_offset == 0
        if version >= 11:
            assert part.preferred_read_replica == -1
    (part,) = fetch(ask, version, (named, 0, offsets[-1] + 1))
    assert (part.error_code, part.records) == (0, b"")


@versions("Fetch", until=BY_NAME)
def test_unknown_topics_and_partitions(ask, topic, fresh, version):
    parts = fetch(ask, version, (fresh("never"), 0, 0), (topic, 5, 0), (topic, -1, 0), (topic, 0, 0))
    assert sorted(part.error_code for part in parts) == [0, *[UNKNOWN_TOPIC] * 3]
    assert {part.high_watermark for part in parts if part.error_code} == {-1}


def test_negative_limits_read_nothing(ask, filled):
    """Kafka refuses them for partitions with records."""
    name, offsets = filled
    end = offsets[-1] + 1
    for limits, part_limits in (({"max_bytes": -1}, {}), ({}, {"partition_max_bytes": -1})):
        (part,) = fetch(ask, BY_NAME, (name, 0, offsets[0], part_limits), **limits)
        assert (part.error_code, part.high_watermark, part.records) == (-1, -1, b"")
        (part,) = fetch(ask, BY_NAME, (name, 0, end, part_limits), **limits, wait_ms=300)
        assert (part.error_code, part.high_watermark) == (0, end)
    (part,) = fetch(ask, BY_NAME, (name, 0, offsets[9]))
    assert keys(part) == [b"9"]


@versions("Fetch", since=13)
def test_unknown_topic_ids(ask, topic, topic_ids, version):
    parts = fetch(ask, version, (uuid.uuid4(), 0, 0), (topic_ids(topic), 0, 0))
    assert sorted(part.error_code for part in parts) == [0, UNKNOWN_TOPIC_ID]


def test_a_fetch_waits_for_its_other_partitions_if_one_is_unknown(ask, another, new_topic, fresh):
    topic = new_topic(2)
    asked = [(fresh("never"), 0, 0), (topic, 0, 0), (topic, 5, 0), (topic, 1, 0)]
    # As it would without the unknown ones: the last two are the same request again.
    for _ in range(3):
        started = time.monotonic()
        parts = fetch(ask, BY_NAME, *asked, wait_ms=300)
        assert time.monotonic() - started >= 0.299
        assert [part.error_code for part in parts] == [UNKNOWN_TOPIC, 0, UNKNOWN_TOPIC, 0]
    ask.send("Fetch", BY_NAME, **fetch_fields([(*part, {}) for part in asked], wait_ms=30_000))
    put(another(), topic, batch([(b"new", b"v")]), partition=1)
    answer = ask.receive("Fetch", BY_NAME)
    parts = [part for each in answer.responses for part in each.partitions]
    assert [part.error_code for part in parts] == [UNKNOWN_TOPIC, 0, UNKNOWN_TOPIC, 0]
    assert keys(parts[3]) == [b"new"]


def test_a_fetch_of_unknown_partitions_is_answered_at_once(ask, topic, fresh):
    for _ in range(3):
        parts = fetch(ask, BY_NAME, (fresh("never"), 0, 0), (topic, 5, 0), wait_ms=30_000)
        assert [part.error_code for part in parts] == [UNKNOWN_TOPIC] * 2


@pytest.mark.parametrize(
    ("failing", "error"),
    [((0, 10**15), OUT_OF_RANGE), ((0, 0, {"current_leader_epoch": 5}), UNKNOWN_EPOCH)],
)
def test_a_partition_that_cannot_be_read_is_reported_at_once(ask, new_topic, fresh, failing, error):
    topic = new_topic(2)
    for _ in range(3):
        parts = fetch(ask, BY_NAME, (fresh("never"), 0, 0), (topic, *failing), (topic, 1, 0), wait_ms=30_000)
        assert [part.error_code for part in parts] == [UNKNOWN_TOPIC, error, 0]


def test_a_topic_that_appears_while_a_fetch_waits_is_read_by_the_next(ask, another, topic, fresh):
    later = fresh("later")
    asked = [(later, 0, 0), (topic, 0, 0)]
    ask.send("Fetch", BY_NAME, **fetch_fields([(*part, {}) for part in asked], wait_ms=1_000))
    other = another()
    wanted = {"name": later, "num_partitions": 1, "replication_factor": 1}
    (made,) = other("CreateTopics", 7, topics=[wanted], timeout=10_000, validate_only=False).topics
    assert made.error_code == 0
    put(other, later, batch([(b"new", b"v")]))
    assert ask.receive("Fetch", BY_NAME).responses[1].partitions[0].error_code == 0
    first, _ = fetch(ask, BY_NAME, *asked, wait_ms=30_000)
    assert keys(first) == [b"new"]


@versions("Fetch", until=BY_NAME)
def test_offsets_out_of_range(ask, filled, version):
    name, offsets = filled
    for offset in (offsets[-1] + 2, 2**62, -1, -2):
        (part,) = fetch(ask, version, (name, 0, offset), wait_ms=30_000)
        assert (part.error_code, part.records) == (OUT_OF_RANGE, b""), offset


def test_offsets_below_what_was_deleted(ask, korvet, filled):
    name, offsets = filled
    korvet.redis.xtrim(f"korvet:{name}:0", maxlen=3, approximate=False)
    (part,) = fetch(ask, BY_NAME, (name, 0, offsets[7]))
    assert keys(part) == [b"7", b"8", b"9"]
    until(lambda: fetch(ask, BY_NAME, (name, 0, offsets[2]))[0].error_code == OUT_OF_RANGE, 10, "it is gone")
    (found,) = list_offsets(ask, 5, (name, 0, EARLIEST))
    assert found.offset == offsets[7]


def test_a_fetch_between_records_gives_the_next_one(ask, korvet, filled):
    name, offsets = filled
    if offsets[1] - offsets[0] > 1:
        (part,) = fetch(ask, BY_NAME, (name, 0, offsets[0] + 1))
        assert keys(part)[0] == b"1"


@versions("Fetch", since=9)
def test_leader_epochs(ask, filled, topic_ids, version):
    name, _ = filled
    named = topic_ids(name) if version >= 13 else name
    for epoch, error in [(-1, 0), (0, 0), (5, UNKNOWN_EPOCH)]:
        (part,) = fetch(ask, version, (named, 0, 0, {"current_leader_epoch": epoch}))
        assert part.error_code == error


def test_an_empty_fetch_waits_its_time_and_not_less(ask, topic, korvet):
    for wait_ms in (60, 100, 400):
        over_ms = []
        # A busy machine may delay one of the responses.
        while len(over_ms) < 5 and min(over_ms, default=400) >= 100:
            started, watch = time.monotonic(), Stopwatch(*pids_of(korvet))
            (part,) = fetch(ask, BY_NAME, (topic, 0, 0), wait_ms=wait_ms)
            over_ms.append(watch.elapsed_s * 1000 - wait_ms)
            assert (time.monotonic() - started) * 1000 >= wait_ms - 1
            assert (part.error_code, part.records) == (0, b"")
        assert min(over_ms) < 100


def test_min_bytes(ask, filled, another):
    name, offsets = filled
    (part,) = fetch(ask, BY_NAME, (name, 0, 0), wait_ms=30_000, min_bytes=1000)
    assert len(keys(part)) == 10
    started = time.monotonic()
    (part,) = fetch(ask, BY_NAME, (name, 0, 0), wait_ms=300, min_bytes=10**6)
    assert time.monotonic() - started >= 0.299
    assert len(keys(part)) == 10
    fields = fetch_fields([(name, 0, offsets[-1] + 1, {})], wait_ms=30_000, min_bytes=1)
    ask.send("Fetch", BY_NAME, **fields)
    put(another(), name, batch([(b"new", b"v")]))
    part = ask.receive("Fetch", BY_NAME).responses[0].partitions[0]
    assert keys(part) == [b"new"]


@pytest.mark.parametrize("isolation", [0, 1])
def test_min_bytes_that_whole_batches_do_not_reach_within_the_limits(ask, filled, isolation):
    """The log holds enough, so the fetch does not wait: neither for the limit of the partition or of the
    response to be filled exactly, nor for more than the whole response may hold.
    """
    name, offsets = filled
    limited = (name, 0, 0, {"partition_max_bytes": 1000})
    patient = {"wait_ms": 30_000, "isolation_level": isolation}
    (part,) = fetch(ask, BY_NAME, limited, min_bytes=1000, **patient)
    assert 1 < len(keys(part)) < 10
    (part,) = fetch(ask, BY_NAME, (name, 0, 0), min_bytes=1000, max_bytes=1000, **patient)
    assert 1 < len(keys(part)) < 10
    (part,) = fetch(ask, BY_NAME, (name, 0, 0), min_bytes=10**6, max_bytes=1000, **patient)
    assert 1 < len(keys(part)) < 10
    started = time.monotonic()
    patient["wait_ms"] = 300
    (part,) = fetch(ask, BY_NAME, limited, min_bytes=1001, **patient)
    assert 1 < len(keys(part)) < 10
    (part,) = fetch(ask, BY_NAME, (name, 0, offsets[7]), min_bytes=1000, **patient)
    assert len(keys(part)) == 3
    assert time.monotonic() - started >= 0.599


def test_min_bytes_of_none_does_not_wait(ask, topic):
    fetch(ask, BY_NAME, (topic, 0, 0), wait_ms=30_000, min_bytes=0)


def test_a_first_record_above_the_limits_comes_whole(ask, topic):
    put(ask, topic, batch([(b"big", b"x" * 50_000)]))
    put(ask, topic, batch([(b"next", b"y" * 50_000)]))
    for limits in ({"max_bytes": 1}, {"max_bytes": ALL}):
        (part,) = fetch(ask, BY_NAME, (topic, 0, 0, {"partition_max_bytes": 100}), **limits)
        assert keys(part) == [b"big"]
    (part,) = fetch(ask, BY_NAME, (topic, 0, 0, {"partition_max_bytes": 0}), max_bytes=0)
    assert keys(part) in ([b"big"], [])


def test_the_limit_of_a_partition(ask, filled):
    name, _ = filled
    (part,) = fetch(ask, BY_NAME, (name, 0, 0, {"partition_max_bytes": 500}))
    assert 1 <= len(keys(part)) <= 4


def test_the_limit_of_a_response_over_many_partitions(ask, new_topic):
    name = new_topic(8)
    for index in range(8):
        assert put(ask, name, batch([(b"%d" % index, b"x" * 10_000)]), partition=index).error_code == 0
    parts = fetch(ask, BY_NAME, *((name, index, 0) for index in range(8)), max_bytes=35_000)
    sizes = [len(part.records) for part in parts]
    assert sizes[0] > 10_000
    assert 10_000 < sum(sizes) <= 50_000
    (first, *_) = fetch(ask, BY_NAME, *((name, index, 0) for index in range(8)), max_bytes=1)
    assert keys(first) == [b"0"]
    parts = fetch(ask, BY_NAME, *((name, index, 0) for index in range(8)))
    assert [keys(part) for part in parts] == [[b"%d" % index] for index in range(8)]


def test_the_limit_of_a_response_that_waited_for_more(ask, another, new_topic):
    name = new_topic(2)
    for index in range(2):
        put(ask, name, batch([(b"first", b"x" * 10_000)]), partition=index)
    asked = [(name, index, 0, {}) for index in range(2)]
    ask.send("Fetch", BY_NAME, **fetch_fields(asked, wait_ms=30_000, min_bytes=25_000, max_bytes=25_000))
    other = another()
    # After this fetch, the other one has read too, and waits.
    fetch(other, BY_NAME, (name, 0, 0), (name, 1, 0))
    put(other, name, batch([(b"next", b"y" * 7_000)]), partition=1)
    answer = ask.receive("Fetch", BY_NAME)
    parts = [part for topic in answer.responses for part in topic.partitions]
    assert [keys(part) for part in parts] == [[b"first"], [b"first"]]


def test_a_fetch_of_nothing_does_not_wait(ask, korvet):
    assert fetch(ask, BY_NAME, wait_ms=60_000) == []


def test_deleting_a_topic_ends_the_fetch_that_waits_on_it(ask, another, topic, topic_ids, new_topic):
    first_id = topic_ids(topic)
    put(ask, topic, batch())
    end = everything(ask, topic)[-1][0] + 1
    ask.send("Fetch", BY_ID, **fetch_fields([(first_id, 0, end, {})], wait_ms=30_000))
    states = [{"name": topic, "topic_id": None}]
    (deleted,) = another()("DeleteTopics", 6, topics=states, timeout=10_000).responses
    assert deleted.error_code == 0
    part = ask.receive("Fetch", BY_ID).responses[0].partitions[0]
    assert part.error_code in (UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID)
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    (made,) = ask("CreateTopics", 7, topics=[wanted], timeout=10_000, validate_only=False).topics
    assert made.error_code == 0
    assert made.topic_id != first_id
    (part,) = fetch(ask, BY_ID, (first_id, 0, end))
    assert part.error_code == UNKNOWN_TOPIC_ID
    (part,) = fetch(ask, BY_ID, (made.topic_id, 0, 0))
    assert (part.error_code, part.records, part.log_start_offset, part.high_watermark) == (0, b"", 0, 0)


def test_repeated_fetches_see_what_came_in_between(ask, another, topic):
    """The same request again and again, as an idle consumer sends it."""
    client = another()
    for _ in range(3):
        assert fetch(client, BY_NAME, (topic, 0, 0), wait_ms=100)[0].records == b""
    put(ask, topic, batch([(b"new", b"v")]))
    for _ in range(3):
        assert keys(fetch(client, BY_NAME, (topic, 0, 0), wait_ms=5000)[0]) == [b"new"]


@pytest.mark.parametrize("isolation", [0, 1])
def test_a_client_that_repeats_its_fetch_needs_no_reads(ask, korvet, new_topic, isolation):
    """Even if it does not wait, and in whatever order it names its partitions. It sees what natives add."""
    name = new_topic(3)
    turns = itertools.cycle(itertools.permutations(range(3)))

    def found():
        parts = fetch(ask, BY_NAME, *((name, index, 0) for index in next(turns)), isolation_level=isolation)
        return [record for part in parts for record in read(part.records)]

    def needs_no_reads():
        before = reads(korvet.redis)
        assert [found() for _ in range(10)] == [[]] * 10
        return reads(korvet.redis) == before

    until(needs_no_reads, 10, "the broker knows the ends")
    korvet.redis.xadd(f"korvet:{name}:1", {"a": "1"})
    assert [record[1:] for record in until(found, 10, "the native entry")] == [(None, b'{"a":"1"}')]


def reads(redis):
    """The number of reads of streams so far."""
    return redis.info("commandstats").get("cmdstat_xrange", {}).get("calls", 0)


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("wait_ms", [0, 50, 200])
def test_fetches_of_any_patience_see_what_natives_add(ask, korvet, topic, isolation, wait_ms):
    end = put(ask, topic, batch([(b"k", b"v")])).base_offset + 1

    def found():
        (part,) = fetch(ask, BY_NAME, (topic, 0, end), wait_ms=wait_ms, isolation_level=isolation)
        return read(part.records)

    assert [found() for _ in range(3)] == [[]] * 3
    korvet.redis.xadd(f"korvet:{topic}:0", {"a": "1"})
    assert [record[1:] for record in until(found, 10, "the native entry")] == [(None, b'{"a":"1"}')]


def list_offsets(ask, version, *asked):
    """`asked` are (topic, partition, timestamp[, {field: value}]); the partitions' answers."""
    topics = [
        {
            "name": part[0],
            "partitions": [
                {"partition_index": part[1], "timestamp": part[2]} | (part[3] if part[3:] else {})
            ],
        }
        for part in asked
    ]
    answer = ask("ListOffsets", version, replica_id=-1, isolation_level=0, topics=topics, timeout=5000)
    return [partition for topic in answer.topics for partition in topic.partitions]


@pytest.fixture
def timed(ask, topic):
    """Records with timestamps 1000, 3000, 2000 and 5000 ms after a start; (topic, start, offsets)."""
    start = now_ms() - 3_600_000
    steps = (1000, 3000, 2000, 5000)
    results = [put(ask, topic, batch([(b"k", b"v")], timestamp_ms=start + step)) for step in steps]
    return topic, start, [result.base_offset for result in results]


@versions("ListOffsets")
def test_list_offsets(ask, timed, version):
    name, start, offsets = timed
    expected = [
        (LATEST, offsets[-1] + 1, -1),
        (EARLIEST, 0, -1),
        (start, offsets[0], start + 1000),
        (start + 1000, offsets[0], start + 1000),
        (start + 1001, offsets[1], start + 3000),
        (start + 3001, offsets[3], start + 5000),
        (start + 5001, -1, -1),
    ]
    if version >= 7:
        expected.append((MAX_TIMESTAMP, offsets[3], start + 5000))
    for timestamp, offset, found_ms in expected:
        (part,) = list_offsets(ask, version, (name, 0, timestamp))
        assert (part.error_code, part.offset, part.timestamp) == (0, offset, found_ms), timestamp - start


@versions("ListOffsets")
def test_special_timestamps_of_newer_versions(ask, topic, version):
    since = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11, -7: 99}
    for timestamp, first in since.items():
        (part,) = list_offsets(ask, version, (topic, 0, timestamp))
        assert part.error_code == (0 if version >= first else UNSUPPORTED_VERSION), timestamp
        if part.error_code or timestamp != EARLIEST_LOCAL:
            assert (part.offset, part.timestamp) == (-1, -1)


@versions("ListOffsets")
def test_an_unknown_timestamp_is_reported_before_an_unknown_partition(ask, topic, fresh, version):
    parts = list_offsets(ask, version, (fresh("never"), 0, -7), (topic, 3, -7))
    assert [part.error_code for part in parts] == [UNSUPPORTED_VERSION] * 2


@versions("ListOffsets")
def test_offsets_of_an_empty_partition(ask, topic, version):
    parts = list_offsets(ask, version, (topic, 0, LATEST))
    parts += list_offsets(ask, version, (topic, 0, EARLIEST))
    assert [(part.error_code, part.offset) for part in parts] == [(0, 0), (0, 0)]
    (part,) = list_offsets(ask, version, (topic, 0, 5))
    assert (part.error_code, part.offset, part.timestamp) == (0, -1, -1)


@versions("ListOffsets")
def test_offsets_of_what_is_not_there(ask, topic, fresh, version):
    parts = list_offsets(ask, version, (fresh("never"), 0, LATEST), (topic, 3, LATEST), (topic, -1, LATEST))
    assert [(part.error_code, part.offset) for part in parts] == [(UNKNOWN_TOPIC, -1)] * 3


@versions("ListOffsets", since=4)
def test_leader_epochs_of_list_offsets(ask, topic, version):
    for epoch, error in [(-1, 0), (0, 0), (9, UNKNOWN_EPOCH)]:
        (part,) = list_offsets(ask, version, (topic, 0, LATEST, {"current_leader_epoch": epoch}))
        assert part.error_code == error


def test_native_format(ask, korvet, new_topic):
    name = new_topic(1, {"native.format": "field:body"})
    korvet.redis.xadd(f"korvet:{name}:0", {"body": b"\x00raw", "other": "x"})
    until(lambda: everything(ask, name), 10, "the native entry")
    assert [record[1:] for record in everything(ask, name)] == [(None, b"\x00raw")]
    other = new_topic()
    korvet.redis.xadd(f"korvet:{other}:0", {"a": "1"})
    until(lambda: everything(ask, other), 10, "the native entry")
    assert [record[1:] for record in everything(ask, other)] == [(None, b'{"a":"1"}')]


def test_a_request_of_too_many_partitions_to_be_kept_may_be_repeated(ask, filled):
    name, offsets = filled
    parts = [(name, 0, offsets[-1] + 1), *((name, index, 0) for index in range(7, 10_008))]
    for _ in range(3):
        answers = fetch(ask, BY_NAME, *parts)
        assert len(answers) == len(parts)
        assert {answer.error_code for answer in answers[1:]} == {3}
    (part,) = fetch(ask, BY_NAME, (name, 0, 0))
    assert len(keys(part)) == 10
