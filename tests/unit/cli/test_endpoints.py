"""Addresses of admin endpoints, and what answers there."""

from __future__ import annotations

import socket
import threading

import pytest

from korvet.cli.endpoints import EndpointClient, EndpointError


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
    assert EndpointClient(text).name == name


@pytest.mark.parametrize("text", ["host", "ftp://host:1", "host:x", "http://:9", "no address", "host:99999"])
def test_anything_else_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|[Pp]ort"):
        EndpointClient(text)


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
            EndpointClient(f"127.0.0.1:{port}").metrics()
        thread.join()
