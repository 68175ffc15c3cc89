"""Produce: every version, and every batch that must be refused."""

from __future__ import annotations

import gzip
import random
import struct
import uuid

import cramjam
import crc32c
import lz4.frame
import pytest

from tests.api.asking import KEYS, frame, versions
from tests.api.batches import GZIP, LZ4, SNAPPY, ZSTD, batch, gzipped, now_ms, read, record
from tests.support.polling import until
from tests.support.wire import ConnectionClosed, decode_response

CORRUPT, UNKNOWN_TOPIC, TOO_LARGE, INVALID_TOPIC = 2, 3, 10, 17
INVALID_ACKS, INVALID_TIMESTAMP, OUT_OF_ORDER, INVALID_EPOCH = 21, 32, 45, 47
UNSUPPORTED_CODEC, INVALID_RECORD, UNKNOWN_TOPIC_ID = 76, 87, 100
LAST_BY_NAME = 12
RECORD_ERRORS_SINCE = 8


def produce(ask, version, parts, *, acks=-1, transactional_id=None):
    """Send [(topic, partition, records)]. Returns the partitions' responses in order."""
    fields = request_of(parts, acks=acks, transactional_id=transactional_id)
    if acks == 0:
        ask.send("Produce", version, **fields)
        return []
    answer = ask("Produce", version, **fields)
    return [partition for topic in answer.responses for partition in topic.partition_responses]


def request_of(parts, *, acks=-1, transactional_id=None):
    """Returns the fields of a request for [(topic, partition, records)]."""
    topics = [topic_data(topic, [(partition, records)]) for topic, partition, records in parts]
    return {"acks": acks, "timeout": 10_000, "topic_data": topics, "transactional_id": transactional_id}


def topic_data(topic, parts):
    """Returns a topic's fields: its name, or from version 13 on its ID."""
    return {
        "name": topic,
        "topic_id": topic,
        "partition_data": [{"index": partition, "records": records} for partition, records in parts],
    }


def put(ask, topic, records, *, version=LAST_BY_NAME, partition=0, acks=-1):
    """Send one batch. Returns its response."""
    (result,) = produce(ask, version, [(topic, partition, records)], acks=acks)
    return result


def pipelined(ask, topic, batches):
    """Send one request per batch, all at once. Returns the responses."""
    ask.raw.send_all(
        frame("Produce", LAST_BY_NAME, number, **request_of([(topic, 0, records)]))
        for number, records in enumerate(batches)
    )
    answers = [decode_response(KEYS["Produce"], LAST_BY_NAME, ask.raw.receive()) for _ in batches]
    assert [answer.correlation_id for answer in answers] == list(range(len(batches)))
    return [answer.message.responses[0].partition_responses[0] for answer in answers]


def everything(ask, topic, partition=0):
    """Returns all records of a partition."""
    found = []
    offset = 0
    while True:
        wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 10**8}
        topics = [{"topic": topic, "partitions": [wanted]}]
        answer = ask("Fetch", 11, max_wait=0, min_bytes=1, max_bytes=10**8, session_epoch=-1, topics=topics)
        part = answer.responses[0].partitions[0]
        assert part.error_code == 0
        records = read(part.records)
        if not records:
            return found
        found += records
        offset = records[-1][0] + 1


@versions("Produce")
@pytest.mark.parametrize("acks", [-1, 1])
def test_produce(ask, new_topic, topic_ids, version, acks):
    name = new_topic(2)
    topic = topic_ids(name) if version > LAST_BY_NAME else name
    pairs = [(b"k", b"v"), (None, b""), (b"", None), (None, None)]
    results = produce(ask, version, [(topic, 0, batch(pairs)), (topic, 1, batch([(b"a", b"b")]))], acks=acks)
    assert [each.error_code for each in results] == [0, 0]
    assert results[0].index == 0
    if version >= 5:
        assert results[0].log_start_offset == 0 or results[0].log_start_offset == results[0].base_offset
    if version >= 8:
        assert (results[0].record_errors, results[0].error_message) == ((), None)
    assert results[0].log_append_time is None
    base = results[0].base_offset
    assert everything(ask, name) == [(base + delta, *pair) for delta, pair in enumerate(pairs)]
    assert [record[1:] for record in everything(ask, name, 1)] == [(b"a", b"b")]


