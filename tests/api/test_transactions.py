"""Transactions over the wire: every version of their APIs, both protocols, what consumers see of them."""

from __future__ import annotations

import uuid
from functools import partial

import pytest

from tests.api.asking import versions
from tests.api.batches import batch, read
from tests.api.test_fetch import fetch
from tests.api.test_produce import produce, put
from tests.support.polling import until

INVALID_TXN_STATE, FENCED_OLD, FENCED, CONCURRENT, LOADING, UNKNOWN_ID = 48, 47, 90, 51, 14, 49
NO_COORDINATOR, ABORTABLE, UNAUTHORIZED, RETRIED = 15, 120, 53, {14, 15, 16, 51}
FIRST_PROTOCOL, SECOND_PROTOCOL = 11, 12
CONTROL = 32


def settled(run):
    """Returns the first response with no error after which clients try again."""
    return until(lambda: (answer := run()).error_code not in RETRIED and [answer], 30, "an answer")[0]


class Producer:
    """A transactional producer like librdkafka (protocol 1) or a current Java producer (protocol 2)."""

    def __init__(self, ask, topic, protocol=FIRST_PROTOCOL, name=None):
        self.ask, self.topic, self.protocol = ask, topic, protocol
        self.name = name or f"t{uuid.uuid4()}"
        self.sequence = {}

    def init(self, version=4, **fields):
        found = settled(
            lambda: self.ask(
                "InitProducerId",
                version,
                **{"transactional_id": self.name, "transaction_timeout": 60_000}
                | {"producer_id": -1, "producer_epoch": -1}
                | fields,
            )
        )
        if not found.error_code:
            self.use(found)
        return found

    def use(self, found):
        if (found.producer_id, found.producer_epoch) != getattr(self, "identity", None):
            self.identity = found.producer_id, found.producer_epoch
            self.sequence.clear()

    def add(self, *partitions, version=3):
        topics = [{"name": self.topic, "partitions": list(partitions)}]
        fields = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.identity[0],
            "v3_and_below_producer_epoch": self.identity[1],
            "v3_and_below_topics": topics,
        }

        def errors():
            answer = self.ask("AddPartitionsToTxn", version, **fields)
            (found,) = answer.results_by_topic_v3_and_below
            return [each.partition_error_code for each in found.results_by_partition]

        return until(lambda: (found := errors()) and not RETRIED & set(found) and found, 30, "an answer")

    def write(self, *values, partition=0):
        if self.protocol < SECOND_PROTOCOL:
            assert self.add(partition) == [0]
        return self.put(*values, partition=partition)

    def put(self, *values, partition=0):
        first = self.sequence.get(partition, 0)
        data = batch([(b"k", value) for value in values], attributes=0x10, producer=(*self.identity, first))

        def answer():
            return produce(
                self.ask, self.protocol, [(self.topic, partition, data)], transactional_id=self.name
            )[0]

        found = settled(answer)
        if not found.error_code:
            self.sequence[partition] = first + len(values)
        return found

    def end(self, committed=True, version=None):
        if version is None:
            version = 5 if self.protocol >= SECOND_PROTOCOL else 4
        identity = {"producer_id": self.identity[0], "producer_epoch": self.identity[1]}
        found = settled(
            lambda: self.ask("EndTxn", version, transactional_id=self.name, committed=committed, **identity)
        )
        if version >= 5 and not found.error_code:
            self.use(found)
        return found.error_code


def fetched(ask, topic, isolation, version=11, offset=0):
    (part,) = fetch(ask, version, (topic, 0, offset), isolation_level=isolation)
    assert part.error_code == 0
    return part


