"""The steps of a Produce request, without Redis."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from korvet.api.common.context import HandlerState
from korvet.api.produce import produce
from korvet.api.producing.unpacking import Unpacked
from korvet.cluster.topic import Topic
from korvet.log.counts import TopicCounts
from korvet.log.values import Appended
from korvet.records.batch import BatchError
from korvet.records.compression import compress
from korvet.records.produce_request import ProducePartition, ProduceRequest, ProduceTopic
from korvet.redis.errors import NotEnoughReplicasAfterAppend, WritesRefused
from korvet.topics.configs import policy_of
from korvet.topics.directory import Place
from korvet.transactions.messages import AddReply
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Callable

GZIP, TRANSACTIONAL = 1, 16
PLAIN = forms.records_bytes([forms.Record(b"k", b"v", forms.BASE_MS)])


class Broker:
    """Lets the test decide when a batch is decompressed, what the coordinator replies, what the log does, and
    when replicas have the records.
    """

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.unpacks: list[Callable[[Any], None]] = []
        self.replies: list[Callable[[AddReply], None]] = []
        self.appended: list[Callable[[Any], None]] = []
        self.released: list[Callable[[Any], None]] = []
        self.responses: list[Any] = []
        self.failures: list[ErrorCode] = []
        self.order: list[int] = []
        """The first sequences of the batches that were appended."""
        topic = Topic(name="t", topic_id=None, partitions=1)  # type: ignore[arg-type]
        state = SimpleNamespace(name="t")
        self.log: Any = SimpleNamespace(
            topic=topic,
            partition=0,
            append=self.append,
            state=state,
            counts=TopicCounts(),
            missing_replicas=None,
            waits_for_replicas=False,
            await_released=self.await_released,
            count_refusal=lambda refusal: None,
        )
        place = Place(topic, self.log, policy_of({"message.timestamp.before.max.ms": str(2**62)}, {}), False)
        self.client: Any = SimpleNamespace(
            session=SimpleNamespace(access=None),
            closed=False,
            pipelines=False,
            handler_state=HandlerState(),
            hold_back=self.hold_back,
        )
        self.context: Any = SimpleNamespace(
            api_version=9,
            client_id="unit",
            client=self.client,
            trace=None,
            unpacked_bytes=0,
            stored=lambda: self.steps.append("stored"),
            failed=lambda error, topic: self.failures.append(error),
            services=SimpleNamespace(
                topics=SimpleNamespace(place=lambda key, index: place),
                unpacking=SimpleNamespace(at_once=lambda *_: None, soon=self.soon),
                transactions=SimpleNamespace(add=self.add),
                clock_ns=lambda: forms.BASE_MS * 1_000_000,
            ),
        )

    def hold_back(self) -> Callable[[], None]:
        self.steps.append("holds back")
        return lambda: self.steps.append("resumed")

    def soon(self, data: Any, header: Any, most_bytes: int, done: Callable[[Any], None]) -> None:
        self.steps.append("unpacks")
        self.unpacks.append(done)

    def add(self, request: Any, done: Callable[[AddReply], None]) -> None:
        self.steps.append("asks")
        self.replies.append(done)

    def append(
        self, received: Any, producer: Any, check: Any, done: Callable[[Any], None], **_: object
    ) -> bool:
        self.steps.append("appends")
        self.order.append(received.header.base_sequence)
        self.appended.append(done)
        return False

    def await_released(self, end: int, timeout_ms: int, done: Callable[[Any], None]) -> None:
        self.steps.append("waits")
        self.released.append(done)

    def produce(self, *batches: bytes, acks: int = 1) -> None:
        partitions = tuple(ProducePartition(index, data) for index, data in enumerate(batches))
        topics = (ProduceTopic("t", None, partitions),) if partitions else ()
        produce(self.context, ProduceRequest(acks, 1000, "id", topics), self.responses.append)


def batch(kind: int, sequence: int = 0) -> bytes:
    """A batch of one record, with the attributes `kind`."""
    section = compress(GZIP, PLAIN) if kind & GZIP else PLAIN
    return forms.batch_bytes(section, 1, attributes=kind, producer=(7, 0, sequence))


def unpacked(given_back: list[int]) -> Unpacked:
    budget: Any = SimpleNamespace(give_back=given_back.append)
    return Unpacked(PLAIN, budget, len(PLAIN))


def appended(offset: int) -> Appended:
    return Appended(offset, 0, offset, 0, 0, False, -1)


@pytest.mark.parametrize("absent", [False, True])
def test_a_batch_is_appended_as_soon_as_its_transaction_is_known(absent: bool) -> None:
    """Between the coordinator's reply and the append, the transaction could end."""
    broker = Broker()
    broker.produce(batch(GZIP | TRANSACTIONAL))
    assert broker.steps == ["holds back", "unpacks"]
    given_back: list[int] = []
    broker.unpacks.pop()(unpacked(given_back))
    assert broker.steps[2:] == ["asks", "resumed"]
    broker.replies.pop()(AddReply(ErrorCode.none, frozenset({("t", 0)} if absent else ())))
    if absent:
        assert given_back == [len(PLAIN)]
        assert broker.failures == [ErrorCode.invalid_txn_state]
        assert len(broker.responses) == 1
    else:
        assert broker.steps[4:] == ["appends"]
        assert not broker.responses


