"""Metrics that a class declares."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.metrics import declared
from korvet.metrics.counted import Counted, counter, counters, gauge, histogram, part, shown
from korvet.metrics.declared import declare
from korvet.metrics.exposition import rendered
from korvet.metrics.family import MetricType, label_text


@pytest.fixture(autouse=True)
def own_declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The families of a test are not those of a broker."""
    monkeypatch.setattr(declared, "_DECLARED", {})


def made() -> Any:
    routes = declare("routes_total", "Routes.", "kind", "route", kind=MetricType.COUNTER)

    class Link(Counted):
        @property
        @shown("links_open", "Open links.", "kind")
        def open(self) -> int:
            return self.opened - self.lost

        opened = counter("opened_total", "Opened links.", "kind")
        lost = counter("lost_total", "Lost links.", "kind")
        direct = part(routes, "direct")
        other = part(routes, "other")
        waiting = gauge("waiting", "Waiting calls.", "kind")
        took = histogram("took_seconds", "Time.", "kind", bounds=(1.0,))
        errors = counters("errors_total", "Errors.", "kind", "error")

        def __init__(self) -> None:
            super().__init__()
            self.opened += 1
            self.errors["z"] += 1
            self.errors["a"] += 2

    return Link


def test_objects_count_for_themselves() -> None:
    link = made()
    one, other = link(), link()
    one.lost += 4
    one.took.observe(0.5)
    assert (one.lost, other.lost, one.took.count, other.took.count) == (4, 0, 1, 0)
    assert (one.errors, other.errors) == ({"z": 1, "a": 2}, {"z": 1, "a": 2})


def test_samples_follow_the_declarations() -> None:
    link = made()
    one, other = link(), link()
    one.direct, other.lost = 3, 1
    rows = [(label_text([("kind", name)]), each) for name, each in (("read", one), ("write", other))]
    lines = "".join(rendered(link.samples_of(rows), open_metrics=False)).split("\n")
    assert [line for line in lines if line and not line.startswith(("#", "took"))] == [
        'links_open{kind="read"} 1',
        'links_open{kind="write"} 0',
        'opened_total{kind="read"} 1',
        'opened_total{kind="write"} 1',
        'lost_total{kind="read"} 0',
        'lost_total{kind="write"} 1',
        'routes_total{kind="read",route="direct"} 3',
        'routes_total{kind="read",route="other"} 0',
        'routes_total{kind="write",route="direct"} 0',
        'routes_total{kind="write",route="other"} 0',
        'waiting{kind="read"} 0',
        'waiting{kind="write"} 0',
        'errors_total{kind="read",error="a"} 2',
        'errors_total{kind="read",error="z"} 1',
        'errors_total{kind="write",error="a"} 2',
        'errors_total{kind="write",error="z"} 1',
    ]
    assert 'took_seconds_bucket{kind="read",le="1.0"} 0' in lines


def test_a_subclass_has_the_numbers_of_its_base() -> None:
    class Faster(made()):  # type: ignore[misc]
        saved = counter("saved_total", "Saved calls.")

    link = Faster()
    link.saved += link.opened
    shown_families = [family.name for family, _ in link.samples()]
    assert (shown_families[:2], shown_families[-1]) == (["links_open", "opened_total"], "saved_total")


def test_a_family_without_objects_is_on_the_page() -> None:
    link = made()
    page = "".join(rendered(link.samples_of([]), open_metrics=False))
    assert page.count("# TYPE") == 7


def test_a_family_names_the_module_that_declares_it() -> None:
    made()
    assert {family.declared_in for family in declared.declared().values()} == {__name__}
    with pytest.raises(ValueError, match="waiting is declared twice"):
        declare("waiting", "Another one.")