def shown(ask, topic):
    """Returns the first partition's records for a consumer with read_committed."""
    part = fetched(ask, topic, 1)
    aborted = sorted(part.aborted_transactions or (), key=lambda each: each.first_offset)
    data, at, dropped, values = part.records or b"", 0, set(), []
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        one = data[at : at + size]
        base = int.from_bytes(one[:8], "big")
        last, producer = base + int.from_bytes(one[23:27], "big"), int.from_bytes(one[43:51], "big")
        while aborted and aborted[0].first_offset <= last:
            dropped.add(aborted.pop(0).producer_id)
        if one[22] & CONTROL:
            dropped.discard(producer)
        elif producer not in dropped:
            values += [value for _, _, value in read(one)]
        at += size
    return values, part


def stable(ask, topic):
    """Returns the committed records, once all markers are written."""
    return until(
        lambda: (found := shown(ask, topic))[1].last_stable_offset == found[1].high_watermark and [found[0]],
        30,
        "the markers",
    )[0]


@pytest.mark.parametrize("protocol", [FIRST_PROTOCOL, SECOND_PROTOCOL])
def test_what_consumers_see(ask, topic, protocol):
    producer = Producer(ask, topic, protocol)
    assert producer.init().error_code == 0
    decided = put(ask, topic, batch([(b"k", b"before")])).base_offset + 1
    first = producer.write(b"1", b"2").base_offset
    assert put(ask, topic, batch([(b"k", b"after")])).error_code == 0
    values, part = shown(ask, topic)
    # The log end before the transaction: there may be a gap before its first record.
    assert (values, part.last_stable_offset) == ([b"before"], decided)
    assert part.high_watermark > first
    assert producer.end() == 0
    assert stable(ask, topic) == [b"before", b"1", b"2", b"after"]
    producer.write(b"no")
    assert producer.end(committed=False) == 0
    producer.write(b"3")
    assert producer.end() == 0
    assert stable(ask, topic) == [b"before", b"1", b"2", b"after", b"3"]
    assert len(fetched(ask, topic, 1).aborted_transactions) == 1
    assert fetched(ask, topic, 0).aborted_transactions is None
    assert b"no" in [value for _, _, value in read(fetched(ask, topic, 0).records)]


@versions("EndTxn")
def test_end_txn(ask, topic, version):
    producer = Producer(ask, topic, SECOND_PROTOCOL if version >= 5 else FIRST_PROTOCOL)
    producer.init()
    assert producer.end(version=version) == INVALID_TXN_STATE
    producer.write(b"v")
    producer_id, epoch = producer.identity
    producer.identity = producer_id, epoch + 1
    assert producer.end(version=version) == (FENCED if version >= 2 else FENCED_OLD)
    producer.identity = producer_id + 1000, epoch
    assert producer.end(version=version) == UNKNOWN_ID
    producer.identity = producer_id, epoch
    assert producer.end(version=version) == 0
    assert producer.identity == (producer_id, epoch + (version >= 5))
    assert stable(ask, topic) == [b"v"]


@pytest.mark.parametrize("committed", [True, False])
def test_an_empty_transaction_may_end_while_the_last_ones_markers_are_written(ask, topic, committed):
    producer = Producer(ask, topic, SECOND_PROTOCOL)
    producer.init()
    for number in range(20):
        producer.write(b"%d" % number)
        epoch = producer.identity[1]
        assert producer.end(committed) == 0
        # Sent at once, and again while the response is CONCURRENT_TRANSACTIONS.
        assert producer.end(committed=False) == 0
        assert producer.identity[1] == epoch + 2
    assert len(stable(ask, topic)) == (20 if committed else 0)


@versions("AddPartitionsToTxn", until=3)
def test_add_partitions_to_txn(ask, topic, version):
    producer = Producer(ask, topic)
    producer.init()
    assert producer.add(0, version=version) == [0]
    assert producer.add(0, 77, version=version) == [55, 3]
    for internal in ("__consumer_offsets", "__transaction_state"):
        topics = [{"name": name, "partitions": [0]} for name in (internal, topic)]
        asked = dict(zip(("producer_id", "producer_epoch"), producer.identity, strict=True))
        asked |= {"transactional_id": producer.name, "topics": topics}
        fields = {f"v3_and_below_{name}": value for name, value in asked.items()}
        results = ask("AddPartitionsToTxn", version, **fields).results_by_topic_v3_and_below
        assert [each.results_by_partition[0].partition_error_code for each in results] == [29, 55]
    producer.identity = producer.identity[0], 9
    assert producer.add(0, version=version) == [FENCED if version >= 2 else FENCED_OLD]


