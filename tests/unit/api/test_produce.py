"""The steps of a Produce request, without Redis."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.api.produce import produce
from korvet.api.producing.unpacking import Unpacked
from korvet.records.compression import compress
from korvet.records.produce_request import ProducePartition, ProduceRequest, ProduceTopic
from korvet.storage.log.counts import TopicCounts
from korvet.storage.log.values import Appended
from korvet.storage.topic import Topic
from korvet.topics.configs import policy_of
from korvet.topics.directory import Place
from korvet.transactions.messages import AddReply
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Callable

GZIP, TRANSACTIONAL = 1, 16
PLAIN = forms.records_bytes([forms.Record(b"k", b"v", forms.BASE_MS)])


class Broker:
    """Lets the test decide when a batch is decompressed, and what the coordinator replies."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.unpack: Callable[[Any], None] | None = None
        self.reply: Callable[[AddReply], None] | None = None
        self.responses: list[Any] = []
        self.failures: list[ErrorCode] = []
        self.appended: list[Callable[[Appended], None]] = []
        self.released: list[Callable[[None], None]] = []
        topic = Topic(name="t", topic_id=None, partitions=1)  # type: ignore[arg-type]
        counts = TopicCounts()
        state = SimpleNamespace(counts=counts)
        self.log: Any = SimpleNamespace(
            topic=topic,
            partition=0,
            append=self.append,
            state=state,
            missing_replicas=None,
            waits_for_replicas=False,
            await_released=self.await_released,
        )
        place = Place(topic, self.log, policy_of({"message.timestamp.before.max.ms": str(2**62)}, {}), False)
        unpacking = SimpleNamespace(at_once=lambda *_: None, soon=self.soon)
        client = SimpleNamespace(
            access=None,
            closed=False,
            pipelines=False,
            refused_batches=None,
            hold_back=lambda: lambda: self.steps.append("resumed"),
        )
        self.context: Any = SimpleNamespace(
            api_version=9,
            client_id="unit",
            client=client,
            trace=None,
            unpacked_bytes=0,
            stored=lambda: self.steps.append("stored"),
            failed=lambda error, topic: self.failures.append(error),
            services=SimpleNamespace(
                topics=SimpleNamespace(place=lambda key, index: place),
                unpacking=unpacking,
                transactions=SimpleNamespace(add=self.add),
                clock_ns=lambda: forms.BASE_MS * 1_000_000,
            ),
        )

    def soon(self, data: Any, header: Any, most_bytes: int, done: Callable[[Any], None]) -> None:
        self.steps.append("unpacks")
        self.unpack = done

    def add(self, request: Any, done: Callable[[AddReply], None]) -> None:
        self.steps.append("asks")
        self.reply = done

    def append(
        self, received: Any, producer: Any, check: Any, done: Callable[[Appended], None], **_: object
    ) -> bool:
        self.steps.append("appends")
        self.appended.append(done)
        return False

    def await_released(self, end: int, timeout_ms: int, done: Callable[[None], None]) -> None:
        self.steps.append("waits")
        self.released.append(done)

    def produce(self) -> None:
        section, attributes = compress(GZIP, PLAIN), GZIP | TRANSACTIONAL
        data = forms.batch_bytes(section, 1, attributes=attributes, producer=(7, 0, 0))
        topic = ProduceTopic("t", None, (ProducePartition(0, data),))
        produce(self.context, ProduceRequest(1, 1000, "id", (topic,)), self.responses.append)


@pytest.mark.parametrize("absent", [False, True])
def test_a_batch_is_appended_as_soon_as_its_transaction_is_known(absent: bool) -> None:
    """Between the coordinator's reply and the append, the transaction could end."""
    broker = Broker()
    broker.produce()
    assert broker.steps == ["unpacks"]
    assert broker.unpack is not None
    given_back: list[int] = []
    budget: Any = SimpleNamespace(give_back=given_back.append)
    broker.unpack(Unpacked(PLAIN, budget, len(PLAIN)))
    assert broker.steps == ["unpacks", "asks"]
    assert broker.reply is not None
    broker.reply(AddReply(ErrorCode.none, frozenset({("t", 0)} if absent else ())))
    if absent:
        assert broker.steps[2:] == ["resumed"]
        assert given_back == [len(PLAIN)]
        assert broker.failures == [ErrorCode.invalid_txn_state]
        assert len(broker.responses) == 1
    else:
        assert broker.steps[2:] == ["appends", "resumed"]
        assert not broker.responses


def test_records_that_only_replicas_lack_no_longer_count_as_on_their_way() -> None:
    """A late replica holds up no producer that asks for none."""
    broker = Broker()
    broker.log.waits_for_replicas = True
    data = forms.batch_bytes(PLAIN, 1)
    topic = ProduceTopic("t", None, (ProducePartition(0, data), ProducePartition(1, data)))
    produce(broker.context, ProduceRequest(-1, 1000, None, (topic,)), broker.responses.append)
    first, second = broker.appended
    first(Appended(5, 0, 5, 0, 0, False, -1))
    assert broker.steps == ["appends", "appends", "waits"]
    second(Appended(6, 0, 6, 0, 0, False, -1))
    assert broker.steps[2:] == ["waits", "stored", "waits"]
    for released in broker.released:
        assert broker.responses == []
        released(None)
    assert len(broker.responses) == 1


def test_a_request_names_no_more_bad_records_than_one_batch_may() -> None:
    """A header of 61 bytes may claim 1,000 records of a wrong time, and a request holds 100,000 of them."""
    broker = Broker()
    old = forms.batch_bytes(b"", 1000, attributes=GZIP, base_ms=-(2**63), max_ms=-(2**63))
    partitions = tuple(ProducePartition(index, old) for index in range(200))
    request = ProduceRequest(1, 1000, None, (ProduceTopic("t", None, partitions),))
    produce(broker.context, request, broker.responses.append)
    assert broker.failures == [ErrorCode.invalid_timestamp] * 200
    ((body,),) = broker.responses
    message = b"the newest timestamp of the batch"
    # One text for each batch, and one for each record that is named: at least one of each batch.
    assert body.count(message) == 200 + 1000 + 199
