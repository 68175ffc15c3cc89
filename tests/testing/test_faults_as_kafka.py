"""What clients do about a fault on request is what they do about the same error of Apache Kafka.

Expected is what two brokers of Kafka 4.4.0 gave: tests/testing/apache_kafka.py runs these tests on them.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from korvet.testing import KorvetBroker
from tests.support.polling import until
from tests.testing.apache_kafka import TRANSACTION_TIMEOUT_MS, ApacheKafka
from tests.testing.sessions import WAIT_S, Aiokafka, Java, Librdkafka, Timeouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.testing.sessions import Session

ON_KAFKA: Final = "KORVET_TEST_FAULTS_ON_KAFKA" in os.environ
CLIENTS: Final[list[Callable[[str, Timeouts], Session]]] = [Librdkafka, Aiokafka, Java]
DELAY_MS: Final = 700
IMPATIENT_MS: Final = 5_000
TOO_LARGE: Final = {
    Librdkafka: "MSG_SIZE_TOO_LARGE",
    Aiokafka: "MessageSizeTooLargeError",
    Java: "RecordTooLargeException",
}
FENCED: Final = {
    # After the abort: a record; then abort, begin, a record and commit.
    (Librdkafka, "send"): ["_FENCED", "_FENCED", "_FENCED", "_FATAL", "_FENCED"],
    (Aiokafka, "send"): [
        "ProducerFenced",
        "ProducerFenced",
        "AssertionError",
        "IllegalOperation",
        "AssertionError",
    ],
    (Java, "send"): ["InvalidProducerEpochException", "", "", "", ""],
    # After the abort: commit; then as above.
    (Librdkafka, "commit"): ["_FENCED", "_FENCED", "_FENCED", "_FATAL", "_FENCED"],
    (Aiokafka, "commit"): [
        "ProducerFenced",
        "AssertionError",
        "AssertionError",
        "IllegalOperation",
        "AssertionError",
    ],
    (Java, "commit"): ["InvalidTxnStateException", *["KafkaException"] * 4],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetBroker | ApacheKafka]:
    with ApacheKafka() if ON_KAFKA else KorvetBroker() as made:
        yield made


@pytest.fixture(params=CLIENTS, ids=lambda client: client.__name__.lower())
def opened(broker: KorvetBroker, request: pytest.FixtureRequest) -> Iterator[Callable[[Timeouts], Session]]:
    """Begins a session of a client."""
    made: list[Session] = []

    def begin(timeouts: Timeouts) -> Session:
        made.append(request.param(broker.bootstrap_servers, timeouts))
        return made[-1]

    yield begin
    for each in made:
        each.close()
    broker.faults.clear()


@pytest.fixture
def session(opened: Callable[[Timeouts], Session]) -> Session:
    return opened(Timeouts())


@pytest.fixture
def topic(broker: KorvetBroker, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    broker.create_topic(name)
    return name


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize(
    ("method", "arguments", "times", "copies"),
    [
        ("fail", ("Produce", "NOT_LEADER_OR_FOLLOWER"), 1, 1),
        ("fail", ("Produce", "NOT_ENOUGH_REPLICAS"), 3, 1),
        ("disconnect", ("Produce",), 1, 1),
        ("lose_answer", ("Produce",), 1, 2),
    ],
)
def test_a_record_is_sent_again(
    session: Session,
    broker: KorvetBroker,
    topic: str,
    idempotent: bool,
    method: str,
    arguments: Any,
    times: int,
    copies: int,
) -> None:
    assert session.producer(idempotent=idempotent) == ""
    assert session.send(topic, "1") == ""
    fault = getattr(broker.faults, method)(*arguments, topic=topic, times=times)
    assert session.send(topic, "2") == session.send(topic, "3") == ""
    assert fault.left == 0
    values = [record.value for record in broker.records(topic)]
    assert values == [b"1", *[b"2"] * (1 if idempotent else copies), b"3"]


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_record_that_is_too_large_is_an_error(
    session: Session, broker: KorvetBroker, topic: str, idempotent: bool
) -> None:
    session.producer(idempotent=idempotent)
    assert session.send(topic, "1") == ""
    broker.faults.fail("Produce", "MESSAGE_TOO_LARGE", topic=topic, times=None)
    error = TOO_LARGE[type(session)]  # type: ignore[index]
    assert [session.send(topic, value) for value in "23"] == [error] * 2
    assert len(broker.records(topic)) == 1


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_delay_is_waited_for(session: Session, broker: KorvetBroker, topic: str, idempotent: bool) -> None:
    assert session.producer(idempotent=idempotent) == ""
    assert session.send(topic, "1") == ""
    fault = broker.faults.delay("Produce", DELAY_MS, topic=topic)
    began_s = time.monotonic()
    assert session.send(topic, "2") == ""
    assert time.monotonic() - began_s >= DELAY_MS / 1000
    assert session.send(topic, "3") == ""
    assert fault.left == 0
    assert [record.value for record in broker.records(topic)] == [b"1", b"2", b"3"]


def test_a_record_without_an_answer_is_sent_again(
    opened: Callable[[Timeouts], Session], broker: KorvetBroker, topic: str
) -> None:
    session = opened(Timeouts(request=IMPATIENT_MS))
    assert session.producer(idempotent=True) == ""
    assert session.send(topic, "1") == ""
    fault = broker.faults.ignore("Produce", topic=topic)
    assert session.send(topic, "2") == session.send(topic, "3") == ""
    assert fault.left == 0
    assert [record.value for record in broker.records(topic)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("step", ["send", "commit"])
def test_a_producer_learns_that_its_transaction_was_aborted(
    opened: Callable[[Timeouts], Session], broker: KorvetBroker, topic: str, step: str
) -> None:
    session = opened(Timeouts(transaction=TRANSACTION_TIMEOUT_MS) if ON_KAFKA else Timeouts())
    assert session.producer(idempotent=True, transactional_id=topic) == ""
    assert session.begin() == session.send(topic, "1") == ""
    broker.faults.abort_transaction(topic)
    results = [
        session.send(topic, "2") if step == "send" else session.commit_transaction(),
        session.abort_transaction(),
        session.begin(),
        session.send(topic, "3"),
        session.commit_transaction(),
    ]
    assert results == FENCED[type(session), step]  # type: ignore[index]


def fail_fetches(broker: KorvetBroker, session: Session, topic: str) -> None:
    fault = broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic)
    until(lambda: session.poll() == [] and fault.left == 0, WAIT_S, "a fetch")


def move_leader(broker: KorvetBroker, session: Session, topic: str) -> None:
    broker.faults.move_leader(topic)


def lose_coordinator(broker: KorvetBroker, session: Session, topic: str) -> None:
    for api in ("Heartbeat", "OffsetCommit"):
        broker.faults.fail(api, "NOT_COORDINATOR", group=topic)


def move_coordinator(broker: KorvetBroker, session: Session, topic: str) -> None:
    broker.faults.move_coordinator(group=topic)


def load_coordinator(broker: KorvetBroker, session: Session, topic: str) -> None:
    broker.faults.fail("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", group=topic, times=2)


def rebalance(broker: KorvetBroker, session: Session, topic: str) -> None:
    broker.faults.fail("Heartbeat", "REBALANCE_IN_PROGRESS", group=topic)


def expire(broker: KorvetBroker, session: Session, topic: str) -> None:
    broker.faults.expire_member(topic, session.member())


@pytest.mark.parametrize(
    ("happens", "ended"),
    [
        (fail_fetches, ""),
        (move_leader, ""),
        (lose_coordinator, ""),
        (move_coordinator, ""),
        (load_coordinator, ""),
        (rebalance, "revoked"),
        (expire, "lost"),
    ],
)
def test_a_consumer_goes_on(
    session: Session,
    broker: KorvetBroker,
    topic: str,
    happens: Callable[[KorvetBroker, Session, str], None],
    ended: str,
) -> None:
    values: list[str] = []

    def read_until(value: str) -> None:
        def found() -> bool:
            values.extend(session.poll())
            return value in values

        until(found, WAIT_S, f"record {value}")

    session.producer(idempotent=True)
    session.subscribe(topic, topic)
    session.send(topic, "1")
    read_until("1")
    assert session.commit() == ""
    session.send(topic, "2")
    read_until("2")
    assert values == ["1", "2"]
    session.told.clear()
    happens(broker, session, topic)
    if ended:
        until(lambda: values.extend(session.poll()) or "assigned" in session.told, WAIT_S, "an assignment")
    session.send(topic, "3")
    read_until("3")
    # librdkafka gives up if a coordinator loads for long.
    loads = happens in (move_coordinator, load_coordinator)
    allowed = {"", "COORDINATOR_LOAD_IN_PROGRESS"} if loads else {""}
    while error := session.commit():
        assert error in allowed

    def have_happened() -> bool:
        # Heartbeats come at intervals.
        values.extend(session.poll())
        return all(fault["left"] == 0 for fault in broker.faults.listed())

    until(have_happened, WAIT_S, "all faults")
    # aiokafka knows no lost partitions.
    loss = "revoked" if isinstance(session, Aiokafka) else ended
    assert session.told == ([loss, "assigned"] if ended else [])
    # Uncommitted records come again.
    assert values == ["1", "2", *(["2"] if ended else []), "3"]
    assert broker.committed(topic) == {(topic, 0): 3}
