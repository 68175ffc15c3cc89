"""What a scrape of one collector shows, as the official parser reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from korvet.metrics.declared import declared
from korvet.metrics.exposition import rendered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.metrics.family import Samples

Page: TypeAlias = dict[str, float]


def page_of(samples: Iterable[Samples]) -> Page:
    """Every sample by its name and labels, as in `name{a=1,b=2}`. Every family is declared."""
    shown = list(samples)
    assert {family.name for family, _ in shown} <= declared().keys()
    return parsed("".join(rendered(shown, open_metrics=False)))


def parsed(text: str) -> Page:
    """The samples of a page."""
    found: Page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found, key
            found[key] = sample.value
    return found
