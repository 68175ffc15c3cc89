"""The quota of each client, and throttle times, on a clock of the test's own."""

from __future__ import annotations

import pytest

from korvet.quotas.entities import entity_of
from korvet.quotas.limits import Limit, Limits
from korvet.quotas.throttle import SAMPLE_MS, ClientQuotas, Meter, MutationsExceeded, most_bytes_of_window

NOW_MS = 5_000_000.0
PRODUCED = "producer_byte_rate"
# From the most to the least specific: each one applies if none before it exists.
ORDER = [
    ({"user": "alice", "client-id": "app"}, ("alice", "app")),
    ({"user": "alice", "client-id": None}, ("alice", "app")),
    ({"user": "alice"}, ("alice", "")),
    ({"user": None, "client-id": "app"}, ("alice", "app")),
    ({"user": None, "client-id": None}, ("alice", "app")),
    ({"user": None}, ("alice", "")),
    ({"client-id": "app"}, ("", "app")),
    ({"client-id": None}, ("", "app")),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_most_particular_quota_counts(first):
    quotas = {
        (entity_of(names), PRODUCED): float(rate) for rate, (names, _) in enumerate(ORDER) if rate >= first
    }
    limits = Limits(quotas)
    assert limits.of("alice", "app") == {PRODUCED: Limit(float(first), (PRODUCED, *ORDER[first][1]))}


def test_who_has_no_quota():
    quotas = {
        (entity_of({"user": "alice", "client-id": "app"}), PRODUCED): 1.0,
        (entity_of({"ip": "127.0.0.1"}), "connection_creation_rate"): 1.0,
    }
    limits = Limits(quotas)
    assert limits.of("alice", "other") == {}
    assert limits.of("bob", "app") == {}
    assert limits.are_for_clients
    assert not Limits({(entity_of({"ip": None}), "connection_creation_rate"): 1.0}).are_for_clients


def test_keys_are_looked_for_one_by_one():
    limits = Limits(
        {
            (entity_of({"user": "alice"}), PRODUCED): 1.0,
            (entity_of({"client-id": None}), "request_percentage"): 50.0,
        }
    )
    assert limits.of("alice", "app").keys() == {PRODUCED, "request_percentage"}


def test_a_window_is_ten_whole_samples_at_first():
    meter = Meter()
    meter.add(10_000, NOW_MS)
    assert meter.wait_ms(1000, NOW_MS) == 0
    meter.add(500, NOW_MS)
    assert meter.wait_ms(1000, NOW_MS) == 500
    # The current sample makes the window longer.
    assert meter.wait_ms(1000, NOW_MS + 400) == 100
    assert meter.wait_ms(1000, NOW_MS + 500) == 0


def test_after_the_wait_the_rate_is_kept():
    meter, now_ms = Meter(), NOW_MS
    sent = 0
    while now_ms < NOW_MS + 120_000:
        meter.add(3000, now_ms)
        sent += 3000
        now_ms += max(meter.wait_ms(1000, now_ms), 1)
    assert 0.9 < sent / 120_000 < 1.25


# (time in ms, bytes) of requests, and the throttle times of Kafka 4.4.
KAFKA = [
    (
        1000.0,
        [
            (0, 1127),
            (50, 9000),
            (900, 1127),
            (950, 1127),
            (1000, 1127),
            (2100, 5000),
            (10_999, 1127),
            (11_000, 1127),
            (11_899, 1127),
            (11_949, 1127),
            (12_100, 1127),
            (24_000, 12_000),
        ],
        [0, 77, 354, 1431, 3508, 8408, 8636, 9762, 9990, 11_067, 635, 2000],
    ),
    (
        333.5,
        [(5, 4000), (999, 1), (1004, 1), (1005, 1), (6000, 500), (12_003, 0), (12_004, 0), (12_005, 0)],
        [1994, 1003, 1001, 2003, 2507, 1504, 0, 0],
    ),
    # 50 producers share a quota of 1,000 bytes per second: the last one waits for 46 s.
    (
        1000.0,
        [(8 * n, 1127) for n in range(50)],
        [0] * 8 + [1127 * n - 10_000 - 8 * (n - 1) for n in range(9, 51)],
    ),
]


@pytest.mark.parametrize(("rate", "requests", "throttle_ms"), KAFKA)
def test_throttle_times_are_those_of_kafka(quotas, rate, requests, throttle_ms):
    limit = Limit(rate, (PRODUCED, "", "app"))
    assert [quotas.produced(limit, size, NOW_MS + at) for at, size in requests] == throttle_ms


def test_samples_are_forgotten():
    meter = Meter()
    for second in range(5):
        meter.add(100, NOW_MS + second * SAMPLE_MS)
    meter.forget(NOW_MS + 10_999)
    assert meter.used == 500
    meter.forget(NOW_MS + 11_000)
    assert meter.used == 400
    meter.forget(NOW_MS + 60_000)
    assert meter.used == 0
    assert meter.wait_ms(1, NOW_MS + 60_000) == 0


@pytest.fixture
def quotas() -> ClientQuotas:
    return ClientQuotas()


LIMIT = Limit(1000.0, ("consumer_byte_rate", "alice", ""))


def test_what_exceeds_the_quota_is_not_given_and_not_counted(quotas):
    assert quotas.consumed(LIMIT, 9000, NOW_MS) == (0, True)
    assert quotas.consumed(LIMIT, 2000, NOW_MS) == (1000, False)
    assert quotas.consumed(LIMIT, 1000, NOW_MS) == (0, True)


def test_what_exceeds_a_whole_window_passes_after_an_idle_one(quotas):
    assert quotas.consumed(LIMIT, 50_000, NOW_MS) == (40_000, True)
    assert quotas.consumed(LIMIT, 50_000, NOW_MS + 1) == (89_999, False)
    assert quotas.consumed(LIMIT, 50_000, NOW_MS + 40_000) == (40_000, True)
    assert most_bytes_of_window(LIMIT) == 10_000
    assert most_bytes_of_window(Limit(2.0**62, LIMIT.sharers)) == 2**31 - 1


def test_work_is_a_share_of_the_time_and_costs_a_second_at_most(quotas):
    limit = Limit(10.0, ("request_percentage", "", "app"))
    assert quotas.worked(limit, 1.0, NOW_MS) == 0
    assert quotas.worked(limit, 0.05, NOW_MS) == 500
    assert quotas.worked(limit, 5.0, NOW_MS) == 1000


def test_what_was_used_stays_used_after_a_change(quotas):
    values = {(entity_of({"user": "alice"}), PRODUCED): 1000.0}
    quotas.replace(values)
    quotas.replace(dict(values))
    assert quotas.active
    limit = quotas.of("alice", "app")[PRODUCED]
    assert quotas.produced(limit, 11_000, NOW_MS) == 1000
    quotas.replace({(entity_of({"user": "alice"}), PRODUCED): 500.0})
    assert quotas.produced(quotas.of("alice", "x")[PRODUCED], 0, NOW_MS) == 12_000
    quotas.replace({})
    assert not quotas.active
    assert quotas.of("alice", "app") == {}


def test_clients_that_have_gone_are_forgotten(quotas):
    for number in range(5000):
        quotas.produced(Limit(1.0, (PRODUCED, "", str(number))), 1, NOW_MS + number * 20)
    assert len(quotas._meters) < 2000


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> float:
        return self.now_ms


def test_mutations_are_refused_once_permits_are_owed(quotas):
    clock, limit = Clock(), Limit(2.0, ("controller_mutation_rate", "alice", ""))

    def request(*counts: int, strict: bool = True) -> int:
        mutations = quotas.mutations(limit, clock, strict=strict)
        for count in counts:
            mutations.count(count)
        return mutations.wait_ms

    # The bucket starts with one window: 22 permits; a request that begins with one left is served.
    assert request(20, 1, 5) == 0
    with pytest.raises(MutationsExceeded):
        request(1)
    assert request(1, strict=False) == 2500
    clock.now_ms += 2000
    refused = quotas.mutations(limit, clock, strict=True)
    with pytest.raises(MutationsExceeded):
        refused.count(1)
    assert refused.wait_ms == 500
    clock.now_ms += 500
    assert request(1) == 0
    clock.now_ms += 3_600_000
    assert request(22, 1) == 0
    with pytest.raises(MutationsExceeded):
        request(1)


def test_the_least_rates_make_the_longest_times(quotas):
    least = 5e-324
    values = {"request_percentage": least, "controller_mutation_rate": least}
    quotas.replace({(entity_of({"user": "alice"}), key): value for key, value in values.items()})
    limits = quotas.of("alice", "app")
    assert quotas.worked(limits["request_percentage"], 0.1, NOW_MS) == 1000
    mutations = quotas.mutations(limits["controller_mutation_rate"], lambda: NOW_MS, strict=False)
    mutations.count(1)
    assert mutations.wait_ms == 2**31 - 1


def test_an_address_has_a_quota_in_any_spelling():
    limits = Limits({(entity_of({"ip": "2001:DB8:0:0::1"}), "connection_creation_rate"): 1.0})
    assert limits.of_address("2001:db8::1") is not None
    assert limits.of_address("2001:db8::2") is None


def test_addresses_connect_as_often_as_they_may(quotas):
    key = "connection_creation_rate"
    quotas.replace({(entity_of({"ip": "10.0.0.1"}), key): 1.0, (entity_of({"ip": None}), key): 2.0})
    assert not quotas.active
    assert [quotas.connected("10.0.0.1", NOW_MS) for _ in range(12)] == [0] * 10 + [1000] * 2
    assert [quotas.connected("10.0.0.2", NOW_MS) for _ in range(21)] == [0] * 20 + [500]
    quotas.replace({(entity_of({"ip": "10.0.0.1"}), key): 1.0})
    assert quotas.connected("10.0.0.2", NOW_MS) == 0
