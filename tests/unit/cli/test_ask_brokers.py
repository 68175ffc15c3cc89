"""What doctor makes of the status pages of brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from korvet.cli import ask_brokers
from korvet.cli.ask_brokers import check_brokers
from korvet.cli.endpoints import EndpointClient, EndpointError
from korvet.cluster.assignment import Broker
from korvet.outlook.findings import FAULT, OK, WARNING

CLUSTER = "cluster"
FULL = {"subject": "refused: memory", "state": FAULT, "text": "OOM"}
KNOWN = {"subject": "replicas", "state": WARNING, "text": "none"}


def page(node_id: int = 1, **changed: Any) -> dict[str, Any]:
    made = {
        "node_id": node_id,
        "release": "1.0",
        "cluster": {"id": CLUSTER},
        "checks": {"writes": "ok, but soon not", "lease": "ok"},
        "findings": [],
    }
    return made | changed


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """By the endpoint's name; a text is the reason why it does not answer."""
    found: dict[str, Any] = {}

    def answered(endpoint: EndpointClient, path: str, accept: str) -> bytes:
        answer = found[endpoint.name]
        if isinstance(answer, str):
            raise EndpointError(answer)
        return json.dumps(answer).encode()

    monkeypatch.setattr(EndpointClient, "_page", answered)
    return found


def broker(node_id: int, admin: str) -> Broker:
    return Broker(node_id, "b", 9092, 1, admin=admin)


def checked(
    *brokers: Broker, named: tuple[str, ...] = (), data_dir: Path | None = None
) -> list[tuple[str, str]]:
    endpoints = [EndpointClient(text) for text in named]
    found = check_brokers(brokers, endpoints, data_dir, CLUSTER, {"replicas"}, None)
    return [(each.subject, each.state) for each in found]


def test_what_doctor_does_not_know_is_reported(pages: dict[str, Any]) -> None:
    pages["b:1"] = page(findings=[FULL, KNOWN, {**FULL, "subject": "fine", "state": OK}])
    assert checked(broker(1, "http://b:1")) == [("broker 1", OK), ("broker 1, refused: memory", FAULT)]


def test_a_broker_with_a_failed_check_is_a_fault(pages: dict[str, Any]) -> None:
    pages["b:1"] = page(checks={"writes": "OOM", "lease": "ok"})
    assert checked(broker(1, "http://b:1")) == [("broker 1", FAULT)]


@pytest.mark.parametrize(
    "answer", ["connection refused", page(2), {"checks": "none"}, [], page(cluster={"id": "another"})]
)
def test_a_broker_that_cannot_be_asked_is_a_warning(pages: dict[str, Any], answer: Any) -> None:
    pages["b:1"] = answer
    assert checked(broker(1, "http://b:1")) == [("broker 1", WARNING)]


@pytest.mark.parametrize("admin", ["", "ftp://b:1", "nonsense"])
def test_a_broker_without_an_endpoint_is_a_warning(pages: dict[str, Any], admin: str) -> None:
    assert checked(broker(1, admin)) == [("broker 1", WARNING)]


def test_a_named_endpoint_answers_for_brokers_that_redis_does_not_name(pages: dict[str, Any]) -> None:
    """With `--processes`, one endpoint answers for all; one of them does not answer."""
    pages["n:1"] = {"brokers": {"1": page(1), "2": page(2), "3": None}}
    pages["n:2"] = "connection refused"
    found = checked(broker(2, "http://unused:1"), broker(3, ""), named=("n:1", "n:2"))
    assert found == [("broker 1", OK), ("broker 2", OK), ("broker at n:2", WARNING), ("broker 3", WARNING)]


def test_a_broker_that_starts_is_not_ready(pages: dict[str, Any]) -> None:
    pages["n:1"] = {"checks": {"serving": "the broker is starting"}}
    assert checked(named=("n:1",)) == [("broker at n:1", FAULT)]


def test_brokers_of_the_data_folder_need_no_admin_endpoint(
    pages: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor an entry in Redis, which may have lost the keyspace. One with an endpoint is asked there."""
    answers = {"1": {"writes": "OOM"}, "2": {"writes": "ok"}, "3": {"writes": "ok, but soon not"}}

    def checks_at(path: str) -> dict[str, str]:
        if path not in answers:
            raise ConnectionRefusedError
        return answers[path]

    monkeypatch.setattr(ask_brokers, "_local", lambda data_dir: {number: str(number) for number in range(5)})
    monkeypatch.setattr(ask_brokers, "_checks_at", checks_at)
    pages["b:4"] = page(4)
    found = checked(broker(1, ""), broker(4, "http://b:4"), data_dir=Path("data"))
    states = {4: OK, 0: WARNING, 1: FAULT, 2: OK, 3: OK}
    assert found == [(f"broker {number}", state) for number, state in states.items()]
