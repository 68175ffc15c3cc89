"""Unauthenticated clients that send as much as they can: other clients do not wait for them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest

from korvet.protocol.primitives import unsigned_varint
from tests.api.asking import KEYS, frame
from tests.support.bystander import OtherClient
from tests.support.wire import RawConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import KorvetServer

pytestmark = pytest.mark.faults

API_VERSIONS = KEYS["ApiVersions"]
# As many as fit into what a client may send before it has authenticated.
TAGS = 250_000
FEW = 40
FLOODERS = 32
FLOOD_BYTES = 40_000_000
FLOOD_DEADLINE_S = 240
LONGEST_WAIT_S = 1.0


def tagged(count: int) -> bytes:
    return unsigned_varint(count) + b"\x63\x00" * count


def with_tags_in_the_body(count: int) -> bytes:
    whole = frame("ApiVersions", 3, 7, client_software_name="x", client_software_version="1")
    return whole[:-1] + tagged(count)


def with_tags_in_the_header(count: int) -> bytes:
    return struct.pack(">hhih", API_VERSIONS, 3, 7, -1) + tagged(count) + b"\x02x\x021\x00"


FORMS = {"body": with_tags_in_the_body, "header": with_tags_in_the_header}


@pytest.mark.parametrize("place", FORMS)
def test_more_tagged_fields_than_any_client_sends_end_the_connection(
    korvet: KorvetServer, place: str
) -> None:
    with RawConnection(korvet.host, korvet.port) as connection:
        assert connection.ask(FORMS[place](FEW))[:6] == struct.pack(">ih", 7, 0)
        connection.send(FORMS[place](TAGS))
        assert connection.closed_by_server()


@pytest.mark.long
@pytest.mark.parametrize("place", FORMS)
def test_nobody_waits_for_tagged_fields(own_korvet: Callable[..., KorvetServer], place: str) -> None:
    server = own_korvet()
    request = FORMS[place](TAGS)
    sent: list[int] = []
    with OtherClient(server) as other:
        flooders = [threading.Thread(target=flood, args=(server, request, sent)) for _ in range(FLOODERS)]
        for flooder in flooders:
            flooder.start()
        for flooder in flooders:
            flooder.join()
    assert sum(sent) >= FLOOD_BYTES
    assert other.longest_s < LONGEST_WAIT_S


def flood(server: KorvetServer, request: bytes, sent: list[int]) -> None:
    """Send the request until all floods together have sent enough, on a new connection each time that one is
    closed.
    """
    framed = struct.pack(">i", len(request)) + request
    ends_s = time.monotonic() + FLOOD_DEADLINE_S

    def goes_on() -> bool:
        return sum(sent) < FLOOD_BYTES and time.monotonic() < ends_s

    while goes_on():
        with contextlib.suppress(OSError), socket.create_connection((server.host, server.port), 60) as made:
            while goes_on():
                made.sendall(framed)
                sent.append(len(framed))
                made.recv(65_536)
