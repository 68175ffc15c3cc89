"""What running brokers say about themselves, so that they and `korvet doctor` do not disagree: /status of
their admin endpoints, or /readyz where `korvet ready` asks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from korvet.admin.client import fetch
from korvet.cli.endpoints import EndpointClient, EndpointError, Status
from korvet.outlook.findings import FAULT, OK, WARNING, Finding
from korvet.probe import here, probed

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from korvet.cluster.assignment import Broker

# Limits the wait for a broker's checks.
_TIMEOUT_S: Final = 5.0


def check_brokers(
    brokers: Iterable[Broker],
    named: Iterable[EndpointClient],
    data_dir: Path | None,
    cluster_id: str,
    known: Collection[str],
    tls: ssl.SSLContext | None,
) -> Iterator[Finding]:
    """Ask the endpoints that the user has named, those that live brokers publish in Redis, and the brokers of
    the data folder, if one is given, that have none.

    `cluster_id`: that of the keyspace, empty if it has none; `known`: subjects that are checked already.
    """
    answered: set[int | None] = set()
    local = {} if data_dir is None else _local(data_dir)
    for endpoint in named:
        try:
            pages = endpoint.statuses()
        except EndpointError as error:
            yield Finding(f"broker at {endpoint.name}", WARNING, f"could not be asked: {error}")
            continue
        for page in pages:
            answered.add(page.node_id)
            yield from _of_page(page, endpoint.name, cluster_id, known)
    for broker in brokers:
        if broker.node_id not in answered and (broker.admin or broker.node_id not in local):
            answered.add(broker.node_id)
            yield from _of_broker(broker, cluster_id, known, tls)
    for node_id in sorted(local.keys() - answered):
        subject = f"broker {node_id}"
        try:
            yield _of_checks(
                subject, Status(_checks_at(local[node_id])), "no admin endpoint, only these checks"
            )
        except (OSError, ValueError) as error:
            yield Finding(subject, WARNING, f"could not be asked: {error or type(error).__name__}")


def _local(data_dir: Path) -> dict[int, str]:
    """The sockets of the brokers of a data folder on this machine, by node ID."""
    folder = here(None, 0, str(data_dir)).folder
    found = (each for each in probed() if each.folder == folder and each.node_id.isdecimal())
    return {int(each.node_id): each.path for each in found}


def _checks_at(path: str) -> dict[str, str]:
    """The checks of a broker's /readyz. Raises OSError and ValueError."""
    page = asyncio.run(fetch(path, "/readyz", "text/plain", _TIMEOUT_S))
    return dict(line.split(": ", 1) for line in page.text.splitlines())


def _of_broker(
    broker: Broker, cluster_id: str, known: Collection[str], tls: ssl.SSLContext | None
) -> Iterator[Finding]:
    subject = f"broker {broker.node_id}"
    if not broker.admin:
        why = "it serves no admin endpoint that others can reach (admin.listen)"
        yield Finding(subject, WARNING, f"could not be asked: {why}")
        return
    try:
        endpoint = EndpointClient(broker.admin, tls)
        pages = [page for page in endpoint.statuses() if page.node_id == broker.node_id]
    except (EndpointError, ValueError) as error:
        yield Finding(subject, WARNING, f"could not be asked: {error}")
        return
    if not pages:
        yield Finding(subject, WARNING, f"could not be asked: another broker answers at {endpoint.name}")
    for page in pages:
        yield from _of_page(page, endpoint.name, cluster_id, known)


def _of_page(page: Status, place: str, cluster_id: str, known: Collection[str]) -> Iterator[Finding]:
    subject = f"broker at {place}" if page.node_id is None else f"broker {page.node_id}"
    if page.cluster is not None and cluster_id not in ("", page.cluster.id):
        yield Finding(subject, WARNING, f"it belongs to another cluster, {page.cluster.id}")
        return
    yield _of_checks(subject, page, f"release {page.release}")
    for found in page.findings:
        if found.state != OK and found.subject not in known:
            yield Finding(f"{subject}, {found.subject}", found.state, found.text)


def _of_checks(subject: str, page: Status, note: str) -> Finding:
    """Whether a broker is ready."""
    if page.problems:
        return Finding(subject, FAULT, "; ".join(page.problems))
    return Finding(subject, OK, "; ".join(["ready", *page.notes, note]))
