"""The families of requests, from counts that the test makes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from korvet import api
from korvet.api.common.request_counts import RequestCounts
from korvet.log.counts import LogCounts
from korvet.observe import requests
from korvet.protocol import registry
from tests.unit.observe.pages import Page, page_of

FETCH = 1
TIMES = "kafka_network_requestmetrics_"


def scraped() -> Page:
    """Three fetches: two are answered after 1 ms, one was held for 4 s and has waited for 2 s."""
    api.load_all()
    counted = RequestCounts(registry.registered())
    fetch = counted[FETCH]
    fetch.versions[11], fetch.versions[12] = 1, 2
    for total_s in (0.001, 0.001, 6.5):
        fetch.total.observe(total_s)
    for part, times in (
        (fetch.held, (0, 4)),
        (fetch.local, (0.001, 0.5)),
        (fetch.remote, (0, 2)),
        (fetch.sent, (0, 0.25)),
    ):
        for each_s in times:
            part.observe(each_s)
    fetch.failed(ErrorCode.offset_out_of_range)
    fetch.failed(ErrorCode.offset_out_of_range)
    logs = LogCounts()
    logs.topics["t"].bytes_out = logs.topics["hidden"].bytes_out = 70
    return page_of(requests.collect(counted, logs, SimpleNamespace(shown={"t"})))  # type: ignore[arg-type]


def test_requests_errors_and_bytes() -> None:
    page = scraped()
    for name in ("Fetch", "FetchConsumer"):
        assert page[f"{TIMES}requests_total{{request={name},version=11}}"] == 1
        assert page[f"{TIMES}requests_total{{request={name},version=12}}"] == 2
    errors = {name: value for name, value in page.items() if "errors_total" in name}
    assert errors == {f"{TIMES}errors_total{{error=OFFSET_OUT_OF_RANGE,request=Fetch}}": 2}
    assert page["redpanda_kafka_request_bytes_total{redpanda_request=consume,redpanda_topic=t}"] == 70


def test_apis_that_nobody_uses_are_left_out() -> None:
    assert not [name for name in scraped() if "Produce" in name]


def test_topics_that_the_settings_leave_out_are_not_shown() -> None:
    assert not [name for name in scraped() if "hidden" in name]


@pytest.mark.parametrize(
    ("part", "sum_ms"),
    [("requestqueue", 4000.0), ("local", 501.0), ("remote", 2000.0), ("responsesend", 250.0)],
)
def test_every_part_of_the_time_counts_the_traced_requests(part: str, sum_ms: float) -> None:
    page = scraped()
    labels = "{request=Fetch}"
    assert page[f"{TIMES}{part}timems_count{labels}"] == 2
    assert page[f"{TIMES}totaltimems_count{labels}"] == 3
    assert page[f"{TIMES}{part}timems_sum{labels}"] == pytest.approx(sum_ms)
    # One of both has waited for nothing.
    assert (page[f"{TIMES}{part}timems{{quantile=0.5,request=Fetch}}"] == 0) is (part != "local")


def test_the_total_time_is_shown_in_seconds_too() -> None:
    page = scraped()
    assert page["korvet_request_seconds_bucket{le=0.001,request=Fetch}"] == 2
    assert page["korvet_request_seconds_bucket{le=+Inf,request=Fetch}"] == 3
    for name in (
        "korvet_request_seconds_sum{request=Fetch}",
        "redpanda_kafka_request_latency_seconds_sum{redpanda_request=consume}",
    ):
        assert page[name] == pytest.approx(6.502)
