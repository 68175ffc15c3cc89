"""The requests of each API, in the families of Kafka's brokers and in our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.api.common.request_counts import ApiCounts
from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType, Samples, label_text
from korvet.metrics.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.api.common.request_counts import RequestCounts
    from korvet.log.counts import LogCounts, TopicCounts
    from korvet.observe.led_partitions import LedPartitions

_TIMES: Final = "kafka_network_requestmetrics_"
_REQUESTS: Final = declare(
    f"{_TIMES}requests_total",
    "Requests by API and version. FetchConsumer is another name of Fetch, as in Kafka: add only one of them.",
    "request",
    "version",
    kind=MetricType.COUNTER,
)
_ERRORS: Final = declare(
    f"{_TIMES}errors_total",
    "Errors in responses by API: one for each partition, topic or group that has one. Kafka's NONE is left "
    "out.",
    "request",
    "error",
    kind=MetricType.COUNTER,
)
_PARTS: Final = {
    "total": declare(
        f"{_TIMES}totaltimems",
        "Time of requests from their arrival to the answer, in ms. Quantiles are over the broker's whole "
        "life.",
        "request",
        kind=MetricType.SUMMARY,
    ),
    "held": declare(
        f"{_TIMES}requestqueuetimems",
        "Before the request is taken, because of earlier requests, backpressure or quotas, in ms; of every "
        "16th request of Produce, Fetch, OffsetCommit and heartbeats, of all others.",
        "request",
        kind=MetricType.SUMMARY,
    ),
    "local": declare(
        f"{_TIMES}localtimems",
        "The handler's work, in ms, of the same requests.",
        "request",
        kind=MetricType.SUMMARY,
    ),
    "remote": declare(
        f"{_TIMES}remotetimems",
        "Waits for Redis, records, other members of a group, replicas or memory, in ms, of the same "
        "requests.",
        "request",
        kind=MetricType.SUMMARY,
    ),
    "sent": declare(
        f"{_TIMES}responsesendtimems",
        "Time from the answer to its write, which waits for earlier answers of the connection, in ms, of the "
        "same requests.",
        "request",
        kind=MetricType.SUMMARY,
    ),
}
"""By attribute of ApiCounts."""
_REDPANDA_SECONDS: Final = declare(
    "redpanda_kafka_request_latency_seconds",
    "korvet_request_seconds of Produce and Fetch under the name that dashboards for Redpanda use.",
    "redpanda_request",
    kind=MetricType.HISTOGRAM,
)
_REDPANDA_BYTES: Final = declare(
    "redpanda_kafka_request_bytes_total",
    "Bytes of record batches produced and consumed, under the name that dashboards for Redpanda use.",
    "redpanda_topic",
    "redpanda_request",
    kind=MetricType.COUNTER,
)

# Kafka also reports consumers' fetches under this name; korvet's brokers fetch nothing from each other.
_OTHER_NAMES: Final = {"Fetch": "FetchConsumer"}
# The names of requests in the families of Redpanda.
_REDPANDA: Final = {"Produce": "produce", "Fetch": "consume"}


def collect(counted: RequestCounts, logs: LogCounts, led: LedPartitions) -> Iterator[Samples]:
    """See Collector. APIs that nobody has used are left out."""
    used = [each for each in counted.by_key.values() if any(each.versions) or each.errors]
    named = [(name, each) for each in used for name in _names(each)]
    yield Samples(
        _REQUESTS,
        [
            (_REQUESTS.text(name, version), count)
            for name, each in named
            for version, count in enumerate(each.versions)
            if count
        ],
    )
    errors = [
        (_ERRORS.text(each.name, error.name.upper()), count)
        for each in used
        for error, count in sorted(each.errors.items())
    ]
    yield Samples(_ERRORS, errors)
    times = [(label_text([("request", name)]), each) for name, each in named if any(each.versions)]
    for part, family in _PARTS.items():
        yield Samples(family, [(text, _in_ms(getattr(each, part))) for text, each in times])
    yield from ApiCounts.samples_of([(label_text([("request", each.name)]), each) for each in used])
    yield from _redpanda(used, logs.shown(led.shown))


def _redpanda(used: list[ApiCounts], traffic: list[tuple[str, TopicCounts]]) -> Iterator[Samples]:
    shown = [(_REDPANDA[each.name], each) for each in used if each.name in _REDPANDA]
    family = _REDPANDA_SECONDS
    yield Samples(family, [(family.text(name), each.total) for name, each in shown])
    family = _REDPANDA_BYTES
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
