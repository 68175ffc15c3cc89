"""From polls to the rows of the view: rates between two polls, sums by topic and group. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec

from korvet.cli import lag
from korvet.cli.lag import Commit, Lag
from korvet.cli.top.facts import Place
from korvet.metrics.families import brokers, groups, partitions, requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from korvet.cli.top.facts import Facts
    from korvet.cli.top.metrics import Metrics

_Key = tuple[str, ...]


class BrokerRow(msgspec.Struct, frozen=True):
    """A broker. Rates are per second; None is unknown."""

    node_id: int
    address: str
    controller: bool
    leaders: int
    groups: int | None
    records_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    requests_per_s: float | None
    connections: int | None


class TopicRow(msgspec.Struct, frozen=True):
    """A topic. Rates are per second; None is unknown."""

    topic: str
    partitions: int
    under_replicated: int
    leaderless: int
    records_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    size_bytes: int | None
    records: int | None
    oldest_ms: int | None
    """Age of the oldest record."""
    internal: bool


class GroupRow(msgspec.Struct, frozen=True):
    """A group. Rates are per second; None is unknown."""

    group: str
    state: str
    protocol: str
    members: int | None
    partitions: int
    record_lag: int | None
    lag_ms: int | None
    commits_per_s: float | None


class Report(msgspec.Struct, frozen=True):
    """What the view shows."""

    cluster_id: str
    now_ms: int
    brokers: tuple[BrokerRow, ...]
    topics: tuple[TopicRow, ...]
    groups: tuple[GroupRow, ...]
    notes: tuple[str, ...]


def report(before: Facts | None, now: Facts) -> Report:
    """Returns the rows of a poll; `before` is an earlier poll, for rates."""
    pages = _Pages(before, now)
    return Report(
        cluster_id=now.cluster_id,
        now_ms=now.now_ms,
        brokers=tuple(_brokers(now, pages)),
        topics=tuple(_topics(now, pages)),
        groups=tuple(_groups(before, now, pages)),
        notes=now.notes,
    )


class _Pages:
    """The metrics of two polls, added up over all admin endpoints."""

    def __init__(self, before: Facts | None, now: Facts) -> None:
        self.now = list(now.metrics.values())
        # Rates need the page of the same endpoint.
        self._pairs = (
            []
            if before is None
            else [(before.metrics[n], now.metrics[n]) for n in now.metrics if n in before.metrics]
        )
        self._seconds = 0.0 if before is None else now.at_s - before.at_s

    def sums(self, name: str, *labels: str) -> dict[_Key, float]:
        return _added(page.sums(name, *labels) for page in self.now)

    def rates(self, name: str, *labels: str) -> dict[_Key, float]:
        """Rates of counters. A counter that fell, because its broker has restarted, has no rate."""
        if self._seconds <= 0:
            return {}
        return _added(
            self._risen(old.sums(name, *labels), new.sums(name, *labels)) for old, new in self._pairs
        )

    def _risen(self, old: Mapping[_Key, float], new: Mapping[_Key, float]) -> dict[_Key, float]:
        # A counter that was not there began with 0: its topic or group is new.
        risen = {key: value - old.get(key, 0.0) for key, value in new.items()}
        return {key: value / self._seconds for key, value in risen.items() if value >= 0}

    def by_broker(self, now: Facts, name: str, *, rate: bool) -> dict[int, float]:
        """The samples of each broker without the label `topic`, or their rates."""
        found: dict[int, float] = {}
        pairs = self._pairs if rate else [(page, page) for page in self.now]
        for old, new in pairs:
            owner = _owner(now, new)
            before, after = old.brokers(name, owner), new.brokers(name, owner)
            if not rate:
                found |= after
            elif self._seconds > 0:
                found |= {
                    node_id: (value - before[node_id]) / self._seconds
                    for node_id, value in after.items()
                    if node_id in before and value >= before[node_id]
                }
        return found


def _added(parts: Iterable[Mapping[_Key, float]]) -> dict[_Key, float]:
    total: dict[_Key, float] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = total.get(key, 0.0) + value
    return total


def _owner(now: Facts, page: Metrics) -> int | None:
    """The broker of a page: a broker reports the partitions that it leads."""
    for topic, index in page.sums(partitions.CURRENT_OFFSET.name, "topic", "partition"):
        partition = now.partitions.get(Place(topic, int(index)))
        if partition is not None:
            return partition.leader
    return None


def _brokers(now: Facts, pages: _Pages) -> Iterable[BrokerRow]:
    counters = (brokers.MESSAGES_IN, brokers.BYTES_IN, brokers.BYTES_OUT, requests.REQUESTS)
    rates = {family.name: pages.by_broker(now, family.name, rate=True) for family in counters}
    connections = pages.by_broker(now, brokers.CONNECTIONS.name, rate=False)
    led: dict[int | None, list[Place]] = defaultdict(list)
    for place, partition in now.partitions.items():
        led[partition.leader].append(place)
    coordinators = Counter(group.coordinator for group in now.groups.values())
    for node_id, address in sorted(now.brokers.items()):
        yield BrokerRow(
            node_id=node_id,
            address=str(address),
            controller=node_id == now.controller,
            leaders=len(led[node_id]),
            groups=coordinators[node_id],
            records_per_s=_first(_appended(now, led[node_id]), rates[brokers.MESSAGES_IN.name].get(node_id)),
            bytes_in_per_s=rates[brokers.BYTES_IN.name].get(node_id),
            bytes_out_per_s=rates[brokers.BYTES_OUT.name].get(node_id),
            requests_per_s=rates[requests.REQUESTS.name].get(node_id),
            connections=_whole(connections.get(node_id)),
        )


def _topics(now: Facts, pages: _Pages) -> Iterable[TopicRow]:
    places: dict[str, list[Place]] = defaultdict(list)
    for place in now.partitions:
        places[place.topic].append(place)
    messages = pages.rates(brokers.MESSAGES_IN.name, "topic")
    current, oldest = (
        pages.sums(partitions.CURRENT_OFFSET.name, "topic"),
        pages.sums(partitions.OLDEST_OFFSET.name, "topic"),
    )
    bytes_in, bytes_out = (
        pages.rates(brokers.BYTES_IN.name, "topic"),
        pages.rates(brokers.BYTES_OUT.name, "topic"),
    )
    log_sizes = pages.sums(brokers.LOG_SIZE.name, "topic")
    for topic, of_topic in sorted(places.items()):
        key = (topic,)
        states = [now.partitions[place] for place in of_topic]
        sizes = [now.sizes[place] for place in of_topic if place in now.sizes]
        times = [now.oldest_ms[place] for place in of_topic if place in now.oldest_ms]
        yield TopicRow(
            topic=topic,
            partitions=len(of_topic),
            under_replicated=sum(each.in_sync < each.replicas for each in states),
            leaderless=sum(each.leader is None for each in states),
            records_per_s=_first(_appended(now, of_topic), messages.get(key)),
            bytes_in_per_s=bytes_in.get(key),
            bytes_out_per_s=bytes_out.get(key),
            size_bytes=sum(sizes) if sizes else _whole(log_sizes.get(key)),
            records=_whole(current[key] - oldest[key]) if key in current and key in oldest else None,
            oldest_ms=max(0, now.now_ms - min(times)) if times else None,
            internal=any(each.internal for each in states),
        )


def _appended(now: Facts, places: Iterable[Place]) -> float | None:
    """Records per second by counts in Redis; None unless all partitions are counted."""
    if not now.appended:
        return None
    rate = 0.0
    for place in places:
        if place not in now.appended:
            return None
        records, seconds = now.appended[place]
        rate += records / seconds
    return rate


def _groups(before: Facts | None, now: Facts, pages: _Pages) -> Iterable[GroupRow]:
    sums, waits = pages.sums(groups.SUM_LAG.name, "group"), pages.sums(groups.MAX_LAG_SECONDS.name, "group")
    commits = pages.rates(groups.COMMITS.name, "consumergroup")
    for name, group in sorted(now.groups.items()):
        total = lag.total((Commit(*place, offset) for place, offset in group.commits.items()), now.lags)
        records = total.records if isinstance(total, Lag) else _whole(sums.get((name,)))
        waiting_s = waits.get((name,))
        waited_ms = None if waiting_s is None else _whole(waiting_s * 1000)
        yield GroupRow(
            group=name,
            state=group.state,
            protocol=group.protocol,
            members=group.members,
            partitions=len(group.commits),
            record_lag=records,
            lag_ms=total.waiting_ms if total is not None else waited_ms,
            commits_per_s=commits.get((name,), _moved(before, now, name)),
        )


def _moved(before: Facts | None, now: Facts, name: str) -> float | None:
    """Commits per second that changed an offset between the polls, at least."""
    old = None if before is None else before.groups.get(name)
    if before is None or old is None or now.at_s <= before.at_s:
        return None
    changed = sum(offset != old.commits.get(place) for place, offset in now.groups[name].commits.items())
    return changed / (now.at_s - before.at_s)


def _first(counted: float | None, reported: float | None) -> float | None:
    """What is counted in Redis includes entries of native writers; brokers report it every few seconds."""
    return reported if counted is None else counted


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else int(value)
