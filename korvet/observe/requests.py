"""The requests of each API, in the families of Kafka's brokers and in our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.metrics.families import requests
from korvet.metrics.family import Samples
from korvet.metrics.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.api.common.request_counts import ApiCounts, RequestCounts
    from korvet.observe.led_partitions import LedPartitions
    from korvet.storage.log.counts import LogCounts, TopicCounts

# Kafka also reports consumers' fetches under this name; korvet's brokers fetch nothing from each other.
_OTHER_NAMES: Final = {"Fetch": "FetchConsumer"}
# The names of requests in the families of Redpanda.
_REDPANDA: Final = {"Produce": "produce", "Fetch": "consume"}


def collect(counted: RequestCounts, logs: LogCounts, led: LedPartitions) -> Iterator[Samples]:
    """See Collector. APIs that nobody has used are left out."""
    used = [each for each in counted.by_key.values() if any(each.versions) or each.errors]
    named = [(name, each) for each in used for name in _names(each)]
    yield Samples(
        requests.REQUESTS,
        [
            (requests.REQUESTS.text(name, version), count)
            for name, each in named
            for version, count in enumerate(each.versions)
            if count
        ],
    )
    errors = [
        (requests.ERRORS.text(each.name, error.name.upper()), count)
        for each in used
        for error, count in sorted(each.errors.items())
    ]
    yield Samples(requests.ERRORS, errors)
    times = [(requests.TOTAL_MS.text(name), each) for name, each in named if any(each.versions)]
    for family, part in (
        (requests.TOTAL_MS, "total"),
        (requests.QUEUE_MS, "held"),
        (requests.LOCAL_MS, "local"),
        (requests.REMOTE_MS, "remote"),
        (requests.SEND_MS, "sent"),
    ):
        yield Samples(family, [(text, _in_ms(getattr(each, part))) for text, each in times])
    yield from _ours(used)
    yield from _redpanda(used, logs.shown(led.shown))


def _ours(used: list[ApiCounts]) -> Iterator[Samples]:
    texts = [(requests.SECONDS.text(each.name), each) for each in used]
    yield Samples(requests.THROTTLED, [(text, each.throttled) for text, each in texts])
    yield Samples(requests.THROTTLE_SECONDS, [(text, each.throttled_s) for text, each in texts])
    yield Samples(requests.SECONDS, [(text, each.total) for text, each in texts])


def _redpanda(used: list[ApiCounts], traffic: list[tuple[str, TopicCounts]]) -> Iterator[Samples]:
    shown = [(_REDPANDA[each.name], each) for each in used if each.name in _REDPANDA]
    family = requests.REDPANDA_SECONDS
    yield Samples(family, [(family.text(name), each.total) for name, each in shown])
    family = requests.REDPANDA_BYTES
    rows = [(family.text(topic, "produce"), each.bytes_in) for topic, each in traffic]
    rows += [(family.text(topic, "consume"), each.bytes_out) for topic, each in traffic]
    yield Samples(family, rows)


def _names(counts: ApiCounts) -> list[str]:
    other = _OTHER_NAMES.get(counts.name)
    return [counts.name] if other is None else [counts.name, other]


def _in_ms(seconds: Histogram) -> Histogram:
    found = Histogram([bound * 1000 for bound in seconds.bounds])
    found.counts = seconds.counts
    found.sum = seconds.sum * 1000
    return found