@versions("Produce", until=LAST_BY_NAME)
def test_unknown_topics_and_partitions(ask, topic, fresh, version):
    places = [(fresh("never"), 0), (topic, 7), (topic, -1), (topic, 0)]
    results = produce(ask, version, [(*place, batch()) for place in places])
    by_error = sorted(each.error_code for each in results)
    assert by_error == [0, UNKNOWN_TOPIC, UNKNOWN_TOPIC, UNKNOWN_TOPIC]
    assert all(each.base_offset == -1 for each in results if each.error_code)


def test_unknown_topic_ids(ask, topic, topic_ids):
    known = topic_ids(topic)
    results = produce(ask, 13, [(uuid.uuid4(), 0, batch()), (known, 9, batch()), (known, 0, batch())])
    assert sorted(each.error_code for each in results) == [0, UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID]


def test_no_topics_and_no_partitions(ask, topic):
    assert ask("Produce", LAST_BY_NAME, acks=-1, timeout=1000, topic_data=[]).responses == ()


@versions("Produce")
@pytest.mark.parametrize("acks", [2, -2, 127])
def test_acks_that_do_not_exist(ask, topic, topic_ids, version, acks):
    named = topic_ids(topic) if version > LAST_BY_NAME else topic
    (result,) = produce(ask, version, [(named, 0, batch())], acks=acks)
    assert (result.error_code, result.base_offset) == (INVALID_ACKS, -1)
    assert everything(ask, topic) == []


@versions("Produce")
def test_without_acks_nothing_is_answered(ask, topic, topic_ids, version):
    named = topic_ids(topic) if version > LAST_BY_NAME else topic
    produce(ask, version, [(named, 0, batch([(b"k", b"%d" % version)]))], acks=0)
    assert ask.raw.works()
    until(lambda: [each[2] for each in everything(ask, topic)] == [b"%d" % version], 10, "it is written")


def test_a_failure_without_acks_ends_the_connection(another, fresh):
    """Only a closed connection makes the client request metadata again."""
    client = another()
    produce(client, 9, [(fresh("never"), 0, batch())], acks=0)
    with pytest.raises(ConnectionClosed):
        client.raw.works()


def damaged(records):
    return records[:-1] + bytes([records[-1] ^ 1])


ZIP_BOMB = gzip.compress(b"\x00" * 100_000_000)
GARBAGE = random.Random(5).randbytes(200)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (None, INVALID_RECORD),
        (b"", INVALID_RECORD),
        (damaged(batch()), CORRUPT),
        (batch(crc=0), CORRUPT),
        # Wrong lengths: Kafka returns INVALID_RECORD if it treats the rest as a truncated batch.
        (batch()[:-1], CORRUPT),
        (batch()[:40], CORRUPT),
        (b"\x00" * 12, CORRUPT),
        (batch() + b"\x00", INVALID_RECORD),
        (batch(magic=1), INVALID_RECORD),
        (batch(magic=0), INVALID_RECORD),
        (batch(magic=3), INVALID_RECORD),
        (batch() + batch(), INVALID_RECORD),
        (batch(attributes=0x20), INVALID_RECORD),
        (batch(base_offset=1), INVALID_RECORD),
        (gzipped([(b"k", b"v")], base_offset=-1), INVALID_RECORD),
        (batch([], count=0), INVALID_RECORD),
        (batch(count=2), INVALID_RECORD),
        (batch([(b"a", b"b"), (b"c", b"d")], count=1), INVALID_RECORD),
        (batch(count=-1), INVALID_RECORD),
        (batch(attributes=5), UNSUPPORTED_CODEC),
        (batch(timestamp_ms=now_ms() + 7_200_000), INVALID_TIMESTAMP),
        (batch(attributes=GZIP, compress=lambda _: GARBAGE), INVALID_RECORD),
        (batch(attributes=SNAPPY, compress=lambda _: GARBAGE), INVALID_RECORD),
        (batch(attributes=LZ4, compress=lambda _: GARBAGE), INVALID_RECORD),
        (batch(attributes=ZSTD, compress=lambda _: GARBAGE), INVALID_RECORD),
        (batch(attributes=GZIP, compress=lambda plain: gzip.compress(plain)[:-9]), INVALID_RECORD),
        (batch([(None, b"x" * 1_100_000)]), TOO_LARGE),
    ],
    ids=[
        "null", "empty", "damaged", "crc", "cut by 1", "cut in the header", "12 zeros", "a byte behind",
        "magic 1", "magic 0", "magic 3", "two batches", "control", "offset 1", "offset -1",
        "no records", "count above", "count below",
        "count -1", "codec 5", "the future", "gzip garbage", "snappy garbage", "lz4 garbage",
        "zstd garbage", "gzip cut", "too large",
    ],
)  # fmt: skip
def test_batches_that_are_refused(ask, topic, records, error):
    for version in (7, LAST_BY_NAME):
        result = put(ask, topic, records, version=version)
        assert result.error_code == error, (version, result)
        assert result.base_offset == -1
    assert everything(ask, topic) == []
    assert put(ask, topic, batch()).error_code == 0