@versions("AddPartitionsToTxn", since=4)
def test_verification(ask, topic, version):
    producer = Producer(ask, topic)
    producer.init()

    def verify(only):
        transaction = {
            "transactional_id": producer.name,
            "producer_id": producer.identity[0],
            "producer_epoch": producer.identity[1],
            "verify_only": only,
            "topics": [{"name": topic, "partitions": [0]}],
        }
        answer = ask("AddPartitionsToTxn", version, transactions=[transaction])
        (result,) = answer.results_by_transaction
        return result.topic_results[0].results_by_partition[0].partition_error_code

    assert verify(True) == ABORTABLE
    assert (verify(False), verify(True)) == (0, 0)


@versions("InitProducerId")
def test_a_new_producer_fences_the_one_before(ask, topic, version):
    old = Producer(ask, topic)
    assert old.init(version=version).producer_epoch == 0
    old.write(b"no")
    new = Producer(ask, topic, name=old.name)
    assert new.init(version=version).error_code == 0
    assert (new.identity[0], new.identity[1]) == (old.identity[0], 2)
    assert old.put(b"no").error_code == FENCED_OLD
    assert old.end() == FENCED
    if version >= 3:
        known = {"producer_id": old.identity[0], "producer_epoch": old.identity[1]}
        assert old.init(version=version, **known).error_code == (FENCED if version >= 4 else FENCED_OLD)
    new.write(b"yes")
    assert new.end() == 0
    assert stable(ask, topic) == [b"yes"]


@versions("InitProducerId", since=3)
@pytest.mark.parametrize("times_out", [False, True])
def test_a_producer_goes_on_after_its_transaction_was_aborted(ask, topic, version, times_out):
    producer = Producer(ask, topic)
    producer.init(transaction_timeout=300 if times_out else 60_000)
    producer.write(b"no")
    if times_out:
        assert stable(ask, topic) == []
    producer_id, epoch = producer.identity
    goes_on = {"producer_id": producer_id, "producer_epoch": epoch}
    assert producer.init(version=version, **goes_on).error_code == 0
    assert producer.identity == (producer_id, epoch + 1)
    producer.write(b"yes")
    assert producer.end() == 0
    assert stable(ask, topic) == [b"yes"]


def test_a_transaction_that_lasts_too_long_is_aborted(ask, topic):
    producer = Producer(ask, topic)
    producer.init(transaction_timeout=300)
    producer.write(b"no")
    assert stable(ask, topic) == []
    assert producer.end() == FENCED


@pytest.mark.parametrize("timeout_ms", [0, 900_001])
def test_a_timeout_that_is_not_allowed(ask, topic, timeout_ms):
    assert Producer(ask, topic).init(transaction_timeout=timeout_ms).error_code == 50


def test_what_is_in_no_transaction(ask, topic):
    producer = Producer(ask, topic)
    producer.init()
    assert producer.put(b"not added").error_code == ABORTABLE
    data = batch(attributes=0x10, producer=(*producer.identity, 0))
    assert produce(ask, 10, [(topic, 0, data)], transactional_id=producer.name)[0].error_code == (
        INVALID_TXN_STATE
    )
    assert put(ask, topic, data).error_code == UNAUTHORIZED
    producer.write(b"v")
    plain = batch(producer=(*producer.identity, 1))
    assert put(ask, topic, plain).error_code == INVALID_TXN_STATE


