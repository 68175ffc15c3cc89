"""What a dashboard consists of, and the expressions that panels share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `targets`: expressions with the legend of their series."""

    title: str
    about: str
    targets: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    alarming: float | None = None
    """The value from which a single figure is red."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard. `variables`: names with the query of their values."""

    name: str
    title: str
    about: str
    variables: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]


def figure(
    title: str, about: str, expression: str, unit: str = "short", alarming: float | None = None
) -> Panel:
    """Returns a panel with a single figure."""
    return Panel(title, about, ((expression, ""),), unit, "stat", 4, alarming)


RATE: Final = "[$__rate_interval]"
BROKER: Final = 'instance=~"$broker"'
TOPIC: Final = 'topic=~"$topic"'
GROUP: Final = 'consumergroup=~"$group"'
JOB: Final = 'job="korvet"'
NAMED: Final = "{{consumergroup}}"
EACH: Final = "{{instance}} {{node_id}}"
# FetchConsumer is another name of Fetch.
NO_ALIAS: Final = f'request!="FetchConsumer",{BROKER}'
OF_BOTH: Final = f"{GROUP},{TOPIC}"
TRAFFIC: Final = "kafka_server_brokertopicmetrics"


def rate(name: str, matchers: str = BROKER) -> str:
    """Returns the expression of a counter's increase per second."""
    return f"rate({name}{{{matchers}}}{RATE})"


def quantile(part: float, name: str, by: str, matchers: str = BROKER) -> str:
    """Returns the expression of a histogram's quantile."""
    return f"histogram_quantile({part}, sum by (le, {by}) ({rate(f'{name}_bucket', matchers)}))"


def all_topics(name: str) -> str:
    """Returns the rate of a counter of Kafka's over all topics: the series without a topic."""
    per_second = rate(f"{TRAFFIC}_{name}_total", f'topic="",{BROKER}')
    return f"sum({per_second})"
