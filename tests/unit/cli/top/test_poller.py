"""Polls in which a broker refuses something or is away, and the addresses of admin endpoints."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.cli import lag
from korvet.cli.client import Bootstrap, ClientError
from korvet.cli.endpoints import Endpoint, EndpointError
from korvet.cli.lag import Commit, Lag, LagUnknown
from korvet.cli.redis_address import RedisSource
from korvet.cli.top import command, poller, requests
from korvet.cli.top.facts import Facts, Group, Place
from korvet.cli.top.metrics import Metrics
from korvet.cli.top.poller import Poller
from korvet.cli.top.requests import Offset
from korvet.cli.top.view import State

if TYPE_CHECKING:
    from collections.abc import Iterable

PLACE = Place("orders", 0)
COMMIT = Commit("orders", 0, 5)
REFUSED = ClientError("Cluster authorization failed.", ErrorCode.cluster_authorization_failed)


class Cluster:
    """A cluster of two brokers, of which the second leads nothing."""

    opened: list[Cluster] = []

    def __init__(self, bootstrap: Bootstrap, timeout_s: float) -> None:
        self.bootstrap = bootstrap
        self.closed = False
        Cluster.opened.append(self)

    def metadata(self, topics: Iterable[str] | None = None) -> Any:
        if AWAY.issuperset(self.bootstrap.servers.split(",")):
            raise ClientError(f"no broker answers on {self.bootstrap.servers}: refused")
        state = SimpleNamespace(partition_index=0, leader_id=1, replica_nodes=(1,), isr_nodes=(1,))
        topic = SimpleNamespace(name="orders", is_internal=False, partitions=(state,))
        brokers = tuple(SimpleNamespace(node_id=number, host="b", port=number) for number in (1, 2))
        return SimpleNamespace(brokers=brokers, topics=(topic,), cluster_id="id", controller_id=2)

    def close(self) -> None:
        self.closed = True


AWAY: set[str] = set()


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    AWAY.clear()
    Cluster.opened.clear()
    group = Group("Stable", "consumer", 1, 1, {PLACE: 5})
    monkeypatch.setattr(poller, "Cluster", Cluster)
    monkeypatch.setattr(
        requests, "offsets_at", lambda cluster, address, led, at: dict.fromkeys(led, Offset(9, 700))
    )
    monkeypatch.setattr(
        requests, "groups", lambda cluster, node_id, address: {"grp": group} if node_id == 1 else {}
    )
    monkeypatch.setattr(requests, "sizes", lambda cluster, address: {PLACE: 100})
    monkeypatch.setattr(lag, "measure", lambda source, cluster_id, wanted: dict.fromkeys(wanted, Lag(4, 30)))


def new_poller() -> Poller:
    return Poller(Bootstrap("first:1"), RedisSource(None, Path("nowhere"), "korvet"), [])


def fail(error: Exception) -> Any:
    def failing(*_: object) -> None:
        raise error

    return failing


def test_a_poll_has_everything_and_the_next_one_counts_what_was_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    polls = new_poller()
    facts = polls.poll()
    assert (facts.lags, facts.sizes, facts.oldest_ms) == ({COMMIT: Lag(4, 30)}, {PLACE: 100}, {PLACE: 700})
    assert (facts.appended, facts.notes, set(facts.groups)) == ({}, (), {"grp"})
    assert polls.poll().appended[PLACE].records == 0
    monkeypatch.setattr(
        requests, "offsets_at", lambda cluster, address, led, at: dict.fromkeys(led, Offset(12, 700))
    )
    facts = polls.poll()
    assert facts.appended[PLACE].records == 4
    assert facts.appended[PLACE].seconds > 0
    assert len(Cluster.opened) == 1


@pytest.mark.parametrize("refused", ["sizes", "groups", "offsets_at"])
def test_what_is_refused_does_not_keep_the_rest(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    monkeypatch.setattr(requests, refused, fail(REFUSED))
    facts = new_poller().poll()
    assert len(facts.partitions) == 1
    assert bool(facts.sizes) is (refused != "sizes")
    assert bool(facts.groups) is (refused != "groups")
    assert bool(facts.oldest_ms) is (refused != "offsets_at")
    assert facts.notes[0] == f"broker 1: {REFUSED}"
    assert not Cluster.opened[0].closed


def test_after_a_broken_connection_the_next_poll_makes_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = new_poller()
    with monkeypatch.context() as broken:
        broken.setattr(requests, "groups", fail(ClientError("the broker does not answer")))
        notes = polls.poll().notes
    assert notes == ("broker 1: the broker does not answer", "broker 2: the broker does not answer")
    assert Cluster.opened[0].closed
    assert polls.poll().notes == ()
    assert len(Cluster.opened) == 2


def test_a_broken_connection_does_not_end_those_of_other_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group("Stable", "consumer", 1, 2, {})

    def groups(cluster: Cluster, node_id: int, address: object) -> dict[str, Group]:
        del address
        if node_id == 1:
            raise ClientError("the broker does not answer")
        assert not cluster.closed
        return {"other": group}

    monkeypatch.setattr(requests, "groups", groups)
    facts = new_poller().poll()
    assert facts.groups == {"other": group}
    assert facts.notes == ("broker 1: the broker does not answer",)
    assert Cluster.opened[0].closed


def test_any_known_broker_replaces_the_bootstrap_server() -> None:
    polls = new_poller()
    polls.poll()
    polls.close()
    AWAY.update(("first:1", "b:1"))
    assert polls.poll().cluster_id == "id"
    assert Cluster.opened[-1].bootstrap == Bootstrap("first:1,b:1,b:2")
    AWAY.add("b:2")
    with pytest.raises(ClientError, match="no broker answers on first:1,b:1,b:2"):
        polls.poll()
    with pytest.raises(ClientError, match="no broker answers on first:1"):
        polls.poll()


def test_lines_after_an_interruption_have_no_rates_over_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    polls = new_poller()
    outcomes = [None, None, ClientError("no broker answers"), None, None, KeyboardInterrupt()]

    def poll() -> Facts:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return found()

    found = polls.poll
    monkeypatch.setattr(polls, "poll", poll)
    with pytest.raises(KeyboardInterrupt):
        command._print(polls, State(interval_s=0), once=False, as_json=True)
    printed = capsys.readouterr()
    rates = [json.loads(line)["groups"][0]["commits_per_s"] for line in printed.out.splitlines()]
    assert rates == [0.0, None, 0.0]
    assert printed.err == "no broker answers\n"


def test_without_redis_the_reason_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "measure", fail(LagUnknown("no embedded server runs on nowhere")))
    facts = new_poller().poll()
    assert facts.lags == {}
    assert facts.notes == (
        "records are not counted: no embedded server runs on nowhere; give --redis, --data-dir or --admin",
    )


def test_what_a_broker_refuses_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Metrics('korvet_refused{cause="memory"} 1\nkorvet_refused{cause="disk"} 0\n')
    monkeypatch.setattr(Endpoint, "read", lambda endpoint: page)
    source = RedisSource(None, Path("nowhere"), "korvet")
    facts = Poller(Bootstrap("first:1"), source, [Endpoint("host:9308")]).poll()
    assert facts.notes == ("host:9308 refuses clients: memory",)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("host:9308", "host:9308"),
        ("[::1]:9308", "[::1]:9308"),
        ("http://host:1", "host:1"),
        ("https://ada:p%40ss@host:2/x", "host:2"),
    ],
)
def test_an_endpoint_is_an_address_or_a_url(text: str, name: str) -> None:
    assert Endpoint(text).name == name


@pytest.mark.parametrize("text", ["host", "ftp://host:1", "host:x", "http://:9", "no address", "host:99999"])
def test_anything_else_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|[Pp]ort"):
        Endpoint(text)


@pytest.mark.parametrize(
    "answer", [b"\x15\x03\x03\x00\x02\x02\x0a", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"]
)
def test_what_does_not_speak_http_is_reported(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(4096)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listening.getsockname()[1]
        with pytest.raises(EndpointError, match=f"127.0.0.1:{port}: "):
            Endpoint(f"127.0.0.1:{port}").read()
        thread.join()
