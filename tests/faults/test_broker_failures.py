"""Brokers that end or hang under load: nothing acknowledged is lost, and the other brokers take over."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from korvet.cli.client import Cluster
from korvet.cli.group_requests import committed_offsets
from tests.api.batches import batch
from tests.api.test_produce import LAST_BY_NAME, producer_id, put, request_of, stamped
from tests.faults.brokers import (
    COORDINATOR_NOT_AVAILABLE,
    LEASE_MS,
    NOT_COORDINATOR,
    NOT_LEADER,
    PARTITIONS,
    Brokers,
    Connect,
    all_is_there,
    ask_produce,
    get_on,
    live,
    load,
    records,
)
from tests.support.admin import create_topic
from tests.support.confluent import producer, read_all, send
from tests.support.load import QUICK
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import alive
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.api.asking import Client


pytestmark = [pytest.mark.faults, pytest.mark.clients]


@pytest.mark.short
def test_a_killed_broker_costs_nothing_that_was_acknowledged(start: Callable[[int], Brokers]) -> None:
    brokers = start(2)
    with load(brokers, "load") as (senders, members):
        get_on(senders, members, "the load runs")
        brokers.node(2).kill()
        brokers.wait_for(1, timeout_s=LEASE_MS / 1000 + 5)
        get_on(senders, members, "all clients go on at the broker that is left")
        brokers.node(2).restart()
        brokers.wait_for(1, 2)
        get_on(senders, members, "all clients go on at both brokers")
    all_is_there(brokers, "load", senders, members)


def test_the_log_names_brokers_that_are_lost_and_back(start: Callable[[int], Brokers]) -> None:
    brokers = start(2)
    first, second = brokers.node(1), brokers.node(2)
    named = f"node 2 at 127.0.0.1:{second.port}"

    def told(level: str, text: str) -> None:
        line = re.compile(rf" {level} .*: {named} {text}$", re.MULTILINE)
        until(lambda: line.search(first.tail(100_000)), LEASE_MS / 1000 + 15, f"the log says: {level} {text}")

    assert second.stop() == 0
    told("INFO", "has left")
    second.restart()
    told("INFO", "has joined")
    second.kill()
    told("WARNING", "is lost: it has not renewed its lease")
    second.restart()
    told("WARNING", r"is back after \d+ s")
    assert first.tail(100_000).count(f"{named} is ") == 2


def test_a_paused_broker_writes_nothing_when_it_comes_back(
    start: Callable[[int], Brokers], connected: Connect
) -> None:
    brokers = start(2)
    create_topic(brokers.bootstrap, "paused", PARTITIONS)
    partition, group = brokers.led_by("paused", 2), brokers.group_at(2)
    idle = next(p for p, leader in brokers.leaders("paused").items() if leader == 2 and p != partition)
    clients = [connected(brokers.node(2)) for _ in range(3)]
    for each in (partition, idle):
        assert ask_produce(clients[0], "paused", each, b"before").error_code == 0
    os.kill(brokers.node(2).process.pid, signal.SIGSTOP)
    try:
        # These requests wait in its receive buffers.
        for client, where in zip(clients, (partition, idle), strict=False):
            data = [{"index": where, "records": batch([(b"k", b"late")])}]
            client.send(
                "Produce", 9, acks=-1, timeout=1000, topic_data=[{"name": "paused", "partition_data": data}]
            )
        clients[2].send(
            "OffsetCommit",
            7,
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[{"name": "paused", "partitions": [{"partition_index": 0, "committed_offset": 5}]}],
        )
        brokers.wait_for(1, timeout_s=LEASE_MS / 1000 + 5)
        taken_over = connected(brokers.node(1))

        def writes() -> bool:
            return bool(ask_produce(taken_over, "paused", partition, b"after").error_code == 0)

        until(writes, 10, "the other broker has taken over")
    finally:
        os.kill(brokers.node(2).process.pid, signal.SIGCONT)
    for client in clients[:2]:
        (answer,) = client.receive("Produce", 9).responses[0].partition_responses
        assert answer.error_code == NOT_LEADER
    # It knows that its lease has expired, and perhaps already that the other broker has taken over.
    refused = clients[2].receive("OffsetCommit", 7).topics[0].partitions[0].error_code
    assert refused in (COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)
    brokers.wait_for(1, 2)
    for each, expected in ((partition, [b"before", b"after"]), (idle, [b"before"])):
        stored = read_all(brokers.bootstrap, "paused", each)
        assert [read.record.value for read in stored] == expected
    with Cluster(brokers.node(1).bootstrap) as cluster:
        assert committed_offsets(cluster, group) == {}


def test_a_batch_does_not_overtake_one_on_its_way_to_a_paused_leader(
    start: Callable[[int], Brokers], connected: Connect
) -> None:
    """This holds for a producer that the log knows, and for a new one, which may begin with any sequence."""
    brokers = start(2)
    create_topic(brokers.bootstrap, "paused", PARTITIONS)
    partition = brokers.led_by("paused", 2)
    clients = [connected(brokers.node(2)) for _ in range(2)]
    known, new = (producer_id(client) for client in clients)

    def put_from(client: Client, producer: int, *sequences: int) -> list[int]:
        answers = [
            put(client, "paused", stamped(producer, sequence), partition=partition) for sequence in sequences
        ]
        return [int(answer.error_code) for answer in answers]

    assert put_from(clients[0], known, 0) == [0]
    os.kill(brokers.node(2).process.pid, signal.SIGSTOP)
    try:
        # These requests wait in its receive buffers.
        for client, producer, sequence in zip(clients, (known, new), (1, 0), strict=True):
            waiting = request_of([("paused", partition, stamped(producer, sequence))])
            client.send("Produce", LAST_BY_NAME, **waiting)
        brokers.wait_for(1, timeout_s=LEASE_MS / 1000 + 5)
        for producer, sequence in ((known, 1), (new, 0)):
            first, second, third = (sequence + number for number in range(3))
            for _ in range(2):
                # The broker knows nothing of what was refused on other connections.
                other = connected(brokers.node(1))
                assert put_from(other, producer, second, third, second) == [NOT_LEADER] * 3
            assert put_from(other, producer, first, second, third) == [0] * 3
    finally:
        os.kill(brokers.node(2).process.pid, signal.SIGCONT)
    for client in clients:
        (answer,) = client.receive("Produce", LAST_BY_NAME).responses[0].partition_responses
        assert answer.error_code == NOT_LEADER
    stored = read_all(brokers.bootstrap, "paused", partition)
    assert [read.record.value for read in stored] == [b"%d" % number for number in (0, 1, 2, 3, 0, 1, 2)]


@pytest.mark.long
def test_three_brokers_come_and_go_under_load(start: Callable[[int], Brokers]) -> None:
    brokers = start(3)
    with load(brokers, "load") as (senders, members):
        get_on(senders, members, "the load runs")
        for _ in range(2):
            for node_id in (2, 3, 1):
                others = {1, 2, 3} - {node_id}
                victim = brokers.node(node_id)
                if node_id == 3:
                    os.kill(victim.process.pid, signal.SIGSTOP)
                    brokers.wait_for(*others)
                    get_on(senders, members, "all clients go on without the paused one")
                    os.kill(victim.process.pid, signal.SIGCONT)
                else:
                    victim.kill() if node_id == 2 else victim.stop()
                    brokers.wait_for(*others)
                    get_on(senders, members, "all clients go on without the one that ended")
                    victim.restart()
                brokers.wait_for(1, 2, 3)
                get_on(senders, members, "all clients go on")
    all_is_there(brokers, "load", senders, members)


def test_processes_of_one_command(own_korvet: Callable[..., KorvetServer]) -> None:
    server = own_korvet("--processes", "2")
    ready = f"korvet is ready on {server.bootstrap} (data in {server.data_dir})"
    until(lambda: ready in server.tail() or not server.process.running, 40, "both processes are ready")
    assert ready in server.tail()
    assert live(server) == {1, 2}
    with Cluster(server.bootstrap) as cluster:
        ports = {broker.node_id: broker.port for broker in cluster.metadata([]).brokers}
    assert ports == {1: server.port, 2: server.port + 1}
    create_topic(server.bootstrap, "shared", PARTITIONS)
    client = producer(server.bootstrap, **QUICK)
    for partition in range(PARTITIONS):
        send(client, "shared", partition, records(partition, 50))
    pids = {int(node): int(pid) for node, pid in re.findall(r"node (\d) is process (\d+)", server.tail())}
    os.kill(pids[2], signal.SIGKILL)
    until(lambda: "restarting it" in server.tail(), 20, "the killed process is restarted")
    for partition in range(PARTITIONS):
        send(client, "shared", partition, records(partition, 50))
        assert len(read_all(server.bootstrap, "shared", partition)) == 100
    store = server.store_pid()
    assert server.stop() == 0
    pids |= {int(node): int(pid) for node, pid in re.findall(r"node (\d) is process (\d+)", server.tail())}
    assert not any(alive(pid) for pid in [*pids.values(), store])
    assert "Traceback" not in server.tail(100_000)


def test_processes_that_are_killed_leave_no_temporary_file(tmp_path: Path) -> None:
    pages = Pages(free_port())
    server = KorvetServer("--processes", "2", "--set", f"admin.listen=127.0.0.1:{pages.port}")
    server.environ = {"TMPDIR": str(tmp_path)}
    try:
        server.start()
        pids = [server.store_pid(), *map(int, re.findall(r"node \d is process (\d+)", server.tail()))]
        assert len(pids) == 3
        until(lambda: pages.read("/readyz").status == 200, 40, "both are ready")
        shown = pages.read("/metrics").text
        assert all(f'korvet_broker_up{{node_id="{node}"}} 1' in shown for node in (1, 2))
        server.process.kill()
        until(lambda: not any(map(alive, pids)), 40, "all processes have ended")
        assert list(tmp_path.iterdir()) == []
    finally:
        server.discard()


def test_a_process_that_cannot_start_ends_the_command(own_korvet: Callable[..., KorvetServer]) -> None:
    taken = own_korvet()
    server = KorvetServer("--processes", "2")
    server.port = taken.port - 1
    try:
        server.spawn()
        until(lambda: not server.process.running, 30, "the command ends")
        assert server.process.exit_code == 1
        assert f"cannot listen on 127.0.0.1:{taken.port}: " in server.tail()
        assert "the broker process of node 2 exited with status 1" in server.tail()
        pids = re.findall(r"process (\d+)(?:, maxmemory .*)?$", server.tail(), re.MULTILINE)
        assert len(pids) == 3
        assert not any(alive(int(pid)) for pid in pids)
    finally:
        server.discard()
