"""Requests of clients: numbers, errors, bytes, and where their time goes."""

from __future__ import annotations

from typing import Final

from korvet.metrics.family import Family, Kind

_TIMES: Final = "kafka_network_requestmetrics_"

REQUESTS: Final = Family(
    f"{_TIMES}requests_total",
    Kind.COUNTER,
    "Requests by API and version. FetchConsumer is another name of Fetch, as in Kafka: add only one of them.",
    ("request", "version"),
)
ERRORS: Final = Family(
    f"{_TIMES}errors_total",
    Kind.COUNTER,
    "Errors in responses by API: one for each partition, topic or group that has one. Kafka's NONE is left "
    "out.",
    ("request", "error"),
)
TOTAL_MS: Final = Family(
    f"{_TIMES}totaltimems",
    Kind.SUMMARY,
    "Time of requests from their arrival to the answer, in ms. Quantiles are over the broker's whole life.",
    ("request",),
)
QUEUE_MS: Final = Family(
    f"{_TIMES}requestqueuetimems",
    Kind.SUMMARY,
    "Before the request is taken, because of earlier requests, backpressure or quotas, in ms; of every 16th "
    "request of Produce, Fetch, OffsetCommit and heartbeats, of all others.",
    ("request",),
)
LOCAL_MS: Final = Family(
    f"{_TIMES}localtimems", Kind.SUMMARY, "The handler's work, in ms, of the same requests.", ("request",)
)
REMOTE_MS: Final = Family(
    f"{_TIMES}remotetimems",
    Kind.SUMMARY,
    "Waits for Redis, records, other members of a group, replicas or memory, in ms, of the same requests.",
    ("request",),
)
SEND_MS: Final = Family(
    f"{_TIMES}responsesendtimems",
    Kind.SUMMARY,
    "Time from the answer to its write, which waits for earlier answers of the connection, in ms, of the "
    "same requests.",
    ("request",),
)
THROTTLED: Final = Family(
    "korvet_throttled_requests_total",
    Kind.COUNTER,
    "Requests that were answered with a throttle time for a quota.",
    ("request",),
)
THROTTLE_SECONDS: Final = Family(
    "korvet_throttle_seconds_total", Kind.COUNTER, "Sum of these throttle times in seconds.", ("request",)
)
SECONDS: Final = Family(
    "korvet_request_seconds",
    Kind.HISTOGRAM,
    "Time of requests from their arrival to the answer, in seconds.",
    ("request",),
)
REDPANDA_SECONDS: Final = Family(
    "redpanda_kafka_request_latency_seconds",
    Kind.HISTOGRAM,
    "korvet_request_seconds of Produce and Fetch under the name that dashboards for Redpanda use.",
    ("redpanda_request",),
)
REDPANDA_BYTES: Final = Family(
    "redpanda_kafka_request_bytes_total",
    Kind.COUNTER,
    "Bytes of record batches produced and consumed, under the name that dashboards for Redpanda use.",
    ("redpanda_topic", "redpanda_request"),
)
