"""The commands' client against brokers that misbehave: the messages for the user."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kio.schema.api_versions.v0 import ApiVersionsRequest, ApiVersionsResponse

from korvet.cli.client import ClientError, Cluster


@contextmanager
def broker(
    *answers: bytes, resets: bool = False, connections: int = 1, closed: threading.Event | None = None
) -> Iterator[str]:
    """A listener whose connections get these answers, one per request, and are closed, or reset, after the
    last. `closed` is set then.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)

    def serve() -> None:
        for _ in range(connections):
            connection, _ = listener.accept()
            with connection:
                # A socket that lingers for 0 s is reset when it is closed.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", resets, 0))
                for answer in answers:
                    connection.recv(65536)
                    connection.sendall(answer)
            if closed is not None:
                closed.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join()
        listener.close()


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


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
        (b"\x15\x03\x01\x00\x02\x02\x46", r"speaks TLS: .*security.protocol=SSL .*--command-config"),
        (b"", "closed the connection: if the port expects TLS, .*--command-config"),
        (api_versions((3, 0, 13)), "closed the connection: if the port expects SASL, .*--command-config"),
        (api_versions(correlation=7), "answered out of order"),
        (api_versions(error=-1), "UNKNOWN_SERVER_ERROR"),
        (api_versions((3, 0, 8)), "does not offer Metadata version 12"),
        (api_versions(), "does not offer Metadata version 12"),
    ],
)
def test_a_broker_that_cannot_be_talked_to(answer: bytes, message: str) -> None:
    with broker(answer) as bootstrap, pytest.raises(ClientError, match=message):
        ask(bootstrap)


def test_a_reset_is_a_closed_connection() -> None:
    expected = "closed the connection: if the port expects TLS"
    with broker(b"", resets=True) as bootstrap, pytest.raises(ClientError, match=expected):
        ask(bootstrap)


def test_a_connection_that_the_broker_has_closed_is_opened_again() -> None:
    """Brokers close idle connections."""
    key = (ApiVersionsRequest.__api_key__, 0, 0)
    answers = api_versions(key), api_versions(key, correlation=2)
    closed = threading.Event()
    with (
        broker(*answers, connections=2, closed=closed) as bootstrap,
        Cluster(bootstrap, timeout_s=10) as cluster,
    ):
        for _ in range(2):
            assert len(cluster.ask(ApiVersionsRequest(), ApiVersionsResponse).api_keys) == 1
            assert closed.wait(20)


def test_a_broker_that_is_gone_is_named_each_time() -> None:
    key = (ApiVersionsRequest.__api_key__, 0, 0)
    with broker(api_versions(key), api_versions(key, correlation=2)) as bootstrap:
        cluster = Cluster(bootstrap, timeout_s=10)
        cluster.ask(ApiVersionsRequest(), ApiVersionsResponse)
    with cluster:
        for _ in range(2):
            with pytest.raises(ClientError, match="no broker answers"):
                cluster.ask(ApiVersionsRequest(), ApiVersionsResponse)


def test_a_name_that_is_not_utf_8() -> None:
    with (
        broker(api_versions((3, 0, 13))) as bootstrap,
        Cluster(bootstrap, timeout_s=10) as cluster,
        pytest.raises(ClientError, match=r"'a\\udcff' is not UTF-8"),
    ):
        cluster.topic("a\udcff")


def test_nobody_listens() -> None:
    address = free_address()
    with pytest.raises(ClientError, match=rf"no broker answers on {address}: Connection refused"):
        ask(address)


def test_the_first_bootstrap_broker_that_answers_is_asked() -> None:
    with (
        broker(api_versions()) as answering,
        pytest.raises(ClientError, match=rf"the broker on {answering} does not offer Metadata"),
    ):
        ask(f"{free_address()}, {answering}")


def test_none_of_the_bootstrap_brokers_answers() -> None:
    first, second = free_address(), free_address()
    with pytest.raises(
        ClientError, match=rf"no broker answers on {first}: .*; no broker answers on {second}"
    ):
        ask(f"{first},{second}")


@pytest.mark.parametrize("bootstrap", ["localhost", "localhost:9092,", "localhost:9092;other:9092"])
def test_an_address_that_is_none(bootstrap: str) -> None:
    with pytest.raises(ClientError, match=r"--bootstrap-server: (expected|an IPv6)"):
        ask(bootstrap)
