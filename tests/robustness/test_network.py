"""The network of runs: what gates do to connections, by the process that opened them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.network import BLOCKED, FREE, Network, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.network import Gate

TIMEOUT_S = 20.0
DELAY_S = 0.3


@pytest.fixture
def echo_port() -> Iterator[int]:
    """The port of a server that sends everything back."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(peer: socket.socket) -> None:
        with peer:
            try:
                while content := peer.recv(1_000):
                    peer.sendall(content)
            except ConnectionError:
                return

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(peer,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(TIMEOUT_S)


@pytest.fixture
def network() -> Iterator[Network]:
    """A network that knows this process as `me`."""
    made = Network(lambda: {os.getpid(): "me"})
    yield made
    made.close()


@pytest.fixture
def gate(network: Network, echo_port: int) -> Gate:
    """The gate of a server."""
    return network.open(lambda _: ("server", echo_port))


def connect(gate: Gate) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gate.port), TIMEOUT_S)


def answers(client: socket.socket, content: bytes = b"x") -> bool:
    """Whether the server answers, instead of a reset or an end."""
    try:
        client.sendall(content)
        return client.recv(1_000) == content
    except ConnectionError:
        return False


def test_a_gate_knows_who_connects(network: Network, echo_port: int) -> None:
    sources: list[str] = []

    def route(source: str) -> tuple[str, int]:
        sources.append(source)
        return "server", echo_port

    with connect(network.open(route)) as client:
        assert answers(client)
    assert sources == ["me"]


def test_a_refused_source_is_reset_and_others_are_not(network: Network, gate: Gate) -> None:
    with connect(gate) as client:
        assert answers(client)
        network.impose("other", lambda source, _: Rule(refuses=source == "somebody"))
        assert answers(client)
        network.impose("mine", lambda source, target: Rule(refuses=(source, target) == ("me", "server")))
        assert not answers(client)
    # The reset may arrive while the client still connects.
    with contextlib.suppress(ConnectionError), connect(gate) as client:
        assert not answers(client)
    network.lift("mine")
    with connect(gate) as client:
        assert answers(client)


@pytest.mark.parametrize("rule", [Rule(holds_requests=True), Rule(holds_replies=True), BLOCKED])
def test_what_is_held_arrives_when_the_rule_ends(network: Network, gate: Gate, rule: Rule) -> None:
    with connect(gate) as client:
        assert answers(client)
        network.impose("held", lambda *_: rule)
        client.sendall(b"late")
        client.settimeout(DELAY_S)
        with pytest.raises(TimeoutError):
            client.recv(1_000)
        client.settimeout(TIMEOUT_S)
        network.lift("held")
        assert client.recv(1_000) == b"late"


def test_a_reset_loses_what_is_held(network: Network, gate: Gate) -> None:
    with connect(gate) as client:
        network.impose("held", lambda *_: Rule(holds_replies=True))
        client.sendall(b"lost")
        network.reset(lambda source, _: source == "me")
        with pytest.raises(ConnectionResetError):
            client.recv(1_000)


def test_rules_add_up(network: Network, gate: Gate) -> None:
    network.impose("requests", lambda *_: Rule(request_delay_s=DELAY_S))
    network.impose("replies", lambda *_: Rule(reply_delay_s=DELAY_S))
    network.impose("nothing", lambda *_: FREE)
    with connect(gate) as client:
        began = time.monotonic()
        assert answers(client)
        assert time.monotonic() - began >= 2 * DELAY_S


def test_a_connection_without_a_target_ends_with_its_network() -> None:
    asked = threading.Event()

    def route(source: str) -> tuple[str, int]:
        asked.set()
        raise KeyError(source)

    network = Network(lambda: {})
    gate = network.open(route)
    with socket.create_connection(("127.0.0.1", gate.port), TIMEOUT_S) as client:
        assert asked.wait(TIMEOUT_S)
        network.close()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
