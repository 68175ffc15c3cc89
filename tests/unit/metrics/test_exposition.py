"""The renderer, read back by the parsers of the official client library."""

from __future__ import annotations

import math

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from korvet.metrics.exposition import rendered
from korvet.metrics.family import NO_LABELS, Family, MetricType, Samples
from korvet.metrics.histogram import Histogram

READS = Family("korvet_reads_total", MetricType.COUNTER, 'Reads of "cold" records.', ("topic",))
DEPTH = Family("korvet_depth", MetricType.GAUGE, "Depth\\of the queue.\nNow.")
TIMES = Family("korvet_times_seconds", MetricType.HISTOGRAM, "Times.", ("api",))
QUANTILES = Family("korvet_times_ms", MetricType.SUMMARY, "Times.", ("api",))
BUILD = Family("korvet_build_info", MetricType.INFO, "The release.", ("version",))


def some_times() -> Histogram:
    made = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        made.observe(value)
    return made


def page(*, open_metrics: bool) -> str:
    times = some_times()
    samples = [
        Samples(READS, [(READS.text('a"b\\c\nd'), 3), (READS.text("plain"), 2.5)]),
        Samples(DEPTH, [(NO_LABELS, math.inf)]),
        Samples(TIMES, [(TIMES.text("Produce"), times)]),
        Samples(QUANTILES, [(QUANTILES.text("Produce"), times)]),
        Samples(BUILD, [(BUILD.text("1.0"), 1)]),
    ]
    return "".join(rendered(samples, open_metrics=open_metrics))


@pytest.mark.parametrize("open_metrics", [False, True])
def test_parsers_read_what_was_rendered(open_metrics: bool) -> None:
    parse = parse_open_metrics if open_metrics else parse_text
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(page(open_metrics=open_metrics))
        for sample in family.samples
    }
    assert found["korvet_reads_total", (("topic", 'a"b\\c\nd'),)] == 3
    assert found["korvet_reads_total", (("topic", "plain"),)] == 2.5
    assert found["korvet_depth", ()] == math.inf
    assert found["korvet_build_info", (("version", "1.0"),)] == 1
    assert found["korvet_times_seconds_bucket", (("api", "Produce"), ("le", "0.1"))] == 2
    assert found["korvet_times_seconds_bucket", (("api", "Produce"), ("le", "+Inf"))] == 4
    assert found["korvet_times_seconds_count", (("api", "Produce"),)] == 4
    assert found["korvet_times_seconds_sum", (("api", "Produce"),)] == pytest.approx(7.65)
    assert found["korvet_times_ms", (("api", "Produce"), ("quantile", "0.5"))] == pytest.approx(0.1)


@pytest.mark.parametrize("open_metrics", [False, True])
def test_kinds_and_help_survive(open_metrics: bool) -> None:
    parse = parse_open_metrics if open_metrics else parse_text
    families = {family.name: family for family in parse(page(open_metrics=open_metrics))}
    assert families["korvet_reads"].type == "counter"
    assert families["korvet_depth"].documentation == "Depth\\of the queue.\nNow."
    assert families["korvet_times_seconds"].type == "histogram"
    assert families["korvet_times_ms"].type == "summary"


def test_a_histogram_is_written_as_it_was_at_one_moment() -> None:
    times = Histogram(tuple(float(bound) for bound in range(1, 2_000)))
    times.observe(0.5)
    pieces = rendered([Samples(TIMES, [(TIMES.text("Produce"), times)])], open_metrics=True)
    text = ""
    for piece in pieces:
        text += piece
        # Requests go on between two pieces.
        times.observe(0.5)
    assert text.count("\n") > 2_000
    (family,) = parse_open_metrics(text)
    assert {sample.value for sample in family.samples if sample.name.endswith(("_bucket", "_count"))} == {2}


def test_quantiles_without_values_are_not_numbers() -> None:
    assert math.isnan(Histogram().quantile(0.5))


def test_quantiles_beyond_the_last_bound_are_the_last_bound() -> None:
    assert some_times().quantile(0.999) == 1.0
