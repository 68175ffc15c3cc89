"""Connections without a TLS handshake or an authentication count like all others, and are closed soon."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from tests.support.certificates import Authority
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.servers import KorvetServer
from tests.support.wire import ConnectionClosed, RawConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.faults

MOST_TLS, MOST_PER_IP, SETUP_MS = 5, 30, 4000
DEADLINE_S = 60.0


class Guarded:
    """A broker with a listener of each kind, of which the TLS one takes few connections."""

    def __init__(self, authority: Authority) -> None:
        self.server = KorvetServer()
        self.tls, self.sasl = free_port(), free_port()
        self._trusted = authority.certificate
        listeners = (
            f"PLAINTEXT://127.0.0.1:{self.server.port},SSL://127.0.0.1:{self.tls},"
            f"SASL_PLAINTEXT://127.0.0.1:{self.sasl}"
        )
        for pair in (
            f"listeners={listeners}",
            f"listener.name.ssl.max.connections={MOST_TLS}",
            f"max.connections.per.ip={MOST_PER_IP}",
            f"connections.setup.timeout.ms={SETUP_MS}",
            f"ssl.keystore.location={authority.issue('server', '/CN=server')}",
        ):
            self.server.options += ["--set", pair]

    def shakes_hands(self) -> bool:
        """Whether a TLS client can connect."""
        context = ssl.create_default_context(cafile=str(self._trusted))
        try:
            with (
                socket.create_connection(("127.0.0.1", self.tls), DEADLINE_S) as plain,
                context.wrap_socket(plain, server_hostname="localhost"),
            ):
                return True
        except (ssl.SSLError, OSError):
            return False

    def serves(self) -> bool:
        """Whether a client without TLS is answered."""
        try:
            with RawConnection("127.0.0.1", self.server.port, DEADLINE_S) as raw:
                return raw.works()
        except (ConnectionClosed, OSError):
            return False


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(Authority(tmp_path_factory.mktemp("tls")))
    try:
        made.server.start()
        yield made
        assert made.server.stop() == 0
    finally:
        made.server.discard()


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


def open_at(port: int, count: int, opened: list[socket.socket]) -> list[socket.socket]:
    made = [socket.create_connection(("127.0.0.1", port), DEADLINE_S) for _ in range(count)]
    opened += made
    return made


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_handshakes_that_are_never_begun_count_and_end(guarded: Guarded, opened: list[socket.socket]) -> None:
    until(guarded.shakes_hands, DEADLINE_S, "there is room")
    silent = open_at(guarded.tls, 3 * MOST_TLS, opened)
    refused = f"listener SSL has {MOST_TLS} connections already"
    until(lambda: refused in guarded.server.tail(), DEADLINE_S, "those above the limit are closed")
    until(lambda: sum(map(is_closed, silent)) >= 2 * MOST_TLS, DEADLINE_S, "those above the limit are closed")
    assert guarded.serves()
    until(lambda: all(map(is_closed, silent)), DEADLINE_S, "the others are closed, too")
    until(guarded.shakes_hands, DEADLINE_S, "there is room again")
    assert "its TLS handshake on listener SSL failed" in guarded.server.tail()


def test_an_address_cannot_have_more_connections_than_its_most(
    guarded: Guarded, opened: list[socket.socket]
) -> None:
    until(guarded.serves, DEADLINE_S, "there is room")
    open_at(guarded.server.port, MOST_PER_IP, opened)

    def is_full() -> bool:
        # Another connection for each that was closed.
        open_at(guarded.server.port, 1, opened)
        return not guarded.shakes_hands()

    until(is_full, DEADLINE_S, "there is no room at another listener either")
    for each in opened:
        each.close()
    until(guarded.serves, DEADLINE_S, "there is room again")


def test_an_authentication_that_is_never_begun_ends_the_connection(
    guarded: Guarded, opened: list[socket.socket]
) -> None:
    (known,) = open_at(guarded.server.port, 1, opened)
    unknown = open_at(guarded.sasl, 3, opened)
    until(lambda: all(map(is_closed, unknown)), DEADLINE_S, "they are closed")
    assert not is_closed(known), "nothing is to be known of this one"
