"""Pages: who may read which, in which format, and what is counted."""

from __future__ import annotations

import asyncio
import gzip
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from korvet.admin.access import Access
from korvet.admin.endpoint import AdminEndpoint, livez
from korvet.admin.http import Request, Response, text_response
from korvet.admin.metrics_page import MetricsPage, prefers_open_metrics
from korvet.config.settings import Config
from korvet.metrics.family import NO_LABELS, Samples
from korvet.metrics.histogram import Histogram
from korvet.observe.registry import Registry
from tests.support.families import all_families

if TYPE_CHECKING:
    from collections.abc import Iterator

ADMIN_REQUESTS, COLLECTOR_FAILURES, LOOP_LAG, SCRAPE_SECONDS = (
    all_families()[f"korvet_{name}"]
    for name in (
        "admin_requests_total",
        "collector_failures_total",
        "event_loop_lag_seconds",
        "scrape_duration_seconds",
    )
)
OPEN, CLOSED = Access.of(Config()), Access.of(Config(admin_token="t"))


def asked(page: str, access: Access = OPEN, method: str = "GET", **fields: str) -> Response:
    return asyncio.run(endpoint().answer(access, Request(method, page, fields)))


def registry() -> Registry:
    made = Registry()
    made.add([("lag", lambda: [Samples(LOOP_LAG, [(NO_LABELS, Histogram())])])])
    return made


def endpoint() -> AdminEndpoint:
    return AdminEndpoint({"/livez": livez, "/metrics": MetricsPage(registry()).answer})


@pytest.mark.parametrize(
    ("page", "access", "fields", "status"),
    [
        ("/livez", OPEN, {}, 200),
        ("/livez", CLOSED, {}, 200),
        ("/metrics", OPEN, {}, 200),
        ("/metrics", CLOSED, {}, 401),
        ("/metrics", CLOSED, {"authorization": "Bearer x"}, 401),
        ("/metrics", CLOSED, {"authorization": "Bearer t"}, 200),
        ("/", OPEN, {}, 404),
        ("/", CLOSED, {}, 401),
        ("/livez/", OPEN, {}, 404),
    ],
)
def test_who_may_read_which_page(page: str, access: Access, fields: dict[str, str], status: int) -> None:
    response = asked(page, access, **fields)
    assert response.status == status
    assert (("WWW-Authenticate", 'Bearer realm="korvet"') in response.fields) == (status == 401)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
def test_nothing_can_be_changed(method: str) -> None:
    response = asked("/livez", method=method)
    assert response.status is HTTPStatus.METHOD_NOT_ALLOWED
    assert ("Allow", "GET, HEAD") in response.fields


@pytest.mark.parametrize(
    ("method", "page", "fields", "status"),
    [
        ("POST", "/do", {"authorization": "Bearer t"}, 200),
        ("POST", "/do", {}, 401),
        ("GET", "/do", {"authorization": "Bearer t"}, 404),
        ("DELETE", "/do", {"authorization": "Bearer t"}, 404),
        ("POST", "/livez", {"authorization": "Bearer t"}, 405),
    ],
)
async def test_actions_have_a_method_and_need_the_token(
    method: str, page: str, fields: dict[str, str], status: int
) -> None:
    async def do(request: Request) -> Response:
        return text_response(HTTPStatus.OK, request.method)

    served = AdminEndpoint({"/livez": livez}, {("POST", "/do"): do})
    assert served.most_body_bytes > 0
    assert endpoint().most_body_bytes == 0
    response = await served.answer(CLOSED, Request(method, page, fields))
    assert response.status == status
    (samples,) = served.collect()
    assert dict(samples.rows) == {ADMIN_REQUESTS.text(page, status): 1}


async def test_requests_are_counted() -> None:
    served = endpoint()
    for page in ("/livez", "/livez", "/x", "/y"):
        await served.answer(OPEN, Request("GET", page))
    (samples,) = served.collect()
    assert dict(samples.rows) == {ADMIN_REQUESTS.text("/livez", 200): 2, ADMIN_REQUESTS.text("", 404): 2}


