"""Client quotas: altered, described, persisted, and enforced with throttle times and muted connections."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from tests.api.asking import KEYS, Client, versions
from tests.api.batches import Pair, batch, gzipped
from tests.api.test_fetch_sessions import Session
from tests.support.polling import until
from tests.support.servers import KorvetServer
from tests.support.wire import ConnectionClosed, RawConnection, advertised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CLIENT = {"client-id": "api"}
ANONYMOUS = {"user": "ANONYMOUS"}
DEADLINE_S = 20.0
EXACT, SPECIFIED = 0, 2


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    with KorvetServer() as found:
        yield found


@pytest.fixture
def client(server: KorvetServer) -> Iterator[Client]:
    asking = Client("127.0.0.1", server.port, advertised("127.0.0.1", server.port))
    with asking.raw:
        yield asking


@pytest.fixture
def another(server: KorvetServer) -> Iterator[Client]:
    asking = Client("127.0.0.1", server.port, advertised("127.0.0.1", server.port))
    with asking.raw:
        yield asking


@pytest.fixture(autouse=True)
def no_quota_is_left(server: KorvetServer) -> Iterator[None]:
    yield
    server.redis.delete("{korvet}:quotas")
    server.redis.hincrby("{korvet}:cluster", "security", 1)
    asking = Client("127.0.0.1", server.port, advertised("127.0.0.1", server.port))
    with asking.raw:
        assert asking("DescribeClientQuotas", 1).entries == ()


def entry(names: dict[str, str | None], **values: float | None) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in names.items()],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()
        ],
    }


def alter(client: Client, *entries: dict[str, Any], version: int = 1, **fields: Any) -> list[ErrorCode]:
    answer = client("AlterClientQuotas", version, entries=list(entries), **fields)
    return [each.error_code for each in answer.entries]


def described(client: Client, *components: tuple[str, int, str | None], version: int = 1) -> dict[Any, Any]:
    answer = client(
        "DescribeClientQuotas",
        version,
        components=[
            {"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components
        ],
    )
    assert answer.error_code is ErrorCode.none
    return {
        tuple((part.entity_type, part.entity_name) for part in each.entity): {
            value.key: value.value for value in each.values
        }
        for each in answer.entries
    }


@versions("AlterClientQuotas")
def test_every_version_alters_and_describes(client: Client, version: int) -> None:
    both = {"user": "alice", "client-id": None}
    assert (
        alter(
            client,
            entry(both, producer_byte_rate=1024.0, request_percentage=12.5),
            entry({"ip": "127.0.0.1"}, connection_creation_rate=7.0),
            version=version,
        )
        == [ErrorCode.none] * 2
    )
    key = (("client-id", None), ("user", "alice"))
    found = described(client, ("user", EXACT, "alice"), version=version)
    assert found == {key: {"producer_byte_rate": 1024.0, "request_percentage": 12.5}}
    assert described(client, ("ip", SPECIFIED, None), version=version) == {
        (("ip", "127.0.0.1"),): {"connection_creation_rate": 7.0}
    }
    assert alter(client, entry(both, producer_byte_rate=None), validate_only=True) == [ErrorCode.none]
    assert described(client, ("user", EXACT, "alice")) == found
    assert alter(client, entry(both, producer_byte_rate=None, request_percentage=1.0)) == [ErrorCode.none]
    assert described(client, ("user", EXACT, "alice")) == {key: {"request_percentage": 1.0}}


@pytest.mark.parametrize(
    "keys",
    [
        ["producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate", "request_percentage"],
        ["consumer_byte_rate", "request_percentage", "producer_byte_rate"],
        ["consumer_byte_rate", "controller_mutation_rate", "producer_byte_rate"],
        ["controller_mutation_rate", "request_percentage"],
    ],
)
def test_quotas_are_in_the_order_of_kafka(client: Client, keys: list[str]) -> None:
    for key in sorted(keys):
        assert alter(client, entry({"user": "frank"}, **{key: 5.0})) == [ErrorCode.none]
    (found,) = described(client, ("user", EXACT, "frank")).values()
    assert [*found] == keys


def test_each_entity_is_refused_on_its_own(client: Client) -> None:
    answer = client(
        "AlterClientQuotas",
        1,
        entries=[
            entry({"user": "bob"}, producer_byte_rate=5.0),
            entry({"user": "carol"}, producer_byte_rate=-5.0),
            entry({"user": "dave"}, nonsense=5.0),
            entry({}, producer_byte_rate=5.0),
        ],
    )
    assert [(each.error_code, each.error_message) for each in answer.entries] == [
        (ErrorCode.none, None),
        (ErrorCode.invalid_request, "Quota producer_byte_rate must be greater than 0"),
        (ErrorCode.invalid_request, "Invalid configuration key nonsense"),
        (ErrorCode.invalid_request, "Invalid empty client quota entity"),
    ]
    assert described(client).keys() == {(("user", "bob"),)}
    twice = entry({"user": "erin"}, producer_byte_rate=5.0)
    assert alter(client, twice, twice) == [ErrorCode.invalid_request]


def test_filters_that_make_no_sense(client: Client) -> None:
    for component, error in (
        ({"entity_type": "user", "match_type": EXACT, "match": None}, ErrorCode.invalid_request),
        ({"entity_type": "group", "match_type": EXACT, "match": "g"}, ErrorCode.unsupported_version),
    ):
        answer = client("DescribeClientQuotas", 1, components=[component])
        assert (answer.error_code, answer.entries) == (error, None)


def waited_ms(answer: Any) -> float:
    return answer.throttle_time.total_seconds() * 1000


def produce(
    client: Client,
    topic: str,
    value: bytes,
    version: int = 12,
    make: Callable[[Sequence[Pair]], bytes] = batch,
) -> Any:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": make([(b"k", value)])}]}]
    return client("Produce", version, acks=-1, timeout=10_000, topic_data=data)


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = f"quotas-{abs(hash(request.node.name))}"
    made = {"name": name, "num_partitions": 1, "replication_factor": 1}
    client("CreateTopics", 7, topics=[made], timeout=10_000)
    return name


def test_a_producers_bytes_count_as_they_are_decompressed(client: Client, topic: str) -> None:
    assert alter(client, entry(ANONYMOUS, producer_byte_rate=100_000.0)) == [ErrorCode.none]
    assert waited_ms(produce(client, topic, bytes(900_000), make=gzipped)) == 0
    assert waited_ms(produce(client, topic, bytes(200_000), make=gzipped)) > 0
    assert alter(client, entry(ANONYMOUS, producer_byte_rate=None)) == [ErrorCode.none]


@pytest.mark.parametrize("names", [CLIENT, {"user": None, "client-id": None}], ids=str)
def test_a_producer_is_throttled(client: Client, topic: str, names: dict[str, str | None]) -> None:
    assert waited_ms(produce(client, topic, bytes(20_000))) == 0
    assert alter(client, entry(names, producer_byte_rate=10_000.0)) == [ErrorCode.none]
    began = time.monotonic()
    for version in (8, 9, 12):
        told = produce(client, topic, bytes(39_000), version)
        assert told.responses[0].partition_responses[0].error_code is ErrorCode.none
    told_ms = waited_ms(told)
    assert 0 < told_ms < 2000
    # The response arrives at once; the broker reads the next request after the throttle time.
    produce(client, topic, b"")
    assert time.monotonic() - began >= told_ms / 1000
    assert alter(client, entry(names, producer_byte_rate=None)) == [ErrorCode.none]
    assert waited_ms(produce(client, topic, bytes(100_000))) == 0


def fetch(client: Client, topic: str, max_bytes: int = 10_000_000) -> Any:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": max_bytes}
    asked = [{"topic": topic, "partitions": [part]}]
    return client("Fetch", 12, session_epoch=-1, max_bytes=max_bytes, min_bytes=1, max_wait=500, topics=asked)


def got(answer: Any) -> int:
    return sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)


def test_a_consumer_is_throttled(client: Client, another: Client, topic: str) -> None:
    for _ in range(3):
        produce(another, topic, bytes(6000))
    whole = got(fetch(another, topic))
    assert whole > 18_000
    assert alter(another, entry(CLIENT, consumer_byte_rate=2000.0)) == [ErrorCode.none]
    # A client may use a window of ten seconds at once, but not exceed it.
    first = fetch(client, topic)
    assert (got(first), waited_ms(first)) == (whole, 0)
    began = time.monotonic()
    refused = fetch(client, topic, 1)
    assert refused.responses == ()
    assert 0 < waited_ms(refused) < 2300
    client("Metadata", 12, topics=[])
    assert time.monotonic() - began >= waited_ms(refused) / 1000


def test_what_exceeds_a_window_reaches_the_consumer(client: Client, another: Client, topic: str) -> None:
    produce(another, topic, bytes(12_000))
    # A quota other than in the previous test, whose use counts for ten seconds.
    assert alter(another, entry(ANONYMOUS, consumer_byte_rate=1000.0)) == [ErrorCode.none]
    told = fetch(client, topic)
    assert got(told) > 12_000
    assert waited_ms(told) > 2000


def test_a_session_of_a_consumer_that_is_throttled(client: Client, another: Client, topic: str) -> None:
    """A withheld response's news is in the next one. An empty response opens no session."""
    sent = [produce(another, topic, bytes(6000)) for _ in range(2)]
    assert sent[1].responses[0].partition_responses[0].error_code is ErrorCode.none
    session = Session(client)
    assert len(session.fetch((topic, 0, 0))) == 1
    # Every request exceeds the quota: each response is empty, and the session continues.
    assert alter(another, entry(CLIENT, request_percentage=0.0001)) == [ErrorCode.none]
    gone_on = session.answer((topic, 0, 0))
    assert (gone_on.session_id, gone_on.responses, gone_on.error_code) == (session.id, (), 0)
    assert waited_ms(gone_on) > 0
    opening = Session(client)
    refused = opening.answer((topic, 0, 0))
    assert (refused.session_id, refused.responses, refused.error_code) == (0, (), 0)
    lost = Session(client)
    lost.id, lost.epoch = session.id, 99
    assert lost.answer().error_code is ErrorCode.invalid_fetch_session_epoch
    alter(another, entry(CLIENT, request_percentage=None))
    (part,) = session.fetch()
    assert len(part.records) > 12_000


