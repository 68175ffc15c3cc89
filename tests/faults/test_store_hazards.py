"""Hazards of Redis under a producer's load: other writers, lost libraries, cut links, one after the other."""

from __future__ import annotations

import itertools

import pytest

from tests.support.admin import create_topic
from tests.support.confluent import read_all
from tests.support.load import LoadProducer
from tests.support.polling import until

pytestmark = [pytest.mark.faults, pytest.mark.clients]

TOPIC = "hazards"
STREAM = f"korvet:{TOPIC}:0"
ROUNDS = 24


@pytest.fixture
def server(own_korvet):
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 1)
    return server


def native_entry(redis):
    redis.xadd(STREAM, {"native": "1"})


def burst_of_native_entries(redis):
    pipeline = redis.pipeline(transaction=True)
    for _ in range(300):
        pipeline.xadd(STREAM, {"native": "1"})
    pipeline.execute()


# In one step: the producer continues during it.
ADD_IN_THE_FUTURE = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][1]
return redis.call('XADD', KEYS[1], string.match(last, '%d+') + 300 .. '-0', 'native', '1')
"""


def native_entry_of_the_future(redis):
    redis.eval(ADD_IN_THE_FUTURE, 1, STREAM)


def lost_library(redis):
    redis.function_flush()


def lost_scripts(redis):
    redis.script_flush()


def cut_links(redis):
    for client in redis.client_list():
        if client["name"].startswith("korvet-"):
            redis.client_kill_filter(_id=client["id"])


HAZARDS = [
    native_entry,
    lost_library,
    cut_links,
    burst_of_native_entries,
    lost_scripts,
    native_entry_of_the_future,
]


@pytest.mark.parametrize("idempotent", [True, False])
def test_no_acknowledged_record_is_missing_or_doubled(server, idempotent):
    load = LoadProducer(server.bootstrap, TOPIC, "load", idempotent=idempotent)
    for hazard in itertools.islice(itertools.cycle(HAZARDS), ROUNDS):
        goal = len(load.acknowledged) + 300
        until(lambda goal=goal: len(load.acknowledged) >= goal, 30, "the producer gets on")
        hazard(server.redis)
    load.finish()
    assert load.failed == {}
    log = read_all(server.bootstrap, TOPIC)
    ours = {read.offset: read.record.value for read in log if (read.record.value or b"").startswith(b"load-")}
    assert all(ours.get(offset) == load.value(number) for number, offset in load.acknowledged.items())
    numbers = [int(value.rpartition(b"-")[2]) for _, value in sorted(ours.items())]
    if idempotent:
        assert numbers == list(range(load.sent))
    else:
        assert set(numbers) == set(range(load.sent))
    assert server.redis.exists(f"{{{STREAM}}}:w") == 0
