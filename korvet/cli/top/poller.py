"""Polls a cluster: by the Kafka protocol, in Redis for record counts, and at admin endpoints."""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from korvet.cli import lag
from korvet.cli.client import ClientError, Cluster
from korvet.cli.endpoints import EndpointError
from korvet.cli.lag import Commit, Lag, LagUnknown
from korvet.cli.log_requests import LATEST
from korvet.cli.top import requests
from korvet.cli.top.facts import Appended, Facts, Group, Place
from korvet.config.address import Address
from korvet.metrics.families.brokers import REFUSED_NOW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from korvet.cli.client import Bootstrap
    from korvet.cli.endpoints import Endpoint
    from korvet.cli.redis_address import RedisSource
    from korvet.cli.top.metrics import Metrics

# The longest wait for one answer. The view shows what it knows until then.
_TIMEOUT_S: Final = 5.0
# Interval of the facts that change slowly and cost more: sizes, and the oldest records.
_SLOW_INTERVAL_S: Final = 10.0
# Limits the offsets that are counted in Redis for one poll: more would take seconds.
_MOST_COUNTED: Final = 5_000


class Poller:
    """Keeps connections, and the log ends of the last poll, from which appended records are counted."""

    def __init__(self, bootstrap: Bootstrap, source: RedisSource, endpoints: Sequence[Endpoint]) -> None:
        self._bootstrap = bootstrap
        self._source = source
        self._endpoints = endpoints
        self._cluster: Cluster | None = None
        self._known: tuple[str, ...] = ()
        self._counted_s = 0.0
        self._ends: Mapping[Place, int] = {}
        self._slow_s = -_SLOW_INTERVAL_S
        self._sizes: dict[Place, int] = {}
        self._oldest: dict[Place, int] = {}

    def poll(self) -> Facts:
        """Returns what is known now. Raises ClientError if no broker answers.

        After an error, the next poll connects again, to any broker of the last successful poll.
        """
        notes: list[str] = []
        try:
            if self._cluster is None:
                servers = ",".join([self._bootstrap.servers, *self._known])
                self._cluster = Cluster(self._bootstrap._replace(servers=servers), _TIMEOUT_S)
            return self._poll(self._cluster, notes)
        except ClientError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _poll(self, cluster: Cluster, notes: list[str]) -> Facts:
        answer = cluster.metadata()
        brokers = {int(each.node_id): Address(each.host, int(each.port)) for each in answer.brokers}
        self._known = tuple(map(str, brokers.values()))
        partitions = requests.partitions_of(answer)
        at_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        slow = at_s - self._slow_s >= _SLOW_INTERVAL_S
        if slow:
            self._slow_s, self._sizes, self._oldest = at_s, {}, {}
        led: dict[int, list[Place]] = defaultdict(list)
        for place, partition in partitions.items():
            if partition.leader is not None:
                led[partition.leader].append(place)
        ends: dict[Place, int] = {}
        groups: dict[str, Group] = {}
        silent = False
        for node_id, address in brokers.items():
            asks = [
                partial(_ask_ends, ends, cluster, address, led[node_id]),
                partial(_ask_groups, groups, cluster, node_id, address),
            ]
            if slow:
                asks.append(partial(self._ask_oldest, cluster, address, led[node_id]))
                asks.append(partial(self._ask_sizes, cluster, address))
            silent |= not _ask(node_id, asks, notes)
        if silent:
            # Connections may be broken: the next poll makes new ones.
            self.close()
            self._slow_s = -_SLOW_INTERVAL_S
        facts = Facts(
            at_s=at_s,
            now_ms=now_ms,
            cluster_id=answer.cluster_id or "",
            controller=int(answer.controller_id),
            brokers=brokers,
            partitions=partitions,
            groups=groups,
            sizes=self._sizes,
            oldest_ms=self._oldest,
            metrics=self._scrape(notes.append),
        )
        lags, appended = self._count(facts, ends, notes.append)
        self._counted_s, self._ends = at_s, ends
        return replace(facts, lags=lags, appended=appended, notes=tuple(notes))

    def _ask_oldest(self, cluster: Cluster, address: Address, led: Sequence[Place]) -> None:
        oldest = requests.offsets_at(cluster, address, led, requests.OLDEST)
        self._oldest |= {place: each.timestamp_ms for place, each in oldest.items() if each.offset >= 0}

    def _ask_sizes(self, cluster: Cluster, address: Address) -> None:
        self._sizes |= requests.sizes(cluster, address)

    def _scrape(self, note: Callable[[str], None]) -> dict[str, Metrics]:
        pages: dict[str, Metrics] = {}
        for endpoint in self._endpoints:
            try:
                page = pages[endpoint.name] = endpoint.read()
            except EndpointError as error:
                note(f"admin endpoint {error}")
                continue
            for (cause,), lasts in page.sums(REFUSED_NOW.name, "cause").items():
                if lasts:
                    note(f"{endpoint.name} refuses clients: {cause}")
        return pages

    def _count(
        self, facts: Facts, ends: Mapping[Place, int], note: Callable[[str], None]
    ) -> tuple[dict[Commit, Lag], dict[Place, Appended]]:
        """Count in Redis. If that is impossible, numbers of admin endpoints have to do."""
        before = {place: offset for place, offset in self._ends.items() if place in ends}
        moved = {place: Commit(*place, offset) for place, offset in before.items() if offset != ends[place]}
        wanted = facts.commits() | set(moved.values())
        if len(wanted) > _MOST_COUNTED:
            if not facts.metrics:
                note(f"records are not counted for {len(wanted)} offsets; give --admin")
            return {}, {}
        try:
            found = lag.measure(self._source, facts.cluster_id, wanted)
        except LagUnknown as error:
            if not facts.metrics:
                note(f"records are not counted: {error}; give --redis, --data-dir or --admin")
            return {}, {}
        lags = {commit: each for commit, each in found.items() if isinstance(each, Lag)}
        faults = [str(each) for each in found.values() if not isinstance(each, Lag)]
        if faults:
            note(f"{len(faults)} offsets are not counted: {faults[0]}")
        # The records after the last poll's log end were appended between that poll and this count.
        seconds = max(time.monotonic() - self._counted_s, 0.001)
        appended = {place: Appended(0, seconds) for place in before if place not in moved}
        appended |= {
            place: Appended(lags[commit].records, seconds)
            for place, commit in moved.items()
            if commit in lags
        }
        return lags, appended


def _ask(node_id: int, asks: Sequence[Callable[[], None]], notes: list[str]) -> bool:
    """Ask a broker for several facts. One that it refuses does not keep the others. Returns whether the
    broker answers.
    """
    for ask in asks:
        try:
            ask()
        except ClientError as error:
            notes.append(f"broker {node_id}: {error}")
            if error.code is None:
                return False
    return True


def _ask_ends(ends: dict[Place, int], cluster: Cluster, address: Address, led: Sequence[Place]) -> None:
    found = requests.offsets_at(cluster, address, led, LATEST)
    ends |= {place: each.offset for place, each in found.items()}


def _ask_groups(groups: dict[str, Group], cluster: Cluster, node_id: int, address: Address) -> None:
    groups |= requests.groups(cluster, node_id, address)