def test_records_that_only_replicas_lack_no_longer_count_as_on_their_way() -> None:
    """A late replica holds up no producer that asks for none."""
    broker = Broker()
    broker.log.waits_for_replicas = True
    broker.produce(batch(0), batch(0), acks=-1)
    first, second = broker.appended
    first(appended(5))
    assert broker.steps == ["appends", "appends", "waits"]
    second(appended(6))
    assert broker.steps[2:] == ["waits", "stored", "waits"]
    for released in broker.released:
        assert broker.responses == []
        released(None)
    assert len(broker.responses) == 1


def test_a_request_names_no_more_bad_records_than_one_batch_may() -> None:
    """A header of 61 bytes may claim 1,000 records of a wrong time, and a request holds 100,000 of them."""
    broker = Broker()
    old = forms.batch_bytes(b"", 1000, attributes=GZIP, base_ms=-(2**63), max_ms=-(2**63))
    broker.produce(*[old] * 200)
    assert broker.failures == [ErrorCode.invalid_timestamp] * 200
    ((body,),) = broker.responses
    message = b"the newest timestamp of the batch"
    # One text for each batch, and one for each record that is named: at least one of each batch.
    assert body.count(message) == 200 + 1000 + 199


def test_a_request_without_batches_is_answered() -> None:
    broker = Broker()
    broker.produce()
    produce(
        broker.context, ProduceRequest(1, 0, None, (ProduceTopic("t", None, ()),)), broker.responses.append
    )
    assert len(broker.responses) == 2


def test_a_defect_refuses_one_batch_of_a_request_that_has_waited() -> None:
    """No caller is left to answer the request."""
    broker = Broker()
    broker.produce(batch(GZIP), batch(0))
    broker.log.append = lambda *_, **__: 1 / 0
    broker.unpacks.pop()(BatchError("corrupt", "it is cut off"))
    assert broker.failures == [ErrorCode.corrupt_message, ErrorCode.unknown_server_error]
    assert len(broker.responses) == 1
    with pytest.raises(ZeroDivisionError):
        broker.produce(batch(0))
    assert len(broker.responses) == 1, "its caller answers"


def outcomes(draw: Callable[[Any], Any], broker: Broker, given_back: list[int]) -> None:
    """One outcome of what the request waits for."""
    waiting = [each for each in (broker.unpacks, broker.replies, broker.appended, broker.released) if each]
    callbacks = draw(st.sampled_from(waiting))
    fails = draw(st.booleans())
    # Redis and the coordinator answer in order, replicas may not.
    done = callbacks.pop(draw(st.integers(0, len(callbacks) - 1)) if callbacks is broker.released else 0)
    if callbacks is broker.unpacks:
        done(BatchError("corrupt", "it is cut off") if fails else unpacked(given_back))
    elif callbacks is broker.replies:
        done(AddReply(ErrorCode.not_coordinator if fails else ErrorCode.none))
    elif callbacks is broker.appended:
        done(WritesRefused("Redis is full") if fails else appended(5))
    else:
        done(NotEnoughReplicasAfterAppend("too few replicas") if fails else None)


@given(data=st.data())
def test_random_outcomes(data: st.DataObject) -> None:
    """Whatever happens, a request is answered once, its batches are appended in their order, and nothing that
    it has taken is kept.
    """
    broker = Broker()
    broker.log.waits_for_replicas = data.draw(st.booleans())
    kinds = data.draw(st.lists(st.sampled_from([0, GZIP, TRANSACTIONAL, GZIP | TRANSACTIONAL]), max_size=4))
    acks = data.draw(st.sampled_from([1, -1]))
    given_back: list[int] = []
    broker.produce(*[batch(kind, sequence) for sequence, kind in enumerate(kinds)], acks=acks)
    while broker.unpacks or broker.replies or broker.appended or broker.released:
        assert not broker.responses
        assert len(broker.unpacks) <= 1, "the batches after one that waits for memory have not begun"
        outcomes(data.draw, broker, given_back)
    ((body,),) = broker.responses
    assert len(body) > len(kinds) * 20
    for at_once in (False, True):
        # Transactional batches are in the order of the coordinator's replies.
        in_order = [each for each in broker.order if bool(kinds[each] & TRANSACTIONAL) is at_once]
        assert in_order == sorted(in_order)
    assert all(size == len(PLAIN) for size in given_back)
    held = [step for step in broker.steps if step in ("holds back", "resumed")]
    assert held in ([], ["holds back", "resumed"])
    assert bool(held) == any(kind & GZIP for kind in kinds)
    assert broker.steps.count("stored") <= 1
