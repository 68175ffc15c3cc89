"""Connections cut between clients and korvet: idempotent producers without duplicates, nothing lost."""

from __future__ import annotations

import random

import pytest

from tests.support.admin import create_topic
from tests.support.confluent import producer, read_all, send
from tests.support.load import LoadConsumer, LoadProducer
from tests.support.polling import until
from tests.support.records import NOW_MS, Record

pytestmark = [pytest.mark.faults, pytest.mark.clients]

TOPIC = "cut"
CUTS = 15
CUTS_IN_FRAMES = 6


@pytest.fixture
def server(own_korvet, proxy):
    """A server that advertises the proxy's address."""
    server = own_korvet(advertise=proxy.address)
    proxy.target_port = server.port
    create_topic(proxy.address, TOPIC, 1)
    return server


@pytest.mark.parametrize("idempotent", [True, False])
def test_producer_through_cuts(server, proxy, idempotent):
    load = LoadProducer(proxy.address, TOPIC, "cut", idempotent=idempotent)
    for _ in range(CUTS):
        goal = len(load.acknowledged) + 200
        until(lambda goal=goal: len(load.acknowledged) >= goal, 30, "the producer gets on")
        proxy.cut()
    load.finish()
    assert proxy.cuts >= CUTS
    assert load.failed == {}
    check(load, idempotent)


@pytest.mark.parametrize("idempotent", [True, False])
def test_producer_cut_in_the_middle_of_frames(server, proxy, idempotent):
    """Half requests have no effect; a request whose response is lost is not written twice."""
    source = random.Random(5)
    load = LoadProducer(proxy.address, TOPIC, "cut", idempotent=idempotent)
    for round_number in range(CUTS_IN_FRAMES):
        size = source.randint(500, 40_000)
        if round_number % 2:
            proxy.cut_after(from_client_bytes=size)
        else:
            proxy.cut_after(from_server_bytes=size // 20)
        before = proxy.cuts
        proxy.cut()
        until(lambda before=before: proxy.cuts > before + 2, 30, "new connections were cut in the middle")
        proxy.cut_after()
        proxy.cut()
        goal = len(load.acknowledged) + 50
        until(lambda goal=goal: len(load.acknowledged) >= goal, 30, "the producer gets on")
    load.finish()
    assert load.failed == {}
    check(load, idempotent)


def check(load: LoadProducer, idempotent: bool) -> None:
    log = read_all(load.bootstrap, TOPIC)
    at = {read.offset: read.record.value for read in log}
    assert all(at.get(offset) == load.value(number) for number, offset in load.acknowledged.items())
    numbers = [int((read.record.value or b"").rpartition(b"-")[2]) for read in log]
    if idempotent:
        assert numbers == list(range(load.sent))
    else:
        assert set(numbers) == set(range(load.sent))


@pytest.mark.short
def test_consumers_through_cuts(server, proxy):
    """A group member reads every record once and in order, although its connections are cut all the time."""
    records = [Record(None, b"%d" % number, (), NOW_MS) for number in range(6_000)]
    offsets = send(producer(proxy.address), TOPIC, 0, records)
    # librdkafka sends FindCoordinator after a fetch on the same connection, and often several times.
    quick = {"max_partition_fetch_bytes": 20_000, "fetch_wait_max_ms": 20}
    member = LoadConsumer(proxy.address, TOPIC, "cut-group", **quick)
    while len(member.seen.values) < len(records):
        before = len(member.seen.values)
        until(lambda before=before: len(member.seen.values) > before, 30, "the consumer gets on")
        proxy.cut()
    member.close()
    assert [offset for _, offset, _ in member.seen.values] == offsets