@versions("ListOffsets", since=2)
def test_the_end_for_those_who_read_committed(ask, topic, version):
    producer = Producer(ask, topic)
    producer.init()
    decided = put(ask, topic, batch([(b"k", b"before")])).base_offset + 1
    first = producer.write(b"v").base_offset

    def latest(isolation):
        asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        fields = {"replica_id": -1, "isolation_level": isolation}
        answer = ask("ListOffsets", version, topics=[{"name": topic, "partitions": [asked]}], **fields)
        return answer.topics[0].partitions[0].offset

    assert (latest(1), latest(0)) == (decided, first + 1)
    producer.end(committed=False)
    until(lambda: latest(1) == latest(0) > first + 1, 30, "the marker")


@versions("DescribeTransactions")
def test_describe_transactions(ask, topic, version):
    producer = Producer(ask, topic)
    producer.init()

    def described(name):
        answer = partial(ask, "DescribeTransactions", version, transactional_ids=[name])
        return settled(lambda: answer().transaction_states[0])

    producer.write(b"v")
    state = described(producer.name)
    assert (state.error_code, state.transaction_state) == (0, "Ongoing")
    assert (state.producer_id, state.producer_epoch) == producer.identity
    assert [(each.topic, list(each.partitions)) for each in state.topics] == [(topic, [0])]
    assert described("nobody's").error_code == 105
    assert described("").error_code == 42


@versions("ListTransactions")
def test_list_transactions(ask, topic, version):
    producer = Producer(ask, topic)
    producer.init()
    producer.write(b"v")

    def listed(**fields):
        filters = {"state_filters": [], "producer_id_filters": [producer.identity[0]], "duration_filter": -1}
        filters |= {"transactional_id_pattern": None} | fields
        answer = settled(lambda: ask("ListTransactions", version, **filters))
        assert answer.error_code == 0
        return [(each.transactional_id, each.transaction_state) for each in answer.transaction_states], list(
            answer.unknown_state_filters
        )

    here = [(producer.name, "Ongoing")]
    assert listed() == (here, [])
    assert listed(state_filters=["Ongoing", "x"]) == (here, ["x"])
    assert listed(state_filters=["Empty", "PrepareEpochFence"]) == ([], [])
    assert (producer.name, "Ongoing") in listed(producer_id_filters=[])[0]
    if version >= 1:
        assert listed(duration_filter=600_000) == ([], [])
    if version >= 2:
        assert listed(transactional_id_pattern=producer.name[:9] + ".*") == (here, [])
        assert listed(transactional_id_pattern=producer.name[:9]) == ([], [])
        assert listed(transactional_id_pattern="(.|.)*!") == ([], []), "without going back, for hours"
        for pattern in ("(", "(?=a)"):
            answer = ask("ListTransactions", version, transactional_id_pattern=pattern)
            assert answer.error_code == 128


@versions("DescribeProducers")
def test_describe_producers(ask, topic, version):
    producer = Producer(ask, topic)
    producer.init()
    begin = put(ask, topic, batch([(b"k", b"before")])).base_offset + 1
    producer.write(b"a", b"b")

    def described(index=0):
        topics = [{"name": topic, "partition_indexes": [index]}]
        (partition,) = ask("DescribeProducers", version, topics=topics).topics[0].partitions
        return partition

    (state,) = described().active_producers
    assert (state.producer_id, state.producer_epoch) == producer.identity
    assert (state.last_sequence, state.coordinator_epoch, state.current_txn_start_offset) == (1, -1, begin)
    assert state.last_timestamp > 0
    producer.end()
    stable(ask, topic)
    (state,) = described().active_producers
    assert (state.last_sequence, state.current_txn_start_offset) == (1, -1)
    assert state.coordinator_epoch >= 0
    assert described(99).error_code == 3


@versions("FindCoordinator", since=1)
def test_the_coordinator_of_a_transactional_id(ask, korvet, version):
    answer = ask("FindCoordinator", version, key="t", key_type=1, coordinator_keys=["t"])
    found = answer if version < 4 else answer.coordinators[0]
    assert (found.error_code, found.node_id) == (0, 1)
