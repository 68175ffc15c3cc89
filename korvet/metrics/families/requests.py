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
    "Of the total time: before the request is taken, because of earlier requests, backpressure or quotas, "
    "in ms.",
    ("request",),
)
LOCAL_MS: Final = Family(
    f"{_TIMES}localtimems", Kind.SUMMARY, "Of the total time: the handler's work, in ms.", ("request",)
)
REMOTE_MS: Final = Family(
    f"{_TIMES}remotetimems",
    Kind.SUMMARY,
    "Of the total time: waits for Redis, records, other members of a group, replicas or memory, in ms.",
    ("request",),
)
SEND_MS: Final = Family(
    f"{_TIMES}responsesendtimems",
    Kind.SUMMARY,
    "Time from the answer to its write, which waits for earlier answers of the connection, in ms.",
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
RECEIVED_BYTES: Final = Family(
    "korvet_request_bytes_total", Kind.COUNTER, "Bytes of requests, without their lengths.", ("request",)
)
SENT_BYTES: Final = Family(
    "korvet_response_bytes_total", Kind.COUNTER, "Bytes of responses, without their lengths.", ("request",)
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
