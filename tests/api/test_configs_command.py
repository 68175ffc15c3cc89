"""`korvet configs` on running brokers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    with KorvetServer("--set=num.partitions=3") as server:
        yield server


def run(server: KorvetServer, *arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(korvet, ["configs", *arguments, "-b", server.bootstrap])
    assert done.exit_code == status, done.output
    return done.output


def shown(server: KorvetServer, *arguments: str) -> dict[str, tuple[Any, str]]:
    rows = json.loads(run(server, "describe", "--json", *arguments))
    return {row["setting"]: (row["value"], row["source"]) for row in rows}


def test_settings_are_changed_and_shown(server):
    assert shown(server) == {}
    assert run(server, "alter", "-c", "log.retention.ms=5000", "-c", "no.such=1") == "changed all brokers\n"
    assert run(server, "alter", "--broker", "1", "-c", "max.connections=500") == "changed broker 1\n"
    of_all = {"log.retention.ms": ("5000", "all brokers"), "no.such": ("(hidden)", "all brokers")}
    assert shown(server) == of_all
    assert shown(server, "--broker", "1") == of_all | {"max.connections": ("500", "broker")}
    every = shown(server, "--broker", "1", "--all")
    assert every["num.partitions"] == ("3", "at the start")
    assert every["max.connections.per.ip"] == ("2147483647", "default")
    assert every["ssl.keystore.location"] == ("", "default")
    assert ["max.connections", "500", "broker"] in [
        line.split() for line in run(server, "describe", "--broker", "1").splitlines()
    ]
    run(server, "alter", "--unset", "log.retention.ms", "--unset", "no.such")
    run(server, "alter", "--broker", "1", "--unset", "max.connections")
    assert shown(server, "--broker", "1") == {}


def test_configs_of_a_group_are_changed_and_shown(server):
    name, topic = "share.auto.offset.reset", "errors.deadletterqueue.topic.name"
    changes = ("-c", f"{name}=earliest", "-c", f"{topic}=dlq.workers")
    assert run(server, "alter", "--group", "workers", *changes) == "changed group workers\n"
    of_group = {name: ("earliest", "group"), topic: ("dlq.workers", "group")}
    assert shown(server, "--group", "workers") == of_group
    every = shown(server, "--group", "workers", "--all")
    assert every["share.delivery.count.limit"] == ("5", "default")
    run(server, "alter", "--group", "workers", "--unset", name, "--unset", topic)
    assert shown(server, "--group", "workers") == {}
    assert "Unknown group config name: x" in run(server, "alter", "--group", "workers", "-c", "x=1", status=1)
    assert "--group goes without" in run(
        server, "alter", "--group", "w", "--broker", "1", "-c", "x=1", status=2
    )


def test_log_levels_are_changed_and_shown(server):
    name = "korvet.server.tls"
    assert shown(server, "--broker", "1", "--loggers")[name] == ("INFO", "broker")
    run(server, "alter", "--broker", "1", "--loggers", "-c", f"{name}=DEBUG")
    assert shown(server, "--broker", "1", "--loggers")[name] == ("DEBUG", "broker")
    run(server, "alter", "--broker", "1", "--loggers", "--unset", name)
    assert shown(server, "--broker", "1", "--loggers")[name] == ("INFO", "broker")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("alter",), 2, "nothing to change"),
        (("alter", "--loggers", "-c", "root=INFO"), 2, "--loggers needs --broker"),
        (("describe", "--all"), 2, "--all needs --broker or --group"),
        (("describe", "--broker", "7"), 1, "there is no broker 7"),
        (("alter", "--broker", "x", "-c", "log.retention.ms=1"), 1, "there is no broker x"),
        (("alter", "-c", "num.partitions=1"), 1, "all brokers: Cannot update these configs dynamically"),
        (("alter", "--broker", "1", "-c", "max.connections=x"), 1, "broker 1: Invalid value x"),
    ],
)
def test_mistakes(server, arguments, status, message):
    assert message in run(server, *arguments, status=status)
