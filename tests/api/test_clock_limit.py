"""A producer of more than 1,024 records per ms and partition is slowed down: all its batches get in."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from tests.api.asking import KEYS, Client
from tests.api.batches import batch
from tests.support.wire import advertised, decode_response

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Iterator

    from tests.support.servers import KorvetServer

LEAD_MS = 5
BATCH_MS = 4
RECORDS = BATCH_MS << 10


@pytest.fixture
def server(own_korvet: Callable[..., KorvetServer]) -> KorvetServer:
    return own_korvet("--set", f"append.lead.max.ms={LEAD_MS}")


@pytest.fixture
def client(server: KorvetServer) -> Iterator[Client]:
    asking = Client(server.host, server.port, advertised(server.host, server.port))
    with asking.raw:
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        asking("CreateTopics", 7, timeout=10_000, topics=[topic])
        yield asking


@pytest.mark.parametrize("sequences", [False, True], ids=["plain", "idempotent"])
def test_requests_in_flight_wait_for_the_clock(client: Client, *, sequences: bool) -> None:
    producer_id = client(
        "InitProducerId", 4, transaction_timeout=10_000, producer_id=-1, producer_epoch=-1
    ).producer_id
    pairs = [(None, b"")] * RECORDS
    count = 60
    began = time.monotonic()
    for number in range(count):
        producer = (producer_id, 0, number * RECORDS) if sequences else (-1, -1, -1)
        data = [{"index": 0, "records": batch(pairs, producer=producer)}]
        client.send("Produce", 9, acks=-1, timeout=10_000, topic_data=[{"name": "t", "partition_data": data}])
    answers = [decode_response(KEYS["Produce"], 9, client.raw.receive()).message for _ in range(count)]
    taken_ms = (time.monotonic() - began) * 1000
    parts = [answer.responses[0].partition_responses[0] for answer in answers]
    assert {part.error_code for part in parts} == {ErrorCode.none}
    assert all(
        after.base_offset - before.base_offset >= RECORDS for before, after in itertools.pairwise(parts)
    )
    assert taken_ms >= (count - 1) * BATCH_MS - LEAD_MS


def test_the_response_names_the_time_to_wait(server: KorvetServer, client: Client) -> None:
    """As with a quota: the broker reads the next request after the throttle time."""

    def produced() -> float:
        data = [{"name": "t", "partition_data": [{"index": 0, "records": batch()}]}]
        told = client("Produce", 9, acks=-1, timeout=10_000, topic_data=data)
        assert told.responses[0].partition_responses[0].error_code is ErrorCode.none
        throttle_time: datetime.timedelta = told.throttle_time
        return throttle_time.total_seconds()

    assert produced() == 0
    ahead_ms = int(time.time() * 1000) + 900
    server.redis.xadd("korvet:t:0", {"native": "entry"}, id=f"{ahead_ms}-0")
    wait_s = produced()
    assert 0 < wait_s <= 0.9
    answered_s = time.monotonic()
    client("Metadata", 12, topics=[])
    assert time.monotonic() - answered_s >= wait_s - 0.05
    assert produced() <= wait_s / 2
