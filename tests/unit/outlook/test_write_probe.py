"""What probes of the servers make of their replicas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from korvet.outlook.write_probe import WriteProbe
from korvet.redis.barrier import Level
from korvet.redis.errors import NotEnoughReplicas
from korvet.redis.refusals import Cause, Refusals

LEVEL = Level(1, fsync=False)
REPORTED: Any = object()


class Primary(SimpleNamespace):
    """A server; servers are compared by identity."""

    __hash__ = object.__hash__


@pytest.fixture
def server() -> Any:
    return Primary(
        address="127.0.0.1:6379",
        read=SimpleNamespace(found_replica=False),
        write=SimpleNamespace(found_replica=False),
        history=SimpleNamespace(id="h"),
        read_functions=SimpleNamespace(send=lambda command, answered: None),
        replication=REPORTED,
        barriers=SimpleNamespace(refusal=lambda level: NotEnoughReplicas("none")),
    )


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
def probe(server: Any, refusals: Refusals) -> WriteProbe:
    topic = SimpleNamespace(min_insync_replicas=None, acks_all_fsync=None)
    catalogue: Any = SimpleNamespace(applied_version=1, local_change=0, topics={"t": topic})
    router: Any = SimpleNamespace(servers=lambda: [server])
    resources: Any = SimpleNamespace(refusals=refusals, level=LEVEL)
    return WriteProbe(router, catalogue, resources)


def has_what_topics_ask_for(server: Any) -> None:
    server.barriers.refusal = lambda level: None


def test_missing_replicas_are_back_when_the_primary_says_so(
    server: Any, refusals: Refusals, probe: WriteProbe
) -> None:
    """While its connection is down, and until it reports again, nothing is known."""
    probe.look()
    assert refusals.has(Cause.ACKS_ALL)
    has_what_topics_ask_for(server)
    server.replication = None
    probe.look()
    assert refusals.has(Cause.ACKS_ALL)
    server.replication = REPORTED
    probe.look()
    assert not refusals.has(Cause.ACKS_ALL)


def test_a_server_that_reports_no_replicas_can_wait_for_them_again(
    server: Any, refusals: Refusals, probe: WriteProbe
) -> None:
    """The user may not run INFO."""
    server.history.id, server.replication = "", None
    probe.look()
    assert refusals.has(Cause.ACKS_ALL)
    has_what_topics_ask_for(server)
    probe.look()
    assert not refusals.has(Cause.ACKS_ALL)
