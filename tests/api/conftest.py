"""Connections and servers of the tests of single APIs."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from korvet import broker as running_broker
from korvet.config.settings import Config
from tests.api.asking import Client, connect
from tests.api.permissions import MOVER, NO_PRODUCER, ORDERS, READERS, TABLE
from tests.api.secured import DEADLINE_S, Secured, binding, errors_of
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.wire import advertised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import KorvetServer


@pytest.fixture
def served(broker) -> dict[int, tuple[int, int]]:
    return advertised(broker.host, broker.port)


@pytest.fixture
def ask(broker) -> Iterator[Client]:
    """One connection to the shared server, which must still answer after the test."""
    with connect(broker) as client:
        yield client
        assert client.raw.works()


@pytest.fixture
def stream_client(server: KorvetServer) -> Any:
    """A client of the Redis of a module's own server."""
    return server.redis


@pytest.fixture
def another(broker) -> Iterator[Callable[[], Client]]:
    """Opens further connections."""
    clients: list[Client] = []

    def make() -> Client:
        clients.append(connect(broker))
        return clients[-1]

    yield make
    for client in clients:
        client.raw.socket.close()


@pytest.fixture
def topic_ids(ask) -> Callable[[str], object]:
    """Returns a topic's ID by its name."""

    def find(name: str) -> object:
        (topic,) = ask("Metadata", 12, topics=[{"topic_id": None, "name": name}]).topics
        return topic.topic_id

    return find


@pytest.fixture
def in_process(korvet) -> Iterator[SimpleNamespace]:
    """A broker in this process, so that tests can examine its objects."""
    config = Config(
        listen=f"127.0.0.1:{free_port()}",
        keyspace=f"in-process-{uuid.uuid4().hex[:8]}",
        # On a busy machine the process may stall for some seconds.
        broker_session_timeout_ms=120_000,
    )
    loop = asyncio.new_event_loop()
    up = threading.Event()
    serving = loop.create_task(
        running_broker.run(config, f"unix://{korvet.socket_path()}", lambda *_: up.set())
    )

    def serve() -> None:
        try:
            loop.run_until_complete(serving)
        except asyncio.CancelledError:
            loop.close()

    threshold = gc.get_threshold()
    thread = threading.Thread(target=serve)
    thread.start()
    assert up.wait(20)
    host, _, port = config.listen.rpartition(":")

    def stop() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(serving.cancel)
            thread.join(20)

    yield SimpleNamespace(host=host, port=int(port), keyspace=config.keyspace, stop=stop)
    stop()
    gc.unfreeze()
    gc.set_threshold(*threshold)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def secured_server() -> Iterator[Secured]:
    secured = Secured()
    try:
        admin = secured.start().authenticated("admin")
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in (ORDERS, "hidden")]
        assert not errors_of(admin("CreateTopics", 7, topics=topics, timeout=10_000))
        commit = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        for group in (READERS, "others"):
            done = admin(
                "OffsetCommit",
                9,
                group_id=group,
                generation_id_or_member_epoch=-1,
                topics=[{"name": name, "partitions": [commit]} for name in (ORDERS, "hidden")],
            )
            assert not errors_of(done)
        # The first one creates the coordinator's topic, whose partitions are then loaded.
        assert not errors_of(admin("FindCoordinator", 6, coordinator_keys=["mover"], key_type=1))
        ended = MOVER | {"committed": True}
        until(lambda: admin("EndTxn", 5, **ended).error_code is NO_PRODUCER, DEADLINE_S, "the coordinator")
        creations = [binding(f"u{at}", *acl) for at, one in enumerate(TABLE) for acl in one.acls]
        assert not errors_of(admin("CreateAcls", 3, creations=creations))
        secured.close()
        yield secured
    finally:
        secured.close()
        secured.server.discard()


@pytest.fixture
def secured(secured_server: Secured) -> Iterator[Secured]:
    yield secured_server
    secured_server.close()


@pytest.fixture
def let(secured: Secured) -> Callable[..., None]:
    """Create ACLs for users, which are in force at once."""

    def create(*creations: dict[str, Any]) -> None:
        admin = secured.authenticated("admin")
        assert not errors_of(admin("CreateAcls", 3, creations=list(creations)))

    return create
