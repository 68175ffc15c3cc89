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
from tests.support.ports import free_port
from tests.support.processes import Child, run
from tests.support.records import Record
from tests.support.servers import KorvetServer
from tests.support.terminal import TerminalProgram

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.clients

TIMEOUT_S = 60


class Watched:
    """A broker with an admin endpoint, ten records, and a group that has committed four of them."""

    def __init__(self) -> None:
        self.admin = f"127.0.0.1:{free_port()}"
        settings = (f"admin.listen={self.admin}", "admin.token=secret", "metrics.lag.interval.ms=200")
        self.server = KorvetServer(*(f"--set={setting}" for setting in settings))
        self.server.start()
        self.produce("orders", 10)
        client = consumer(self.server.bootstrap, "slow", auto_offset_reset="earliest")
        client.subscribe(["orders"])
        for _ in range(4):
            fourth = until(lambda: client.poll(1), TIMEOUT_S, "a record")
        place = TopicPartition("orders", 0, fourth.offset() + 1)
        client.commit(offsets=[place], asynchronous=False)
        client.close()

    def produce(self, topic: str, count: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        records = [Record(None, b"value %d" % number, (), now_ms) for number in range(count)]
        send(producer(self.server.bootstrap), topic, 0, records)

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-m", "korvet", "top", "--admin", self.admin, "--interval", "0.3", *options]


def environ(token: str = "secret") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KORVET_")}
    return kept | {"KORVET_ADMIN_TOKEN": token}


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    found = Watched()
    yield found
    found.server.discard()


def named(rows: list[dict[str, Any]], field: str, name: str) -> dict[str, Any]:
    return next(row for row in rows if row[field] == name)


def once(watched: Watched) -> dict[str, Any]:
    done = run(watched.command("--once", "--json"), TIMEOUT_S, env=environ())
    assert (done.returncode, done.stderr) == (0, b"")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_once_as_json_has_the_true_lag(watched: Watched) -> None:
    until(
        lambda: named(once(watched)["groups"], "group", "slow")["record_lag"] == 6, TIMEOUT_S, "the true lag"
    )
    found = once(watched)
    group = named(found["groups"], "group", "slow")
    assert (group["state"], group["members"], group["commits_per_s"]) == ("Empty", 0, 0.0)
    assert group["lag_ms"] > 0
    topic = named(found["topics"], "topic", "orders")
    assert (topic["records"], topic["records_per_s"], topic["bytes_in_per_s"]) == (10, 0.0, 0.0)
    assert (topic["partitions"], topic["under_replicated"]) == (1, 0)
    (broker,) = found["brokers"]
    assert (broker["node_id"], broker["endpoint"], broker["state"]) == (1, watched.admin, "ready")
    assert broker["leaders"] >= 1
    assert found["notes"] == []


def test_json_lines_count_every_record_once(watched: Watched, topic: str, tmp_path: Path) -> None:
    log = tmp_path / "lines"
    child = Child(watched.command("--json"), log, environ())
    try:

        def reports() -> list[dict[str, Any]]:
            return [
                json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")
            ]

        until(reports, TIMEOUT_S, "the first report")
        watched.produce(topic, 500)

        def rates() -> list[float]:
            rows = (row for report in reports() for row in report["topics"] if row["topic"] == topic)
            return [row["records_per_s"] for row in rows if row["records_per_s"]]

        until(rates, TIMEOUT_S, "a rate")
        until(lambda: named(reports()[-1]["topics"], "topic", topic)["records"] == 500, TIMEOUT_S, "all")
        assert max(rates()) < 500 / 0.3 * 1.1
        assert [row for report in reports() for row in report["requests"] if row["request"] == "Produce"]
        os.kill(child.pid, signal.SIGINT)
        until(lambda: not child.running, TIMEOUT_S, "it ends")
        assert child.exit_code == 0
    finally:
        child.kill()


def test_a_pipe_gets_tables_without_colour(watched: Watched) -> None:
    done = run(watched.command("--once"), TIMEOUT_S, env=environ())
    text = done.stdout.decode()
    assert "\x1b" not in text
    assert re.search(r"^orders +\S+ ", text, re.MULTILINE)
    assert re.search(r"^slow +\S+ ", text, re.MULTILINE)


def test_wrong_options_tokens_and_addresses_are_errors(watched: Watched) -> None:
    done = run(watched.command("--admin", "no address"), TIMEOUT_S, env=environ())
    assert done.returncode == 2
    done = run([sys.executable, "-m", "korvet", "top", "--once"], TIMEOUT_S, env=environ())
    assert done.returncode == 2
    assert b"--admin" in done.stderr
    done = run(watched.command("--once"), TIMEOUT_S, env=environ("wrong"))
    assert done.returncode == 1
    assert f"admin endpoint {watched.admin}: 401 Unauthorized" in done.stdout.decode()
    assert done.stderr == b"Error: no broker answers\n"


def test_q_restores_the_terminal(watched: Watched) -> None:
    screen = TerminalProgram(watched.command(), environ())
    try:
        screen.shows("orders")
        screen.press("x")
        screen.shows("slow")
        assert not screen.restored()
        screen.press("q")
        assert screen.ends() == 0
        assert screen.restored()
        assert "\x1b[?1049l" in screen.raw()
    finally:
        screen.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_restores_the_terminal(watched: Watched, number: signal.Signals, status: int) -> None:
    screen = TerminalProgram(watched.command(), environ())
    try:
        screen.shows("orders")
        if number is signal.SIGINT:
            screen.press("\x03")
        else:
            screen.process.send_signal(number)
        assert screen.ends() == status
        assert screen.restored()
        assert "\x1b[?1049l" in screen.raw()
        assert "Traceback" not in screen.raw()
    finally:
        screen.close()


def test_the_view_waits_for_a_broker_that_is_away(watched: Watched) -> None:
    screen = TerminalProgram(watched.command(), environ())
    try:
        screen.shows("orders")
        watched.server.stop()
        screen.shows(f"admin endpoint {watched.admin}: ")
        watched.server.restart()
        watched.produce("added", 1)
        screen.shows("added")
    finally:
        screen.close()