def test_a_zip_bomb_is_refused(ask, korvet, topic):
    result = put(ask, topic, batch(attributes=GZIP, compress=lambda _: ZIP_BOMB))
    assert result.error_code == TOO_LARGE
    assert everything(ask, topic) == []


@pytest.mark.parametrize(
    ("codec", "compress"),
    [
        (GZIP, gzip.compress),
        (SNAPPY, lambda plain: bytes(cramjam.snappy.compress_raw(plain))),
        (LZ4, lambda plain: lz4.frame.compress(plain, block_linked=False)),
        (ZSTD, lambda plain: bytes(cramjam.zstd.compress(plain))),
    ],
    ids=["gzip", "snappy", "lz4", "zstd"],
)
def test_codecs(ask, topic, codec, compress):
    result = put(ask, topic, batch([(b"k", b"v" * 100)], attributes=codec, compress=compress))
    assert result.error_code == 0
    assert [each[1:] for each in everything(ask, topic)] == [(b"k", b"v" * 100)]


def test_zstd_needs_version_7(ask, topic):
    records = batch(attributes=ZSTD, compress=lambda plain: bytes(cramjam.zstd.compress(plain)))
    assert put(ask, topic, records, version=6).error_code == UNSUPPORTED_CODEC
    assert put(ask, topic, records, version=7).error_code == 0


def test_one_refused_partition_does_not_keep_the_others(ask, new_topic):
    name = new_topic(3)
    parts = [(name, 0, batch()), (name, 1, damaged(batch())), (name, 2, gzipped([(b"k", b"v")]))]
    results = produce(ask, LAST_BY_NAME, parts)
    assert [each.error_code for each in results] == [0, CORRUPT, 0]
    assert [len(everything(ask, name, index)) for index in range(3)] == [1, 0, 1]


def test_the_topics_own_limit(ask, new_topic):
    name = new_topic(1, {"max.message.bytes": "300"})
    assert put(ask, name, batch([(None, b"x" * 200)])).error_code == 0
    assert put(ask, name, batch([(None, b"x" * 300)])).error_code == TOO_LARGE


def test_timestamp_rules_of_a_topic(ask, new_topic):
    name = new_topic(
        1, {"message.timestamp.after.max.ms": "1000", "message.timestamp.before.max.ms": "60000"}
    )
    for shift, error in [(0, 0), (60_000, INVALID_TIMESTAMP), (-120_000, INVALID_TIMESTAMP), (-30_000, 0)]:
        assert put(ask, name, batch(timestamp_ms=now_ms() + shift)).error_code == error, shift


