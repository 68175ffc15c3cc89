"""What a report and its commands say about a Kafka cluster, without a cluster."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self, cast

import pytest

from korvet.spark.session import kafka_probe
from korvet.spark.session.kafka_cluster import Extent
from korvet.spark.session.kafka_probe import likely_cause
from korvet.spark.tables.readers import held_back
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.spark.session.kafka_cluster import Cluster
    from korvet.spark.tables.needs import TopicPartition


TIMEOUT_S = 30


class GrowingLogs:
    """Partition 0 has an open transaction at offset 3; another record is appended before each answer."""

    def __init__(self) -> None:
        self.end = 5

    def ends(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        self.end += 1
        return dict.fromkeys(places, self.end)

    def extents(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, Extent]:
        self.end += 1
        return {place: Extent(0, self.end if place[1] else 3) for place in places}


def test_records_that_are_appended_meanwhile_are_no_transaction() -> None:
    cluster = cast("Cluster", GrowingLogs())
    assert held_back(cluster, [("orders", 0), ("orders", 1)]) == {("orders", 0): 3}


@pytest.mark.parametrize(
    ("bootstrap", "cause"),
    [
        ("kafka..example:9092", "the host kafka..example is unknown"),
        # Kafka's client names these.
        ("localhost:65536", None),
        (":9092", None),
        ("localhost", None),
    ],
)
def test_an_address_that_can_not_exist(bootstrap: str, cause: str | None) -> None:
    assert likely_cause(bootstrap, {}) == cause


class Brokers:
    """Ports that speak Kafka's protocol once each of them has a client and `allowed` is set. Without names of
    brokers to answer with, they want a login.
    """

    def __init__(self, count: int, names: Sequence[tuple[str, int]] = ()) -> None:
        self.allowed = threading.Event()
        self._names = names
        self._reached = threading.Barrier(count)
        self._servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self._threads = [threading.Thread(target=self._serve, args=(each,)) for each in self._servers]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in self._servers)

    def _serve(self, server: socket.socket) -> None:
        waited = False
        with contextlib.suppress(OSError, threading.BrokenBarrierError):
            while True:
                client, _ = server.accept()
                with client:
                    if not waited:
                        self._reached.wait(TIMEOUT_S)
                        self.allowed.wait(TIMEOUT_S)
                        waited = True
                    asks_for_names = client.recv(1024)[4:6] == b"\0\3"
                    if self._names or not asks_for_names:
                        answer = metadata_of(self._names)
                        client.sendall(struct.pack(">i", len(answer)) + answer)

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.allowed.set()
        self._reached.abort()
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            server.close()


def metadata_of(addresses: Sequence[tuple[str, int]]) -> bytes:
    """An answer to Metadata v1 that names brokers."""
    named = b"".join(
        struct.pack(">ih", number, len(host)) + host.encode() + struct.pack(">ih", port, -1)
        for number, (host, port) in enumerate(addresses)
    )
    return struct.pack(">ii", -1, len(addresses)) + named


def test_servers_are_looked_at_side_by_side() -> None:
    """So several that are silent take no longer than one."""
    with Brokers(5) as brokers:
        brokers.allowed.set()
        first = brokers.bootstrap.split(",")[0]
        assert str(likely_cause(brokers.bootstrap, {})).startswith(f"{first} wants a login")


def test_a_look_at_servers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def last(*_: object) -> str:
        over.wait(TIMEOUT_S)
        return "too late"

    monkeypatch.setattr(kafka_probe, "LONGEST_S", 0.1)
    monkeypatch.setattr(kafka_probe, "_cause", last)
    assert likely_cause("a:1,b:1", {}) is None
    over.set()


def test_the_first_of_servers_that_are_of_no_use_is_told_of() -> None:
    gone = [("127.0.0.1", free_port()) for _ in range(2)]
    bootstrap = ",".join(f"{host}:{port}" for host, port in gone)
    refused = f"127.0.0.1:{gone[0][1]}: Connection refused"
    assert likely_cause(bootstrap, {}) == refused
    with Brokers(1, gone) as brokers:
        brokers.allowed.set()
        assert likely_cause(f"{bootstrap},{brokers.bootstrap}", {}) == refused
        away = "names brokers (advertised.listeners) that this machine can't reach"
        assert likely_cause(brokers.bootstrap, {}) == f"{brokers.bootstrap} {away}: {refused}"


def test_one_server_of_use_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        gone, there = ("127.0.0.1", free_port()), ("127.0.0.1", other.getsockname()[1])
        with Brokers(1, [gone, there]) as brokers:
            brokers.allowed.set()
            assert likely_cause(f"127.0.0.1:{gone[1]},{brokers.bootstrap}", {}) is None
