"""`korvet top`: counts of real clients, in a terminal, in a pipe, and while the broker is away."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.support.confluent import consumer, producer, send
from tests.support.polling import until
from tests.support.processes import Child, run
from tests.support.records import Record
from tests.support.terminal import TerminalProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import KorvetServer

pytestmark = pytest.mark.clients

TIMEOUT_S = 60


def command(server: KorvetServer, *options: str) -> list[str]:
    address = ["-b", server.bootstrap, "--data-dir", str(server.data_dir)]
    return [sys.executable, "-m", "korvet", "top", *address, "--interval", "0.3", *options]


def environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("KORVET_")}


def record(number: int) -> Record:
    return Record(None, b"value %d" % number, (), time.time_ns() // 1_000_000)


def produce(server: KorvetServer, topic: str, count: int) -> None:
    client = producer(server.bootstrap)
    send(client, topic, 0, [record(number) for number in range(count)])


@pytest.fixture
def lagging(korvet: KorvetServer, topic: str, group: str) -> tuple[str, str]:
    """A topic of ten records, and a group that has committed four of them."""
    lag_behind(korvet, topic, group)
    return topic, group


def lag_behind(server: KorvetServer, topic: str, group: str) -> None:
    """Produce ten records, and commit four of them."""
    produce(server, topic, 10)
    client = consumer(server.bootstrap, group, auto_offset_reset="earliest")
    client.subscribe([topic])
    fourth = None
    for _ in range(4):
        fourth = until(lambda: client.poll(1), TIMEOUT_S, "a record")
    assert fourth is not None
    place = TopicPartition(topic, 0, fourth.offset() + 1)
    client.commit(offsets=[place], asynchronous=False)
    client.close()


def named(rows: list[dict[str, Any]], field: str, name: str) -> dict[str, Any]:
    return next(row for row in rows if row[field] == name)


def test_once_as_json_has_the_true_lag(korvet: KorvetServer, lagging: tuple[str, str]) -> None:
    topic, group = lagging
    done = run(command(korvet, "--once", "--json"), TIMEOUT_S, env=environ())
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    row = named(document["groups"], "group", group)
    assert (row["state"], row["members"], row["record_lag"], row["partitions"]) == ("Empty", 0, 6, 1)
    assert row["lag_ms"] > 0
    row = named(document["topics"], "topic", topic)
    assert (row["partitions"], row["under_replicated"], row["records_per_s"]) == (1, 0, 0.0)
    assert row["size_bytes"] > 0
    assert 0 <= row["oldest_ms"] < TIMEOUT_S * 1000
    (broker,) = document["brokers"]
    assert (broker["address"], broker["controller"]) == (korvet.bootstrap, True)


def test_json_lines_count_every_record_once(korvet: KorvetServer, topic: str, tmp_path: Path) -> None:
    log = tmp_path / "lines"
    child = Child(command(korvet, "--json"), log, environ())
    try:

        def reports() -> list[dict[str, Any]]:
            return [
                json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")
            ]

        until(reports, TIMEOUT_S, "the first report")
        produce(korvet, topic, 500)

        def rates() -> list[float]:
            found = (named(report["topics"], "topic", topic) for report in reports())
            return [row["records_per_s"] for row in found if row["records_per_s"]]

        until(rates, TIMEOUT_S, "a rate")
        assert max(rates()) < 500 / 0.3 * 1.1
        os.kill(child.pid, signal.SIGINT)
        until(lambda: not child.running, TIMEOUT_S, "it ends")
        assert child.exit_code == 0
    finally:
        child.kill()


def test_a_pipe_gets_tables_without_colour(korvet: KorvetServer, lagging: tuple[str, str]) -> None:
    topic, group = lagging
    options = ("--once", "--table", "groups", "--sort", "lag", "--filter", group)
    done = run(command(korvet, *options), TIMEOUT_S, env=environ())
    text = done.stdout.decode()
    assert "\x1b" not in text
    (line,) = [line for line in text.splitlines() if line.startswith(group)]
    assert line.split()[1] == "6"
    assert topic not in text


def test_an_admin_endpoint_has_lag_and_more_without_redis(
    own_korvet: Callable[..., KorvetServer], tmp_path: Path
) -> None:
    listen = ("--set", "admin.listen=127.0.0.1:0", "--set", "admin.token=secret")
    server = own_korvet(*listen, "--set", "metrics.lag.interval.ms=200")
    address = until(
        lambda: re.search(r"admin endpoint at http://(\S+)", server.tail()), TIMEOUT_S, "its address"
    )
    lag_behind(server, "orders", "slow")
    options = ("--once", "--json", "--admin", address[1])
    away = ["-b", server.bootstrap, "--data-dir", str(tmp_path), "--interval", "1"]

    def report(token: str = "secret") -> dict[str, Any]:
        top = [sys.executable, "-m", "korvet", "top", *away, *options]
        done = run(top, TIMEOUT_S, env=environ() | {"KORVET_ADMIN_TOKEN": token})
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def lag() -> bool:
        return bool(named(report()["groups"], "group", "slow")["record_lag"] == 6)

    until(lag, TIMEOUT_S, "the endpoint reports the lag")
    found = report()
    assert found["notes"] == []
    group = named(found["groups"], "group", "slow")
    assert group["lag_ms"] > 0
    assert group["commits_per_s"] == 0.0
    (broker,) = found["brokers"]
    assert broker["connections"] >= 1
    assert broker["requests_per_s"] > 0
    row = named(found["topics"], "topic", "orders")
    assert (row["records"], row["records_per_s"], row["bytes_in_per_s"]) == (10, 0.0, 0.0)
    (note, _) = report("wrong")["notes"]
    assert note == f"admin endpoint {address[1]}: 401 Unauthorized"


def test_wrong_options_and_a_missing_broker_are_errors(korvet: KorvetServer) -> None:
    done = run(command(korvet, "--sort", "nothing"), TIMEOUT_S, env=environ())
    assert done.returncode == 2
    assert b"RECORDS/S" in done.stderr
    done = run(command(korvet, "--admin", "no address"), TIMEOUT_S, env=environ())
    assert done.returncode == 2
    done = run(
        [sys.executable, "-m", "korvet", "top", "-b", "127.0.0.1:1", "--once"], TIMEOUT_S, env=environ()
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: no broker answers")


@pytest.fixture
def screen(korvet: KorvetServer) -> Iterator[TerminalProgram]:
    # The shared broker has the topics of many tests.
    program = TerminalProgram(command(korvet), environ(), rows=1_000)
    yield program
    program.close()


def test_keys_change_the_view_in_a_terminal(
    screen: TerminalProgram, korvet: KorvetServer, lagging: tuple[str, str]
) -> None:
    topic, group = lagging
    screen.shows(topic)
    screen.press("g")
    screen.shows(group)
    screen.press("/" + group[:3])
    screen.shows(f"filter: {group[:3]}_")
    screen.press("\r?")
    screen.shows("Space pauses")
    screen.press("b")
    screen.shows(korvet.bootstrap)
    screen.resize(30, 10)
    screen.press("\x1b")
    screen.shows("BROKER")
    screen.press("t")
    screen.shows("TOPIC")
    assert not screen.restored()
    screen.press("q")
    assert screen.ends() == 0
    assert screen.restored()
    assert "\x1b[?1049l" in screen.raw()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_restores_the_terminal(
    screen: TerminalProgram, topic: str, number: signal.Signals, status: int
) -> None:
    screen.shows(topic)
    if number is signal.SIGINT:
        screen.press("\x03")
    else:
        screen.process.send_signal(number)
    assert screen.ends() == status
    assert screen.restored()
    assert "\x1b[?1049l" in screen.raw()
    assert "Traceback" not in screen.raw()


def test_the_view_waits_for_a_broker_that_is_away(own_korvet: Callable[..., KorvetServer]) -> None:
    server = own_korvet()
    client = producer(server.bootstrap)
    send(client, "kept", 0, [record(1)])
    screen = TerminalProgram(command(server), environ())
    try:
        screen.shows("kept")
        server.stop()
        screen.shows("no broker answers")
        server.restart()
        send(producer(server.bootstrap), "added", 0, [record(1)])
        screen.shows("added")
    finally:
        screen.close()