@pytest.mark.parametrize(
    ("accept", "open_metrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", True),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            True,
        ),
        ("application/openmetrics-text;q=0", False),
    ],
)
def test_formats_are_chosen_as_the_client_prefers(accept: str, open_metrics: bool) -> None:
    assert prefers_open_metrics(accept) == open_metrics
    response = asked("/metrics", accept=accept)
    text = b"".join(response.body).decode()
    parse: Any = parse_open_metrics if open_metrics else parse_text
    assert {family.name for family in parse(text)} >= {"korvet_event_loop_lag_seconds"}
    assert response.content_type.startswith("application/openmetrics-text" if open_metrics else "text/plain")


def test_pages_are_compressed_on_request() -> None:
    plain = b"".join(asked("/metrics").body)
    packed = asked("/metrics", **{"accept-encoding": "deflate, gzip"})
    assert ("Content-Encoding", "gzip") in packed.fields
    assert gzip.decompress(b"".join(packed.body)) == plain


def test_a_collector_that_fails_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Iterator[Samples]:
        yield Samples(SCRAPE_SECONDS, [(NO_LABELS, 1)])
        raise RuntimeError("broken collector")

    made = Registry()
    made.add([("broken", broken), *[("lag", lambda: [Samples(LOOP_LAG, [(NO_LABELS, Histogram())])])]])
    with pytest.raises(ValueError, match="already"):
        made.add([("lag", broken)])
    found = {samples.family: dict(samples.rows) for samples in made.collect()}
    assert set(found) == {SCRAPE_SECONDS, LOOP_LAG, COLLECTOR_FAILURES}
    assert found[COLLECTOR_FAILURES] == {
        COLLECTOR_FAILURES.text("broken"): 1,
        COLLECTOR_FAILURES.text("lag"): 0,
    }
    assert "broken collector" in caplog.text


def test_rows_that_fail_do_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def rows() -> Iterator[tuple[str, int]]:
        yield ADMIN_REQUESTS.text("/livez", 200), 1
        raise RuntimeError("broken rows")

    made = Registry()
    made.add(
        [
            ("broken", lambda: [Samples(ADMIN_REQUESTS, rows()), SCRAPE_SECONDS.single(2)]),
            ("lag", lambda: [Samples(LOOP_LAG, [(NO_LABELS, Histogram())])]),
        ]
    )
    response = asyncio.run(MetricsPage(made).answer(Request("GET", "/metrics")))
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse_text(b"".join(response.body).decode())
        for sample in family.samples
    }
    assert found["korvet_admin_requests_total", "/livez", "200"] == 1
    assert found["korvet_scrape_duration_seconds",] == 2
    assert found["korvet_event_loop_lag_seconds_count",] == 0
    assert found["korvet_collector_failures_total", "broken"] == 1
    assert "broken rows" in caplog.text


def test_pages_that_fail_are_counted() -> None:
    async def broken(request: Request) -> Response:
        raise RuntimeError(request.path)

    served = AdminEndpoint({"/metrics": broken})
    with pytest.raises(RuntimeError):
        asyncio.run(served.answer(OPEN, Request("GET", "/metrics")))
    (samples,) = served.collect()
    assert dict(samples.rows) == {ADMIN_REQUESTS.text("/metrics", 500): 1}


def test_other_work_runs_while_a_large_page_is_made() -> None:
    rows = [(ADMIN_REQUESTS.text(f"/{number}", 200), number) for number in range(100_000)]
    made = Registry()
    made.add([("many", lambda: [Samples(ADMIN_REQUESTS, rows)])])
    page = MetricsPage(made)

    async def test() -> int:
        turns = 0
        making = asyncio.ensure_future(page.answer(Request("GET", "/metrics", {"accept-encoding": "gzip"})))
        while not making.done():
            turns += 1
            await asyncio.sleep(0)
        assert len(gzip.decompress(b"".join(making.result().body)).splitlines()) > len(rows)
        return turns

    # A page of this size takes 20 ms at least, in slices of 1 ms.
    assert asyncio.run(test()) > 10
