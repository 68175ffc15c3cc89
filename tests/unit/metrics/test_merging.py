"""One page of metrics from those of several brokers."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from korvet.metrics import merging
from korvet.metrics.declared import declare
from korvet.metrics.exposition import rendered
from korvet.metrics.family import NO_LABELS, Family, MetricType, Samples
from korvet.metrics.histogram import Histogram
from korvet.metrics.merging import merged
from tests.support.families import all_families

LAG = Family("some_lag", MetricType.GAUGE, "Lag.", ("group",), by_one_broker=True)
BYTES = Family("some_bytes_total", MetricType.COUNTER, "Bytes # HELP of all.", ("topic",))
TIMES = Family("some_seconds", MetricType.HISTOGRAM, "Times.")
FILES = Family("some_files", MetricType.GAUGE, "Files.")


def page(*, open_metrics: bool, **groups: int) -> str:
    samples = [
        Samples(LAG, [(LAG.text(name), lag) for name, lag in groups.items()]),
        Samples(BYTES, [(BYTES.text('a b{}" # HELP'), 5)]),
        Samples(TIMES, [(NO_LABELS, Histogram())]),
        Samples(FILES, [(NO_LABELS, 7)]),
    ]
    return "".join(rendered(samples, open_metrics=open_metrics))


@pytest.mark.parametrize("open_metrics", [False, True])
def test_series_of_each_broker_are_told_apart(open_metrics: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "declared", lambda: {LAG.name: LAG})
    own = "".join(rendered([Samples(FILES, [(NO_LABELS, 1)])], open_metrics=open_metrics))
    pages = {
        1: page(open_metrics=open_metrics, a=1, b=2),
        2: page(open_metrics=open_metrics, b=3, c=4),
    }
    text = "".join(merged(own, pages, open_metrics=open_metrics))
    parse: Any = parse_open_metrics if open_metrics else parse_text
    families = list(parse(text))
    assert len({family.name for family in families}) == len(families) == 4
    found = [
        (sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    ]
    topic = ("topic", 'a b{}" # HELP')
    assert sorted(found) == sorted(
        [
            ("some_files", (), 1),
            *(("some_files", (("node_id", node),), 7) for node in "12"),
            *(("some_bytes_total", (("node_id", node), topic), 5) for node in "12"),
            *(("some_seconds_sum", (("node_id", node),), 0) for node in "12"),
            *(("some_seconds_count", (("node_id", node),), 0) for node in "12"),
            *(("some_lag", (("group", group),), lag) for group, lag in (("a", 1), ("b", 2), ("c", 4))),
        ]
    )


@pytest.mark.parametrize("by_one", [False, True])
@pytest.mark.parametrize("char", ["\r", "\x0b", "\x1c", "\x85", "\u2028"])
def test_only_a_newline_ends_a_line(char: str, by_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "declared", lambda: {LAG.name: LAG} if by_one else {})
    name = f"a{char}b"
    text = "".join(merged("", {1: page(open_metrics=False, **{name: 5})}, open_metrics=False))
    expected = LAG.text(name) if by_one else LAG.text(name).replace("{", '{node_id="1",')
    assert f"some_lag{expected} 5" in text.split("\n")


def test_a_page_without_brokers_is_the_own_one() -> None:
    own = page(open_metrics=True, a=1)
    assert "".join(merged(own, {}, open_metrics=True)) == own


def test_families_are_declared_once_and_named_as_their_kind_asks() -> None:
    assert len(all_families()) >= 200
    with pytest.raises(ValueError, match="korvet_broker_up is declared twice"):
        declare("korvet_broker_up", "Another one.")
    for name, family in all_families().items():
        assert name.endswith("_total") == (family.kind is MetricType.COUNTER), name
        assert name.endswith("_info") == (family.kind is MetricType.INFO), name
        assert family.help.endswith("."), name
        assert not {"le", "quantile", "node_id"} & set(family.labels) or name == "korvet_broker_up", name
