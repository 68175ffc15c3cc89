"""The commands' client against brokers that misbehave: the messages for the user."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from korvet.cli.client import ClientError, Cluster


@contextmanager
def broker(*answers: bytes) -> Iterator[str]:
    """A listener whose connections get these answers, one per request, and are closed after the last."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for answer in answers:
                connection.recv(65536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join()
        listener.close()


def api_versions(*keys: tuple[int, int, int], correlation: int = 1, error: int = 0) -> bytes:
    body = struct.pack(">ihi", correlation, error, len(keys)) + b"".join(
        struct.pack(">hhh", *key) for key in keys
    )
    return struct.pack(">i", len(body)) + body


def ask(bootstrap: str) -> None:
    with Cluster(bootstrap, timeout_s=10) as cluster:
        cluster.metadata()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Kafka's protocol"),
        (struct.pack(">i", 100) + b"short", "closed the connection"),
        (api_versions(correlation=7), "answered out of order"),
        (api_versions(error=-1), "UNKNOWN_SERVER_ERROR"),
        (api_versions((3, 0, 8)), "does not offer Metadata version 12"),
        (api_versions(), "does not offer Metadata version 12"),
    ],
)
def test_a_broker_that_cannot_be_talked_to(answer: bytes, message: str) -> None:
    with broker(answer) as bootstrap, pytest.raises(ClientError, match=message):
        ask(bootstrap)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ClientError, match=rf"no broker answers on 127\.0\.0\.1:{port}: Connection refused"):
        ask(f"127.0.0.1:{port}")


def test_an_address_that_is_none() -> None:
    with pytest.raises(ClientError, match="--bootstrap-server: expected HOST:PORT"):
        ask("localhost")
