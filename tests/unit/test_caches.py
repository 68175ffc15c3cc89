"""Caches with keys that clients choose are bounded in bytes, not in keys."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from korvet.config.settings import Config
from korvet.offsets.partition import partition_for
from korvet.protocol.primitives import topic_head
from korvet.quotas.entities import entity_of
from korvet.quotas.throttle import ClientQuotas
from korvet.security.acls import Operation, ResourceType
from korvet.security.authorizer import Authorizer
from korvet.server.request_log import RequestLog

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

NAMES = 60
LONG = 30_000
KEPT_BYTES = 1 << 20


def kept_by(ask: Callable[[str], object], length: int = LONG, names: int = NAMES) -> int:
    """Bytes left in memory after `ask` was called with many names."""
    ask("first")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(names):
            ask(f"{number}-".ljust(length, "n"))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before


def test_partitions_of_groups() -> None:
    assert kept_by(partition_for) < KEPT_BYTES


def test_topics_in_responses() -> None:
    def ask(name: str) -> None:
        topic_head(name, None, 1, by_id=False, flexible=True)

    assert kept_by(ask) < KEPT_BYTES
    assert kept_by(ask, length=249, names=5_000) < KEPT_BYTES


def test_decisions_about_resources() -> None:
    access = Authorizer().access("User:alice", "10.0.0.1")
    assert kept_by(lambda name: access.allows(Operation.READ, ResourceType.TOPIC, name)) < KEPT_BYTES


def test_decisions_about_many_principals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.security.authorizer._MOST_DECISIONS", 1000)
    authorizer = Authorizer()
    # As connections do, which keep theirs as long as they live.
    accesses = [authorizer.access(f"User:{number}", "10.0.0.1") for number in range(20)]

    def ask(name: str) -> None:
        for access in accesses:
            assert not access.allows(Operation.READ, ResourceType.TOPIC, name)
            assert not access.allows(Operation.READ, ResourceType.TOPIC, name)

    assert kept_by(ask, length=100) < KEPT_BYTES


def test_a_decision_is_kept_while_there_is_room() -> None:
    authorizer = Authorizer()
    access = authorizer.access("User:alice", "10.0.0.1")
    asked: list[object] = []
    decide = authorizer.decide
    authorizer.decide = lambda *args: bool(asked.append(args)) or decide(*args)  # type: ignore[method-assign]
    for _ in range(3):
        access.allows(Operation.READ, ResourceType.TOPIC, "t")
    assert len(asked) == 1


def test_quotas_of_clients() -> None:
    quotas = ClientQuotas()
    quotas.replace({(entity_of({"client-id": None}), "producer_byte_rate"): 1e9})

    def ask(client_id: str) -> None:
        limit = quotas.of("alice", client_id)["producer_byte_rate"]
        assert quotas.produced(limit, 1, 0.0) == 0

    assert kept_by(ask) < KEPT_BYTES
    limits = [quotas.of("alice", name * LONG)["producer_byte_rate"] for name in "aab"]
    assert limits[0] == limits[1] != limits[2]


def test_clients_of_the_request_log() -> None:
    services: Any = None
    request_log = RequestLog(services)
    request_log.take(Config(request_log_clients="client=orders-*"))
    api: Any = SimpleNamespace(name="ApiVersions")
    client = SimpleNamespace(client_host="/10.0.0.1", session=SimpleNamespace(principal="User:ANONYMOUS"))

    def selects(client_id: str) -> bool:
        context: Any = SimpleNamespace(client_id=client_id, client=client, api_version=4)
        return request_log.trace(api, context, None, 1, 100) is not None

    assert kept_by(selects) < KEPT_BYTES
    for _ in range(2):
        assert selects("orders-" + "x" * LONG)
        assert not selects("x" * LONG)