def test_requests_are_throttled_whatever_they_ask(client: Client) -> None:
    assert alter(client, entry(CLIENT, request_percentage=0.0001)) == [ErrorCode.none]
    began = time.monotonic()
    told = client("Metadata", 12, topics=[])
    assert 0 < waited_ms(told) <= 1000
    alter(client, entry(CLIENT, request_percentage=None))
    assert time.monotonic() - began >= waited_ms(told) / 1000
    assert waited_ms(client("Metadata", 12, topics=[])) == 0


@pytest.mark.parametrize(("version", "names"), [(5, CLIENT), (7, ANONYMOUS)])
def test_who_makes_too_many_partitions_has_to_wait(
    client: Client, another: Client, version: int, names: dict[str, str | None]
) -> None:
    assert alter(another, entry(names, controller_mutation_rate=1.0 + version)) == [ErrorCode.none]

    def create(name: str, partitions: int) -> tuple[ErrorCode, float]:
        made = {"name": f"{name}-{version}", "num_partitions": partitions, "replication_factor": 1}
        told = client("CreateTopics", version, topics=[made], timeout=10_000, validate_only=True)
        return told.topics[0].error_code, waited_ms(told)

    # More than a window's permits in one request. Versions without an error for that wait at once.
    most = 11 * (1 + version)
    error, wait_ms = create("first", most + 2 * (1 + version))
    assert error is ErrorCode.none
    assert (wait_ms > 0) == (version < 6)
    if version >= 6:
        error, wait_ms = create("second", 1)
        assert error is ErrorCode.throttling_quota_exceeded
        assert 0 < wait_ms <= 2000
        grown = client("CreatePartitions", 3, topics=[{"name": "first-7", "count": 1}], timeout=1)
        assert grown.results[0].error_code is ErrorCode.unknown_topic_or_partition
        error, wait_ms = create("second", 1)
        assert (error, wait_ms) == (ErrorCode.none, 0)


