"""Batches with some bad records: the producer names them, and the others can be sent again (KIP-467)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.java import JavaTools
    from tests.support.servers import Broker

pytestmark = pytest.mark.clients

# The exceptions of Kafka's producer on Apache Kafka 4.4.
BAD = "InvalidRecordException"
BAD_TIMESTAMP = "InvalidTimestampException"
OTHER = "KafkaException"
APPENDED = "none"

MINUTE = {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"}


@pytest.fixture
def send(broker: Broker, java: JavaTools) -> Callable[..., list[tuple[str, str]]]:
    """Send records ("KEY:MS", "-" for no key) as one batch.

    Returns the outcome of each, and of each retry.
    """

    def run(topic: str, compression: str, records: list[str]) -> list[tuple[str, str]]:
        printed = java.run("BadRecords", broker.bootstrap, topic, compression, *records)
        lines = [line.split("\t") for line in printed.splitlines()]
        return [(outcome, message) for _, outcome, message in lines]

    return run


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_records_without_a_key(send, new_topic, compression):
    topic = new_topic(1, {"cleanup.policy": "compact"})
    bad = range(3, 100, 10)
    outcomes = send(topic, compression, ["-:0" if index in bad else "k:0" for index in range(100)])
    refused, again = outcomes[:100], outcomes[100:]
    assert [index for index, (outcome, _) in enumerate(refused) if outcome == BAD] == [*bad]
    assert all("without a key" in message for outcome, message in refused if outcome == BAD)
    assert {outcome for index, (outcome, _) in enumerate(refused) if index not in bad} == {OTHER}
    assert again == [(APPENDED, "")] * 90


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_timestamps_out_of_range(send, new_topic, compression):
    topic = new_topic(1, MINUTE)
    outcomes = send(topic, compression, ["k:0", "k:-120000", "k:0", "k:120000", "k:0"])
    assert [outcome for outcome, _ in outcomes] == [OTHER, BAD, OTHER, BAD, OTHER] + [APPENDED] * 3
    assert all("timestamp" in message for outcome, message in outcomes if outcome == BAD)


def test_one_bad_record_has_the_exception_of_its_error(send, new_topic):
    outcomes = send(new_topic(1, MINUTE), "none", ["k:0", "k:-120000", "k:0"])
    assert [outcome for outcome, _ in outcomes] == [OTHER, BAD_TIMESTAMP, OTHER, APPENDED, APPENDED]


def test_records_that_are_bad_in_different_ways(send, new_topic):
    topic = new_topic(1, {"cleanup.policy": "compact", **MINUTE})
    outcomes = send(topic, "none", ["k:0", "-:0", "k:-120000", "-:120000", "k:0"])
    assert [outcome for outcome, _ in outcomes] == [OTHER, BAD, BAD, BAD, OTHER, APPENDED, APPENDED]
    named = [message for outcome, message in outcomes if outcome == BAD]
    assert ["key" in message for message in named] == [True, False, True]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_batch_of_old_records(send, new_topic, compression):
    """Each record's message describes that record."""
    outcomes = send(new_topic(1, MINUTE), compression, ["k:-120000", "k:-130000", "k:-140000"])
    assert [outcome for outcome, _ in outcomes] == [BAD] * 3
    messages = [message for _, message in outcomes]
    assert len(set(messages)) == 3 or all("newest" in message for message in messages)