def test_append_time_topics_answer_the_time(ask, new_topic):
    name = new_topic(1, {"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    result = put(ask, name, batch(timestamp_ms=5))
    assert result.error_code == 0
    assert before - 2000 <= result.log_append_time.timestamp() * 1000 <= now_ms() + 2000


def test_a_producers_append_time_bit_is_ignored(ask, topic):
    assert put(ask, topic, batch(attributes=0x08)).error_code == 0
    assert len(everything(ask, topic)) == 1


def test_a_topic_that_is_deleted_and_made_again(ask, new_topic, topic_ids):
    """One connection sends similar requests: the response for the first topic no longer applies."""
    name = new_topic(1)
    old_id = topic_ids(name)
    assert put(ask, name, batch([(b"k", b"old")])).error_code == 0
    assert put(ask, old_id, batch([(b"k", b"old")]), version=LAST_BY_NAME + 1).error_code == 0
    assert put(ask, name, batch(), partition=1).error_code == UNKNOWN_TOPIC
    (deleted,) = ask("DeleteTopics", 6, topics=[{"name": name}], timeout=20_000).responses
    assert deleted.error_code == 0
    until(lambda: put(ask, name, batch()).error_code == UNKNOWN_TOPIC, 10, "the topic is gone")
    gone = put(ask, old_id, batch(), version=LAST_BY_NAME + 1)
    assert gone.error_code == UNKNOWN_TOPIC_ID
    wanted = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
    (made,) = ask("CreateTopics", 7, topics=[wanted], timeout=20_000, validate_only=False).topics
    assert made.error_code == 0
    until(lambda: put(ask, name, batch([(b"k", b"new")])).error_code == 0, 10, "the topic is there")
    assert put(ask, name, batch([(b"k", b"other")]), partition=1).error_code == 0
    assert put(ask, old_id, batch(), version=LAST_BY_NAME + 1).error_code == UNKNOWN_TOPIC_ID
    assert [record[2] for record in everything(ask, name)] == [b"new"]


def test_records_without_a_key_on_a_compacted_topic(ask, new_topic):
    name = new_topic(1, {"cleanup.policy": "compact"})
    assert put(ask, name, batch([(b"k", b"v"), (None, b"v")])).error_code == INVALID_RECORD
    assert everything(ask, name) == []
    assert put(ask, name, batch([(b"k", b"v"), (b"k", None)])).error_code == 0


@versions("Produce", until=LAST_BY_NAME)
def test_a_refused_batch_names_its_bad_records(ask, new_topic, version):
    """A client can leave out only the bad records (KIP-467)."""
    name = new_topic(1, {"cleanup.policy": "compact"})
    bad = range(3, 100, 10)
    pairs = [(None if index in bad else b"k", b"v") for index in range(100)]
    for records in (batch(pairs), gzipped(pairs)):
        result = put(ask, name, records, version=version)
        assert result.error_code == INVALID_RECORD
        if version >= RECORD_ERRORS_SINCE:
            assert [each.batch_index for each in result.record_errors] == [*bad]
            assert all("key" in each.batch_index_error_message for each in result.record_errors)
            assert "key" in result.error_message
    assert everything(ask, name) == []
    left = [pair for pair in pairs if pair[0]]
    assert put(ask, name, batch(left), version=version).error_code == 0


def test_a_refused_batch_names_the_records_with_bad_timestamps(ask, new_topic):
    name = new_topic(
        1, {"message.timestamp.after.max.ms": "60000", "message.timestamp.before.max.ms": "60000"}
    )
    now = now_ms()
    deltas = [0, -120_000, 30_000, 120_000, -1 - now, 10]
    for compress in (None, gzip.compress):
        result = put(ask, name, timed(now, deltas, compress))
        assert result.error_code == INVALID_TIMESTAMP
        assert [each.batch_index for each in result.record_errors] == [1, 3]
        for index, error in zip((1, 3), result.record_errors, strict=True):
            assert str(now + deltas[index]) in error.batch_index_error_message
    assert put(ask, name, timed(now, [0, 30_000, -1 - now])).error_code == 0


def test_a_batch_of_old_records_names_all_of_them(ask, new_topic):
    name = new_topic(1, {"message.timestamp.before.max.ms": "60000"})
    for records in (batch([(b"k", b"v")] * 3, timestamp_ms=5), gzipped([(b"k", b"v")] * 3, timestamp_ms=5)):
        result = put(ask, name, records)
        assert result.error_code == INVALID_TIMESTAMP
        assert [each.batch_index for each in result.record_errors] == [0, 1, 2]


def timed(base_ms, deltas, compress=None):
    """Returns a batch of records with these times (ms) relative to the first one."""
    payload = b"".join(record(index, b"k", b"v", delta) for index, delta in enumerate(deltas))
    last = len(deltas) - 1
    newest = base_ms + max(deltas)
    codec = 0 if compress is None else GZIP
    payload = payload if compress is None else compress(payload)
    checked = struct.pack(">hiqqqhii", codec, last, base_ms, newest, -1, -1, -1, last + 1) + payload
    return struct.pack(">qiiBI", 0, 9 + len(checked), 0, 2, crc32c.crc32c(checked)) + checked


def test_batches_that_wait_for_memory_keep_their_order(ask, new_topic):
    name = new_topic()
    large = [[(b"large %d" % number, bytes(5 << 20))] for number in range(4)]
    small = [[(b"small %d" % number, b"v")] for number in range(4)]
    batches = []
    for number in range(4):
        batches += [gzipped(large[number]), batch(small[number]), gzipped(small[number])]
    assert all(result.error_code == 0 for result in pipelined(ask, name, batches))
    assert [key for _, key, _ in everything(ask, name)] == [
        key for number in range(4) for key in (large[number][0][0], *[small[number][0][0]] * 2)
    ]


def test_one_request_of_large_and_bad_batches(ask, new_topic):
    """Each partition has its own response, in the request's order, even if some wait for memory."""
    name = new_topic(6)
    large = gzipped([(b"k", bytes(5 << 20))])
    broken = batch([(b"k", b"v")], attributes=ZSTD, compress=lambda plain: b"no zstd" * 10)
    huge = gzipped([(b"k", bytes(11 << 20))])
    many = batch([(None, b"")] * 75_001, attributes=ZSTD, compress=cramjam.zstd.compress)
    parts = [large, broken, huge, many, batch(), large]
    results = produce(ask, LAST_BY_NAME, [(name, index, records) for index, records in enumerate(parts)])
    assert [result.error_code for result in results] == [0, INVALID_RECORD, TOO_LARGE, TOO_LARGE, 0, 0]
    assert len(everything(ask, name, 5)) == 1


def test_the_first_frame_of_several_does_not_say_how_large_all_are(ask, topic):
    def compress(payload):
        return bytes(cramjam.zstd.compress(payload[:10])) + bytes(cramjam.zstd.compress(payload[10:]))

    result = put(ask, topic, batch([(b"k", bytes(3 << 20))], attributes=ZSTD, compress=compress))
    assert (result.error_code, result.error_message) == (0, None)
    assert [len(value) for _, _, value in everything(ask, topic)] == [3 << 20]


def producer_id(ask):
    answer = ask("InitProducerId", 4, transaction_timeout=-1, transactional_id=None)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return answer.producer_id


def stamped(pid, sequence, *, epoch=0, count=1):
    return batch(
        [(b"k", b"%d" % (sequence + index)) for index in range(count)], producer=(pid, epoch, sequence)
    )


def test_a_batch_sent_again_is_answered_as_before(ask, topic):
    pid = producer_id(ask)
    first = put(ask, topic, stamped(pid, 0, count=3))
    second = put(ask, topic, stamped(pid, 3))
    again = put(ask, topic, stamped(pid, 0, count=3))
    assert (first.error_code, second.error_code, again.error_code) == (0, 0, 0)
    assert again.base_offset == first.base_offset
    assert len(everything(ask, topic)) == 4


@pytest.mark.parametrize("count", [499, 500, 501, 1_600])
def test_a_request_with_many_batches_comes_before_the_next_one(ask, topic, fresh, count):
    name = fresh("never")
    first = [(name, number, batch()) for number in range(count - 1)] + [(topic, 0, batch([(b"1", None)]))]
    requests = [request_of(first), request_of([(topic, 0, batch([(b"2", None)]))])]
    ask.raw.send_all(frame("Produce", LAST_BY_NAME, number, **each) for number, each in enumerate(requests))
    many, one = [decode_response(KEYS["Produce"], LAST_BY_NAME, ask.raw.receive()).message for _ in requests]
    codes = [part.error_code for each in many.responses for part in each.partition_responses]
    assert codes == [UNKNOWN_TOPIC] * (count - 1) + [0]
    assert one.responses[0].partition_responses[0].error_code == 0
    assert [key for _, key, _ in everything(ask, topic)] == [b"1", b"2"]


def test_pipelined_requests_get_their_own_answers_in_order(ask, topic):
    """Batches that arrive together go to Redis together, but a fault affects only its own batch."""
    pid = producer_id(ask)
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    in_line = [stamped(pid, 3 * number, count=3) for number in range(10)]
    unlucky = [stamped(pid, 30, count=2), stamped(pid, 27, count=3), bytes(damaged), stamped(pid, 99)]
    lined_up = pipelined(ask, topic, in_line)
    assert all(part.error_code == 0 for part in lined_up)
    found = pipelined(ask, topic, [*unlucky, stamped(pid, 32)])
    assert [part.error_code for part in found] == [0, 0, CORRUPT, OUT_OF_ORDER, 0]
    assert found[1].base_offset == lined_up[-1].base_offset
    offsets = {value: offset for offset, _, value in everything(ask, topic)}
    assert list(offsets) == [b"%d" % number for number in range(33)]
    firsts = [offsets[b"%d" % number] for number in (*range(0, 33, 3), 32)]
    assert [part.base_offset for part in (*lined_up, found[0], found[-1])] == firsts


def test_sequences_out_of_order(ask, topic):
    pid = producer_id(ask)
    assert put(ask, topic, stamped(pid, 0)).error_code == 0
    assert put(ask, topic, stamped(pid, 2)).error_code == OUT_OF_ORDER
    assert put(ask, topic, stamped(pid, 1)).error_code == 0
    assert put(ask, topic, stamped(pid, 5, epoch=1)).error_code == OUT_OF_ORDER
    assert put(ask, topic, stamped(pid, 0, epoch=1)).error_code == 0
    assert put(ask, topic, stamped(pid, 2, epoch=0)).error_code == INVALID_EPOCH
    assert len(everything(ask, topic)) == 3


def test_a_producer_nobody_knows_may_begin_anywhere(ask, topic):
    assert put(ask, topic, stamped(producer_id(ask), 100)).error_code == 0


def test_sequences_wrap_around(ask, topic):
    pid = producer_id(ask)
    assert put(ask, topic, stamped(pid, 2**31 - 2, count=2)).error_code == 0
    assert put(ask, topic, stamped(pid, 0)).error_code == 0


@versions("InitProducerId")
def test_init_producer_id(ask, version):
    answers = [ask("InitProducerId", version, transaction_timeout=1000, transactional_id=None) for _ in "ab"]
    assert [(each.error_code, each.producer_epoch) for each in answers] == [(0, 0), (0, 0)]
    assert answers[0].producer_id != answers[1].producer_id


@versions("InitProducerId", since=3)
def test_init_producer_id_with_half_an_identity(ask, version):
    for identity in [{"producer_id": 5, "producer_epoch": -1}, {"producer_id": -1, "producer_epoch": 5}]:
        answer = ask("InitProducerId", version, transaction_timeout=1000, transactional_id=None, **identity)
        assert (answer.error_code, answer.producer_id) == (42, -1)


def test_the_offsets_topic_is_written_by_the_broker_only(ask, korvet):
    assert put(ask, "__consumer_offsets", batch()).error_code == INVALID_TOPIC