def test_an_address_that_connects_too_often_is_cut_off(server: KorvetServer, client: Client) -> None:
    quota = entry({"ip": "127.0.0.1"}, connection_creation_rate=1.0)
    assert alter(client, quota) == [ErrorCode.none]

    def is_cut_off() -> bool:
        with RawConnection("127.0.0.1", server.port, DEADLINE_S) as raw:
            try:
                return not raw.works()
            except ConnectionClosed:
                return True

    assert not is_cut_off()
    assert any(is_cut_off() for _ in range(20))
    assert alter(client, entry({"ip": "127.0.0.1"}, connection_creation_rate=None)) == [ErrorCode.none]


def test_others_are_not_throttled(client: Client, topic: str) -> None:
    assert (
        alter(
            client,
            entry({"client-id": "other"}, producer_byte_rate=1.0, request_percentage=0.001),
            entry({"user": "other"}, producer_byte_rate=1.0),
        )
        == [ErrorCode.none] * 2
    )
    for _ in range(3):
        assert waited_ms(produce(client, topic, bytes(1000))) == 0


def test_quotas_of_elsewhere_are_in_force_soon(server: KorvetServer, client: Client, topic: str) -> None:
    field = b'[[["client-id","api"]],"producer_byte_rate"]'
    server.redis.hset("{korvet}:quotas", field, b"1000.0")
    server.redis.hset("{korvet}:quotas", b"rubbish", b"1.0")
    server.redis.hincrby("{korvet}:cluster", "security", 1)
    until(lambda: waited_ms(produce(client, topic, bytes(11_000))) > 0, DEADLINE_S, "the quota is in force")
    assert "rubbish" in server.tail(10**5)
    assert KEYS["AlterClientQuotas"] == 49
